//! Run of an adopted controller: drives its stream, and reports its results.

use std::{hash::Hash, pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use kube::Resource;
use kube_runtime::{
    controller::{Action, Error},
    reflector::{Lookup, ObjectRef, Store},
    watcher,
};
use tokio::{
    select,
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::adopted_object::{gone, request_of};
use crate::{
    controller::{FailureReport, Request},
    informer::ObjectKey,
    manager::{Epoch, RunResult},
    redaction,
};

/// Time without an error of a watch after which all watches count as current. kube retries a
/// failing watch at the latest after 60 s, and waits 30 s for a response.
const WATCH_RECOVERY: Duration = Duration::from_secs(120);

/// Time between two comparisons of the failed objects with the store. kube reports no deletion, so
/// that the error of a deleted object would stay.
const COMPARISON: Duration = Duration::from_secs(60);

/// Maximum number of messages of failing watches that are logged until all watches are current, and
/// of those that are reported as refusals.
const MOST_MESSAGES: usize = 8;

/// Failed reconcile, after the error policy of the user has decided about it. The error itself
/// stays in the task of the reconcile, so that its `Display` and `Drop` are guarded there.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct DecidedFailure {
    /// Request of the object, by its own metadata.
    pub(super) request: Request,
    pub(super) message: String,
    pub(super) action: Action,
}

/// Item of the stream of a controller.
type StreamItem<K> = Result<(ObjectRef<K>, Action), Error<DecidedFailure, watcher::Error>>;

/// Run of an adopted controller, with its report.
pub(super) struct AdoptedRun {
    epoch: Epoch,
    synced: bool,
    failures: FailureReport,
    /// Time of the next comparison of failed objects with the store; `None` while none has failed.
    compared_at: Option<Instant>,
    /// Time and message of the last error of a watch, until the watches count as current.
    watch_failed: Option<(Instant, String)>,
    /// Messages of watches that were logged since all watches worked.
    logged: Vec<String>,
    /// Messages of watches that were refused since all watches worked, with a limit of their own:
    /// other errors must not hide a refusal from the conditions.
    refused: Vec<String>,
    /// Error that ends the stream.
    fatal: Option<String>,
}

impl AdoptedRun {
    pub(super) fn new(epoch: Epoch) -> Self {
        Self {
            failures: FailureReport::new(epoch.clone()),
            epoch,
            synced: false,
            compared_at: None,
            watch_failed: None,
            logged: Vec::new(),
            refused: Vec::new(),
            fatal: None,
        }
    }

    /// Drives the stream until it ends or the grace of the epoch is over; then drops it.
    ///
    /// A graceful shutdown ends the stream when its reconciles have ended. Before the first sync
    /// kube starts no reconcile, and a graceful shutdown waits for that sync: the stream is dropped
    /// then.
    pub(super) async fn drive<K>(
        mut self,
        store: Store<K>,
        results: impl Stream<Item = StreamItem<K>>,
    ) -> RunResult
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + Hash + Clone,
    {
        let (mut results, epoch) = (pin!(results), self.epoch.clone());
        let (mut synced, mut is_waited) = (pin!(store.wait_until_ready()), false);
        loop {
            let due = [self.failures.due(), self.compared_at, self.watches_current_at()];
            let due = due.into_iter().flatten().min();
            select! {
                biased;
                ready = &mut synced, if !is_waited => {
                    is_waited = true;
                    // The store of an ended stream never becomes ready.
                    if ready.is_ok() {
                        self.on_synced();
                    }
                }
                // Once the store has synced, reconciles may be under way, and have the grace.
                _ = epoch.stopping(), if !self.synced => break,
                () = epoch.wait_grace_over() => break,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.on_due(&store);
                }
                item = results.next() => match item {
                    Some(item) => self.on_item(item, &store),
                    None => break,
                },
            }
            if self.fatal.is_some() {
                break;
            }
            consume_budget().await;
        }
        match self.fatal {
            Some(error) if self.epoch.stop_reason().is_none() => Err(error.into()),
            Some(_) | None => Ok(()),
        }
    }

    /// Reports running. An error of a watch stays in the report: kube does not say which watch
    /// failed, so that it may be that of another type.
    fn on_synced(&mut self) {
        self.synced = true;
        self.epoch.running();
    }

    fn on_item<K>(&mut self, item: StreamItem<K>, store: &Store<K>)
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + Hash + Clone,
    {
        match item {
            Ok((object, _)) => {
                let request = match store.get(&object) {
                    Some(stored) => request_of(&*stored),
                    None => of_reference(object),
                };
                self.failures.succeeded(&request);
                self.show_watch_error();
            }
            Err(Error::ReconcilerFailed(failure, _)) => {
                let DecidedFailure { request, message, .. } = &failure;
                warn!(object = %request, error = message, "reconcile failed");
                self.failures.failed(request, message, false);
                self.compared_at.get_or_insert_with(|| Instant::now() + COMPARISON);
            }
            // Deleted since it was queued.
            Err(Error::ObjectNotFound(object)) => self.on_gone(&of_reference(*object)),
            Err(Error::QueueError(error)) => self.on_watch_error(&error),
            Err(Error::RunnerError(error)) => self.fatal = Some(redaction::message(&error)),
        }
    }

    fn on_gone(&mut self, request: &Request) {
        self.failures.gone(request);
        self.show_watch_error();
    }

    /// Reports the error of a watch that still fails, where no reconcile has an error.
    fn show_watch_error(&self) {
        if let Some((_, message)) = &self.watch_failed {
            self.epoch.report(|report| {
                report.last_error.get_or_insert_with(|| message.clone());
            });
        }
    }

    /// Reports an error of a watch. kube does not say which watch failed, and retries it.
    fn on_watch_error(&mut self, error: &watcher::Error) {
        let message = watch_message(error);
        self.watch_failed = Some((Instant::now(), message.clone()));
        // The watches of several types may fail in turn, and a message may differ at each retry.
        if remember(&mut self.logged, &message) {
            warn!(error = message, "watch failed");
        }
        let forbidden = is_forbidden(error);
        let is_refusal = forbidden && remember(&mut self.refused, &message);
        self.epoch.report(|report| {
            report.stale = self.synced;
            if forbidden {
                report.forbidden = vec![message.clone()];
            }
            report.last_error = Some(message);
        });
        if is_refusal {
            // Not within the report: a condition of the user may be asked.
            self.epoch.refused();
        }
    }

    /// Time at which the watches count as current, if one has failed; none before the first sync.
    fn watches_current_at(&self) -> Option<Instant> {
        let (at, _) = self.watch_failed.as_ref().filter(|_| self.synced)?;
        at.checked_add(WATCH_RECOVERY)
    }

    fn watches_are_current(&mut self) {
        if let Some((_, message)) = self.watch_failed.take() {
            self.logged.clear();
            self.refused.clear();
            info!("watches no longer fail");
            self.epoch.report(|report| {
                report.stale = false;
                report.forbidden.clear();
                // A reconcile may have failed since.
                drop(report.last_error.take_if(|error| *error == message));
            });
        }
    }

    fn on_due<K>(&mut self, store: &Store<K>)
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + Hash + Clone,
    {
        let now = Instant::now();
        if self.watches_current_at().is_some_and(|at| at <= now) {
            self.watches_are_current();
        }
        let is_streak_due = self.failures.due().is_some_and(|at| at <= now);
        if is_streak_due || self.compared_at.is_some_and(|at| at <= now) {
            self.forget_deleted(store);
            let has_failed = self.failures.failed_requests().next().is_some();
            self.compared_at = has_failed.then(|| now + COMPARISON);
        }
        if is_streak_due && self.failures.due().is_some() {
            self.failures.report_streak();
        }
    }

    /// Forgets the failures of objects that have been deleted: an error policy may await a change.
    fn forget_deleted<K>(&mut self, store: &Store<K>)
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + Hash + Clone,
    {
        for request in gone(self.failures.failed_requests(), &store.state()) {
            self.on_gone(&request);
        }
    }
}

/// Adds a message unless it is known or the limit is reached; returns whether it was added.
fn remember(messages: &mut Vec<String>, message: &str) -> bool {
    let is_new = messages.len() < MOST_MESSAGES && !messages.iter().any(|known| known == message);
    if is_new {
        messages.push(message.to_owned());
    }
    is_new
}

/// Returns the request of an object that is not in the store. The error of a cluster-scoped object
/// whose reference has a namespace is cleared by the next comparison.
fn of_reference(object: ObjectRef<impl Lookup>) -> Request {
    let ObjectRef { namespace, name, .. } = object;
    ObjectKey { namespace: namespace.map(Into::into), name: name.into() }.into()
}

/// Returns the message of a failed watch, without credentials.
fn watch_message(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error) => {
            format!("list failed: {}", redaction::request_error(error))
        }
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            format!("watch failed: {}", redaction::request_error(error))
        }
        watcher::Error::WatchError(status) => {
            format!("watch failed: {}", redaction::text(&status.message))
        }
        watcher::Error::NoResourceVersion => redaction::message(error),
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.is_forbidden(),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}
