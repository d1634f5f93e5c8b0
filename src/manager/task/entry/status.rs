//! Status of an entry: its state, with the reason as a sentence.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::{Parts, PendingReplacement, RunnableEntry};
use crate::manager::{
    ControllerState, DoneReason, Reason, Report, RunnableStatus, UnmetRequirement, Verdict,
    lifecycle::StopCause,
};

impl RunnableEntry {
    /// Returns the current status if it has changed; `since` changes only with state or reason.
    pub(in crate::manager::task) fn changed_status(
        &mut self,
        parts: &Parts,
    ) -> Option<Arc<RunnableStatus>> {
        let state = self.lifecycle.state();
        let report = self.live.as_ref().map(|live| live.epoch.subscribe().borrow().clone());
        let report = report.unwrap_or_default();
        let unmet = match (state, self.lifecycle.verdict()) {
            (ControllerState::Waiting, Verdict::Unmet(unmet) | Verdict::Unknown(unmet))
            | (ControllerState::Starting | ControllerState::Running, Verdict::Unknown(unmet)) => {
                unmet.clone()
            }
            _ => Vec::new(),
        };
        let (reason, message) = self.explanation(state, &unmet, &report, parts);
        let unchanged = self.status.as_ref();
        let unchanged = unchanged.filter(|old| old.state == state && old.reason == reason);
        let status = RunnableStatus {
            name: self.key.name.clone(),
            group: self.spec.group,
            state,
            reason,
            message,
            since: unchanged.map_or_else(Timestamp::now, |old| old.since),
            epoch: self.epoch_number,
            unmet,
            report,
            last_done: self.last_done.clone(),
            pending: self.pending.as_ref().map(PendingReplacement::reason),
            stuck: self.lifecycle.stuck(),
            failures: self.lifecycle.failures(),
            restarts: self.lifecycle.restarts(),
        };
        if self.status.as_deref() == Some(&status) {
            return None;
        }
        self.status = Some(Arc::new(status));
        self.status.clone()
    }

    /// Returns the explanation of a delay before the next epoch, after a run with this error.
    fn delay(&self, error: &str) -> (Reason, String) {
        let last = self.last_done.as_ref().map(|done| &done.reason);
        let (reason, message) = match last {
            _ if self.lifecycle.is_flapping() => {
                (Reason::ConditionFlaps, "its condition flaps; the next epoch is delayed")
            }
            _ if self.lifecycle.is_source_done() => (
                Reason::SourceDone,
                "a required source has ended; the next epoch begins after a pause",
            ),
            Some(DoneReason::Completed) => {
                (Reason::Completed, "its run has ended; the next one begins after a pause")
            }
            Some(_) | None => (Reason::RunFailed, error),
        };
        (reason, message.to_owned())
    }

    fn explanation(
        &self,
        state: ControllerState,
        unmet: &[UnmetRequirement],
        report: &Report,
        parts: &Parts,
    ) -> (Reason, String) {
        let failed = || self.last_done.as_ref().and_then(|done| done.reason.error()).unwrap_or("");
        match state {
            ControllerState::Waiting => match unmet.first() {
                Some(first) => {
                    let all: Vec<_> = unmet.iter().map(|part| part.message.as_str()).collect();
                    (first.reason.clone(), all.join("; "))
                }
                None if !self.lifecycle.allowed() && parts.stands_by(&self.spec) => {
                    (Reason::Standby, String::new())
                }
                None if !self.lifecycle.allowed() => (Reason::NotStarted, String::new()),
                None if matches!(self.lifecycle.verdict(), Verdict::Unmet(_)) => (
                    Reason::ConditionUnknown,
                    "its condition is not met, and gives no reason".to_owned(),
                ),
                None => (
                    Reason::ConditionUnknown,
                    "its condition has not published a verdict".to_owned(),
                ),
            },
            // Before the sync timeout, which is only a consequence of it.
            ControllerState::Starting | ControllerState::Running
                if !report.unconverted.is_empty() && report.forbidden.is_empty() =>
            {
                let all = if report.late.is_empty() { &report.unconverted } else { &report.late };
                (Reason::ConversionFailed, all.join("; "))
            }
            ControllerState::Starting if !report.late.is_empty() => {
                (Reason::SyncTimeout, report.late.join("; "))
            }
            ControllerState::Starting | ControllerState::Running
                if !report.forbidden.is_empty() =>
            {
                (Reason::Forbidden, report.forbidden.join("; "))
            }
            ControllerState::Starting if report.standby => (Reason::Standby, String::new()),
            ControllerState::Starting => {
                let errors = report.watches.iter().filter_map(|watch| {
                    watch.error.as_ref().map(|error| format!("{}: {error}", watch.type_ref))
                });
                let late = self.live.as_ref().and_then(|live| live.late).map(|after| {
                    format!("not reported running within {after:?}, later groups start without it")
                });
                let reason =
                    if late.is_some() { Reason::StartTimeout } else { Reason::SourcesSyncing };
                (reason, late.into_iter().chain(errors).collect::<Vec<_>>().join("; "))
            }
            ControllerState::Running if report.stale => (Reason::Stale, String::new()),
            ControllerState::Running if !report.missing.is_empty() => {
                let missing: Vec<_> = report.missing.iter().map(ToString::to_string).collect();
                (Reason::Degraded, format!("optional types are missing: {}", missing.join(", ")))
            }
            ControllerState::Running => (Reason::Running, String::new()),
            ControllerState::Stopping if self.lifecycle.stuck() => {
                let late = self.live.as_ref().map(|live| live.epoch.unfinished_work());
                let late = late.unwrap_or_default();
                (Reason::Stuck, format!("the epoch waits for code that blocks its thread: {late}"))
            }
            ControllerState::Stopping => {
                let error = match self.lifecycle.stopping() {
                    Some(StopCause::Returned(reason)) => reason.error(),
                    Some(StopCause::Signalled(_)) | None => None,
                };
                let message = error.map(|error| format!("the run failed: {error}"));
                (Reason::Draining, message.unwrap_or_default())
            }
            ControllerState::BackingOff => self.delay(failed()),
            ControllerState::Stopped => match &self.last_done {
                Some(done) => (Reason::from(&done.reason), failed().to_owned()),
                None => (Reason::Removed, String::new()),
            },
        }
    }
}
