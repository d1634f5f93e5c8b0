//! Mapping of a source's changes to requests: by predicates and a handler, whose panics are
//! reported.

use std::{fmt::Display, sync::Arc};

use tracing::error;

use crate::{
    controller::{
        Cluster, Enqueue, Handler, Predicate, SourceContext,
        foreign_cluster::ForeignCluster,
        handler::MappedRequest,
        inputs::attached::Attached,
        queue::{Add, LOW_PRIORITY},
        source::owner_type::OwnerType,
    },
    discovery::TypeRegistry,
    guard::{self, GuardedDrop},
    informer::{Delta, Object, Subscription},
    kind::{GroupKind, ServedType, TypeRef},
};

/// Predicates and handler of a custom source.
pub(in crate::controller) struct SourceHandlers {
    /// Name of the source in messages.
    pub(in crate::controller) name: String,
    pub(in crate::controller) predicates: Vec<Predicate>,
    pub(in crate::controller) handler: GuardedDrop<Handler>,
    /// Types of the controller's cluster, for those of owners.
    pub(in crate::controller) types: Option<TypeRegistry>,
    /// Primary types of the controller, for the requests of owners.
    pub(in crate::controller) primaries: Vec<TypeRef>,
}

impl SourceHandlers {
    pub(in crate::controller) fn new(handler: Handler) -> Self {
        let handler = GuardedDrop::new(handler);
        let (name, predicates, primaries) = (String::new(), Vec::new(), Vec::new());
        Self { name, predicates, handler, types: None, primaries }
    }

    /// Returns the type of owners of a kind.
    fn owner_type(&self, owner: &GroupKind) -> OwnerType {
        let types = self.types.as_ref();
        types.map(|types| OwnerType::of(types, types, &self.primaries, owner)).unwrap_or_default()
    }
}

/// Changes and caches of a custom source.
impl SourceContext {
    /// Adds the requests of a change that passes the predicates of the input: those that the handler
    /// of [`Builder::watches_source`] returns, or one for the object itself. Ignored once the epoch
    /// stops. A source that has [`lost`](SourceContext::lost) its condition may still deliver the
    /// deletions of its objects.
    ///
    /// Objects of the first list and resyncs get low priority, as for any input. A panic of a
    /// predicate or the handler is reported, and costs this change alone.
    ///
    /// [`Builder::watches_source`]: super::super::Builder::watches_source
    pub fn deliver(&self, change: &Delta) {
        // A built-in source has handlers of its own.
        let Some(handlers) = self.handlers.as_deref().filter(|_| !self.feed.is_cancelled()) else {
            return;
        };
        let passes =
            |part: &Delta| handlers.predicates.iter().all(|predicate| predicate.passes(part));
        for part in change.parts() {
            self.map_change(&handlers.name, passes, &part, &mut Vec::new(), |queue| {
                handlers.handler.requests(&part, &|owner| handlers.owner_type(owner), queue);
            });
        }
    }

    /// Adds the requests of a generic event: of an object that has not changed in the cluster. The
    /// handler maps it by its function for such events ([`Handler::generic`]), and predicates decide
    /// by theirs ([`Predicate::generic`]), or as about a created object. Ignored once the epoch
    /// stops.
    ///
    /// [`EventSource`](super::super::EventSource) delivers the objects of a channel.
    pub fn deliver_generic(&self, object: &Object) {
        let Some(handlers) = self.handlers.as_deref().filter(|_| !self.feed.is_cancelled()) else {
            return;
        };
        let created = Delta::created(object.clone());
        let passes = |created: &Delta| {
            handlers.predicates.iter().all(|predicate| predicate.passes_generic(created))
        };
        self.map_change(&handlers.name, passes, &created, &mut Vec::new(), |queue| {
            handlers.handler.generic_requests(&created, &|owner| handlers.owner_type(owner), queue);
        });
    }

    /// Offers the cache of a subscription to the reconcilers and handlers of the controller, once
    /// its first list is complete. [`Context::store`] and [`Context::lister`] return it by its
    /// type, and reconciles wait until it holds their writes. Deliver no change before. For objects
    /// of another cluster call [`SourceContext::offer_of`].
    ///
    /// The cache is withdrawn when the condition of the source is lost, or the source is done. The
    /// source should end when [`SourceContext::released`] resolves, and not before. Never resolves
    /// if the informer ends before its first list.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use futures::FutureExt;
    /// # use pilotlight::{controller::*, informer::*, kind::TypeRef, manager::*};
    /// /// Source of all objects of a type.
    /// struct All {
    ///     cluster: Cluster,
    ///     type_ref: TypeRef,
    /// }
    ///
    /// impl ConditionalSource for All {
    ///     fn ready(&self) -> Readiness {
    ///         type_served(&self.cluster.types, &self.type_ref)
    ///     }
    ///
    ///     fn start_notify_done(&self, context: SourceContext) -> SourceStart {
    ///         let Some(served) = self.cluster.types.served(&self.type_ref) else {
    ///             let gone = async { SourceEnd::TypeGone };
    ///             return SourceStart { synced: async { Ok(()) }.boxed(), done: gone.boxed() };
    ///         };
    ///         let key = InformerKey::new(served.identity.clone());
    ///         let mut changes = self.cluster.informers.subscribe(&served, key);
    ///         let (drained, ended) = (changes.drained(), changes.ended());
    ///         let done = async move {
    ///             let run = async {
    ///                 context.offer(&served, &changes).await;
    ///                 while let Ok(change) = changes.next().await {
    ///                     context.deliver(&change);
    ///                 }
    ///             };
    ///             tokio::select! {
    ///                 () = context.released() => {}
    ///                 _ = ended => {}
    ///                 () = run => {}
    ///             }
    ///             SourceEnd::Stopped
    ///         };
    ///         SourceStart { synced: drained.map(Ok).boxed(), done: done.boxed() }
    ///     }
    /// }
    /// ```
    ///
    /// [`Context::store`]: super::super::Context::store
    /// [`Context::lister`]: super::super::Context::lister
    pub fn offer(
        &self,
        served: &Arc<ServedType>,
        subscription: &Subscription,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.offer_cache(served, subscription, None)
    }

