//! Options of the last input of a builder.

use std::{sync::Arc, time::Duration};

use super::{
    BuildError, Builder, delivers,
    input_options::{InputKind, InputOptions, KindOptions, Role},
};
use crate::{
    controller::{
        Cluster, Enqueue, Predicate, WatchErrorHandler, handler::OnSynced,
        inputs::status::InputMode,
    },
    guard::GuardedDrop,
    informer::{Index, Interest, ObjectKey, Projection, Selection, Selector, Transform},
    manager::{Condition, Subresource, WatchState},
};

impl Builder {
    /// Adds a condition to the input, in addition to its served type. A required input with an
    /// unmet condition keeps the controller waiting. An optional input starts and stops alone, with
    /// the deletions of [`Builder::optional`]. A plain input takes no condition; call `conditional`
    /// or `optional` too.
    ///
    /// ```
    /// # use pilotlight::{controller::{Builder, Handler}, kind::TypeRef};
    /// use pilotlight::manager::{Readiness, Verdict};
    ///
    /// # fn example(builder: Builder, widgets: TypeRef) -> Builder {
    /// let (open, verdicts) = tokio::sync::watch::channel(Verdict::Unmet(Vec::new()));
    /// let builder = builder
    ///     .watches_type(widgets, Handler::Object)
    ///     .optional()
    ///     .input_when(move || Readiness::published(verdicts.clone()));
    /// open.send_replace(Verdict::Met(Vec::new())); // Later: the input starts.
    /// # builder
    /// # }
    /// ```
    pub fn input_when(mut self, condition: impl Condition) -> Self {
        match self.inputs.last_mut() {
            Some(input) => input.conditions.push(GuardedDrop::new(Arc::new(condition))),
            None => self.record(BuildError::NoInputYet, "input_when"),
        }
        self
    }

    /// Requires a subresource of the input's type: without it a `conditional` or `optional` input
    /// counts as not served. A plain input takes no condition.
    ///
    /// ```
    /// # use k8s_openapi::api::apps::v1::StatefulSet;
    /// use pilotlight::{controller::{Controller, Handler}, kind::TypeRef, manager::Subresource};
    ///
    /// let builder = Controller::builder("scaler")
    ///     .for_::<StatefulSet>()
    ///     .watches_type(TypeRef::kind("example.com", "v1", "Widget"), Handler::Object)
    ///     .optional()
    ///     .subresource(Subresource::Scale);
    /// # drop(builder);
    /// ```
    pub fn subresource(self, required: Subresource) -> Self {
        self.last("subresource", |kind| kind.subresource = Some(required))
    }

    /// Makes the input required: the controller runs only while its type is served, or while the
    /// condition of a custom source holds and the source is not done.
    pub fn conditional(self) -> Self {
        self.mode("conditional", InputMode::Required)
    }

    /// Makes the input optional: its source starts and stops with its type and its conditions,
    /// without a restart of the controller.
    ///
    /// When it stops, each of its objects is delivered as deleted
    /// ([`Event::Delete`](crate::controller::Event::Delete)), since it is out of sight. It may exist
    /// all the same: if a condition was lost, or its type is served at another version.
    /// [`Context::store`](crate::controller::Context::store) is an error meanwhile.
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

    /// Fetches and caches metadata only. Requires a type named by a
    /// [`TypeRef`](crate::kind::TypeRef), since objects of a Rust type are decoded whole. Indexes
    /// and handlers see metadata only, too.
    pub fn metadata_only(self) -> Self {
        self.last("metadata_only", |kind| kind.filter.projection = Projection::Metadata)
    }

    /// Caches namespace, name, uid and resourceVersion only. Requires a type named by a
    /// [`TypeRef`](crate::kind::TypeRef), no index, and a handler that maps by name: labels and
    /// owners are not cached.
    pub fn keys_only(self) -> Self {
        self.last("keys_only", |kind| kind.filter.projection = Projection::Keys)
    }

    /// Caches `managedFields`, which are cut otherwise.
    pub fn managed_fields(self) -> Self {
        self.last("managed_fields", |kind| kind.filter.managed_fields = true)
    }

    /// Changes each object that this input keeps whole before it is cached, in place of the default
    /// of the cluster. Inputs with clones of one [`Transform`] share a watch.
    ///
    /// Not for `keys_only`, which keeps no content. With `metadata_only` the function receives the
    /// metadata, and [`Context::fetch`](crate::controller::Context::fetch) does not call it.
    pub fn transform(self, transform: Transform) -> Self {
        self.last("transform", |kind| kind.filter.transform = Some(transform))
    }

    /// Delivers, and keeps whole, only objects that a selector selects; all others are kept as
    /// metadata entries. For `watches`; called twice, either selector counts.
    ///
    /// The watch is shared with all controllers that watch the type. An object that stops matching
    /// is delivered once more, with its old and its new state.
    pub fn matching(self, selector: impl Into<Selector>) -> Self {
        let selector = selector.into();
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

    /// Watches one namespace, instead of the cluster's default; the empty name means all namespaces.
    pub fn namespace(self, namespace: impl Into<Arc<str>>) -> Self {
        self.namespaces([namespace.into()])
    }

    /// Watches these namespaces, instead of the cluster's default: by a watch for each, so that no
    /// right in others is needed. Listers and stores read all of them, once all are listed. No change
    /// is delivered before, also while a namespace may not be listed. Without any namespace the
    /// default applies, which may be all namespaces. With the empty name among them, all are
    /// watched. A cluster-scoped type is watched once.
    ///
    /// Not for `claims_type`, which has one namespace at most.
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
    /// [`Context::of_cluster`](crate::controller::Context::of_cluster) reads them.
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
    ///
    /// Inputs of one type share their indexes, so that two indexes of one name are an error of the
    /// build, unless one is a clone of the other or their function is the same and captures nothing.
    pub fn index(self, index: Index) -> Self {
        self.last("index", |kind| kind.indexes.push(index))
    }

    /// Delivers all objects of this input again in each period (1 s at least), as updates whose old
    /// and new object are the same. Reconciles can repair state outside of the cluster then.
    /// [`Duration::ZERO`] means none, and by default that of the type applies
    /// ([`TypeDefaults::resync`](crate::controller::TypeDefaults::resync)).
    ///
    /// The objects are read from the cache, without a request to the server, and spread over the
    /// period. Their requests have low priority. An object that changes meanwhile is delivered once,
    /// with its change. Predicates of changes, such as
    /// [`Predicate::generation`](crate::controller::Predicate::generation), drop resyncs.
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

    fn mode(mut self, method: &'static str, mode: InputMode) -> Self {
        match self.inputs.last_mut() {
            Some(input) => input.mode = mode,
            None => self.record(BuildError::NoInputYet, method),
        }
        self
    }

    pub(super) fn last(
        mut self,
        method: &'static str,
        change: impl FnOnce(&mut KindOptions),
    ) -> Self {
        match self.inputs.last_mut().map(|input| &mut input.kind) {
            Some(InputKind::Kind(kind)) => change(kind),
            Some(InputKind::Source(..)) => self.record(BuildError::NotForSources, method),
            None => self.record(BuildError::NoInputYet, method),
        }
        self
    }
}
