//! One run of a runnable, seen from inside.

use std::{fmt, sync::Arc, time::Duration};

use kube::Client;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{ControllerName, Fence, WatchState};
use crate::kind::TypeRef;

/// Why an epoch is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A type that its condition needs is proven gone, or another one than it started with.
    TypeGone,
    /// The same runnable with another specification takes its place.
    Superseded,
    /// It was removed, or the manager stops.
    Cancelled,
    /// This replica leads no more; nothing may be written from now on.
    LeaseLost,
}

/// One watch of a run, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchReport {
    /// The type as it was asked for.
    pub type_ref: TypeRef,
    /// How it is doing.
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
    /// The last error of its work.
    pub last_error: Option<String>,
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
    stop: watch::Sender<Option<StopReason>>,
    report: watch::Sender<Report>,
    fence: Fence,
    tasks: TaskTracker,
}

impl Epoch {
    /// An epoch of its own, for whoever drives a runnable without a manager (a test).
    pub fn new(controller: impl Into<ControllerName>, number: u64, grace: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                controller: controller.into(),
                number,
                grace,
                token: CancellationToken::new(),
                stop: watch::Sender::new(None),
                report: watch::Sender::default(),
                fence: Fence::new(),
                tasks: TaskTracker::new(),
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

    /// How long running work may take to finish once the stop is asked for.
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
            Ok(reason) => reason.unwrap_or(StopReason::Cancelled),
            Err(_) => StopReason::Cancelled,
        }
    }

    /// Why the stop was asked for, if it was.
    pub fn stop_reason(&self) -> Option<StopReason> {
        *self.inner.stop.borrow()
    }

    /// Asks the run to stop; only the first reason counts. A lost lease closes the fence too.
    pub fn stop(&self, reason: StopReason) {
        self.inner.stop.send_if_modified(|current| match current {
            Some(_) => false,
            None => {
                *current = Some(reason);
                true
            }
        });
        if reason == StopReason::LeaseLost {
            self.inner.fence.close();
        }
        self.inner.token.cancel();
    }

    /// Every task of the run belongs here: the epoch is not done before the last one has ended,
    /// and one that never yields holds the runnable in `Stopping`, named in its status.
    ///
    /// Wrap what is spawned elsewhere with [`TaskTracker::track_future`].
    pub fn tasks(&self) -> &TaskTracker {
        &self.inner.tasks
    }

    /// The last check before the wire.
    pub fn fence(&self) -> &Fence {
        &self.inner.fence
    }

    /// `client` behind this epoch's fence.
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
