//! Event handlers: map changes to requests.

mod by_hand;

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{
    Add, CachedResource, Cluster, Event, Lister, ListerError, Request,
    inputs::statuses::InputStatuses, source::owner_type::OwnerType,
};
use crate::{
    discovery::TypeRegistry,
    guard::GuardedDrop,
    informer::{Delta, Object, ObjectKey, Store},
    kind::{GroupKind, Scope, TypeRef},
    redaction,
};

/// Collects the requests that a handler adds to its controller's queue, and reads the controller's
/// caches for it.
///
/// ```
/// # use k8s_openapi::api::core::v1::{ConfigMap, Pod};
/// # use kube::ResourceExt;
/// use pilotlight::{controller::*, informer::ObjectKey};
///
/// // A Pod is a change of the ConfigMap of its name.
/// let handler = Handler::typed::<Pod>(|event, queue: &mut Enqueue<'_>| {
///     let pod = event.object();
///     queue.add(ObjectKey::namespaced(pod.namespace().unwrap_or_default(), pod.name_any()));
/// });
/// let builder = Controller::builder("maps").for_::<ConfigMap>().watches::<Pod>(handler);
/// # drop(builder);
/// ```
#[derive(Debug)]
pub struct Enqueue<'a> {
    requests: &'a mut Vec<MappedRequest>,
    /// Inputs whose caches are read; `None` while no epoch runs.
    inputs: Option<&'a InputStatuses>,
    /// Cluster whose caches are read, if it was chosen.
    cluster: Option<TypeRegistry>,
    /// Object that could not be mapped, with the reason.
    failed: Option<(ObjectKey, String)>,
}

/// Request of a handler, with the add that the handler chose, if it did.
pub(super) type MappedRequest = (Request, Option<Add>);

impl<'a> Enqueue<'a> {
    pub(super) fn new(
        requests: &'a mut Vec<MappedRequest>,
        inputs: Option<&'a InputStatuses>,
    ) -> Self {
        Self { requests, inputs, cluster: None, failed: None }
    }

    /// Returns a view that reads the caches of another cluster, those of the inputs of
    /// [`Builder::in_cluster`](super::Builder::in_cluster), and adds to the same queue.
    ///
    /// ```
    /// # use pilotlight::{controller::{Cluster, Enqueue, Handler}, kind::TypeRef};
    /// # fn example(other: Cluster, widgets: TypeRef) -> Handler {
    /// Handler::delta(move |change, queue: &mut Enqueue<'_>| {
    ///     let there = queue.of_cluster(&other).store(&widgets);
    ///     if there.is_ok_and(|there| there.get(&change.key).is_some()) {
    ///         queue.add(change.key.clone());
    ///     }
    /// })
    /// # }
    /// ```
    pub fn of_cluster(&mut self, cluster: &Cluster) -> Enqueue<'_> {
        let (requests, inputs) = (&mut *self.requests, self.inputs);
        Enqueue { requests, inputs, cluster: Some(cluster.types.clone()), failed: None }
    }

    /// Adds a request; a request added twice is queued once.
    pub fn add(&mut self, request: impl Into<Request>) {
        self.requests.push((request.into(), None));
    }

    /// Adds a request with a priority or a delay of its own, in place of those of the change: low
    /// priority for objects of the initial list and for resyncs.
    pub fn add_with(&mut self, request: impl Into<Request>, add: Add) {
        self.requests.push((request.into(), Some(add)));
    }

    /// Returns the cache of an input, like [`Context::store`](super::Context::store). An index of
    /// it finds the objects that a change concerns, such as those that name a ConfigMap.
    ///
    /// Another input may be behind. It adds its own requests when it has caught up.
    ///
    /// # Errors
    ///
    /// As for [`Context::store`](super::Context::store).
    pub fn store(&self, type_ref: &TypeRef) -> Result<Store, ListerError> {
        let inputs = self.inputs.ok_or_else(|| ListerError::NotAnInput(type_ref.clone()))?;
        let attached = inputs.attached_as(self.cluster.as_ref(), type_ref)?;
        Ok(attached.joined())
    }

    /// Returns the cache of an input that was added by this name, like
    /// [`Context::store_of`](super::Context::store_of).
    ///
    /// # Errors
    ///
    /// [`ListerError::OfName`] if no input has this name, or it has no complete list.
    pub fn store_of(&self, input: &str) -> Result<Store, ListerError> {
        match self.inputs.and_then(|inputs| inputs.named(input)) {
            Some(attached) => Ok(attached.joined()),
            None => Err(ListerError::OfName {
                input: input.to_owned(),
                why: "no input of this name has a complete list".to_owned(),
            }),
        }
    }

    /// Returns a typed lister of an input's cache, like [`Context::lister`](super::Context::lister).
    ///
    /// # Errors
    ///
    /// As for [`Context::lister`](super::Context::lister).
    pub fn lister<K: CachedResource>(&self) -> Result<Lister<K>, ListerError> {
        let type_ref = TypeRef::of::<K>();
        match self.inputs {
            Some(inputs) => inputs.attached_of::<K>(self.cluster.as_ref())?.lister(type_ref),
            None => Err(ListerError::NotAnInput(type_ref)),
        }
    }

    /// Returns the object that a handler could not map, with the reason.
    pub(super) fn failed(self) -> Option<(ObjectKey, String)> {
        self.failed
    }
}

