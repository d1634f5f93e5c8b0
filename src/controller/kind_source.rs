//! The built-in source: changes of the objects of one type, by way of its shared informer.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
};

use futures::FutureExt;
use tokio::{select, sync::oneshot, task::consume_budget};
use tracing::error;

use super::{
    ConditionalSource, Handler, Predicate, Request, SourceContext, SourceEnd, SourceStart,
    board::{Attached, Mode, Row, State},
    input::panic_message,
    queue::{Add, LOW_PRIORITY},
};
use crate::{
    discovery::{TypeRegistry, TypeState},
    informer::{
        Delta, Ended, Index, InformerKey, InformerSet, Linger, Object, Progress, Projection, Store,
        Subscription,
    },
    kind::{GroupKind, Scope, ServedType, TypeIdentity, TypeName, TypeRef},
    manager::{Readiness, type_served},
};

/// Describes which objects are listened to, and whom their changes concern.
pub(super) struct KindSource {
    pub(super) filter: Filter,
    pub(super) predicates: Vec<Predicate>,
    pub(super) concern: Concern,
    pub(super) indexes: Vec<Index>,
    pub(super) mode: Mode,
    pub(super) types: TypeRegistry,
    pub(super) informers: InformerSet,
}

/// Which objects, and what of them.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) type_ref: TypeRef,
    pub(super) namespace: Option<Arc<str>>,
    pub(super) labels: Option<Arc<str>>,
    pub(super) fields: Option<Arc<str>>,
    pub(super) projection: Projection,
    pub(super) managed_fields: bool,
}

/// Whom a change concerns.
pub(super) enum Concern {
    /// As the user's handler says.
    Handler(Handler),
    /// The owner, of the type that the controller is for. What its kind is shows only when it is
    /// served.
    OwnerOf { primary: TypeRef, only_controller: bool },
}

/// One start of a source.
struct Pump<'a> {
    source: &'a KindSource,
    context: SourceContext,
    // Kept for its capacity.
    requests: Vec<Request>,
}

impl KindSource {
    pub(super) fn type_ref(&self) -> &TypeRef {
        &self.filter.type_ref
    }

