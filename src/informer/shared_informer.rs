//! Shared informer: the state that an informer's task, its subscribers and its set share.
//!
//! Only the task changes the store. It does so under the informer's lock, so that a new subscriber
//! gets exactly the store's content and then every later change.

use std::{collections::BTreeMap, mem, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Ended, InformerKey, Object, ObjectError, ObjectKey, Progress, Store, subscription::Mailbox,
};

/// Maximum number of quarantined objects kept for the status; the log names all.
const QUARANTINE_MAX: usize = 100;

#[derive(Debug)]
pub(super) struct SharedInformer {
    pub(super) key: InformerKey,
    /// Kind of the objects when the informer was started.
    pub(super) kind: Arc<str>,
    pub(super) store: Store,
    state: Mutex<State>,
    progress: watch::Sender<Progress>,
    /// Since when there are no subscribers; `None` while there are.
    idle: watch::Sender<Option<Instant>>,
    /// Cancelled on close: the task must drop its request and end.
    stop: CancellationToken,
    /// Set once the task has ended.
    done: watch::Sender<Option<Ended>>,
    /// Cuts the task's back-off short.
    pub(super) nudge: Notify,
}

#[derive(Debug, Default)]
struct State {
    subscribers: Vec<Arc<Mailbox>>,
    /// True once the first list is complete.
    complete: bool,
    closed: Option<Ended>,
    quarantine: BTreeMap<Named, ObjectError>,
}

/// Identity of a quarantined object, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Key(ObjectKey),
    Uid(Arc<str>),
}

/// Effect of an object on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Applied,
    /// The store already held the object.
    None,
}

impl SharedInformer {
    pub(super) fn new(key: InformerKey, kind: Arc<str>) -> Self {
        Self {
            key,
            kind,
            store: Store::new(),
            state: Mutex::default(),
            progress: watch::Sender::new(Progress::Syncing(None)),
            idle: watch::Sender::new(None),
            stop: CancellationToken::new(),
            done: watch::Sender::new(None),
            nudge: Notify::new(),
        }
    }

    /// Adds a subscriber with a snapshot of the store; `None` if the informer is closed.
    pub(super) fn join(&self) -> Option<Arc<Mailbox>> {
        let mut state = self.lock();
        if state.closed.is_some() {
            return None;
        }
        let mailbox = Arc::new(Mailbox::new(self.store.list(), state.complete));
        state.subscribers.push(mailbox.clone());
        self.idle.send_replace(None);
        Some(mailbox)
    }

    /// Removes a subscriber; returns whether it was the last one. Frees the objects if the informer
    /// is closed and has no subscribers left.
    pub(super) fn leave(&self, mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.lock();
        let before = state.subscribers.len();
        state.subscribers.retain(|other| !Arc::ptr_eq(other, mailbox));
        let last = state.subscribers.is_empty() && before > 0;
        if last {
            self.idle.send_replace(Some(Instant::now()));
        }
        drop(state);
        self.discard();
        last
    }

    /// Frees the objects of a closed informer without subscribers. Must not be called under a lock:
    /// freeing a large store takes long.
    pub(super) fn discard(&self) {
        let state = self.lock();
        let is_unused = state.closed.is_some() && state.subscribers.is_empty();
        drop(state);
        // A closed informer accepts neither objects nor subscribers.
        if is_unused {
            self.store.clear();
        }
    }

    pub(super) fn subscribers(&self) -> usize {
        self.lock().subscribers.len()
    }

    pub(super) fn idle(&self) -> watch::Receiver<Option<Instant>> {
        self.idle.subscribe()
    }

    /// Adds or replaces an object and notifies the subscribers. No effect once closed.
    pub(super) fn put(&self, object: &Object) -> Change {
        let mut state = self.lock();
        if state.closed.is_some() {
            return Change::None;
        }
        state.clear_quarantine(object.key());
        if !state.quarantine.is_empty() {
            state.quarantine.remove(&Named::Uid(object.header().uid.clone()));
        }
        if self.store.get(object.key()).is_some_and(|old| old.is_same_version(object)) {
            return Change::None;
        }
        let old = self.store.put(object);
        state.push(object.key(), old.as_ref(), Some(object));
        Change::Applied
    }

