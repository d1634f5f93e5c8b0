//! Worker slots of one run: bound the concurrent reconciles.
//!
//! A reconcile may give its slot back before it ends, so that the next request starts. A second
//! bound applies to all reconciles, with and without a slot.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::controller::metrics::Series;

/// Slots of one run.
#[derive(Debug)]
pub(in crate::controller) struct WorkerSlots {
    workers: usize,
    /// Maximum number of reconciles without a slot; any further ones count as if they had one.
    most_released: usize,
    /// Reconciles that gave their slots back.
    released: AtomicUsize,
    /// Wakes the run when a slot is given back.
    freed: Notify,
}

/// Slot of one reconcile, held by its task. Counts as an active worker until it is given back.
pub(in crate::controller) struct WorkerSlot {
    slots: Arc<WorkerSlots>,
    series: Arc<Series>,
    is_released: AtomicBool,
}

impl WorkerSlots {
    /// Returns free slots. `most_running` bounds all reconciles; less than `workers` counts as
    /// `workers`.
    pub(in crate::controller) fn new(workers: usize, most_running: usize) -> Arc<Self> {
        let most_released = most_running.saturating_sub(workers);
        let (released, freed) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Self { workers, most_released, released, freed })
    }

    /// Takes a slot for a reconcile.
    pub(in crate::controller) fn take(self: &Arc<Self>, series: &Arc<Series>) -> Arc<WorkerSlot> {
        series.active.inc();
        let (slots, series) = (Arc::clone(self), Arc::clone(series));
        Arc::new(WorkerSlot { slots, series, is_released: AtomicBool::new(false) })
    }

    /// Returns whether a slot is free beside these reconciles. A reconcile that has ended, and is
    /// still among them, counts as one with a slot.
    pub(in crate::controller) fn has_free(&self, reconciles: usize) -> bool {
        let released = self.released.load(Ordering::SeqCst).min(self.most_released);
        reconciles.saturating_sub(released) < self.workers
    }

    /// Resolves after a slot was given back. Cancel safe.
    pub(in crate::controller) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl WorkerSlot {
    /// Gives the slot back before the reconcile ends.
    #[cfg(any(test, feature = "meta"))]
    pub(in crate::controller) fn release(&self) {
        if !self.is_released.swap(true, Ordering::SeqCst) {
            self.slots.released.fetch_add(1, Ordering::SeqCst);
            self.series.active.dec();
            self.slots.freed.notify_one();
        }
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
