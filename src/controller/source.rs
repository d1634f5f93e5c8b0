//! Sources: they yield a controller's events, each with a condition of its own.

pub(in crate::controller) mod channel;
pub(in crate::controller) mod event;
pub(in crate::controller) mod function;
pub(in crate::controller) mod kind;
pub(in crate::controller) mod mapping;
pub(in crate::controller) mod owner_type;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use self::mapping::SourceHandlers;
use super::{
    Request,
    inputs::statuses::InputStatuses,
    metrics::Series,
    queue::{Add, Queue},
};
use crate::manager::{BoxError, Epoch, Readiness};

/// Context of a started source. Cheap to clone.
///
/// ```
/// use pilotlight::controller::*;
///
/// /// Requests one reconcile for each of these objects, and ends with its epoch.
/// async fn feed(context: SourceContext, names: Vec<String>) -> SourceEnd {
///     for name in names {
///         context.enqueue_with_priority(Request::cluster(name), LOW_PRIORITY);
///     }
///     context.stopping().await;
///     SourceEnd::Stopped
/// }
/// ```
#[derive(Clone)]
pub struct SourceContext {
    /// Epoch that the source feeds.
    pub epoch: Epoch,
    pub(super) queue: Queue<Request>,
    // Cancelled with the epoch; `stop` is a child of it.
    pub(super) feed: CancellationToken,
    pub(super) stop: CancellationToken,
    pub(super) release: CancellationToken,
    pub(super) statuses: Arc<InputStatuses>,
    pub(super) input: usize,
    pub(super) series: Arc<Series>,
    // `None` for a built-in source.
    pub(super) handlers: Option<Arc<SourceHandlers>>,
}

impl std::fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceContext").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl SourceContext {
    /// Adds a request to the controller's queue; ignored once the source is to stop.
    pub fn enqueue(&self, request: impl Into<Request>) {
        self.enqueue_with(request.into(), Add::default());
    }

    /// Like [`SourceContext::enqueue`], with a priority.
    ///
    /// Use [`LOW_PRIORITY`](super::LOW_PRIORITY) for objects that existed at the start, so that
    /// changes come first.
    pub fn enqueue_with_priority(&self, request: impl Into<Request>, priority: i32) {
        self.enqueue_with(request.into(), Add { priority, ..Add::default() });
    }

    /// Like [`SourceContext::enqueue`], after a delay.
    pub fn enqueue_after(&self, request: impl Into<Request>, after: Duration) {
        self.enqueue_with(request.into(), Add { after, ..Add::default() });
    }

    /// Resolves when the source is to stop adding requests: the epoch stops, or the source's
    /// condition is lost. Cancel safe.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Resolves when the source is to release its resources: when the last reconcile of the epoch
    /// has ended, or at once if the source's condition is lost. Never before
    /// [`SourceContext::stopping`]. Cancel safe.
    pub async fn released(&self) {
        self.release.cancelled().await;
    }

    /// Returns whether the source is stopped because its condition is lost, while the epoch
    /// continues.
    pub fn lost(&self) -> bool {
        self.stop.is_cancelled() && !self.feed.is_cancelled()
    }

    fn enqueue_with(&self, request: Request, add: Add) {
        if !self.stop.is_cancelled() {
            self.queue.add_with(request, add);
        }
    }
}

/// End of a source.
///
/// A source may end although its condition holds, or is not known to be lost:
///
/// - A `conditional` source ends the epoch as completed. After a back-off (1 s doubling to 5 min)
///   the next epoch begins if the condition is met, whatever the restart policy.
/// - An `optional` source is started again alone, after 1 s doubling to 60 s.
/// - Any other source is not started again after [`Stopped`](Self::Stopped). After
///   [`TypeGone`](Self::TypeGone) it is started again like an optional one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEnd {
    /// The source's type is proven gone.
    TypeGone,
    /// The epoch stopped the source, or the source has no more events.
    Stopped,
    /// The source failed, with this reason.
    Failed(String),
}

/// Resolves when the source and its informer have ended.
pub type SourceDone = BoxFuture<'static, SourceEnd>;

/// A started source.
///
/// ```
/// use futures::FutureExt;
/// use pilotlight::controller::*;
///
/// /// Source without objects at the start, which runs until it is to stop.
/// fn start(context: SourceContext) -> SourceStart {
///     let done = async move {
///         context.stopping().await;
///         SourceEnd::Stopped
///     };
///     SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
/// }
/// ```
pub struct SourceStart {
    /// Resolves when the requests for all objects that existed at the start are in the queue.
    pub synced: BoxFuture<'static, Result<(), BoxError>>,
    /// Resolves when the source has ended, for which see [`SourceEnd`]. May do the source's work:
    /// it is polled from the start, and dropping it stops the source.
    pub done: SourceDone,
}

