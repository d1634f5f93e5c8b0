//! Informer set: at most one informer per key.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    convert::Infallible,
    fmt,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
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
    Ended, InformerKey, InformerMetrics, InformerOptions, InformerProgress, Interests, Linger,
    ObjectError, Subscription,
    decode::Decoder,
    interest::SubscriberId,
    mailbox::Mailbox,
    reader::Room,
    reflector::Reflector,
    shared_informer::{Joined, SharedInformer},
    wire::InformerRequests,
};
use crate::{
    duration::after,
    kind::{ServedType, TypeIdentity},
    redaction,
};

/// Status of an informer.
#[derive(Clone, Debug)]
pub struct InformerStatus {
    /// Key of the informer.
    pub key: InformerKey,
    /// Progress of its list and watch.
    pub progress: InformerProgress,
    /// Number of cached objects, metadata entries included.
    pub objects: usize,
    /// Number of objects that are kept as metadata entries only.
    pub entries: usize,
    /// Cached JSON bytes.
    pub bytes: usize,
    /// Estimate of the memory that the objects take, in bytes.
    pub accounted: usize,
    /// Number of subscribers.
    pub subscribers: usize,
    /// Objects that cannot be decoded, each with its latest error; at most one hundred. Subscribers
    /// keep the previous version of the object.
    pub quarantined: Vec<ObjectError>,
}

/// Cloneable handle to the informers of one client.
#[derive(Clone)]
pub struct InformerSet {
    shared: Arc<SharedSet>,
}

pub(super) struct SharedSet {
    client: Client,
    options: Arc<InformerOptions>,
    /// Locked before an informer's lock, never across an await.
    informers: Mutex<Informers>,
    types: watch::Sender<BTreeMap<TypeIdentity, usize>>,
    tasks: TaskTracker,
    lists: Arc<Semaphore>,
    /// Byte budget for the pages of all lists.
    room: Room,
    metrics: InformerMetrics,
}

#[derive(Default)]
struct Informers {
    /// Informers that can be joined; an informer that is ending is not in the map.
    live: HashMap<InformerKey, Arc<SharedInformer>>,
    shut_down: bool,
}

