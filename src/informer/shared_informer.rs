//! What an informer's task, its subscribers and its set share.
//!
//! The task is the only one that changes the store, and does so under the informer's lock, so that
//! somebody who joins gets exactly what the store holds and then every change after it.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Ended, InformerKey, Object, ObjectError, ObjectKey, Progress, Store, subscription::Mailbox,
};

/// Wrong objects that are remembered for the status; the log has them all.
const QUARANTINE_MAX: usize = 100;

#[derive(Debug)]
pub(super) struct SharedInformer {
    pub(super) key: InformerKey,
    /// Kind of its objects when it was started.
    pub(super) kind: Arc<str>,
    pub(super) store: Store,
    state: Mutex<State>,
    progress: watch::Sender<Progress>,
    /// Since when nobody subscribes.
    idle: watch::Sender<Option<Instant>>,
    /// Cancelled when it closes: the task is to drop its request and end.
    stop: CancellationToken,
    /// Set when the task has ended.
    done: watch::Sender<Option<Ended>>,
    /// Cuts a back-off short.
    pub(super) nudge: Notify,
}

#[derive(Debug, Default)]
struct State {
    subscribers: Vec<Arc<Mailbox>>,
    /// The first list is complete.
    complete: bool,
    closed: Option<Ended>,
    quarantine: BTreeMap<Named, ObjectError>,
}

/// As much of an object as can be read of what it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Key(ObjectKey),
    Uid(Arc<str>),
}

/// What an object's arrival changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Applied,
    /// The store had it already.
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

    /// Adds a subscriber with everything there is; `None` once closed.
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

    /// Removes a subscriber; whether it was the last one. If the informer is closed, its objects are
    /// freed then.
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

    /// Frees the objects of a closed informer without subscribers. Not for a caller that holds a lock:
    /// a large store takes long.
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

    /// Puts an object in the store and tells the subscribers; nothing once closed.
    pub(super) fn put(&self, object: &Object) -> Change {
        let mut state = self.lock();
        if state.closed.is_some() {
            return Change::None;
        }
        state.free(object.key());
        if !state.quarantine.is_empty() {
            state.quarantine.remove(&Named::Uid(object.header().uid.clone()));
        }
        if self.store.get(object.key()).is_some_and(|old| old.is_same_version(object)) {
            return Change::None;
        }
        let old = self.store.put(object);
        state.tell(object.key(), old.as_ref(), Some(object));
        Change::Applied
    }

    /// Takes an object out of the store and tells the subscribers; nothing once closed.
    pub(super) fn remove(&self, key: &ObjectKey) -> Change {
        let mut state = self.lock();
        if state.closed.is_some() {
            return Change::None;
        }
        state.free(key);
        let Some(old) = self.store.remove(key) else { return Change::None };
        state.tell(key, Some(&old), None);
        Change::Applied
    }

    /// Remembers an object that cannot be cached; whether it is news.
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

    /// Forgets wrong objects that are no longer there, as a list says in which each has a name.
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

    /// Says that the store has been complete once: whoever has seen all of it is in sync.
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
        // Not under the lock: whoever is looking at the old value may call us.
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

    /// Ends it: subscribers are told, the task is asked to end. The first reason stands. Whether
    /// this was the first.
    ///
    /// The store stays as it is: what is still being worked on must not take objects for deleted.
    /// [`SharedInformer::discard`] empties it when the last subscriber has left.
    pub(super) fn close(&self, reason: Ended) -> bool {
        self.close_if(reason, |_subscribers| true)
    }

    /// Ends it unless somebody has joined.
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

    /// Resolves when it is closed.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Says that the task has ended and holds nothing any more.
    pub(super) fn finish(&self, reason: Ended) {
        self.done.send_replace(Some(reason));
    }

    /// Resolves when the task has ended.
    pub(super) fn done(self: &Arc<Self>) -> impl Future<Output = Ended> + Send + use<> {
        let informer = self.clone();
        async move {
            let mut done = informer.done.subscribe();
            match done.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(reason)) => reason.clone(),
                // The sender is in the informer that this future holds.
                Ok(None) | Err(_) => Ended::Shutdown,
            }
        }
    }

    // The statements under this lock do not panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        super::schedule::before(&self.state);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets that the object of that name is wrong.
    fn free(&mut self, key: &ObjectKey) {
        // Most informers have nothing here.
        if !self.quarantine.is_empty() {
            self.quarantine.remove(&Named::Key(key.clone()));
        }
    }

    fn tell(&self, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        for mailbox in &self.subscribers {
            mailbox.push(key, old.cloned(), new.cloned(), !self.complete);
        }
    }
}
