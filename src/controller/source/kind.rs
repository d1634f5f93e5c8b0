//! The built-in source: changes of the objects of one type, by way of its shared informer.

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
    discovery::{TypeRegistry, TypeState, TypeStatus},
    guard::{self, Held},
    informer::{
        Delta, Ended, Index, IndexPanic, InformerKey, InformerSet, Linger, Object, Progress,
        Projection, Store, Subscription,
    },
    kind::{GroupKind, Scope, ServedType, TypeIdentity, TypeName, TypeRef},
    manager::{Readiness, WatchState, type_served},
};

/// Describes which objects are listened to, and whom their changes concern.
pub(in crate::controller) struct KindSource {
    pub(in crate::controller) filter: Filter,
    pub(in crate::controller) predicates: Vec<Predicate>,
    pub(in crate::controller) concern: Concern,
    pub(in crate::controller) indexes: Vec<Index>,
    /// Last panic of an index function: which index, at which object, and the message.
    pub(in crate::controller) panics: watch::Sender<Option<IndexPanic>>,
    pub(in crate::controller) synced: Option<OnSynced>,
    pub(in crate::controller) mode: InputMode,
    pub(in crate::controller) types: TypeRegistry,
    pub(in crate::controller) informers: InformerSet,
}

/// Which objects, and what of them.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Filter {
    pub(in crate::controller) type_ref: TypeRef,
    pub(in crate::controller) namespace: Option<Arc<str>>,
    pub(in crate::controller) labels: Option<Arc<str>>,
    pub(in crate::controller) fields: Option<Arc<str>>,
    pub(in crate::controller) projection: Projection,
    pub(in crate::controller) managed_fields: bool,
}

/// Whom a change concerns.
pub(in crate::controller) enum Concern {
    /// As the user's handler says.
    Handler(Held<Handler>),
    /// The owner, of the type that the controller is for. What its kind is shows only when it is
    /// served.
    OwnerOf { primary: TypeRef, only_controller: bool },
}

/// Why a source leaves its informer.
enum Left {
    /// The epoch stops.
    Stopped,
    /// The type is gone, and its objects with it.
    Gone,
    /// The type is there all the same: it is served again, or at another version.
    Back,
}

/// What is known of a type.
#[derive(Clone, Copy)]
enum Standing {
    Here,
    /// Served at another version.
    Moved,
    /// Not served at the moment.
    Hidden,
    /// Proven not to exist, or another one of that name.
    Gone,
    Unknown,
}

