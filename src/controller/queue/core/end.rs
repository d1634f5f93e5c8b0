//! End of a queue, and the keys that another queue takes over.

use std::hash::Hash;

use tokio::time::Instant;

use super::{
    Core, QueuePhase, QueueTimer,
    slots::{SlotEntry, SlotPlace},
};
use crate::controller::queue::{
    hashed::Hashed,
    item::{Add, LOW_PRIORITY, RemainingItem},
    lazy_now::LazyNow,
};

impl<K: Clone + Eq + Hash> Core<K> {
    /// Refuses adds from now on and drops the delayed keys; ready keys stay available.
    pub(in crate::controller::queue) fn drain(&mut self) {
        if self.phase != QueuePhase::Open {
            return;
        }
        self.phase = QueuePhase::Draining;
        for entry in self.slots.entries_mut() {
            entry.resync = None;
            if let SlotPlace::Waiting { .. } = entry.place {
                entry.place = SlotPlace::Idle;
            }
        }
    }

    /// Refuses adds and gets from now on; returns the ready and the delayed keys by time.
    pub(in crate::controller::queue) fn close(&mut self, now: Instant) -> Vec<RemainingItem<K>> {
        self.phase = QueuePhase::Closed;
        self.ready.clear();
        self.aging.clear();
        let mut left = Vec::new();
        for entry in self.slots.entries_mut() {
            let resync = entry.resync.take();
            let (at, ticket) = match entry.place {
                SlotPlace::Idle => {
                    let Some(resync) = resync else { continue };
                    entry.priority = LOW_PRIORITY;
                    resync
                }
                SlotPlace::Waiting { until, number } => (until, number),
                SlotPlace::Ready { ticket, .. } => {
                    self.ready_keys -= 1;
                    self.metrics.left(entry.priority);
                    (now, ticket)
                }
            };
            entry.place = SlotPlace::Idle;
            if let Some(key) = entry.key.clone() {
                let SlotEntry { priority, failures, .. } = *entry;
                left.push((ticket, RemainingItem { key, priority, failures, at }));
            }
        }
        left.sort_by_key(|(ticket, delayed)| (delayed.at, *ticket));
        left.into_iter().map(|(_, delayed)| delayed).collect()
    }

    /// Adds a key that another queue had left when it was closed. `hash` is that of the key.
    pub(in crate::controller::queue) fn restore(
        &mut self,
        hash: u64,
        delayed: RemainingItem<K>,
        now: Instant,
    ) -> (QueueTimer, bool) {
        if self.phase != QueuePhase::Open {
            return (QueueTimer::Keep, false);
        }
        let RemainingItem { key, priority, failures, at } = delayed;
        let slot = self.slots.intern(Hashed { hash, key });
        let after = at.saturating_duration_since(now);
        let add = Add { priority, after, ..Add::default() };
        let added = self.add_slot(slot, add, &mut LazyNow::at(now));
        let entry = self.slots.get_mut(slot);
        if failures > entry.failures {
            (entry.failures, entry.retry_at) = (failures, Some(at));
        }
        added
    }

    /// Returns whether the queue will not return any key from now on.
    pub(in crate::controller::queue) fn is_finished(&self) -> bool {
        match self.phase {
            QueuePhase::Open => false,
            QueuePhase::Draining => self.ready_keys == 0 && self.processing == 0,
            QueuePhase::Closed => true,
        }
    }
}
