//! Context of a reconcile: client, caches and state of the epoch.

mod by_hand;
mod fetch;
#[cfg(feature = "runtime")]
mod recorders;
mod slot;

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
};

use kube::Client;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub use self::fetch::FetchError;
use super::{
    CachedResource, Cluster, InputState, Inputs, Lister, ListerError, Queue, Request,
    foreign_cluster::ForeignCluster,
    inputs::{attached::Attached, state::NamedInputs, statuses::InputStatuses},
    queue::{Add, LOW_PRIORITY},
    slots::WorkerSlot,
    unconfirmed::{self, UnconfirmedWrites},
};
use crate::{
    discovery::TypeRegistry,
    informer::{MovingInterests, Store},
    kind::{ServedType, TypeRef},
    manager::{Epoch, Fence, FencedSender, Requester, WriteObserver},
};

/// Context of a reconcile. Cheap to clone.
///
/// ```
/// # use std::sync::Arc;
/// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// # use kube::{Api, ResourceExt};
/// # use pilotlight::{controller::*, informer::ObjectKey};
/// async fn reconcile(
///     map: Option<Arc<ConfigMap>>,
///     context: Context,
/// ) -> Result<Outcome, ReconcileError> {
///     let Some(map) = map else { return Ok(Outcome::Done) }; // Deleted.
///     let namespace = map.namespace().unwrap_or_default();
///     // Reads a cache of the controller: that of an input `.watches::<Secret>(..)`.
///     let key = ObjectKey::namespaced(namespace.as_str(), map.name_any());
///     let Some(secret) = context.lister::<Secret>()?.get(&key)? else { return Ok(Outcome::Done) };
///     // Writes through the fence of the epoch: nothing is sent after its end.
///     let secrets = Api::<Secret>::namespaced(context.client().clone(), &namespace);
///     secrets.delete(&secret.name_any(), &Default::default()).await?;
///     Ok(Outcome::Done)
/// }
/// # drop(for_object(reconcile));
/// ```
#[derive(Clone)]
pub struct Context {
    shared: Arc<SharedContext>,
    // Set at its first use, and dropped with the reconcile.
    client: Arc<OnceLock<Arc<Client>>>,
    // `None` for a context from `Context::new`.
    request: Option<Request>,
    attempt: u32,
    reconcile_id: u64,
    after_unknown: bool,
    // Cluster that is read and written, if it is not the controller's.
    foreign: Option<ForeignCluster>,
    // Empty for a context from `Context::new`.
    slot: Weak<WorkerSlot>,
}

/// Context that does not keep the shared parts of its epoch alive.
#[derive(Default)]
pub(super) struct WeakContext(Weak<SharedContext>);

/// Parts that all reconciles of an epoch share.
struct SharedContext {
    epoch: Epoch,
    sender: FencedSender,
    // `None` for a context from `Context::new`.
    unconfirmed: Option<Arc<UnconfirmedWrites>>,
    // Client behind the fence, shared by the reconciles that run: the channel of kube's client
    // takes 10 KiB, which a controller at rest does not need.
    fenced: Mutex<Weak<Client>>,
    cancel: CancellationToken,
    statuses: Arc<InputStatuses>,
    // `None` for a context from `Context::new`.
    queue: Option<Queue<Request>>,
    // `None` for a context from `Context::new`.
    named: Option<Arc<NamedInputs>>,
    #[cfg(feature = "runtime")]
    recorders: recorders::Recorders,
}

impl Context {
    pub(super) fn of(
        epoch: Epoch,
        unfenced: Client,
        unconfirmed: Option<Arc<UnconfirmedWrites>>,
        cancel: CancellationToken,
        statuses: Arc<InputStatuses>,
        queue: Option<Queue<Request>>,
        named: Option<Arc<NamedInputs>>,
    ) -> Self {
        let sender =
            FencedSender::new(epoch.fence(), &unfenced, observer(unconfirmed.as_ref(), None));
        let shared = SharedContext {
            epoch,
            sender,
            unconfirmed,
            fenced: Mutex::default(),
            cancel,
            statuses,
            queue,
            named,
            #[cfg(feature = "runtime")]
            recorders: recorders::Recorders::default(),
        };
        Self::without_request(Arc::new(shared))
    }

    fn without_request(shared: Arc<SharedContext>) -> Self {
        Self {
            shared,
            client: Arc::default(),
            request: None,
            attempt: 0,
            reconcile_id: 0,
            after_unknown: false,
            foreign: None,
            slot: Weak::new(),
        }
    }

