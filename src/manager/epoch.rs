//! Epoch: one run of a runnable, as the runnable sees it.

use std::{fmt, sync::Arc, time::Duration};

use kube::Client;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ControllerName, Fence, Report, StopReason,
    election::term::{Leadership, Term, TermWork},
    end::RunEnd,
    tasks::SpawnedTasks,
};
use crate::duration::after;

/// Run of a runnable: its number, its stop signal and its permission to write.
///
/// Cheap to clone. Everything that the run sends goes through [`Epoch::client`], whose fence closes
/// before the epoch is announced as done.
///
/// ```
/// use pilotlight::manager::{Epoch, RunResult};
///
/// /// Runnable that needs a client of the API server.
/// async fn run(epoch: Epoch, client: kube::Client) -> RunResult {
///     let client = epoch.client(&client); // Refuses requests after the end of the epoch.
///     let version = client.apiserver_version().await?;
///     epoch.running();
///     epoch.spawn(async move { println!("the server is {}", version.git_version) });
///     epoch.stopping().await;
///     Ok(()) // The manager awaits the spawned tasks, at most for the grace.
/// }
/// # drop(run);
/// ```
#[derive(Clone)]
pub struct Epoch {
    inner: Arc<EpochInner>,
    // Calls the conditions that were added around the runnable.
    refused: Option<Arc<dyn Fn() + Send + Sync>>,
}

struct EpochInner {
    controller: ControllerName,
    number: u64,
    grace: Duration,
    token: CancellationToken,
    stop: watch::Sender<Option<Stop>>,
    returned: watch::Sender<Option<RunEnd>>,
    report: watch::Sender<Report>,
    fence: Fence,
    tasks: SpawnedTasks,
    // Tasks that the run itself ends; counted and awaited, but never aborted from here.
    tracker: TaskTracker,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    reason: StopReason,
    /// End of the grace.
    deadline: Instant,
}

impl Epoch {
    /// Creates an epoch outside a manager, for tests that drive a runnable or a reconciler. Nothing
    /// signals it to stop: drop the run's future instead. Only the manager stops its own epochs.
    pub fn new(controller: impl Into<ControllerName>, number: u64, grace: Duration) -> Self {
        let leadership = Leadership::NotNeeded;
        Self::counted(controller.into(), number, grace, Counter::default(), leadership)
    }

    /// Epoch of a manager, whose tasks that panic are counted.
    pub(super) fn counted(
        controller: ControllerName,
        number: u64,
        grace: Duration,
        panics: Counter,
        leadership: Leadership,
    ) -> Self {
        Self {
            inner: Arc::new(EpochInner {
                controller,
                number,
                grace,
                token: CancellationToken::new(),
                stop: watch::Sender::new(None),
                returned: watch::Sender::new(None),
                report: watch::Sender::default(),
                fence: Fence::elected(leadership),
                tasks: SpawnedTasks::new(panics),
                tracker: TaskTracker::new(),
            }),
            refused: None,
        }
    }

    /// Returns this epoch with another function for [`Epoch::refused`].
    pub(crate) fn on_refused(self, refused: impl Fn() + Send + Sync + 'static) -> Self {
        let before = self.refused.clone();
        let refused = move || {
            refused();
            before.iter().for_each(|before| before());
        };
        Self { refused: Some(Arc::new(refused)), ..self }
    }

    /// Reports to the conditions of the runnable that the API server has refused a request (403),
    /// as [`Condition::refused`] describes: to those that
    /// [`RunnableWithCondition`](super::RunnableWithCondition) has added, and to all conditions of
    /// a controller and its inputs. A controller calls it itself for an error of its reconciler.
    ///
    /// [`Condition::refused`]: super::Condition::refused
    pub fn refused(&self) {
        if let Some(refused) = &self.refused {
            refused();
        }
    }

    /// Name of the runnable.
    pub fn controller(&self) -> &ControllerName {
        &self.inner.controller
    }

    /// Number of the epoch, counted per name from 1 and never repeated within one manager. If names
    /// were removed before, a new name may begin at a higher number.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Time for running work to finish, and to write, after the stop is requested or the run has
    /// returned. Capped at one year.
    pub fn grace(&self) -> Duration {
        self.inner.grace
    }

