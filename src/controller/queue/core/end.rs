//! End of a queue.

use std::hash::Hash;

use super::{Core, QueuePhase, slots::SlotPlace};

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

    /// Refuses adds and gets from now on, and drops all keys.
    pub(in crate::controller::queue) fn close(&mut self) {
        self.phase = QueuePhase::Closed;
        self.ready.clear();
        self.aging.clear();
        for entry in self.slots.entries_mut() {
            entry.resync = None;
            if let SlotPlace::Ready { .. } = entry.place {
                self.ready_keys -= 1;
                self.metrics.left(entry.priority);
            }
            entry.place = SlotPlace::Idle;
        }
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
