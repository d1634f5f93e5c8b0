//! Mailbox: the changes that wait for one subscriber.

use std::{future::pending, iter, mem};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::{Change, EndReason, Object, interest::NamedInterests, pending::PendingChanges};

/// Mailbox of one subscriber. The informer adds changes; the subscriber's own scan of the store
/// adds the objects that exist. Bounded by the number of changed objects, plus a limit of unseen
/// deletions, so that a slow subscriber delays no other.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<MailboxState>,
    // At most one waiter: `next` takes the subscription by `&mut`.
    notify: Notify,
    extent: watch::Sender<Extent>,
}

/// Part of the first list that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    Partial,
    /// The whole list is in the store.
    Complete,
    /// The whole list was returned by [`Subscription::next`].
    Drained,
}

#[derive(Debug)]
struct MailboxState {
    pending: PendingChanges,
    /// True once the store has everything that the subscriber is interested in.
    complete: bool,
    /// True once the scan of a complete store has ended: no more initial changes follow.
    scanned: bool,
    ended: Option<EndReason>,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        let state = MailboxState {
            pending: PendingChanges::default(),
            complete: false,
            scanned: false,
            ended: None,
        };
        let extent = watch::Sender::new(state.extent());
        Self { state: Mutex::new(state), notify: Notify::new(), extent }
    }

    /// Creates the mailbox of a subscriber of a closed informer.
    pub(super) fn closed(reason: EndReason) -> Self {
        let mailbox = Self::new();
        mailbox.end(reason);
        mailbox
    }

    pub(super) fn push(&self, change: Change) {
        let mut state = self.lock();
        state.pending.push(change);
        self.publish(&state);
        drop(state);
        self.notify.notify_one();
    }

    /// Adds the deletion of an object that the scan has not reached.
    pub(super) fn push_unseen(&self, deletion: Change) {
        let mut state = self.lock();
        state.pending.push_unseen(deletion);
        self.publish(&state);
        drop(state);
        self.notify.notify_one();
    }

    /// Adds resyncs of objects of the store. Without effect once the subscription has ended.
    pub(super) fn resync(&self, objects: impl Iterator<Item = (Object, NamedInterests)>) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        objects.for_each(|(object, interests)| state.pending.push_resync(object, interests));
        drop(state);
        self.notify.notify_one();
    }

    /// Wakes the subscriber: its scan can continue.
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Records that the store is complete for this subscriber.
    pub(super) fn complete(&self) {
        let mut state = self.lock();
        state.complete = true;
        self.publish(&state);
        drop(state);
        self.notify.notify_one();
    }

    /// Records that the scan has ended.
    pub(super) fn scanned(&self) {
        let mut state = self.lock();
        state.scanned = true;
        self.publish(&state);
    }

    /// Returns whether the scan is to continue: it has not ended, and its objects are delivered.
    pub(super) fn needs_scan(&self) -> bool {
        let state = self.lock();
        !state.scanned && state.pending.initial() == 0 && state.ended.is_none()
    }

    /// Waits until a change may be pending, or the scan may continue.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Ends the deliveries. The pending changes are left to [`Mailbox::take_pending`].
    pub(super) fn end(&self, reason: EndReason) {
        let mut state = self.lock();
        state.ended = Some(reason);
        drop(state);
        self.notify.notify_one();
    }

    pub(super) fn take(&self) -> Option<Result<Change, EndReason>> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Some(Err(ended.clone()));
        }
        let change = state.pending.pop()?;
        self.publish(&state);
        Some(Ok(change))
    }

    /// Takes all pending changes, also after the end.
    pub(super) fn take_pending(&self) -> Vec<Change> {
        let mut pending = mem::take(&mut self.lock().pending);
        iter::from_fn(|| pending.pop()).collect()
    }

    /// Returns the number of pointers to interests in all pending changes.
    #[cfg(test)]
    pub(super) fn pointers(&self) -> usize {
        self.lock().pending.pointers()
    }

    fn publish(&self, state: &MailboxState) {
        let extent = state.extent();
        self.extent.send_if_modified(|known| mem::replace(known, extent.max(*known)) < extent);
    }

    /// Never resolves if the mailbox is dropped first.
    pub(super) fn reaches(&self, extent: Extent) -> impl Future<Output = ()> + Send + use<> {
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
        match (self.complete, self.scanned, self.pending.initial()) {
            (false, ..) => Extent::Partial,
            (true, true, 0) => Extent::Drained,
            (true, ..) => Extent::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::fixture::Fixture;

    #[test]
    fn resync_after_the_end_adds_nothing() {
        let mailbox = Mailbox::closed(EndReason::Shutdown);

        mailbox.resync([(Fixture::new("a").object(), Vec::new())].into_iter());

        assert_eq!(mailbox.lock().pending.len(), 0);
    }
}
