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
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::controller::metrics::Series;

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
    /// Reconciles that wait for a slot among all controllers again, in the order of their requests.
    waiting_shared: Mutex<VecDeque<Weak<WorkerSlot>>>,
}

/// Slot of one reconcile, held by its task. Counts as an active worker until it is given back.
pub(in crate::controller) struct WorkerSlot {
    slots: Arc<WorkerSlots>,
    series: Arc<Series>,
    is_released: AtomicBool,
    /// Wakes the reconcile when it has one of its slots again.
    regained: Notify,
    /// Slot among the reconciles of all controllers, if the manager limits them.
    shared: Mutex<SharedSlot>,
}

/// Slot among the reconciles of all controllers.
enum SharedSlot {
    /// No limit.
    None,
    Held {
        /// Returns the slot by its drop.
        _permit: OwnedSemaphorePermit,
    },
    /// Released until the reconcile needs it again.
    Released,
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
        let (waiting, waiting_shared) = (Mutex::default(), Mutex::default());
        Arc::new(Self { bound, released: AtomicUsize::new(0), waiting, waiting_shared })
    }

    /// Takes a slot for a reconcile.
    pub(in crate::controller) fn take(
        self: &Arc<Self>,
        series: &Arc<Series>,
        shared: Option<OwnedSemaphorePermit>,
    ) -> Arc<WorkerSlot> {
        series.active.inc();
        let (slots, series) = (Arc::clone(self), Arc::clone(series));
        let shared = shared.map_or(SharedSlot::None, |permit| SharedSlot::Held { _permit: permit });
        let (is_released, shared) = (AtomicBool::new(false), Mutex::new(shared));
        let regained = Notify::new();
        Arc::new(WorkerSlot { slots, series, is_released, regained, shared })
    }

    /// Gives free slots to the reconciles that wait for one. Returns whether one is left for
    /// another request.
    pub(in crate::controller) fn assign(&self, reconciles: usize) -> bool {
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
        self.has_free(reconciles)
    }

    /// Returns whether a slot is free beside these reconciles. A reconcile that has ended, and is
    /// still among them, counts as one with a slot.
    fn has_free(&self, reconciles: usize) -> bool {
        let released = self.released.load(Ordering::SeqCst).min(self.bound.most_released());
        reconciles.saturating_sub(released) < self.bound.workers()
    }

    /// Returns whether a reconcile waits for a slot among all controllers.
    pub(in crate::controller) fn needs_shared(&self) -> bool {
        let mut waiting = self.waiting_shared.lock();
        waiting.retain(|slot| slot.strong_count() > 0);
        !waiting.is_empty()
    }

    /// Gives a slot among all controllers to the first reconcile that waits for one. Returns it if
    /// there is none.
    pub(in crate::controller) fn assign_shared(
        &self,
        mut permit: OwnedSemaphorePermit,
    ) -> Option<OwnedSemaphorePermit> {
        loop {
            let Some(next) = self.waiting_shared.lock().pop_front() else { return Some(permit) };
            permit = match next.upgrade() {
                Some(slot) => slot.take_shared_again(permit)?,
                None => permit,
            };
        }
    }

    /// Resolves after a slot was returned or requested, or the bound has changed. Cancel safe.
    pub(in crate::controller) async fn freed(&self) {
        self.bound.freed.notified().await;
    }
}

impl WorkerSlot {
    /// Releases the slot among all controllers for the time of a request to the server before the
    /// reconcile begins: a server that does not answer must not delay other controllers.
    pub(in crate::controller) fn release_shared(&self) {
        let mut shared = self.shared.lock();
        if let SharedSlot::Held { .. } = &*shared {
            *shared = SharedSlot::Released;
        }
    }

    /// Waits for the released slots: the worker slot, and that among all controllers. The run waits
    /// for the second, so that its reconciles and its next request share one place in line.
    /// Cancel safe.
    pub(in crate::controller) async fn regain(self: &Arc<Self>) {
        if self.is_released.load(Ordering::SeqCst) {
            self.slots.waiting.lock().push_back(Arc::downgrade(self));
            self.slots.bound.freed.notify_one();
        }
        // A notice may be left over from an earlier wait.
        while self.is_released.load(Ordering::SeqCst) {
            self.regained.notified().await;
        }
        if self.lacks_shared() {
            self.slots.waiting_shared.lock().push_back(Arc::downgrade(self));
            self.slots.bound.freed.notify_one();
        }
        while self.lacks_shared() {
            self.regained.notified().await;
        }
    }

    /// Returns whether the slot among all controllers is released.
    fn lacks_shared(&self) -> bool {
        match &*self.shared.lock() {
            SharedSlot::Released => true,
            SharedSlot::None | SharedSlot::Held { .. } => false,
        }
    }

    /// Releases the slots before the reconcile ends.
    pub(in crate::controller) fn release(&self) {
        if !self.is_released.swap(true, Ordering::SeqCst) {
            self.slots.released.fetch_add(1, Ordering::SeqCst);
            self.series.active.dec();
            self.release_shared();
            self.slots.bound.freed.notify_one();
        }
    }

    /// Takes the worker slot again.
    fn take_again(&self) {
        if self.is_released.swap(false, Ordering::SeqCst) {
            self.slots.released.fetch_sub(1, Ordering::SeqCst);
            self.series.active.inc();
        }
        self.regained.notify_one();
    }

    /// Takes the slot among all controllers again. Returns it if this reconcile has one.
    fn take_shared_again(&self, permit: OwnedSemaphorePermit) -> Option<OwnedSemaphorePermit> {
        if !self.lacks_shared() {
            return Some(permit);
        }
        *self.shared.lock() = SharedSlot::Held { _permit: permit };
        self.regained.notify_one();
        None
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
