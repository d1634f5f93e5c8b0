//! State of an informer set, and the tasks of its informers.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
};

use futures::FutureExt;
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Semaphore, watch},
    time::sleep_until,
};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, error, info_span};

use super::{
    EndReason, InformerKey, InformerMetrics, InformerOptions, Linger, decode::Decoder,
    interest::SubscriberId, metrics::TypeMetrics, reader::BodyBudget, reflector::Reflector,
    shared_informer::SharedInformer, wire::InformerRequests,
};
use crate::{
    duration::after,
    kind::{ServedType, TypeIdentity},
    redaction,
};

/// State of a set, shared by its handles, its subscriptions and the tasks of its informers.
pub(super) struct SharedSet {
    client: Client,
    options: Arc<InformerOptions>,
    /// Locked before an informer's lock, never across an await.
    informers: Mutex<Informers>,
    pub(super) types: watch::Sender<BTreeMap<TypeIdentity, usize>>,
    pub(super) tasks: TaskTracker,
    pub(super) lists: Arc<Semaphore>,
    /// Byte budget for the pages of all lists.
    budget: BodyBudget,
    pub(super) metrics: InformerMetrics,
}

#[derive(Default)]
pub(super) struct Informers {
    /// Informers that can be joined; an informer that is ending is not in the map.
    pub(super) live: HashMap<InformerKey, Arc<SharedInformer>>,
    pub(super) shut_down: bool,
}

impl SharedSet {
    /// Returns the state of an empty set.
    pub(super) fn new(client: Client, options: InformerOptions) -> Self {
        Self {
            client,
            informers: Mutex::default(),
            types: watch::Sender::default(),
            tasks: TaskTracker::new(),
            lists: Arc::new(Semaphore::new(options.max_concurrent_lists.max(1))),
            budget: BodyBudget::new(options.max_list_bytes),
            metrics: InformerMetrics::default(),
            options: Arc::new(options),
        }
    }

    /// Returns the informer of a key, started if needed; `None` after shutdown.
    pub(super) fn find_or_start(
        self: &Arc<Self>,
        served: &ServedType,
        key: &InformerKey,
    ) -> Option<Arc<SharedInformer>> {
        let mut informers = self.lock();
        if informers.shut_down {
            return None;
        }
        match informers.live.get(key) {
            Some(informer) if informer.kind == served.kind => return Some(informer.clone()),
            // The kind changed in place, and the cache was filled under the old one. The old
            // informer's task frees its store.
            Some(_) => {
                if let Some(old) = informers.live.remove(key) {
                    old.close(EndReason::TypeGone);
                    self.discount(&old.key.identity);
                }
            }
            None => {}
        }
        let informer = SharedInformer::new(key.clone(), served.kind.clone(), self.options.linger);
        informer.polled.store(served.polled, Ordering::Relaxed);
        let informer = Arc::new(informer);
        informers.live.insert(key.clone(), informer.clone());
        self.count(&informer.key.identity);
        self.start(&informer, served);
        Some(informer)
    }

