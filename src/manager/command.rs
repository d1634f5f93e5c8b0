//! Commands from handles to the manager, and the reasons for which it refuses one.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{ConditionalRunnable, ControllerName, runnable_spec::RunnableSpec};
use crate::guard::GuardedDrop;

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
    /// The runnable can be started only once, such as a cluster; remove it and add a new one.
    #[error("{0} can be started only once; remove it, and add a new one")]
    RunsOnce(ControllerName),
    /// The manager is stopping or has ended; nothing more can be started.
    #[error("the manager is stopping or has ended; add runnables to another manager")]
    Stopping,
}

/// Command from a handle to the manager.
pub(super) enum ManagerCommand {
    Add(ControllerName, RunnableSpec, ManagerReply),
    /// The sender is used when the specification is installed, and dropped when it is discarded.
    Replace(ControllerName, RunnableSpec, oneshot::Sender<()>, ManagerReply),
    Remove(ControllerName, oneshot::Sender<()>),
    Restart(ControllerName, ManagerReply),
    Find(ControllerName, oneshot::Sender<Option<GuardedDrop<Arc<dyn ConditionalRunnable>>>>),
}

pub(super) type ManagerReply = oneshot::Sender<Result<(), AddError>>;
