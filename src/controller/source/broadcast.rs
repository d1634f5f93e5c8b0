//! Broadcast: requests that a program sends to several controllers.

use std::sync::Arc;

use futures::FutureExt;
use tokio::{
    sync::{Mutex, Notify},
    task::consume_budget,
};

use super::{channel::run_alone, consumers::Consumers};
use crate::{
    controller::{
        ConditionalSource, Request, SourceContext, SourceStart, run::delivery::UnfinishedRequests,
    },
    manager::{Readiness, always},
};

/// Sender of requests to several controllers, for events from outside of Kubernetes. Cheap to
/// clone.
///
/// Each source of [`Broadcast::source`] delivers each later request at least once, merged by its
/// key. The next epoch of its controller begins with the request, until a reconcile returns
/// [`Outcome::Done`](crate::controller::Outcome::Done) or
/// [`ReconcileError::Terminal`](crate::controller::ReconcileError::Terminal). A stopped or slow
/// controller does not delay the sender or other controllers; its requests are kept, bounded by
/// their distinct keys, and dropped with the last clone of its source.
///
/// Semantics: `source.Channel` of controller-runtime with several destinations, except that a full
/// destination does not block the others. [`ChannelSource`](super::super::ChannelSource) holds its
/// senders back instead, and an [`EventBroadcast`](super::super::EventBroadcast) sends objects.
///
/// ```
/// # use pilotlight::controller::{Broadcast, Builder, Request};
/// # fn example(one: Builder, other: Builder) {
/// let events = Broadcast::new();
/// let (one, other) = (one.source(events.source()), other.source(events.source()));
/// events.send(&Request::namespaced("default", "widget"));
/// # drop((one, other));
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Broadcast {
    consumers: Consumers<Consumer>,
}

/// Source of the requests of a [`Broadcast`], for one controller. Its clones are for the same one, as
/// for a [`ChannelSource`](super::super::ChannelSource).
#[derive(Clone, Debug)]
pub struct BroadcastSource {
    consumer: Arc<Consumer>,
}

/// Requests of one controller.
#[derive(Debug, Default)]
struct Consumer {
    taken: Arc<UnfinishedRequests>,
    // Locked by the running epoch.
    run: Mutex<()>,
    // Wakes the running epoch.
    sent: Notify,
}

impl Broadcast {
    /// Returns a sender without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a source for one controller.
    pub fn source(&self) -> BroadcastSource {
        BroadcastSource { consumer: self.consumers.add() }
    }

    /// Sends a request to all sources. Does not block.
    pub fn send(&self, request: &Request) {
        for consumer in self.consumers.existing() {
            consumer.taken.take(request.clone());
            consumer.sent.notify_one();
        }
    }
}

#[cfg(test)]
impl BroadcastSource {
    /// Returns the kept requests, for as long as a clone of the source, or a reconcile, needs them.
    pub(in crate::controller) fn kept(&self) -> std::sync::Weak<UnfinishedRequests> {
        Arc::downgrade(&self.consumer.taken)
    }
}

impl Consumer {
    /// Enqueues the kept requests and those that arrive.
    async fn pump(&self, context: &SourceContext) {
        context.deliveries.join(&self.taken);
        let mut last = 0;
        loop {
            for (number, request) in self.taken.since(last) {
                last = number;
                context.enqueue_kept(&self.taken, (number, request));
            }
            // Requests may arrive without a pause.
            consume_budget().await;
            self.sent.notified().await;
        }
    }
}

impl ConditionalSource for BroadcastSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let consumer = Arc::clone(&self.consumer);
        let done = async move {
            let pump = async |(): &mut ()| consumer.pump(&context).await;
            run_alone(&consumer.run, &context, pump).await
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "a broadcast".to_owned()
    }

    fn delivers(&self) -> bool {
        false
    }
}
