//! Run of a built-in source: delivers changes of objects as requests.

use std::{fmt::Display, pin::pin};

use tokio::{
    select,
    sync::{oneshot, watch},
    task::consume_budget,
};
use tracing::error;

use super::KindSource;
use crate::{
    controller::{
        Enqueue, SourceContext,
        handler::{MappedRequest, OnSynced, OnWatchError},
        queue::{Add, LOW_PRIORITY},
        run::input_status::{Attached, InputStatus},
    },
    guard,
    informer::{Delta, Ended, IndexPanic, InformerProgress, Linger, Object, Store, Subscription},
    manager::WatchState,
};

/// Delivery of changes during one start of a source.
pub(super) struct KindRun<'a> {
    source: &'a KindSource,
    context: SourceContext,
    // Kept for its capacity.
    requests: Vec<MappedRequest>,
}

impl<'a> KindRun<'a> {
    pub(super) fn new(source: &'a KindSource, context: SourceContext) -> Self {
        Self { source, context, requests: Vec::new() }
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
        let mut outdated = pin!(self.source.outdated(subscription.interests().clone()));
        if let InformerProgress::Ended(ended) = self.report_current(&mut progress, false) {
            return Some(ended);
        }
        let stop = self.context.stop.clone();
        loop {
            select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut outdated, if attached.is_none() => return None,
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
                    if let (InformerProgress::Ended(ended), true) = (now, attached.is_some()) {
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
    fn report_current(
        &self,
        progress: &mut watch::Receiver<InformerProgress>,
        drained: bool,
    ) -> InformerProgress {
        let now = progress.borrow_and_update().clone();
        self.report(&now, drained);
        self.call_on_error(&now);
        now
    }

    /// Calls the user's function with an error of the watch.
    fn call_on_error(&self, progress: &InformerProgress) {
        let Some(OnWatchError(on_error)) = &self.source.watch_error else { return };
        let (state, error) = match progress {
            InformerProgress::Syncing(Some(error)) => (WatchState::Syncing, error),
            InformerProgress::Stale(error) => (WatchState::Stale, error),
            InformerProgress::Forbidden(error) => (WatchState::Forbidden, error),
            InformerProgress::ConversionFailed(error) => (WatchState::ConversionFailed, error),
            InformerProgress::Syncing(None)
            | InformerProgress::Synced
            | InformerProgress::Ended(_) => return,
        };
        if let Err(panic) = guard::run(|| on_error(state, error)) {
            self.panicked("watch error handler", error, &panic);
        }
    }

    /// Reports the progress of the watch. Reports `Synced` only when all requests are in the queue.
    fn report(&self, progress: &InformerProgress, drained: bool) {
        self.context.statuses.change(self.context.input, |input| match progress {
            InformerProgress::Syncing(error) => input.set(WatchState::Syncing, error.clone()),
            InformerProgress::Synced if drained => input.set(WatchState::Synced, None),
            InformerProgress::Synced => input.set(WatchState::Syncing, None),
            InformerProgress::Stale(error) => {
                if drained {
                    input.set(WatchState::Synced, None);
                }
                input.set(WatchState::Stale, Some(error.clone()));
            }
            InformerProgress::Forbidden(error) => {
                input.set(WatchState::Forbidden, Some(error.clone()))
            }
            InformerProgress::ConversionFailed(error) => {
                if drained {
                    input.set(WatchState::Synced, None);
                }
                input.set(WatchState::ConversionFailed, Some(error.clone()));
            }
            InformerProgress::Ended(_) => {}
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
            for old in held.concerned() {
                if store.get(old.key()).is_none() {
                    self.deliver(&gone(&old));
                }
            }
            held.release(Linger::None).await;
        }
    }

    /// Delivers deletions for all objects of a type that is gone while the epoch continues.
    pub(super) fn delete_all(&mut self, subscription: &Subscription) {
        let (lost, held) = self.context.statuses.change(self.context.input, InputStatus::detach);
        let objects = if lost.is_some() { subscription.concerned() } else { Vec::new() };
        drop(held);
        // Delivered after the detach, so that the reconciles find the type missing.
        for object in objects {
            self.deliver(&gone(&object));
        }
    }

    /// Enqueues the requests of the `on_synced` handler.
    fn enqueue_synced(&mut self) {
        if let Some(OnSynced(handler)) = &self.source.synced {
            self.enqueue(LOW_PRIORITY, "its synced input", |_, queue| handler(queue));
        }
    }

    /// Enqueues the requests of a change that passes all predicates.
    fn deliver(&mut self, delta: &Delta) {
        let key = &delta.key;
        if self.context.feed.is_cancelled() {
            return;
        }
        let predicates = &self.source.predicates;
        match guard::run(|| predicates.iter().all(|predicate| predicate.passes(delta))) {
            Ok(true) => {
                self.enqueue(priority(delta), key, |source, queue| source.requests(delta, queue));
            }
            Ok(false) => {}
            Err(panic) => self.panicked("predicate", key, &panic),
        }
    }

    fn enqueue(
        &mut self,
        priority: i32,
        about: impl Display,
        map: impl FnOnce(&KindSource, &mut Enqueue<'_>),
    ) {
        let Self { source, context, requests } = self;
        if context.feed.is_cancelled() {
            return;
        }
        // A panic at one object must not stop the events of the others.
        let mut collected = Enqueue::new(requests, Some(&context.statuses));
        let panicked = guard::run(|| map(source, &mut collected)).err();
        let failed = collected.failed();
        let usual = Add { priority, ..Add::default() };
        for (request, own) in requests.drain(..) {
            context.queue.add_with(request, own.unwrap_or(usual));
        }
        if let Some((key, error)) = failed {
            let input = source.type_ref();
            error!(%input, object = %key, error, "an object cannot be decoded");
            let message = format!("{input} {key} cannot be decoded by its event handler: {error}");
            context.epoch.report(|report| report.last_error = Some(message));
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
    }
}
