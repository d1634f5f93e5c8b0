//! Runnable with a condition that the user adds.

mod addition;

use std::sync::Arc;

use futures::future::BoxFuture;
use tracing::warn;

use super::{
    Condition, ConditionalRunnable, ControllerName, Epoch, Readiness, RunResult, Runnable,
    RunnableGroup, all_of,
};
use crate::guard::{self, GuardedDrop};

/// Runnable that runs only while a condition is met.
///
/// A condition that is added to a [`Controller`](crate::controller::Controller), or to an adopted
/// one of kube-rs, gets the refusals (403) of its reconciles, as with
/// [`Builder::when`](crate::controller::Builder::when). Any other runnable reports them by
/// [`Epoch::refused`].
///
/// ```
/// # use std::sync::Arc;
/// # use pilotlight::{controller::Controller, manager::*};
/// # use tokio::sync::watch;
/// # fn example(backup: Controller, manager: &mut Manager) -> Result<(), AddError> {
/// let (open, verdicts) = watch::channel(Verdict::Unknown(Vec::new()));
/// let at_night = move || Readiness::published(verdicts.clone());
/// # drop(open);
/// RunnableWithCondition::new(Arc::new(backup), at_night).add_to(manager)?;
/// # Ok(())
/// # }
/// ```
pub struct RunnableWithCondition {
    runnable: GuardedDrop<Arc<dyn Runnable>>,
    /// Condition of the runnable itself.
    own: Option<GuardedDrop<Arc<dyn Condition>>>,
    added: GuardedDrop<Arc<dyn Condition>>,
}

/// Condition of a conditional runnable.
struct OwnCondition(Arc<dyn ConditionalRunnable>);

impl RunnableWithCondition {
    /// Makes `runnable` run only while both its own condition and `condition` are met.
    pub fn new(runnable: Arc<dyn ConditionalRunnable>, condition: impl Condition) -> Self {
        let own: Arc<dyn Condition> = Arc::new(OwnCondition(Arc::clone(&runnable)));
        Self { own: Some(GuardedDrop::new(own)), ..Self::of_runnable(runnable, condition) }
    }

    /// Makes a runnable of a type without a condition run only while `condition` is met.
    ///
    /// A condition that the runnable has nevertheless, as a controller does, is not asked:
    /// [`RunnableWithCondition::new`] keeps it.
    pub fn of_runnable(runnable: Arc<dyn Runnable>, condition: impl Condition) -> Self {
        let added = GuardedDrop::new(Arc::new(condition) as Arc<dyn Condition>);
        Self { runnable: GuardedDrop::new(runnable), own: None, added }
    }
}

impl Condition for OwnCondition {
    fn watch(&self) -> Readiness {
        self.0.ready()
    }
}

impl Runnable for RunnableWithCondition {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let added = self.added.clone();
        self.runnable.start(epoch.on_refused(move || {
            if let Err(error) = guard::run(|| added.refused()) {
                warn!(error, "`Condition::refused` panicked");
            }
        }))
    }

    fn name(&self) -> Option<&ControllerName> {
        self.runnable.name()
    }

    fn runs_once(&self) -> bool {
        self.runnable.runs_once()
    }

    fn group(&self) -> RunnableGroup {
        self.runnable.group()
    }

    fn reports_running(&self) -> bool {
        self.runnable.reports_running()
    }

    fn keeps_grace(&self) -> bool {
        self.runnable.keeps_grace()
    }

    fn warms_up(&self) -> bool {
        self.runnable.warms_up()
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        self.runnable.prepare()
    }

    fn unprepare(&self) {
        self.runnable.unprepare();
    }

    fn debug(&self) -> Option<serde_json::Value> {
        self.runnable.debug()
    }
}

impl ConditionalRunnable for RunnableWithCondition {
    fn ready(&self) -> Readiness {
        all_of(self.own.iter().chain([&self.added]).map(|condition| condition.watch()))
    }
}

impl std::fmt::Debug for RunnableWithCondition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnableWithCondition").finish_non_exhaustive()
    }
}
