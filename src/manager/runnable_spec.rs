//! Specification of a runnable: its options, and its properties as they were read once.

use std::sync::Arc;

use tracing::warn;

use super::{
    AddError, ConditionalRunnable, ControllerName, Epoch, Readiness, Reason, RestartPolicy,
    RunnableGroup, RunnableOptions, UnmetRequirement, Verdict,
};
use crate::guard::{self, GuardedDrop};

/// Specification of a runnable and how it is supervised. Properties that never change are read
/// once.
pub(super) struct RunnableSpec {
    pub(super) runnable: GuardedDrop<Arc<dyn ConditionalRunnable>>,
    pub(super) options: RunnableOptions,
    /// Name that the runnable was built with, if it has one.
    pub(super) own_name: Option<ControllerName>,
    pub(super) runs_once: bool,
    pub(super) group: RunnableGroup,
    pub(super) reports_running: bool,
    pub(super) keeps_grace: bool,
    pub(super) warms_up: bool,
    /// Panic message, if the read of a property panicked.
    broken: Option<String>,
}

impl RunnableSpec {
    pub(super) fn new(runnable: Arc<dyn ConditionalRunnable>, options: RunnableOptions) -> Self {
        let read = || {
            let (group, reports) = (runnable.group(), runnable.reports_running());
            let start = (runnable.name().cloned(), runnable.runs_once());
            (start, group, reports, runnable.keeps_grace(), runnable.warms_up())
        };
        let (properties, broken) = match guard::run(read) {
            Ok(properties) => (properties, None),
            Err(panic) => (Default::default(), Some(panic)),
        };
        let ((own_name, runs_once), group, reports_running, keeps_grace, warms_up) = properties;
        let runnable = GuardedDrop::new(runnable);
        Self {
            runnable,
            options,
            own_name,
            runs_once,
            group,
            reports_running,
            keeps_grace,
            warms_up,
            broken,
        }
    }

    /// Checks that the runnable was built with this name, or with none.
    pub(super) fn check_name(&self, given: &ControllerName) -> Result<(), AddError> {
        match &self.own_name {
            Some(own) if own != given => {
                Err(AddError::OtherName { given: given.clone(), own: own.clone() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that a runnable that can be started only once has no condition.
    pub(super) fn check_condition(&self, name: &ControllerName) -> Result<(), AddError> {
        if !self.runs_once || self.ready().is_ok_and(|readiness| readiness.is_always()) {
            return Ok(());
        }
        Err(AddError::ConditionOfRunsOnce(name.clone()))
    }

    /// Returns whether the runnable runs on the leader only.
    pub(super) fn needs_leadership(&self) -> bool {
        self.group == RunnableGroup::LeaderElection
    }

    /// Returns the runnable's condition, or the message of a panic of `ready`. The condition of a
    /// runnable whose properties panicked stays unknown.
    pub(super) fn ready(&self) -> Result<Readiness, String> {
        if let Some(panic) = &self.broken {
            let message =
                format!("a property of the runnable, such as its group, panicked: {panic}");
            let reason = Reason::RunnablePanicked;
            let unmet = UnmetRequirement { reason, message, type_ref: None };
            return Ok(Readiness::fixed(Verdict::Unknown(vec![unmet])));
        }
        guard::run(|| self.runnable.ready())
    }

    /// Returns the restart policy. A runnable that can be started only once is never restarted.
    pub(super) fn restart_policy(&self) -> RestartPolicy {
        match self.runs_once {
            true => RestartPolicy::Never,
            false => self.options.restart,
        }
    }

    /// Releases the resources of `prepare`. A panic is reported in the status of the epoch that
    /// runs meanwhile.
    pub(super) fn unprepare(&self, name: &ControllerName, epoch: Option<&Epoch>) {
        if let Err(error) = guard::run(|| self.runnable.unprepare()) {
            warn!(controller = %name, error, "`unprepare` panicked");
            if let Some(epoch) = epoch {
                let error = format!("`unprepare` panicked: {error}");
                epoch.report(|report| report.last_error = Some(error));
            }
        }
    }
}

impl std::fmt::Debug for RunnableSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnableSpec").field("group", &self.group).finish_non_exhaustive()
    }
}
