//! Readiness checks of the manager.

use std::fmt;

use pilotlight::{
    discovery::DiscoveryMode,
    manager::{ControllerState, ElectionStatus, Reason, RunnableStatus, Snapshot},
    meta::ControllerKind,
};

/// Number of failures in a row from which a controller is marked, though the manager stays ready.
const MANY_FAILURES: u32 = 3;

/// Line of `/readyz?verbose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) result: CheckResult,
    pub(super) detail: String,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    Passed,
    /// The check is marked as failed, but the manager stays ready: one controller must not make all
    /// others unready.
    Degraded,
    /// The manager is not ready.
    Failed,
}

/// Returns all checks.
///
/// A controller that waits for a type is ready. Marked are long back-offs, controllers that cannot
/// sync, and the supervisor while its own CRD is missing. A stuck controller fails the check, since
/// it holds its name until the process is restarted.
pub(super) fn checks(
    types_known: bool,
    mode: &DiscoveryMode,
    controllers: &Snapshot,
) -> Vec<Check> {
    let (result, detail) = match mode {
        _ if !types_known => {
            (CheckResult::Failed, "no answer about the server's types yet".to_owned())
        }
        DiscoveryMode::NotStarted => (CheckResult::Degraded, "does not run".to_owned()),
        DiscoveryMode::Static(_) => (CheckResult::Degraded, "is polled".to_owned()),
        DiscoveryMode::Watching => (CheckResult::Passed, String::new()),
    };
    let discovery = Check { name: "discovery".into(), result, detail };
    std::iter::once(discovery).chain(controllers.values().map(|status| check(status))).collect()
}

/// Returns the line of the election. A replica that does not lead is ready: it takes over when the
/// leader ends. Identities are left out, as messages are.
pub(super) fn election(status: &ElectionStatus) -> Check {
    let (result, detail) = match (&status.error, status.leads) {
        (Some(_), _) => (CheckResult::Degraded, "the lease cannot be reached"),
        (None, true) => (CheckResult::Passed, "leads"),
        (None, false) => (CheckResult::Passed, "stands by"),
    };
    Check { name: "leader-election".into(), result, detail: detail.into() }
}

/// Returns the line of one runnable: name, state and reason. The message is left out, since anyone
/// who reaches the probe port can read it; `/debug/status` has it.
fn check(status: &RunnableStatus) -> Check {
    let (result, reason) = judge(status);
    let reason = reason.unwrap_or(status.reason.as_str());
    let detail = format!("{} {reason}", status.state.word());
    Check { name: format!("controller/{}", status.name), result, detail }
}

/// Returns the result, with a reason if it differs from the state's.
fn judge(status: &RunnableStatus) -> (CheckResult, Option<&'static str>) {
    let report = &status.report;
    let is_active = matches!(status.state, ControllerState::Starting | ControllerState::Running);
    match status.state {
        _ if status.stuck => (CheckResult::Failed, Some("Stuck")),
        ControllerState::BackingOff if status.failures >= MANY_FAILURES => {
            (CheckResult::Degraded, None)
        }
        ControllerState::Waiting if is_without_its_crd(status) => (CheckResult::Degraded, None),
        _ if is_active && !report.forbidden.is_empty() => {
            (CheckResult::Degraded, Some("Forbidden"))
        }
        ControllerState::Starting if !report.unconverted.is_empty() => {
            (CheckResult::Degraded, Some("ConversionFailed"))
        }
        ControllerState::Starting if !report.late.is_empty() => (CheckResult::Degraded, None),
        ControllerState::Running if report.stale => (CheckResult::Degraded, Some("Stale")),
        ControllerState::Running if report.failing => (CheckResult::Degraded, Some("SyncsFailing")),
        ControllerState::Waiting
        | ControllerState::Starting
        | ControllerState::Running
        | ControllerState::Stopping
        | ControllerState::BackingOff
        | ControllerState::Stopped => (CheckResult::Passed, None),
    }
}

