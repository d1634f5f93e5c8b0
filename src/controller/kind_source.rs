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
    board::{Attached, Mode, State},
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
        let subscription = self.informers.subscribe(served, self.key(served));
        for index in &self.indexes {
            subscription.store().add_index(index.clone());
        }
        subscription
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
        let mut pump = Pump { source: self, context, requests: Vec::new() };
        let ended = pump.run(&mut subscription, attached, synced).await;
        let context = pump.context.clone();
        let lost = context.lost() || (ended.is_some() && !context.stop.is_cancelled());
        if lost {
            pump.lose();
        } else {
            // Reconciles that are still running read from the cache.
            context.released().await;
            drop(context.board.change(context.input, |row| row.detach()));
        }
        let linger = if self.is_served(&identity) { Linger::Default } else { Linger::None };
        subscription.release(linger).await;
        match ended {
            Some(Ended::Panicked(message)) => {
                SourceEnd::Failed(format!("its informer panicked: {message}"))
            }
            Some(Ended::Shutdown) => SourceEnd::Failed("the informers are shut down".to_owned()),
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
        let before = self.context.board.change(self.context.input, |row| {
            row.attached = Some(attached);
            std::mem::take(&mut row.lost)
        });
        self.show(&progress.borrow_and_update(), false);
        let stop = self.context.stop.clone();
        loop {
            select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut drained, if synced.is_some() => {
                    self.catch_up(&before, &store);
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

    /// Tells of what disappeared while nobody watched.
    fn catch_up(&mut self, before: &[Object], store: &Store) {
        for old in before {
            if store.get(old.key()).is_none() {
                self.deliver(&gone(old));
            }
        }
    }

    /// The type is gone and the epoch goes on.
    fn lose(&mut self) {
        let (board, input) = (Arc::clone(&self.context.board), self.context.input);
        if self.source.mode == Mode::Optional {
            let attached = board.change(input, |row| row.detach());
            // Only then: whoever is reconciled for this finds the type missing.
            for object in attached.into_iter().flat_map(|attached| attached.store.list()) {
                self.deliver(&gone(&object));
            }
        } else {
            // Its objects may still be there, out of sight: reconciles go on over what is known.
            board.change(input, |row| {
                row.lost = row.attached.iter().flat_map(|it| it.store.list()).collect();
            });
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
        (Some(old), Some(new)) => old.header().resource_version == new.header().resource_version,
        (None, _) | (_, None) => false,
    };
    if delta.initial || resync { LOW_PRIORITY } else { Add::default().priority }
}
