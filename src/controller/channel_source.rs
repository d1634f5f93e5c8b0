//! A source that is fed by hand.

use std::sync::Arc;

use futures::FutureExt;
use tokio::{
    select,
    sync::{Mutex, mpsc},
};

use super::{ConditionalSource, Request, SourceContext, SourceEnd, SourceStart};
use crate::manager::{Readiness, always};

/// Requests that arrive over a channel, from outside of Kubernetes perhaps.
///
/// What is sent while no epoch runs waits for the next one. Semantics: `source.Channel` of
/// controller-runtime, except that it can be started again, and carries requests.
#[derive(Clone, Debug)]
pub struct ChannelSource {
    // Held by the epoch that runs.
    requests: Arc<Mutex<mpsc::Receiver<Request>>>,
}

impl ChannelSource {
    /// A channel with room for `capacity` requests (at least 1), and the source at its end.
    pub fn new(capacity: usize) -> (mpsc::Sender<Request>, Self) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (sender, Self { requests: Arc::new(Mutex::new(receiver)) })
    }
}

impl ConditionalSource for ChannelSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let requests = Arc::clone(&self.requests);
        let done = async move {
            let pump = async {
                let mut requests = requests.lock().await;
                while let Some(request) = requests.recv().await {
                    context.enqueue(request);
                }
            };
            // A request is either received and queued, or still in the channel.
            select! {
                biased;
                () = context.stopping() => {}
                () = pump => {}
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "a channel".to_owned()
    }
}
