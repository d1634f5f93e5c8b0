//! Sources: where changes come from, each with a condition of its own.

pub(in crate::controller) mod channel;
pub(in crate::controller) mod kind;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{
    Request,
    metrics::Series,
    queue::{Add, Queue},
    run::delivery::Deliveries,
    run::input_status::InputStatuses,
};
use crate::manager::{BoxError, Epoch, Readiness};

/// What a source is started with. Cheap to clone.
#[derive(Clone)]
pub struct SourceContext {
    /// The epoch that it feeds.
    pub epoch: Epoch,
    pub(super) queue: Queue<Request>,
    // The epoch's; `stop` is a child of it.
    pub(super) feed: CancellationToken,
    pub(super) stop: CancellationToken,
    pub(super) release: CancellationToken,
    pub(super) statuses: Arc<InputStatuses>,
    pub(super) input: usize,
    pub(super) series: Arc<Series>,
    pub(super) deliveries: Arc<Deliveries>,
}

impl std::fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceContext").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl SourceContext {
    /// Adds a request to the controller's queue; ignored once the source is to stop.
    pub fn enqueue(&self, request: Request) {
        self.enqueue_with(request, Add::default());
    }

    /// As [`SourceContext::enqueue`], with a priority.
    ///
    /// What existed at the start is of [`LOW_PRIORITY`](super::LOW_PRIORITY), so that what
    /// changes meanwhile comes first.
    pub fn enqueue_with_priority(&self, request: Request, priority: i32) {
        self.enqueue_with(request, Add { priority, ..Add::default() });
    }

    /// As [`SourceContext::enqueue`], after a time.
    pub fn enqueue_after(&self, request: Request, after: Duration) {
        self.enqueue_with(request, Add { after, ..Add::default() });
    }

    /// Resolves when the source is to feed no more: the epoch stops, or the source's condition is
    /// lost. Cancel safe.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Resolves when the last reconcile that may read from the source has ended: what it holds is
    /// to be let go now. Never before [`SourceContext::stopping`]. Cancel safe.
    pub async fn released(&self) {
        self.release.cancelled().await;
    }

    /// Whether the source is stopped because its condition is lost, while the epoch goes on.
    pub fn lost(&self) -> bool {
        self.stop.is_cancelled() && !self.feed.is_cancelled()
    }

    /// As [`SourceContext::enqueue`], of what an earlier epoch was given; what that has handed over
    /// keeps its time. Whether it was added.
    pub(super) fn enqueue_again(&self, request: Request) -> bool {
        let is_new = !self.queue.contains(&request);
        if is_new {
            self.enqueue(request);
        }
        is_new
    }

    fn enqueue_with(&self, request: Request, add: Add) {
        if !self.stop.is_cancelled() {
            self.queue.add_with(request, add);
        }
    }
}

/// Why a source ended.
///
/// Of a source that is done though its condition holds, or is not known to be lost:
/// a `conditional` one ends the epoch as completed, and after a back-off (1 s doubling to 5 min) the
/// next one begins if its condition is met; an `optional` one is started again alone, after 1 s
/// doubling to 60 s; any other that is [`Stopped`](Self::Stopped) is left alone, and after
/// [`TypeGone`](Self::TypeGone) it is started again as an optional one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEnd {
    /// Its type is proven gone.
    TypeGone,
    /// The epoch stopped it, or it has nothing more to say.
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
    /// Resolves when it has ended, for which see [`SourceEnd`]. May do the source's work: it is polled from the start, and
    /// dropping it stops the source.
    pub done: SourceDone,
}

impl std::fmt::Debug for SourceStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceStart").finish_non_exhaustive()
    }
}

/// The proposal's conditional source: `ready`, then `start_notify_done`, then `ready` again.
///
/// It describes a source, and every start is one anew: a source that keeps what it made for one
/// epoch would pin that epoch's caches, and could not be started again.
pub trait ConditionalSource: Send + Sync + 'static {
    /// Whether it can be started now.
    fn ready(&self) -> Readiness;

    /// Starts it for one epoch; must not block.
    ///
    /// It is to end after [`SourceContext::released`] resolves at the latest. A source that holds
    /// nothing for reconcilers may end when [`SourceContext::stopping`] does.
    fn start_notify_done(&self, context: SourceContext) -> SourceStart;

    /// What it is called in messages.
    fn name(&self) -> String {
        "a source".to_owned()
    }
}
