//! Options of one input, and the source that they become.

use std::{mem, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{BuildError, delivers_generic_only};
use crate::{
    controller::{
        Cluster, ConditionalSource, Handler, Predicate, WatchErrorHandler,
        foreign_cluster::ForeignCluster,
        handler::OnSynced,
        inputs::{
            input::{Input, InputConditions, InputSource},
            status::InputMode,
        },
        source::{
            kind::{DeliveredObjects, KindSource, Mapping, SourceFilter},
            mapping::SourceHandlers,
        },
    },
    discovery::TypeRegistry,
    guard::{self, GuardedDrop},
    informer::{Index, Interest, Projection},
    kind::TypeRef,
    manager::{Condition, ControllerName, Subresource, subresource_served},
};

/// Options of an input.
pub(in crate::controller) struct InputOptions {
    pub(super) kind: InputKind,
    pub(super) mode: InputMode,
    pub(super) conditions: InputConditions,
}

/// Source of an input.
pub(super) enum InputKind {
    Kind(Box<KindOptions>),
    Source(GuardedDrop<Arc<dyn ConditionalSource>>, SourceHandlers),
}

/// Options of an input of a type.
#[derive(Clone, Debug)]
pub(super) struct KindOptions {
    pub(super) filter: SourceFilter,
    /// Namespaces; the default if there are none.
    pub(super) namespaces: Vec<Arc<str>>,
    pub(super) role: Role,
    /// True if the type is named by its Rust type, to which its objects are decoded.
    pub(super) typed: bool,
    pub(super) predicates: Vec<Predicate>,
    pub(super) indexes: Vec<Index>,
    pub(super) synced: Option<OnSynced>,
    pub(super) watch_error: Option<WatchErrorHandler>,
    pub(super) resync: Option<Duration>,
    /// Interests that narrow what is delivered and kept whole; none for all.
    pub(super) interests: Vec<Interest>,
    pub(super) whole: bool,
    /// Subresource without which the type does not count as served.
    pub(super) subresource: Option<Subresource>,
    /// Cluster of the objects; `None` for that of the controller.
    pub(super) cluster: Option<Cluster>,
}

/// Gives each input the indexes of all inputs of its type, since reconcilers read the type by one of
/// them.
///
/// # Errors
///
/// [`BuildError::IndexTwice`] if two of them have one name, but perhaps not one function.
pub(in crate::controller) fn with_all_indexes(
    mut inputs: Vec<InputOptions>,
    name: &ControllerName,
    own: &Cluster,
) -> Result<Vec<InputOptions>, BuildError> {
    let of_type = |kind: &KindOptions| (kind.filter.type_ref.clone(), kind.types(own).clone());
    let indexes = inputs.iter().filter_map(InputOptions::kind);
    let indexes = indexes.filter(|kind| !kind.indexes.is_empty());
    let indexes: Vec<_> = indexes.map(|kind| (of_type(kind), kind.indexes.clone())).collect();
    for input in &mut inputs {
        let InputKind::Kind(kind) = &mut input.kind else { continue };
        // An input of a part of each object may lack what an index reads.
        if kind.filter.projection != Projection::Full {
            continue;
        }
        for ((type_ref, types), indexes) in &indexes {
            if kind.filter.type_ref == *type_ref && kind.types(own).is(types) {
                kind.indexes.extend_from_slice(indexes);
                kind.merge_indexes(name)?;
            }
        }
    }
    Ok(inputs)
}

/// Use of a type by a controller.
#[derive(Clone, Debug)]
pub(super) enum Role {
    Primary,
    Owned {
        only_controller: bool,
    },
    Watched(Handler),
    /// Objects that the reconciler names while it runs.
    Claimed(Handler),
}

impl InputOptions {
    /// Returns the type of the input, if it is a primary type.
    pub(super) fn primary(&self) -> Option<&TypeRef> {
        match &self.kind {
            InputKind::Kind(kind) if matches!(kind.role, Role::Primary) => {
                Some(&kind.filter.type_ref)
            }
            InputKind::Kind(_) | InputKind::Source(..) => None,
        }
    }

    /// Returns the options of an input of a type.
    fn kind(&self) -> Option<&KindOptions> {
        match &self.kind {
            InputKind::Kind(kind) => Some(kind),
            InputKind::Source(..) => None,
        }
    }

    /// Checks that the requests of the input name no objects, for a reconciler of custom keys.
    pub(super) fn check_keys(&self, name: &ControllerName) -> Result<(), BuildError> {
        let names_objects = match &self.kind {
            InputKind::Kind(kind) => kind.role.names_objects(),
            // Any other source may add requests itself, without its handler.
            InputKind::Source(source, handlers) => {
                matches!(&*handlers.handler, Handler::Object | Handler::Owner { .. })
                    && delivers_generic_only(&***source)
            }
        };
        match names_objects {
            true => Err(BuildError::ObjectRequests(name.clone(), self.kind.label())),
            false => Ok(()),
        }
    }

    /// Checks that objects of a primary type can be decoded, for a reconciler that takes them.
    pub(super) fn check_decoded(&self, name: &ControllerName) -> Result<(), BuildError> {
        match (self.primary(), self.kind()) {
            (Some(type_ref), Some(kind)) if kind.filter.projection != Projection::Full => {
                Err(BuildError::DecodedProjection(name.clone(), type_ref.clone(), "reconciler"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the inputs of a controller with these primary types: one for each namespace.
    /// `number` is the position among the inputs of the builder.
    pub(in crate::controller) fn inputs(
        self,
        number: usize,
        name: &ControllerName,
        primaries: &[TypeRef],
        event_filters: &[Predicate],
        cluster: &Cluster,
    ) -> Result<Vec<Input>, BuildError> {
        let (mode, mut conditions) = (self.mode, self.conditions);
        let method = if conditions.is_empty() { "subresource" } else { "input_when" };
        if let InputKind::Kind(kind) = &self.kind {
            conditions.extend(kind.subresource_condition(cluster));
        }
        if mode == InputMode::Plain && !conditions.is_empty() {
            return Err(BuildError::PlainCondition(name.clone(), self.kind.label(), method));
        }
        let source = match self.kind {
            InputKind::Source(source, handlers) => match guard::run(|| source.name()) {
                Ok(name) => {
                    let types = Some(cluster.types.clone());
                    let primaries = primaries.to_vec();
                    let handlers = SourceHandlers { name, types, primaries, ..handlers };
                    vec![InputSource::Other(source, Arc::new(handlers))]
                }
                Err(panic) => return Err(BuildError::SourcePanicked(name.clone(), panic)),
            },
            InputKind::Kind(mut kind) => {
                kind.check(name, event_filters)?;
                kind.merge_indexes(name)?;
                let namespaces = kind.restrict(name, cluster)?;
                let source = |kind: KindOptions| {
                    let source = kind.source(name, primaries, event_filters, mode, cluster)?;
                    Ok(InputSource::Kind(Arc::new(source)))
                };
                namespaces.into_iter().map(source).collect::<Result<_, BuildError>>()?
            }
        };
        let part_of = (source.len() > 1).then_some(number);
        let input = |source| Input { source, mode, conditions: conditions.clone(), part_of };
        Ok(source.into_iter().map(input).collect())
    }
}

impl InputKind {
    /// Returns the name of the type or source, for messages.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Kind(kind) => kind.filter.type_ref.to_string(),
            Self::Source(source, _) => guard::run(|| source.name()).unwrap_or_default(),
        }
    }
}

impl Role {
    /// Returns whether the requests name objects, and are no choice of a function of the user.
    fn names_objects(&self) -> bool {
        match self {
            Self::Primary | Self::Owned { .. } => true,
            Self::Watched(handler) | Self::Claimed(handler) => handler.names_objects(),
        }
    }
}

impl KindOptions {
    pub(super) fn new(type_ref: TypeRef, role: Role, typed: bool) -> Self {
        let filter = SourceFilter {
            type_ref,
            namespace: None,
            labels: None,
            fields: None,
            projection: Projection::default(),
            managed_fields: false,
            transform: None,
        };
        let (predicates, indexes) = (Vec::new(), Vec::new());
        let (interests, whole, cluster) = (Vec::new(), false, None);
        let (namespaces, synced, watch_error, resync) = (Vec::new(), None, None, None);
        Self {
            filter,
            namespaces,
            role,
            typed,
            predicates,
            indexes,
            synced,
            watch_error,
            resync,
            interests,
            whole,
            subresource: None,
            cluster,
        }
    }

    /// Removes the clones of an index.
    ///
    /// # Errors
    ///
    /// [`BuildError::IndexTwice`] if two indexes have one name, but perhaps not one function.
    fn merge_indexes(&mut self, name: &ControllerName) -> Result<(), BuildError> {
        let mut merged: Vec<Index> = Vec::new();
        for index in mem::take(&mut self.indexes) {
            match merged.iter().find(|known| known.name() == index.name()) {
                None => merged.push(index),
                Some(known) if known.has_function_of(&index) => {}
                Some(_) => {
                    let (type_ref, index) = (self.filter.type_ref.clone(), index.name().to_owned());
                    return Err(BuildError::IndexTwice(name.clone(), type_ref, index));
                }
            }
        }
        self.indexes = merged;
        Ok(())
    }

    /// Returns the types of the cluster of the objects.
    fn types<'a>(&'a self, own: &'a Cluster) -> &'a TypeRegistry {
        &self.cluster.as_ref().unwrap_or(own).types
    }

    /// Returns the condition on the required subresource, if there is one.
    fn subresource_condition(&self, own: &Cluster) -> Option<GuardedDrop<Arc<dyn Condition>>> {
        let (types, required) = (self.types(own).clone(), self.subresource?);
        let type_ref = self.filter.type_ref.clone();
        let condition = move || subresource_served(&types, &type_ref, required);
        Some(GuardedDrop::new(Arc::new(condition)))
    }

    /// Applies the defaults of the cluster, and returns the options for each namespace.
    fn restrict(mut self, name: &ControllerName, own: &Cluster) -> Result<Vec<Self>, BuildError> {
        let cluster = self.cluster.as_ref().unwrap_or(own);
        let of_type = cluster.defaults.find(&self.filter.type_ref).cloned().unwrap_or_default();
        let of_cluster = cluster.namespace.clone().filter(|namespace| !namespace.is_empty());
        // Bare keys have no content to transform, and share a watch without it.
        let is_transformed = self.filter.projection != Projection::Keys;
        let of_all = cluster.defaults.transform.clone();
        let transform = of_type.transform.or(of_all).filter(|_| is_transformed);
        self.filter.transform = self.filter.transform.or(transform);
        self.filter.labels = self.filter.labels.or(of_type.labels);
        self.filter.fields = self.filter.fields.or(of_type.fields);
        self.resync = self.resync.or(of_type.resync).filter(|period| !period.is_zero());
        self.watch_error = self.watch_error.or(of_type.on_watch_error);
        let chosen = [mem::take(&mut self.namespaces), of_type.namespaces];
        let chosen = chosen.into_iter().find(|namespaces| !namespaces.is_empty());
        let mut namespaces: Vec<Option<Arc<str>>> = Vec::new();
        for namespace in chosen.into_iter().flatten() {
            if namespace.is_empty() {
                namespaces = vec![None];
                break;
            }
            if !namespaces.contains(&Some(Arc::clone(&namespace))) {
                namespaces.push(Some(namespace));
            }
        }
        if namespaces.len() > 1 && matches!(self.role, Role::Claimed(_)) {
            return Err(BuildError::OneNamespace(name.clone(), self.filter.type_ref));
        }
        if namespaces.is_empty() {
            namespaces.push(of_cluster);
        }
        let within = |namespace| {
            let mut one = self.clone();
            one.filter.namespace = namespace;
            one
        };
        Ok(namespaces.into_iter().map(within).collect())
    }

    /// Returns the source of an input of a controller with these primary types.
    fn source(
        self,
        name: &ControllerName,
        primaries: &[TypeRef],
        event_filters: &[Predicate],
        mode: InputMode,
        own: &Cluster,
    ) -> Result<KindSource, BuildError> {
        let cluster = self.cluster.as_ref().unwrap_or(own);
        let (types, informers) = (cluster.types.clone(), cluster.informers.clone());
        let foreign = (!types.is(&own.types)).then(|| ForeignCluster::from(cluster));
        let Self { filter, role, predicates, indexes, synced, interests, whole, .. } = self;
        let (watch_error, resync) = (self.watch_error, self.resync);
        let of = |handler| Mapping::Handler {
            handler: GuardedDrop::new(handler),
            primaries: primaries.to_vec(),
            own: own.types.clone(),
        };
        let (mapping, delivery) = match role {
            Role::Primary => {
                let position = primaries.iter().position(|it| *it == filter.type_ref);
                (Mapping::Primary(position.unwrap_or_default()), DeliveredObjects::Everything)
            }
            Role::Watched(handler) if interests.is_empty() => {
                (of(handler), DeliveredObjects::Everything)
            }
            Role::Watched(handler) => (of(handler), DeliveredObjects::Of(interests)),
            Role::Owned { .. } | Role::Claimed(_) if primaries.is_empty() => {
                return Err(BuildError::OwnsWithoutFor(name.clone(), filter.type_ref));
            }
            Role::Owned { only_controller } => {
                let primaries = primaries.to_vec();
                let delivery = DeliveredObjects::OwnedBy(primaries.clone());
                (Mapping::OwnerOf { primaries, only_controller }, delivery)
            }
            Role::Claimed(handler) => (of(handler), DeliveredObjects::Moving(primaries.to_vec())),
        };
        Ok(KindSource {
            filter,
            predicates: event_filters.iter().cloned().chain(predicates).collect(),
            mapping,
            delivery,
            whole,
            indexes,
            panics: watch::Sender::default(),
            synced,
            watch_error,
            resync,
            mode,
            foreign,
            types,
            informers,
        })
    }

    /// Checks that the projection keeps the fields that its uses need.
    fn check(&self, name: &ControllerName, event_filters: &[Predicate]) -> Result<(), BuildError> {
        let type_ref = || self.filter.type_ref.clone();
        let is_for_watches = !self.interests.is_empty() || self.cluster.is_some();
        if is_for_watches && !matches!(self.role, Role::Watched(_)) {
            return Err(BuildError::NotWatched(name.clone(), type_ref()));
        }
        if let Role::Watched(Handler::Generic(..)) | Role::Claimed(Handler::Generic(..)) = self.role
        {
            return Err(BuildError::GenericOfType(name.clone(), type_ref()));
        }
        let method = match self.filter.projection {
            Projection::Full => return Ok(()),
            Projection::Metadata => "metadata_only",
            Projection::Keys => "keys_only",
        };
        let handler_decodes = matches!(
            &self.role,
            Role::Watched(Handler::Decoded(_)) | Role::Claimed(Handler::Decoded(_))
        );
        let code = if handler_decodes {
            Some("handler")
        } else if event_filters.iter().chain(&self.predicates).any(Predicate::decodes) {
            Some("predicate")
        } else {
            self.indexes.iter().any(Index::decodes).then_some("index")
        };
        if let Some(code) = code {
            return Err(BuildError::DecodedProjection(name.clone(), type_ref(), code));
        }
        if self.typed {
            return Err(BuildError::TypedProjection(name.clone(), type_ref(), method));
        }
        if self.filter.projection != Projection::Keys {
            return Ok(());
        }
        let mut predicates = event_filters.iter().chain(&self.predicates);
        let field = match &self.role {
            Role::Owned { .. } | Role::Watched(Handler::Owner { .. }) => Some("owner references"),
            _ if self.interests.iter().any(Interest::reads_labels) => Some("labels"),
            _ if self.filter.managed_fields => Some("managedFields"),
            _ if self.filter.transform.is_some() => Some("content to transform"),
            _ if !self.indexes.is_empty() => Some("fields to index"),
            Role::Primary
            | Role::Claimed(_)
            | Role::Watched(
                Handler::Object
                | Handler::Map(_)
                | Handler::Delta(_)
                | Handler::Decoded(_)
                | Handler::Generic(..),
            ) => predicates.find_map(Predicate::reads),
        };
        match field {
            Some(field) => Err(BuildError::NotKept(name.clone(), type_ref(), field)),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for InputOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            InputKind::Kind(kind) => kind.fmt(f),
            InputKind::Source(source, _) => f.write_str(&source.name()),
        }
    }
}
