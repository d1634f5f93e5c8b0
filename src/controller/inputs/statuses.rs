//! Statuses of a run's inputs: their states for the report, their caches for the reconciler.

mod parts;
mod unlisted;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::core::ApiResource;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, watch};

use self::{
    parts::{parts_of, waits},
    unlisted::UnlistedRequests,
};
use crate::{
    controller::{
        CachedResource, Lister, ListerError,
        foreign_cluster::ForeignCluster,
        inputs::progress::{InputProgress, InputState},
    },
    discovery::{RegistryId, TypeRegistry, TypeStatus},
    informer::{CacheShare, InformerKey, MovingInterests, Projection, Store, Subscription},
    kind::{GroupKind, ServedType, TypeRef},
    manager::{Epoch, WatchReport, WatchState},
};

/// Effect of an input's condition on the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum InputMode {
    /// The controller runs only while the condition holds.
    Required,
    /// The source runs only while the condition holds; the controller runs without it.
    Optional,
    /// The source must sync within the sync timeout; a later loss is only reported.
    Plain,
}

/// Part of the objects of a type that an input holds: which of several inputs of one type is read.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::controller) struct InputCoverage {
    /// True for the input of a primary type.
    pub(in crate::controller) is_primary: bool,
    /// True if some objects are missing, or not whole: by namespace, selector, projection or
    /// interest.
    pub(in crate::controller) is_partial: bool,
}

/// Statuses of the inputs of one epoch.
#[derive(Debug)]
pub(in crate::controller) struct InputStatuses {
    epoch: Epoch,
    // Types of the controller's cluster; `None` for a context from `Context::new`.
    types: Option<TypeRegistry>,
    // True once the sync timeout is over.
    overdue: AtomicBool,
    inputs: Mutex<StatusByNumber>,
    // Inputs of the builder that are synced or not waited for. Capacity is their number, since each
    // is sent once.
    settled: mpsc::Sender<usize>,
    // Notified when a namespace of an input has changed.
    part_changed: Notify,
    unlisted: UnlistedRequests,
}

/// Statuses by number. Boxed: a node of the map has room for eleven, and most controllers have two.
type StatusByNumber = BTreeMap<usize, Box<InputStatus>>;

/// Status of one input of a run.
#[derive(Debug)]
pub(in crate::controller) struct InputStatus {
    /// Name in messages.
    pub(in crate::controller) label: String,
    /// Type of the input's objects, for the built-in source.
    pub(in crate::controller) type_ref: Option<TypeRef>,
    /// Cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) cluster: Option<TypeRegistry>,
    /// Number of the builder's input, if it has several namespaces.
    pub(in crate::controller) part_of: Option<usize>,
    pub(in crate::controller) coverage: InputCoverage,
    pub(in crate::controller) mode: InputMode,
    pub(in crate::controller) state: WatchState,
    /// Current error.
    pub(in crate::controller) error: Option<String>,
    pub(in crate::controller) attached: Option<Attached>,
    /// Type of the cache that a custom source has offered last.
    offered: Option<Arc<ServedType>>,
    /// Previous subscription; readable until its replacement has synced.
    pub(in crate::controller) held: Option<Subscription>,
    /// Subscription acquired before the epoch began.
    pub(in crate::controller) prepared: Option<Subscription>,
    /// State of an input that was added by name; `None` for an input of the builder.
    pub(in crate::controller) progress: Option<InputProgress>,
    // State and error at the loss of the condition, to return to with the condition.
    interrupted: Option<(WatchState, Option<String>)>,
    /// True if another namespace of the input has all objects, since the type has no namespaces.
    is_covered: bool,
    /// True once all objects that existed at the start of the source are delivered.
    is_drained: bool,
    synced: bool,
    settled: bool,
}

/// Cache of an input.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Attached {
    pub(in crate::controller) served: Arc<ServedType>,
    pub(in crate::controller) store: Store,
    /// Informer key, which says which objects the cache holds.
    pub(in crate::controller) key: InformerKey,
    /// Cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) foreign: Option<ForeignCluster>,
    /// Interests that the reconciler sets; `None` for a context from `Context::new`.
    pub(in crate::controller) moving: Option<MovingInterests>,
    /// Current status of the type.
    pub(in crate::controller) status: Option<watch::Receiver<TypeStatus>>,
    /// Caches of the further namespaces of the input.
    pub(in crate::controller) others: Vec<Attached>,
}

