//! Informer set: at most one informer per key.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use kube::Client;
use tokio::sync::watch;

use super::{
    EndReason, InformerKey, InformerMetrics, InformerOptions, InformerProgress, Interests,
    ObjectError, Subscription,
    interest::SubscriberId,
    mailbox::Mailbox,
    shared_informer::{JoinedSubscription, SharedInformer},
    shared_set::SharedSet,
};
use crate::kind::{ServedType, TypeIdentity};

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
    /// Bytes of the JSON as it is stored.
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
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::Cluster, informer::*, kind::TypeRef};
/// # async fn example(cluster: Cluster) -> Option<EndReason> {
/// let served = cluster.types.served(&TypeRef::of::<ConfigMap>())?;
/// let key = InformerKey::new(served.identity.clone());
/// let mut subscription = cluster.informers.subscribe(&served, key); // Shares an equal watch.
/// loop {
///     match subscription.next().await {
///         Ok(delta) => println!("{} exists: {}", delta.key, delta.new.is_some()),
///         Err(ended) => return Some(ended), // Such as: the type is gone.
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct InformerSet {
    pub(super) shared: Arc<SharedSet>,
}

impl InformerSet {
    /// Creates an empty set; spawns nothing.
    pub fn new(client: Client, options: InformerOptions) -> Self {
        Self { shared: Arc::new(SharedSet::new(client, options)) }
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
    /// of the set it receives [`EndReason::Shutdown`].
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
                return self.late(key);
            };
            if let Some(joined) = informer.join(interests.clone()) {
                return Subscription::new(self.shared.clone(), informer, joined, interests);
            }
            // The informer has closed since the lookup and is no longer in the map.
        }
    }

    /// Waits until the informer of this key has ended; returns the reason. Returns
    /// [`EndReason::Released`] at once if there is no informer. Semantics: the stop signal of
    /// an informer in controller-runtime's proposal of conditional controllers.
    ///
    /// Concerns the informer that exists when this is called, not when the future is first polled.
    pub fn ended(&self, key: &InformerKey) -> impl Future<Output = EndReason> + Send + use<> {
        let done = self.shared.lock().live.get(key).map(SharedInformer::done);
        async move {
            match done {
                Some(done) => done.await,
                None => EndReason::Released,
            }
        }
    }

    /// Ends the informers of a type that is proven gone, whether or not they have subscribers.
    ///
    /// On return, the subscribers see the end. The requests are dropped when [`InformerSet::ended`]
    /// resolves. A store is emptied once its last subscriber is dropped.
    pub fn type_gone(&self, identity: &TypeIdentity) {
        let gone = |informer: &SharedInformer| informer.key.identity == *identity;
        self.shared.close(gone, &EndReason::TypeGone);
    }

    /// Cuts back-offs short after a type was seen to be served. Delays remain where the server sent
    /// Retry-After or forbids the request.
    pub fn type_served(&self, identity: &TypeIdentity) {
        for informer in self.shared.lock().live.values() {
            if informer.key.identity == *identity {
                // Kept for an informer that is waiting for a response now.
                informer.served_again.notify_one();
            }
        }
    }

    /// Sets whether the server offers no watch for a type. A watch that is open continues, and the
    /// next request is that of the other way.
    pub(crate) fn set_polled(&self, identity: &TypeIdentity, polled: bool) {
        for informer in self.shared.lock().live.values() {
            if informer.key.identity == *identity {
                informer.polled.store(polled, Ordering::Relaxed);
            }
        }
    }

    /// Subscribes to the types that have informers, with the number of informers each; for a
    /// component that knows the served types.
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
        self.shared.close(|_informer| true, &EndReason::Shutdown);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Creates a subscription that has already ended.
    fn late(&self, key: InformerKey) -> Subscription {
        let informer = Arc::new(SharedInformer::new(key, "".into(), Duration::ZERO));
        informer.close(EndReason::Shutdown);
        informer.finish(EndReason::Shutdown);
        let store = informer.store.clone();
        let mailbox = Arc::new(Mailbox::closed(EndReason::Shutdown));
        let joined = JoinedSubscription { id: SubscriberId(0), mailbox, store };
        Subscription::new(self.shared.clone(), informer, joined, Interests::everything())
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