impl std::fmt::Debug for SourceStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceStart").finish_non_exhaustive()
    }
}

/// Conditional source of the lifecycle proposal: `ready`, then `start_notify_done`, then `ready`
/// again.
///
/// A source adds requests itself ([`SourceContext::enqueue`]), or delivers changes of objects for a
/// handler and predicates ([`SourceContext::deliver`]), or generic events of objects
/// ([`SourceContext::deliver_generic`]). `delivers` and `delivers_generic_only` describe which, so
/// that a handler without effect is an error of the build. A source may offer a cache to the
/// reconciler ([`SourceContext::offer`]).
///
/// An implementor describes a source, which is started once in each epoch without state of earlier
/// epochs. State kept from one epoch would pin that epoch's caches, and prevent another start.
/// An `Arc` of a source is a source, too.
///
/// A source of the program's own, which requests a reconcile at each message:
///
/// ```
/// use std::sync::Arc;
///
/// use futures::FutureExt;
/// use pilotlight::{controller::*, manager::*};
/// use tokio::{select, sync::Notify};
///
/// struct Messages {
///     connected: tokio::sync::watch::Receiver<Verdict>, // Published by the program.
///     received: Arc<Notify>,
/// }
///
/// impl ConditionalSource for Messages {
///     fn ready(&self) -> Readiness {
///         Readiness::published(self.connected.clone())
///     }
///
///     fn start_notify_done(&self, context: SourceContext) -> SourceStart {
///         let received = Arc::clone(&self.received);
///         let done = async move {
///             loop {
///                 select! {
///                     () = context.stopping() => return SourceEnd::Stopped,
///                     () = received.notified() => context.enqueue(Request::cluster("all")),
///                 }
///             }
///         };
///         SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
///     }
///
///     fn delivers(&self) -> bool {
///         false // It adds requests itself.
///     }
/// }
/// # fn example(source: Messages) -> Builder {
/// let builder = Controller::builder("messages").source(source).conditional();
/// # builder
/// # }
/// ```
pub trait ConditionalSource: Send + Sync + 'static {
    /// Returns the condition under which the source can be started. Called by the manager for a
    /// required source, as
    /// [`ConditionalRunnable::ready`](crate::manager::ConditionalRunnable::ready), and by each epoch,
    /// before the first start of the source and after each of its ends. An epoch that waits for a
    /// required source ends after 60 s without its condition. A refused request (403) calls it too,
    /// for the functions of [`Readiness::on_refused`], and drops what it returns: a task that
    /// publishes the verdicts of one call ends when their receiver is dropped
    /// ([`Sender::closed`](tokio::sync::watch::Sender::closed)).
    fn ready(&self) -> Readiness;

    /// Starts the source for one epoch; must not block.
    ///
    /// The source must end once [`SourceContext::released`] resolves. A source from which
    /// reconcilers read nothing may end when [`SourceContext::stopping`] resolves.
    fn start_notify_done(&self, context: SourceContext) -> SourceStart;

    /// Returns the name of the source for messages.
    fn name(&self) -> String {
        "a source".to_owned()
    }

    /// Returns whether the source may deliver changes ([`SourceContext::deliver`]): true by default.
    /// A source that only adds requests takes neither a handler nor a predicate, since nothing would
    /// reach them.
    fn delivers(&self) -> bool {
        true
    }

    /// Returns whether the source delivers generic events alone
    /// ([`SourceContext::deliver_generic`]), as [`EventSource`](super::EventSource) does: false by
    /// default. Such a source takes no handler of changes alone, such as
    /// [`Handler::delta`](super::Handler::delta), since nothing would reach it.
    fn delivers_generic_only(&self) -> bool {
        false
    }
}

impl<S: ConditionalSource + ?Sized> ConditionalSource for Arc<S> {
    fn ready(&self) -> Readiness {
        (**self).ready()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        (**self).start_notify_done(context)
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn delivers(&self) -> bool {
        (**self).delivers()
    }

    fn delivers_generic_only(&self) -> bool {
        (**self).delivers_generic_only()
    }
}

impl<S: ConditionalSource + ?Sized> ConditionalSource for Box<S> {
    fn ready(&self) -> Readiness {
        (**self).ready()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        (**self).start_notify_done(context)
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn delivers(&self) -> bool {
        (**self).delivers()
    }

    fn delivers_generic_only(&self) -> bool {
        (**self).delivers_generic_only()
    }
}