impl InputStatuses {
    /// Returns the statuses of an epoch, and a channel of the numbers of settled inputs.
    pub(in crate::controller) fn new(
        epoch: Epoch,
        types: Option<TypeRegistry>,
        inputs: Vec<InputStatus>,
    ) -> (Arc<Self>, mpsc::Receiver<usize>) {
        let (settled, numbers) = mpsc::channel(inputs.len().max(1));
        let inputs = inputs.into_iter().map(Box::new).enumerate().collect();
        let statuses = Self {
            epoch,
            types,
            overdue: AtomicBool::new(false),
            inputs: Mutex::new(inputs),
            settled,
            part_changed: Notify::new(),
            unlisted: UnlistedRequests::default(),
        };
        statuses.report(&statuses.inputs());
        (Arc::new(statuses), numbers)
    }

    /// Returns the requests that wait for the cache of the primary type.
    pub(in crate::controller) fn unlisted(&self) -> &UnlistedRequests {
        &self.unlisted
    }

    /// Adds an input, and returns its number.
    pub(in crate::controller) fn push(&self, input: InputStatus) -> usize {
        let mut inputs = self.inputs();
        let number = inputs.last_key_value().map_or(0, |(last, _)| last + 1);
        inputs.insert(number, Box::new(input));
        self.report(&inputs);
        number
    }

    /// Removes an input, whose task has ended.
    pub(in crate::controller) fn remove(&self, number: usize) {
        let mut inputs = self.inputs();
        let removed = inputs.remove(&number);
        self.report(&inputs);
        drop(inputs);
        drop(removed);
    }

    /// Changes the status of an input, and reports it.
    pub(in crate::controller) fn change<T>(
        &self,
        number: usize,
        change: impl FnOnce(&mut InputStatus) -> T,
    ) -> T {
        let mut inputs = self.inputs();
        let input =
            &mut **inputs.get_mut(&number).expect("an input is removed after its task has ended");
        let changed = change(input);
        let is_part = input.part_of.is_some();
        self.settle(&mut inputs, number);
        if let Some(progress) = &inputs[&number].progress {
            let late = parts_of(&inputs, number).filter(|(_, part)| !part.synced);
            progress.set(match late.min_by_key(|(part, _)| waits(&inputs, *part)) {
                None => InputState::Started,
                Some((_, part)) => InputState::Pending(part.explanation()),
            });
        }
        self.report(&inputs);
        if is_part {
            self.part_changed.notify_waiters();
        }
        changed
    }

    /// Attaches the cache that a custom source offers; ignored if the input was removed meanwhile.
    pub(in crate::controller) fn attach(&self, number: usize, attached: Attached) {
        let mut inputs = self.inputs();
        let before = inputs.get_mut(&number).map(|input| {
            input.offered = Some(Arc::clone(&attached.served));
            input.cluster = attached.foreign.as_ref().map(|foreign| foreign.types.clone());
            input.attached.replace(attached)
        });
        drop(inputs);
        drop(before);
    }

    /// Returns the cache of an input by its declared type or, failing that, by its served type.
    /// `None` as the cluster means that of the controller. `None` is returned until all namespaces
    /// of the input are listed.
    ///
    /// If the builder has several inputs of the type, the first that holds all objects whole is
    /// read, or else the first.
    pub(in crate::controller) fn attached(
        &self,
        cluster: Option<&TypeRegistry>,
        type_ref: &TypeRef,
    ) -> Option<Attached> {
        let (inputs, cluster) = (self.inputs(), self.foreign(cluster));
        let of_cluster =
            || inputs.values().map(|input| &**input).filter(|input| input.is_of(cluster));
        let order = |input: &&InputStatus| {
            (input.progress.is_some(), input.coverage.is_partial, input.attached.is_none())
        };
        let declared = of_cluster().filter(|input| input.type_ref.as_ref() == Some(type_ref));
        let found = declared.min_by_key(order).or_else(|| {
            let is_served = |attached: &Attached| matches(type_ref, &attached.served);
            let served =
                of_cluster().filter(|input| input.attached.as_ref().is_some_and(is_served));
            served.min_by_key(order)
        });
        found?.with_parts(of_cluster())
    }

