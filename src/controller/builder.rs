//! Puts a controller together.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    Cluster, ConditionalSource, Controller, Enqueue, Handler, Predicate, Reconciler,
    handler::OnSynced,
    queue::{Backoff, Limit, QueueOptions},
    run::input::{Input, InputSource},
    run::input_status::InputMode,
    source::kind::{Concern, Filter, KindSource},
    spec::{Spec, erase},
};
use crate::{
    guard::{self, Held},
    informer::{Index, Projection},
    kind::TypeRef,
    manager::{Condition, ControllerName, RunnableGroup},
};

/// What is wrong with a controller that is being built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Give it a name.
    #[error("a controller needs a name")]
    NameMissing,
    /// Call `for_` or `watches` at least once.
    #[error("{0} watches nothing: add an input with for_, owns or watches")]
    NoInput(ControllerName),
    /// Only one type can be what a controller is for.
    #[error("{0} has two types it is for; use watches for the second")]
    TwoPrimaries(ControllerName),
    /// `owns` needs to know the owner.
    #[error("{0} owns {1} but is for nothing; call for_ first")]
    OwnsWithoutFor(ControllerName, TypeRef),
    /// Name an input before saying something of it.
    #[error("{0}: {1} concerns the input named last, and there is none; call it after one")]
    NoInputYet(ControllerName, &'static str),
    /// A source of one's own has no objects to choose from; let it choose itself.
    #[error("{0}: {1} concerns a type, not a source of one's own")]
    NotForSources(ControllerName, &'static str),
    /// Name the type by `for_type`, `owns_type` or `watches_type`, and read it with
    /// [`Context::store`](super::Context::store).
    #[error(
        "{0}: {1} is named by its Rust type, of which {2} keeps too little to decode; \
         name it by for_type, owns_type or watches_type"
    )]
    TypedProjection(ControllerName, TypeRef, &'static str),
    /// Call `metadata_only` instead.
    #[error("{0}: keys_only keeps no {2} of {1}; call metadata_only instead")]
    NotKept(ControllerName, TypeRef, &'static str),
    /// Call `every_owner` after `owns`.
    #[error("{0}: every_owner concerns an owned type, and {1} is none; call it after owns")]
    NotOwned(ControllerName, TypeRef),
    /// Mend the source: it panicked when it was asked for its name.
    #[error("{0}: the name of a source panicked: {1}")]
    SourcePanicked(ControllerName, String),
    /// At least one reconcile must be able to run.
    #[error("{0}: max_concurrent_reconciles is 0, give it at least 1")]
    NoWorkers(ControllerName),
}

/// Collects inputs and options. `conditional`, `optional`, `metadata_only`, `keys_only`,
/// `every_owner`, `predicate`, `labels`, `fields`, `namespace`, `managed_fields` and `index`
/// concern the input named last.
#[derive(Debug)]
#[must_use = "call build"]
pub struct Builder {
    name: ControllerName,
    inputs: Vec<InputOptions>,
    event_filters: Vec<Predicate>,
    workers: usize,
    reconcile_timeout: Option<Duration>,
    sync_timeout: Duration,
    queue: QueueOptions,
    group: RunnableGroup,
    conditions: Vec<Held<Arc<dyn Condition>>>,
    // The first mistake; told when the controller is built, so that calls can be chained.
    mistake: Option<BuildError>,
}

struct InputOptions {
    what: What,
    mode: InputMode,
}

enum What {
    Kind(Box<KindOptions>),
    Source(Held<Arc<dyn ConditionalSource>>),
}

#[derive(Debug)]
struct KindOptions {
    filter: Filter,
    role: Role,
    /// Named by its Rust type, as which it is to be read.
    typed: bool,
    predicates: Vec<Predicate>,
    indexes: Vec<Index>,
    synced: Option<OnSynced>,
}

#[derive(Debug)]
enum Role {
    Primary,
    Owned { only_controller: bool },
    Watched(Handler),
}

impl Builder {
    pub(super) fn new(name: ControllerName) -> Self {
        Self {
            name,
            inputs: Vec::new(),
            event_filters: Vec::new(),
            workers: 1,
            reconcile_timeout: None,
            sync_timeout: Duration::from_secs(120),
            queue: QueueOptions::default(),
            group: RunnableGroup::LeaderElection,
            conditions: Vec::new(),
            mistake: None,
        }
    }

    /// The type that requests name.
    pub fn for_<K: kube::Resource<DynamicType = ()> + DeserializeOwned>(self) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Primary, true)
    }

    /// The type that requests name, known at run time only.
    ///
    /// Without a version it is bound anew in each epoch, to the server's best one.
    pub fn for_type(self, type_ref: impl Into<TypeRef>) -> Self {
        self.kind(type_ref.into(), Role::Primary, false)
    }

    /// A type whose objects are controlled by the primary: their changes concern their owner.
    pub fn owns<K: kube::Resource<DynamicType = ()>>(self) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Owned { only_controller: true }, true)
    }

    /// As [`Builder::owns`], known at run time only.
    pub fn owns_type(self, type_ref: impl Into<TypeRef>) -> Self {
        self.kind(type_ref.into(), Role::Owned { only_controller: true }, false)
    }

    /// Any other type, with a handler that maps its changes.
    pub fn watches<K: kube::Resource<DynamicType = ()>>(self, handler: Handler) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Watched(handler), true)
    }

    /// As [`Builder::watches`], known at run time only.
    pub fn watches_type(self, type_ref: impl Into<TypeRef>, handler: Handler) -> Self {
        self.kind(type_ref.into(), Role::Watched(handler), false)
    }

    /// A source of one's own.
    pub fn source(mut self, source: impl ConditionalSource) -> Self {
        self.inputs.push(InputOptions {
            what: What::Source(Held::new(Arc::new(source))),
            mode: InputMode::Plain,
        });
        self
    }

    /// The controller runs only while this input's type is served, or while the condition of a
    /// source of one's own holds and the source is not done.
    pub fn conditional(self) -> Self {
        self.mode("conditional", InputMode::Required)
    }

    /// The input comes and goes with its type, without a restart.
    pub fn optional(self) -> Self {
        self.mode("optional", InputMode::Optional)
    }

    /// Every owner of the primary's kind is concerned, not only the controller; for `owns`.
    pub fn every_owner(mut self) -> Self {
        if let Some(InputOptions { what: What::Kind(kind), .. }) = self.inputs.last()
            && !matches!(kind.role, Role::Owned { .. })
        {
            let mistake = BuildError::NotOwned(self.name.clone(), kind.filter.type_ref.clone());
            self.mistake.get_or_insert(mistake);
        }
        self.last("every_owner", |kind| {
            if let Role::Owned { only_controller } = &mut kind.role {
                *only_controller = false;
            }
        })
    }

    /// Fetches and keeps metadata alone. For a type that is named by a [`TypeRef`]: one that is
    /// named by its Rust type is kept whole. An index or a handler sees metadata alone, too.
    pub fn metadata_only(self) -> Self {
        self.last("metadata_only", |kind| kind.filter.projection = Projection::Metadata)
    }

    /// Keeps namespace, name, uid and resourceVersion alone. For a type that is named by a
    /// [`TypeRef`], without an index, and with a handler that maps by name: labels and owners are
    /// not kept.
    pub fn keys_only(self) -> Self {
        self.last("keys_only", |kind| kind.filter.projection = Projection::Keys)
    }

    /// Keeps `managedFields`, which are cut otherwise.
    pub fn managed_fields(self) -> Self {
        self.last("managed_fields", |kind| kind.filter.managed_fields = true)
    }

    /// Watches only objects with these labels; the server selects.
    ///
    /// An object that loses them arrives as a deletion.
    pub fn labels(self, selector: impl Into<Arc<str>>) -> Self {
        self.last("labels", |kind| kind.filter.labels = Some(selector.into()))
    }

    /// Watches only objects with these fields; the server selects.
    pub fn fields(self, selector: impl Into<Arc<str>>) -> Self {
        self.last("fields", |kind| kind.filter.fields = Some(selector.into()))
    }

    /// Watches one namespace, whatever the cluster's default is.
    pub fn namespace(self, namespace: impl Into<Arc<str>>) -> Self {
        self.last("namespace", |kind| kind.filter.namespace = Some(namespace.into()))
    }

    /// Drops changes of this input. Every predicate must let a change pass.
    pub fn predicate(self, predicate: Predicate) -> Self {
        self.last("predicate", |kind| kind.predicates.push(predicate))
    }

    /// Keeps an index over this input's objects.
    pub fn index(self, index: Index) -> Self {
        self.last("index", |kind| kind.indexes.push(index))
    }

    /// Says whom it concerns that this input is synced; for optional types, whose objects can be
    /// worked with from then on. Called each time the type has come and everything of it is known.
    pub fn on_synced(self, concerns: impl Fn(&mut Enqueue<'_>) + Send + Sync + 'static) -> Self {
        self.last("on_synced", |kind| kind.synced = Some(OnSynced(Held::new(Box::new(concerns)))))
    }

    /// Drops changes of every type.
    pub fn event_filter(mut self, predicate: Predicate) -> Self {
        self.event_filters.push(predicate);
        self
    }

    /// Reconciles that may run at once; 1.
    pub fn max_concurrent_reconciles(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// The longest a reconcile may take; none.
    pub fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.reconcile_timeout = Some(timeout);
        self
    }

    /// The longest the first sync of a plain input may take; 2 min.
    ///
    /// Conditional inputs are waited for without a limit, and optional ones are not waited for
    /// any longer than this.
    pub fn sync_timeout(mut self, timeout: Duration) -> Self {
        self.sync_timeout = timeout;
        self
    }

    /// How long a request waits after it failed; 5 ms doubling to 1000 s.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.queue.backoff = backoff;
        self
    }

    /// Limits how many failed requests are repeated, over all of them and whatever time each was to
    /// wait; no limit.
    pub fn retry_limit(mut self, limit: Limit) -> Self {
        self.queue.limit = Some(limit);
        self
    }

    /// When it starts and stops relative to other runnables; on the leader alone.
    pub fn group(mut self, group: RunnableGroup) -> Self {
        self.group = group;
        self
    }

    /// The controller runs only while this condition is met, beside those of its conditional
    /// inputs.
    pub fn when(mut self, condition: impl Condition) -> Self {
        self.conditions.push(Held::new(Arc::new(condition)));
        self
    }

    /// Finishes it. Starts nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names what is missing.
    pub fn build(
        self,
        cluster: &Cluster,
        reconciler: impl Reconciler,
    ) -> Result<Controller, BuildError> {
        let name = self.name;
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        if name.as_str().is_empty() {
            return Err(BuildError::NameMissing);
        }
        if self.inputs.is_empty() {
            return Err(BuildError::NoInput(name));
        }
        if self.workers == 0 {
            return Err(BuildError::NoWorkers(name));
        }
        let mut primaries = self.inputs.iter().filter_map(|input| match &input.what {
            What::Kind(kind) if matches!(kind.role, Role::Primary) => Some(&kind.filter.type_ref),
            What::Kind(_) | What::Source(_) => None,
        });
        let primary = primaries.next().cloned();
        if primaries.next().is_some() {
            return Err(BuildError::TwoPrimaries(name));
        }
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for input in self.inputs {
            let source = match input.what {
                What::Source(source) => match guard::run(|| source.name()) {
                    Ok(_name) => InputSource::Other(source),
                    Err(panic) => return Err(BuildError::SourcePanicked(name, panic)),
                },
                What::Kind(kind) => {
                    kind.check(&name, &self.event_filters)?;
                    let KindOptions { mut filter, role, predicates, indexes, synced, .. } = *kind;
                    filter.namespace = filter.namespace.or_else(|| cluster.namespace.clone());
                    let concern = match (role, &primary) {
                        (Role::Primary, _) => Concern::Handler(Held::new(Handler::Object)),
                        (Role::Watched(handler), _) => Concern::Handler(Held::new(handler)),
                        (Role::Owned { only_controller }, Some(primary)) => {
                            Concern::OwnerOf { primary: primary.clone(), only_controller }
                        }
                        (Role::Owned { .. }, None) => {
                            return Err(BuildError::OwnsWithoutFor(name, filter.type_ref));
                        }
                    };
                    let predicates = self.event_filters.iter().cloned().chain(predicates);
                    InputSource::Kind(Arc::new(KindSource {
                        filter,
                        predicates: predicates.collect(),
                        concern,
                        indexes,
                        panics: watch::Sender::default(),
                        synced,
                        mode: input.mode,
                        types: cluster.types.clone(),
                        informers: cluster.informers.clone(),
                    }))
                }
            };
            inputs.push(Input { source, mode: input.mode });
        }
        let spec = Spec {
            client: cluster.unfenced_client().clone(),
            inputs,
            primary,
            reconcile: erase(reconciler),
            workers: self.workers,
            reconcile_timeout: self.reconcile_timeout,
            sync_timeout: self.sync_timeout,
            queue: self.queue,
            series: cluster.metrics.series(&name),
            carried_over: cluster.carried_over.of(&name),
            name,
        };
        Ok(Controller::new(spec, self.group).with(self.conditions))
    }

    fn kind(mut self, type_ref: TypeRef, role: Role, typed: bool) -> Self {
        let filter = Filter {
            type_ref,
            namespace: None,
            labels: None,
            fields: None,
            projection: Projection::default(),
            managed_fields: false,
        };
        let (predicates, indexes) = (Vec::new(), Vec::new());
        let kind = KindOptions { filter, role, typed, predicates, indexes, synced: None };
        self.inputs.push(InputOptions { what: What::Kind(Box::new(kind)), mode: InputMode::Plain });
        self
    }

    fn mode(mut self, method: &'static str, mode: InputMode) -> Self {
        match self.inputs.last_mut() {
            Some(input) => input.mode = mode,
            None => self.mistaken(BuildError::NoInputYet, method),
        }
        self
    }

    fn last(mut self, method: &'static str, change: impl FnOnce(&mut KindOptions)) -> Self {
        match self.inputs.last_mut().map(|input| &mut input.what) {
            Some(What::Kind(kind)) => change(kind),
            Some(What::Source(_)) => self.mistaken(BuildError::NotForSources, method),
            None => self.mistaken(BuildError::NoInputYet, method),
        }
        self
    }

    fn mistaken(
        &mut self,
        mistake: impl FnOnce(ControllerName, &'static str) -> BuildError,
        method: &'static str,
    ) {
        let name = self.name.clone();
        self.mistake.get_or_insert_with(|| mistake(name, method));
    }
}

