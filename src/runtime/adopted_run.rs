//! Run of an adopted controller: drives its stream, and reports its results.

use std::{hash::Hash, pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use kube::{Resource, core::DynamicObject};
use kube_runtime::{
    controller::{Action, Error},
    reflector::{ObjectRef, Store},
    watcher,
};
use tokio::{
    select,
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::{
    controller::{FailureReport, Request},
    informer::ObjectKey,
    manager::{Epoch, RunResult},
    redaction,
};

/// Time without an error of a watch after which all watches count as current. kube retries a
/// failing watch at the latest after 60 s, and waits 30 s for a response.
const WATCH_RECOVERY: Duration = Duration::from_secs(120);

/// Maximum number of messages of failing watches that are logged until all watches are current, and
/// of those that are reported as refusals.
const MOST_MESSAGES: usize = 8;

/// Failed reconcile, after the error policy of the user has decided about it. The error itself
/// stays in the task of the reconcile, so that its `Display` and `Drop` are guarded there.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct DecidedFailure {
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
            let due = [self.failures.due(), self.watches_current_at()];
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
                    Some(item) => self.on_item(item),
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

    fn on_item<K>(&mut self, item: StreamItem<K>)
    where
        K: Resource,
    {
        match item {
            Ok((object, _)) => {
                self.failures.succeeded(&request(object.namespace, object.name));
                self.show_watch_error();
            }
            Err(Error::ReconcilerFailed(failure, object)) => {
                let request = of_object(*object);
                warn!(object = %request, error = failure.message, "reconcile failed");
                self.failures.failed(&request, &failure.message, false);
            }
            // Deleted since it was queued.
            Err(Error::ObjectNotFound(object)) => self.on_gone(&of_object(*object)),
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
        if self.failures.due().is_some_and(|at| at <= now) {
            // An error policy may await a change of an object that has been deleted.
            let is_gone =
                |failed: &&Request| store.find(|object| key_of(object) == failed.key).is_none();
            let gone: Vec<_> = self.failures.requests().filter(is_gone).cloned().collect();
            for request in gone {
                self.on_gone(&request);
            }
            if self.failures.due().is_some() {
                self.failures.report_streak();
            }
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

fn key_of(object: &impl Resource) -> ObjectKey {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default().into();
    ObjectKey { namespace: meta.namespace.as_deref().map(Into::into), name }
}

fn of_object(object: ObjectRef<DynamicObject>) -> Request {
    request(object.namespace, object.name)
}

fn request(namespace: Option<String>, name: String) -> Request {
    let key = ObjectKey { namespace: namespace.map(Into::into), name: name.into() };
    key.into()
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