    /// Returns the cache of the only primary type, which has this Rust type, or the reason why there
    /// is none.
    pub(in crate::controller) fn primary_of<K: kube::Resource<DynamicType = ()>>(
        &self,
    ) -> Result<Attached, ListerError> {
        let inputs = self.inputs();
        let own = || inputs.values().map(|input| &**input).filter(|input| input.is_of(None));
        let primary = own().find(|input| input.coverage.is_primary);
        let attached = primary.and_then(|primary| primary.with_parts(own()));
        drop(inputs);
        attached.map_or_else(|| self.attached_of::<K>(None), Ok)
    }

    /// Returns the cache of an input of a Rust type, or the reason why there is none.
    pub(in crate::controller) fn attached_of<K: kube::Resource<DynamicType = ()>>(
        &self,
        cluster: Option<&TypeRegistry>,
    ) -> Result<Attached, ListerError> {
        let (type_ref, resource) = (TypeRef::of::<K>(), ApiResource::erase::<K>(&()));
        let attached = self.attached(cluster, &type_ref);
        let names = |input: &TypeRef| input.names_resource(&resource);
        attached.ok_or_else(|| self.unavailable(cluster, &type_ref, names))
    }

    /// Returns the cache of an input, as it was named to the builder, or the reason why there is
    /// none.
    pub(in crate::controller) fn attached_as(
        &self,
        cluster: Option<&TypeRegistry>,
        type_ref: &TypeRef,
    ) -> Result<Attached, ListerError> {
        let attached = self.attached(cluster, type_ref);
        let is_version = |input: &TypeRef| match (&input.version, &type_ref.version) {
            (Some(own), Some(read)) => own == read,
            (None, _) | (_, None) => true,
        };
        let names = |input: &TypeRef| input.is_alike(type_ref) && is_version(input);
        attached.ok_or_else(|| self.unavailable(cluster, type_ref, names))
    }

    fn unavailable(
        &self,
        cluster: Option<&TypeRegistry>,
        type_ref: &TypeRef,
        names: impl Fn(&TypeRef) -> bool,
    ) -> ListerError {
        let (inputs, cluster) = (self.inputs(), self.foreign(cluster));
        let is_offered = |served: &Arc<ServedType>| matches(type_ref, served);
        let of_type = inputs.values().filter(|input| {
            let is_type = input.type_ref.as_ref().is_some_and(&names)
                || input.offered.as_ref().is_some_and(is_offered);
            is_type && input.is_of(cluster)
        });
        let type_ref = type_ref.clone();
        // The first input that is not listed yet, if there are several namespaces.
        match of_type.map(|input| &**input).min_by_key(|input| input.is_listed()) {
            // The input is of any version, for example, and the type of another one.
            Some(InputStatus { attached: Some(attached), .. }) => {
                let identity = &attached.served.identity;
                let why =
                    format!("its input has {} of {}", identity.plural, identity.api_version());
                ListerError::Unavailable { type_ref, why }
            }
            Some(input) if input.state.is_synced() && input.error.is_none() => {
                ListerError::Unavailable { type_ref, why: "its epoch is over".to_owned() }
            }
            Some(input) => ListerError::Unavailable { type_ref, why: input.explanation() },
            None => ListerError::NotAnInput(type_ref),
        }
    }