    /// Removes a subscriber; returns whether its informer is ending.
    pub(super) fn release(
        &self,
        informer: &Arc<SharedInformer>,
        subscriber: SubscriberId,
        linger: Linger,
    ) -> bool {
        informer.leave(subscriber, linger);
        match linger {
            Linger::Default => {}
            Linger::None => {
                self.close_unused(informer, EndReason::TypeGone);
            }
        }
        informer.closed().is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Informers> {
        #[cfg(test)]
        super::schedule::before(&self.informers);
        self.informers.lock()
    }

    fn start(self: &Arc<Self>, informer: &Arc<SharedInformer>, served: &ServedType) {
        let identity = &informer.key.identity;
        // A root span: the first subscriber may end before the others.
        let span = info_span!(
            parent: None,
            "informer",
            group = %identity.group,
            version = %identity.version,
            resource = %identity.plural,
            namespace = informer.key.namespace.as_deref(),
        );
        let metrics = Arc::new(self.metrics.join(identity));
        let (client, budget) = (self.client.clone(), self.budget.clone());
        let wire =
            InformerRequests::new(client, &informer.key, self.options.request_deadline, budget);
        let decoder = Decoder::of(&informer.key, served);
        let reflector = Reflector::new(
            informer.clone(),
            wire,
            decoder,
            self.options.clone(),
            self.lists.clone(),
            metrics.clone(),
            served.version_order,
        );
        let ending = TaskEnd { set: self.clone(), informer: informer.clone() };
        self.tasks.spawn(drive(ending, reflector, metrics).instrument(span));
    }

    pub(super) fn close(&self, condition: impl Fn(&SharedInformer) -> bool, reason: &EndReason) {
        let mut closed = Vec::new();
        self.lock().live.retain(|_, informer| {
            let matches = condition(informer);
            if matches {
                informer.close(reason.clone());
                self.discount(&informer.key.identity);
                closed.push(informer.clone());
            }
            !matches
        });
        for informer in closed {
            informer.discard();
        }
    }

    fn close_unused(&self, informer: &Arc<SharedInformer>, reason: EndReason) -> bool {
        let mut informers = self.lock();
        let closed = informer.close_if_unused(reason);
        if closed {
            self.forget(&mut informers, informer);
        }
        drop(informers);
        informer.discard();
        closed
    }

    pub(super) fn close_one(&self, informer: &Arc<SharedInformer>, reason: EndReason) {
        let mut informers = self.lock();
        informer.close(reason);
        self.forget(&mut informers, informer);
        drop(informers);
        informer.discard();
    }

    /// Removes an informer from the map, unless another one has replaced it.
    fn forget(&self, informers: &mut Informers, informer: &Arc<SharedInformer>) {
        if let Entry::Occupied(entry) = informers.live.entry(informer.key.clone())
            && Arc::ptr_eq(entry.get(), informer)
        {
            entry.remove();
            self.discount(&informer.key.identity);
        }
    }

    fn count(&self, identity: &TypeIdentity) {
        self.types.send_modify(|types| *types.entry(identity.clone()).or_default() += 1);
    }

    fn discount(&self, identity: &TypeIdentity) {
        self.types.send_modify(|types| {
            if let Some(count) = types.get_mut(identity) {
                *count -= 1;
                if *count == 0 {
                    types.remove(identity);
                }
            }
        });
    }
}

/// Task of an informer: runs the reflector until the informer is closed.
async fn drive(ending: TaskEnd, reflector: Reflector, metrics: Arc<TypeMetrics>) {
    let mut reflect = Box::pin(AssertUnwindSafe(reflector.run()).catch_unwind());
    tokio::select! {
        biased;
        () = ending.informer.stopped() => {}
        () = unused(&ending) => {}
        () = reduce(&ending.informer, &metrics) => {}
        end = &mut reflect => {
            let panic: Box<dyn Any + Send> = match end {
                Err(panic) => panic,
                Ok::<Infallible, _>(never) => match never {},
            };
            let message = redaction::panic_message(panic.as_ref()).to_owned();
            error!(error = message, "informer panicked");
            ending.set.close_one(&ending.informer, EndReason::Panicked(message));
        }
    }
    // The request, the decoder and the metrics are dropped before the end is announced.
    drop((reflect, metrics));
    debug!("informer ended");
    drop(ending);
}

/// Reduces objects to metadata entries that no subscriber has needed whole for the linger time.
async fn reduce(informer: &SharedInformer, metrics: &TypeMetrics) {
    loop {
        informer.retention_ends().await;
        informer.reduce().await;
        metrics.cached(&informer.store);
    }
}

/// Closes the informer after it had no subscribers for the linger time.
async fn unused(ending: &TaskEnd) {
    let linger = ending.set.options.linger;
    let mut idle = ending.informer.idle();
    loop {
        let since = *idle.borrow_and_update();
        let lingered = async {
            match since {
                Some(since) => {
                    let _timer = ending.set.metrics.lingering(&ending.informer.key.identity);
                    sleep_until(after(since, linger)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = lingered => {
                if ending.set.close_unused(&ending.informer, EndReason::Released) {
                    return;
                }
            }
            // The informer holds the sender, so the channel cannot close.
            _changed = idle.changed() => {}
        }
    }
}

/// Announces the end of a task when dropped, even if the runtime drops the task.
pub(super) struct TaskEnd {
    pub(super) set: Arc<SharedSet>,
    pub(super) informer: Arc<SharedInformer>,
}

impl Drop for TaskEnd {
    fn drop(&mut self) {
        self.set.close_one(&self.informer, EndReason::Shutdown);
        self.informer.finish(self.informer.closed().unwrap_or(EndReason::Shutdown));
    }
}
