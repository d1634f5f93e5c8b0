//! Builder of a controller.

mod error;
mod input_options;
mod named_input;

use std::{sync::Arc, time::Duration};

use kube::core::ApiResource;
use serde::de::DeserializeOwned;

pub use self::error::BuildError;
use self::input_options::{InputKind, InputOptions, KindOptions, Role};
use super::{
    Cluster, ConditionalSource, Enqueue, Handler, Predicate, Request, WatchErrorHandler,
    handler::OnSynced,
    queue::{Backoff, Limit, NewLimiter, RateLimiter},
    run::{
        input::{Input, InputConditions},
        input_status::InputMode,
    },
    source::mapping::SourceHandlers,
};
use crate::{
    guard::{self, GuardedDrop},
    informer::{Index, InformerKey, Interest, ObjectKey, Projection, Selection, Selector},
    kind::TypeRef,
    manager::{Condition, ControllerName, RunnableGroup, WatchState},
};

/// Builder of a controller. `conditional`, `optional`, `metadata_only`, `keys_only`, `every_owner`,
/// `predicate`, `matching`, `named`, `whole`, `labels`, `fields`, `namespace`, `namespaces`,
/// `in_cluster`, `managed_fields`, `index`, `resync`, `on_synced` and `on_watch_error` apply to the
/// last input.
///
/// ```
/// # use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
/// use pilotlight::{controller::*, kind::TypeRef};
///
/// let builder = Controller::builder("widgets")
///     .for_type(TypeRef::kind("example.com", "v1", "Widget"))
///     .conditional() // Of the input before: the controller runs while widgets are served.
///     .owns::<Deployment>()
///     .watches::<ConfigMap>(Handler::Object)
///     .labels("app=widgets")
///     .max_concurrent_reconciles(4); // Of the controller.
/// # drop(builder); // Then `.build(&cluster, reconciler)`.
/// ```
#[derive(Debug)]
#[must_use = "call build"]
pub struct Builder {
    pub(super) name: ControllerName,
    pub(super) inputs: Vec<InputOptions>,
    pub(super) event_filters: Vec<Predicate>,
    pub(super) workers: Option<usize>,
    pub(super) most_running: usize,
    pub(super) reconcile_timeout: Option<Duration>,
    pub(super) works_on_standby: bool,
    pub(super) sync_timeout: Option<Duration>,
    pub(super) backoff: Option<Backoff>,
    pub(super) retry_limit: Option<Limit>,
    pub(super) limiter: Option<NewLimiter<Request>>,
    pub(super) recover_panic: Option<bool>,
    pub(super) group: RunnableGroup,
    pub(super) conditions: Vec<GuardedDrop<Arc<dyn Condition>>>,
    // First error; returned by `build`, so that calls can be chained.
    pub(super) error: Option<BuildError>,
}

impl Builder {
    pub(super) fn new(name: ControllerName) -> Self {
        Self {
            name,
            inputs: Vec::new(),
            event_filters: Vec::new(),
            workers: None,
            most_running: 0,
            reconcile_timeout: None,
            works_on_standby: false,
            sync_timeout: None,
            backoff: None,
            retry_limit: None,
            limiter: None,
            recover_panic: None,
            group: RunnableGroup::LeaderElection,
            conditions: Vec::new(),
            error: None,
        }
    }

