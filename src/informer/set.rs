//! The set of informers: at most one for each key.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    convert::Infallible,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt;
use kube::Client;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep_until,
};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, error, info_span};

use super::{
    Ended, InformerKey, InformerMetrics, InformerOptions, Linger, ObjectError, Progress,
    Subscription, decode::Decoder, reader::Room, reflector::Reflector,
    shared_informer::SharedInformer, subscription::Mailbox, wire::Wire,
};
use crate::{
    duration::after,
    kind::{ServedType, TypeIdentity},
    redaction,
};

/// One informer of a set, for status and metrics.
#[derive(Clone, Debug)]
pub struct InformerStatus {
    /// Which one.
    pub key: InformerKey,
    /// How its watch is doing.
    pub progress: Progress,
    /// Objects held.
    pub objects: usize,
    /// JSON bytes held.
    pub bytes: usize,
    /// Subscribers.
    pub subscribers: usize,
    /// Objects that cannot be read, the first hundred; of each the latest error. Subscribers go on
    /// seeing what there was before.
    pub quarantined: Vec<ObjectError>,
}

/// A cloneable handle on the informers of one client.
#[derive(Clone)]
pub struct InformerSet {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    client: Client,
    options: Arc<InformerOptions>,
    /// Held before an informer's lock, never across an await.
    informers: Mutex<Informers>,
    types: watch::Sender<BTreeMap<TypeIdentity, usize>>,
    tasks: TaskTracker,
    lists: Arc<Semaphore>,
    /// Of the pages of all lists.
    room: Room,
    metrics: InformerMetrics,
}

#[derive(Default)]
struct Informers {
    /// Those that can be joined; one that is ending is not among them.
    live: HashMap<InformerKey, Arc<SharedInformer>>,
    shut_down: bool,
}

impl InformerSet {
    /// An empty set; spawns nothing.
    pub fn new(client: Client, options: InformerOptions) -> Self {
        let lists = Arc::new(Semaphore::new(options.max_concurrent_lists.max(1)));
        let room = Room::new(options.max_list_bytes);
        Self {
            shared: Arc::new(Shared {
                client,
                options: Arc::new(options),
                informers: Mutex::default(),
                types: watch::Sender::default(),
                tasks: TaskTracker::new(),
                lists,
                room,
                metrics: InformerMetrics::default(),
            }),
        }
    }

    /// Joins the informer of `key`, and starts it if there is none.
    ///
    /// The subscriber first receives every object there is, then every later change. Once the set
    /// is shut down it receives [`Ended::Shutdown`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, when the informer has to be started.
    pub fn subscribe(&self, served: &ServedType, key: InformerKey) -> Subscription {
        loop {
            let Some(informer) = self.shared.find_or_start(served, &key) else {
                return Shared::late(&self.shared, key);
            };
            // Not under the set's lock: a large store must not hold up those who join another.
            if let Some(mailbox) = informer.join() {
                return Subscription::new(self.shared.clone(), informer, mailbox);
            }
            // It has closed in between, and is no longer to be found.
        }
    }

    /// Resolves when the informer of this key has ended, with the reason; at once when there is
    /// none, as [`Ended::Released`]. The proposal's informer stop signal.
    ///
    /// It concerns the informer there is when this is called, not when it is first polled.
    pub fn ended(&self, key: &InformerKey) -> impl Future<Output = Ended> + Send + use<> {
        let done = self.shared.lock().live.get(key).map(SharedInformer::done);
        async move {
            match done {
                Some(done) => done.await,
                None => Ended::Released,
            }
        }
    }

    /// Says that a type is proven gone: its informers end, whoever still listens.
    ///
    /// On return their subscribers see the end; their requests are dropped when
    /// [`InformerSet::ended`] resolves. A store is emptied when its last subscriber has left.
    pub fn type_gone(&self, identity: &TypeIdentity) {
        let gone = |informer: &SharedInformer| informer.key.identity == *identity;
        self.shared.close(gone, &Ended::TypeGone);
    }

    /// Says that a type has been seen to be served: its informers do not wait any longer before
    /// they ask again, except where the server told them to wait or has refused.
    pub fn type_served(&self, identity: &TypeIdentity) {
        for informer in self.shared.lock().live.values() {
            if informer.key.identity == *identity {
                // Kept for one that is waiting for an answer just now.
                informer.nudge.notify_one();
            }
        }
    }

    /// The types that have informers, each with how many, and every later change: whoever knows
    /// what the server serves follows these.
    ///
    /// Copy what you need out of a borrow before you call this set: it publishes under its lock.
    pub fn types(&self) -> watch::Receiver<BTreeMap<TypeIdentity, usize>> {
        self.shared.types.subscribe()
    }

    /// Every informer.
    pub fn status(&self) -> Vec<InformerStatus> {
        let informers: Vec<Arc<SharedInformer>> =
            self.shared.lock().live.values().cloned().collect();
        informers
            .iter()
            .map(|informer| InformerStatus {
                key: informer.key.clone(),
                progress: informer.progress().borrow().clone(),
                objects: informer.store.len(),
                bytes: informer.store.bytes(),
                subscribers: informer.subscribers(),
                quarantined: informer.quarantined(),
            })
            .collect()
    }