    /// Returns a context that does not keep the parts of the epoch.
    pub(super) fn downgrade(&self) -> WeakContext {
        WeakContext(Arc::downgrade(&self.shared))
    }

    /// Returns the context of one reconcile.
    pub(super) fn of_reconcile(
        &self,
        request: &Request,
        attempt: u32,
        after_unknown: bool,
        slot: &Arc<WorkerSlot>,
    ) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            client: Arc::default(),
            request: Some(request.clone()),
            attempt,
            reconcile_id: fastrand::u64(..),
            after_unknown,
            foreign: None,
            slot: Arc::downgrade(slot),
        }
    }

    /// Returns the context for another cluster. Its caches are those of the inputs of
    /// [`Builder::in_cluster`](super::Builder::in_cluster). Its client sends to that cluster,
    /// behind the fence of this epoch. The next reconcile of the request waits until those caches
    /// hold what it wrote, as in the controller's cluster, unless the server there cannot be read.
    #[must_use]
    pub fn of_cluster(&self, cluster: &Cluster) -> Self {
        Self {
            foreign: (!self.is_of(cluster)).then(|| ForeignCluster::from(cluster)),
            client: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns whether a cluster is that of the controller.
    fn is_of(&self, cluster: &Cluster) -> bool {
        self.shared.named.as_ref().is_some_and(|named| named.cluster.types.is(&cluster.types))
    }

    /// Returns the registry of the cluster; `None` for that of a context from [`Context::new`].
    pub(super) fn types(&self) -> Option<&TypeRegistry> {
        let own = self.shared.named.as_ref().map(|named| &named.cluster.types);
        self.foreign.as_ref().map(|foreign| &foreign.types).or(own)
    }

    /// Returns the statuses of the inputs.
    pub(super) fn statuses(&self) -> &InputStatuses {
        &self.shared.statuses
    }

    /// Returns the epoch of the run.
    pub fn epoch(&self) -> &Epoch {
        &self.shared.epoch
    }

    /// Returns a client behind the epoch's fence. Use no other client for writes, which must not
    /// outlive the epoch.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn client(&self) -> &Client {
        self.client.get_or_init(|| match &self.foreign {
            Some(foreign) => {
                let writes = observer(self.shared.unconfirmed.as_ref(), Some(foreign));
                Arc::new(self.shared.epoch.fence().observed_client(&foreign.unfenced, writes))
            }
            None => self.shared.fenced(),
        })
    }

    /// Returns a client for reads of a cluster; `None` for that of the controller.
    pub(super) fn reader(&self, foreign: Option<&ForeignCluster>) -> Client {
        match foreign {
            Some(foreign) => self.shared.epoch.client(&foreign.unfenced),
            None => self.client().clone(),
        }
    }

    /// Returns the sender behind the epoch's fence, for requests without a client of kube.
    pub(crate) fn requester(&self) -> Requester<'_> {
        Requester::Fenced(&self.shared.sender)
    }

    /// Spawns a task that the reconcile does not wait for, in the current span.
    ///
    /// The epoch owns the task, as with [`Epoch::spawn`]: it may continue, and write, until the
    /// grace is over, and is then dropped at its next await. An unconfirmed write of the task
    /// counts for the request of this reconcile. A task of `tokio::spawn` can write only until the
    /// last task of the epoch ends, and its unconfirmed writes count for every request in
    /// reconcile.
    ///
    /// ```
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::{Api, api::{Patch, PatchParams}};
    /// # use pilotlight::controller::{Context, Outcome, ReconcileError, Request};
    /// # use serde_json::json;
    /// # async fn probe(_: &Request) -> String { String::new() }
    /// async fn reconcile(request: Request, context: Context) -> Result<Outcome, ReconcileError> {
    ///     let maps = Api::<ConfigMap>::namespaced(context.client().clone(), "default");
    ///     context.spawn(async move {
    ///         let patch = Patch::Merge(json!({ "data": { "probed": probe(&request).await } }));
    ///         if let Err(error) = maps.patch("probe", &PatchParams::default(), &patch).await {
    ///             tracing::warn!(%error, "recording the probe failed");
    ///         }
    ///     });
    ///     Ok(Outcome::Done)
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.request {
            Some(request) => {
                self.shared.epoch.spawn(unconfirmed::with_request(request.clone(), task))
            }
            None => self.shared.epoch.spawn(task),
        }
    }

    /// Resolves when the reconcile should end: the epoch stops. Cancel safe.
    pub async fn cancelled(&self) {
        self.shared.cancel.cancelled().await;
    }

    /// Returns whether the reconcile should end: the epoch stops.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancel.is_cancelled()
    }

    /// Returns the cache of one of the controller's inputs, as it was named to the builder. If several
    /// have the type, the first that keeps all its objects whole is read, or else the first, even
    /// while it has no list and another one has.
    ///
    /// The cache includes the writes of the earlier reconciles of this request: while a watch is
    /// down, a request that wrote to its type is not reconciled.
    ///
    /// # Errors
    ///
    /// [`ListerError::NotAnInput`] for a type that is not an input, and [`ListerError::Unavailable`]
    /// with the reason while an input has no complete list: its type is not served, not listed yet,
    /// or forbidden. Objects may exist all the same: return the error to be retried after a back-off
    /// or, for an optional input, reconcile without it. Once the objects are listed, their events
    /// enqueue the requests again.
    pub fn store(&self, type_ref: &TypeRef) -> Result<Store, ListerError> {
        Ok(self.attached(type_ref)?.joined())
    }

    fn attached(&self, type_ref: &TypeRef) -> Result<Attached, ListerError> {
        let cluster = self.foreign.as_ref().map(|foreign| &foreign.types);
        self.shared.statuses.attached_as(cluster, type_ref)
    }

    fn attached_of<K: kube::Resource<DynamicType = ()>>(&self) -> Result<Attached, ListerError> {
        let cluster = self.foreign.as_ref().map(|foreign| &foreign.types);
        self.shared.statuses.attached_of::<K>(cluster)
    }

    /// Returns the cache of an input that was added by this name.
    ///
    /// # Errors
    ///
    /// [`ListerError::OfName`] with the reason: no input has this name, or it has no complete list.
    pub fn store_of(&self, input: &str) -> Result<Store, ListerError> {
        Ok(self.named(input)?.joined())
    }

    fn named(&self, input: &str) -> Result<Attached, ListerError> {
        if let Some(attached) = self.shared.statuses.named(input) {
            return Ok(attached);
        }
        let why = match self.shared.named.as_ref().and_then(|named| named.state_of(input)) {
            Some(InputState::Pending(why)) => why,
            Some(InputState::Started) => {
                let error = self.shared.statuses.error_of(input);
                error.unwrap_or_else(|| "its source offers no cache".to_owned())
            }
            Some(InputState::Ended) => "it has ended".to_owned(),
            None => "no input has this name; add it with Inputs::add".to_owned(),
        };
        Err(ListerError::OfName { input: input.to_owned(), why })
    }

    /// Returns the current error of the input that was added by this name.
    pub(crate) fn input_error(&self, input: &str) -> Option<String> {
        self.shared.statuses.error_of(input)
    }

    /// Returns the served type of an input that was added by this name, with its interests if it
    /// was added with [`Builder::claims_type`].
    ///
    /// # Errors
    ///
    /// As [`Context::store_of`].
    ///
    /// [`Builder::claims_type`]: super::Builder::claims_type
    pub fn claimed(
        &self,
        input: &str,
    ) -> Result<(Arc<ServedType>, Option<MovingInterests>), ListerError> {
        let attached = self.named(input)?;
        Ok((attached.current(), attached.moving))
    }

    /// Returns the interests of an input of [`Builder::claims_type`], by which the reconciler
    /// selects objects. `None` for any other input, and while [`Context::store`] is an error.
    ///
    /// The interests end with the epoch, and with the type: set them in each reconcile, before the
    /// store is read.
    ///
    /// [`Builder::claims_type`]: super::Builder::claims_type
    pub fn moving_interests(&self, type_ref: &TypeRef) -> Option<MovingInterests> {
        self.shared.statuses.moving_interests(type_ref)
    }

    /// Returns a typed lister of an input's cache.
    ///
    /// # Errors
    ///
    /// [`ListerError::Projected`] for an input that is cached in part, and those of
    /// [`Context::store`].
    pub fn lister<K: CachedResource>(&self) -> Result<Lister<K>, ListerError> {
        self.attached_of::<K>()?.lister(TypeRef::of::<K>())
    }

    /// Returns a lister of the primary type, also if another input has the same type.
    pub(super) fn primary_lister<K: CachedResource>(&self) -> Result<Lister<K>, ListerError> {
        self.shared.statuses.primary_of::<K>()?.lister(TypeRef::of::<K>())
    }

    /// Returns the served type of one of the controller's inputs in this epoch, with the
    /// subresources that its CRD declares now.
    ///
    /// # Errors
    ///
    /// As [`Context::store`].
    pub fn served(&self, type_ref: &TypeRef) -> Result<Arc<ServedType>, ListerError> {
        self.attached(type_ref).map(|attached| attached.current())
    }

    /// Adds another request to the controller's queue, to be reconciled as soon as a worker is
    /// free, even if it was delayed. Ignored once the epoch stops.
    pub fn enqueue(&self, request: impl Into<Request>) {
        if let Some(queue) = &self.shared.queue {
            queue.add(request.into());
        }
    }

    /// Adds a request at low priority as if it had never failed: its back-off ends.
    pub(crate) fn enqueue_afresh(&self, request: Request) {
        if let Some(queue) = &self.shared.queue {
            queue.forget(&request);
            queue.add_with(request, Add { priority: LOW_PRIORITY, ..Add::default() });
        }
    }

    /// Returns the inputs by name, to be changed while the epoch runs. Inputs added here end with
    /// the epoch. `None` for a context from [`Context::new`].
    pub fn inputs(&self) -> Option<Inputs> {
        let named = self.shared.named.as_ref().map(Arc::clone)?;
        Some(Inputs { named, epoch: Some(self.shared.epoch.number()) })
    }

    /// Sets the time at which a request is reconciled at the latest, in place of an earlier one;
    /// `None` removes it. Changes and failures of the request do not delay it.
    pub(crate) fn resync(&self, request: impl Into<Request>, at: Option<tokio::time::Instant>) {
        if let Some(queue) = &self.shared.queue {
            queue.resync(request.into(), at);
        }
    }

    /// Returns the request of the reconcile; `None` for a context from [`Context::new`].
    pub fn request(&self) -> Option<&Request> {
        self.request.as_ref()
    }

    /// Returns the number of failures of this request in a row, each
    /// [`Outcome::Requeue`](super::Outcome::Requeue) included, but without those that a change
    /// caused before their retry was due.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns whether an earlier reconcile of this request, perhaps in an earlier epoch, sent a
    /// write of unknown outcome: its future was dropped, or the response was lost. True until a
    /// reconcile has succeeded.
    ///
    /// The caches of the controller's inputs have since caught up with the server for the objects
    /// written. Read from the server any object of another type that may have been written.
    pub fn after_unknown(&self) -> bool {
        self.after_unknown
    }

    /// Returns whether a cache is known to be behind.
    pub fn stale(&self) -> bool {
        self.shared.statuses.stale()
    }

    /// Returns an id that identifies this reconcile in the log.
    pub fn reconcile_id(&self) -> impl fmt::Display + use<> {
        let id = self.reconcile_id;
        fmt::from_fn(move |f| write!(f, "{id:016x}"))
    }
}