impl InformerSet {
    /// Creates an empty set; spawns nothing.
    pub fn new(client: Client, options: InformerOptions) -> Self {
        let lists = Arc::new(Semaphore::new(options.max_concurrent_lists.max(1)));
        let room = Room::new(options.max_list_bytes);
        Self {
            shared: Arc::new(SharedSet {
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

    /// Subscribes to all objects of the informer of `key`; see [`InformerSet::subscribe_to`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, if the informer has to be started.
    pub fn subscribe(&self, served: &ServedType, key: InformerKey) -> Subscription {
        self.subscribe_to(served, key, Interests::everything())
    }

    /// Subscribes to the informer of `key`; starts it if there is none.
    ///
    /// The subscriber receives the stored objects that it is interested in, and every later change
    /// of one. Objects that no subscriber needs whole are kept as metadata entries; if this
    /// subscriber needs such entries whole, the type is listed again first. After a shutdown
    /// of the set it receives [`Ended::Shutdown`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, if the informer has to be started.
    pub fn subscribe_to(
        &self,
        served: &ServedType,
        key: InformerKey,
        interests: Interests,
    ) -> Subscription {
        loop {
            let Some(informer) = self.shared.find_or_start(served, &key) else {
                return SharedSet::late(&self.shared, key);
            };
            if let Some(joined) = informer.join(interests.clone()) {
                return Subscription::new(self.shared.clone(), informer, joined, interests);
            }
            // The informer has closed since the lookup and is no longer in the map.
        }
    }

    /// Waits until the informer of this key has ended; returns the reason. Returns
    /// [`Ended::Released`] at once if there is no informer. The proposal's informer stop signal.
    ///
    /// Concerns the informer that exists when this is called, not when the future is first polled.
    pub fn ended(&self, key: &InformerKey) -> impl Future<Output = Ended> + Send + use<> {
        let done = self.shared.lock().live.get(key).map(SharedInformer::done);
        async move {
            match done {
                Some(done) => done.await,
                None => Ended::Released,
            }
        }
    }

    /// Ends the informers of a type that is proven gone, whether or not they have subscribers.
    ///
    /// On return, the subscribers see the end. The requests are dropped when [`InformerSet::ended`]
    /// resolves. A store is emptied once its last subscriber is dropped.
    pub fn type_gone(&self, identity: &TypeIdentity) {
        let gone = |informer: &SharedInformer| informer.key.identity == *identity;
        self.shared.close(gone, &Ended::TypeGone);
    }

    /// Cuts back-offs short after a type was seen to be served. Not where the server sent
    /// Retry-After or forbids the request.
    pub fn type_served(&self, identity: &TypeIdentity) {
        for informer in self.shared.lock().live.values() {
            if informer.key.identity == *identity {
                // Kept for an informer that is waiting for a response now.
                informer.served_again.notify_one();
            }
        }
    }

    /// Subscribes to the types that have informers, with the number of informers each; for a
    /// component that knows what the server serves.
    ///
    /// Copy values out of a borrow before calling this set: it publishes under its lock.
    pub fn types(&self) -> watch::Receiver<BTreeMap<TypeIdentity, usize>> {
        self.shared.types.subscribe()
    }

    /// Returns the status of all informers.
    pub fn status(&self) -> Vec<InformerStatus> {
        let informers: Vec<Arc<SharedInformer>> =
            self.shared.lock().live.values().cloned().collect();
        informers
            .iter()
            .map(|informer| InformerStatus {
                key: informer.key.clone(),
                progress: informer.progress().borrow().clone(),
                objects: informer.store.len(),
                entries: informer.store.entries(),
                bytes: informer.store.bytes(),
                accounted: informer.store.accounted(),
                subscribers: informer.subscribers(),
                quarantined: informer.quarantined(),
            })
            .collect()
    }

    /// Returns the metrics of the informers.
    pub fn metrics(&self) -> &InformerMetrics {
        &self.shared.metrics
    }

    /// Ends all informers and waits for them. The set starts no informers afterwards.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the informers end even if this future is dropped.
    pub async fn shutdown(&self) {
        self.shared.lock().shut_down = true;
        self.shared.close(|_informer| true, &Ended::Shutdown);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl SharedSet {
    /// Returns the informer of a key, started if needed; `None` after shutdown.
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
            // The kind changed in place, and the cache was filled under the old one. The old
            // informer's task frees its store.
            Some(_) => {
                if let Some(old) = informers.live.remove(key) {
                    old.close(Ended::TypeGone);
                    self.discount(&old.key.identity);
                }
            }
            None => {}
        }
        let informer = SharedInformer::new(key.clone(), served.kind.clone(), self.options.linger);
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
                self.close_unused(informer, Ended::TypeGone);
            }
        }
        informer.closed().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Informers> {
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
        let metrics = self.metrics.join(identity);
        let (client, room) = (self.client.clone(), self.room.clone());
        let wire =
            InformerRequests::new(client, &informer.key, self.options.request_deadline, room);
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
        let ending = TaskEnd { set: self.clone(), informer: informer.clone() };
        self.tasks.spawn(drive(ending, reflector).instrument(span));
    }

    /// Creates a subscription that has already ended.
    fn late(set: &Arc<Self>, key: InformerKey) -> Subscription {
        let informer = Arc::new(SharedInformer::new(key, "".into(), Duration::ZERO));
        informer.close(Ended::Shutdown);
        informer.finish(Ended::Shutdown);
        let store = informer.store.clone();
        let mailbox = Arc::new(Mailbox::closed(Ended::Shutdown));
        let joined = Joined { id: SubscriberId(0), mailbox, store };
        Subscription::new(set.clone(), informer, joined, Interests::everything())
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
async fn drive(ending: TaskEnd, reflector: Reflector) {
    let mut reflect = Box::pin(AssertUnwindSafe(reflector.run()).catch_unwind());
    tokio::select! {
        biased;
        () = ending.informer.stopped() => {}
        () = unused(&ending) => {}
        () = reduce(&ending.informer) => {}
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
    // The request, the decoder and the metrics are dropped before the end is announced.
    drop(reflect);
    debug!("informer ended");
    drop(ending);
}

/// Reduces objects to metadata entries that no subscriber has needed whole for the linger time.
async fn reduce(informer: &SharedInformer) {
    loop {
        informer.retention_ends().await;
        informer.reduce().await;
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
                if ending.set.close_unused(&ending.informer, Ended::Released) {
                    return;
                }
            }
            // The informer holds the sender, so the channel cannot close.
            _changed = idle.changed() => {}
        }
    }
}

/// Announces the end of a task when dropped, even if the runtime drops the task.
struct TaskEnd {
    set: Arc<SharedSet>,
    informer: Arc<SharedInformer>,
}

impl Drop for TaskEnd {
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
