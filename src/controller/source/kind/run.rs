//! Run of a built-in source: delivers changes of objects as requests.

use std::{fmt::Display, mem, pin::pin, sync::Arc};

use tokio::{
    select,
    sync::{oneshot, watch},
    task::{consume_budget, yield_now},
};

use super::{
    KindSource, Mapping,
    replacement::{created, last_changes, replaced},
    resync::Resync,
};
use crate::{
    controller::{
        SourceContext, SourceEnd,
        handler::{MappedRequest, OnSynced},
        inputs::{
            attached::Attached,
            status::{InputCache, InputMode, InputStatus},
            statuses::InputStatuses,
        },
        queue::{Add, LOW_PRIORITY},
    },
    discovery::TypeChange,
    informer::{
        Delta, EndReason, IndexPanic, InformerProgress, Linger, MovingInterests, Subscription,
    },
    kind::{Scope, TypeIdentity},
    manager::WatchState,
};

/// Run of a source, from its first start to its end.
pub(super) struct KindRun<'a> {
    source: &'a KindSource,
    context: SourceContext,
    // True once all namespaces of the input are listed, from when on changes are delivered.
    delivers: bool,
    // Kept for its capacity.
    requests: Vec<MappedRequest>,
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

impl<'a> KindRun<'a> {
    pub(super) fn new(source: &'a KindSource, context: SourceContext) -> Self {
        Self { source, context, delivers: false, requests: Vec::new() }
    }

    /// Runs to the end of the source. Starts again when its interests are outdated: only the first
    /// sync is waited for.
    pub(super) async fn run(mut self, synced: oneshot::Sender<()>) -> SourceEnd {
        let mut synced = Some(synced);
        loop {
            if let Some(end) = self.start(synced.take()).await {
                return end;
            }
        }
    }

    /// Runs until the source ends; `None` when its interests are outdated. Its cache is held then.
    async fn start(&mut self, synced: Option<oneshot::Sender<()>>) -> Option<SourceEnd> {
        let source = self.source;
        let Some(served) = source.types.served(source.type_ref()) else {
            // The type was lost after the source became ready.
            return Some(SourceEnd::TypeGone);
        };
        self.delivers = false;
        if self.change_since_held() == Some(TypeChange::Replaced) {
            self.delete_all(None);
        }
        if self.statuses().is_covered(self.context.input, served.identity.scope == Scope::Cluster) {
            return Some(self.stand_by(synced).await);
        }
        let prepared = self.change(|input| input.cache.take_prepared());
        let mut subscription = prepared
            .filter(|prepared| source.is_current(prepared, &served))
            .unwrap_or_else(|| source.subscribe(&served));
        let identity = served.identity.clone();
        let attached = source.attached(served, &subscription);
        let ended = self.deliver_changes(&mut subscription, attached, synced).await;
        if ended.is_none() && !self.context.stop.is_cancelled() {
            // Reconciles continue over this cache until the one with the current interests is listed.
            self.hold(subscription);
            return None;
        }
        if let Some(ended @ (EndReason::Panicked(_) | EndReason::Shutdown)) = ended {
            // The objects may still exist: reconciles continue over the cache, until the run ends
            // or another start of this source is listed.
            self.hold(subscription);
            return Some(SourceEnd::Failed(format!("its informer ended: {ended}")));
        }
        match self.leave(&identity).await {
            DetachReason::Stopped => {
                // Reconciles that still run read from the cache.
                self.context.released().await;
                drop(self.change(InputStatus::detach));
            }
            DetachReason::TypeGone => self.delete_all(Some(&subscription)),
            DetachReason::TypeServed => {
                // Reconciles continue over this cache until its replacement is listed.
                self.hold(subscription);
                return Some(SourceEnd::TypeGone);
            }
        }
        let gone = source.types.get(source.type_ref()).change_since(&identity).is_loss();
        subscription.release(if gone { Linger::None } else { Linger::Default }).await;
        Some(if gone { SourceEnd::TypeGone } else { SourceEnd::Stopped })
    }

