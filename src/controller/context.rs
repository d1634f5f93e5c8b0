//! What a reconcile has at hand.

use std::{fmt, marker::PhantomData, sync::Arc};

use kube::Client;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{
    Queue, Request,
    run::input_status::{Attached, InputMode, InputStatus, InputStatuses},
    run::unconfirmed,
};
use crate::{
    informer::{InformerKey, Object, ObjectKey, Projection, Store},
    kind::{ServedType, TypeRef},
    manager::{Epoch, WatchState},
};

/// What a reconcile has at hand. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    shared: Arc<Shared>,
    // None when the reconciler is called by hand.
    request: Option<Request>,
    attempt: u32,
    reconcile_id: u64,
    after_unknown: bool,
}

/// What all reconciles of an epoch have in common.
struct Shared {
    epoch: Epoch,
    // One for the epoch: a client buffers, and one for each reconcile would be a task each, which
    // done has to wait for.
    client: Client,
    cancel: CancellationToken,
    statuses: Arc<InputStatuses>,
    // None when the reconciler is called by hand.
    queue: Option<Queue<Request>>,
}

impl Context {
    /// A context without inputs, to call a reconciler by hand: in a test, say.
    ///
    /// `client` is put behind the epoch's fence.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, as every construction of a client does.
    pub fn new(epoch: Epoch, client: &Client) -> Self {
        let (statuses, _settled) = InputStatuses::new(epoch.clone(), Vec::new());
        let cancel = epoch.token();
        let client = epoch.client(client);
        Self::of(epoch, client, cancel, statuses, None)
    }

    /// The same context with one more input.
    #[must_use]
    pub fn with_input(self, type_ref: TypeRef, served: Arc<ServedType>, store: Store) -> Self {
        let mut row = InputStatus::new(type_ref.to_string(), Some(type_ref), InputMode::Plain);
        let key = InformerKey::new(served.identity.clone());
        row.attached = Some(Attached { served, store, key, status: None });
        row.set(WatchState::Synced, None);
        self.shared.statuses.push(row);
        self
    }

    pub(super) fn of(
        epoch: Epoch,
        // Behind the epoch's fence.
        client: Client,
        cancel: CancellationToken,
        statuses: Arc<InputStatuses>,
        queue: Option<Queue<Request>>,
    ) -> Self {
        let shared = Arc::new(Shared { epoch, client, cancel, statuses, queue });
        Self { shared, request: None, attempt: 0, reconcile_id: 0, after_unknown: false }
    }

    /// The context of one reconcile.
    pub(super) fn of_reconcile(
        &self,
        request: &Request,
        attempt: u32,
        after_unknown: bool,
    ) -> Self {
        let (shared, request) = (Arc::clone(&self.shared), Some(request.clone()));
        Self { shared, request, attempt, reconcile_id: fastrand::u64(..), after_unknown }
    }

    /// Every cache there is of a type, at whatever version.
    pub(super) fn caches(&self, group: &str, plural: &str) -> Vec<Attached> {
        self.shared.statuses.caches(group, plural)
    }

    /// The epoch of the run.
    pub fn epoch(&self) -> &Epoch {
        &self.shared.epoch
    }

    /// A client behind the epoch's fence: use no other for what must not outlive the epoch.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Spawns a task that the reconcile does not wait for, in the current span.
    ///
    /// The task is the epoch's, as of [`Epoch::spawn`]: it may continue, and write, until the grace
    /// is over, and is then dropped at its next await. A write of the task whose outcome is unknown
    /// counts for the request of this reconcile, as its own would. A task of `tokio::spawn` has
    /// none of that: its writes end when the last task of the epoch does, and count for every
    /// request that is being reconciled.
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