/// One start of a source.
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

    /// The informer that this source reads from.
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

    /// Joins the informer.
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
            // Lost since it was found ready.
            return SourceEnd::TypeGone;
        };
        let prepared = context.statuses.change(context.input, |row| row.prepared.take());
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
            // That says nothing of the objects: reconciles go on over what is known, until the
            // run ends or another start of this source is synced.
            drop(Self::hold(&context, subscription));
            return SourceEnd::Failed(format!("its informer ended: {ended}"));
        }
        match self.leave(&context, &identity).await {
            Left::Stopped => {
                // Reconciles that are still running read from the cache.
                context.released().await;
                drop(context.statuses.change(context.input, InputStatus::detach));
            }
            Left::Gone => pump.lose(),
            Left::Back => {
                // Reconciles go on over what is known until there is something newer.
                drop(Self::hold(&context, subscription));
                return SourceEnd::TypeGone;
            }
        }
        let standing = Self::standing(&identity, &self.types.get(self.type_ref()));
        let gone = matches!(standing, Standing::Gone | Standing::Hidden | Standing::Moved);
        subscription.release(if gone { Linger::None } else { Linger::Default }).await;
        if gone { SourceEnd::TypeGone } else { SourceEnd::Stopped }
    }

    /// Keeps what is read from alive for whoever reads; returns what is not needed for that.
    fn hold(context: &SourceContext, subscription: Subscription) -> Option<Subscription> {
        context.statuses.change(context.input, |row| match &row.held {
            None => row.held.replace(subscription),
            Some(_) => Some(subscription),
        })
    }

    /// Waits until it is clear why the informer is left, and what becomes of what it knows.
    ///
    /// An informer ends when its type is not served any more. That says nothing of the objects
    /// as long as the type itself is there.
    async fn leave(&self, context: &SourceContext, identity: &TypeIdentity) -> Left {
        let mut status = self.types.subscribe(self.type_ref());
        loop {
            if context.feed.is_cancelled() {
                return Left::Stopped;
            }
            let standing = Self::standing(identity, &status.borrow_and_update());
            match (self.mode, standing) {
                (InputMode::Optional, _) | (InputMode::Plain, Standing::Gone) => return Left::Gone,
                (InputMode::Plain, Standing::Here | Standing::Moved)
                | (InputMode::Required, Standing::Here) => return Left::Back,
                // The manager is about to stop the epoch.
                (InputMode::Required, Standing::Gone | Standing::Moved) => {}
                (InputMode::Required | InputMode::Plain, Standing::Hidden | Standing::Unknown) => {}
            }
            select! {
                () = context.feed.cancelled() => return Left::Stopped,
                Ok(()) = status.changed() => {}
            }
        }
    }

    /// What is known of the type that was started with.
    fn standing(identity: &TypeIdentity, status: &TypeStatus) -> Standing {
        match (&status.state, &status.served) {
            (TypeState::Served | TypeState::Terminating, Some(served)) => {
                let version = Arc::clone(&served.identity.version);
                if served.identity == *identity {
                    Standing::Here
                } else if served.identity == (TypeIdentity { version, ..identity.clone() }) {
                    Standing::Moved
                } else {
                    Standing::Gone
                }
            }
            (TypeState::Absent, _) => Standing::Gone,
            (TypeState::Installing(_) | TypeState::NotWatchable, _) => Standing::Hidden,
            (TypeState::Unknown(_), _) | (TypeState::Served | TypeState::Terminating, None) => {
                Standing::Unknown
            }
        }
    }

    fn requests(&self, delta: &Delta, requests: &mut Vec<Request>) {
        match &self.concern {
            Concern::Handler(handler) => {
                handler.requests(delta, |owner| self.scope_of(owner), requests);
            }
            Concern::OwnerOf { primary, only_controller } => {
                // While the primary is not served there is no owner to reconcile; when it
                // returns, all of them are.
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
    /// Hands changes on until it is to stop, or until the informer has ended.
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
        // Objects that were there are indexed already.
        panics.mark_changed();
        // A part of the objects would look like all of them, so nobody reads before the first list
        // is complete, and nobody is asked to.
        let mut attached = Some(attached);
        if let Progress::Ended(ended) = self.look(&mut progress, false) {
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
                    self.tell_synced();
                    self.show(&progress.borrow_and_update(), true);
                    // Nobody listens any more when the run has failed meanwhile.
                    synced.take().and_then(|synced| synced.send(()).ok());
                }
                Ok(()) = panics.changed() => {
                    if let Some(panic) = panics.borrow_and_update().clone() {
                        let IndexPanic { index, key, message } = panic;
                        self.panicked(&format!("index {index}"), key, &message);
                    }
                }
                Ok(()) = progress.changed() => {
                    let now = self.look(&mut progress, synced.is_none());
                    // Before the first list is complete nobody takes changes, and the end with them.
                    if let (Progress::Ended(ended), true) = (now, attached.is_some()) {
                        return Some(ended);
                    }
                }
                delta = subscription.next(), if attached.is_none() => match delta {
                    Ok(delta) => {
                        self.deliver(&delta);
                        // A long initial list is not to hold up everybody else.
                        consume_budget().await;
                    }
                    Err(ended) => return Some(ended),
                },
            }
        }
    }

    /// Looks at how the watch is doing, and reports it.
    fn look(&self, progress: &mut watch::Receiver<Progress>, drained: bool) -> Progress {
        let now = progress.borrow_and_update().clone();
        self.show(&now, drained);
        now
    }

    /// Reports how the watch is doing. `Synced` is said only when everything is in the queue.
    fn show(&self, progress: &Progress, drained: bool) {
        self.context.statuses.change(self.context.input, |row| match progress {
            Progress::Syncing(error) => row.set(WatchState::Syncing, error.clone()),
            Progress::Synced if drained => row.set(WatchState::Synced, None),
            Progress::Synced => row.set(WatchState::Syncing, None),
            Progress::Stale(error) => {
                if drained {
                    row.set(WatchState::Synced, None);
                }
                row.set(WatchState::Stale, Some(error.clone()));
            }
            Progress::Forbidden(error) => row.set(WatchState::Forbidden, Some(error.clone())),
            Progress::ConversionFailed(error) => {
                if drained {
                    row.set(WatchState::Synced, None);
                }
                row.set(WatchState::ConversionFailed, Some(error.clone()));
            }
            Progress::Ended(_) => {}
        });
    }

    /// Takes the place of the informer that was read from until now, and tells of what is gone
    /// with it.
    async fn replace(&mut self, attached: Option<Attached>, store: &Store) {
        let held = self.context.statuses.change(self.context.input, |row| {
            row.attached = attached;
            row.held.take()
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

    /// The type is gone and the epoch goes on: so are its objects.
    fn lose(&mut self) {
        let (lost, held) = self.context.statuses.change(self.context.input, InputStatus::detach);
        // Read before the last subscriber leaves: that empties the store.
        let objects: Vec<_> = lost.into_iter().flat_map(|attached| attached.store.list()).collect();
        drop(held);
        // Only now: whoever is reconciled for this finds the type missing.
        for object in objects {
            self.deliver(&gone(&object));
        }
    }

    /// Asks for those whom it concerns that everything is known.
    fn tell_synced(&mut self) {
        if let Some(OnSynced(concerns)) = &self.source.synced {
            self.enqueue(LOW_PRIORITY, "its synced input", |_, requests| {
                concerns(&mut Enqueue::new(requests));
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
        // One bad object must not stop the events of all the others.
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

/// What was there before anybody looked, and what did not change, can wait.
fn priority(delta: &Delta) -> i32 {
    let resync = match (&delta.old, &delta.new) {
        // An aggregated API may give no resourceVersion at all.
        (Some(old), Some(new)) => {
            let (old, new) = (&old.header().resource_version, &new.header().resource_version);
            old == new && !new.is_empty()
        }
        (None, _) | (_, None) => false,
    };
    if delta.initial || resync { LOW_PRIORITY } else { Add::default().priority }
}
