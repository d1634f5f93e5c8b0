//! Phases of a manager: groups are opened in order and closed in order.

use std::time::Duration;

use tokio::time::Instant;

use super::super::{ControllerState, RunnableGroup};

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

/// Action by which a manager advances.
pub(super) enum PhaseAction {
    /// Allow the runnables of this group to start.
    Open(RunnableGroup),
    /// Begin the campaign: every group is open.
    Campaign,
    /// Remove the runnables of these groups.
    Close(&'static [RunnableGroup]),
    /// Free the lease: no elected epoch is left.
    Release,
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
    pub(super) const CLOSED: Self = Self::Closing { step: STOP_ORDER.len(), is_entered: true };

    /// Phase before the group of this step is opened.
    pub(super) fn opening(step: usize) -> Self {
        Self::Opening { step, is_entered: false, until: None }
    }

    /// Advances as far as the groups and states of all entries allow. Returns the next action, or
    /// `None` if the phase must wait. A group of servers or caches is waited for `timeout`.
    pub(super) fn advance(
        &mut self,
        timeout: Option<Duration>,
        entries: impl Iterator<Item = (RunnableGroup, ControllerState)> + Clone,
    ) -> Option<PhaseAction> {
        match *self {
            Self::Opening { step, is_entered, .. } => {
                let Some(&group) = START_ORDER.get(step) else {
                    *self = Self::Open;
                    return Some(PhaseAction::Campaign);
                };
                if !is_entered {
                    let until = timeout.and_then(|after| Instant::now().checked_add(after));
                    *self = Self::Opening { step, is_entered: true, until };
                    return Some(PhaseAction::Open(group));
                }
                // A runnable that waits for its condition delays no group. A starting runnable
                // delays later groups only up to the group of caches, on which they rely.
                let starting = (group, ControllerState::Starting);
                if group <= RunnableGroup::Caches && entries.clone().any(|it| it == starting) {
                    return None;
                }
                *self = Self::opening(step + 1);
                self.advance(timeout, entries)
            }
            Self::Open => None,
            Self::Closing { step, is_entered } => {
                let groups = *STOP_ORDER.get(step)?;
                if !is_entered {
                    *self = Self::Closing { step, is_entered: true };
                    return Some(PhaseAction::Close(groups));
                }
                if entries.clone().any(|(group, _)| groups.contains(&group)) {
                    return None;
                }
                *self = Self::Closing { step: step + 1, is_entered: false };
                if groups.contains(&RunnableGroup::LeaderElection) {
                    return Some(PhaseAction::Release);
                }
                self.advance(timeout, entries)
            }
        }
    }

    /// Time at which the next group is opened even if runnables are still starting.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        match self {
            Self::Opening { until, .. } => *until,
            Self::Open | Self::Closing { .. } => None,
        }
    }

    /// Moves on to the next group. Returns the group whose runnables are late.
    pub(super) fn open_next(&mut self) -> Option<RunnableGroup> {
        let Self::Opening { step, .. } = *self else { return None };
        *self = Self::opening(step + 1);
        START_ORDER.get(step).copied()
    }

    pub(super) fn is_open(&self, group: RunnableGroup) -> bool {
        match self {
            Self::Opening { step, .. } => START_ORDER.iter().take(step + 1).any(|it| *it == group),
            Self::Open => true,
            Self::Closing { .. } => false,
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self, Self::Closing { .. })
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Closing { step, .. } if *step >= STOP_ORDER.len())
    }
}
