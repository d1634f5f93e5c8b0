//! Errors of a manager: those with which it refuses a command, and those with which it ends.

use super::ControllerName;

/// Reason for which a runnable was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Remove the other one first, or replace it.
    #[error("a runnable named {0} already exists; remove it first, or replace it")]
    AlreadyThere(ControllerName),
    /// No runnable of that name exists; add it instead.
    #[error("no runnable is named {0}; add it first")]
    NotThere(ControllerName),
    /// The runnable was built with another name; add it under that.
    #[error("{given} was built as {own}; add it as {own}, or build it as {given}")]
    OtherName {
        /// Name that the manager was given.
        given: ControllerName,
        /// Name that the runnable was built with.
        own: ControllerName,
    },
    /// The runnable was built without a name; add it with [`Manager::add`](super::Manager::add) or
    /// [`ManagerHandle::add`](super::ManagerHandle::add), which take one.
    #[error(
        "the runnable was built without a name; add it with Manager::add or ManagerHandle::add"
    )]
    NameMissing,
    /// The runnable can be started only once, such as a cluster; remove it and add a new one.
    #[error("{0} can be started only once; remove it, and add a new one")]
    RunsOnce(ControllerName),
    /// The runnable can be started only once, such as a cluster, and so has no condition, whose loss
    /// would end it for good; add the condition to the controllers.
    #[error(
        "{0} can be started only once, and so cannot have a condition; add the condition to its \
         controllers"
    )]
    ConditionOfRunsOnce(ControllerName),
    /// The manager is stopping or has ended; nothing more can be started.
    #[error("the manager is stopping or has ended; add runnables to another manager")]
    Stopping,
}

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
    /// The leader election could not begin, or has ended by itself.
    #[error("leader election: {0}")]
    ElectionFailed(String),
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
