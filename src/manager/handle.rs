//! Handle on a running manager.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tracing::warn;

use super::{
    AddError, Always, Checks, ConditionalRunnable, ControllerName, Registration, Runnable,
    RunnableOptions, RunnableStatus, RunnableWithCondition, Snapshot, Transition,
    command::{ManagerCommand, ManagerReply},
    metric_parts::{MetricPart, MetricParts},
    name,
    runnable_spec::RunnableSpec,
};
use crate::guard;

/// Handle to add, replace and remove runnables and to read their status. Cheap to clone; works
/// before and while the manager runs.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use pilotlight::manager::*;
/// # async fn example(manager: Manager, job: Arc<dyn Runnable>) -> Result<(), AddError> {
/// let handle = manager.handle(); // Then `manager.run(stop)` in a task or in `main`.
/// handle.add_runnable("job", job, RunnableOptions::default()).await?;
/// let mut snapshots = handle.watch();
/// while snapshots.changed().await.is_ok() {
///     let Some(status) = handle.status_of("job") else { break };
///     println!("{:?}: {}", status.state, status.message);
///     if status.state == ControllerState::Running {
///         break;
///     }
/// }
/// handle.remove("job").await; // Resolves when it is done.
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManagerHandle {
    pub(super) commands: mpsc::Sender<ManagerCommand>,
    pub(super) snapshot: watch::Receiver<Arc<Snapshot>>,
    pub(super) transitions: broadcast::Sender<Transition>,
    pub(super) liveness: Checks,
    pub(super) readiness: Checks,
    pub(super) metrics: MetricParts,
}

/// Replacement that the manager has accepted, from [`ManagerHandle::replace`] or
/// [`Controller::replace_in`](crate::controller::Controller::replace_in). Its drop changes nothing.
///
/// ```
/// use pilotlight::{controller::Controller, manager::*};
///
/// /// Replaces a controller, and waits until the new one has taken over.
/// async fn replace(
///     manager: &ManagerHandle,
///     controller: Controller,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     controller.replace_in(manager).await?.installed().await?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Replacement {
    installed: oneshot::Receiver<()>,
}

/// Error of a replacement that never takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the replacement was discarded by a later one, by the removal of its runnable, or by the end of \
     the manager"
)]
pub struct ReplacementDiscarded;

impl Replacement {
    /// Waits until the new specification has taken over: the old epoch is done, and the next one
    /// starts once the condition of the new specification is met.
    ///
    /// # Errors
    ///
    /// [`ReplacementDiscarded`]; the old specification stays, unless it was removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing but that it cannot be awaited again.
    pub async fn installed(self) -> Result<(), ReplacementDiscarded> {
        self.installed.await.map_err(|_| ReplacementDiscarded)
    }
}

impl ManagerHandle {
    /// Adds a runnable; it starts when its group is open and its condition is met.
    ///
    /// Resolves when the manager has accepted the runnable, therefore not before the manager runs.
    ///
    /// # Errors
    ///
    /// [`AddError::AlreadyThere`], [`AddError::OtherName`], [`AddError::ConditionOfRunsOnce`],
    /// [`AddError::Stopping`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, the runnable may or may not have been added.
    pub async fn add(
        &self,
        name: impl Into<ControllerName>,
        runnable: Arc<dyn ConditionalRunnable>,
        options: RunnableOptions,
    ) -> Result<(), AddError> {
        let name = name.into();
        let spec = RunnableSpec::new(runnable, options);
        self.request(|reply| ManagerCommand::Add(name, spec, reply)).await
    }