    /// Waits for the stop of a source whose objects another namespace of its input delivers.
    async fn stand_by(&self, synced: Option<oneshot::Sender<()>>) -> SourceEnd {
        let before = self.change(|input| {
            input.set(WatchState::Synced, None);
            mem::replace(&mut input.cache, InputCache::Covered)
        });
        drop(before);
        // The receiver is dropped if the run has failed meanwhile.
        synced.and_then(|synced| synced.send(()).ok());
        // Reconciles that still run read from the cache of the other namespace.
        self.context.released().await;
        drop(self.change(InputStatus::detach));
        SourceEnd::Stopped
    }

    /// Delivers the pending changes, and holds the subscription so that reconciles can read its
    /// cache. Drops it if it was never read, or if another one is held already.
    fn hold(&mut self, subscription: Subscription) {
        if self.delivers {
            for change in subscription.take_pending() {
                self.deliver(&change.into_delta());
            }
        }
        drop(self.change(|input| input.cache.hold(subscription)));
    }

    /// Returns the change of the type since the subscription that is held; `None` without one.
    fn change_since_held(&self) -> Option<TypeChange> {
        let identity =
            self.change(|input| input.cache.held().map(|held| held.key().identity.clone()))?;
        Some(self.source.types.get(self.source.type_ref()).change_since(&identity))
    }

    /// Delivers deletions for the objects of the held cache if its type was lost.
    pub(super) fn delete_held(&mut self) {
        let is_gone = match (self.source.mode, self.change_since_held()) {
            // The manager is about to stop the epoch.
            (InputMode::Required, _) | (_, None) => false,
            (InputMode::Optional, Some(_)) => true,
            // The absent type may be another one of the condition.
            (InputMode::Plain, Some(change)) => {
                matches!(change, TypeChange::Absent | TypeChange::Replaced)
            }
        };
        if is_gone {
            self.delete_all(None);
        }
    }

    /// Waits until the reason to leave the informer is known, which decides about its objects.
    ///
    /// An informer ends when its type is no longer served. The objects may still exist as long as
    /// the type itself does.
    async fn leave(&self, identity: &TypeIdentity) -> DetachReason {
        let mut status = self.source.types.subscribe(self.source.type_ref());
        loop {
            if self.context.feed.is_cancelled() {
                return DetachReason::Stopped;
            }
            let change = status.borrow_and_update().change_since(identity);
            match (self.source.mode, change) {
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
                () = self.context.feed.cancelled() => return DetachReason::Stopped,
                Ok(()) = status.changed() => {}
            }
        }
    }

    fn statuses(&self) -> &Arc<InputStatuses> {
        &self.context.statuses
    }

    /// Changes the status of the input, and reports it.
    fn change<T>(&self, change: impl FnOnce(&mut InputStatus) -> T) -> T {
        self.context.statuses.change(self.context.input, change)
    }

