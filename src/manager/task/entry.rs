//! State that the manager keeps for one runnable, and the status derived from it.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::{sync::CancellationToken, time::delay_queue};

use super::{
    super::{
        ControllerName, ControllerState, Done, DoneReason, Epoch, Reason, Report, RunnableStatus,
        UnmetRequirement, Verdict,
        command::ManagerReply,
        end::RunEnd,
        lifecycle::{Lifecycle, StopCause},
        runnable_spec::RunnableSpec,
    },
    condition_watch::ConditionWatch,
};

/// New specification that waits to take over.
pub(super) struct PendingReplacement {
    pub(super) spec: RunnableSpec,
    /// Serial number; timers of an earlier specification carry another one.
    pub(super) serial: u64,
    pub(super) verdict: Verdict,
    pub(super) why: String,
    pub(super) preparation: Preparation,
    pub(super) condition: ConditionWatch,
    /// Timer for the next attempt to prepare it.
    pub(super) retry: Option<delay_queue::Key>,
    /// Waiter for the installation, who learns by the drop that it is discarded.
    pub(super) installed: oneshot::Sender<()>,
}

/// State of the preparation of a new specification.
pub(super) enum Preparation {
    None,
    /// Under way: number of the attempt, to recognise its result, and the token that cancels it.
    Running(u64, CancellationToken),
    Done,
}

impl PendingReplacement {
    /// Cancels the preparation and releases its resources.
    pub(super) fn unprepare(&mut self, name: &ControllerName, epoch: Option<&Epoch>) {
        match std::mem::replace(&mut self.preparation, Preparation::None) {
            Preparation::None => return,
            Preparation::Running(_, given_up) => given_up.cancel(),
            Preparation::Done => {}
        }
        self.spec.unprepare(name, epoch);
    }
}

pub(super) struct RunnableEntry {
    pub(super) name: ControllerName,
    pub(super) spec: RunnableSpec,
    pub(super) condition: ConditionWatch,
    pub(super) lifecycle: Lifecycle,
    pub(super) epoch: Option<Epoch>,
    pub(super) epoch_number: u64,
    pub(super) pending: Option<PendingReplacement>,
    pub(super) removers: Vec<oneshot::Sender<()>>,
    /// Callers that wait for the epoch to be done, to be restarted.
    pub(super) restarters: Vec<ManagerReply>,
    pub(super) last_done: Option<Done>,
    /// End of the epoch's run, once it has returned.
    pub(super) returned: Option<RunEnd>,
    /// True if the run returned before it was signalled to stop.
    pub(super) ended_by_itself: bool,
    /// Epoch that did not report running within the start timeout of its group, and that timeout.
    pub(super) late: Option<(u64, Duration)>,
    /// Time at which the starting epoch began.
    pub(super) begun_at: Option<Instant>,
    /// Time at which the stopping epoch was signalled to stop, or its run returned.
    pub(super) stopped_at: Option<Instant>,
    /// Timer that ends a back-off.
    pub(super) wake: Option<delay_queue::Key>,
    /// Timer that ends the grace of a stop. After the grace, timer that reports an overdue stop.
    pub(super) stop_timer: Option<delay_queue::Key>,
    /// True if the runnable needs leadership and this replica does not lead.
    pub(super) standby: bool,
    /// Status as last published.
    pub(super) status: Option<Arc<RunnableStatus>>,
}

impl RunnableEntry {
    /// Returns the current status; `since` changes only with state or reason.
    pub(super) fn describe(&self) -> RunnableStatus {
        let state = self.lifecycle.state();
        let report =
            self.epoch.as_ref().map(|epoch| epoch.subscribe().borrow().clone()).unwrap_or_default();
        let unmet = self.unmet(state);
        let (reason, message) = self.explanation(state, &unmet, &report);
        let unchanged = self.status.as_ref();
        let unchanged = unchanged.filter(|old| old.state == state && old.reason == reason);
        RunnableStatus {
            name: self.name.clone(),
            group: self.spec.group,
            state,
            reason,
            message,
            since: unchanged.map_or_else(Timestamp::now, |old| old.since),
            epoch: self.epoch_number,
            unmet,
            report,
            last_done: self.last_done.clone(),
            pending: self.pending.as_ref().map(|pending| pending.why.clone()),
            stuck: self.lifecycle.stuck(),
            failures: self.lifecycle.failures(),
            restarts: self.lifecycle.restarts(),
        }
    }

    /// Returns the start timeout that the current epoch has exceeded, if it has.
    fn late_by(&self) -> Option<Duration> {
        self.late.filter(|(epoch, _)| *epoch == self.epoch_number).map(|(_, after)| after)
    }

    fn unmet(&self, state: ControllerState) -> Vec<UnmetRequirement> {
        match (state, self.lifecycle.verdict()) {
            (ControllerState::Waiting, Verdict::Unmet(unmet) | Verdict::Unknown(unmet))
            | (ControllerState::Starting | ControllerState::Running, Verdict::Unknown(unmet)) => {
                unmet.clone()
            }
            _ => Vec::new(),
        }
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
    ) -> (Reason, String) {
        let failed = || self.last_done.as_ref().and_then(|done| done.reason.error()).unwrap_or("");
        match state {
            ControllerState::Waiting => match unmet.first() {
                Some(first) => {
                    let all: Vec<_> = unmet.iter().map(|part| part.message.as_str()).collect();
                    (first.reason.clone(), all.join("; "))
                }
                None if !self.lifecycle.allowed() && self.standby => {
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
            ControllerState::Starting if !report.forbidden.is_empty() => {
                (Reason::Forbidden, report.forbidden.join("; "))
            }
            ControllerState::Starting if report.standby => (Reason::Standby, String::new()),
            ControllerState::Starting => {
                let errors = report.watches.iter().filter_map(|watch| {
                    watch.error.as_ref().map(|error| format!("{}: {error}", watch.type_ref))
                });
                let late = self.late_by().map(|after| {
                    format!("not reported running within {after:?}, later groups start without it")
                });
                let reason =
                    if late.is_some() { Reason::StartTimeout } else { Reason::SourcesSyncing };
                (reason, late.into_iter().chain(errors).collect::<Vec<_>>().join("; "))
            }
            ControllerState::Running if !report.forbidden.is_empty() => {
                (Reason::Forbidden, report.forbidden.join("; "))
            }
            ControllerState::Running if report.stale => (Reason::Stale, String::new()),
            ControllerState::Running if !report.missing.is_empty() => {
                let missing: Vec<_> = report.missing.iter().map(ToString::to_string).collect();
                (Reason::Degraded, format!("optional types are missing: {}", missing.join(", ")))
            }
            ControllerState::Running => (Reason::Running, String::new()),
            ControllerState::Stopping if self.lifecycle.stuck() => {
                let late = self.epoch.as_ref().map(Epoch::unfinished_work).unwrap_or_default();
                (Reason::Stuck, format!("the epoch waits for code that blocks its thread: {late}"))
            }
            ControllerState::Stopping => {
                let error = match self.lifecycle.stopping() {
                    Some(StopCause::Returned(reason)) => reason.error(),
                    Some(StopCause::Signalled(_)) | None => None,
                };
                let failed = |error| format!("the run failed: {error}");
                (Reason::Draining, error.map(failed).unwrap_or_default())
            }
            ControllerState::BackingOff => self.delay(failed()),
            ControllerState::Stopped => match &self.last_done {
                Some(done) => (Reason::from(&done.reason), failed().to_owned()),
                None => (Reason::Removed, String::new()),
            },
        }
    }
}
