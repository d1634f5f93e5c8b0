//! Shared slots: the limit of reconciles over all controllers of a manager.
//!
//! A run waits for a slot only while one of its requests is ready, or one of its reconciles has
//! released its slot and needs it again. It waits for one slot at a time, for all of them. The
//! semaphore serves the waiting runs in the order of their arrival, so that controllers alternate.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    select,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
};

use crate::controller::{
    Request,
    queue::{Item, Queue},
    run::slots::WorkerSlots,
};

/// Access of one run to the shared slots, with its pending acquisition.
pub(super) struct SharedSlots {
    /// Slots of all controllers; `None` without a limit.
    slots: Option<Arc<Semaphore>>,
    /// Pending acquisition of a slot. Kept between two calls, since the semaphore is FIFO.
    waiting: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
}

impl SharedSlots {
    pub(super) fn new(slots: Option<&Arc<Semaphore>>) -> Self {
        Self { slots: slots.cloned(), waiting: None }
    }

    /// Waits for the next request, and for a slot if there is a limit; `None` once the queue has
    /// finished. Without `capacity` it only drives the timers of the queue. A slot is given to the
    /// reconciles that wait for one again before it is taken for a request. Cancel safe.
    pub(super) async fn next(
        &mut self,
        queue: &Queue<Request>,
        capacity: bool,
        reconciles: &WorkerSlots,
    ) -> Option<(Item<Request>, Option<OwnedSemaphorePermit>)> {
        let Some(slots) = self.slots.as_ref() else {
            return Some((queue.get_if(capacity).await?, None));
        };
        loop {
            let regains = reconciles.needs_shared();
            if !regains && !capacity {
                // A run without capacity must not withhold a slot from other controllers.
                self.waiting = None;
                return Some((queue.get_if(false).await?, None));
            }
            if self.waiting.is_none() {
                if !regains {
                    queue.available().await?;
                }
                // The controller whose reconcile has just freed a slot is queued first.
                yield_now().await;
            }
            let slots = Arc::clone(slots);
            let acquire = || async { slots.acquire_owned().await.ok() }.boxed();
            let waiting = self.waiting.get_or_insert_with(acquire);
            let slot = select! {
                biased;
                slot = waiting => slot,
                _ = queue.get_if(false) => None,
            };
            self.waiting = None;
            // `None` once the queue has finished; the semaphore is never closed.
            let Some(slot) = reconciles.assign_shared(slot?).filter(|_| capacity) else { continue };
            if let Some(item) = queue.try_get() {
                return Some((item, Some(slot)));
            }
        }
    }
}
