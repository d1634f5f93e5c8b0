//! Subscription: keeps an informer alive, and delivers its changes to one subscriber.

use std::{fmt, future::pending, mem, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::{
    InformerKey, Object, ObjectKey, Store, pending::Pending, set::Shared,
    shared_informer::SharedInformer,
};

/// Change of one object for one subscriber. Changes of the same object between two calls of
/// [`Subscription::next`] are merged.
///
/// Deleted, then created again, is one change, whose old and new object differ in uid. Created,
/// then deleted, is also one change, with `new: None`; of more than ten thousand pending ones only
/// the last are kept.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Key of the object.
    pub key: ObjectKey,
    /// Object that the subscriber saw before, or its last state if it was created and deleted
    /// unseen. `None` if the object is new to the subscriber.
    pub old: Option<Object>,
    /// Current object; `None` if it is deleted.
    pub new: Option<Object>,
    /// True if the object was in the store when the subscriber joined, or in the informer's first
    /// list.
    pub initial: bool,
}

/// Progress of an informer's list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first list is in progress. Holds the last error, if it is being retried.
    Syncing(Option<String>),
    /// The store is complete and the watch is open.
    Synced,
    /// The store is complete but stale: the watch fails. Holds the last error.
    Stale(String),
    /// The server forbids the request. Names the missing permission.
    Forbidden(String),
    /// The type's conversion webhook fails, so that no object can be read at this version. Holds
    /// the error.
    ConversionFailed(String),
    /// The informer has ended.
    Ended(Ended),
}

/// Reason why an informer ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The last subscriber left.
    #[error("released by its last subscriber")]
    Released,
    /// The type is proven gone.
    #[error("its type is gone")]
    TypeGone,
    /// The set was shut down.
    #[error("shut down")]
    Shutdown,
    /// A defect in this crate. Holds the panic's message.
    #[error("panicked: {0}")]
    Panicked(String),
}

/// Time that an informer outlives its last subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linger {
    /// The set's setting (default 10 s): the next epoch may need the informer.
    Default,
    /// No time: the type is gone.
    None,
}

/// Subscription to an informer: keeps it alive, reads its store and receives its changes.
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

    /// Returns the informer's key.
    pub fn key(&self) -> &InformerKey {
        &self.informer.key
    }

    #[cfg(test)]
    pub(super) fn informer(&self) -> Arc<SharedInformer> {
        self.informer.clone()
    }

    /// Returns a reader of the informer's objects.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// Returns the next change; the initial ones come first.
    ///
    /// # Errors
    ///
    /// If the informer has ended. Changes not received before are lost. The store keeps its objects
    /// until its last subscriber has left.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is lost only with the subscription.
    pub async fn next(&mut self) -> Result<Delta, Ended> {
        // A long backlog must not starve other tasks.
        tokio::task::coop::consume_budget().await;
        loop {
            match self.mailbox.take() {
                Some(result) => return result,
                // A push since `take` has left a permit.
                None => self.mailbox.notify.notified().await,
            }
        }
    }

    /// Waits until the informer's first list is complete; until then the store is partial. Never
    /// resolves if the informer ends or the subscription is dropped first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn complete(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mailbox.reaches(Extent::Complete)
    }

    /// Waits until the first list is complete and [`Subscription::next`] has returned every initial
    /// change. Never resolves if the informer ends or the subscription is dropped first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mailbox.reaches(Extent::Drained)
    }

    /// Subscribes to the progress of the informer.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.informer.progress()
    }

    /// Waits until the informer and its task have ended; returns the reason.
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + use<> {
        self.informer.done()
    }

    /// Releases the subscription. If the informer is ending, or this was the last subscriber and
    /// `linger` is [`Linger::None`], waits until the informer has ended, its request is dropped and
    /// its memory freed. Returns at once otherwise.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the subscription is released even if this future is dropped.
    pub async fn release(self, linger: Linger) {
        let done = self.informer.done();
        let ending = self.set.release(&self.informer, &self.mailbox, linger);
        // Drops this reference to the informer and the store before waiting.
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

/// Mailbox of one subscriber, filled by the informer. Bounded by the number of objects, plus a
/// limit of unseen deletions, so that a slow subscriber delays no other.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<MailboxState>,
    // At most one waiter: `next` takes the subscription by `&mut`.
    notify: Notify,
    extent: watch::Sender<Extent>,
}

/// Part of the first list that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    Partial,
    /// The whole list is in the store.
    Complete,
    /// The whole list was returned by [`Subscription::next`].
    Drained,
}

#[derive(Debug)]
struct MailboxState {
    pending: Pending,
    /// True once the first list is complete: no more initial changes follow.
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
        let state = MailboxState { pending, complete, ended: None };
        let extent = watch::Sender::new(state.extent());
        Self { state: Mutex::new(state), notify: Notify::new(), extent }
    }

    /// Creates the mailbox of a subscriber of a closed informer.
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
        let mut state = self.lock();
        state.pending.push(key, old, new, initial);
        self.publish(&state);
        drop(state);
        self.notify.notify_one();
    }

    pub(super) fn complete(&self) {
        let mut state = self.lock();
        state.complete = true;
        self.publish(&state);
    }

    pub(super) fn end(&self, reason: Ended) {
        let mut state = self.lock();
        state.pending.clear();
        state.ended = Some(reason);
        drop(state);
        self.notify.notify_one();
    }

    fn take(&self) -> Option<Result<Delta, Ended>> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Some(Err(ended.clone()));
        }
        let delta = state.pending.pop()?;
        self.publish(&state);
        Some(Ok(delta))
    }

    fn publish(&self, state: &MailboxState) {
        let extent = state.extent();
        self.extent.send_if_modified(|known| mem::replace(known, extent.max(*known)) < extent);
    }

    /// Never resolves if the mailbox is dropped first.
    fn reaches(&self, extent: Extent) -> impl Future<Output = ()> + Send + use<> {
        let mut known = self.extent.subscribe();
        async move {
            if known.wait_for(|known| *known >= extent).await.is_err() {
                pending::<()>().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        #[cfg(test)]
        super::schedule::before(&self.state);
        self.state.lock()
    }
}

impl MailboxState {
    fn extent(&self) -> Extent {
        match (self.complete, self.pending.initial()) {
            (false, _) => Extent::Partial,
            (true, 0) => Extent::Drained,
            (true, _) => Extent::Complete,
        }
    }
}
