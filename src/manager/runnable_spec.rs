//! Specification of a runnable: its options, and its properties as they were read once.

use std::sync::Arc;

use tracing::warn;

use super::{
    ConditionalRunnable, ControllerName, Epoch, Readiness, Reason, RunnableGroup, RunnableOptions,
    UnmetRequirement, Verdict,
};
use crate::guard::{self, GuardedDrop};

/// Specification of a runnable and how it is supervised. Properties that never change are read
/// once.
pub(super) struct RunnableSpec {
    pub(super) runnable: GuardedDrop<Arc<dyn ConditionalRunnable>>,
    pub(super) options: RunnableOptions,
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
            (group, reports, runnable.keeps_grace(), runnable.warms_up())
        };
        let (responses, broken) = match guard::run(read) {
            Ok(responses) => (responses, None),
            Err(panic) => ((RunnableGroup::LeaderElection, false, false, false), Some(panic)),
        };
        let (group, reports_running, keeps_grace, warms_up) = responses;
        let runnable = GuardedDrop::new(runnable);
        Self { runnable, options, group, reports_running, keeps_grace, warms_up, broken }
    }

    /// Returns whether the runnable runs on the leader only.
    pub(super) fn needs_leadership(&self) -> bool {
        self.group == RunnableGroup::LeaderElection
    }

    /// Returns the runnable's condition; unknown if `ready` panics, because a panic of user code
    /// must not affect other runnables.
    pub(super) fn ready(&self) -> Readiness {
        let unknown = |reason, message| {
            Readiness::fixed(Verdict::Unknown(vec![UnmetRequirement {
                reason,
                message,
                type_ref: None,
            }]))
        };
        if let Some(panic) = &self.broken {
            let message =
                format!("group, reports_running, keeps_grace or warms_up panicked: {panic}");
            return unknown(Reason::RunnablePanicked, message);
        }
        guard::run(|| self.runnable.ready()).unwrap_or_else(|panic| {
            unknown(Reason::ConditionPanicked, format!("its condition panicked: {panic}"))
        })
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
