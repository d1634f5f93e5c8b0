//! Broadcast: requests that a program sends to several controllers.

use std::sync::{Arc, Weak};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{select, sync::Notify, task::consume_budget};

use super::channel;
use crate::{
    controller::{
        ConditionalSource, Request, SourceContext, SourceEnd, SourceStart,
        run::delivery::UnfinishedRequests,
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
    consumers: Arc<Mutex<Vec<Weak<Consumer>>>>,
}

/// Source of the requests of a [`Broadcast`], for one controller. A clone that is an input of a
/// second running controller fails.
#[derive(Clone, Debug)]
pub struct BroadcastSource {
    consumer: Arc<Consumer>,
}

/// Requests of one controller.
#[derive(Debug, Default)]
struct Consumer {
    taken: Arc<UnfinishedRequests>,
    // Locked by the running epoch.
    run: tokio::sync::Mutex<()>,
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
        let consumer = Arc::default();
        self.consumers.lock().push(Arc::downgrade(&consumer));
        BroadcastSource { consumer }
    }

    /// Sends a request to all sources. Does not block.
    pub fn send(&self, request: &Request) {
        self.consumers.lock().retain(|consumer| {
            let Some(consumer) = consumer.upgrade() else { return false };
            consumer.taken.take(request.clone());
            consumer.sent.notify_one();
            true
        });
    }
}

impl BroadcastSource {
    /// Enqueues the kept requests, and then those that arrive.
    async fn pump(&self, context: &SourceContext) -> SourceEnd {
        let Consumer { taken, run, sent } = &*self.consumer;
        let _run = match channel::receive(run).await {
            Ok(run) => run,
            Err(end) => return end,
        };
        context.deliveries.join(taken);
        let mut last = 0;
        for (number, request) in taken.since(last) {
            last = number;
            context.enqueue_again(request);
        }
        // Checked each time, since requests may arrive faster than they are enqueued.
        while !context.stop.is_cancelled() {
            consume_budget().await;
            sent.notified().await;
            for (number, request) in taken.since(last) {
                last = number;
                context.enqueue(request);
            }
        }
        SourceEnd::Stopped
    }
}

impl ConditionalSource for BroadcastSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let source = self.clone();
        let done = async move {
            select! {
                biased;
                () = context.stopping() => SourceEnd::Stopped,
                end = source.pump(&context) => end,
            }
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