/// Returns whether this is a supervisor and its CRD is missing: declarations cannot change, so
/// the manager is degraded.
fn is_without_its_crd(status: &RunnableStatus) -> bool {
    let waits = status.state == ControllerState::Waiting && status.reason != Reason::NotStarted;
    waits && ControllerKind::ALL.iter().any(|kind| status.name.as_str() == kind.plural())
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.result {
            CheckResult::Passed => '+',
            CheckResult::Degraded => '!',
            CheckResult::Failed => '-',
        };
        write!(f, "[{mark}]{}", self.name)?;
        if self.detail.is_empty() { f.write_str(" ok") } else { write!(f, " {}", self.detail) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilotlight::manager::RunnableGroup;

    use super::*;

    fn controller(state: ControllerState) -> RunnableStatus {
        RunnableStatus {
            state,
            reason: "Because".into(),
            epoch: 1,
            ..RunnableStatus::new("widgets".into(), RunnableGroup::LeaderElection)
        }
    }

    #[track_caller]
    fn check_result(status: RunnableStatus, expected: CheckResult) -> String {
        let snapshot = Snapshot::from_iter([Arc::new(status)]);
        let checks = checks(true, &DiscoveryMode::Watching, &snapshot);
        assert_eq!(checks[1].result, expected, "{}", checks[1]);
        checks[1].to_string()
    }

    #[test]
    fn a_waiting_controller_is_ready_and_says_why_it_waits() {
        let mut status = controller(ControllerState::Waiting);
        status.reason = "TypeAbsent".into();
        status.message = "widgets.example.com/v1 is not installed".into();

        let line = check_result(status, CheckResult::Passed);

        assert_eq!(line, "[+]controller/widgets Waiting TypeAbsent", "no message: anybody may ask");
    }

    #[test]
    fn a_stuck_controller_fails_and_one_that_keeps_failing_shows() {
        check_result(
            RunnableStatus { stuck: true, ..controller(ControllerState::Stopping) },
            CheckResult::Failed,
        );
        check_result(
            RunnableStatus { failures: 1, ..controller(ControllerState::BackingOff) },
            CheckResult::Passed,
        );
        check_result(
            RunnableStatus { failures: 3, ..controller(ControllerState::BackingOff) },
            CheckResult::Degraded,
        );
    }

    #[test]
    fn a_controller_that_cannot_sync_shows_and_holds_up_no_readiness() {
        let mut late = controller(ControllerState::Starting);
        late.reason = "SyncTimeout".into();
        late.message = "no rule lets you list widgets".into();
        late.report.late = vec![late.message.clone()];

        let line = check_result(late, CheckResult::Degraded);

        assert_eq!(line, "[!]controller/widgets Starting SyncTimeout");
    }

    #[test]
    fn a_controller_that_may_not_list_shows_before_it_is_late() {
        for state in [ControllerState::Starting, ControllerState::Running] {
            let mut forbidden = controller(state);
            forbidden.report.forbidden = vec!["grant list and watch on widgets".into()];

            let line = check_result(forbidden, CheckResult::Degraded);

            assert_eq!(line, format!("[!]controller/widgets {} Forbidden", state.word()));
        }
    }

    #[test]
    fn a_controller_whose_syncs_fail_shows_and_holds_up_no_readiness() {
        let mut failing = controller(ControllerState::Running);
        failing.report.failing = true;

        let line = check_result(failing, CheckResult::Degraded);

        assert_eq!(line, "[!]controller/widgets Running SyncsFailing");
    }

    #[test]
    fn nothing_is_ready_before_the_types_are_known() {
        let checks = checks(false, &DiscoveryMode::Watching, &Snapshot::default());

        assert_eq!(checks[0].result, CheckResult::Failed);
    }

    #[test]
    fn discovery_that_is_polled_shows_and_holds_up_no_readiness() {
        let mode = DiscoveryMode::Static("grant watch on CRDs".into());

        let checks = checks(true, &mode, &Snapshot::default());

        assert_eq!(checks[0].result, CheckResult::Degraded);
        assert_eq!(checks[0].to_string(), "[!]discovery is polled");
    }

    #[test]
    fn a_manager_without_its_own_crds_is_degraded_and_ready() {
        let mut own =
            RunnableStatus::new("compositecontrollers".into(), RunnableGroup::LeaderElection);
        own.reason = "TypeAbsent".into();
        own.message = "CompositeController is not installed".into();

        let line = check_result(own, CheckResult::Degraded);

        assert_eq!(line, "[!]controller/compositecontrollers Waiting TypeAbsent");
    }

    #[test]
    fn a_controller_whose_conversion_webhook_fails_shows_and_holds_up_no_readiness() {
        let mut starting = controller(ControllerState::Starting);
        starting.report.unconverted = vec!["conversion webhook for Widget failed".into()];

        check_result(starting, CheckResult::Degraded);
    }
}
