//! Channel source: requests that a program sends itself.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{
    select,
    sync::{Mutex, mpsc},
    time::timeout,
};

use crate::controller::{
    ConditionalSource, Request, SourceContext, SourceEnd, SourceStart,
    run::delivery::UnfinishedRequests,
};
use crate::manager::{Readiness, always};

/// Time for a stopping epoch, or an input that is being replaced, to release the items of its source.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Source of requests from a channel, for events from outside of Kubernetes.
///
/// Each request is delivered at least once, merged by its key. The source keeps a request from its
/// receipt until its reconcile returns [`Outcome::Done`](crate::controller::Outcome::Done) or
/// [`ReconcileError::Terminal`](crate::controller::ReconcileError::Terminal). The next epoch of a
/// controller with this source begins with the kept requests, however the last epoch ended. They
/// include requests in back-off, requests to be requeued after a time, and those whose reconcile
/// was dropped.
///
/// Senders wait while the channel is full: the source receives no more while as many requests wait
/// for a reconcile to begin. A stopped controller receives nothing. Closing the channel does
/// not end the run, and requests sent before are delivered. Kept requests are bounded by their
/// distinct keys, and are dropped with the last clone of this source.
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

/// Receiver of a channel, and the requests of its items that no reconcile has finished.
#[derive(Debug)]
pub(super) struct Channel<T> {
    // Locked by the running epoch.
    items: Arc<Mutex<mpsc::Receiver<T>>>,
    pub(super) taken: Arc<UnfinishedRequests>,
}

impl<T> Clone for Channel<T> {
    fn clone(&self) -> Self {
        Self { items: Arc::clone(&self.items), taken: Arc::clone(&self.taken) }
    }
}

impl ChannelSource {
    /// Returns the sender of a channel of `capacity` requests (at least 1), and the source that
    /// receives them.
    pub fn new(capacity: usize) -> (mpsc::Sender<Request>, Self) {
        let (sender, channel) = Channel::new(capacity);
        (sender, Self { channel })
    }
}

impl<T: Send> Channel<T> {
    /// Returns the sender of a channel of `capacity` items (at least 1), and its receiver.
    pub(super) fn new(capacity: usize) -> (mpsc::Sender<T>, Self) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (sender, Self { items: Arc::new(Mutex::new(receiver)), taken: Arc::default() })
    }

    /// Enqueues the kept requests, and delivers the items that arrive until the channel is closed.
    /// Ends when the source is to stop.
    pub(super) async fn run(self, context: &SourceContext, deliver: impl Fn(T)) -> SourceEnd {
        let pump = async |items: &mut mpsc::Receiver<T>| self.pump(items, context, deliver).await;
        run_alone(&self.items, context, pump).await
    }

    async fn pump(
        &self,
        items: &mut mpsc::Receiver<T>,
        context: &SourceContext,
        deliver: impl Fn(T),
    ) {
        context.deliveries.join(&self.taken);
        for (number, request) in self.taken.since(0) {
            // Set first, since a reconcile that begins at once clears it.
            self.taken.set_waits(&request, true);
            if !context.enqueue_kept(&self.taken, (number, request.clone())) {
                self.taken.set_waits(&request, false);
            }
        }
        let capacity = items.max_capacity();
        self.taken.wait_capacity(capacity).await;
        // Checked before each item, since many may arrive within one poll.
        while !context.stop.is_cancelled()
            && let Some(item) = items.recv().await
        {
            deliver(item);
            self.taken.wait_capacity(capacity).await;
        }
    }
}

/// Runs the work of a source on its items until the source is to stop. Fails if another run holds the
/// items for 5 s: each item would reach only one of both.
///
/// Work that returns earlier does not end the source: its kept requests may be confirmed later.
pub(super) async fn run_alone<T>(
    items: &Mutex<T>,
    context: &SourceContext,
    work: impl AsyncFnOnce(&mut T),
) -> SourceEnd {
    let run = async {
        let Ok(mut items) = timeout(RELEASE_TIMEOUT, items.lock()).await else {
            let why = "another controller or input receives its items; give each a channel of \
                       its own";
            return SourceEnd::Failed(why.to_owned());
        };
        work(&mut items).await;
        context.stopping().await;
        SourceEnd::Stopped
    };
    select! {
        biased;
        () = context.stopping() => SourceEnd::Stopped,
        end = run => end,
    }
}

impl ConditionalSource for ChannelSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let Channel { items, taken } = self.channel.clone();
        let done = async move {
            let keeps = Arc::clone(&taken);
            let deliver = |request: Request| {
                let number = keeps.take(request.clone());
                context.enqueue_kept(&keeps, (number, request));
            };
            Channel { items, taken }.run(&context, deliver).await
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "a channel".to_owned()
    }

    fn delivers(&self) -> bool {
        false
    }
}