    /// Returns a cluster if it is not that of the controller.
    pub(in crate::controller) fn foreign<'a>(
        &self,
        cluster: Option<&'a TypeRegistry>,
    ) -> Option<&'a TypeRegistry> {
        cluster.filter(|cluster| !self.types.as_ref().is_some_and(|own| own.is(cluster)))
    }

    /// Returns the group and kind of an input's type, as it is served in this epoch.
    pub(in crate::controller) fn group_kind(&self, type_ref: &TypeRef) -> Option<GroupKind> {
        let inputs = self.inputs();
        let own = inputs.values().filter(|input| input.is_of(None));
        let of_type = own.filter(|input| input.type_ref.as_ref() == Some(type_ref));
        of_type.filter_map(|input| Some(input.attached.as_ref()?.served.group_kind())).next()
    }

    /// Returns the interests of the builder's input of a type whose objects the reconciler names.
    pub(in crate::controller) fn moving_interests(
        &self,
        type_ref: &TypeRef,
    ) -> Option<MovingInterests> {
        let inputs = self.inputs();
        let of_builder = inputs.values().filter(|input| input.progress.is_none());
        let of_type = of_builder.filter(|input| input.type_ref.as_ref() == Some(type_ref));
        of_type.filter_map(|input| input.attached.as_ref()?.moving.clone()).next()
    }

    /// Returns the cache of an input that was added by this name; the newer one during a
    /// replacement.
    pub(in crate::controller) fn named(&self, name: &str) -> Option<Attached> {
        let inputs = self.inputs();
        let named = || inputs.values().map(|input| &**input).filter(|input| input.is_named(name));
        named().rev().find_map(|input| input.with_parts(named()))
    }

    /// Returns the current error of the input that was added by this name.
    pub(in crate::controller) fn error_of(&self, name: &str) -> Option<String> {
        let inputs = self.inputs();
        let named = inputs.values().rev().filter(|input| input.is_named(name));
        named.filter_map(|input| input.error.clone()).next()
    }

    /// Returns the caches of a type at any version. `None` as the cluster means that of the
    /// controller.
    pub(in crate::controller) fn caches(
        &self,
        cluster: Option<&RegistryId>,
        group: &str,
        plural: &str,
    ) -> Vec<Attached> {
        let inputs = self.inputs();
        let attached = inputs.values().filter_map(|input| input.attached.as_ref());
        let is = |it: &&Attached| {
            let identity = &it.served.identity;
            *identity.group == *group
                && *identity.plural == *plural
                && it.cluster().as_ref() == cluster
        };
        attached.filter(is).cloned().collect()
    }

    /// Returns the share of the inputs in their caches. An object of two inputs counts twice.
    pub(in crate::controller) fn share(&self) -> CacheShare {
        let inputs = self.inputs();
        let attached = inputs.values().filter_map(|input| input.attached.as_ref());
        attached.map(|attached| attached.store.share()).fold(CacheShare::default(), CacheShare::and)
    }

    /// Returns whether a cache is known to be behind.
    pub(in crate::controller) fn stale(&self) -> bool {
        self.inputs().values().any(|input| input.stale())
    }

    /// Records that the sync timeout is over: from now on the report names the late inputs.
    pub(in crate::controller) fn overdue(&self) {
        self.overdue.store(true, Ordering::Relaxed);
        self.report(&self.inputs());
    }

    /// Drops every cache; contexts that outlive the run cannot read them.
    pub(in crate::controller) fn clear(&self) {
        let mut inputs = self.inputs();
        let held: Vec<_> =
            inputs.values_mut().map(|input| (input.detach(), input.prepared.take())).collect();
        drop(inputs);
        drop(held);
    }

    pub(in crate::controller) fn mode(&self, input: usize) -> InputMode {
        self.inputs()[&input].mode
    }

    fn inputs(&self) -> MutexGuard<'_, StatusByNumber> {
        self.inputs.lock()
    }

    fn report(&self, by_number: &StatusByNumber) {
        let inputs = || by_number.values().map(|input| &**input);
        let typed = |input: &InputStatus| input.type_ref.clone();
        let watches = inputs()
            .filter_map(|input| {
                let (state, error) = (input.state, input.error.clone());
                typed(input).map(|type_ref| WatchReport { type_ref, state, error })
            })
            .collect();
        let stale = inputs().any(InputStatus::stale);
        let errors = |state: WatchState| -> Vec<String> {
            let inputs = inputs().filter(|input| input.state == state);
            inputs.filter_map(|input| input.error.clone()).collect()
        };
        let forbidden = errors(WatchState::Forbidden);
        let unconverted = errors(WatchState::ConversionFailed);
        let is_late = |number: &usize, input: &InputStatus| {
            let is_waited_for = !input.settled && input.mode != InputMode::Optional;
            is_waited_for && !waits(by_number, *number)
        };
        let late = by_number.iter().filter(|(number, input)| is_late(number, input));
        let late = match self.overdue.load(Ordering::Relaxed) {
            true => late.map(|(_, input)| input.explanation()).collect(),
            false => Vec::new(),
        };
        let mut missing: Vec<_> = inputs()
            .filter(|input| input.mode == InputMode::Optional && input.state == WatchState::Waiting)
            .filter_map(typed)
            .collect();
        missing.dedup();
        self.epoch.report(|report| {
            report.watches = watches;
            report.stale = stale;
            report.late = late;
            report.forbidden = forbidden;
            report.unconverted = unconverted;
            report.missing = missing;
        });
    }
}

