//! Subscription of the manager to the condition of one specification.

use tokio_util::{sync::CancellationToken, time::delay_queue};

#[derive(Default)]
pub(super) struct ConditionWatch {
    /// Serial number; verdicts of an earlier subscription carry another one.
    pub(super) serial: u64,
    /// Ends the wait for the next verdict.
    pub(super) ended: CancellationToken,
    /// Number of panics of the condition in a row.
    pub(super) panics: u32,
    /// Timer after which a condition that panicked is asked again.
    pub(super) retry: Option<delay_queue::Key>,
}
