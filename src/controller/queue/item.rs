//! Items of the work queue: what is added, processed and shown.

use std::time::Duration;

use tokio::time::Instant;

/// Priority of requests without urgency: the initial list, and resyncs.
///
/// Like any priority below 0 it counts as 0 once the key has been ready for a minute.
pub const LOW_PRIORITY: i32 = -100;

/// Options of an add.
///
/// ```
/// use std::time::Duration;
///
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilotlight::controller::{Add, Enqueue, Event, Handler, LOW_PRIORITY, Request};
///
/// // Reconciles a summary at low priority, at most a second after each change.
/// let handler = Handler::typed(|_: Event<ConfigMap>, queue: &mut Enqueue<'_>| {
///     let add = Add { priority: LOW_PRIORITY, after: Duration::from_secs(1), ..Add::default() };
///     queue.add_with(Request::cluster("summary"), add);
/// });
/// # drop(handler);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Add {
    /// Priority; higher ones come first. A second add never lowers it. A priority below 0 counts
    /// as 0 once the key has been ready for a minute.
    pub priority: i32,
    /// Delay until the key is ready, at most a year; the earliest of several adds counts.
    pub after: Duration,
    /// True if the add counts as a failure of the key and waits for its back-off; with `after`
    /// set, for the shorter of both. A failure before the retry of the last one was due, after
    /// another add, waits for the same back-off again and is not counted.
    pub rate_limited: bool,
    /// True if the add counts as a failure of the key, without its back-off; the shared limit may
    /// delay it. Counted as with `rate_limited`.
    pub failed: bool,
}

impl Add {
    /// Returns whether the add counts as a failure of the key.
    pub(in crate::controller) fn counts(&self) -> bool {
        self.rate_limited || self.failed
    }
}

/// Key that a worker processes; ends with [`Queue::done`](super::Queue::done).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<K> {
    /// Key.
    pub key: K,
    /// Priority that the key had in the queue.
    pub priority: i32,
    /// Counted failures since the key was last forgotten.
    pub failures: u32,
}

/// Key of a queue, as [`Queue::dump`](super::Queue::dump) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow<K> {
    /// Key.
    pub key: K,
    /// Priority of the key.
    pub priority: i32,
    /// State of the key.
    pub state: QueueRowState,
    /// Time at which the key is, or became, ready; `None` for a running key that was not added
    /// again, and for a ready one of a queue without metrics, unless its priority is below 0.
    pub due: Option<Instant>,
    /// Counted failures of the key since it was last forgotten.
    pub requeues: u32,
}

/// State of a key in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRowState {
    /// A worker processes the key.
    Running,
    /// The key waits for a worker.
    Ready,
    /// The key waits for its time.
    Waiting,
}