    /// What its informers count.
    pub fn metrics(&self) -> &InformerMetrics {
        &self.shared.metrics
    }

    /// Ends every informer and waits for them. Nothing can be joined from then on.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the informers end, whatever becomes of this future.
    pub async fn shutdown(&self) {
        self.shared.lock().shut_down = true;
        self.shared.close(|_hub| true, &Ended::Shutdown);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    /// The informer of a key that can be joined; none once shut down.
    fn find_or_start(
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
            // Its kind was changed in place: what is cached was read under the old one. Its task
            // frees the store.
            Some(_) => {
                if let Some(old) = informers.live.remove(key) {
                    old.close(Ended::TypeGone);
                    self.discount(&old.key.identity);
                }
            }
            None => {}
        }
        let informer = Arc::new(SharedInformer::new(key.clone(), served.kind.clone()));
        informers.live.insert(key.clone(), informer.clone());
        self.count(&informer.key.identity);
        self.start(&informer, served);
        Some(informer)
    }

    /// Makes a subscriber leave; whether its informer is ending.
    pub(super) fn release(
        &self,
        informer: &Arc<SharedInformer>,
        mailbox: &Arc<Mailbox>,
        linger: Linger,
    ) -> bool {
        informer.leave(mailbox);
        match linger {
            Linger::Default => {}
            Linger::None => {
                self.close_unused(informer, Ended::TypeGone);
            }
        }
        informer.closed().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Informers> {
        #[cfg(test)]
        super::schedule::before(&self.informers);
        // Nothing panics half-way through a change of the map.
        self.informers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, informer: &Arc<SharedInformer>, served: &ServedType) {
        let identity = &informer.key.identity;
        // Of its own: whoever comes first may leave before the others.
        let span = info_span!(
            parent: None,
            "informer",
            group = %identity.group,
            version = %identity.version,
            resource = %identity.plural,
            namespace = informer.key.namespace.as_deref(),
        );
        let metrics = self.metrics.join(identity);
        let (client, room) = (self.client.clone(), self.room.clone());
        let wire = Wire::new(client, &informer.key, self.options.request_deadline, room);
        let decoder = Decoder::new(served, informer.key.projection, informer.key.managed_fields);
        let reflector = Reflector::new(
            informer.clone(),
            wire,
            decoder,
            self.options.clone(),
            self.lists.clone(),
            metrics,
            served.version_order,
        );
        let ending = Ending { set: self.clone(), informer: informer.clone() };
        self.tasks.spawn(drive(ending, reflector).instrument(span));
    }

    /// A subscription that has ended before it began.
    fn late(set: &Arc<Self>, key: InformerKey) -> Subscription {
        let informer = Arc::new(SharedInformer::new(key, "".into()));
        informer.close(Ended::Shutdown);
        informer.finish(Ended::Shutdown);
        let mailbox = Arc::new(Mailbox::closed(Ended::Shutdown));
        Subscription::new(set.clone(), informer, mailbox)
    }

    fn close(&self, condition: impl Fn(&SharedInformer) -> bool, reason: &Ended) {
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

    fn close_unused(&self, informer: &Arc<SharedInformer>, reason: Ended) -> bool {
        let mut informers = self.lock();
        let closed = informer.close_if_unused(reason);
        if closed {
            self.forget(&mut informers, informer);
        }
        drop(informers);
        informer.discard();
        closed
    }

    fn close_one(&self, informer: &Arc<SharedInformer>, reason: Ended) {
        let mut informers = self.lock();
        informer.close(reason);
        self.forget(&mut informers, informer);
        drop(informers);
        informer.discard();
    }

    /// Takes an informer out, unless another one has its place.
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

/// An informer's task: runs the reflector until the informer is closed.
async fn drive(ending: Ending, reflector: Reflector) {
    let mut reflect = Box::pin(AssertUnwindSafe(reflector.run()).catch_unwind());
    tokio::select! {
        biased;
        () = ending.informer.stopped() => {}
        () = unused(&ending) => {}
        end = &mut reflect => {
            let panic: Box<dyn Any + Send> = match end {
                Err(panic) => panic,
                Ok::<Infallible, _>(never) => match never {},
            };
            let message = redaction::panic_message(panic.as_ref()).to_owned();
            error!(error = message, "informer panicked");
            ending.set.close_one(&ending.informer, Ended::Panicked(message));
        }
    }
    // The request, the decoder and the metrics go before the end is announced.
    drop(reflect);
    debug!("informer ended");
    drop(ending);
}

/// Closes the informer when nobody has subscribed for the time of the linger.
async fn unused(ending: &Ending) {
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
                if ending.set.close_unused(&ending.informer, Ended::Released) {
                    return;
                }
            }
            // The sender is in the informer.
            _changed = idle.changed() => {}
        }
    }
}

/// Announces the end of a task when dropped, also when the runtime drops the task.
struct Ending {
    set: Arc<Shared>,
    informer: Arc<SharedInformer>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.set.close_one(&self.informer, Ended::Shutdown);
        self.informer.finish(self.informer.closed().unwrap_or(Ended::Shutdown));
    }
}

impl fmt::Debug for InformerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let informers = self.shared.lock();
        f.debug_struct("InformerSet").field("informers", &informers.live.len()).finish()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