    /// Token that is cancelled when the stop is requested.
    pub fn token(&self) -> CancellationToken {
        self.inner.token.clone()
    }

    /// Waits until the stop is requested. Cancel safe.
    ///
    /// Await a running write before the return. The outcome of a dropped write is unknown, and
    /// delays the release of the lease until the server has abandoned the write (4 s with the
    /// default times).
    pub async fn stopping(&self) -> StopReason {
        let mut stop = self.inner.stop.subscribe();
        match stop.wait_for(Option::is_some).await {
            Ok(stop) => stop.map_or(StopReason::Cancelled, |stop| stop.reason),
            Err(_) => StopReason::Cancelled,
        }
    }

    /// Reason for the stop, if it has been requested.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.inner.stop.borrow().map(|stop| stop.reason)
    }

    /// Signals the run to stop; only the first reason counts. The grace begins with the first call.
    /// A lost lease ends the grace at once, because another replica may already write.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.inner.stop(reason);
    }

    /// Ends the epoch with the term: it may write while the term holds, if it needs leadership.
    pub(super) fn lead(&self, term: &Arc<Term>) {
        self.inner.fence.lead(term);
        term.join(&self.inner);
    }

    /// Returns whether the epoch may write: its replica leads, or its runnable needs no leadership.
    pub fn leads(&self) -> bool {
        self.inner.fence.subscribe_leadership().borrow().allows_writes()
    }

    /// Waits until the replica leads; resolves at once if the runnable needs no leadership. An
    /// epoch whose runnable [warms up](super::Runnable::warms_up) begins its work then. Cancel
    /// safe.
    ///
    /// The end of leadership stops the epoch, with [`StopReason::LeaseLost`].
    pub async fn leading(&self) {
        let mut leadership = self.inner.fence.subscribe_leadership();
        let awaited = |leadership: &Leadership| matches!(leadership, Leadership::Awaited);
        // The sender lives in `self`, so this cannot fail.
        drop(leadership.wait_for(|leadership| !awaited(leadership)).await);
    }

    /// Spawns a task of the epoch, in the current span.
    ///
    /// The task may continue, and write, until the grace is over; then it is dropped at its next
    /// await. The epoch is not done before its last task has ended: a task that blocks its thread
    /// holds the runnable in `Stopping` with the reason `Stuck`. A panic is logged with the
    /// controller's name and the epoch's number, is counted, and ends only this task. A task
    /// spawned after the grace never starts.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn(&self.inner.controller, self.inner.number, task);
    }

    /// Tasks spawned by [`Epoch::spawn`].
    pub(super) fn tasks(&self) -> &SpawnedTasks {
        &self.inner.tasks
    }

    /// Tracker for tasks that the run itself ends. The epoch is not done before the last one has
    /// ended.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.inner.tracker
    }

    /// Records the error with which the run ends by itself, or else that a required source is done,
    /// before the run drains and returns.
    pub(crate) fn record_end(&self, error: Option<String>) {
        self.record_run_end(error.map_or(RunEnd::SourceDone, RunEnd::Failed));
    }

    /// Records the end of the run; only the first end counts. Signals its tasks to stop.
    pub(super) fn record_run_end(&self, end: RunEnd) {
        self.inner.returned.send_if_modified(|current| match current {
            Some(_) => false,
            None => {
                *current = Some(end);
                true
            }
        });
        self.stop(StopReason::Cancelled);
    }

    /// Returns whether the run ended because a required source is done.
    pub(super) fn is_source_done(&self) -> bool {
        *self.inner.returned.borrow() == Some(RunEnd::SourceDone)
    }

    /// Subscribes to the end of the run.
    pub(super) fn subscribe_returned(&self) -> watch::Receiver<Option<RunEnd>> {
        self.inner.returned.subscribe()
    }

    /// End of the grace, once it has begun.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.inner.stop.borrow().map(|stop| stop.deadline)
    }

    /// Waits until the stop was requested, or the run has ended, and the grace that follows is
    /// over. Cancel safe.
    pub(crate) async fn wait_grace_over(&self) {
        let mut stop = self.inner.stop.subscribe();
        loop {
            let deadline = stop.borrow_and_update().map(|stop| stop.deadline);
            let over = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            select! {
                biased;
                () = over => return,
                // The sender lives in `self`, so this cannot fail.
                _ = stop.changed() => {}
            }
        }
    }

    /// Waits until tasks and requests have ended or the grace is over, then closes the epoch.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the epoch stays open.
    pub(crate) async fn drain(&self) {
        self.idle().await;
        self.close();
    }

    /// Waits until tasks and requests have ended; closes the epoch only if the grace ends first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the epoch stays open.
    pub(crate) async fn idle(&self) {
        let idle = async {
            while !self.inner.tasks.tracker().is_empty() || self.inner.fence.under_way() > 0 {
                self.inner.tasks.ended().await;
                self.inner.fence.wait_answered().await;
            }
        };
        select! {
            biased;
            () = idle => {}
            () = self.wait_grace_over() => self.close(),
        }
    }

    /// Ends the grace: aborts the tasks and closes the fence.
    pub(super) fn close(&self) {
        self.inner.close();
    }

    /// Waits until no task is left and the closed fence owns no request. Cancel safe.
    pub(crate) async fn wait_ended(&self) {
        self.inner.tasks.ended().await;
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
        self.inner.fence.released().await;
    }

    /// Describes the work that has not ended; empty if all has.
    pub(super) fn unfinished_work(&self) -> String {
        let count = |number: usize, what: &str| match number {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{number} {what}s")),
        };
        let tasks = self.inner.tasks.tracker().len() + self.inner.tracker.len();
        let run = self.inner.returned.borrow().is_none().then(|| "its run".to_owned());
        let requests = count(self.inner.fence.under_way(), "request");
        let mut late: Vec<_> =
            [run, count(tasks, "task"), requests].into_iter().flatten().collect();
        late.extend(self.inner.report.borrow().unfinished.iter().cloned());
        late.join(", ")
    }

    /// Fence of this epoch: the last check before a request is sent.
    pub(crate) fn fence(&self) -> &Fence {
        &self.inner.fence
    }

    /// `client` behind the fence of this epoch, which refuses requests after its end.
    ///
    /// The end of the epoch drops the requests that are not answered; their error is
    /// [`FenceClosed`](super::FenceClosed). A read counts as answered when the head of its response
    /// has arrived, or when its future is dropped; its body can be read until the epoch ends. The
    /// outcome of a write is unknown unless its whole response was read. Examples are a dropped
    /// future, a lost connection, and the answer of a gateway (502, 504).
    ///
    /// A refusal of a request about Secrets lacks the server's message, which may quote the Secret.
    /// Its `Status` has code, reason and field paths.
    ///
    /// kube spawns a task per call; clone the returned client instead of calling this again.
    pub fn client(&self, client: &Client) -> Client {
        self.inner.fence.client(client)
    }

    /// Reports that the run has started up.
    pub fn running(&self) {
        self.report(|report| report.running = true);
    }

    /// Changes the run's report; subscribers are notified if it differs.
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        self.inner.report.send_if_modified(|report| {
            let before = report.clone();
            change(report);
            *report != before
        });
    }

    /// Subscribes to the run's report.
    pub fn subscribe(&self) -> watch::Receiver<Report> {
        self.inner.report.subscribe()
    }
}

impl EpochInner {
    fn stop(&self, reason: StopReason) {
        let (now, lost) = (Instant::now(), reason == StopReason::LeaseLost);
        let deadline = after(now, if lost { Duration::ZERO } else { self.grace });
        self.stop.send_if_modified(|current| match current {
            Some(stop) if lost && stop.deadline > now => {
                stop.deadline = now;
                true
            }
            Some(_) => false,
            None => {
                *current = Some(Stop { reason, deadline });
                true
            }
        });
        if lost {
            self.close();
        }
        self.token.cancel();
    }

    fn close(&self) {
        self.tasks.abort();
        self.fence.close();
    }
}

impl TermWork for EpochInner {
    fn lease_lost(&self) {
        self.stop(StopReason::LeaseLost);
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("controller", &self.inner.controller)
            .field("number", &self.inner.number)
            .field("stop", &*self.inner.stop.borrow())
            .finish_non_exhaustive()
    }
}
