//! A source that is fed by hand.

use std::sync::Arc;

use futures::FutureExt;
use tokio::{
    select,
    sync::{Mutex, mpsc},
};

use crate::controller::{
    ConditionalSource, Request, SourceContext, SourceEnd, SourceStart, run::delivery::Taken,
};
use crate::manager::{Readiness, always};

/// Requests that arrive over a channel, from outside of Kubernetes perhaps.
///
/// Each is delivered at least once, merged by its key. The source keeps a request from the moment
/// it is taken off the channel until its reconcile returns [`Outcome::Done`](super::Outcome::Done)
/// or [`ReconcileError::Terminal`](super::ReconcileError::Terminal). Whatever ends an epoch, the
/// next one of a controller with this source begins with what is kept: also requests in back-off,
/// requests to be repeated after a time, and those whose reconcile was dropped.
///
/// The channel's capacity holds senders back: the source takes no more while as many requests wait
/// for a reconcile to begin, and a stopped controller takes nothing. Closing the channel ends no
/// run, and what was sent before is delivered. Kept requests are bounded by their distinct keys;
/// they go with the last clone of this source.
///
/// Semantics: `source.Channel` of controller-runtime, except that it can be started again, and
/// carries requests.
#[derive(Clone, Debug)]
pub struct ChannelSource {
    // Held by the epoch that runs.
    requests: Arc<Mutex<mpsc::Receiver<Request>>>,
    taken: Arc<Taken>,
}

impl ChannelSource {
    /// A channel with room for `capacity` requests (at least 1), and the source at its end.
    pub fn new(capacity: usize) -> (mpsc::Sender<Request>, Self) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let requests = Arc::new(Mutex::new(receiver));
        (sender, Self { requests, taken: Arc::default() })
    }

    /// Hands over what is kept and what arrives, until the channel is closed.
    async fn pump(self, context: &SourceContext) {
        let mut requests = self.requests.lock().await;
        context.deliveries.join(&self.taken);
        for request in self.taken.requests() {
            self.taken.set_waits(&request, context.enqueue_again(request.clone()));
        }
        let capacity = requests.max_capacity();
        self.taken.room(capacity).await;
        // Asked before each request, as many may arrive within one poll.
        while !context.stop.is_cancelled()
            && let Some(request) = requests.recv().await
        {
            self.taken.take(request.clone());
            context.enqueue(request);
            self.taken.room(capacity).await;
        }
    }
}

impl ConditionalSource for ChannelSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let source = self.clone();
        let done = async move {
            select! {
                biased;
                () = context.stopping() => {}
                // Not done when the channel is closed: kept requests may be confirmed later.
                () = async {
                    source.pump(&context).await;
                    context.stopping().await;
                } => {}
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "a channel".to_owned()
    }
}
