//! One run of a runnable, seen from inside.

use std::{fmt, sync::Arc, time::Duration};

use kube::Client;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{ControllerName, Fence, WatchState, lifecycle::RunEnd, tasks::Tasks};
use crate::{duration::after, kind::TypeRef};

/// Why an epoch is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A type that its condition needs is proven gone, or another one than it started with.
    TypeGone,
    /// The same runnable with another specification takes its place.
    Superseded,
    /// The runnable was removed, the manager stops, or the run has ended by itself.
    Cancelled,
    /// This replica leads no more; nothing may be written from now on.
    LeaseLost,
}

/// One watch of a run, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchReport {
    /// The type as it was asked for.
    pub type_ref: TypeRef,
    /// State of the watch.
    pub state: WatchState,
    /// What went wrong last, while something is wrong.
    pub error: Option<String>,
}

/// What a run says of itself while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Started up: its sources are synced.
    pub running: bool,
    /// Its cache is behind: a watch fails, though the type is not proven gone.
    pub stale: bool,
    /// What is not synced though the time for that is over, each with the reason.
    pub late: Vec<String>,
    /// What it may not do, each with the rule that is missing.
    pub forbidden: Vec<String>,
    /// What it cannot read because a conversion webhook fails, each with the error.
    pub unconverted: Vec<String>,
    /// Optional types that are missing.
    pub missing: Vec<TypeRef>,
    /// No reconcile has succeeded since one failed a minute ago or longer.
    pub failing: bool,
    /// The last error of its work.
    pub last_error: Option<String>,
    /// Work that does not end though the grace is over, each by its name.
    pub unfinished: Vec<String>,
    /// Its watches.
    pub watches: Vec<WatchReport>,
}

/// One run of a runnable: its number, its stop signal and its right to write.
///
/// Cheap to clone. Everything that the run sends goes through [`Epoch::client`], whose fence
/// closes before the epoch's done is announced.
#[derive(Clone)]
pub struct Epoch {
    inner: Arc<Inner>,
}

struct Inner {
    controller: ControllerName,
    number: u64,
    grace: Duration,
    token: CancellationToken,
    stop: watch::Sender<Option<Stop>>,
    returned: watch::Sender<Option<RunEnd>>,
    report: watch::Sender<Report>,
    fence: Fence,
    tasks: Tasks,
    // Tasks that the run itself ends; counted and awaited, never aborted from here.
    tracker: TaskTracker,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    reason: StopReason,
    /// The end of the grace.
    deadline: Instant,
}

impl Epoch {
    /// Epoch without a manager, to call a runnable or a reconciler by hand (in a test, say). Nothing
    /// asks it to stop: drop the run's future instead. Only the manager stops its own epochs.
    pub fn new(controller: impl Into<ControllerName>, number: u64, grace: Duration) -> Self {
        Self::counted(controller.into(), number, grace, Counter::default())
    }

