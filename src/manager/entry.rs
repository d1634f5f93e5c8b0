//! One runnable as its manager holds it, and what is said of it.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    ConditionalRunnable, ControllerName, ControllerState, Done, Epoch, Report, RunnableOptions,
    RunnableStatus, Unmet, Verdict, lifecycle::Lifecycle,
};

/// A specification and its supervision.
pub(super) struct Spec {
    pub(super) runnable: Arc<dyn ConditionalRunnable>,
    pub(super) options: RunnableOptions,
}

/// A new specification that waits to take over.
pub(super) struct Pending {
    pub(super) spec: Spec,
    /// Tells the answers to this one from those to an earlier one.
    pub(super) serial: u64,
    pub(super) why: String,
    /// Its caches are being filled, or are filled.
    pub(super) preparing: bool,
    /// Ends what watches its condition.
    pub(super) watching: CancellationToken,
}

pub(super) struct Entry {
    pub(super) name: ControllerName,
    pub(super) spec: Spec,
    pub(super) serial: u64,
    pub(super) lifecycle: Lifecycle,
    pub(super) epoch: Option<Epoch>,
    pub(super) epoch_number: u64,
    pub(super) pending: Option<Pending>,
    pub(super) removers: Vec<oneshot::Sender<()>>,
    pub(super) watching: CancellationToken,
    pub(super) last_done: Option<Done>,
    /// When the condition was met for the epoch that starts, or its stop was asked for.
    pub(super) asked_at: Option<Instant>,
    pub(super) status: Arc<RunnableStatus>,
}

impl Entry {
    /// What is said of it now; `since` moves only with state or reason.
    pub(super) fn describe(&self) -> RunnableStatus {
        let state = self.lifecycle.state();
        let report =
            self.epoch.as_ref().map(|epoch| epoch.subscribe().borrow().clone()).unwrap_or_default();
        let unmet = self.unmet(state);
        let (reason, message) = self.why(state, &unmet, &report);
        let unchanged = self.status.state == state && self.status.reason == reason;
        RunnableStatus {
            name: self.name.clone(),
            group: self.spec.runnable.group(),
            state,
            reason,
            message,
            since: if unchanged { self.status.since } else { Timestamp::now() },
            epoch: self.epoch_number,
            unmet,
            report,
            last_done: self.last_done.clone(),
            pending: self.pending.as_ref().map(|pending| pending.why.clone()),
            stuck: self.lifecycle.stuck(),
            failures: self.lifecycle.failures(),
        }
    }

    fn unmet(&self, state: ControllerState) -> Vec<Unmet> {
        match (state, self.lifecycle.verdict()) {
            (ControllerState::Waiting, Verdict::Unmet(unmet) | Verdict::Unknown(unmet))
            | (ControllerState::Starting | ControllerState::Running, Verdict::Unknown(unmet)) => {
                unmet.clone()
            }
            _ => Vec::new(),
        }
    }

    fn why(&self, state: ControllerState, unmet: &[Unmet], report: &Report) -> (String, String) {
        let failed = || self.last_done.as_ref().and_then(|done| done.reason.error()).unwrap_or("");
        let (reason, message) = match state {
            ControllerState::Waiting => match unmet.first() {
                Some(first) => {
                    let all: Vec<_> = unmet.iter().map(|part| part.message.as_str()).collect();
                    (first.reason.as_str(), all.join("; "))
                }
                None if !self.lifecycle.allowed() => ("NotStarted", String::new()),
                None => ("ConditionUnknown", String::new()),
            },
            ControllerState::Starting => ("SourcesSyncing", String::new()),
            ControllerState::Running if !report.forbidden.is_empty() => {
                ("Forbidden", report.forbidden.join("; "))
            }
            ControllerState::Running if report.stale => ("Stale", String::new()),
            ControllerState::Running if !report.missing.is_empty() => {
                let missing: Vec<_> = report.missing.iter().map(ToString::to_string).collect();
                ("Degraded", format!("optional types are missing: {}", missing.join(", ")))
            }
            ControllerState::Running => ("Running", String::new()),
            ControllerState::Stopping if self.lifecycle.stuck() => (
                "Stuck",
                "the run does not end: something in it blocks without yielding".to_owned(),
            ),
            ControllerState::Stopping => ("Draining", String::new()),
            ControllerState::BackingOff => ("RunFailed", failed().to_owned()),
            ControllerState::Stopped => match &self.last_done {
                Some(done) => (done.reason.word(), failed().to_owned()),
                None => ("Removed", String::new()),
            },
        };
        (reason.to_owned(), message)
    }
}
