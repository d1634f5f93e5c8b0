//! Manager (room 2): starts, stops and restarts controllers and other runnables.
//!
//! A [`Manager`] runs each [`Runnable`] while its condition holds, one epoch at a time. It knows
//! nothing of informers, queues or hooks.
//!
//! ```no_run
//! # async fn example(controller: std::sync::Arc<dyn pilotlight::manager::ConditionalRunnable>) {
//! use pilotlight::manager::{Manager, ManagerOptions, RunnableOptions};
//! use tokio_util::sync::CancellationToken;
//!
//! let mut manager = Manager::new(ManagerOptions::default());
//! manager.add("widgets", controller, RunnableOptions::default()).expect("the name is free");
//! let stop = CancellationToken::new();
//! manager.run(stop).await.expect("every runnable ended in time");
//! # }
//! ```

mod backoff;
mod condition;
mod conditional;
mod end;
mod entry;
mod epoch;
mod fence;
mod handle;
mod lifecycle;
mod metrics;
mod name;
mod owner;
mod reason;
mod report;
mod run;
mod runnable;
mod runnable_options;
mod snapshot;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod verdict;

use std::{sync::Arc, time::Duration};

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use backoff::RestartBackoff;
#[cfg(any(test, feature = "meta"))]
pub(crate) use condition::some_of;
pub use condition::{
    Always, Condition, Readiness, all_of, always, any_of, optional, subresource_served, type_served,
};
pub use conditional::Conditional;
pub use end::{BoxError, DoneReason, RunResult, StopReason};
pub use epoch::Epoch;
pub use fence::FenceClosed;
#[cfg(feature = "meta")]
pub(crate) use fence::wait_details;
pub(crate) use fence::{Fence, Write, WriteEnd, WriteObserver, ask, retry_after};
pub use handle::{AddError, ManagerHandle};
pub use lifecycle::RestartPolicy;
pub use metrics::ManagerMetrics;
pub use name::ControllerName;
pub use reason::Reason;
pub use report::{Report, WatchReport, WatchState};
pub use runnable::{ConditionalRunnable, Runnable, RunnableGroup};
pub use runnable_options::{FailurePolicy, RunnableOptions};
pub use snapshot::Snapshot;
pub use status::{ControllerState, Done, RunnableStatus, Transition, TransitionKind};
pub use verdict::{Basis, Subresource, Unmet, Verdict};

/// Settings that apply to all runnables of a manager.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Time for all runnables together to stop; 30 s. `None` waits for ever.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// Time for which later groups wait for the runnables of one group that have not reported
    /// running; 2 min. After that the manager logs the late ones, reports them as `StartTimeout`,
    /// and opens the next group. `None` waits for ever.
    pub group_start_timeout: Option<Duration>,
    /// Delay between a failed run and the next.
    pub restart_backoff: RestartBackoff,
    /// Metrics of this manager; register them with the process's registry.
    pub metrics: ManagerMetrics,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            graceful_shutdown_timeout: Some(Duration::from_secs(30)),
            group_start_timeout: Some(Duration::from_secs(120)),
            restart_backoff: RestartBackoff::default(),
            metrics: ManagerMetrics::default(),
        }
    }
}

/// Error with which a manager ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// A runnable with [`FailurePolicy::FailManager`] failed.
    #[error("{name} failed: {error}")]
    RunnableFailed {
        /// Name of the failed runnable.
        name: ControllerName,
        /// Error of the failed run.
        error: String,
    },
    /// The graceful shutdown timeout expired; the runnables that were still live were abandoned.
    #[error("not stopped in time: {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Late {
        /// Runnables that were still live.
        names: Vec<ControllerName>,
        /// Error for which the manager was stopping, if any.
        #[source]
        before: Option<Box<ManagerError>>,
    },
}

/// Starts and stops runnables. Constructing one spawns nothing.
#[derive(Debug)]
pub struct Manager {
    options: ManagerOptions,
    handle: ManagerHandle,
    commands: mpsc::Receiver<handle::ManagerCommand>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    waiting: Vec<(ControllerName, Arc<dyn ConditionalRunnable>, RunnableOptions)>,
}

impl Manager {
    /// Creates a manager without runnables.
    pub fn new(options: ManagerOptions) -> Self {
        // Room for a burst of declared controllers; a sender beyond it waits.
        let (sender, commands) = mpsc::channel(64);
        let snapshot = watch::Sender::default();
        let handle = ManagerHandle {
            commands: sender,
            snapshot: snapshot.subscribe(),
            // Enough for a test or a log to keep up; a slower receiver gets `Lagged` with the
            // number missed.
            transitions: broadcast::Sender::new(1024),
        };
        Self { options, handle, commands, snapshot, waiting: Vec::new() }
    }

    /// Returns a handle to add and remove runnables and to read their status.
    pub fn handle(&self) -> ManagerHandle {
        self.handle.clone()
    }

    /// Adds a runnable before the manager runs.
    ///
    /// # Errors
    ///
    /// [`AddError::AlreadyThere`] if the name is taken.
    pub fn add(
        &mut self,
        name: impl Into<ControllerName>,
        runnable: Arc<dyn ConditionalRunnable>,
        options: RunnableOptions,
    ) -> Result<(), AddError> {
        let name = name.into();
        if self.waiting.iter().any(|(other, ..)| *other == name) {
            return Err(AddError::AlreadyThere(name));
        }
        self.waiting.push((name, runnable, options));
        Ok(())
    }

    /// Adds a runnable without a condition before the manager runs.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_runnable(
        &mut self,
        name: impl Into<ControllerName>,
        runnable: Arc<dyn Runnable>,
        options: RunnableOptions,
    ) -> Result<(), AddError> {
        self.add(name, Arc::new(Conditional::new(runnable, Always)), options)
    }

    /// Runs until `stop` is cancelled or a runnable with [`FailurePolicy::FailManager`] fails; then
    /// stops every runnable, group by group.
    ///
    /// Semantics: `controllerManager.Start` of controller-runtime (`pkg/manager/internal.go`),
    /// except that no lock is held while groups start, a waiting runnable does not delay later
    /// groups, and late runnables are named.
    ///
    /// # Errors
    ///
    /// [`ManagerError::RunnableFailed`], [`ManagerError::Late`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the runnables without draining them.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ManagerError> {
        let Self { options, handle, commands, snapshot, waiting } = self;
        let metrics = options.metrics.clone();
        let mut owner =
            owner::Owner::new(options, metrics, commands, snapshot, handle.transitions.clone());
        for (name, runnable, options) in waiting {
            // Names were checked in `add`, so this cannot fail.
            owner.add(name, entry::RunnableSpec::new(runnable, options)).unwrap_or_default();
        }
        owner.run(stop).await
    }
}

impl std::fmt::Debug for dyn ConditionalRunnable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConditionalRunnable")
    }
}