    /// Adds a primary type, whose objects the requests name. Called for several types,
    /// [`Request::primary`](super::Request::primary) distinguishes them.
    pub fn for_<K: kube::Resource<DynamicType = ()> + DeserializeOwned>(self) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Primary, true)
    }

    /// Adds a primary type by reference, for a type known at run time only.
    ///
    /// A reference without a version is bound anew in each epoch, to the server's best version.
    pub fn for_type(self, type_ref: impl Into<TypeRef>) -> Self {
        self.kind(type_ref.into(), Role::Primary, false)
    }

    /// Adds a type whose objects are controlled by objects of the primary types. A change enqueues
    /// the controlling owner.
    ///
    /// Only objects with an owner of the primary kind are delivered and kept whole. The cache keeps
    /// metadata entries of all others, so that listing it is an error. Call [`Builder::whole`] to
    /// keep all objects, or read one with [`Context::fetch`](super::Context::fetch).
    pub fn owns<K: kube::Resource<DynamicType = ()>>(self) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Owned { only_controller: true }, true)
    }

    /// Like [`Builder::owns`], for a type known at run time only.
    pub fn owns_type(self, type_ref: impl Into<TypeRef>) -> Self {
        self.kind(type_ref.into(), Role::Owned { only_controller: true }, false)
    }

    /// Adds any other type, with a handler that maps its changes to requests.
    ///
    /// Every object is delivered and kept whole, unless [`Builder::matching`] or [`Builder::named`]
    /// narrows the input.
    pub fn watches<K: kube::Resource<DynamicType = ()>>(self, handler: Handler) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Watched(handler), true)
    }

    /// Like [`Builder::watches`], for a type known at run time only.
    pub fn watches_type(self, type_ref: impl Into<TypeRef>, handler: Handler) -> Self {
        self.kind(type_ref.into(), Role::Watched(handler), false)
    }

    /// Adds the informer of this key, such as one to which the program has a
    /// [`Subscription`](crate::informer::Subscription): both share a watch and a cache. Without one it
    /// is started. The input follows the type of the key through all of its identities.
    ///
    /// Where the key selects no namespace, labels or fields, the defaults of the cluster apply.
    ///
    /// Semantics: `source.Informer` of controller-runtime (`pkg/source`), except that the input can be
    /// started again, and lives with the type.
    ///
    /// ```
    /// use pilotlight::{controller::*, informer::Subscription};
    ///
    /// # fn example(subscription: &Subscription, builder: Builder) -> Builder {
    /// // The program reads the subscription itself; the controller watches the same informer.
    /// builder.watches_informer(subscription.key(), Handler::Object)
    /// # }
    /// ```
    pub fn watches_informer(self, key: &InformerKey, handler: Handler) -> Self {
        let identity = &key.identity;
        let type_ref = TypeRef::resource(&*identity.group, &*identity.version, &*identity.plural);
        let key = key.clone();
        self.watches_type(type_ref, handler).last("watches_informer", |kind| {
            kind.namespaces = key.namespace.into_iter().collect();
            kind.filter.labels = key.labels;
            kind.filter.fields = key.fields;
            kind.filter.projection = key.projection;
            kind.filter.managed_fields = key.managed_fields;
        })
    }

    /// Adds a type whose objects the reconciler selects for each request by
    /// [`Context::moving_interests`]. Examples are the objects of one owner, and the orphans that
    /// it could adopt. Only objects with an owner of the primary kind are kept whole.
    ///
    /// [`Context::moving_interests`]: super::Context::moving_interests
    pub fn claims_type(self, type_ref: impl Into<TypeRef>, handler: Handler) -> Self {
        self.kind(type_ref.into(), Role::Claimed(handler), false)
    }

    /// Adds a custom source. [`Builder::predicate`] applies to the changes that it delivers.
    pub fn source(self, source: impl ConditionalSource) -> Self {
        self.custom(Arc::new(source), Handler::Object)
    }

    /// Adds a custom source, with a handler that maps the changes that it delivers
    /// ([`SourceContext::deliver`](super::SourceContext::deliver)) to requests. Not for a source that
    /// only adds requests, such as [`ChannelSource`](super::ChannelSource).
    pub fn watches_source(mut self, source: impl ConditionalSource, handler: Handler) -> Self {
        if !delivers(&source) {
            self.record(BuildError::RequestsOnly, "watches_source");
        }
        self.custom(Arc::new(source), handler)
    }

    fn custom(mut self, source: Arc<dyn ConditionalSource>, handler: Handler) -> Self {
        self.inputs.push(InputOptions {
            kind: InputKind::Source(GuardedDrop::new(source), SourceHandlers::new(handler)),
            mode: InputMode::Plain,
            conditions: InputConditions::new(),
        });
        self
    }

    /// Adds a condition to the input, in addition to its served type. A required input with an
    /// unmet condition keeps the controller waiting. An optional input starts and stops alone. A
    /// plain input takes no condition; call `conditional` or `optional` too.
    ///
    /// ```
    /// # use pilotlight::{controller::{Builder, Handler}, discovery::TypeRegistry, kind::TypeRef};
    /// use pilotlight::manager::{Subresource, subresource_served};
    ///
    /// # fn example(builder: Builder, types: TypeRegistry) -> Builder {
    /// let widgets = TypeRef::kind("example.com", "v1", "Widget");
    /// let scaled = widgets.clone();
    /// let scales = move || subresource_served(&types, &scaled, Subresource::Scale);
    /// builder.watches_type(widgets, Handler::Object).optional().input_when(scales)
    /// # }
    /// ```
    pub fn input_when(mut self, condition: impl Condition) -> Self {
        match self.inputs.last_mut() {
            Some(input) => input.conditions.push(GuardedDrop::new(Arc::new(condition))),
            None => self.record(BuildError::NoInputYet, "input_when"),
        }
        self
    }

    /// Makes the input required: the controller runs only while its type is served, or while the
    /// condition of a custom source holds and the source is not done.
    pub fn conditional(self) -> Self {
        self.mode("conditional", InputMode::Required)
    }

    /// Makes the input optional: its source starts and stops with its type, without a restart of
    /// the controller.
    pub fn optional(self) -> Self {
        self.mode("optional", InputMode::Optional)
    }

    /// Enqueues every owner of the primary kind, not only the controlling one; for `owns`.
    pub fn every_owner(mut self) -> Self {
        if let Some(InputOptions { kind: InputKind::Kind(kind), .. }) = self.inputs.last()
            && !matches!(kind.role, Role::Owned { .. })
        {
            let error = BuildError::NotOwned(self.name.clone(), kind.filter.type_ref.clone());
            self.error.get_or_insert(error);
        }
        self.last("every_owner", |kind| {
            if let Role::Owned { only_controller } = &mut kind.role {
                *only_controller = false;
            }
        })
    }

    /// Fetches and caches metadata only. Requires a type named by a [`TypeRef`], since objects of a
    /// Rust type are decoded whole. Indexes and handlers see metadata only, too.
    pub fn metadata_only(self) -> Self {
        self.last("metadata_only", |kind| kind.filter.projection = Projection::Metadata)
    }

    /// Caches namespace, name, uid and resourceVersion only. Requires a type named by a
    /// [`TypeRef`], no index, and a handler that maps by name: labels and owners are not cached.
    pub fn keys_only(self) -> Self {
        self.last("keys_only", |kind| kind.filter.projection = Projection::Keys)
    }

    /// Caches `managedFields`, which are cut otherwise.
    pub fn managed_fields(self) -> Self {
        self.last("managed_fields", |kind| kind.filter.managed_fields = true)
    }

    /// Delivers, and keeps whole, only objects that a selector selects; all others are kept as
    /// metadata entries. For `watches`; called twice, either selector counts.
    ///
    /// The watch is shared with all controllers that watch the type. An object that stops matching
    /// is delivered once more, with its old and its new state.
    pub fn matching(self, selector: Selector) -> Self {
        self.last("matching", |kind| {
            kind.interests.push(Interest::Selected(Selection { namespace: None, selector }));
        })
    }

    /// Delivers, and keeps whole, only the object of this name; all others are kept as metadata
    /// entries. For `watches`; may be called for several names.
    pub fn named(self, key: ObjectKey) -> Self {
        self.last("named", |kind| kind.interests.push(Interest::Named(key)))
    }

    /// Keeps all objects of this input whole, so that its lister can list them, not only those that
    /// are delivered: for `owns`, `matching` and `named`.
    pub fn whole(self) -> Self {
        self.last("whole", |kind| kind.whole = true)
    }

    /// Watches only objects that match a label selector, which the server applies: a watch of its
    /// own, which sends only these objects. Use `matching` where other controllers watch the type
    /// too.
    ///
    /// An object that stops matching arrives as a deletion.
    pub fn labels(self, selector: impl Into<Arc<str>>) -> Self {
        self.last("labels", |kind| kind.filter.labels = Some(selector.into()))
    }

    /// Watches only objects that match a field selector, which the server applies.
    pub fn fields(self, selector: impl Into<Arc<str>>) -> Self {
        self.last("fields", |kind| kind.filter.fields = Some(selector.into()))
    }

    /// Watches one namespace, instead of the cluster's default.
    pub fn namespace(self, namespace: impl Into<Arc<str>>) -> Self {
        self.namespaces([namespace.into()])
    }

    /// Watches these namespaces, instead of the cluster's default: by a watch for each, so that no
    /// right in others is needed. Listers and stores read all of them, once all are listed. Without
    /// any namespace the default applies, which may be all namespaces.
    ///
    /// Not for `claims_type`, nor for an input by name, which have one namespace at most.
    pub fn namespaces(self, namespaces: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.last("namespaces", |kind| {
            kind.namespaces = namespaces.into_iter().map(Into::into).collect();
        })
    }

    /// Calls a function with each new error of this input's watch: the state of the watch, and the
    /// message in the status. The watch is retried in any case.
    ///
    /// Runs in the source's task, so that it must not block. A panic is reported.
    pub fn on_watch_error(
        self,
        on_error: impl Fn(WatchState, &str) + Send + Sync + 'static,
    ) -> Self {
        self.last("on_watch_error", |kind| {
            kind.watch_error = Some(WatchErrorHandler::new(on_error));
        })
    }

    /// Watches the objects of another cluster, whose runnable is added to the manager, too; for
    /// `watches`. The handler maps them to objects of the controller's cluster.
    ///
    /// [`Context::of_cluster`](super::Context::of_cluster) reads them.
    pub fn in_cluster(self, cluster: &Cluster) -> Self {
        self.last("in_cluster", |kind| kind.cluster = Some(cluster.clone()))
    }

    /// Adds a predicate to this input; a change must pass all predicates.
    pub fn predicate(mut self, predicate: Predicate) -> Self {
        if let Some(InputOptions { kind: InputKind::Source(source, handlers), .. }) =
            self.inputs.last_mut()
        {
            if delivers(&***source) {
                handlers.predicates.push(predicate);
            } else {
                self.record(BuildError::RequestsOnly, "predicate");
            }
            return self;
        }
        self.last("predicate", |kind| kind.predicates.push(predicate))
    }

    /// Adds an index of this input's objects, which
    /// [`Store::by_index`](crate::informer::Store::by_index) reads. Objects that the input keeps as
    /// metadata entries are in no index: build it with [`Builder::whole`] to find all objects.
    pub fn index(self, index: Index) -> Self {
        self.last("index", |kind| kind.indexes.push(index))
    }

    /// Delivers all objects of this input again in each period (1 s at least), as updates whose old
    /// and new object are the same: to repair what is outside of the cluster, for example. None by
    /// default.
    ///
    /// The objects are read from the cache, without a request to the server, and spread over the
    /// period. Their requests have low priority. An object that changes meanwhile is delivered once,
    /// with its change. Predicates of changes, such as
    /// [`Predicate::generation`](super::Predicate::generation), drop resyncs.
    ///
    /// Semantics: `cache.ByObject.SyncPeriod` of controller-runtime, except that each input has its
    /// own period, and that it is spread.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use k8s_openapi::api::core::v1::Service;
    /// # use pilotlight::controller::{Builder, Controller};
    /// let hour = Duration::from_secs(3600);
    /// let builder = Controller::builder("load-balancers").for_::<Service>().resync(hour);
    /// # drop(builder);
    /// ```
    pub fn resync(self, period: Duration) -> Self {
        self.last("resync", |kind| kind.resync = Some(period))
    }

    /// Adds requests each time that this input has synced, such as for an optional type, whose
    /// objects can be read from then on.
    pub fn on_synced(self, handler: impl Fn(&mut Enqueue<'_>) + Send + Sync + 'static) -> Self {
        self.last("on_synced", |kind| {
            kind.synced = Some(OnSynced(GuardedDrop::new(Arc::new(handler))))
        })
    }

    /// Adds a predicate to all inputs that are types.
    pub fn event_filter(mut self, predicate: Predicate) -> Self {
        self.event_filters.push(predicate);
        self
    }

    /// Sets the maximum number of concurrent reconciles; 1 by default.
    pub fn max_concurrent_reconciles(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the maximum number of reconciles, including those without a worker slot; by default and
    /// at least [`Builder::max_concurrent_reconciles`].
    #[cfg(feature = "meta")]
    pub(crate) fn most_running(mut self, most: usize) -> Self {
        self.most_running = most;
        self
    }

    /// Reconciles also while this replica does not lead; such a reconcile must not write.
    #[cfg(any(test, feature = "meta"))]
    pub(crate) fn works_on_standby(mut self) -> Self {
        self.works_on_standby = true;
        self
    }

    /// Sets the timeout of a reconcile; none by default.
    pub fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.reconcile_timeout = Some(timeout);
        self
    }

    /// Sets the timeout of the first sync, after which a late plain input fails the run; 2 min by
    /// default.
    ///
    /// Conditional inputs are waited for without a limit. Optional inputs are waited for until this
    /// timeout at most.
    pub fn sync_timeout(mut self, timeout: Duration) -> Self {
        self.sync_timeout = Some(timeout);
        self
    }

    /// Sets the back-off of failed requests; 5 ms doubling to 1000 s by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Sets a rate limiter of failed requests in place of the back-off; each epoch begins with a
    /// clone of it.
    ///
    /// Requests that the API server throttles (429, 503) still wait for [`Builder::backoff`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// use pilotlight::controller::{Backoff, Controller, FastSlow, MaxOf};
    ///
    /// let (fast, slow) = (Duration::from_millis(1), Duration::from_secs(120));
    /// let limiter = MaxOf(Backoff::default(), FastSlow { fast, slow, fast_retries: 30 });
    /// let builder = Controller::builder("widgets").rate_limiter(limiter);
    /// # drop(builder);
    /// ```
    pub fn rate_limiter(
        mut self,
        limiter: impl RateLimiter<Request> + Clone + Sync + 'static,
    ) -> Self {
        self.limiter = Some(NewLimiter::cloning(limiter));
        self
    }

    /// Sets whether a panic of the reconciler is an error of its request alone; true by default.
    /// Otherwise it ends the run with an error. The
    /// [`RunnableOptions`](crate::manager::RunnableOptions) of the controller then decide between
    /// another run after a back-off and the end of the manager.
    ///
    /// Semantics: `RecoverPanic` of controller-runtime, except that no panic ends the process.
    pub fn recover_panic(mut self, recovers: bool) -> Self {
        self.recover_panic = Some(recovers);
        self
    }

    /// Limits the rate of retries of this controller's queue, beside the back-off of each request;
    /// no limit by default.
    pub fn retry_limit(mut self, limit: Limit) -> Self {
        self.retry_limit = Some(limit);
        self
    }

    /// Sets the group, which orders the start and stop of runnables; by default the group that runs
    /// on the leader only.
    pub fn group(mut self, group: RunnableGroup) -> Self {
        self.group = group;
        self
    }

    /// Adds a condition: the controller runs only while it is met, besides those of its conditional
    /// inputs.
    pub fn when(mut self, condition: impl Condition) -> Self {
        self.conditions.push(GuardedDrop::new(Arc::new(condition)));
        self
    }

    /// Returns the inputs alone, for a controller with these primary types.
    pub(super) fn inputs(
        self,
        primaries: &[TypeRef],
        event_filters: &[Predicate],
        cluster: &Cluster,
    ) -> Result<Vec<Input>, BuildError> {
        let Self { name, inputs, event_filters: own, error, .. } = self;
        if let Some(error) = error {
            return Err(error);
        }
        let filters: Vec<_> = event_filters.iter().cloned().chain(own).collect();
        let inputs = inputs.into_iter().enumerate();
        let inputs =
            inputs.map(|(number, input)| input.inputs(number, &name, primaries, &filters, cluster));
        Ok(inputs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Returns the primary types.
    ///
    /// # Errors
    ///
    /// [`BuildError::PrimaryTwice`].
    pub(super) fn primaries(&self) -> Result<Arc<[TypeRef]>, BuildError> {
        let mut primaries: Vec<TypeRef> = Vec::new();
        for primary in self.inputs.iter().filter_map(InputOptions::primary) {
            if primaries.contains(primary) {
                return Err(BuildError::PrimaryTwice(self.name.clone(), primary.clone()));
            }
            primaries.push(primary.clone());
        }
        Ok(primaries.into())
    }

    /// Checks that the type whose objects a reconciler takes is the only primary type.
    ///
    /// # Errors
    ///
    /// [`BuildError::NotTheOnlyPrimary`].
    pub(super) fn check_object_type(
        &self,
        primaries: &[TypeRef],
        taken: Option<ApiResource>,
    ) -> Result<(), BuildError> {
        let Some(taken) = taken else { return Ok(()) };
        if let [primary] = primaries
            && primary.names_resource(&taken)
        {
            return Ok(());
        }
        let ApiResource { group, version, plural, .. } = taken;
        let type_ref = TypeRef::resource(group, version, plural);
        Err(BuildError::NotTheOnlyPrimary(self.name.clone(), type_ref))
    }

    /// Returns whether an input is a primary type.
    pub(super) fn has_primary(&self) -> bool {
        self.inputs.iter().any(|input| input.primary().is_some())
    }

    /// Makes the required inputs optional.
    pub(super) fn without_required(mut self) -> Self {
        for input in &mut self.inputs {
            if input.mode == InputMode::Required {
                input.mode = InputMode::Optional;
            }
        }
        self
    }

    fn kind(mut self, type_ref: TypeRef, role: Role, typed: bool) -> Self {
        let kind = KindOptions::new(type_ref, role, typed);
        self.inputs.push(InputOptions {
            kind: InputKind::Kind(Box::new(kind)),
            mode: InputMode::Plain,
            conditions: InputConditions::new(),
        });
        self
    }

    fn mode(mut self, method: &'static str, mode: InputMode) -> Self {
        match self.inputs.last_mut() {
            Some(input) => input.mode = mode,
            None => self.record(BuildError::NoInputYet, method),
        }
        self
    }

    fn last(mut self, method: &'static str, change: impl FnOnce(&mut KindOptions)) -> Self {
        match self.inputs.last_mut().map(|input| &mut input.kind) {
            Some(InputKind::Kind(kind)) => change(kind),
            Some(InputKind::Source(..)) => self.record(BuildError::NotForSources, method),
            None => self.record(BuildError::NoInputYet, method),
        }
        self
    }

    fn record(
        &mut self,
        error: impl FnOnce(ControllerName, &'static str) -> BuildError,
        method: &'static str,
    ) {
        let name = self.name.clone();
        self.error.get_or_insert_with(|| error(name, method));
    }
}

/// Returns whether a source may deliver changes.
fn delivers(source: &dyn ConditionalSource) -> bool {
    // A panic is that of a source whose answer is not known.
    guard::run(|| source.delivers()).unwrap_or(true)
}
