//! Commands from handles to the manager.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{AddError, ConditionalRunnable, ControllerName, runnable_spec::RunnableSpec};
use crate::guard::GuardedDrop;

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
