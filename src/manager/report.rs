//! Report of a run about itself.

use crate::kind::TypeRef;

/// State of one watch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WatchState {
    /// The condition of the watch is not met.
    Waiting,
    /// The first list is under way.
    Syncing,
    /// The cache is complete and current.
    Synced,
    /// The cache is complete as of the last list, since the type cannot be watched: it is listed in
    /// an interval.
    Polled,
    /// The cache is behind.
    Stale,
    /// The server refuses the list or the watch.
    Forbidden,
    /// The conversion webhook of the type fails.
    ConversionFailed,
}

impl WatchState {
    /// Returns whether the cache is complete, and as current as the type allows.
    pub(crate) fn is_synced(self) -> bool {
        matches!(self, Self::Synced | Self::Polled)
    }

    /// Returns the state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Syncing => "Syncing",
            Self::Synced => "Synced",
            Self::Polled => "Polled",
            Self::Stale => "Stale",
            Self::Forbidden => "Forbidden",
            Self::ConversionFailed => "ConversionFailed",
        }
    }
}

/// State of one watch of a run, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchReport {
    /// Type as it was requested.
    pub type_ref: TypeRef,
    /// State of the watch.
    pub state: WatchState,
    /// Last error, while the watch is failing.
    pub error: Option<String>,
}

/// Report of a run about itself, while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// True once the run has started up: its sources are synced.
    pub running: bool,
    /// True while the run is ready to work and waits until this replica leads.
    pub standby: bool,
    /// True if a cache is behind: a watch fails, though the type is not proven gone.
    pub stale: bool,
    /// Sources that have not synced within the sync timeout, each with the reason.
    pub late: Vec<String>,
    /// Requests that the server forbids, each with the missing RBAC rule.
    pub forbidden: Vec<String>,
    /// Types that cannot be read because a conversion webhook fails, each with the error.
    pub unconverted: Vec<String>,
    /// Optional types that are missing.
    pub missing: Vec<TypeRef>,
    /// True if a reconcile failed at least a minute ago and none has succeeded since.
    pub failing: bool,
    /// Last error of the run's work.
    pub last_error: Option<String>,
    /// Names of work that has not ended although the grace is over.
    pub unfinished: Vec<String>,
    /// State of each watch.
    pub watches: Vec<WatchReport>,
}