    /// Adds a runnable of a type without a condition. It runs always: the condition of a controller
    /// would not be asked, and [`ManagerHandle::add`] keeps it. A cluster has
    /// [`ClusterRunnable::add_to_running`](crate::controller::ClusterRunnable::add_to_running).
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`].
    pub async fn add_runnable(
        &self,
        name: impl Into<ControllerName>,
        runnable: Arc<dyn Runnable>,
        options: RunnableOptions,
    ) -> Result<(), AddError> {
        self.add(name, Arc::new(RunnableWithCondition::of_runnable(runnable, Always)), options)
            .await
    }

    /// Adds a runnable under a name, or under that name with the lowest number that is free.
    pub(crate) async fn add_numbered(
        &self,
        name: &str,
        runnable: Arc<dyn ConditionalRunnable>,
    ) -> Result<ControllerName, AddError> {
        let mut names = name::numbered(name);
        loop {
            let name = names.next().expect("numbers are endless");
            let options = RunnableOptions::default();
            match self.add(name.clone(), Arc::clone(&runnable), options).await {
                Err(AddError::AlreadyThere(_)) => {}
                end => return end.map(|()| name),
            }
        }
    }

    /// Replaces the specification of a runnable;
    /// [`Controller::replace_in`](crate::controller::Controller::replace_in) does so under the
    /// controller's own name.
    ///
    /// The running epoch continues until the condition of the new specification is met and the new
    /// runnable is prepared. Then the epoch is stopped as superseded and the new one starts. Until
    /// then `pending` in the status has the reason. A later replacement discards a waiting one.
    /// Replacing a runnable with itself only discards the waiting replacement.
    ///
    /// Resolves when the manager has accepted the specification; [`Replacement::installed`] waits
    /// until it has taken over.
    ///
    /// # Errors
    ///
    /// [`AddError::NotThere`], [`AddError::OtherName`], [`AddError::Stopping`], and
    /// [`AddError::RunsOnce`] for a runnable that cannot be started again, such as that of a cluster:
    /// remove it, and add a new one.
    ///
    /// # Cancel safety
    ///
    /// If dropped early, the runnable may or may not be replaced.
    pub async fn replace(
        &self,
        name: impl Into<ControllerName>,
        runnable: Arc<dyn ConditionalRunnable>,
        options: RunnableOptions,
    ) -> Result<Replacement, AddError> {
        let name = name.into();
        let spec = RunnableSpec::new(runnable, options);
        let (sender, installed) = oneshot::channel();
        self.request(|reply| ManagerCommand::Replace(name, spec, sender, reply)).await?;
        Ok(Replacement { installed })
    }

    /// Stops the running epoch of a runnable as superseded, and starts the next one without a
    /// back-off. Resolves when the old epoch is done; [`ManagerHandle::watch`] shows the new one.
    ///
    /// A runnable that backs off, or has stopped for good, starts again at once. One that waits for
    /// its condition still waits. A replacement that can start takes over.
    ///
    /// # Errors
    ///
    /// [`AddError::NotThere`], [`AddError::Stopping`], and [`AddError::RunsOnce`] as for
    /// [`ManagerHandle::replace`].
    ///
    /// # Cancel safety
    ///
    /// Once polled, the restart happens even if the future is dropped, unless it is still waiting
    /// for a place among the 64 commands that the manager queues.
    pub async fn restart(&self, name: impl Into<ControllerName>) -> Result<(), AddError> {
        let name = name.into();
        self.request(|reply| ManagerCommand::Restart(name, reply)).await
    }

    /// Removes a runnable; resolves when its epoch is done and the name is free. No error if no
    /// runnable has that name.
    ///
    /// A reconcile or task of the epoch that awaits its own removal is dropped after the grace: the
    /// end of the epoch waits for it. Await the removal outside of the epoch.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the removal happens even if the future is dropped, unless it is still waiting
    /// for a place among the 64 commands that the manager queues.
    pub async fn remove(&self, name: impl Into<ControllerName>) {
        let (reply, removed) = oneshot::channel();
        // A manager that has ended has removed everything.
        self.answer(ManagerCommand::Remove(name.into(), reply), removed).await.unwrap_or_default();
    }

    /// Current status of every runnable.
    pub fn status(&self) -> Arc<Snapshot> {
        self.snapshot.borrow().clone()
    }

    /// Current status of one runnable.
    pub fn status_of(&self, name: impl Into<ControllerName>) -> Option<Arc<RunnableStatus>> {
        self.snapshot.borrow().get(&name.into()).cloned()
    }

    /// Watches snapshots. Each snapshot includes every change of the one before.
    pub fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshot.clone()
    }

    /// Subscribes to every transition from now on. A receiver that lags by more than 1024 gets
    /// `Lagged`.
    pub fn transitions(&self) -> broadcast::Receiver<Transition> {
        self.transitions.subscribe()
    }

    /// Returns the checks of liveness, whose failure means that the process should be restarted. The
    /// check `manager` fails once the manager has ended.
    pub fn liveness(&self) -> Checks {
        self.liveness.clone()
    }

    /// Returns the checks of readiness: those of the runnables, of the clusters and of the election.
    ///
    /// A runnable that waits is ready, and one that fails, or waits for a cluster which no manager
    /// runs, is degraded. A stuck one is not ready. A cluster is not ready before it has discovered
    /// its types.
    pub fn readiness(&self) -> Checks {
        self.readiness.clone()
    }

    /// Registers all metrics of the manager: of its runnables and its election, of its clusters with
    /// their controllers and informers, and those of [`ManagerHandle::add_metrics`].
    ///
    /// The metrics of several clusters that were added before the manager ran have the label
    /// `cluster`: the name of the cluster's runnable. A cluster that was added later always has it.
    /// Encode them with
    /// [`metrics_text`](super::metrics_text). A registry holds the parts that exist now: register at
    /// each scrape, as the page of [`server::metrics`](crate::server) does, to follow clusters that
    /// come and go. Metrics of the connections belong to a cluster by
    /// [`ClusterRunnable::with_metrics`](crate::controller::ClusterRunnable::with_metrics).
    ///
    /// ```
    /// use pilotlight::manager::{
    ///     Manager, ManagerOptions, metrics_text, prometheus_client::registry::Registry,
    /// };
    ///
    /// let handle = Manager::new(ManagerOptions::default()).handle();
    /// let scrape = move || {
    ///     let mut metrics = Registry::default();
    ///     handle.register_metrics(&mut metrics);
    ///     metrics_text(&metrics)
    /// };
    /// assert!(scrape().unwrap().contains("pilotlight_controller_tasks"));
    /// ```
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Adds metrics of the program to those of [`ManagerHandle::register_metrics`], in place of those
    /// of the same name.
    ///
    /// ```
    /// use pilotlight::manager::{Manager, ManagerOptions};
    /// use prometheus_client::metrics::counter::Counter;
    ///
    /// let handle = Manager::new(ManagerOptions::default()).handle();
    /// let orders = Counter::<u64>::default();
    /// handle.add_metrics("orders", move |all| all.register("orders", "Orders", orders.clone()));
    /// ```
    pub fn add_metrics(
        &self,
        name: impl Into<String>,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) {
        self.metrics.add(MetricPart::Named(name.into()), register);
    }

