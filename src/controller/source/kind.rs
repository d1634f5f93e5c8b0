//! Built-in source: changes of the objects of one type, read from its shared informer.

mod resync;
mod run;

use std::{mem, sync::Arc, time::Duration};

use futures::{FutureExt, future::select_all};
use tokio::{
    select,
    sync::{oneshot, watch},
};

use self::run::KindRun;
use super::owner_type::OwnerType;
use crate::{
    controller::{
        ConditionalSource, Enqueue, Handler, Predicate, Request, SourceContext, SourceEnd,
        SourceStart, WatchErrorHandler,
        foreign_cluster::ForeignCluster,
        handler::OnSynced,
        inputs::{
            attached::Attached,
            status::{InputCache, InputCoverage, InputMode, InputStatus},
        },
    },
    discovery::{TypeChange, TypeRegistry},
    guard::GuardedDrop,
    informer::{
        Delta, EndReason, Index, IndexPanic, InformerKey, InformerSet, Interest, Interests, Linger,
        Projection, Subscription, Transform,
    },
    kind::{GroupKind, Scope, ServedType, TypeIdentity, TypeName, TypeRef},
    manager::{Readiness, WatchState, type_served},
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

/// Reason to leave an informer.
enum DetachReason {
    /// The epoch stops.
    Stopped,
    /// The type is gone, and its objects with it.
    TypeGone,
    /// The type still exists: it is served again, or at another version.
    TypeServed,
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

    async fn run(&self, context: SourceContext, mut synced: oneshot::Sender<()>) -> SourceEnd {
        loop {
            if let Some(end) = self.run_with_interests(context.clone(), synced).await {
                return end;
            }
            // A later sync is not waited for.
            synced = oneshot::channel().0;
        }
    }

    /// Runs until the source ends; `None` when its interests are outdated. Its cache is held then.
    async fn run_with_interests(
        &self,
        context: SourceContext,
        synced: oneshot::Sender<()>,
    ) -> Option<SourceEnd> {
        let Some(served) = self.types.served(self.type_ref()) else {
            // The type was lost after the source became ready.
            return Some(SourceEnd::TypeGone);
        };
        if self.change_since_held(&context) == Some(TypeChange::Replaced) {
            KindRun::new(self, context.clone()).delete_all(None);
        }
        if context.statuses.is_covered(context.input, served.identity.scope == Scope::Cluster) {
            return Some(stand_by(&context, synced).await);
        }
        let prepared = context.statuses.change(context.input, |input| input.cache.take_prepared());
        let mut subscription = prepared
            .filter(|prepared| self.is_current(prepared, &served))
            .unwrap_or_else(|| self.subscribe(&served));
        let identity = served.identity.clone();
        let (store, key) = (subscription.store(), subscription.key().clone());
        let status = Some(self.types.subscribe(self.type_ref()));
        let moving = match &self.delivery {
            DeliveredObjects::Moving(_) => Some(subscription.moving_interests()),
            DeliveredObjects::Everything
            | DeliveredObjects::OwnedBy(_)
            | DeliveredObjects::Of(_) => None,
        };
        let foreign = self.foreign.clone();
        let others = Vec::new();
        let attached = Attached { served, store, key, foreign, status, moving, others };
        let mut run = KindRun::new(self, context);
        let ended = run.deliver_changes(&mut subscription, attached, synced).await;
        let context = run.context().clone();
        if ended.is_none() && !context.stop.is_cancelled() {
            run.deliver_pending(&subscription);
            // Reconciles continue over this cache until the one with the current interests has
            // synced.
            drop(Self::hold(&context, subscription));
            return None;
        }
        if let Some(ended @ (EndReason::Panicked(_) | EndReason::Shutdown)) = ended {
            run.deliver_pending(&subscription);
            // The objects may still exist: reconciles continue over the cache, until the run ends
            // or another start of this source has synced.
            drop(Self::hold(&context, subscription));
            return Some(SourceEnd::Failed(format!("its informer ended: {ended}")));
        }
        match self.leave(&context, &identity).await {
            DetachReason::Stopped => {
                // Reconciles that still run read from the cache.
                context.released().await;
                drop(context.statuses.change(context.input, InputStatus::detach));
            }
            DetachReason::TypeGone => run.delete_all(Some(&subscription)),
            DetachReason::TypeServed => {
                run.deliver_pending(&subscription);
                // Reconciles continue over this cache until its replacement has synced.
                drop(Self::hold(&context, subscription));
                return Some(SourceEnd::TypeGone);
            }
        }
        let gone = self.types.get(self.type_ref()).change_since(&identity).is_loss();
        subscription.release(if gone { Linger::None } else { Linger::Default }).await;
        Some(if gone { SourceEnd::TypeGone } else { SourceEnd::Stopped })
    }

    /// Holds a subscription so that reconciles can read its cache; returns it if it was never read,
    /// or if another one is held already.
    fn hold(context: &SourceContext, subscription: Subscription) -> Option<Subscription> {
        context.statuses.change(context.input, |input| input.cache.hold(subscription))
    }

    /// Returns the change of the type since the subscription that is held; `None` without one.
    fn change_since_held(&self, context: &SourceContext) -> Option<TypeChange> {
        let identity = context.statuses.change(context.input, |input| {
            input.cache.held().map(|held| held.key().identity.clone())
        })?;
        Some(self.types.get(self.type_ref()).change_since(&identity))
    }

    /// Delivers deletions for the objects of the held cache if its type was lost between two starts
    /// of this source.
    pub(in crate::controller) fn delete_held(&self, context: SourceContext) {
        let is_gone = match (self.mode, self.change_since_held(&context)) {
            // The manager is about to stop the epoch.
            (InputMode::Required, _) | (_, None) => false,
            (InputMode::Optional, Some(_)) => true,
            // The absent type may be another one of the condition.
            (InputMode::Plain, Some(change)) => {
                matches!(change, TypeChange::Absent | TypeChange::Replaced)
            }
        };
        if is_gone {
            KindRun::new(self, context).delete_all(None);
        }
    }

    /// Waits until the reason to leave the informer is known, which decides about its objects.
    ///
    /// An informer ends when its type is no longer served. The objects may still exist as long as
    /// the type itself does.
    async fn leave(&self, context: &SourceContext, identity: &TypeIdentity) -> DetachReason {
        let mut status = self.types.subscribe(self.type_ref());
        loop {
            if context.feed.is_cancelled() {
                return DetachReason::Stopped;
            }
            let change = status.borrow_and_update().change_since(identity);
            match (self.mode, change) {
                (InputMode::Optional, _)
                | (InputMode::Plain, TypeChange::Absent | TypeChange::Replaced) => {
                    return DetachReason::TypeGone;
                }
                (InputMode::Plain, TypeChange::Unchanged | TypeChange::OtherVersion)
                | (InputMode::Required, TypeChange::Unchanged) => return DetachReason::TypeServed,
                // The manager is about to stop the epoch.
                (
                    InputMode::Required,
                    TypeChange::Absent | TypeChange::Replaced | TypeChange::OtherVersion,
                ) => {}
                (
                    InputMode::Required | InputMode::Plain,
                    TypeChange::Unavailable | TypeChange::Unknown,
                ) => {}
            }
            select! {
                () = context.feed.cancelled() => return DetachReason::Stopped,
                Ok(()) = status.changed() => {}
            }
        }
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

/// Waits for the stop of a source whose objects another namespace of its input delivers.
async fn stand_by(context: &SourceContext, synced: oneshot::Sender<()>) -> SourceEnd {
    let before = context.statuses.change(context.input, |input| {
        input.set(WatchState::Synced, None);
        mem::replace(&mut input.cache, InputCache::Covered)
    });
    drop(before);
    // The receiver is dropped if the run has failed meanwhile.
    synced.send(()).ok();
    context.stopping().await;
    drop(context.statuses.change(context.input, InputStatus::detach));
    SourceEnd::Stopped
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
            done: async move { source.run(context, synced).await }.boxed(),
        }
    }

    fn name(&self) -> String {
        self.0.type_ref().to_string()
    }
}
