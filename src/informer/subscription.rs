//! One subscriber's view of an informer: a guard that keeps it alive and a stream of changes.

use super::{InformerKey, Object, ObjectKey, Store};

/// One change of one object, as seen by one subscriber; changes of the same object between two
/// looks are merged into one.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Which object.
    pub key: ObjectKey,
    /// What this subscriber saw before; `None` when it is new to it.
    pub old: Option<Object>,
    /// What there is now; `None` when it is gone.
    pub new: Option<Object>,
    /// Whether it was there when the subscriber joined or the informer first listed.
    pub initial: bool,
}

/// How an informer's watch is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first list is under way; the last error, if it is being repeated.
    Syncing(Option<String>),
    /// The store is complete and the watch is open.
    Synced,
    /// The store is complete but behind: the watch fails, with the last error.
    Stale(String),
    /// The server forbids it, with the rule that is missing.
    Forbidden(String),
    /// It has ended.
    Ended(Ended),
}

/// Why an informer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The last subscriber left.
    Released,
    /// Its type is proven gone.
    TypeGone,
    /// The set was shut down.
    Shutdown,
    /// A defect of ours; the panic's message.
    Panicked(String),
}

/// How long an informer outlives its last subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linger {
    /// As the set is configured (10 s): the next epoch may want it.
    Default,
    /// Not at all: its type is gone.
    None,
}

/// Keeps an informer alive, reads its store and receives its changes.
///
/// Dropping it releases with [`Linger::Default`], without waiting.
#[derive(Debug)]
pub struct Subscription {}

impl Subscription {
    /// Which informer.
    pub fn key(&self) -> &InformerKey {
        todo!()
    }

    /// A reader of its objects.
    pub fn store(&self) -> Store {
        todo!()
    }

    /// The next change, the initial ones first; `Err` once the informer has ended and nothing is
    /// left. Cancel safe: a change is lost only with the subscription.
    pub async fn next(&mut self) -> Result<Delta, Ended> {
        todo!()
    }

    /// Resolves when every initial change has been handed out by [`Subscription::next`].
    /// Cancel safe.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        async { todo!() }
    }

    /// How the watch is doing, and every later change of that.
    pub fn progress(&self) -> tokio::sync::watch::Receiver<Progress> {
        todo!()
    }

    /// Leaves. Resolves when the informer has ended if this was the last subscriber and it does
    /// not linger, at once otherwise.
    pub async fn release(self, _linger: Linger) {
        todo!()
    }
}