/// Function that maps an object to requests.
pub type MapFn = Arc<dyn Fn(&Object) -> Vec<Request> + Send + Sync>;

/// Function that maps a change to requests.
pub type DeltaFn = Arc<dyn Fn(&Delta, &mut Enqueue<'_>) + Send + Sync>;

/// Function that maps the object of a generic event to requests.
pub type GenericFn = Arc<dyn Fn(&Object, &mut Enqueue<'_>) + Send + Sync>;

/// Function that adds requests when an input has synced.
#[derive(Clone)]
pub(super) struct OnSynced(pub(super) GuardedDrop<Arc<SyncedFn>>);

type SyncedFn = dyn Fn(&mut Enqueue<'_>) + Send + Sync;

impl std::fmt::Debug for OnSynced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnSynced")
    }
}

/// Event handler: maps a change, with the object before and after it, to requests.
///
/// Runs in the source's task, so that it must not block. After a panic the change is dropped, and
/// the panic is reported.
///
/// A handler that finds the widgets which name a ConfigMap, by an index of their cache:
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::{Builder, Controller, Event, Handler}, informer::{Index, ObjectKey}, kind::TypeRef};
/// let widgets = TypeRef::kind("example.com", "v1", "Widget");
/// let cached = widgets.clone();
/// let named_by = Handler::typed(move |event: Event<ConfigMap>, queue| {
///     let Ok(widgets) = queue.store(&cached) else { return };
///     let name = event.object().metadata.name.clone().unwrap_or_default();
///     let naming = widgets.by_index("config", &name).expect("the input has this index");
///     for widget in naming {
///         queue.add(widget.key().clone());
///     }
/// });
/// let builder = Controller::builder("widgets")
///     .for_type(widgets)
///     .index(Index::new("config", |widget| {
///         let config = widget.header().annotations.get("example.com/config");
///         config.map(ToString::to_string).into_iter().collect()
///     }))
///     .watches::<ConfigMap>(named_by);
/// # drop(builder);
/// ```
#[derive(Clone)]
pub enum Handler {
    /// Request for the object of the first primary type that has the name of this object.
    Object,
    /// Requests for the object's owners of one kind, in any version. Their type is the primary type
    /// of that kind, or the first one if the kind is not a primary type.
    Owner {
        /// Kind of the owner.
        owner: GroupKind,
        /// True to include only the owner that is the object's controller.
        only_controller: bool,
    },
    /// Function of an object, called for the old one and the new one.
    Map(MapFn),
    /// Function of the whole change.
    Delta(DeltaFn),
    /// Function of the whole change that decodes the objects: [`Handler::typed`].
    Decoded(DeltaFn),
    /// Handler with a function for generic events: [`Handler::generic`].
    Generic(Arc<Handler>, GenericFn),
}

