//! What the manager says of each runnable.

use k8s_openapi::jiff::Timestamp;

use super::{ControllerName, Reason, Report, RunnableGroup, StopReason, Unmet};

/// Where a runnable is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerState {
    /// Its condition is not met, or its group has not been opened yet.
    Waiting,
    /// An epoch has begun; its sources are syncing.
    Starting,
    /// An epoch works.
    Running,
    /// An epoch drains: it was asked to stop, or its run has returned.
    Stopping,
    /// A run has failed; the next one begins after a while.
    BackingOff,
    /// It ended and its restart policy lets it rest.
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

    /// The state as one word.
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

/// State of a watch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WatchState {
    /// Its condition is not met.
    Waiting,
    /// Its first list is under way.
    Syncing,
    /// Its cache is complete and current.
    Synced,
    /// Its cache is behind.
    Stale,
    /// The server refuses it.
    Forbidden,
    /// The conversion webhook of its type fails.
    ConversionFailed,
}

impl WatchState {
    /// The state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Syncing => "Syncing",
            Self::Synced => "Synced",
            Self::Stale => "Stale",
            Self::Forbidden => "Forbidden",
            Self::ConversionFailed => "ConversionFailed",
        }
    }
}

/// Why an epoch is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DoneReason {
    /// A type that it needs is proven gone, or is another one now.
    TypeGone,
    /// The same runnable with another specification takes its place.
    Superseded,
    /// It was removed, or the manager stops.
    Cancelled,
    /// Its work was done.
    Completed,
    /// It returned an error.
    Failed(String),
    /// It panicked.
    Panicked(String),
    /// This replica leads no more.
    LeaseLost,
}

impl DoneReason {
    /// The reason as one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::TypeGone => "TypeGone",
            Self::Superseded => "Superseded",
            Self::Cancelled => "Cancelled",
            Self::Completed => "Completed",
            Self::Failed(_) => "Failed",
            Self::Panicked(_) => "Panicked",
            Self::LeaseLost => "LeaseLost",
        }
    }

    /// The error behind it, if there is one.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Failed(error) | Self::Panicked(error) => Some(error),
            Self::TypeGone
            | Self::Superseded
            | Self::Cancelled
            | Self::Completed
            | Self::LeaseLost => None,
        }
    }
}

impl From<StopReason> for DoneReason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::TypeGone => Self::TypeGone,
            StopReason::Superseded => Self::Superseded,
            StopReason::Cancelled => Self::Cancelled,
            StopReason::LeaseLost => Self::LeaseLost,
        }
    }
}

/// The end of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which epoch.
    pub epoch: u64,
    /// Why.
    pub reason: DoneReason,
    /// When.
    pub at: Timestamp,
    /// Writes whose outcome is unknown: the grace was over before the answer, the caller did not
    /// wait, or the answer was lost. A write that still waited for a connection counts too, and was
    /// not sent.
    pub unknown_requests: usize,
}

/// Everything there is to know about one runnable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnableStatus {
    /// Its name.
    pub name: ControllerName,
    /// Its group.
    pub group: RunnableGroup,
    /// Where it is in its life.
    pub state: ControllerState,
    /// Why.
    pub reason: Reason,
    /// Why, as a sentence; empty when there is nothing to add.
    pub message: String,
    /// Since when state and reason hold.
    pub since: Timestamp,
    /// The current epoch, or the last one; 0 before the first.
    pub epoch: u64,
    /// What it waits for.
    pub unmet: Vec<Unmet>,
    /// What the current epoch says of itself.
    pub report: Report,
    /// The end of the last epoch.
    pub last_done: Option<Done>,
    /// Why a new specification has not taken over yet.
    pub pending: Option<String>,
    /// The epoch outlived the grace and does not end; no new one begins. The message names what is
    /// late.
    pub stuck: bool,
    /// Failed runs in a row.
    pub failures: u32,
}

impl RunnableStatus {
    /// Of one that was just added: it waits, and nothing has been said of it yet.
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
        }
    }

    /// The last error: of the work while it runs, else of the run that failed.
    pub fn last_error(&self) -> Option<&str> {
        let of_run = || self.last_done.as_ref().and_then(|done| done.reason.error());
        self.report.last_error.as_deref().or_else(of_run)
    }
}

/// One step in the life of a runnable, in order; none is merged with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Whose.
    pub name: ControllerName,
    /// Which epoch it concerns.
    pub epoch: u64,
    /// What happened.
    pub kind: TransitionKind,
}

/// What happened to a runnable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitionKind {
    /// It entered a state.
    Entered(ControllerState),
    /// The epoch is done: nothing of it runs, subscribes or sends. Exactly once an epoch.
    Done(DoneReason),
    /// It was removed, and its name is free again.
    Removed,
}