    /// Whether the reconcile should end: the epoch stops.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancel.is_cancelled()
    }

    /// The cache of one of the controller's inputs, as it was named to the builder; `None` if it is
    /// no input, and while nothing is known of the objects of an optional one: its type is missing,
    /// or has not been listed yet, or may not be.
    pub fn store(&self, type_ref: &TypeRef) -> Option<Store> {
        self.shared.statuses.attached(type_ref).map(|attached| attached.store)
    }

    /// Typed reads from the cache of an input.
    ///
    /// # Errors
    ///
    /// [`ListerError::Projected`] where the input is kept in part. [`ListerError::NoCache`] where
    /// [`Context::store`] has none. That is not to say that there are no objects: return the
    /// error and be called again after a back-off, or, of an optional input, do what can be done
    /// without it. When its objects are known, the requests that they lead to are made.
    pub fn lister<K: kube::Resource<DynamicType = ()> + DeserializeOwned>(
        &self,
    ) -> Result<Lister<K>, ListerError> {
        let type_ref = TypeRef::of::<K>();
        match self.shared.statuses.attached(&type_ref) {
            None => Err(ListerError::NoCache(type_ref)),
            Some(attached) if attached.key.projection != Projection::Full => {
                Err(ListerError::Projected(type_ref))
            }
            Some(attached) => Ok(Lister::of(attached.store)),
        }
    }

    /// How to talk to one of the controller's inputs, in this epoch. Which subresources it has is
    /// as the server's CRD says now.
    pub fn served(&self, type_ref: &TypeRef) -> Option<Arc<ServedType>> {
        self.shared.statuses.attached(type_ref).map(|attached| attached.current())
    }

    /// Adds another request to the controller's queue, to be reconciled as soon as a worker is
    /// free; whatever it waits for, it waits no longer. Nothing happens once the epoch stops.
    pub fn enqueue(&self, request: Request) {
        if let Some(queue) = &self.shared.queue {
            queue.add(request);
        }
    }

    /// How often this request has failed in a row.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether an earlier reconcile of this request, perhaps in an earlier epoch, sent a write
    /// whose outcome is unknown: nobody waited for the answer, or it was lost.
    ///
    /// The caches of the controller's inputs have since caught up with what the server has of the
    /// request's object and of the objects written. Anything else that may have been written must
    /// be read from the server.
    pub fn after_unknown(&self) -> bool {
        self.after_unknown
    }

    /// Whether the cache is known to be behind.
    pub fn stale(&self) -> bool {
        self.shared.statuses.stale()
    }

    /// Tells this reconcile from all others in the log.
    pub fn reconcile_id(&self) -> impl fmt::Display + use<> {
        let id = self.reconcile_id;
        fmt::from_fn(move |f| write!(f, "{id:016x}"))
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

/// Why a type cannot be read from a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListerError {
    /// Nothing is known of its objects: of an optional type, until it is served and listed; of one
    /// that is no input, ever.
    #[error(
        "nothing is known of the objects of {0}: it is no input of this controller, or optional \
         and missing, not listed yet or not permitted"
    )]
    NoCache(TypeRef),
    /// Its objects are kept in part. Build the input without `metadata_only` and `keys_only`, or
    /// read the headers of [`Context::store`].
    #[error(
        "{0} is kept in part, so that its objects cannot be decoded: build the input without \
         metadata_only and keys_only, or read the headers in its store"
    )]
    Projected(TypeRef),
}

/// Typed reads from a cache; each read decodes.
#[derive(Clone, Debug)]
pub struct Lister<K> {
    store: Store,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> Lister<K> {
    /// Typed reads from a store, whatever its type is called.
    pub fn of(store: Store) -> Self {
        Self { store, kind: PhantomData }
    }

    /// The object as last seen; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When it does not have the shape of `K`; the error names the field.
    pub fn get(&self, key: &ObjectKey) -> Result<Option<K>, serde_json::Error> {
        self.store.get(key).map(|it| it.decode()).transpose()
    }

    /// Every object as last seen, each decoded by itself, so that a misshapen one hides no other.
    pub fn list(&self) -> Vec<Result<K, serde_json::Error>> {
        self.store.list().into_iter().map(|object: Object| object.decode()).collect()
    }
}