    /// The informer that this source reads from.
    pub(super) fn key(&self, served: &ServedType) -> InformerKey {
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
    pub(super) fn subscribe(&self, served: &ServedType) -> Subscription {
        self.informers.subscribe(served, self.key(served))
    }

    async fn run(&self, context: SourceContext, synced: oneshot::Sender<()>) -> SourceEnd {
        let Some(served) = self.types.served(self.type_ref()) else {
            // Lost since it was found ready.
            return SourceEnd::TypeGone;
        };
        let prepared = context.board.change(context.input, |row| row.prepared.take());
        let mut subscription = prepared
            .filter(|prepared| *prepared.key() == self.key(&served))
            .unwrap_or_else(|| self.subscribe(&served));
        let identity = served.identity.clone();
        let attached = Attached { served, store: subscription.store() };
        for index in &self.indexes {
            attached.store.add_index(index.clone());
        }
        let mut pump = Pump { source: self, context, requests: Vec::new() };
        let ended = pump.run(&mut subscription, attached, synced).await;
        let context = pump.context.clone();
        if context.lost() && self.mode == Mode::Plain && self.has_moved(&identity) {
            // Reconciles go on over what is known until the other version is synced.
            context.board.change(context.input, |row| row.held = Some(subscription));
            return SourceEnd::TypeGone;
        }
        if context.lost() || ended.is_some() {
            pump.lose();
        } else {
            // Reconciles that are still running read from the cache.
            context.released().await;
            drop(context.board.change(context.input, Row::detach));
        }
        let linger = if self.is_served(&identity) { Linger::Default } else { Linger::None };
        subscription.release(linger).await;
        match ended {
            Some(Ended::Panicked(message)) => {
                SourceEnd::Failed(format!("its informer panicked: {message}"))
            }
            Some(Ended::Shutdown) => SourceEnd::Failed("its informer is shut down".to_owned()),
            Some(Ended::TypeGone | Ended::Released) => SourceEnd::TypeGone,
            None if linger == Linger::None => SourceEnd::TypeGone,
            None => SourceEnd::Stopped,
        }
    }

    /// Whether the server still has the very type that was started with, as far as is known.
    fn is_served(&self, identity: &TypeIdentity) -> bool {
        let status = self.types.get(self.type_ref());
        match status.state {
            TypeState::Served | TypeState::Terminating | TypeState::Unknown(_) => {
                status.served.is_none_or(|served| served.identity == *identity)
            }
            TypeState::Absent | TypeState::Installing(_) => false,
        }
    }

    /// Whether the same type is served at another version now.
    fn has_moved(&self, identity: &TypeIdentity) -> bool {
        self.types.served(self.type_ref()).is_some_and(|served| {
            let version = Arc::clone(&served.identity.version);
            served.identity == TypeIdentity { version, ..identity.clone() }
        })
    }

    fn requests(&self, delta: &Delta, requests: &mut Vec<Request>) {
        if !self.predicates.iter().all(|predicate| predicate.passes(delta)) {
            return;
        }
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
        let mut drained = pin!(subscription.drained());
        let mut synced = Some(synced);
        let mut attached = Some(attached);
        self.context.board.change(self.context.input, |row| {
            if row.held.is_none() {
                row.attached = attached.take();
            }
        });
        self.show(&progress.borrow_and_update(), false);
        let stop = self.context.stop.clone();
        loop {
            select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut drained, if synced.is_some() => {
                    self.replace(attached.take(), &store).await;
                    self.show(&progress.borrow_and_update(), true);
                    // Nobody listens any more when the run has failed meanwhile.
                    synced.take().and_then(|synced| synced.send(()).ok());
                }
                Ok(()) = progress.changed() => {
                    self.show(&progress.borrow_and_update(), synced.is_none());
                }
                delta = subscription.next() => match delta {
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

    /// Reports how the watch is doing. `Synced` is said only when everything is in the queue.
    fn show(&self, progress: &Progress, drained: bool) {
        self.context.board.change(self.context.input, |row| match progress {
            Progress::Syncing(error) => row.set(State::Syncing, error.clone()),
            Progress::Synced if drained => row.set(State::Synced, None),
            Progress::Synced => row.set(State::Syncing, None),
            Progress::Stale(error) => {
                if drained {
                    row.set(State::Synced, None);
                }
                row.set(State::Stale, Some(error.clone()));
            }
            Progress::Forbidden(error) => row.set(State::Forbidden, Some(error.clone())),
            Progress::Ended(_) => {}
        });
    }

    /// Takes the place of the informer that was read from until now, and tells of what is gone
    /// with it.
    async fn replace(&mut self, attached: Option<Attached>, store: &Store) {
        let held = self.context.board.change(self.context.input, |row| {
            row.attached = attached.or_else(|| row.attached.take());
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
        let (lost, held) = self.context.board.change(self.context.input, Row::detach);
        drop(held);
        // Only then: whoever is reconciled for this finds the type missing.
        for object in lost.into_iter().flat_map(|attached| attached.store.list()) {
            self.deliver(&gone(&object));
        }
    }

    fn deliver(&mut self, delta: &Delta) {
        let Self { source, context, requests } = self;
        if context.feed.is_cancelled() {
            return;
        }
        // One bad object must not stop the events of all the others.
        let mapped = catch_unwind(AssertUnwindSafe(|| source.requests(delta, requests)));
        if let Err(panic) = mapped {
            let error = panic_message(&*panic);
            let name = &delta.key.name;
            let namespace = delta.key.namespace.as_deref();
            error!(input = %source.type_ref(), namespace, %name, error, "event handler panicked");
            context.series.panics.inc();
            let message = format!("event handler panicked at {}: {error}", delta.key);
            context.epoch.report(|report| report.last_error = Some(message));
        }
        let add = Add { priority: priority(delta), ..Add::default() };
        for request in requests.drain(..) {
            context.queue.add_with(request, add);
        }
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
