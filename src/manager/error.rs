//! Error with which a manager ends.

use super::ControllerName;

/// Error with which a manager ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// A runnable with [`FailurePolicy::FailManager`](super::FailurePolicy::FailManager) failed.
    #[error("{name} failed: {error}")]
    RunnableFailed {
        /// Name of the failed runnable.
        name: ControllerName,
        /// Error of the failed run.
        error: String,
    },
    /// The graceful shutdown timeout expired; the runnables that were still live were abandoned.
    #[error("not stopped in time: {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Late {
        /// Runnables that were still live.
        names: Vec<ControllerName>,
        /// Error for which the manager was stopping, if any.
        #[source]
        before: Option<Box<ManagerError>>,
    },
}
