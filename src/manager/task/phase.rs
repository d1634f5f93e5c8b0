//! Phases of a manager: groups are opened in order and closed in order.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    super::{ControllerState, ManagerError, RunnableGroup, lifecycle::LifecycleInput},
    Id, ManagerTask,
    entry::RunnableEntry,
};

/// Phase of a manager.
pub(super) enum ManagerPhase {
    /// Groups are being opened. `is_entered` is true once the runnables of this step's group have
    /// been allowed to start; later additions are allowed as they arrive. At `until` the next group
    /// is opened, even if runnables are still starting.
    Opening {
        step: usize,
        is_entered: bool,
        until: Option<Instant>,
    },
    Open,
    Closing {
        step: usize,
        is_entered: bool,
    },
}

const START_ORDER: [RunnableGroup; 6] = [
    RunnableGroup::HttpServers,
    RunnableGroup::Webhooks,
    RunnableGroup::Caches,
    RunnableGroup::Others,
    RunnableGroup::Warmup,
    RunnableGroup::LeaderElection,
];

/// Order in which groups stop. Semantics: `engageStopProcedure` of controller-runtime
/// (`pkg/manager/internal.go`).
const STOP_ORDER: [&[RunnableGroup]; 5] = [
    &[RunnableGroup::Others, RunnableGroup::Warmup],
    &[RunnableGroup::LeaderElection],
    &[RunnableGroup::Caches],
    &[RunnableGroup::Webhooks],
    &[RunnableGroup::HttpServers],
];

impl ManagerPhase {
    /// Returns the phase before the group of this step is opened.
    pub(super) fn opening(step: usize) -> Self {
        Self::Opening { step, is_entered: false, until: None }
    }
}

impl ManagerTask {
    /// Opens or closes as many groups as possible now.
    pub(super) fn advance(&mut self) {
        loop {
            match self.phase {
                ManagerPhase::Opening { step, is_entered, .. } => {
                    let Some(group) = START_ORDER.get(step) else {
                        self.phase = ManagerPhase::Open;
                        self.campaign();
                        return;
                    };
                    if !is_entered {
                        let timeout = self.options.group_start_timeout;
                        let until = timeout.and_then(|after| Instant::now().checked_add(after));
                        self.phase = ManagerPhase::Opening { step, is_entered: true, until };
                        for id in self.ids_of(&[*group]) {
                            self.allow(id);
                        }
                    }
                    // A runnable that waits for its condition delays no group. A starting runnable
                    // delays later groups only up to the group of caches, on which they rely.
                    if *group <= RunnableGroup::Caches && !self.starting(*group).is_empty() {
                        return;
                    }
                    self.phase = ManagerPhase::opening(step + 1);
                }
                ManagerPhase::Open => return,
                ManagerPhase::Closing { step, is_entered } => {
                    let Some(groups) = STOP_ORDER.get(step) else { return };
                    if !is_entered {
                        self.phase = ManagerPhase::Closing { step, is_entered: true };
                        for id in self.ids_of(groups) {
                            self.drop_pending(id);
                            self.step(id, LifecycleInput::Remove);
                        }
                    }
                    if self.entries.values().any(|entry| groups.contains(&entry.spec.group)) {
                        return;
                    }
                    if groups.contains(&RunnableGroup::LeaderElection) {
                        // No elected epoch is left.
                        self.election.release();
                    }
                    self.phase = ManagerPhase::Closing { step: step + 1, is_entered: false };
                }
            }
        }
    }

    /// Time at which the next group is opened even if runnables are still starting.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        match self.phase {
            ManagerPhase::Opening { until, .. } => until,
            ManagerPhase::Open | ManagerPhase::Closing { .. } => None,
        }
    }

    /// Logs the runnables of the group that are still starting, and opens the next group.
    pub(super) fn open_next(&mut self) {
        let ManagerPhase::Opening { step, .. } = self.phase else { return };
        let late = START_ORDER.get(step).map(|group| self.starting(*group)).unwrap_or_default();
        for id in late {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.late = self.options.group_start_timeout.map(|after| (entry.epoch_number, after));
            warn!(
                controller = %entry.name,
                epoch = entry.epoch_number,
                runnable_group = ?entry.spec.group,
                "runnable has not reported running in time, later groups start without it"
            );
            self.dirty.push(id);
        }
        self.phase = ManagerPhase::opening(step + 1);
    }

    fn starting(&self, group: RunnableGroup) -> Vec<Id> {
        let starts = |entry: &RunnableEntry| entry.lifecycle.state() == ControllerState::Starting;
        let of_group = self.entries.iter().filter(|(_, entry)| entry.spec.group == group);
        of_group.filter(|(_, entry)| starts(entry)).map(|(id, _)| *id).collect()
    }

    pub(super) fn is_open(&self, group: RunnableGroup) -> bool {
        match self.phase {
            ManagerPhase::Opening { step, .. } => {
                START_ORDER.iter().take(step + 1).any(|open| *open == group)
            }
            ManagerPhase::Open => true,
            ManagerPhase::Closing { .. } => false,
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.phase, ManagerPhase::Closing { .. })
    }

    pub(super) fn close(&mut self) {
        if !self.is_closing() {
            info!("stopping every runnable");
            self.election.withdraw();
            self.phase = ManagerPhase::Closing { step: 0, is_entered: false };
        }
    }

    pub(super) fn closed(&self) -> bool {
        matches!(self.phase, ManagerPhase::Closing { step, .. } if step >= STOP_ORDER.len())
    }

    /// Ends the shutdown when its timeout expires: records the late runnables as the error, unless
    /// nothing was to be waited for, and abandons them.
    pub(super) fn give_up(&mut self) {
        self.phase = ManagerPhase::Closing { step: STOP_ORDER.len(), is_entered: true };
        if self.options.graceful_shutdown_timeout == Some(Duration::ZERO) {
            return;
        }
        let late: Vec<_> = self
            .entries
            .values()
            .filter(|entry| entry.lifecycle.live())
            .map(|entry| entry.name.clone())
            .collect();
        let before = self.failure.take().map(Box::new);
        self.failure = Some(ManagerError::Late { names: late, before });
    }

    pub(super) fn ids_of(&self, groups: &[RunnableGroup]) -> Vec<Id> {
        self.entries
            .iter()
            .filter(|(_, entry)| groups.contains(&entry.spec.group))
            .map(|(id, _)| *id)
            .collect()
    }
}
