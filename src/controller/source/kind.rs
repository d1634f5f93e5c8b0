//! Built-in source: changes of the objects of one type, read from its shared informer.

use std::{fmt::Display, pin::pin, sync::Arc};

use futures::FutureExt;
use tokio::{
    select,
    sync::{oneshot, watch},
    task::consume_budget,
};
use tracing::error;

use crate::{
    controller::{
        ConditionalSource, Enqueue, Handler, Predicate, Request, SourceContext, SourceEnd,
        SourceStart,
        handler::OnSynced,
        queue::{Add, LOW_PRIORITY},
        run::input_status::{Attached, InputMode, InputStatus},
    },
    discovery::{TypeChange, TypeRegistry},
    guard::{self, Held},
    informer::{
        Delta, Ended, Index, IndexPanic, InformerKey, InformerSet, Linger, Object, Progress,
        Projection, Store, Subscription,
    },
    kind::{GroupKind, Scope, ServedType, TypeIdentity, TypeName, TypeRef},
    manager::{Readiness, WatchState, type_served},
};

/// Description of a source: the objects watched, and the mapping of their changes to requests.
pub(in crate::controller) struct KindSource {
    pub(in crate::controller) filter: Filter,
    pub(in crate::controller) predicates: Vec<Predicate>,
    pub(in crate::controller) mapping: Mapping,
    pub(in crate::controller) indexes: Vec<Index>,
    /// Last panic of an index function, with index, object and message.
    pub(in crate::controller) panics: watch::Sender<Option<IndexPanic>>,
    pub(in crate::controller) synced: Option<OnSynced>,
    pub(in crate::controller) mode: InputMode,
    pub(in crate::controller) types: TypeRegistry,
    pub(in crate::controller) informers: InformerSet,
}

/// Selection of objects, and the parts of them to cache.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Filter {
    pub(in crate::controller) type_ref: TypeRef,
    pub(in crate::controller) namespace: Option<Arc<str>>,
    pub(in crate::controller) labels: Option<Arc<str>>,
    pub(in crate::controller) fields: Option<Arc<str>>,
    pub(in crate::controller) projection: Projection,
    pub(in crate::controller) managed_fields: bool,
}

/// Mapping of a change to requests.
pub(in crate::controller) enum Mapping {
    /// Handler of the user.
    Handler(Held<Handler>),
    /// Request for the owner, which is of the primary type. The kind of that type is known only
    /// while it is served.
    OwnerOf { primary: TypeRef, only_controller: bool },
}

/// Reason to leave an informer.
enum Leave {
    /// The epoch stops.
    Stopped,
    /// The type is gone, and its objects with it.
    TypeGone,
    /// The type still exists: it is served again, or at another version.
    TypeServed,
}

/// Delivery of changes during one start of a source.
struct Pump<'a> {
    source: &'a KindSource,
    context: SourceContext,
    // Kept for its capacity.
    requests: Vec<Request>,
}