    /// Epoch of a manager, whose tasks that panic are counted.
    pub(super) fn counted(
        controller: ControllerName,
        number: u64,
        grace: Duration,
        panics: Counter,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                controller,
                number,
                grace,
                token: CancellationToken::new(),
                stop: watch::Sender::new(None),
                returned: watch::Sender::new(None),
                report: watch::Sender::default(),
                fence: Fence::new(),
                tasks: Tasks::new(panics),
                tracker: TaskTracker::new(),
            }),
        }
    }

    /// The runnable's name.
    pub fn controller(&self) -> &ControllerName {
        &self.inner.controller
    }

    /// Counted per name, from 1, and never repeated by one manager. A name that is added after
    /// others were removed may begin at a higher number.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Time for running work to finish, and to write, once the stop is asked for or the
    /// run has returned. A year at most counts.
    pub fn grace(&self) -> Duration {
        self.inner.grace
    }

    /// Cancelled when the stop is asked for.
    pub fn token(&self) -> CancellationToken {
        self.inner.token.clone()
    }

    /// Resolves when the stop is asked for. Cancel safe.
    pub async fn stopping(&self) -> StopReason {
        let mut stop = self.inner.stop.subscribe();
        match stop.wait_for(Option::is_some).await {
            Ok(stop) => stop.map_or(StopReason::Cancelled, |stop| stop.reason),
            Err(_) => StopReason::Cancelled,
        }
    }

    /// Why the stop was asked for, if it was.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.inner.stop.borrow().map(|stop| stop.reason)
    }

    /// Asks the run to stop; only the first reason counts. The grace begins with the first call. A
    /// lost lease ends it at once: another replica may write already.
    pub(crate) fn stop(&self, reason: StopReason) {
        let (now, lost) = (Instant::now(), reason == StopReason::LeaseLost);
        let deadline = after(now, if lost { Duration::ZERO } else { self.inner.grace });
        self.inner.stop.send_if_modified(|current| match current {
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
        self.inner.token.cancel();
    }

    /// Spawns a task of the epoch, in the current span.
    ///
    /// The task may continue, and write, until the grace is over; then it is dropped at its next
    /// await. The epoch is not done before its last task has ended: one that blocks its thread
    /// holds the runnable in `Stopping` with the reason `Stuck`. A panic is logged with the
    /// controller's name and the epoch's number, is counted, and ends this task alone. A task that is spawned
    /// when the grace is over never begins.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn(&self.inner.controller, self.inner.number, task);
    }

    /// Tasks that [`Epoch::spawn`] has spawned.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.inner.tasks
    }

    /// Counts tasks that the run itself ends. The epoch is not done before the last one has ended.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.inner.tracker
    }

    /// The run ends by itself, for a reason of its own, and drains before it returns.
    pub(crate) fn ends(&self, error: Option<String>) {
        self.returned(error.map_or(RunEnd::Completed, RunEnd::Failed));
    }

    /// The run has ended; only the first end counts. Its tasks are asked to stop.
    pub(super) fn returned(&self, end: RunEnd) {
        self.inner.returned.send_if_modified(|current| match current {
            Some(_) => false,
            None => {
                *current = Some(end);
                true
            }
        });
        self.stop(StopReason::Cancelled);
    }

    /// End of the run, once it has returned.
    pub(super) fn subscribe_returned(&self) -> watch::Receiver<Option<RunEnd>> {
        self.inner.returned.subscribe()
    }

    /// The end of the grace, once it has begun.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.inner.stop.borrow().map(|stop| stop.deadline)
    }

    /// Resolves when the stop was asked for, or the run has ended, and the grace since is over.
    /// Cancel safe.
    pub(crate) async fn grace_over(&self) {
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

    /// Lets tasks and requests end by themselves until the grace is over, and closes the epoch.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the epoch stays open.
    pub(crate) async fn drain(&self) {
        self.idle().await;
        self.close();
    }

    /// Lets tasks and requests end by themselves; closes the epoch only when the grace is over.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the epoch stays open.
    pub(crate) async fn idle(&self) {
        let idle = async {
            while !self.inner.tasks.tracker().is_empty() || self.inner.fence.under_way() > 0 {
                self.inner.tasks.ended().await;
                self.inner.fence.quiet().await;
            }
        };
        select! {
            biased;
            () = idle => {}
            () = self.grace_over() => self.close(),
        }
    }

    /// Aborts the tasks and closes the fence: the grace is over.
    pub(super) fn close(&self) {
        self.inner.tasks.abort();
        self.inner.fence.close();
    }

    /// Resolves when no task is left, and the closed fence owns nothing. Cancel safe.
    pub(crate) async fn ended(&self) {
        self.inner.tasks.ended().await;
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
        self.inner.fence.released().await;
    }

    /// Description of the work that has not ended; empty if all has.
    pub(super) fn late(&self) -> String {
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

    /// The last check before the wire.
    pub(crate) fn fence(&self) -> &Fence {
        &self.inner.fence
    }

    /// `client` behind the fence of this epoch, which refuses requests after its end.
    ///
    /// The end of the epoch drops the requests that are not answered; their error is
    /// [`FenceClosed`](super::FenceClosed). A read counts as answered when the head of its response
    /// has arrived, or when its future is dropped; its body can be read until the epoch ends. The
    /// outcome of a write is unknown unless its whole answer was read: when its future is dropped,
    /// when the connection is lost, or when a gateway answers in the server's place (502, 504).
    ///
    /// A refusal of a request about Secrets lacks the server's message, which may quote what the
    /// Secret holds: its `Status` has code, reason and field paths.
    ///
    /// kube spawns a task per call; clone the returned client instead of calling this again.
    pub fn client(&self, client: &Client) -> Client {
        self.inner.fence.client(client)
    }

    /// Says that the run has started up.
    pub fn running(&self) {
        self.report(|report| report.running = true);
    }

    /// Changes what the run says of itself.
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        self.inner.report.send_if_modified(|report| {
            let before = report.clone();
            change(report);
            *report != before
        });
    }

    /// What the run says of itself, and every later change.
    pub fn subscribe(&self) -> watch::Receiver<Report> {
        self.inner.report.subscribe()
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