    /// Delivers changes until the source is to stop, its interests are outdated, or the informer
    /// has ended.
    async fn deliver_changes(
        &mut self,
        subscription: &mut Subscription,
        attached: Attached,
        mut synced: Option<oneshot::Sender<()>>,
    ) -> Option<EndReason> {
        let mut progress = subscription.progress();
        let mut fill_failure = subscription.fill_failure();
        // A list for other subscribers may have failed already.
        fill_failure.mark_changed();
        let (mut complete, mut drained) =
            (pin!(subscription.complete()), pin!(subscription.drained()));
        let mut listed = pin!(Arc::clone(self.statuses()).listed(self.context.input));
        let mut panics = self.source.panics.subscribe();
        // Existing objects are indexed already, so that an index function may have panicked.
        panics.mark_changed();
        // Attached once the first list is complete: a reconcile must not mistake a part of the
        // objects for all of them. No change is delivered before the input can be read.
        let mut attached = Some(attached);
        let mut is_drained = false;
        let mut outdated = pin!(self.source.outdated(subscription.interests().clone()));
        let now = progress.borrow_and_update().clone();
        self.report(&now, false);
        self.call_on_error(&now);
        if let InformerProgress::Ended(ended) = now {
            return Some(ended);
        }
        let (stop, mut resync) = (self.context.stop.clone(), None);
        loop {
            select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut outdated, if attached.is_none() => return None,
                () = &mut complete, if attached.is_some() => {
                    if let Some(attached) = attached.take() {
                        self.replace(attached, subscription).await;
                    }
                    // In place of an earlier failure: other namespaces may not be listed yet.
                    self.report_again(&progress);
                }
                () = &mut listed, if attached.is_none() && !self.delivers => self.delivers = true,
                () = &mut drained, if self.delivers && !is_drained => {
                    is_drained = true;
                    self.enqueue_synced();
                    self.report(&progress.borrow_and_update(), true);
                    // The receiver is dropped if the run has failed meanwhile.
                    synced.take().and_then(|synced| synced.send(()).ok());
                    resync = self.source.resync.map(Resync::new);
                }
                Ok(()) = panics.changed() => {
                    if let Some(panic) = panics.borrow_and_update().clone() {
                        let IndexPanic { index, key, message } = panic;
                        self.panicked(&format!("index {index}"), key, &message);
                    }
                }
                Ok(()) = fill_failure.changed(), if attached.is_some() => {
                    let failure = fill_failure.borrow_and_update().clone();
                    match failure {
                        Some(failure) => {
                            self.report(&failure, false);
                            self.call_on_error(&failure);
                        }
                        None => self.report_again(&progress),
                    }
                }
                Ok(()) = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    // A watch that recovers does not hide the failure of the list.
                    if attached.is_none() || fill_failure.borrow().is_none() {
                        self.report(&now, is_drained);
                    }
                    self.call_on_error(&now);
                    // Before the input can be read the branch below, which returns the end, is
                    // disabled.
                    if let (InformerProgress::Ended(ended), false) = (now, self.delivers) {
                        return Some(ended);
                    }
                }
                delta = subscription.next(), if self.delivers => match delta {
                    Ok(delta) => {
                        self.deliver(&delta);
                        // Yields, so that a long initial list does not block other tasks.
                        consume_budget().await;
                    }
                    Err(ended) => return Some(ended),
                },
                // Polled last, so that the changes of a step are delivered before the next step.
                Some(()) = due(&mut resync), if resync.is_some() => {
                    if let Some(resync) = &mut resync {
                        resync.step(subscription);
                    }
                    yield_now().await;
                }
            }
        }
    }

    /// Reports the progress of the watch while not all objects are delivered.
    fn report_again(&self, progress: &watch::Receiver<InformerProgress>) {
        // Cloned first: the report may call user code, which must not lock the informer.
        let now = progress.borrow().clone();
        self.report(&now, false);
    }

    /// Calls the user's function with an error of the watch.
    fn call_on_error(&self, progress: &InformerProgress) {
        let Some(handler) = &self.source.watch_error else { return };
        let (state, error) = match progress {
            InformerProgress::Syncing(Some(error)) => (WatchState::Syncing, error),
            InformerProgress::Stale(error) => (WatchState::Stale, error),
            InformerProgress::Forbidden(error) => (WatchState::Forbidden, error),
            InformerProgress::ConversionFailed(error) => (WatchState::ConversionFailed, error),
            InformerProgress::Syncing(None)
            | InformerProgress::Synced
            | InformerProgress::Polled
            | InformerProgress::Ended(_) => return,
        };
        if let Err(panic) = handler.call(state, error) {
            self.panicked("watch error handler", error, &panic);
        }
    }

    /// Reports the progress of the watch. Reports `Synced`, or `Polled`, only when all requests are in
    /// the queue.
    fn report(&self, progress: &InformerProgress, drained: bool) {
        let before = self.change(|input| {
            let before = input.state();
            match progress {
                InformerProgress::Syncing(error) => input.set(WatchState::Syncing, error.clone()),
                InformerProgress::Synced if drained => input.set(WatchState::Synced, None),
                InformerProgress::Polled if drained => input.set(WatchState::Polled, None),
                InformerProgress::Synced | InformerProgress::Polled => {
                    input.set(WatchState::Syncing, None);
                }
                InformerProgress::Stale(error) => {
                    if drained {
                        input.set(WatchState::Synced, None);
                    }
                    input.set(WatchState::Stale, Some(error.clone()));
                }
                InformerProgress::Forbidden(error) => {
                    input.set(WatchState::Forbidden, Some(error.clone()));
                }
                InformerProgress::ConversionFailed(error) => {
                    if drained {
                        input.set(WatchState::Synced, None);
                    }
                    input.set(WatchState::ConversionFailed, Some(error.clone()));
                }
                InformerProgress::Ended(_) => {}
            }
            before
        });
        let is_forbidden = matches!(progress, InformerProgress::Forbidden(_));
        // Not within the change: a condition of the user may be asked.
        if is_forbidden && before != WatchState::Forbidden {
            self.context.epoch.refused();
        }
    }

    /// Attaches the cache in place of the held one, and delivers the changes of the objects that the
    /// held one had. The initial changes that follow are creations only; objects that the reconciler
    /// names have none.
    async fn replace(&mut self, mut attached: Attached, subscription: &Subscription) {
        let moving = self.change(|input| {
            let held = input.cache.attached().filter(|_| input.cache.held().is_some());
            held.and_then(|held| held.moving.clone())
        });
        // Reconciles that began before keep their clones.
        let moving = moving.zip(attached.moving.as_mut());
        let moving = moving.map(|(moving, new)| {
            moving.move_to(subscription);
            new.clone_from(&moving);
            moving
        });
        let before =
            self.change(|input| mem::replace(&mut input.cache, InputCache::Listed(attached)));
        if let InputCache::Held(_, held) = before {
            // Without a list of another namespace nothing was delivered yet.
            let was_delivered = self.statuses().is_listed(self.context.input);
            let changes = if was_delivered { last_changes(&held) } else { Vec::new() };
            let is_scanned = !subscription.interests().deliver.is_empty();
            let created = if was_delivered && !is_scanned {
                created(&changes, subscription)
            } else {
                Vec::new()
            };
            let replaced = changes.into_iter().filter_map(|change| replaced(change, subscription));
            for change in replaced.chain(created) {
                self.deliver(&change.into_delta());
            }
            held.release(Linger::None).await;
        }
        moving.iter().for_each(MovingInterests::end_move);
    }

    /// Delivers the pending changes, and deletions for all objects, of a type that is gone while the
    /// epoch continues: those of the held subscription, if there is one.
    fn delete_all(&mut self, subscription: Option<&Subscription>) {
        let lost = self.change(InputStatus::detach);
        let changes = match (lost.held(), subscription) {
            // The replacement of a held cache has delivered nothing yet.
            (Some(held), _) => last_changes(held),
            (None, Some(subscription)) if lost.attached().is_some() && self.delivers => {
                last_changes(subscription)
            }
            (None, _) => Vec::new(),
        };
        drop(lost);
        // Delivered after the detach, so that the reconciles find the type missing.
        for change in changes {
            self.deliver(&change.into_delta());
        }
    }

    /// Enqueues the requests that waited for the input, and those of its `on_synced` handler, once
    /// all namespaces of the input are delivered.
    fn enqueue_synced(&mut self) {
        let Self { source, context, requests, .. } = self;
        if !context.statuses.drained(context.input) || context.feed.is_cancelled() {
            return;
        }
        if let Mapping::Primary(_) = source.mapping {
            for request in context.statuses.unlisted().take() {
                let add = Add { priority: LOW_PRIORITY, ..Add::default() };
                context.queue.add_with(request, add);
            }
        }
        if let Some(OnSynced(handler)) = &source.synced {
            let (input, about) = (source.type_ref(), "its synced input");
            context.map(input, LOW_PRIORITY, about, requests, |queue| handler(queue));
        }
    }

    /// Enqueues the requests of a change that passes all predicates.
    fn deliver(&mut self, delta: &Delta) {
        let Self { source, context, requests, .. } = self;
        if !context.feed.is_cancelled() {
            let input = source.type_ref();
            let passes =
                |part: &Delta| source.predicates.iter().all(|predicate| predicate.passes(part));
            for part in delta.parts() {
                context.map_change(input, passes, &part, requests, |queue| {
                    source.requests(&part, queue);
                });
            }
        }
    }

    /// Reports a panic in the user's code.
    fn panicked(&self, place: &str, about: impl Display, error: &str) {
        self.context.panicked(self.source.type_ref(), place, about, error);
    }
}

/// Waits until a step of the resync is due.
async fn due(resync: &mut Option<Resync>) -> Option<()> {
    resync.as_mut()?.due().await;
    Some(())
}