    /// Offers the cache of a subscription to the objects of another cluster, as
    /// [`SourceContext::offer`]. [`Context::of_cluster`] reads it.
    ///
    /// [`Context::of_cluster`]: super::super::Context::of_cluster
    pub fn offer_of(
        &self,
        cluster: &Cluster,
        served: &Arc<ServedType>,
        subscription: &Subscription,
    ) -> impl Future<Output = ()> + Send + use<> {
        let is_foreign = self.statuses.foreign(Some(&cluster.types)).is_some();
        self.offer_cache(served, subscription, is_foreign.then(|| cluster.into()))
    }

    fn offer_cache(
        &self,
        served: &Arc<ServedType>,
        subscription: &Subscription,
        foreign: Option<ForeignCluster>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let attached = Attached {
            served: Arc::clone(served),
            store: subscription.store(),
            key: subscription.key().clone(),
            foreign,
            moving: None,
            status: None,
            others: Vec::new(),
        };
        let (complete, context) = (subscription.complete(), self.clone());
        async move {
            complete.await;
            if !context.release.is_cancelled() {
                context.statuses.attach(context.input, attached);
            }
        }
    }

    /// Enqueues the requests of a change of one object that passes all predicates, as `passes`
    /// returns.
    pub(super) fn map_change(
        &self,
        input: impl Display,
        passes: impl FnOnce(&Delta) -> bool,
        delta: &Delta,
        requests: &mut Vec<MappedRequest>,
        map: impl FnOnce(&mut Enqueue<'_>),
    ) {
        match guard::run(|| passes(delta)) {
            Ok(true) => self.map(input, priority(delta), &delta.key, requests, map),
            Ok(false) => {}
            Err(panic) => self.panicked(input, "predicate", &delta.key, &panic),
        }
    }

    /// Enqueues the requests that a handler returns. `requests` is empty before and after, and is
    /// kept for its capacity.
    pub(super) fn map(
        &self,
        input: impl Display,
        priority: i32,
        about: impl Display,
        requests: &mut Vec<MappedRequest>,
        map: impl FnOnce(&mut Enqueue<'_>),
    ) {
        // A panic at one object must not stop the events of the others.
        let mut collected = Enqueue::new(requests, Some(&self.statuses));
        let panicked = guard::run(|| map(&mut collected)).err();
        let failed = collected.failed();
        let usual = Add { priority, ..Add::default() };
        for (request, own) in requests.drain(..) {
            self.queue.add_with(request, own.unwrap_or(usual));
        }
        if let Some((key, error)) = failed {
            error!(%input, object = %key, error, "an object cannot be decoded");
            let message = format!("{input} {key} cannot be decoded by its event handler: {error}");
            self.epoch.report(|report| report.last_error = Some(message));
        }
        if let Some(panic) = panicked {
            self.panicked(input, "event handler", about, &panic);
        }
    }

    /// Reports a panic in the user's code.
    pub(super) fn panicked(
        &self,
        input: impl Display,
        place: &str,
        about: impl Display,
        error: &str,
    ) {
        error!(%input, place, %about, error, "code of the controller panicked");
        self.series.panics.inc();
        let message = format!("{place} panicked at {about}: {error}");
        self.epoch.report(|report| report.last_error = Some(message));
    }
}

/// Returns the priority of a change: low for the initial list and for resyncs.
fn priority(delta: &Delta) -> i32 {
    let resync = match (&delta.old, &delta.new) {
        (Some(old), Some(new)) if old.is(new) => true,
        // Another informer's resync. An aggregated API may send no resourceVersion.
        (Some(old), Some(new)) => {
            let (old, new) = (&old.header().resource_version, &new.header().resource_version);
            old == new && !new.is_empty()
        }
        (None, _) | (_, None) => false,
    };
    if delta.initial || resync { LOW_PRIORITY } else { Add::default().priority }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::fixture::{delta, widget};

    #[test]
    fn objects_of_the_initial_list_and_resyncs_have_low_priority_and_changes_do_not() {
        let version = |version: &str| Some(widget(json!({"resourceVersion": version})));
        let initial = Delta { initial: true, ..delta(None, version("1")) };

        assert_eq!(priority(&initial), LOW_PRIORITY);
        assert_eq!(priority(&delta(version("1"), version("1"))), LOW_PRIORITY, "a resync");
        assert_eq!(priority(&delta(None, version("1"))), 0);
        assert_eq!(priority(&delta(version("1"), version("2"))), 0);
        assert_eq!(priority(&delta(version("2"), None)), 0);
        assert_eq!(priority(&delta(version(""), version(""))), 0, "nothing is known of versions");
        let same = version("").unwrap();
        assert_eq!(priority(&delta(Some(same.clone()), Some(same))), LOW_PRIORITY, "a resync");
    }
}