    /// Removes an object and notifies the subscribers. No effect once closed.
    pub(super) fn remove(&self, key: &ObjectKey) -> Change {
        let mut state = self.lock();
        if state.closed.is_some() {
            return Change::None;
        }
        state.clear_quarantine(key);
        let Some(old) = self.store.remove(key) else { return Change::None };
        state.push(key, Some(&old), None);
        Change::Applied
    }

    /// Records an object that cannot be cached; returns whether the error is new.
    pub(super) fn quarantine(&self, error: &ObjectError) -> bool {
        let named = match (&error.key, &error.uid) {
            (Some(key), _) => Named::Key(key.clone()),
            (None, Some(uid)) => Named::Uid(uid.clone()),
            (None, None) => return true,
        };
        let mut state = self.lock();
        if state.quarantine.get(&named).is_some_and(|known| known == error) {
            return false;
        }
        if state.quarantine.len() < QUARANTINE_MAX || state.quarantine.contains_key(&named) {
            state.quarantine.insert(named, error.clone());
        }
        true
    }

    /// Drops the quarantined objects that a list proves gone. In such a list each object has a
    /// readable name, so entries known only by uid are dropped too.
    pub(super) fn retain_quarantined(&self, keep: impl Fn(&ObjectKey) -> bool) {
        self.lock().quarantine.retain(|named, _| match named {
            Named::Key(key) => keep(key),
            Named::Uid(_) => false,
        });
    }

    pub(super) fn has_quarantined(&self) -> bool {
        !self.lock().quarantine.is_empty()
    }

    pub(super) fn quarantined(&self) -> Vec<ObjectError> {
        self.lock().quarantine.values().cloned().collect()
    }

    /// Marks the first list as complete: a subscriber that has popped all of it is in sync.
    pub(super) fn complete(&self) {
        let mut state = self.lock();
        if mem::replace(&mut state.complete, true) {
            return;
        }
        for mailbox in &state.subscribers {
            mailbox.complete();
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.lock().complete
    }

    pub(super) fn publish(&self, progress: Progress) {
        // Not under the lock: a reader that borrows the old value may call this informer.
        self.progress.send_if_modified(|known| {
            if matches!(known, Progress::Ended(_)) || *known == progress {
                return false;
            }
            *known = progress;
            true
        });
    }

    pub(super) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Closes the informer: ends the subscriptions and stops the task. The first reason stands.
    /// Returns whether this call closed it.
    ///
    /// The store keeps its objects: running reconciles must not see them as deleted.
    /// [`SharedInformer::discard`] empties it after the last subscriber left.
    pub(super) fn close(&self, reason: Ended) -> bool {
        self.close_if(reason, |_subscribers| true)
    }

    /// Closes the informer unless it has subscribers.
    pub(super) fn close_if_unused(&self, reason: Ended) -> bool {
        self.close_if(reason, |subscribers| subscribers == 0)
    }

    fn close_if(&self, reason: Ended, condition: impl FnOnce(usize) -> bool) -> bool {
        let mut state = self.lock();
        if state.closed.is_some() || !condition(state.subscribers.len()) {
            return false;
        }
        state.closed = Some(reason.clone());
        state.quarantine.clear();
        for mailbox in &state.subscribers {
            mailbox.end(reason.clone());
        }
        drop(state);
        self.progress.send_replace(Progress::Ended(reason));
        self.stop.cancel();
        true
    }

    pub(super) fn closed(&self) -> Option<Ended> {
        self.lock().closed.clone()
    }

    /// Waits until the informer is closed.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Records that the task has ended and holds no resources any more.
    pub(super) fn finish(&self, reason: Ended) {
        self.done.send_replace(Some(reason));
    }

    /// Waits until the task has ended; returns the reason.
    pub(super) fn done(self: &Arc<Self>) -> impl Future<Output = Ended> + Send + use<> {
        let informer = self.clone();
        async move {
            let mut done = informer.done.subscribe();
            match done.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(reason)) => reason.clone(),
                // This future holds the informer, and so the sender.
                Ok(None) | Err(_) => Ended::Shutdown,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        super::schedule::before(&self.state);
        self.state.lock()
    }
}

impl State {
    /// Removes the object of that name from the quarantine.
    fn clear_quarantine(&mut self, key: &ObjectKey) {
        // Nearly always empty.
        if !self.quarantine.is_empty() {
            self.quarantine.remove(&Named::Key(key.clone()));
        }
    }

    fn push(&self, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        for mailbox in &self.subscribers {
            mailbox.push(key, old.cloned(), new.cloned(), !self.complete);
        }
    }
}
