//! End of an epoch: why it is signalled to stop, how its run ends, and why it is done.

/// Error of any kind, as a runnable returns it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Result of a run: a clean end, or the reason for which it failed.
pub type RunResult = Result<(), BoxError>;

/// Reason for which an epoch is signalled to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A type that the condition needs is proven gone, or is not the one that the epoch started
    /// with.
    TypeGone,
    /// The same runnable with another specification takes its place.
    Superseded,
    /// The runnable was removed, the manager stops, or the run has ended by itself.
    Cancelled,
    /// This replica lost the lease; no more writes are allowed.
    LeaseLost,
}

/// End of a run, as the manager observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    Completed,
    /// A required source of the controller is done: its condition is asked again, whatever the
    /// restart policy.
    SourceDone,
    Failed(String),
    Panicked(String),
    /// The run was dropped after the grace.
    Aborted,
}

impl RunEnd {
    /// Error of a run that failed after it had reported another end, `before`.
    pub(super) fn later_error(&self, before: &Self) -> Option<&str> {
        match (before, self) {
            (Self::Completed | Self::SourceDone | Self::Aborted, Self::Failed(error))
            | (
                Self::Completed | Self::SourceDone | Self::Aborted | Self::Failed(_),
                Self::Panicked(error),
            ) => Some(error),
            (
                _,
                Self::Completed
                | Self::SourceDone
                | Self::Aborted
                | Self::Failed(_)
                | Self::Panicked(_),
            ) => None,
        }
    }
}

/// Reason for which an epoch is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DoneReason {
    /// A type that the epoch needs is proven gone, or has been replaced by another.
    TypeGone,
    /// The same runnable with another specification replaces this epoch.
    Superseded,
    /// The runnable was removed, or the manager stops.
    Cancelled,
    /// The run completed its work.
    Completed,
    /// The run returned an error.
    Failed(String),
    /// The run panicked.
    Panicked(String),
    /// This replica lost the lease.
    LeaseLost,
}

impl DoneReason {
    /// Returns the reason as one word.
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

    /// Returns the error of the run, if it failed.
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