impl KindSource {
    pub(in crate::controller) fn type_ref(&self) -> &TypeRef {
        &self.filter.type_ref
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
            ..InformerKey::new(served.identity.clone())
        }
    }

    /// Subscribes to the informer, and adds the indexes to its store.
    pub(in crate::controller) fn subscribe(&self, served: &ServedType) -> Subscription {
        let subscription = self.informers.subscribe(served, self.key(served));
        self.panics.send_replace(None);
        for index in &self.indexes {
            subscription.store().add_index(index.reporting(self.panics.clone()));
        }
        subscription
    }

    async fn run(&self, context: SourceContext, synced: oneshot::Sender<()>) -> SourceEnd {
        let Some(served) = self.types.served(self.type_ref()) else {
            // The type was lost after the source became ready.
            return SourceEnd::TypeGone;
        };
        let prepared = context.statuses.change(context.input, |input| input.prepared.take());
        let mut subscription = prepared
            .filter(|prepared| *prepared.key() == self.key(&served))
            .unwrap_or_else(|| self.subscribe(&served));
        let identity = served.identity.clone();
        let (store, key) = (subscription.store(), subscription.key().clone());
        let status = Some(self.types.subscribe(self.type_ref()));
        let attached = Attached { served, store, key, status };
        let mut pump = Pump { source: self, context, requests: Vec::new() };
        let ended = pump.run(&mut subscription, attached, synced).await;
        let context = pump.context.clone();
        if let Some(ended @ (Ended::Panicked(_) | Ended::Shutdown)) = ended {
            // The objects may still exist: reconciles continue over the cache, until the run ends
            // or another start of this source has synced.
            drop(Self::hold(&context, subscription));
            return SourceEnd::Failed(format!("its informer ended: {ended}"));
        }
        match self.leave(&context, &identity).await {
            Leave::Stopped => {
                // Reconciles that still run read from the cache.
                context.released().await;
                drop(context.statuses.change(context.input, InputStatus::detach));
            }
            Leave::TypeGone => pump.delete_all(),
            Leave::TypeServed => {
                // Reconciles continue over this cache until its replacement has synced.
                drop(Self::hold(&context, subscription));
                return SourceEnd::TypeGone;
            }
        }
        let gone = self.types.get(self.type_ref()).change_since(&identity).is_loss();
        subscription.release(if gone { Linger::None } else { Linger::Default }).await;
        if gone { SourceEnd::TypeGone } else { SourceEnd::Stopped }
    }

    /// Holds a subscription so that reconciles can read its cache; returns it if another one is
    /// held already.
    fn hold(context: &SourceContext, subscription: Subscription) -> Option<Subscription> {
        context.statuses.change(context.input, |input| match &input.held {
            None => input.held.replace(subscription),
            Some(_) => Some(subscription),
        })
    }

    /// Waits until the reason to leave the informer is known, which decides about its objects.
    ///
    /// An informer ends when its type is no longer served. The objects may still exist as long as
    /// the type itself does.
    async fn leave(&self, context: &SourceContext, identity: &TypeIdentity) -> Leave {
        let mut status = self.types.subscribe(self.type_ref());
        loop {
            if context.feed.is_cancelled() {
                return Leave::Stopped;
            }
            let change = status.borrow_and_update().change_since(identity);
            match (self.mode, change) {
                (InputMode::Optional, _)
                | (InputMode::Plain, TypeChange::Absent | TypeChange::Replaced) => {
                    return Leave::TypeGone;
                }
                (InputMode::Plain, TypeChange::Unchanged | TypeChange::OtherVersion)
                | (InputMode::Required, TypeChange::Unchanged) => return Leave::TypeServed,
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
                () = context.feed.cancelled() => return Leave::Stopped,
                Ok(()) = status.changed() => {}
            }
        }
    }

    fn requests(&self, delta: &Delta, requests: &mut Vec<Request>) {
        match &self.mapping {
            Mapping::Handler(handler) => {
                handler.requests(delta, |owner| self.scope_of(owner), requests);
            }
            Mapping::OwnerOf { primary, only_controller } => {
                // While the primary type is not served there is no owner to reconcile. When it is
                // served again, all owners are reconciled.
                if let Some(primary) = self.types.served(primary) {
                    let handler = Handler::Owner {
                        owner: primary.group_kind(),
                        only_controller: *only_controller,
                    };
                    handler.requests(delta, |_| Some(primary.identity.scope), requests);
                }
            }
        }
    }

    fn scope_of(&self, owner: &GroupKind) -> Option<Scope> {
        let type_ref = TypeRef {
            group: owner.group.clone(),
            version: None,
            name: TypeName::Kind(owner.kind.clone()),
        };
        self.types.served(&type_ref).map(|served| served.identity.scope)
    }
}

impl ConditionalSource for Arc<KindSource> {
    fn ready(&self) -> Readiness {
        type_served(&self.types, self.type_ref())
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let source = Arc::clone(self);
        let (synced, is_synced) = oneshot::channel();
        SourceStart {
            synced: async move { Ok(is_synced.await?) }.boxed(),
            done: async move { source.run(context, synced).await }.boxed(),
        }
    }

    fn name(&self) -> String {
        self.type_ref().to_string()
    }
}

