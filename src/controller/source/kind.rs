//! Built-in source: changes of the objects of one type, read from its shared informer.

mod replacement;
mod resync;
mod run;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::select_all};
use tokio::sync::{oneshot, watch};

use self::run::KindRun;
use super::owner_type::OwnerType;
use crate::{
    controller::{
        ConditionalSource, Enqueue, Handler, Predicate, Request, SourceContext, SourceStart,
        WatchErrorHandler,
        foreign_cluster::ForeignCluster,
        handler::OnSynced,
        inputs::{
            attached::Attached,
            status::{InputCoverage, InputMode},
        },
    },
    discovery::TypeRegistry,
    guard::GuardedDrop,
    informer::{
        Delta, Index, IndexPanic, InformerKey, InformerSet, Interest, Interests, Projection,
        Subscription, Transform,
    },
    kind::{GroupKind, Scope, ServedType, TypeName, TypeRef},
    manager::{Readiness, type_served},
};

/// Description of a source: the objects watched, and the mapping of their changes to requests.
pub(in crate::controller) struct KindSource {
    pub(in crate::controller) filter: SourceFilter,
    pub(in crate::controller) predicates: Vec<Predicate>,
    pub(in crate::controller) mapping: Mapping,
    pub(in crate::controller) delivery: DeliveredObjects,
    /// True to keep all objects whole, not only those that are delivered.
    pub(in crate::controller) whole: bool,
    pub(in crate::controller) indexes: Vec<Index>,
    /// Last panic of an index function, with index, object and message.
    pub(in crate::controller) panics: watch::Sender<Option<IndexPanic>>,
    pub(in crate::controller) synced: Option<OnSynced>,
    pub(in crate::controller) watch_error: Option<WatchErrorHandler>,
    /// Period in which all objects are delivered again.
    pub(in crate::controller) resync: Option<Duration>,
    pub(in crate::controller) mode: InputMode,
    /// Cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) foreign: Option<ForeignCluster>,
    pub(in crate::controller) types: TypeRegistry,
    pub(in crate::controller) informers: InformerSet,
}

/// Source of a type: its description, which each of its runs shares.
pub(in crate::controller) struct SharedKindSource(pub(in crate::controller) Arc<KindSource>);

/// Selection of objects, and the parts of them to cache.
#[derive(Clone, Debug)]
pub(in crate::controller) struct SourceFilter {
    pub(in crate::controller) type_ref: TypeRef,
    pub(in crate::controller) namespace: Option<Arc<str>>,
    pub(in crate::controller) labels: Option<Arc<str>>,
    pub(in crate::controller) fields: Option<Arc<str>>,
    pub(in crate::controller) projection: Projection,
    pub(in crate::controller) managed_fields: bool,
    pub(in crate::controller) transform: Option<Transform>,
}

/// Mapping of a change to requests.
pub(in crate::controller) enum Mapping {
    /// Handler of the user, for a controller with these primary types of its own cluster.
    Handler { handler: GuardedDrop<Handler>, primaries: Vec<TypeRef>, own: TypeRegistry },
    /// Request for the object itself, whose type is the primary type at this position.
    Primary(usize),
    /// Requests for the owners, which are of a primary type. The kind of a type is known only while
    /// it is served.
    OwnerOf { primaries: Vec<TypeRef>, only_controller: bool },
}

/// Objects whose changes are delivered.
#[derive(Clone, Debug)]
pub(in crate::controller) enum DeliveredObjects {
    Everything,
    /// Objects with an owner of a primary kind.
    OwnedBy(Vec<TypeRef>),
    /// Objects that the reconciler names while it runs, by [`MovingInterests`]. Those with an owner
    /// of a primary kind are kept whole.
    ///
    /// [`MovingInterests`]: crate::informer::MovingInterests
    Moving(Vec<TypeRef>),
    Of(Vec<Interest>),
}

impl KindSource {
    pub(in crate::controller) fn type_ref(&self) -> &TypeRef {
        &self.filter.type_ref
    }

    /// Returns the part of the objects that the cache holds whole.
    pub(in crate::controller) fn coverage(&self) -> InputCoverage {
        let SourceFilter { namespace, labels, fields, projection, .. } = &self.filter;
        let is_selected = namespace.is_some() || labels.is_some() || fields.is_some();
        let is_whole = self.whole || matches!(self.delivery, DeliveredObjects::Everything);
        InputCoverage {
            is_primary: matches!(self.mapping, Mapping::Primary(_)),
            is_partial: is_selected || !is_whole || *projection != Projection::Full,
        }
    }

    /// Returns the key of the informer that this source reads from.
    pub(in crate::controller) fn key(&self, served: &ServedType) -> InformerKey {
        let filter = &self.filter;
        let namespaced = served.identity.scope == Scope::Namespaced;
        InformerKey {
            namespace: filter.namespace.clone().filter(|_| namespaced),
            labels: filter.labels.clone(),
            fields: filter.fields.clone(),
            projection: filter.projection,
            managed_fields: filter.managed_fields,
            transform: filter.transform.clone(),
            ..InformerKey::new(served.identity.clone())
        }
    }

    /// Subscribes to the informer, and adds the indexes to its store.
    pub(in crate::controller) fn subscribe(&self, served: &ServedType) -> Subscription {
        let (key, interests) = (self.key(served), self.interests());
        let subscription = self.informers.subscribe_to(served, key, interests);
        self.panics.send_replace(None);
        for index in &self.indexes {
            subscription.store().add_index(index.reporting(self.panics.clone()));
        }
        subscription
    }