impl Handler {
    /// Returns a handler that calls a function for the old object and the new one.
    pub fn map(map: impl Fn(&Object) -> Vec<Request> + Send + Sync + 'static) -> Self {
        Self::Map(Arc::new(map))
    }

    /// Returns a handler that calls a function for the whole change. An object that was created again
    /// is a change that deletes the old one, and a change that creates the new one.
    pub fn delta(map: impl Fn(&Delta, &mut Enqueue<'_>) + Send + Sync + 'static) -> Self {
        Self::Delta(Arc::new(map))
    }

    /// Returns a handler that calls a function for each event of an object: create, update or
    /// delete.
    pub fn events(
        handle: impl Fn(Event<&Object>, &mut Enqueue<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self::delta(move |delta, queue| {
            Event::of(delta).into_iter().for_each(|event| handle(event, queue));
        })
    }

    /// Returns a handler that calls a function for each event of an object, decoded to its Rust
    /// type. An object that cannot be decoded is reported, and is handled as deleted if it could be
    /// decoded before. Once it can be decoded, it is handled as created.
    pub fn typed<K: DeserializeOwned>(
        handle: impl Fn(Event<K>, &mut Enqueue<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self::Decoded(Arc::new(move |delta, queue| {
            let Some(event) = Event::of(delta) else { return };
            let error = match event.clone().decode() {
                Ok(event) => return handle(event, queue),
                Err(error) => error,
            };
            queue.failed = Some((delta.key.clone(), redaction::message(&error)));
            if let Event::Update { old, .. } = event
                && let Ok(event) = (Event::Delete { old }).decode()
            {
                handle(event, queue);
            }
        }))
    }

    /// Returns this handler with a function for generic events: objects that a source delivers
    /// without a change of them ([`EventSource`](super::EventSource),
    /// [`SourceContext::deliver_generic`](super::SourceContext::deliver_generic)).
    ///
    /// Without it, `Object`, `Owner` and `Map` map the object of a generic event like a created one,
    /// and a function of changes is not called. An `EventSource` is not built with such a function
    /// alone.
    ///
    /// ```
    /// use pilotlight::controller::{Enqueue, Event, Handler, Request};
    ///
    /// let handler = Handler::events(|event: Event<_>, queue: &mut Enqueue<'_>| {
    ///     queue.add(event.object().key().clone());
    /// })
    /// .generic(|object, queue| queue.add(Request::cluster(object.key().name.clone())));
    /// # drop(handler);
    /// ```
    #[must_use]
    pub fn generic(
        self,
        handle: impl Fn(&Object, &mut Enqueue<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self::Generic(Arc::new(self), Arc::new(handle))
    }

    /// Like [`Handler::generic`], with the object decoded to its Rust type. An object that cannot be
    /// decoded is reported, and is not handled.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilotlight::controller::{Enqueue, Handler, Request};
    ///
    /// let by_data = |map: ConfigMap, queue: &mut Enqueue<'_>| {
    ///     let target = map.data.and_then(|mut data| data.remove("target"));
    ///     target.into_iter().for_each(|name| queue.add(Request::cluster(name)));
    /// };
    /// let handler = Handler::Object.generic_typed(by_data);
    /// # drop(handler);
    /// ```
    #[must_use]
    pub fn generic_typed<K: DeserializeOwned>(
        self,
        handle: impl Fn(K, &mut Enqueue<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.generic(move |object, queue| match object.decode() {
            Ok(decoded) => handle(decoded, queue),
            Err(error) => queue.failed = Some((object.key().clone(), redaction::message(&error))),
        })
    }

    /// Returns whether the requests of changes name objects, and are no choice of a function.
    pub(super) fn names_objects(&self) -> bool {
        match self {
            Self::Object | Self::Owner { .. } => true,
            Self::Map(_) | Self::Delta(_) | Self::Decoded(_) => false,
            Self::Generic(handler, _) => handler.names_objects(),
        }
    }

    /// Returns whether the handler maps generic events.
    pub(super) fn takes_generic(&self) -> bool {
        match self {
            Self::Object | Self::Owner { .. } | Self::Map(_) | Self::Generic(..) => true,
            Self::Delta(_) | Self::Decoded(_) => false,
        }
    }

    /// Appends the requests of a generic event, given as the creation of its object.
    pub(super) fn generic_requests(
        &self,
        created: &Delta,
        owner_type: &dyn Fn(&GroupKind) -> OwnerType,
        queue: &mut Enqueue<'_>,
    ) {
        match self {
            Self::Object | Self::Owner { .. } | Self::Map(_) => {
                self.requests(created, owner_type, queue);
            }
            Self::Delta(_) | Self::Decoded(_) => {}
            Self::Generic(_, handle) => {
                created.new.iter().for_each(|object| handle(object, queue));
            }
        }
    }

    /// Appends the requests of a change, perhaps some of them twice: the queue merges them.
    ///
    /// The old object is mapped too, so that an owner that lost the object is reconciled.
    pub(super) fn requests(
        &self,
        delta: &Delta,
        owner_type: &dyn Fn(&GroupKind) -> OwnerType,
        queue: &mut Enqueue<'_>,
    ) {
        let both = || delta.old.iter().chain(&delta.new);
        let requests = &mut *queue.requests;
        match self {
            Self::Object => requests.push((delta.key.clone().into(), None)),
            Self::Owner { owner, only_controller } => {
                for object in both() {
                    let header = object.header();
                    let owners = header.owners.iter().filter(|reference| {
                        *reference.kind == *owner && (reference.controller || !only_controller)
                    });
                    for reference in owners {
                        let OwnerType { primary, scope } = owner_type(owner);
                        // A reference names no namespace: a namespaced owner is in the object's.
                        let namespace = match scope {
                            Some(Scope::Cluster) => None,
                            Some(Scope::Namespaced) | None => header.key.namespace.clone(),
                        };
                        let key = ObjectKey { namespace, name: Arc::clone(&reference.name) };
                        let request = (Request::new(primary, key), None);
                        if requests.last() != Some(&request) {
                            requests.push(request);
                        }
                    }
                }
            }
            Self::Map(map) => {
                for object in both() {
                    requests.extend(map(object).into_iter().map(|request| (request, None)));
                }
            }
            Self::Delta(map) | Self::Decoded(map) => map(delta, queue),
            Self::Generic(handler, _) => handler.requests(delta, owner_type, queue),
        }
    }
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Object => "Object",
            Self::Owner { .. } => "Owner",
            Self::Map(_) => "Map",
            Self::Delta(_) => "Delta",
            Self::Decoded(_) => "Decoded",
            Self::Generic(..) => "Generic",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixture::{delta, widget};

    fn owner(kind: &str, name: &str, controller: bool) -> Value {
        json!({
            "apiVersion": "example.com/v7", "kind": kind, "name": name, "uid": name,
            "controller": controller,
        })
    }

    fn owned(owners: &[Value]) -> Object {
        widget(json!({"ownerReferences": owners}))
    }

    fn requests(handler: &Handler, delta: &Delta, scope: Option<Scope>) -> Vec<String> {
        let mut requests = Vec::new();
        let owner_type = |_: &GroupKind| OwnerType { primary: 1, scope };
        handler.requests(delta, &owner_type, &mut Enqueue::new(&mut requests, None));
        requests.iter().map(|(request, _)| request.to_string()).collect()
    }

    fn owner_of(only_controller: bool) -> Handler {
        let owner = GroupKind { group: "example.com".into(), kind: "Set".into() };
        Handler::Owner { owner, only_controller }
    }

    #[test]
    fn object_concerns_itself_also_when_it_is_gone() {
        let gone = delta(Some(widget(json!({}))), None);

        assert_eq!(requests(&Handler::Object, &gone, None), ["ns/w"]);
    }

    #[test]
    fn owner_is_found_by_group_and_kind_in_any_version() {
        let owners = [owner("Set", "a", true), owner("Other", "b", false)];
        let created = delta(None, Some(owned(&owners)));

        assert_eq!(requests(&owner_of(true), &created, Some(Scope::Namespaced)), ["ns/a"]);
        assert_eq!(requests(&owner_of(true), &created, Some(Scope::Cluster)), ["a"]);
        assert_eq!(requests(&owner_of(true), &created, None), ["ns/a"]);
    }

    #[test]
    fn owners_that_are_no_controller_are_mapped_on_request() {
        let owners = [owner("Set", "a", false), owner("Set", "b", true)];
        let created = delta(None, Some(owned(&owners)));

        assert_eq!(requests(&owner_of(true), &created, None), ["ns/b"]);
        assert_eq!(requests(&owner_of(false), &created, None), ["ns/a", "ns/b"]);
    }

    #[test]
    fn owner_that_is_named_twice_is_requested_once_and_unparsable_owners_are_passed_over() {
        let unparsable = |api_version: &str| {
            let mut owner = owner("Set", "x", true);
            owner["apiVersion"] = api_version.into();
            owner
        };
        let mut nameless = owner("Set", "y", true);
        nameless.as_object_mut().unwrap().remove("apiVersion");
        let [three, rest] = ["example.com/v7/x", "v7/example.com"].map(unparsable);
        let [empty, slash] = ["", "/"].map(unparsable);
        let one = || owner("Set", "a", true);
        let owners = [three, rest, one(), one(), empty, slash, nameless, owner("Set", "b", false)];
        let created = delta(None, Some(owned(&owners)));

        assert_eq!(requests(&owner_of(true), &created, None), ["ns/a"]);
        assert_eq!(requests(&owner_of(false), &created, None), ["ns/a", "ns/b"]);
    }

    #[test]
    fn old_owner_and_new_owner_get_a_request_after_a_move() {
        let one = owned(&[owner("Set", "a", true)]);
        let other = owned(&[owner("Set", "b", true)]);

        let moved = delta(Some(one.clone()), Some(other.clone()));
        assert_eq!(requests(&owner_of(true), &moved, None), ["ns/a", "ns/b"]);
        let kept = delta(Some(one.clone()), Some(one.clone()));
        assert_eq!(requests(&owner_of(true), &kept, None), ["ns/a"]);
        let orphaned = delta(Some(one), Some(owned(&[])));
        assert_eq!(requests(&owner_of(true), &orphaned, None), ["ns/a"]);
    }

    #[test]
    fn map_is_called_for_the_old_and_the_new_object() {
        let by_label = Handler::map(|object| {
            let name = object.header().labels.get("for").map(Arc::from);
            name.map(Request::cluster).into_iter().collect()
        });
        let labelled = |value: &str| widget(json!({"labels": {"for": value}}));

        let moved = delta(Some(labelled("a")), Some(labelled("b")));

        assert_eq!(requests(&by_label, &moved, None), ["a", "b"]);
    }

    #[test]
    fn delta_handler_sees_the_whole_change() {
        let handler = Handler::delta(|delta, queue| {
            if delta.new.is_none() {
                queue.add(delta.key.clone());
            }
        });
        let object = || Some(widget(json!({})));

        assert!(requests(&handler, &delta(None, object()), None).is_empty());
        assert_eq!(requests(&handler, &delta(object(), None), None), ["ns/w"]);
    }
}
