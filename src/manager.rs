//! Manager (room 2): starts, stops and restarts controllers and other runnables.
//!
//! A [`Manager`] runs each [`Runnable`] while its condition holds, one epoch at a time. It knows
//! nothing of informers, queues or hooks.
//!
//! ```no_run
//! # async fn example(controller: std::sync::Arc<dyn pilotlight::manager::ConditionalRunnable>) {
//! use pilotlight::manager::{CancellationToken, Manager, ManagerOptions, RunnableOptions};
//!
//! let mut manager = Manager::new(ManagerOptions::default());
//! manager.add("widgets", controller, RunnableOptions::default()).expect("the name is free");
//! let stop = CancellationToken::new();
//! manager.run(stop).await.expect("every runnable ended in time");
//! # }
//! ```

mod backoff;
mod check;
mod checks;
mod command;
mod condition;
mod conditional;
mod election;
mod end;
mod epoch;
mod error;
mod fence;
mod handle;
mod lifecycle;
mod metric_parts;
mod metrics;
mod metrics_text;
mod name;
mod options;
mod readiness;
mod reason;
mod registration;
mod report;
mod run;
mod runnable;
mod runnable_check;
mod runnable_options;
mod runnable_spec;
mod snapshot;
mod status;
mod task;
mod tasks;
#[cfg(test)]
mod tests;
mod verdict;

use std::sync::Arc;

/// Registry of metrics, of the version that the library takes.
pub use prometheus_client;
use prometheus_client::registry::Registry;
use tokio::sync::{broadcast, mpsc, watch};
/// Token that stops a manager, of the version that the library takes.
pub use tokio_util::sync::CancellationToken;

use self::{metric_parts::MetricParts, runnable_spec::RunnableSpec};

pub use backoff::RestartBackoff;
pub use check::{Check, CheckResult};
pub use checks::Checks;
pub use condition::{Always, Condition};
pub use conditional::RunnableWithCondition;
#[cfg(test)]
pub(crate) use election::fixture::RuntimeClock;
pub use election::{
    Election, ElectionError, ElectionMetrics, ElectionOptions, ElectionStatus, ElectionTimes,
    ElectionTimesError,
};
pub use end::{BoxError, DoneReason, RunResult, StopReason};
pub use epoch::Epoch;
pub use error::{AddError, ManagerError};
pub use fence::FenceClosed;
pub(crate) use fence::{
    Fence, FencedSender, ObjectIdentity, WriteEnd, WriteObserver, WriteRequest, request_json,
    retry_after,
};
pub(crate) use fence::{Requester, request_bytes, wait_details};
pub use handle::{ManagerHandle, Replacement, ReplacementDiscarded};
pub use lifecycle::RestartPolicy;
pub(crate) use metric_parts::MetricPart;
pub use metrics::ManagerMetrics;
pub use metrics_text::metrics_text;
pub use name::ControllerName;
pub use options::ManagerOptions;
pub use readiness::{
    Readiness, all_of, always, any_of, not, optional, subresource_served, type_served,
};
pub(crate) use readiness::{some_of, subresource_served_if_crd};
pub use reason::Reason;
pub(crate) use registration::Registration;
pub use report::{Report, WatchReport, WatchState};
pub use runnable::{ConditionalRunnable, Runnable, RunnableGroup};
pub use runnable_options::{FailurePolicy, RunnableOptions};
pub use snapshot::Snapshot;
pub use status::{ControllerState, Done, RunnableStatus, Transition, TransitionKind};
pub(crate) use verdict::publish;
pub use verdict::{Basis, Subresource, UnmetRequirement, Verdict};

/// Starts and stops runnables. Constructing one spawns nothing.
///
/// ```no_run
/// # use pilotlight::{controller::*, manager::*};
/// # use std::error::Error;
/// # async fn run(widgets: Controller, cluster: ClusterRunnable) -> Result<(), Box<dyn Error>> {
/// let mut manager = Manager::new(ManagerOptions::default());
/// cluster.add_to(&mut manager, "cluster")?;
/// widgets.add_to(&mut manager)?;
/// let handle = manager.handle(); // Adds, restarts and shows runnables while it runs.
/// # drop(handle);
/// let stop = CancellationToken::new(); // Or `signals::shutdown()?`.
/// manager.run(stop).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Manager {
    options: ManagerOptions,
    handle: ManagerHandle,
    commands: mpsc::Receiver<command::ManagerCommand>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    waiting: Vec<(ControllerName, RunnableSpec)>,
    election: Option<Election>,
}