    /// Removes metrics of the program, if there are any of this name.
    pub fn remove_metrics(&self, name: &str) {
        self.metrics.remove_named(name);
    }

    /// Adds the metrics of a part of the crate, until the registration is dropped.
    pub(crate) fn register_part(
        &self,
        part: MetricPart,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) -> Registration {
        self.metrics.register_part(part, register)
    }

    /// Returns the state of a runnable for debugging, from [`Runnable::debug`]: for a controller the
    /// requests in its queue. `None` if no runnable has this name, or if it has no such state.
    ///
    /// Runs the code of the runnable in the caller's task.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing changes.
    pub async fn debug(&self, name: impl Into<ControllerName>) -> Option<serde_json::Value> {
        let (reply, found) = oneshot::channel();
        let runnable = self.answer(ManagerCommand::Find(name.into(), reply), found).await??;
        guard::run(|| runnable.debug()).unwrap_or_else(|error| {
            warn!(error, "`Runnable::debug` panicked");
            None
        })
    }

    async fn request(
        &self,
        command: impl FnOnce(ManagerReply) -> ManagerCommand,
    ) -> Result<(), AddError> {
        let (reply, response) = oneshot::channel();
        self.answer(command(reply), response).await.unwrap_or(Err(AddError::Stopping))
    }

    /// Sends a command and waits for its answer; `None` if the manager has ended without one.
    async fn answer<T>(
        &self,
        command: ManagerCommand,
        mut answer: oneshot::Receiver<T>,
    ) -> Option<T> {
        self.commands.send(command).await.ok()?;
        tokio::select! {
            biased;
            answer = &mut answer => answer.ok(),
            // A command that is sent while the manager drops its receiver stays in the channel with
            // its reply until the last handle is dropped.
            () = self.commands.closed() => answer.try_recv().ok(),
        }
    }
}
