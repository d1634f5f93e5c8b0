//! Status of a runnable, as the manager publishes it.

use k8s_openapi::jiff::Timestamp;

use super::{ControllerName, DoneReason, Reason, Report, RunnableGroup, UnmetRequirement};

/// State of a runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerState {
    /// The condition is not met, or the group is not open yet.
    Waiting,
    /// An epoch has begun; its sources are syncing.
    Starting,
    /// An epoch is running.
    Running,
    /// An epoch drains: it was signalled to stop, or its run has returned.
    Stopping,
    /// A run has failed or ended by itself, or the condition flaps; the next epoch begins after a
    /// delay.
    BackingOff,
    /// The run ended, and the restart policy does not restart it.
    Stopped,
}

impl ControllerState {
    /// Every state, for metrics.
    pub const ALL: [Self; 6] = [
        Self::Waiting,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::BackingOff,
        Self::Stopped,
    ];

    /// Returns the state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::BackingOff => "BackingOff",
            Self::Stopped => "Stopped",
        }
    }
}

/// End of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Number of the epoch.
    pub epoch: u64,
    /// Reason for the end.
    pub reason: DoneReason,
    /// Time of the end.
    pub at: Timestamp,
    /// Writes whose outcome is unknown: the grace ended before the response, the caller did not
    /// wait, or the response was lost. Includes writes that were still waiting for a connection,
    /// which were not sent.
    pub unknown_requests: usize,
}

/// Complete status of one runnable.
/// ```
/// # use pilotlight::manager::{ControllerState, ManagerHandle};
/// fn show(manager: &ManagerHandle) {
///     let Some(status) = manager.status_of("widgets") else { return };
///     if status.state == ControllerState::Waiting {
///         println!("{} waits: {} {}", status.name, status.reason, status.message);
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnableStatus {
    /// Name of the runnable.
    pub name: ControllerName,
    /// Group of the runnable.
    pub group: RunnableGroup,
    /// Current state.
    pub state: ControllerState,
    /// Reason for the state.
    pub reason: Reason,
    /// Reason as a sentence; empty if there is nothing to add.
    pub message: String,
    /// Time since which state and reason have been the same.
    pub since: Timestamp,
    /// Current epoch, or the last one; 0 before the first.
    pub epoch: u64,
    /// Unmet parts of the condition that the runnable waits for.
    pub unmet: Vec<UnmetRequirement>,
    /// Report of the current epoch about itself.
    pub report: Report,
    /// End of the last epoch.
    pub last_done: Option<Done>,
    /// Reason for which a new specification has not taken over yet.
    pub pending: Option<String>,
    /// True if the epoch does not end although its grace is over; no new epoch begins. The message
    /// names the work that has not ended.
    pub stuck: bool,
    /// Number of failed runs in a row.
    pub failures: u32,
    /// Number of runs in a row that ended by themselves, failed ones included: each is followed by a
    /// longer pause. The number is 0 again after a long run.
    pub restarts: u32,
}

impl RunnableStatus {
    /// Status of a runnable that was just added: it waits, and its condition has not been read yet.
    pub fn new(name: ControllerName, group: RunnableGroup) -> Self {
        Self {
            name,
            group,
            state: ControllerState::Waiting,
            reason: Reason::NotStarted,
            message: String::new(),
            since: Timestamp::now(),
            epoch: 0,
            unmet: Vec::new(),
            report: Report::default(),
            last_done: None,
            pending: None,
            stuck: false,
            failures: 0,
            restarts: 0,
        }
    }

    /// Returns the last error: of the current work if there is one, else of the run that failed.
    pub fn last_error(&self) -> Option<&str> {
        let of_run = || self.last_done.as_ref().and_then(|done| done.reason.error());
        self.report.last_error.as_deref().or_else(of_run)
    }
}

/// Step in the life of a runnable. Transitions are sent in order, and none is merged with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Name of the runnable.
    pub name: ControllerName,
    /// Epoch that the step belongs to.
    pub epoch: u64,
    /// Kind of step.
    pub kind: TransitionKind,
}

/// Kind of a transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitionKind {
    /// The runnable entered a state.
    Entered(ControllerState),
    /// The epoch is done: no part of it runs, subscribes or sends. Sent exactly once per epoch.
    Done(DoneReason),
    /// The runnable was removed, and its name is free again.
    Removed,
}