impl KindOptions {
    /// Checks that the projection keeps what its uses need.
    fn check(&self, name: &ControllerName, event_filters: &[Predicate]) -> Result<(), BuildError> {
        let type_ref = || self.filter.type_ref.clone();
        let method = match self.filter.projection {
            Projection::Full => return Ok(()),
            Projection::Metadata => "metadata_only",
            Projection::Keys => "keys_only",
        };
        if self.typed {
            return Err(BuildError::TypedProjection(name.clone(), type_ref(), method));
        }
        if self.filter.projection != Projection::Keys {
            return Ok(());
        }
        let mut predicates = event_filters.iter().chain(&self.predicates);
        let field = match &self.role {
            Role::Owned { .. } | Role::Watched(Handler::Owner { .. }) => Some("owner references"),
            _ if self.filter.managed_fields => Some("managedFields"),
            _ if !self.indexes.is_empty() => Some("fields to index"),
            Role::Primary
            | Role::Watched(Handler::Object | Handler::Map(_) | Handler::Delta(_)) => {
                predicates.find_map(Predicate::reads)
            }
        };
        match field {
            Some(field) => Err(BuildError::NotKept(name.clone(), type_ref(), field)),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for InputOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            What::Kind(kind) => kind.fmt(f),
            What::Source(source) => f.write_str(&source.name()),
        }
    }
}
