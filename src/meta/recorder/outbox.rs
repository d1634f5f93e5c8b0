//! Outbox: pending Events of one runnable. Queueing never blocks, so an API server that accepts no
//! Events delays no reconcile.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
/// Queue of pending Events; Events that do not fit are dropped. Clones share it.
#[derive(Debug)]
pub(super) struct Outbox<T>(Arc<Mutex<OutboxState<T>>>);

#[derive(Debug)]
struct OutboxState<T> {
    waiting: VecDeque<T>,
    // True while a delivery is active.
    delivered: bool,
    // Number of Events dropped since the queue was last empty.
    dropped: u64,
}

/// Outcome of [`Outbox::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutOutcome {
    /// Queued; the caller must start a delivery.
    Begins,
    /// Queued behind others of an active delivery.
    Waits,
    /// Dropped; the number of Events dropped since the queue was last empty.
    Dropped(u64),
}

/// The one active delivery of an outbox.
#[derive(Debug)]
pub(super) struct Delivery<T>(Option<Outbox<T>>);

impl<T> Outbox<T> {
    /// Appends an entry, unless `room` entries are pending.
    pub(super) fn put(&self, entry: T, room: usize) -> PutOutcome {
        let mut state = self.lock();
        if state.waiting.len() >= room {
            state.dropped += 1;
            return PutOutcome::Dropped(state.dropped);
        }
        state.waiting.push_back(entry);
        if std::mem::replace(&mut state.delivered, true) {
            PutOutcome::Waits
        } else {
            PutOutcome::Begins
        }
    }

    /// Returns the delivery that [`PutOutcome::Begins`] requires.
    pub(super) fn delivery(&self) -> Delivery<T> {
        Delivery(Some(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState<T>> {
        self.0.lock()
    }
}

impl<T> Delivery<T> {
    /// Removes and returns the oldest entry. `None` ends the delivery; an entry that is put later
    /// begins another one.
    pub(super) fn next(&mut self) -> Option<T> {
        let mut state = self.0.as_ref()?.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            *state = OutboxState::default();
            drop(state);
            self.0 = None;
        }
        next
    }
}

impl<T> Drop for Delivery<T> {
    /// Drops the remaining entries of a cancelled delivery: their epoch is over.
    fn drop(&mut self) {
        if let Some(outbox) = self.0.take() {
            *outbox.lock() = OutboxState::default();
        }
    }
}

impl<T> Default for OutboxState<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), delivered: false, dropped: 0 }
    }
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_delivered_in_order_by_one_delivery() {
        let outbox = Outbox::default();
        assert_eq!(outbox.put(1, 8), PutOutcome::Begins);
        let mut delivery = outbox.delivery();

        assert_eq!(outbox.put(2, 8), PutOutcome::Waits);
        assert_eq!((delivery.next(), delivery.next()), (Some(1), Some(2)));
        assert_eq!(outbox.put(3, 8), PutOutcome::Waits, "it is signalled once more");
        assert_eq!((delivery.next(), delivery.next()), (Some(3), None));

        assert_eq!(outbox.put(4, 8), PutOutcome::Begins);
        drop(delivery);
        assert_eq!(outbox.delivery().next(), Some(4), "a delivery that is over takes nothing away");
    }

    #[test]
    fn items_beyond_the_limit_are_dropped_and_counted() {
        let outbox = Outbox::default();
        let put: Vec<_> = (0..4).map(|number| outbox.put(number, 2)).collect();

        assert_eq!(
            put,
            [PutOutcome::Begins, PutOutcome::Waits, PutOutcome::Dropped(1), PutOutcome::Dropped(2)]
        );
        let mut delivery = outbox.delivery();
        assert_eq!(delivery.next(), Some(0));
        assert_eq!(outbox.put(4, 2), PutOutcome::Waits);
        assert_eq!(outbox.put(5, 2), PutOutcome::Dropped(3), "they still wait");
        while delivery.next().is_some() {}
        assert_eq!(outbox.put(6, 1), PutOutcome::Begins);
        assert_eq!(outbox.put(7, 1), PutOutcome::Dropped(1));
    }

    #[test]
    fn items_of_a_dropped_delivery_do_not_reach_the_next_one() {
        let outbox = Outbox::default();
        outbox.put("old", 8);
        outbox.put("older", 8);

        drop(outbox.delivery());

        assert_eq!(outbox.put("new", 8), PutOutcome::Begins);
        assert_eq!(outbox.delivery().next(), Some("new"));
    }
}
