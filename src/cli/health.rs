//! Readiness checks of the manager.

use std::fmt;

use pilotlight::{
    discovery::DiscoveryMode,
    manager::{ControllerState, Reason, RunnableStatus, Snapshot},
    meta::SUPERVISOR,
};

/// Number of failures in a row from which a controller is marked, though the manager stays ready.
const MANY_FAILURES: u32 = 3;

/// Line of `/readyz?verbose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) verdict: Verdict,
    pub(super) detail: String,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// Marked, but the manager stays ready, since one controller must not hold up the rest.
    Bad,
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
    let (verdict, detail) = match mode {
        _ if !types_known => (Verdict::Failed, "no answer about the server's types yet".to_owned()),
        DiscoveryMode::Static(_) => (Verdict::Bad, "is polled".to_owned()),
        DiscoveryMode::Watching => (Verdict::Good, String::new()),
    };
    let discovery = Check { name: "discovery".into(), verdict, detail };
    std::iter::once(discovery).chain(controllers.values().map(|status| check(status))).collect()
}

/// Returns the line of one runnable: name, state and reason. The message is left out, since anyone
/// who reaches the probe port can read it; `/debug/status` has it.
fn check(status: &RunnableStatus) -> Check {
    let (verdict, reason) = judge(status);
    let reason = reason.unwrap_or(status.reason.as_str());
    let detail = format!("{} {reason}", status.state.word());
    Check { name: format!("controller/{}", status.name), verdict, detail }
}

/// Returns the verdict, with a reason if it differs from the state's.
fn judge(status: &RunnableStatus) -> (Verdict, Option<&'static str>) {
    let report = &status.report;
    let is_active = matches!(status.state, ControllerState::Starting | ControllerState::Running);
    match status.state {
        _ if status.stuck => (Verdict::Failed, Some("Stuck")),
        ControllerState::BackingOff if status.failures >= MANY_FAILURES => (Verdict::Bad, None),
        ControllerState::Waiting if is_without_its_crd(status) => (Verdict::Bad, None),
        _ if is_active && !report.forbidden.is_empty() => (Verdict::Bad, Some("Forbidden")),
        ControllerState::Starting if !report.unconverted.is_empty() => {
            (Verdict::Bad, Some("ConversionFailed"))
        }
        ControllerState::Starting if !report.late.is_empty() => (Verdict::Bad, None),
        ControllerState::Running if report.stale => (Verdict::Bad, Some("Stale")),
        ControllerState::Running if report.failing => (Verdict::Bad, Some("SyncsFailing")),
        ControllerState::Waiting
        | ControllerState::Starting
        | ControllerState::Running
        | ControllerState::Stopping
        | ControllerState::BackingOff
        | ControllerState::Stopped => (Verdict::Good, None),
    }
}

/// Returns whether this is the supervisor and its CRD is missing: declarations cannot change, so
/// the manager is degraded.
fn is_without_its_crd(status: &RunnableStatus) -> bool {
    let waits = status.state == ControllerState::Waiting && status.reason != Reason::NotStarted;
    waits && status.name.as_str() == SUPERVISOR
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.verdict {
            Verdict::Good => '+',
            Verdict::Bad => '!',
            Verdict::Failed => '-',
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
    fn check_verdict(status: RunnableStatus, expected: Verdict) -> String {
        let snapshot = Snapshot::from_iter([Arc::new(status)]);
        let checks = checks(true, &DiscoveryMode::Watching, &snapshot);
        assert_eq!(checks[1].verdict, expected, "{}", checks[1]);
        checks[1].to_string()
    }

    #[test]
    fn a_waiting_controller_is_ready_and_says_why_it_waits() {
        let mut status = controller(ControllerState::Waiting);
        status.reason = "TypeAbsent".into();
        status.message = "widgets.example.com/v1 is not installed".into();

        let line = check_verdict(status, Verdict::Good);

        assert_eq!(line, "[+]controller/widgets Waiting TypeAbsent", "no message: anybody may ask");
    }

    #[test]
    fn a_stuck_controller_fails_and_one_that_keeps_failing_shows() {
        check_verdict(
            RunnableStatus { stuck: true, ..controller(ControllerState::Stopping) },
            Verdict::Failed,
        );
        check_verdict(
            RunnableStatus { failures: 1, ..controller(ControllerState::BackingOff) },
            Verdict::Good,
        );
        check_verdict(
            RunnableStatus { failures: 3, ..controller(ControllerState::BackingOff) },
            Verdict::Bad,
        );
    }

    #[test]
    fn a_controller_that_cannot_sync_shows_and_holds_up_no_readiness() {
        let mut late = controller(ControllerState::Starting);
        late.reason = "SyncTimeout".into();
        late.message = "no rule lets you list widgets".into();
        late.report.late = vec![late.message.clone()];

        let line = check_verdict(late, Verdict::Bad);

        assert_eq!(line, "[!]controller/widgets Starting SyncTimeout");
    }

    #[test]
    fn a_controller_that_may_not_list_shows_before_it_is_late() {
        for state in [ControllerState::Starting, ControllerState::Running] {
            let mut forbidden = controller(state);
            forbidden.report.forbidden = vec!["grant list and watch on widgets".into()];

            let line = check_verdict(forbidden, Verdict::Bad);

            assert_eq!(line, format!("[!]controller/widgets {} Forbidden", state.word()));
        }
    }

    #[test]
    fn a_controller_whose_syncs_fail_shows_and_holds_up_no_readiness() {
        let mut failing = controller(ControllerState::Running);
        failing.report.failing = true;

        let line = check_verdict(failing, Verdict::Bad);

        assert_eq!(line, "[!]controller/widgets Running SyncsFailing");
    }

    #[test]
    fn nothing_is_ready_before_the_types_are_known() {
        let checks = checks(false, &DiscoveryMode::Watching, &Snapshot::default());

        assert_eq!(checks[0].verdict, Verdict::Failed);
    }

    #[test]
    fn discovery_that_is_polled_shows_and_holds_up_no_readiness() {
        let mode = DiscoveryMode::Static("grant watch on CRDs".into());

        let checks = checks(true, &mode, &Snapshot::default());

        assert_eq!(checks[0].verdict, Verdict::Bad);
        assert_eq!(checks[0].to_string(), "[!]discovery is polled");
    }

    #[test]
    fn a_manager_without_its_own_crds_is_degraded_and_ready() {
        let mut own = RunnableStatus::new(SUPERVISOR.into(), RunnableGroup::LeaderElection);
        own.reason = "TypeAbsent".into();
        own.message = "CompositeController is not installed".into();

        let line = check_verdict(own, Verdict::Bad);

        assert_eq!(line, "[!]controller/compositecontrollers Waiting TypeAbsent");
    }

    #[test]
    fn a_controller_whose_conversion_webhook_fails_shows_and_holds_up_no_readiness() {
        let mut starting = controller(ControllerState::Starting);
        starting.report.unconverted = vec!["conversion webhook for Widget failed".into()];

        check_verdict(starting, Verdict::Bad);
    }
}
