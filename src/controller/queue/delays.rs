//! Timers of the delayed keys of a work queue.

use std::{
    collections::BTreeSet,
    pin::Pin,
    task::{self, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// Due times of delayed slots.
#[derive(Default)]
pub(super) struct KeyDelays {
    by_time: BTreeSet<(DueTime, u32)>,
    // Entry of each slot in `by_time`.
    by_slot: Vec<Option<DueTime>>,
    // Timer of the first delay. Set by a caller of `get`, since an add may come from outside a
    // runtime.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// Time of a delayed key, and its rank among the keys of the same time.
pub(super) type DueTime = (Instant, u64);

impl KeyDelays {
    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sets the due time of a slot, or removes it; returns whether it is the first one of all.
    pub(super) fn set(&mut self, slot: u32, due: Option<DueTime>) -> bool {
        let index = slot as usize;
        if self.by_slot.len() <= index {
            self.by_slot.resize(index + 1, None);
        }
        if let Some(old) = self.by_slot[index].take() {
            self.by_time.remove(&(old, slot));
        }
        let Some(due) = due else { return false };
        self.by_slot[index] = Some(due);
        self.by_time.insert((due, slot));
        self.by_time.first() == Some(&(due, slot))
    }

    /// Removes and returns the first slot that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u32> {
        let ((at, _), slot) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        self.by_slot[slot as usize] = None;
        Some(slot)
    }

    /// Waits for the first delay; ready once it has ended.
    pub(super) fn poll_first(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        let Some(&((at, _), _)) = self.by_time.first() else {
            self.sleep = None;
            return Poll::Pending;
        };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(context)
    }
}