    /// Returns whether a subscription is the one that [`KindSource::subscribe`] would return.
    fn is_current(&self, subscription: &Subscription, served: &ServedType) -> bool {
        *subscription.key() == self.key(served) && *subscription.interests() == self.interests()
    }

    fn interests(&self) -> Interests {
        let everything = || vec![Interest::Everything];
        let (deliver, whole) = match &self.delivery {
            DeliveredObjects::Everything => (everything(), Vec::new()),
            DeliveredObjects::OwnedBy(primaries) => {
                (self.owned_by(primaries).unwrap_or_else(everything), Vec::new())
            }
            DeliveredObjects::Moving(primaries) => match self.owned_by(primaries) {
                Some(owned) => (Vec::new(), owned),
                None => (everything(), Vec::new()),
            },
            DeliveredObjects::Of(interests) => (interests.clone(), Vec::new()),
        };
        let whole = if self.whole { everything() } else { whole };
        Interests { deliver, whole }
    }

    /// Returns the interests in objects with an owner of these types; `None` unless all kinds are
    /// known.
    fn owned_by(&self, owners: &[TypeRef]) -> Option<Vec<Interest>> {
        owners.iter().map(|owner| self.kind_of(owner).map(Interest::OwnerKind)).collect()
    }

    /// Returns the kind of an owner's type; `None` if it is named by its plural name and not
    /// served.
    fn kind_of(&self, owner: &TypeRef) -> Option<GroupKind> {
        match (self.types.served(owner), &owner.name) {
            (Some(served), _) => Some(served.group_kind()),
            (None, TypeName::Kind(kind)) => {
                Some(GroupKind { group: owner.group.clone(), kind: kind.clone() })
            }
            (None, TypeName::Resource(_)) => None,
        }
    }

    /// Waits until these interests in owned objects are outdated: a type of owners is served with
    /// another kind, since its CRD was replaced; or the kinds of all owners have become known.
    async fn outdated(&self, begun: Interests) {
        let (owners, begun) = match &self.delivery {
            DeliveredObjects::OwnedBy(owners) => (owners.as_slice(), begun.deliver),
            DeliveredObjects::Moving(owners) if !begun.deliver.is_empty() => {
                (owners.as_slice(), begun.deliver)
            }
            DeliveredObjects::Moving(owners) if !self.whole => (owners.as_slice(), begun.whole),
            DeliveredObjects::Everything
            | DeliveredObjects::Moving(_)
            | DeliveredObjects::Of(_) => (&[][..], Vec::new()),
        };
        if owners.is_empty() {
            return std::future::pending().await;
        }
        let mut statuses: Vec<_> = owners.iter().map(|owner| self.types.subscribe(owner)).collect();
        let has = |interest: &Interest| begun.contains(interest);
        let is_new = |served: Arc<ServedType>| !has(&Interest::OwnerKind(served.group_kind()));
        let is_outdated = || match has(&Interest::Everything) {
            true => self.owned_by(owners).is_some(),
            false => owners.iter().filter_map(|owner| self.types.served(owner)).any(is_new),
        };
        while !is_outdated() {
            let changes = statuses.iter_mut().map(|status| status.changed().boxed());
            if select_all(changes).await.0.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns the cache of a subscription, as reconcilers read it.
    fn attached(&self, served: Arc<ServedType>, subscription: &Subscription) -> Attached {
        let is_moving = matches!(self.delivery, DeliveredObjects::Moving(_));
        Attached {
            served,
            store: subscription.store(),
            key: subscription.key().clone(),
            foreign: self.foreign.clone(),
            moving: is_moving.then(|| subscription.moving_interests()),
            status: Some(self.types.subscribe(self.type_ref())),
            others: Vec::new(),
        }
    }

    /// Delivers deletions for the objects of the held cache if its type was lost between two starts
    /// of this source.
    pub(in crate::controller) fn delete_held(&self, context: SourceContext) {
        KindRun::new(self, context).delete_held();
    }

    fn requests(&self, delta: &Delta, queue: &mut Enqueue<'_>) {
        match &self.mapping {
            Mapping::Handler { handler, primaries, own } => {
                let owner_type =
                    |owner: &GroupKind| OwnerType::of(&self.types, own, primaries, owner);
                handler.requests(delta, &owner_type, queue);
            }
            Mapping::Primary(primary) => {
                queue.add(Request::new(*primary, delta.key.clone()));
            }
            Mapping::OwnerOf { primaries, only_controller } => {
                for (primary, type_ref) in primaries.iter().enumerate() {
                    // While a primary type is not served there is no owner to reconcile. When it is
                    // served again, all owners are reconciled.
                    let Some(served) = self.types.served(type_ref) else { continue };
                    let handler = Handler::Owner {
                        owner: served.group_kind(),
                        only_controller: *only_controller,
                    };
                    let owner_type = OwnerType { primary, scope: Some(served.identity.scope) };
                    handler.requests(delta, &|_| owner_type, queue);
                }
            }
        }
    }
}

impl ConditionalSource for SharedKindSource {
    fn ready(&self) -> Readiness {
        type_served(&self.0.types, self.0.type_ref())
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let source = Arc::clone(&self.0);
        let (synced, is_synced) = oneshot::channel();
        SourceStart {
            synced: async move { Ok(is_synced.await?) }.boxed(),
            done: async move { KindRun::new(&source, context).run(synced).await }.boxed(),
        }
    }

    fn name(&self) -> String {
        self.0.type_ref().to_string()
    }
}