impl SharedContext {
    /// Returns the client behind the epoch's fence, built unless another reconcile uses it.
    fn fenced(&self) -> Arc<Client> {
        let mut fenced = self.fenced.lock();
        fenced.upgrade().unwrap_or_else(|| {
            let built = Arc::new(self.sender.client());
            *fenced = Arc::downgrade(&built);
            built
        })
    }
}

/// Returns an observer that records the writes to a cluster. `None` as the cluster means that of the
/// controller; `None` as the record means that of a context from [`Context::new`].
fn observer(
    unconfirmed: Option<&Arc<UnconfirmedWrites>>,
    cluster: Option<&ForeignCluster>,
) -> WriteObserver {
    match unconfirmed {
        Some(unconfirmed) => unconfirmed.observer(cluster.map(ForeignCluster::id)),
        None => Fence::unobserved(),
    }
}

impl WeakContext {
    /// Returns a context without a request; `None` once the run has ended.
    pub(super) fn upgrade(&self) -> Option<Context> {
        self.0.upgrade().map(Context::without_request)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("epoch", &self.shared.epoch)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use http::{Request as HttpRequest, Response};
    use kube::client::Body;
    use tokio::time::timeout;
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn client_is_built_at_its_first_use_and_dropped_with_the_last_reconcile() {
        let service = service_fn(|_: HttpRequest<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let epoch = Epoch::new("c", 1, Duration::ZERO);
        let shared = Context::new(epoch.clone(), &Client::new(service, "default"));
        let reconcile = || Context { client: Arc::default(), ..shared.clone() };
        let (one, other) = (reconcile(), reconcile());
        let clients = epoch.fence().clients();
        assert_eq!(clients.len(), 0, "no client before its first use");

        for context in [&one, &one.clone(), &other] {
            context.client();
        }
        assert_eq!(clients.len(), 1, "reconciles that run share the client");

        drop(one);
        assert_eq!(clients.len(), 1);
        drop(other);
        clients.close();
        timeout(Duration::from_secs(10), clients.wait()).await.expect("the client is dropped");
    }
}