impl Pump<'_> {
    /// Delivers changes until the source is to stop, or until the informer has ended.
    async fn run(
        &mut self,
        subscription: &mut Subscription,
        attached: Attached,
        synced: oneshot::Sender<()>,
    ) -> Option<Ended> {
        let store = attached.store.clone();
        let mut progress = subscription.progress();
        let (mut complete, mut drained) =
            (pin!(subscription.complete()), pin!(subscription.drained()));
        let mut synced = Some(synced);
        let mut panics = self.source.panics.subscribe();
        // Existing objects are indexed already, so that an index function may have panicked.
        panics.mark_changed();
        // Attached once the first list is complete: a reconcile must not mistake a part of the
        // objects for all of them. No change is delivered before that.
        let mut attached = Some(attached);
        if let Progress::Ended(ended) = self.report_current(&mut progress, false) {
            return Some(ended);
        }
        let stop = self.context.stop.clone();
        loop {
            select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut complete, if attached.is_some() => {
                    self.replace(attached.take(), &store).await;
                }
                () = &mut drained, if attached.is_none() && synced.is_some() => {
                    self.enqueue_synced();
                    self.report(&progress.borrow_and_update(), true);
                    // The receiver is dropped if the run has failed meanwhile.
                    synced.take().and_then(|synced| synced.send(()).ok());
                }
                Ok(()) = panics.changed() => {
                    if let Some(panic) = panics.borrow_and_update().clone() {
                        let IndexPanic { index, key, message } = panic;
                        self.panicked(&format!("index {index}"), key, &message);
                    }
                }
                Ok(()) = progress.changed() => {
                    let now = self.report_current(&mut progress, synced.is_none());
                    // Before the first list is complete the branch below, which returns the end, is
                    // disabled.
                    if let (Progress::Ended(ended), true) = (now, attached.is_some()) {
                        return Some(ended);
                    }
                }
                delta = subscription.next(), if attached.is_none() => match delta {
                    Ok(delta) => {
                        self.deliver(&delta);
                        // Yields, so that a long initial list does not block other tasks.
                        consume_budget().await;
                    }
                    Err(ended) => return Some(ended),
                },
            }
        }
    }

    /// Reports the current progress of the watch, and returns it.
    fn report_current(&self, progress: &mut watch::Receiver<Progress>, drained: bool) -> Progress {
        let now = progress.borrow_and_update().clone();
        self.report(&now, drained);
        now
    }

    /// Reports the progress of the watch. Reports `Synced` only when all requests are in the queue.
    fn report(&self, progress: &Progress, drained: bool) {
        self.context.statuses.change(self.context.input, |input| match progress {
            Progress::Syncing(error) => input.set(WatchState::Syncing, error.clone()),
            Progress::Synced if drained => input.set(WatchState::Synced, None),
            Progress::Synced => input.set(WatchState::Syncing, None),
            Progress::Stale(error) => {
                if drained {
                    input.set(WatchState::Synced, None);
                }
                input.set(WatchState::Stale, Some(error.clone()));
            }
            Progress::Forbidden(error) => input.set(WatchState::Forbidden, Some(error.clone())),
            Progress::ConversionFailed(error) => {
                if drained {
                    input.set(WatchState::Synced, None);
                }
                input.set(WatchState::ConversionFailed, Some(error.clone()));
            }
            Progress::Ended(_) => {}
        });
    }

    /// Attaches the cache in place of the held one, and delivers deletions for the objects that
    /// only the held one has.
    async fn replace(&mut self, attached: Option<Attached>, store: &Store) {
        let held = self.context.statuses.change(self.context.input, |input| {
            input.attached = attached;
            input.held.take()
        });
        if let Some(held) = held {
            for old in held.store().list() {
                if store.get(old.key()).is_none() {
                    self.deliver(&gone(&old));
                }
            }
            held.release(Linger::None).await;
        }
    }

    /// Delivers deletions for all objects of a type that is gone while the epoch continues.
    fn delete_all(&mut self) {
        let (lost, held) = self.context.statuses.change(self.context.input, InputStatus::detach);
        // Listed before the last subscriber leaves, which empties the store.
        let objects: Vec<_> = lost.into_iter().flat_map(|attached| attached.store.list()).collect();
        drop(held);
        // Delivered after the detach, so that the reconciles find the type missing.
        for object in objects {
            self.deliver(&gone(&object));
        }
    }

    /// Enqueues the requests of the `on_synced` handler.
    fn enqueue_synced(&mut self) {
        if let Some(OnSynced(handler)) = &self.source.synced {
            self.enqueue(LOW_PRIORITY, "its synced input", |_, requests| {
                handler(&mut Enqueue::new(requests));
            });
        }
    }

    fn deliver(&mut self, delta: &Delta) {
        let key = &delta.key;
        if self.context.feed.is_cancelled() {
            return;
        }
        let predicates = &self.source.predicates;
        match guard::run(|| predicates.iter().all(|predicate| predicate.passes(delta))) {
            Ok(true) => {
                let map = |source: &KindSource, requests: &mut _| source.requests(delta, requests);
                self.enqueue(priority(delta), key, map);
            }
            Ok(false) => {}
            Err(panic) => self.panicked("predicate", key, &panic),
        }
    }

    fn enqueue(
        &mut self,
        priority: i32,
        about: impl Display,
        map: impl FnOnce(&KindSource, &mut Vec<Request>),
    ) {
        let Self { source, context, requests } = self;
        if context.feed.is_cancelled() {
            return;
        }
        // A panic at one object must not stop the events of the others.
        let panicked = guard::run(|| map(source, requests)).err();
        let add = Add { priority, ..Add::default() };
        for request in requests.drain(..) {
            context.queue.add_with(request, add);
        }
        if let Some(panic) = panicked {
            self.panicked("event handler", about, &panic);
        }
    }

    /// Reports a panic in the user's code.
    fn panicked(&self, place: &str, about: impl Display, error: &str) {
        let Self { source, context, .. } = self;
        error!(input = %source.type_ref(), %about, error, "{place} panicked");
        context.series.panics.inc();
        let message = format!("{place} panicked at {about}: {error}");
        context.epoch.report(|report| report.last_error = Some(message));
    }
}

fn gone(object: &Object) -> Delta {
    Delta { key: object.key().clone(), old: Some(object.clone()), new: None, initial: false }
}

/// Returns the priority of a change: low for the initial list and for resyncs.
fn priority(delta: &Delta) -> i32 {
    let resync = match (&delta.old, &delta.new) {
        // An aggregated API may send no resourceVersion.
        (Some(old), Some(new)) => {
            let (old, new) = (&old.header().resource_version, &new.header().resource_version);
            old == new && !new.is_empty()
        }
        (None, _) | (_, None) => false,
    };
    if delta.initial || resync { LOW_PRIORITY } else { Add::default().priority }
}