impl Manager {
    /// Creates a manager without runnables.
    pub fn new(options: ManagerOptions) -> Self {
        // Room for a burst of declared controllers; a sender beyond it waits.
        let (sender, commands) = mpsc::channel(64);
        let snapshot = watch::Sender::default();
        let (liveness, alive) = (Checks::default(), snapshot.subscribe());
        liveness.add("manager", move || match alive.has_changed() {
            Ok(_) => Ok(()),
            Err(_) => Err("the manager has ended"),
        });
        let metrics = MetricParts::default();
        let own = options.metrics.clone();
        metrics.add(MetricPart::Own, move |all| own.register(all));
        let handle = ManagerHandle {
            commands: sender,
            metrics,
            snapshot: snapshot.subscribe(),
            liveness,
            readiness: Checks::of_runnables(snapshot.subscribe()),
            // Enough for a test or a log to keep up; a slower receiver gets `Lagged` with the
            // number missed.
            transitions: broadcast::Sender::new(1024),
        };
        Self { options, handle, commands, snapshot, waiting: Vec::new(), election: None }
    }

    /// Takes part in an election: runnables of [`RunnableGroup::LeaderElection`] run only while
    /// this replica leads.
    ///
    /// The campaign begins when every group is open. While this replica does not lead, controllers
    /// fill their caches and queues, and write nothing. At the renew deadline, or when another
    /// holder is in the lease, elected epochs end at once, without a grace, as
    /// [`DoneReason::LeaseLost`]; then the replica stands by again. At the end of the manager the
    /// lease is released after the last elected epoch is done.
    #[must_use]
    pub fn elect(self, election: Election) -> Self {
        let status = election.status();
        self.handle.readiness.add("leader-election", move || status.borrow().check());
        let metrics = election.metrics().clone();
        self.handle.metrics.add(MetricPart::Own, move |all| metrics.register(all));
        Self { election: Some(election), ..self }
    }

    /// Returns a handle to add and remove runnables and to read their status.
    pub fn handle(&self) -> ManagerHandle {
        self.handle.clone()
    }

    /// Registers all metrics of the manager, as
    /// [`ManagerHandle::register_metrics`] does.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.handle.register_metrics(registry);
    }

    /// Adds a runnable before the manager runs.
    ///
    /// # Errors
    ///
    /// [`AddError::AlreadyThere`] if the name is taken, [`AddError::OtherName`] if the runnable was
    /// built with another one, [`AddError::ConditionOfRunsOnce`].
    pub fn add(
        &mut self,
        name: impl Into<ControllerName>,
        runnable: Arc<dyn ConditionalRunnable>,
        options: RunnableOptions,
    ) -> Result<(), AddError> {
        let name = name.into();
        let spec = RunnableSpec::new(runnable, options);
        spec.check_name(&name)?;
        spec.check_condition(&name)?;
        if self.waiting.iter().any(|(other, _)| *other == name) {
            return Err(AddError::AlreadyThere(name));
        }
        self.waiting.push((name, spec));
        Ok(())
    }

    /// Adds a runnable of a type without a condition before the manager runs. It runs always: the
    /// condition of a controller would not be asked, and [`Manager::add`] or
    /// [`Controller::add_to`](crate::controller::Controller::add_to) keeps it. A cluster has
    /// [`ClusterRunnable::add_to`](crate::controller::ClusterRunnable::add_to).
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
        self.add(name, Arc::new(RunnableWithCondition::of_runnable(runnable, Always)), options)
    }

    /// Adds a runnable under a name, or under that name with the lowest number that is free.
    pub(crate) fn add_numbered(
        &mut self,
        name: &str,
        runnable: Arc<dyn ConditionalRunnable>,
    ) -> Result<ControllerName, AddError> {
        let is_free = |name: &ControllerName| self.waiting.iter().all(|(other, _)| other != name);
        let name = name::numbered(name).find(is_free).expect("numbers are endless");
        self.add(name.clone(), runnable, RunnableOptions::default())?;
        Ok(name)
    }

    /// Runs until `stop` is cancelled or a runnable with [`FailurePolicy::FailManager`] fails; then
    /// stops every runnable, group by group.
    ///
    /// Semantics: `controllerManager.Start` of controller-runtime (`pkg/manager/internal.go`).
    /// Differences: no lock is held while groups start, a waiting runnable does not delay later
    /// groups, and late runnables are named.
    ///
    /// # Errors
    ///
    /// [`ManagerError::RunnableFailed`], [`ManagerError::ElectionFailed`], [`ManagerError::Late`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the runnables without draining them.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ManagerError> {
        let Self { options, handle, commands, snapshot, waiting, election, .. } = self;
        handle.metrics.label_clusters();
        let transitions = handle.transitions.clone();
        let mut owner = task::ManagerTask::new(options, commands, snapshot, transitions, election);
        for (name, spec) in waiting {
            // Checked in `add`, so this cannot fail.
            owner.add(name, spec).unwrap_or_default();
        }
        owner.run(stop).await
    }
}
