//! Worker slots of one run: bound the concurrent reconciles.
//!
//! A reconcile may give its slot back before it ends, so that the next request starts. A second
//! bound applies to all reconciles, with and without a slot.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::controller::metrics::Series;

/// Bound of the concurrent reconciles of a controller. May change during a run.
#[derive(Debug)]
pub(in crate::controller) struct WorkerBound {
    workers: AtomicUsize,
    /// Maximum number of reconciles, those that gave their slot back included; less than `workers`
    /// counts as `workers`.
    most_running: usize,
    /// Wakes the run when a slot may be free: it was given back, or the bound has changed.
    freed: Notify,
}

/// Slots of one run.
#[derive(Debug)]
pub(in crate::controller) struct WorkerSlots {
    bound: Arc<WorkerBound>,
    /// Reconciles that gave their slots back.
    released: AtomicUsize,
}

/// Slot of one reconcile, held by its task. Counts as an active worker until it is given back.
pub(in crate::controller) struct WorkerSlot {
    slots: Arc<WorkerSlots>,
    series: Arc<Series>,
    is_released: AtomicBool,
    /// Slot among the reconciles of all controllers, if the manager limits them.
    shared: Mutex<SharedSlot>,
}

/// Slot among the reconciles of all controllers.
enum SharedSlot {
    /// No limit, or the slot was given back for good.
    None,
    Held(OwnedSemaphorePermit),
    /// Given back until the reconcile begins.
    Lent(Arc<Semaphore>),
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
    #[cfg(feature = "meta")]
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
        Arc::new(Self { bound, released: AtomicUsize::new(0) })
    }

    /// Takes a slot for a reconcile.
    pub(in crate::controller) fn take(
        self: &Arc<Self>,
        series: &Arc<Series>,
        shared: Option<OwnedSemaphorePermit>,
    ) -> Arc<WorkerSlot> {
        series.active.inc();
        let (slots, series) = (Arc::clone(self), Arc::clone(series));
        let shared = shared.map_or(SharedSlot::None, SharedSlot::Held);
        let (is_released, shared) = (AtomicBool::new(false), Mutex::new(shared));
        Arc::new(WorkerSlot { slots, series, is_released, shared })
    }

    /// Returns whether a slot is free beside these reconciles. A reconcile that has ended, and is
    /// still among them, counts as one with a slot.
    pub(in crate::controller) fn has_free(&self, reconciles: usize) -> bool {
        let released = self.released.load(Ordering::SeqCst).min(self.bound.most_released());
        reconciles.saturating_sub(released) < self.bound.workers()
    }

    /// Resolves after a slot was given back, or the bound has changed. Cancel safe.
    pub(in crate::controller) async fn freed(&self) {
        self.bound.freed.notified().await;
    }
}

impl WorkerSlot {
    /// Returns the slot among all controllers, for the time of a request to the server before the
    /// reconcile begins: a server that does not answer must not delay other controllers.
    pub(in crate::controller) fn lend(&self) {
        let mut shared = self.shared.lock();
        if let SharedSlot::Held(permit) = &*shared {
            *shared = SharedSlot::Lent(Arc::clone(permit.semaphore()));
        }
    }

    /// Waits for a slot among all controllers, if it was lent. Cancel safe.
    pub(in crate::controller) async fn regain(&self) {
        let lent = match &*self.shared.lock() {
            SharedSlot::Lent(slots) => Arc::clone(slots),
            SharedSlot::None | SharedSlot::Held(_) => return,
        };
        // The semaphore is never closed.
        if let Ok(permit) = lent.acquire_owned().await {
            *self.shared.lock() = SharedSlot::Held(permit);
        }
    }

    /// Gives the slot back before the reconcile ends.
    #[cfg(any(test, feature = "meta"))]
    pub(in crate::controller) fn release(&self) {
        if !self.is_released.swap(true, Ordering::SeqCst) {
            self.slots.released.fetch_add(1, Ordering::SeqCst);
            self.series.active.dec();
            drop(std::mem::replace(&mut *self.shared.lock(), SharedSlot::None));
            self.slots.bound.freed.notify_one();
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
