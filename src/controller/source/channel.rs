//! Channel source: requests that a program sends itself.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{
    select,
    sync::{Mutex, mpsc},
    time::timeout,
};

use crate::controller::{ConditionalSource, Request, SourceContext, SourceEnd, SourceStart};
use crate::manager::{Readiness, always};

/// Time for a stopping epoch, or an input that is being replaced, to release its channel.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Source of requests from a channel, for events from outside of Kubernetes.
///
/// Each epoch of a controller with this source adds the requests that arrive to its queue. A request
/// that is sent while no epoch runs waits in the channel for the next one, and senders wait while the
/// channel is full. Closing the channel does not end the run, and requests sent before are added.
///
/// A request that an epoch has received and not finished may be lost with the epoch, as any other
/// request in its queue. A program that must not lose an event sends it again, or adds the requests
/// that are due at the start of each epoch, as by a
/// [`FunctionSource`](super::super::FunctionSource).
///
/// The requests of a channel are for one controller. If clones of its source are inputs of two running
/// controllers, one of these fails, and is started again after a back-off, also once the channel is
/// closed. For several controllers, share a channel of `tokio::sync::broadcast` by function sources, as
/// in `docs/library.md`.
///
/// Semantics: `source.Channel` of controller-runtime, except that it can be started again, and
/// carries requests.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::controller::*;
/// # async fn example(
/// #     cluster: Cluster,
/// #     reconciler: impl Reconciler,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let (requests, source) = ChannelSource::new(100);
/// let controller = Controller::builder("settings")
///     .for_::<ConfigMap>()
///     .source(source)
///     .build(&cluster, reconciler)?;
/// // Later, from a webhook or a queue of messages:
/// requests.send(Request::namespaced("prod", "settings")).await?;
/// # drop(controller);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ChannelSource {
    channel: Channel<Request>,
}

/// Receiver of a channel, for one epoch after another.
#[derive(Clone, Debug)]
pub(super) struct Channel<T> {
    // Locked by the running epoch.
    items: Arc<Mutex<mpsc::Receiver<T>>>,
}

impl ChannelSource {
    /// Returns the sender of a channel of `capacity` requests (at least 1), and the source that
    /// receives them.
    pub fn new(capacity: usize) -> (mpsc::Sender<Request>, Self) {
        let (sender, channel) = Channel::new(capacity);
        (sender, Self { channel })
    }
}

impl<T: Send + 'static> Channel<T> {
    /// Returns the sender of a channel of `capacity` items (at least 1), and its receiver.
    pub(super) fn new(capacity: usize) -> (mpsc::Sender<T>, Self) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (sender, Self { items: Arc::new(Mutex::new(receiver)) })
    }

    /// Starts a source that delivers the items that arrive. Fails if another run holds the channel for
    /// 5 s: each item would reach only one of both.
    pub(super) fn start(
        &self,
        context: SourceContext,
        deliver: impl Fn(&SourceContext, T) + Send + Sync + 'static,
    ) -> SourceStart {
        let items = Arc::clone(&self.items);
        let done = async move {
            let run = async {
                let Ok(mut items) = timeout(RELEASE_TIMEOUT, items.lock()).await else {
                    let why = "another controller or input receives its items; give each a channel \
                               of its own";
                    return SourceEnd::Failed(why.to_owned());
                };
                // Checked before each item, since many may arrive within one poll.
                while !context.stop.is_cancelled()
                    && let Some(item) = items.recv().await
                {
                    deliver(&context, item);
                }
                context.stopping().await;
                SourceEnd::Stopped
            };
            select! {
                biased;
                () = context.stopping() => SourceEnd::Stopped,
                end = run => end,
            }
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

impl ConditionalSource for ChannelSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        self.channel.start(context, SourceContext::enqueue)
    }

    fn name(&self) -> String {
        "a channel".to_owned()
    }

    fn delivers(&self) -> bool {
        false
    }
}
