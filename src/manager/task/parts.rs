//! Parts of the manager that its entries act on.

use tokio::{sync::watch, task::JoinSet, time::Instant};
use tracing::info;

use super::{
    election_state::ElectionState,
    event::{EntryKey, EntryTimer, Id, ManagerEvent, PreparationResult, TimerKey, Timers, Watches},
    last_epoch_numbers::LastEpochNumbers,
    phase::ManagerPhase,
    publisher::Publisher,
};
use crate::manager::{
    FailurePolicy, ManagerError, ManagerMetrics, Report, end::RunEnd, runnable_spec::RunnableSpec,
};

/// Parts of the manager that its entries act on: the queues of their events, and the facts about all
/// of them.
pub(super) struct Parts {
    pub(super) metrics: ManagerMetrics,
    pub(super) publisher: Publisher,
    pub(super) phase: ManagerPhase,
    pub(super) election: ElectionState,
    /// Error with which the manager ends.
    pub(super) failure: Option<ManagerError>,
    /// Runs under way; at most one for each entry.
    pub(super) runs: JoinSet<(Id, RunEnd)>,
    pub(super) prepares: JoinSet<Option<PreparationResult>>,
    pub(super) watches: Watches,
    pub(super) timers: Timers,
    /// Last epoch numbers of removed names.
    pub(super) last_epoch_numbers: LastEpochNumbers,
    pub(super) last_serial: u64,
}

impl Parts {
    pub(super) fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Returns whether a runnable may start now.
    pub(super) fn allows(&self, spec: &RunnableSpec) -> bool {
        self.phase.is_open(spec.group) && (spec.warms_up || !self.stands_by(spec))
    }

    /// Returns whether a runnable waits for leadership.
    pub(super) fn stands_by(&self, spec: &RunnableSpec) -> bool {
        spec.needs_leadership() && !self.election.leads()
    }

    /// Records the failure of a runnable that ends the manager by its policy.
    pub(super) fn fail_by_policy(&mut self, key: &EntryKey, spec: &RunnableSpec, error: &str) {
        if spec.options.on_failure == FailurePolicy::FailManager {
            let (name, error) = (key.name.clone(), error.to_owned());
            self.fail(ManagerError::RunnableFailed { name, error });
        }
    }

    /// Stops every runnable because of an error, of which only the first counts.
    pub(super) fn fail(&mut self, error: ManagerError) {
        self.failure.get_or_insert(error);
        self.close();
    }

    pub(super) fn close(&mut self) {
        if !self.phase.is_closing() {
            info!("stopping every runnable");
            self.election.withdraw();
            self.phase = ManagerPhase::Closing { step: 0, is_entered: false };
        }
    }

    /// Sets a timer of an entry, which is counted for it.
    pub(super) fn set_timer(&mut self, key: &EntryKey, timer: EntryTimer, at: Instant) -> TimerKey {
        let counted = self.metrics.timer(&key.name, timer.word());
        self.timers.insert_at((key.id, timer, counted), at)
    }

    /// Removes a timer that is set. The key of a timer that has fired may be that of another one.
    pub(super) fn end_timer(&mut self, timer: Option<TimerKey>) {
        if let Some(timer) = timer {
            self.timers.try_remove(&timer);
        }
    }

    pub(super) fn watch_report(&self, id: Id, epoch: u64, mut report: watch::Receiver<Report>) {
        // Ends with the epoch: its last clone drops the sender.
        self.watches.push(Box::pin(async move {
            report.changed().await.ok()?;
            Some(ManagerEvent::Reported(id, epoch, report))
        }));
    }

    pub(super) fn watch_return(
        &self,
        id: Id,
        epoch: u64,
        mut end: watch::Receiver<Option<RunEnd>>,
    ) {
        // Ends with the epoch: its last clone drops the sender.
        self.watches.push(Box::pin(async move {
            let end = end.wait_for(Option::is_some).await.ok()?.clone()?;
            Some(ManagerEvent::Returned(id, epoch, end))
        }));
    }
}