impl Attached {
    /// Returns the cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) fn cluster(&self) -> Option<RegistryId> {
        self.foreign.as_ref().map(ForeignCluster::id)
    }

    /// Returns the caches of all namespaces of the input.
    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// Returns the stores of all namespaces as one.
    pub(in crate::controller) fn joined(&self) -> Store {
        self.store.clone().joined(self.others.iter().map(|part| part.store.clone()))
    }

    /// Returns a typed lister of the cache.
    pub(in crate::controller) fn lister<K: CachedResource>(
        self,
        type_ref: TypeRef,
    ) -> Result<Lister<K>, ListerError> {
        match self.key.projection {
            Projection::Full => Ok(Lister::of(self.joined())),
            Projection::Metadata | Projection::Keys => Err(ListerError::Projected(type_ref)),
        }
    }

    /// Returns the type as served now. Of the same type only the subresources, the version order and
    /// the way of reading may change; a different type is ignored.
    pub(in crate::controller) fn current(&self) -> Arc<ServedType> {
        let now = self.status.as_ref().and_then(|status| status.borrow().served.clone());
        let is_same = |now: &Arc<ServedType>| {
            let ServedType { subresources, version_order, polled, .. } = *self.served;
            ServedType { subresources, version_order, polled, ..ServedType::clone(now) }
                == *self.served
        };
        now.filter(is_same).unwrap_or_else(|| Arc::clone(&self.served))
    }
}

impl InputStatus {
    pub(in crate::controller) fn new(
        label: String,
        type_ref: Option<TypeRef>,
        mode: InputMode,
    ) -> Self {
        Self {
            label,
            type_ref,
            cluster: None,
            part_of: None,
            coverage: InputCoverage::default(),
            mode,
            state: WatchState::Waiting,
            error: None,
            attached: None,
            offered: None,
            held: None,
            prepared: None,
            progress: None,
            interrupted: None,
            is_covered: false,
            is_drained: false,
            synced: false,
            settled: false,
        }
    }

    pub(in crate::controller) fn set(&mut self, state: WatchState, error: Option<String>) {
        self.state = state;
        self.synced |= state.is_synced();
        self.error = error;
        self.interrupted = None;
    }

    /// Returns whether the objects are those of a cluster; `None` for that of the controller.
    fn is_of(&self, cluster: Option<&TypeRegistry>) -> bool {
        match (&self.cluster, cluster) {
            (None, None) => true,
            (Some(own), Some(cluster)) => own.is(cluster),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Returns whether the input was added by this name.
    fn is_named(&self, name: &str) -> bool {
        self.progress.as_ref().is_some_and(|progress| *progress.name == *name)
    }

    /// Returns the reason why the input is not synced.
    fn explanation(&self) -> String {
        match &self.error {
            Some(error) => error.clone(),
            None => format!("{} is {}", self.label, self.state.word().to_lowercase()),
        }
    }

    /// Records that the condition does not hold; a cache is stale from now on.
    pub(in crate::controller) fn wait(&mut self, why: String) {
        let state = if self.synced { WatchState::Stale } else { WatchState::Waiting };
        self.set(state, Some(why));
    }

    /// Records that the condition does not hold for now, while the source continues.
    pub(in crate::controller) fn interrupt(&mut self, why: String) {
        let before = self.interrupted.take().unwrap_or_else(|| (self.state, self.error.take()));
        self.wait(why);
        self.interrupted = Some(before);
    }

    /// Records that the condition holds again, with the same basis as at the start of the source.
    pub(in crate::controller) fn resume(&mut self) {
        if let Some((state, error)) = self.interrupted.take() {
            self.set(state, error);
        }
    }

    /// Removes the caches of the input and returns them. A removed optional input is not stale.
    pub(in crate::controller) fn detach(&mut self) -> (Option<Attached>, Option<Subscription>) {
        self.synced &= self.mode != InputMode::Optional;
        self.is_covered = false;
        (self.attached.take(), self.held.take())
    }

    /// Removes the cache that a custom source offered, and returns it.
    pub(in crate::controller) fn withdraw(&mut self) -> Option<Attached> {
        self.attached.take()
    }

    /// Returns whether the input has synced once and is not synced now.
    fn stale(&self) -> bool {
        self.synced && !self.state.is_synced()
    }
}

/// Returns whether a served type is the one that a reference names.
fn matches(type_ref: &TypeRef, served: &ServedType) -> bool {
    let identity = &served.identity;
    type_ref.names(&identity.group, &identity.version, &identity.plural, &served.kind)
}
