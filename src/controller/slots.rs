//! Worker slots of one run: bound the concurrent reconciles.
//!
//! A reconcile may give its slot back before it ends, so that the next request starts, and may wait
//! for a slot again. A second bound applies to all reconciles, with and without a slot.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::metrics::Series;

/// Bound of the concurrent reconciles of a controller. May change during a run.
#[derive(Debug)]
pub(in crate::controller) struct WorkerBound {
    workers: AtomicUsize,
    /// Maximum number of reconciles, including those without a slot; less than `workers` counts as
    /// `workers`.
    most_running: usize,
    /// Wakes the run when a slot may be free, or a reconcile waits for one.
    freed: Notify,
}

/// Slots of one run.
#[derive(Debug)]
pub(in crate::controller) struct WorkerSlots {
    bound: Arc<WorkerBound>,
    /// Reconciles that gave their slots back.
    released: AtomicUsize,
    /// Reconciles that wait for a slot again, in the order of their requests.
    waiting: Mutex<VecDeque<Weak<WorkerSlot>>>,
}

/// Slot of one reconcile, held by its task. Counts as an active worker until it is given back.
pub(in crate::controller) struct WorkerSlot {
    slots: Arc<WorkerSlots>,
    series: Arc<Series>,
    is_released: AtomicBool,
    /// Wakes the reconcile when it has its slot again.
    regained: Notify,
}

impl WorkerBound {
    pub(in crate::controller) fn new(workers: usize, most_running: usize) -> Arc<Self> {
        let (workers, freed) = (AtomicUsize::new(workers), Notify::new());
        Arc::new(Self { workers, most_running, freed })
    }

    /// Returns the maximum number of reconciles with a slot.
    pub(in crate::controller) fn workers(&self) -> usize {
        self.workers.load(Ordering::SeqCst)
    }

    /// Sets the maximum number of reconciles with a slot. Those that run are not affected.
    pub(in crate::controller) fn set(&self, workers: usize) {
        self.workers.store(workers, Ordering::SeqCst);
        self.freed.notify_one();
    }

    /// Returns the maximum number of reconciles without a slot; any further ones count as if they
    /// had one.
    fn most_released(&self) -> usize {
        self.most_running.saturating_sub(self.workers())
    }
}

impl WorkerSlots {
    /// Returns free slots.
    pub(in crate::controller) fn new(bound: Arc<WorkerBound>) -> Arc<Self> {
        Arc::new(Self { bound, released: AtomicUsize::new(0), waiting: Mutex::default() })
    }

    /// Takes a slot for a reconcile.
    pub(in crate::controller) fn take(self: &Arc<Self>, series: &Arc<Series>) -> Arc<WorkerSlot> {
        series.active.inc();
        Arc::new(WorkerSlot {
            slots: Arc::clone(self),
            series: Arc::clone(series),
            is_released: AtomicBool::new(false),
            regained: Notify::new(),
        })
    }

    /// Gives free slots to the reconciles that wait for one. Returns whether one is left for
    /// another request. `reading` of the reconciles have not begun, and so have no slot.
    pub(in crate::controller) fn assign(&self, reconciles: usize, reading: usize) -> bool {
        // All reconciles that gave their slots back may wait: the second bound does not apply.
        let is_free = || {
            let released = self.released.load(Ordering::SeqCst);
            reconciles.saturating_sub(released) < self.bound.workers()
        };
        while is_free() {
            let Some(next) = self.waiting.lock().pop_front() else { break };
            if let Some(slot) = next.upgrade() {
                slot.take_again();
            }
        }
        self.has_free(reconciles, reading)
    }

    /// Returns whether a slot is free beside these reconciles. A reconcile that has ended, and is
    /// still among them, counts as one with a slot.
    fn has_free(&self, reconciles: usize, reading: usize) -> bool {
        let most_released = self.bound.most_released() + reading;
        let released = self.released.load(Ordering::SeqCst).min(most_released);
        reconciles.saturating_sub(released) < self.bound.workers()
    }

    /// Resolves after a slot was returned or requested, or the bound has changed. Cancel safe.
    pub(in crate::controller) async fn freed(&self) {
        self.bound.freed.notified().await;
    }
}

impl WorkerSlot {
    /// Waits for the released slot. Cancel safe.
    pub(in crate::controller) async fn regain(self: &Arc<Self>) {
        if self.is_released.load(Ordering::SeqCst) {
            self.slots.waiting.lock().push_back(Arc::downgrade(self));
            self.slots.bound.freed.notify_one();
        }
        // A notice may be left over from an earlier wait.
        while self.is_released.load(Ordering::SeqCst) {
            self.regained.notified().await;
        }
    }

    /// Releases the slot before the reconcile ends.
    pub(in crate::controller) fn release(&self) {
        if !self.is_released.swap(true, Ordering::SeqCst) {
            self.slots.released.fetch_add(1, Ordering::SeqCst);
            self.series.active.dec();
            self.slots.bound.freed.notify_one();
        }
    }

    /// Takes the slot again.
    fn take_again(&self) {
        if self.is_released.swap(false, Ordering::SeqCst) {
            self.slots.released.fetch_sub(1, Ordering::SeqCst);
            self.series.active.inc();
        }
        self.regained.notify_one();
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        if *self.is_released.get_mut() {
            self.slots.released.fetch_sub(1, Ordering::SeqCst);
        } else {
            self.series.active.dec();
        }
    }
}
