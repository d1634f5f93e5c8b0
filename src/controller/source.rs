//! Sources: where changes come from, each with a condition of its own.

use futures::future::BoxFuture;

use super::Request;
use crate::manager::{BoxError, Epoch, Readiness};

/// What a source is started with.
#[derive(Clone)]
pub struct SourceContext {
    /// The epoch that it feeds.
    pub epoch: Epoch,
}

impl std::fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceContext").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl SourceContext {
    /// Adds a request to the controller's queue; ignored once the epoch stops.
    pub fn enqueue(&self, _request: Request) {
        todo!()
    }
}

/// Why a source ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEnd {
    /// Its type is proven gone.
    TypeGone,
    /// The epoch stopped it.
    Stopped,
    /// It failed, with the reason.
    Failed(String),
}

/// Resolves when the source and its informer have ended.
pub type SourceDone = BoxFuture<'static, SourceEnd>;

/// A started source.
pub struct SourceStart {
    /// Resolves when everything that existed at the start has been handed to the queue.
    pub synced: BoxFuture<'static, Result<(), BoxError>>,
    /// Resolves when it has ended.
    pub done: SourceDone,
}

impl std::fmt::Debug for SourceStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceStart").finish_non_exhaustive()
    }
}

/// The proposal's conditional source: `ready`, then `start_notify_done`, then `ready` again.
pub trait ConditionalSource: Send + Sync + 'static {
    /// Whether it can be started now.
    fn ready(&self) -> Readiness;

    /// Starts it for one epoch; must not block.
    fn start_notify_done(&self, context: SourceContext) -> SourceStart;
}
