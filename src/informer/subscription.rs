//! One subscriber's view of an informer: a guard that keeps it alive and a stream of changes.

use std::{
    fmt,
    future::pending,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, watch};

use super::{
    InformerKey, Object, ObjectKey, Store, pending::Pending, set::Shared,
    shared_informer::SharedInformer,
};

/// One change of one object, as seen by one subscriber; changes of the same object between two
/// looks are merged into one.
///
/// An object that was deleted and created again between two looks is one change, whose old and new
/// object differ in uid. One that was created and deleted is one, too, and has gone; whoever has not
/// looked while ten thousand did so hears of the last ones.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Which object.
    pub key: ObjectKey,
    /// What this subscriber saw before, or what it was last, if it came and went unseen; `None` when
    /// it is new to it.
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
    /// The conversion webhook of the type fails, with its error: nothing can be read at this version.
    ConversionFailed(String),
    /// It has ended.
    Ended(Ended),
}

/// Why an informer ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The last subscriber left.
    #[error("released by its last subscriber")]
    Released,
    /// Its type is proven gone.
    #[error("its type is gone")]
    TypeGone,
    /// The set was shut down.
    #[error("shut down")]
    Shutdown,
    /// A defect of ours; the panic's message.
    #[error("panicked: {0}")]
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
pub struct Subscription {
    informer: Arc<SharedInformer>,
    set: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    store: Store,
}

impl Subscription {
    pub(super) fn new(
        set: Arc<Shared>,
        informer: Arc<SharedInformer>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let store = informer.store.join();
        Self { informer, set, mailbox, store }
    }

    /// Which informer.
    pub fn key(&self) -> &InformerKey {
        &self.informer.key
    }

    #[cfg(test)]
    pub(super) fn informer(&self) -> Arc<SharedInformer> {
        self.informer.clone()
    }

    /// A reader of its objects.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// The next change, the initial ones first.
    ///
    /// # Errors
    ///
    /// Once the informer has ended; changes that were not taken by then are lost, and the store
    /// stays as it is until its last subscriber has left.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is lost only with the subscription.
    pub async fn next(&mut self) -> Result<Delta, Ended> {
        // A long backlog must not keep the runtime from other tasks.
        tokio::task::coop::consume_budget().await;
        loop {
            match self.mailbox.take() {
                Some(result) => return result,
                // A push between the look and this wait has left its permit.
                None => self.mailbox.notify.notified().await,
            }
        }
    }

    /// Resolves when the informer's first list is complete: until then its store is a part of what
    /// there is. Never, when the informer ends or the subscription is dropped before that.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn complete(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mailbox.reaches(Extent::Complete)
    }

    /// Resolves when the informer's first list is complete and every initial change has been
    /// handed out by [`Subscription::next`]. Never, when the informer ends or the subscription is
    /// dropped before that.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mailbox.reaches(Extent::Drained)
    }

    /// How the watch is doing, and every later change of that.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.informer.progress()
    }

    /// Resolves when the informer has ended and its task is gone, with the reason.
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + use<> {
        self.informer.done()
    }

    /// Leaves. Resolves when the informer has ended, its request dropped and its memory freed, if
    /// it is ending already, or if this was the last subscriber and it does not linger; at once
    /// otherwise.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the subscription has left, whatever becomes of this future.
    pub async fn release(self, linger: Linger) {
        let done = self.informer.done();
        let ending = self.set.release(&self.informer, &self.mailbox, linger);
        // Its own reference to the informer and the store goes first.
        drop(self);
        if ending {
            done.await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.informer.leave(&self.mailbox);
        self.store.leave();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("key", &self.informer.key).finish_non_exhaustive()
    }
}

/// Where the informer leaves changes for one subscriber. Bounded by the number of objects, and of
/// those that came and went unseen, so that a slow subscriber holds up nobody.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<Letters>,
    // One waiter at most: `next` takes the subscription by `&mut`.
    notify: Notify,
    extent: watch::Sender<Extent>,
}

/// How much of what the informer first lists has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    Partial,
    /// All of it is in the store.
    Complete,
    /// All of it has been handed out.
    Drained,
}

#[derive(Debug)]
struct Letters {
    pending: Pending,
    /// The informer's first list is complete: no more initial changes will come.
    complete: bool,
    ended: Option<Ended>,
}

impl Mailbox {
    pub(super) fn new(snapshot: Vec<Object>, complete: bool) -> Self {
        let mut pending = Pending::default();
        for object in snapshot {
            let key = object.key().clone();
            pending.push(&key, None, Some(object), true);
        }
        let letters = Letters { pending, complete, ended: None };
        let extent = watch::Sender::new(letters.extent());
        Self { state: Mutex::new(letters), notify: Notify::new(), extent }
    }

    /// The mailbox of a subscriber that came too late.
    pub(super) fn closed(reason: Ended) -> Self {
        let mailbox = Self::new(Vec::new(), false);
        mailbox.end(reason);
        mailbox
    }

    pub(super) fn push(
        &self,
        key: &ObjectKey,
        old: Option<Object>,
        new: Option<Object>,
        initial: bool,
    ) {
        let mut letters = self.lock();
        letters.pending.push(key, old, new, initial);
        self.publish(&letters);
        drop(letters);
        self.notify.notify_one();
    }

    pub(super) fn complete(&self) {
        let mut letters = self.lock();
        letters.complete = true;
        self.publish(&letters);
    }

    pub(super) fn end(&self, reason: Ended) {
        let mut letters = self.lock();
        letters.pending.clear();
        letters.ended = Some(reason);
        drop(letters);
        self.notify.notify_one();
    }

    fn take(&self) -> Option<Result<Delta, Ended>> {
        let mut letters = self.lock();
        if let Some(ended) = &letters.ended {
            return Some(Err(ended.clone()));
        }
        let delta = letters.pending.pop()?;
        self.publish(&letters);
        Some(Ok(delta))
    }

    fn publish(&self, letters: &Letters) {
        let extent = letters.extent();
        self.extent.send_if_modified(|known| mem::replace(known, extent.max(*known)) < extent);
    }

    /// Never resolves when the mailbox is dropped before.
    fn reaches(&self, extent: Extent) -> impl Future<Output = ()> + Send + use<> {
        let mut known = self.extent.subscribe();
        async move {
            if known.wait_for(|known| *known >= extent).await.is_err() {
                pending::<()>().await;
            }
        }
    }

    // `Pending` does not panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, Letters> {
        #[cfg(test)]
        super::schedule::before(&self.state);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Letters {
    fn extent(&self) -> Extent {
        match (self.complete, self.pending.initial()) {
            (false, _) => Extent::Partial,
            (true, 0) => Extent::Drained,
            (true, _) => Extent::Complete,
        }
    }
}
