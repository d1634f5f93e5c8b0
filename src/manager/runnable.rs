//! Runnables: the units of work that a manager starts and stops, through the two methods of the
//! lifecycle proposal, `ready` and `start`.

use futures::future::BoxFuture;

use super::{ControllerName, Epoch, Readiness, RunResult, always};

/// Order in which runnables start and stop.
///
/// Groups start in this order. A group starts after the runnables of `HttpServers`, `Webhooks` and
/// `Caches` in the groups before it are running. Runnables of `Others` and `Warmup` delay neither
/// later groups nor the election. A group waits only for runnables that are starting, and no longer
/// than [`ManagerOptions::group_start_timeout`](super::ManagerOptions::group_start_timeout). A
/// runnable that waits for its condition, or that has failed and backs off, does not delay later
/// groups; use [`RunnableOptions::fail_fast`](super::RunnableOptions::fail_fast) if the manager is
/// useless without it.
///
/// `Others` and `Warmup` stop first, together. The others then stop in reverse.
///
/// Semantics: `runnables` of controller-runtime (`pkg/manager/runnable_group.go`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunnableGroup {
    /// Probes and metrics: the first to start and the last to stop.
    HttpServers,
    /// Conversion and admission webhooks: caches may need them to list.
    Webhooks,
    /// Caches and discovery: later groups wait until they run.
    Caches,
    /// Runnables that run on every replica.
    Others,
    /// Runnables that run on every replica, and prepare what the elected ones need.
    Warmup,
    /// Runnables that need leadership; the default. If the manager takes part in an
    /// [`Election`](super::Election), they run only on the leader; without one they run always.
    /// Runnables of all other groups run on every replica.
    #[default]
    LeaderElection,
}

/// Unit of work that a manager starts and stops. A closure is a runnable that runs always, on the
/// leader; [`RunnableWithCondition`](super::RunnableWithCondition) adds a condition.
///
/// ```
/// use std::sync::Arc;
///
/// use pilotlight::manager::{Epoch, Manager, ManagerOptions, RunnableOptions};
///
/// let mut manager = Manager::new(ManagerOptions::default());
/// let report = |epoch: Epoch| async move {
///     println!("epoch {} has begun", epoch.number());
///     epoch.stopping().await;
///     Ok(())
/// };
/// manager.add("report", Arc::new(report), RunnableOptions::default()).expect("the name is free");
/// ```
pub trait Runnable: Send + Sync + 'static {
    /// Runs one epoch: until [`Epoch::stopping`] resolves, or until the work is done.
    ///
    /// When the returned future ends, the epoch is stopping. Tasks of [`Epoch::spawn`] have the
    /// grace, and are then dropped at their next await. The epoch is done when nothing of it is
    /// left. `start` is called again for every epoch, so it builds the state of an epoch from
    /// `self`. When the grace is over the future is dropped, unless [`Runnable::keeps_grace`].
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult>;

    /// Returns the name that the runnable was built with, if it has one. A manager refuses it under
    /// another name, so that its metrics, field manager and log agree.
    fn name(&self) -> Option<&ControllerName> {
        None
    }

    /// Returns whether the runnable can be started only once. It is never restarted, and has no
    /// condition: [`AddError::ConditionOfRunsOnce`](super::AddError::ConditionOfRunsOnce). A handle
    /// refuses to [`restart`](super::ManagerHandle::restart) or
    /// [`replace`](super::ManagerHandle::replace) it.
    fn runs_once(&self) -> bool {
        false
    }

    /// Returns the group that determines when the runnable starts and stops.
    fn group(&self) -> RunnableGroup {
        RunnableGroup::LeaderElection
    }

    /// Returns whether the runnable calls [`Epoch::running`] once it has started up. If not, it
    /// counts as running as soon as it is started.
    fn reports_running(&self) -> bool {
        false
    }

    /// Returns whether the run ends by itself within [`Epoch::grace`], even if a task takes longer.
    ///
    /// If so, its future is never dropped; a run that does not end is reported as stuck. Otherwise
    /// the future is dropped when the grace is over, wherever it is.
    fn keeps_grace(&self) -> bool {
        false
    }

    /// Returns whether an epoch starts before this replica leads, if the runnable needs leadership.
    ///
    /// A run before leadership prepares, without a write, until [`Epoch::leading`] resolves; the
    /// fence of the epoch refuses writes until then. Otherwise the runnable starts when this
    /// replica leads.
    fn warms_up(&self) -> bool {
        false
    }

    /// Prepares to replace a running epoch of the same name, which continues meanwhile.
    ///
    /// A failure is reported and leaves the old epoch running.
    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns inner state for debugging, such as the requests in a queue; none by default. Read by
    /// [`ManagerHandle::debug`](super::ManagerHandle::debug).
    fn debug(&self) -> Option<serde_json::Value> {
        None
    }

    /// Releases the resources of [`Runnable::prepare`], because the prepared start does not happen
    /// now.
    fn unprepare(&self) {}
}

/// Runnable that runs while a condition holds.
///
/// The manager calls `ready`, waits until its condition is met and calls `start`. When that run is
/// done, it calls `ready` again. A condition that is lost during a run stops the run.
///
/// [`RunnableWithCondition`](super::RunnableWithCondition) adds a condition to a runnable that has none:
///
/// ```
/// use std::sync::Arc;
///
/// use pilotlight::{discovery::TypeRegistry, kind::TypeRef, manager::*};
///
/// # fn example(types: TypeRegistry, manager: &mut Manager) -> Result<(), AddError> {
/// let job = |epoch: Epoch| async move {
///     epoch.stopping().await;
///     Ok(())
/// };
/// let widgets = TypeRef::kind("example.com", "v1", "Widget");
/// let job = RunnableWithCondition::new(Arc::new(job), move || type_served(&types, &widgets));
/// manager.add("job", Arc::new(job), RunnableOptions::default())?;
/// # Ok(())
/// # }
/// ```
pub trait ConditionalRunnable: Runnable {
    /// Returns a subscription to the condition under which this can run. Called at the addition,
    /// after each epoch that may be followed by another, after a back-off, and at a restart; after a
    /// panic again in 1 s to 60 s.
    fn ready(&self) -> Readiness;
}

impl<F, R> Runnable for F
where
    F: Fn(Epoch) -> R + Send + Sync + 'static,
    R: Future<Output = RunResult> + Send + 'static,
{
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(self(epoch))
    }
}

impl<F, R> ConditionalRunnable for F
where
    F: Fn(Epoch) -> R + Send + Sync + 'static,
    R: Future<Output = RunResult> + Send + 'static,
{
    fn ready(&self) -> Readiness {
        always()
    }
}
