//! Readiness of a runnable, judged by its status.

use super::{Check, CheckResult, ControllerState, Reason, RunnableStatus};

/// Number of failures in a row, or of ends of a required source, from which a runnable counts as
/// degraded.
const MANY: u32 = 3;

/// Returns the check of a runnable: name, state and reason. The message is left out, since anyone
/// who reaches the server can read it.
///
/// A runnable that waits for a type is ready, and so is one whose runs end by themselves. Long
/// back-offs after failures or ends of a required source, controllers that cannot sync, and those
/// that wait for a cluster which no manager has run, are degraded. A stuck runnable fails, since it
/// holds its name until the process is restarted.
pub(super) fn check(status: &RunnableStatus) -> Check {
    let (result, reason) = judge(status);
    let reason = reason.unwrap_or(status.reason.as_str());
    let detail = format!("{} {reason}", status.state.word());
    Check { name: format!("controller/{}", status.name), result: result(detail.into()) }
}

type NewResult = fn(std::borrow::Cow<'static, str>) -> CheckResult;

/// Returns the result, with a reason if it differs from the state's.
fn judge(status: &RunnableStatus) -> (NewResult, Option<&'static str>) {
    let report = &status.report;
    let is_active = matches!(status.state, ControllerState::Starting | ControllerState::Running);
    match status.state {
        _ if status.stuck => (CheckResult::Failed, Some("Stuck")),
        ControllerState::BackingOff if status.failures >= MANY => (CheckResult::Degraded, None),
        ControllerState::BackingOff
            if status.reason == Reason::SourceDone && status.restarts >= MANY =>
        {
            (CheckResult::Degraded, None)
        }
        _ if is_active && !report.forbidden.is_empty() => {
            (CheckResult::Degraded, Some("Forbidden"))
        }
        ControllerState::Starting if !report.unconverted.is_empty() => {
            (CheckResult::Degraded, Some("ConversionFailed"))
        }
        ControllerState::Starting if !report.late.is_empty() => (CheckResult::Degraded, None),
        ControllerState::Running if report.stale => (CheckResult::Degraded, Some("Stale")),
        ControllerState::Running if report.failing => (CheckResult::Degraded, Some("SyncsFailing")),
        ControllerState::Waiting if waits_for(status, Reason::DiscoveryNotStarted) => {
            (CheckResult::Degraded, Some("DiscoveryNotStarted"))
        }
        ControllerState::Waiting if waits_for(status, Reason::DiscoveryEnded) => {
            (CheckResult::Degraded, Some("DiscoveryEnded"))
        }
        ControllerState::Waiting
        | ControllerState::Starting
        | ControllerState::Running
        | ControllerState::Stopping
        | ControllerState::BackingOff
        | ControllerState::Stopped => (CheckResult::Passed, None),
    }
}

fn waits_for(status: &RunnableStatus, reason: Reason) -> bool {
    status.unmet.iter().any(|unmet| unmet.reason == reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::RunnableGroup;

    fn controller(state: ControllerState) -> RunnableStatus {
        RunnableStatus {
            state,
            reason: "Because".into(),
            epoch: 1,
            ..RunnableStatus::new("widgets".into(), RunnableGroup::LeaderElection)
        }
    }

    #[track_caller]
    fn expect(status: RunnableStatus, expected: &str) {
        assert_eq!(check(&status).to_string(), expected);
    }

    #[test]
    fn a_waiting_controller_is_ready_and_says_why_it_waits() {
        let mut status = controller(ControllerState::Waiting);
        status.reason = "TypeAbsent".into();
        status.message = "widgets.example.com/v1 is not installed".into();

        // Without the message, since probes need no authentication.
        expect(status, "[+]controller/widgets Waiting TypeAbsent");
    }

    #[test]
    fn a_stuck_controller_fails_and_one_that_keeps_failing_shows() {
        expect(
            RunnableStatus { stuck: true, ..controller(ControllerState::Stopping) },
            "[-]controller/widgets Stopping Stuck",
        );
        expect(
            RunnableStatus { failures: 1, ..controller(ControllerState::BackingOff) },
            "[+]controller/widgets BackingOff Because",
        );
        expect(
            RunnableStatus { failures: 3, ..controller(ControllerState::BackingOff) },
            "[!]controller/widgets BackingOff Because",
        );
    }

    #[test]
    fn a_controller_that_cannot_sync_is_shown_and_delays_no_readiness() {
        let mut late = controller(ControllerState::Starting);
        late.reason = "SyncTimeout".into();
        late.message = "no rule lets you list widgets".into();
        late.report.late = vec![late.message.clone()];

        expect(late, "[!]controller/widgets Starting SyncTimeout");
    }

    #[test]
    fn a_controller_that_may_not_list_shows_before_it_is_late() {
        for state in [ControllerState::Starting, ControllerState::Running] {
            let mut forbidden = controller(state);
            forbidden.report.forbidden = vec!["grant list and watch on widgets".into()];

            expect(forbidden, &format!("[!]controller/widgets {} Forbidden", state.word()));
        }
    }

    #[test]
    fn a_controller_whose_syncs_fail_is_shown_and_delays_no_readiness() {
        let mut failing = controller(ControllerState::Running);
        failing.report.failing = true;

        expect(failing, "[!]controller/widgets Running SyncsFailing");
    }

    #[test]
    fn a_controller_whose_conversion_webhook_fails_is_shown_and_delays_no_readiness() {
        let mut starting = controller(ControllerState::Starting);
        starting.report.unconverted = vec!["conversion webhook for Widget failed".into()];

        expect(starting, "[!]controller/widgets Starting ConversionFailed");
    }
}
