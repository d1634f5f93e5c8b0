//! Progress of an informer, from its first list to its end.

/// Progress of an informer's list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InformerProgress {
    /// The first list is in progress. Holds the last error, if it is being retried.
    Syncing(Option<String>),
    /// The store is complete and the watch is open.
    Synced,
    /// The store is complete as of the last list, since the type cannot be watched: it is listed in
    /// an interval.
    Polled,
    /// The store is complete but stale: the watch fails. Holds the last error.
    Stale(String),
    /// The server forbids the request. Names the missing permission.
    Forbidden(String),
    /// The type's conversion webhook fails, so that no object can be read at this version. Holds
    /// the error.
    ConversionFailed(String),
    /// The informer has ended.
    Ended(EndReason),
}

/// Reason why an informer ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The last subscriber left.
    #[error("the last subscriber has left the informer")]
    Released,
    /// The type is proven gone.
    #[error("the type of the informer was removed")]
    TypeGone,
    /// The set was shut down.
    #[error("the set of informers was shut down with its cluster")]
    Shutdown,
    /// A defect in this crate. Holds the panic's message.
    #[error("the task of the informer panicked: {0}")]
    Panicked(String),
}

/// Time that an informer outlives its last subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linger {
    /// The set's setting (default 10 s): the next epoch may need the informer.
    Default,
    /// Zero, because the type is gone.
    None,
}
