//! Run of a built-in source: delivers changes of objects as requests.

use std::{collections::HashSet, fmt::Display, mem, pin::pin, sync::Arc};

use tokio::{
    select,
    sync::{oneshot, watch},
    task::{consume_budget, yield_now},
};

use super::{KindSource, Mapping, resync::Resync};
use crate::{
    controller::{
        SourceContext,
        handler::{MappedRequest, OnSynced},
        inputs::{
            attached::Attached,
            status::{InputCache, InputStatus},
        },
        queue::{Add, LOW_PRIORITY},
    },
    informer::{
        Change, Delta, EndReason, IndexPanic, InformerProgress, Linger, MovingInterests,
        Subscription,
    },
    manager::WatchState,
};

/// Delivery of changes during one start of a source.
pub(super) struct KindRun<'a> {
    source: &'a KindSource,
    context: SourceContext,
    // True once all namespaces of the input are listed, from when on changes are delivered.
    delivers: bool,
    // Kept for its capacity.
    requests: Vec<MappedRequest>,
}

impl<'a> KindRun<'a> {
    pub(super) fn new(source: &'a KindSource, context: SourceContext) -> Self {
        Self { source, context, delivers: false, requests: Vec::new() }
    }

    pub(super) fn context(&self) -> &SourceContext {
        &self.context
    }

    /// Delivers changes until the source is to stop, its interests are outdated, or the informer
    /// has ended.
    pub(super) async fn deliver_changes(
        &mut self,
        subscription: &mut Subscription,
        attached: Attached,
        synced: oneshot::Sender<()>,
    ) -> Option<EndReason> {
        let mut progress = subscription.progress();
        let mut fill_failure = subscription.fill_failure();
        // A list for other subscribers may have failed already.
        fill_failure.mark_changed();
        let (mut complete, mut drained) =
            (pin!(subscription.complete()), pin!(subscription.drained()));
        let mut listed = pin!(Arc::clone(&self.context.statuses).listed(self.context.input));
        let mut synced = Some(synced);
        let mut panics = self.source.panics.subscribe();
        // Existing objects are indexed already, so that an index function may have panicked.
        panics.mark_changed();
        // Attached once the first list is complete: a reconcile must not mistake a part of the
        // objects for all of them. No change is delivered before the input can be read.
        let mut attached = Some(attached);
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
                () = &mut drained, if self.delivers && synced.is_some() => {
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
                        self.report(&now, synced.is_none());
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
        let before = self.context.statuses.change(self.context.input, |input| {
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
        let (statuses, input) = (&self.context.statuses, self.context.input);
        let moving = statuses.change(input, |input| {
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
        let before = statuses
            .change(input, |input| mem::replace(&mut input.cache, InputCache::Listed(attached)));
        if let InputCache::Held(_, held) = before {
            // Without a list of another namespace nothing was delivered yet.
            let was_delivered = self.context.statuses.is_listed(self.context.input);
            let changes = if was_delivered { last_changes(&held) } else { Vec::new() };
            let is_scanned = !subscription.interests().deliver.is_empty();
            let created = match was_delivered && !is_scanned {
                true => created(&changes, subscription),
                false => Vec::new(),
            };
            let replaced = changes.into_iter().filter_map(|change| replaced(change, subscription));
            for change in replaced.chain(created) {
                self.deliver(&change.into_delta());
            }
            held.release(Linger::None).await;
        }
        moving.iter().for_each(MovingInterests::end_move);
    }

    /// Delivers the changes that are pending when the deliveries end, of a subscription that is to
    /// be held.
    pub(super) fn deliver_pending(&mut self, subscription: &Subscription) {
        if self.delivers {
            for change in subscription.take_pending() {
                self.deliver(&change.into_delta());
            }
        }
    }

    /// Delivers the pending changes, and deletions for all objects, of a type that is gone while the
    /// epoch continues: those of the held subscription, if there is one.
    pub(super) fn delete_all(&mut self, subscription: Option<&Subscription>) {
        let lost = self.context.statuses.change(self.context.input, InputStatus::detach);
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

/// Returns the last changes of a subscription whose objects are gone: the pending ones, then a
/// deletion of each other object.
fn last_changes(subscription: &Subscription) -> Vec<Change> {
    // The informer may continue. An object that it removes after this read is a pending deletion.
    let objects = subscription.concerned();
    let mut changes = subscription.take_pending();
    let deleted = changes.iter().filter(|change| change.new.is_none());
    let deleted: HashSet<_> = deleted.map(|change| change.key.clone()).collect();
    let others = objects.into_iter().filter(|object| !deleted.contains(&object.key));
    changes.extend(others.map(|it| Change { old: it.new, new: None, initial: false, ..it }));
    changes
}

/// Returns the last change of a held subscription as the change to its replacement; `None` if the
/// object is the same, or was not delivered. A changed uid is a deletion and a creation, as in any
/// change.
fn replaced(change: Change, replacement: &Subscription) -> Option<Change> {
    let old = change.old?;
    let new = change.new.or_else(|| replacement.store().get(&change.key));
    // Most objects: their interests are not looked up.
    if new.as_ref().is_some_and(|new| new.is_same_version(&old)) {
        return None;
    }
    let mut interests = change.interests;
    let of_new = new.as_ref().map(|new| replacement.interests_in(new.header()));
    interests.extend(of_new.unwrap_or_default());
    Some(Change { key: change.key, old: Some(old), new, initial: false, interests })
}

/// Returns the objects that concern a replacement and were not delivered before: created since, or
/// by a pending change.
fn created(changes: &[Change], replacement: &Subscription) -> Vec<Change> {
    let of = |is_new: bool| {
        let changes = changes.iter().filter(move |change| change.old.is_none() == is_new);
        changes.map(|change| &change.key).collect::<HashSet<_>>()
    };
    let (known, pending) = (of(false), of(true));
    let objects = replacement.concerned().into_iter();
    objects.filter(|it| !known.contains(&it.key) || pending.contains(&it.key)).collect()
}
