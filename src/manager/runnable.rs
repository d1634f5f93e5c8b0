//! What can be started: by the proposal's two methods, `ready` and then `start`.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use super::{Epoch, Readiness};

/// An error of any kind, as a runnable returns it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a run ends: cleanly, or with the reason it failed.
pub type RunResult = Result<(), BoxError>;

/// Name of a managed runnable, unique among the live ones of one manager.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerName(Arc<str>);

impl ControllerName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: AsRef<str>> From<T> for ControllerName {
    fn from(name: T) -> Self {
        Self(name.as_ref().into())
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// When a runnable starts and stops, relative to the others.
///
/// Groups start in this order, each after the one before is running, and stop in the reverse of
/// it. Only what still starts is waited for, and no longer than
/// [`ManagerOptions::group_start_timeout`](super::ManagerOptions::group_start_timeout): one that waits for its condition, or that has failed or
/// panicked and backs off, holds up no later group; add it with
/// [`RunnableOptions::fail_fast`](super::RunnableOptions::fail_fast) if nothing is of use without
/// it. Semantics: `runnables` of controller-runtime (`pkg/manager/runnable_group.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunnableGroup {
    /// Probes and metrics: they serve before anything else and longest.
    HttpServers,
    /// Conversion and admission webhooks: caches may need them to list.
    Webhooks,
    /// Caches and discovery, awaited until they run.
    Caches,
    /// Runs on every replica.
    Others,
    /// Prepares before this replica leads.
    Warmup,
    /// Runs on the leader alone; the default.
    LeaderElection,
}

/// One thing the manager starts and stops.
pub trait Runnable: Send + Sync + 'static {
    /// Runs one epoch: until [`Epoch::stopping`] resolves, or until the work is done.
    ///
    /// When the returned future ends, the epoch is stopping: tasks of [`Epoch::spawn`] have the grace,
    /// and are then dropped at their next await. The epoch is done when nothing of it is left. Start
    /// is called again for every epoch, so what it needs is described by `self` and built here.
    /// When the grace is over the future is dropped, unless [`Runnable::keeps_grace`].
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult>;

    /// When it starts and stops, relative to the others.
    fn group(&self) -> RunnableGroup {
        RunnableGroup::LeaderElection
    }

    /// Whether it calls [`Epoch::running`] once it has started up; otherwise it counts as
    /// running from the moment it is started.
    fn reports_running(&self) -> bool {
        false
    }

    /// Whether it ends by itself within [`Epoch::grace`], however long its last task may take.
    ///
    /// Its future is then never dropped; one that does not end is reported as stuck. Otherwise
    /// the future is dropped when the grace is over, wherever it is.
    fn keeps_grace(&self) -> bool {
        false
    }

    /// Gets ready to replace a running epoch of the same name, which goes on meanwhile.
    ///
    /// A failure leaves the old epoch running and is reported.
    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// What [`Runnable::prepare`] acquired is given back: the start that it was for does not come
    /// now.
    fn unprepare(&self) {}
}

/// A runnable that runs while a condition holds.
///
/// The manager asks `ready`, waits until it is met, calls `start`, and when that run is done
/// asks `ready` again. When the condition is lost during a run, the run is stopped.
pub trait ConditionalRunnable: Runnable {
    /// The published verdict on whether this can run now.
    fn ready(&self) -> Readiness;
}
