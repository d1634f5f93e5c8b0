//! Shared informer: the state that an informer's task, its subscribers and its set share.
//!
//! Only the task changes the store. It does so under the informer's lock, so that no object is lost
//! between a subscriber's scan and the delivery of changes.

mod moving_interests;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    future::pending,
    iter, slice,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    task::yield_now,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Change, EndReason, Header, InformerKey, InformerProgress, Interest, Interests, Linger, Object,
    ObjectError, ObjectKey, Store,
    interest::{InterestHolder, InterestIndex, NamedInterests, SubscriberId, dedup},
    mailbox::Mailbox,
    objects::ListNumber,
    retention::Retention,
    subscriber::Subscriber,
};

/// Maximum number of quarantined objects kept for the status; the log names all.
const QUARANTINE_MAX: usize = 100;
/// Objects that are read or reduced at most under one lock.
const REDUCED: usize = 256;

#[derive(Debug)]
pub(super) struct SharedInformer {
    pub(super) key: InformerKey,
    /// Kind of the objects when the informer was started.
    pub(super) kind: Arc<str>,
    pub(super) store: Store,
    state: Mutex<InformerContents>,
    progress: watch::Sender<InformerProgress>,
    /// Time since which there are no subscribers; `None` while there are some.
    idle: watch::Sender<Option<Instant>>,
    /// Cancelled on close: the task must drop its request and end.
    stop: CancellationToken,
    /// Set once the task has ended.
    done: watch::Sender<Option<EndReason>>,
    /// Cuts the task's back-off short.
    pub(super) served_again: Notify,
    /// True while the server offers no watch for the type.
    pub(super) polled: AtomicBool,
    /// True if a list is needed to make objects whole.
    relist_wanted: watch::Sender<bool>,
    // Reason why objects that subscribers wait for could not be made whole.
    fill_failure: watch::Sender<Option<InformerProgress>>,
    /// Time at which the next objects may be reduced.
    retained_until: watch::Sender<Option<Instant>>,
    linger: Duration,
}

/// A subscription's part of an informer.
#[derive(Debug)]
pub(super) struct JoinedSubscription {
    pub(super) id: SubscriberId,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) store: Store,
}

/// A list in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct OngoingList {
    /// Number of this list, recorded with each object that it contains.
    pub(super) number: ListNumber,
    // Requests for whole objects that were made before it.
    answered: u64,
}

#[derive(Debug, Default)]
struct InformerContents {
    // Boxed: a node of the map has room for eleven, and most informers have one.
    subscribers: BTreeMap<SubscriberId, Box<Subscriber>>,
    next_id: u64,
    index: InterestIndex<InterestHolder>,
    // Holders that a change concerns; kept for its capacity.
    visited: Vec<InterestHolder>,
    retention: Retention,
    /// Number of the current list.
    list: ListNumber,
    /// Requests for whole objects so far.
    whole_requests: u64,
    /// Requests that the last complete list has answered; `None` before the first one.
    complete: Option<u64>,
    closed: Option<EndReason>,
    quarantine: BTreeMap<QuarantinedIdentity, ObjectError>,
}

/// Identity of a quarantined object, as far as it can be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QuarantinedIdentity {
    Key(ObjectKey),
    Uid(Arc<str>),
}

/// Effect of an object on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreChange {
    Applied,
    /// The store already held the object.
    None,
    /// The object is to be kept whole since it was decoded: decode it again.
    Incomplete,
}

impl SharedInformer {
    pub(super) fn new(key: InformerKey, kind: Arc<str>, linger: Duration) -> Self {
        Self {
            key,
            kind,
            store: Store::new(),
            state: Mutex::default(),
            progress: watch::Sender::new(InformerProgress::Syncing(None)),
            idle: watch::Sender::new(None),
            stop: CancellationToken::new(),
            done: watch::Sender::new(None),
            served_again: Notify::new(),
            polled: AtomicBool::new(false),
            relist_wanted: watch::Sender::new(false),
            fill_failure: watch::Sender::new(None),
            retained_until: watch::Sender::new(None),
            linger,
        }
    }

    /// Adds a subscriber; `None` if the informer is closed.
    ///
    /// Copies no object: the subscriber scans the store at its own pace. A list is requested if
    /// objects that it needs whole are kept as metadata entries.
    pub(super) fn join(&self, interests: Interests) -> Option<JoinedSubscription> {
        let Interests { deliver, mut whole } = interests;
        // Objects that are delivered first are scanned in the store, and so have to be whole there.
        let also: Vec<_> = deliver.iter().filter(|it| !whole.contains(it)).cloned().collect();
        whole.extend(also);
        let mut state = self.lock();
        if state.closed.is_some() {
            return None;
        }
        let id = SubscriberId(state.next_id);
        state.next_id += 1;
        let mut fill = 0;
        if whole.iter().any(|interest| self.store.has_entries_of(interest)) {
            state.whole_requests += 1;
            fill = state.whole_requests;
            self.relist_wanted.send_replace(true);
        }
        state.retention.join(&whole);
        let holder = InterestHolder { subscriber: id, named: None };
        for interest in &deliver {
            state.index.insert(interest, holder.clone());
        }
        let store = self.store.join(id, &whole);
        let mut subscriber = Subscriber::new(id, deliver, whole, fill);
        let mailbox = subscriber.mailbox.clone();
        if let Some(filled) = state.complete {
            subscriber.complete(filled, &self.store, &state.index);
        }
        state.subscribers.insert(id, Box::new(subscriber));
        self.idle.send_replace(None);
        drop(state);
        Some(JoinedSubscription { id, mailbox, store })
    }

    /// Removes a subscriber; returns whether it was the last one. Its objects stay whole for the
    /// linger time. Frees the objects if the informer is closed and has no subscribers left.
    pub(super) fn leave(&self, id: SubscriberId, linger: Linger) -> bool {
        let mut freed = Vec::new();
        let mut state = self.lock();
        let left = state.subscribers.remove(&id);
        let last = left.is_some() && state.subscribers.is_empty();
        if let Some(left) = &left {
            let holder = InterestHolder { subscriber: id, named: None };
            for interest in &left.deliver {
                state.index.remove(interest, &holder);
            }
            for interest in left.moving.all() {
                freed.extend(self.remove_interest(&mut state, id, interest));
            }
            let linger = match linger {
                Linger::Default => self.linger,
                Linger::None => Duration::ZERO,
            };
            let next = state.retention.leave(left.whole.clone(), linger);
            self.retained_until.send_replace(next);
        }
        if last {
            self.idle.send_replace(Some(Instant::now()));
        }
        drop(state);
        // Pending changes may be the last owners of objects, and an index may be large.
        drop((left, freed));
        self.discard();
        last
    }

    /// Continues the scan of a subscriber; returns whether it has moved.
    pub(super) fn scan(&self, id: SubscriberId) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let complete = state.complete.is_some();
        let subscriber = state.subscribers.get_mut(&id);
        subscriber.is_some_and(|subscriber| subscriber.scan(&self.store, complete, &state.index))
    }

    /// Returns the number of objects that a resync of all objects of a subscriber examines.
    pub(super) fn resync_len(&self, id: SubscriberId) -> usize {
        let state = self.lock();
        let subscriber = state.subscribers.get(&id);
        subscriber.map_or(0, |subscriber| self.store.scan_len(&examined(subscriber)))
    }

    /// Delivers the next objects again that concern a subscriber, as updates without a difference.
    /// Examines at most `examine` objects after a key; returns the last one, `None` at the end.
    pub(super) fn resync(
        &self,
        id: SubscriberId,
        after: Option<&ObjectKey>,
        examine: usize,
    ) -> Option<ObjectKey> {
        // Under the lock, so that the store has no change that is not in the mailbox.
        let state = self.lock();
        let subscriber = state.subscribers.get(&id)?;
        let scanned = self.store.after(after, &examined(subscriber), examine);
        let is_static = subscriber.moving.is_empty();
        let concerned = scanned.objects.into_iter().filter_map(|object| {
            if is_static {
                return Some((object, Vec::new()));
            }
            let interests = state.index.concerned(id, object.header())?;
            Some((object, interests))
        });
        subscriber.mailbox.resync(concerned);
        scanned.last.filter(|_| !scanned.end)
    }

    /// Returns the moving interests of a subscriber in an object.
    pub(super) fn interests_in(&self, id: SubscriberId, object: &Header) -> NamedInterests {
        self.lock().index.concerned(id, object).unwrap_or_default()
    }

    /// Returns the stored objects that concern a subscriber now, as initial changes.
    pub(super) fn concerned(&self, id: SubscriberId) -> Vec<Change> {
        let (mut concerned, mut cursor) = (Vec::new(), None);
        loop {
            let state = self.lock();
            let Some(subscriber) = state.subscribers.get(&id) else { return concerned };
            let scanned = self.store.after(cursor.as_ref(), &examined(subscriber), REDUCED);
            concerned.extend(scanned.objects.into_iter().filter_map(|object| {
                let interests = state.index.concerned(id, object.header())?;
                let (key, new) = (object.key().clone(), Some(object));
                Some(Change { key, old: None, new, initial: true, interests })
            }));
            if scanned.end {
                return concerned;
            }
            cursor = scanned.last;
        }
    }

    /// Waits until a subscriber needs objects whole that are kept as metadata entries.
    pub(super) async fn relist_wanted(&self) {
        let mut wanted = self.relist_wanted.subscribe();
        // This informer holds the sender.
        drop(wanted.wait_for(|wanted| *wanted).await);
    }

    /// Requests the list again that was to make objects whole, after it failed.
    pub(super) fn repeat_fill(&self) {
        let state = self.lock();
        if state.complete.is_some_and(|answered| state.whole_requests > answered) {
            self.relist_wanted.send_replace(true);
        }
    }

    /// Begins a list; returns its number, and the requests for whole objects that it answers.
    pub(super) fn begin_list(&self) -> OngoingList {
        let mut state = self.lock();
        state.list = state.list.wrapping_add(1);
        self.relist_wanted.send_replace(false);
        OngoingList { number: state.list, answered: state.whole_requests }
    }

    /// Returns whether an object is kept whole.
    pub(super) fn keeps(&self, object: &Header) -> bool {
        self.lock().retention.keeps(object)
    }

    /// Waits until the linger time of a subscriber's whole objects is over.
    pub(super) async fn retention_ends(&self) {
        let mut until = self.retained_until.subscribe();
        loop {
            let end = *until.borrow_and_update();
            let over = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                // This informer holds the sender.
                _changed = until.changed() => {}
            }
        }
    }

    /// Reduces the objects that no interest keeps whole any more; for the informer's own task.
    pub(super) async fn reduce(&self) {
        let expired = {
            let mut state = self.lock();
            let expired = state.retention.expire();
            self.retained_until.send_replace(state.retention.next_end());
            expired
        };
        if expired.iter().all(|it| matches!(it, Interest::OwnerKind(_))) {
            // By index, one kind after the other.
            for interest in &expired {
                self.reduce_all(slice::from_ref(interest)).await;
            }
        } else {
            self.reduce_all(&[Interest::Everything]).await;
        }
    }

    /// Reduces objects of these interests, unless another interest keeps them whole.
    async fn reduce_all(&self, interests: &[Interest]) {
        let mut cursor = None;
        loop {
            {
                let state = self.lock();
                let scanned = self.store.after(cursor.as_ref(), interests, REDUCED);
                for object in scanned.objects {
                    let is_needed = object.header().is_compared_by_content()
                        || state.retention.keeps(object.header());
                    if object.is_whole() && !is_needed {
                        self.store.reduce(&object);
                    }
                }
                cursor = scanned.last;
                if scanned.end || state.closed.is_some() {
                    return;
                }
            }
            yield_now().await;
        }
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

    /// Adds or replaces an object, and delivers the change to the subscribers that it concerns. No
    /// effect once closed.
    pub(super) fn put(&self, object: &Object) -> StoreChange {
        let mut state = self.lock();
        if state.closed.is_some() {
            return StoreChange::None;
        }
        if !object.is_whole() && state.retention.keeps(object.header()) {
            return StoreChange::Incomplete;
        }
        state.clear_quarantine(object.key());
        if !state.quarantine.is_empty() {
            state.quarantine.remove(&QuarantinedIdentity::Uid(object.header().uid.clone()));
        }
        let list = state.list;
        if let Some(old) = self.store.stored(object.key())
            && old.is_same_version(object)
        {
            if object.is_whole() && !old.is_whole() {
                // Only subscribers whose scan has still to come need the whole object.
                self.store.put(object, list);
            } else {
                self.store.touch(object.key(), list);
            }
            return StoreChange::None;
        }
        let old = self.store.put(object, list);
        state.deliver(object.key(), old.as_ref(), Some(object));
        StoreChange::Applied
    }

    pub(super) fn remove(&self, key: &ObjectKey) -> StoreChange {
        let mut state = self.lock();
        if state.closed.is_some() {
            return StoreChange::None;
        }
        state.clear_quarantine(key);
        let Some(old) = self.store.remove(key) else { return StoreChange::None };
        state.deliver(key, Some(&old), None);
        StoreChange::Applied
    }

    /// Records an object that cannot be cached; returns whether the error is new.
    pub(super) fn quarantine(&self, error: &ObjectError) -> bool {
        let named = match (&error.key, &error.uid) {
            (Some(key), _) => QuarantinedIdentity::Key(key.clone()),
            (None, Some(uid)) => QuarantinedIdentity::Uid(uid.clone()),
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
            QuarantinedIdentity::Key(key) => keep(key),
            QuarantinedIdentity::Uid(_) => false,
        });
    }

    pub(super) fn quarantined(&self) -> Vec<ObjectError> {
        self.lock().quarantine.values().cloned().collect()
    }

    /// Records that a list is complete. A subscriber whose objects it has, and that has received
    /// all of them, is in sync.
    pub(super) fn complete(&self, list: OngoingList) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.complete = Some(list.answered);
        for subscriber in state.subscribers.values_mut() {
            subscriber.complete(list.answered, &self.store, &state.index);
        }
        if state.whole_requests > list.answered {
            self.relist_wanted.send_replace(true);
        }
        drop(guard);
        self.fill_failure.send_if_modified(|failure| failure.take().is_some());
    }

    /// Records why a list that was to make objects whole failed.
    pub(super) fn fill_failed(&self, progress: InformerProgress) {
        self.fill_failure.send_if_modified(|failure| {
            let is_new = failure.as_ref() != Some(&progress);
            *failure = Some(progress);
            is_new
        });
    }

    /// Subscribes to failures of lists that are to make objects whole; `None` after a complete one.
    pub(super) fn fill_failure(&self) -> watch::Receiver<Option<InformerProgress>> {
        self.fill_failure.subscribe()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.lock().complete.is_some()
    }

    pub(super) fn publish(&self, progress: InformerProgress) {
        // Not under the lock: a reader that borrows the old value may call this informer.
        self.progress.send_if_modified(|known| {
            if matches!(known, InformerProgress::Ended(_)) || *known == progress {
                return false;
            }
            *known = progress;
            true
        });
    }

    pub(super) fn progress(&self) -> watch::Receiver<InformerProgress> {
        self.progress.subscribe()
    }

    /// Closes the informer: ends the subscriptions and stops the task. The first reason stands.
    /// Returns whether this call closed it.
    ///
    /// The store keeps its objects: running reconciles must not see them as deleted.
    /// [`SharedInformer::discard`] empties it after the last subscriber left.
    pub(super) fn close(&self, reason: EndReason) -> bool {
        self.close_if(reason, |_subscribers| true)
    }

    /// Closes the informer unless it has subscribers.
    pub(super) fn close_if_unused(&self, reason: EndReason) -> bool {
        self.close_if(reason, |subscribers| subscribers == 0)
    }

    fn close_if(&self, reason: EndReason, condition: impl FnOnce(usize) -> bool) -> bool {
        let mut state = self.lock();
        if state.closed.is_some() || !condition(state.subscribers.len()) {
            return false;
        }
        state.closed = Some(reason.clone());
        state.quarantine.clear();
        for subscriber in state.subscribers.values() {
            subscriber.mailbox.end(reason.clone());
        }
        drop(state);
        self.progress.send_replace(InformerProgress::Ended(reason));
        self.stop.cancel();
        true
    }

    pub(super) fn closed(&self) -> Option<EndReason> {
        self.lock().closed.clone()
    }

    /// Waits until the informer is closed.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Records that the task has ended and holds no resources any more.
    pub(super) fn finish(&self, reason: EndReason) {
        self.done.send_replace(Some(reason));
    }

    /// Waits until the task has ended; returns the reason.
    pub(super) fn done(self: &Arc<Self>) -> impl Future<Output = EndReason> + Send + use<> {
        let informer = self.clone();
        async move {
            let mut done = informer.done.subscribe();
            match done.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(reason)) => reason.clone(),
                // This future holds the informer, and so the sender.
                Ok(None) | Err(_) => EndReason::Shutdown,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, InformerContents> {
        #[cfg(test)]
        super::schedule::before(&self.state);
        self.state.lock()
    }
}

impl InformerContents {
    /// Removes the object of that name from the quarantine.
    fn clear_quarantine(&mut self, key: &ObjectKey) {
        // Nearly always empty.
        if !self.quarantine.is_empty() {
            self.quarantine.remove(&QuarantinedIdentity::Key(key.clone()));
        }
    }

    /// Delivers a change to the subscribers that the old or the new object concerns, with their
    /// moving interests.
    fn deliver(&mut self, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        let visited = &mut self.visited;
        for object in [old, new].into_iter().flatten() {
            self.index.visit(object.header(), |holder| visited.push(holder.clone()));
        }
        visited.sort_unstable_by_key(|holder| holder.subscriber);
        let mut visited = visited.drain(..).peekable();
        while let Some(InterestHolder { subscriber: id, named }) = visited.next() {
            let others = iter::from_fn(|| visited.next_if(|holder| holder.subscriber == id));
            let others = others.filter_map(|holder| holder.named);
            let mut interests: Vec<_> = named.into_iter().chain(others).collect();
            dedup(&mut interests);
            if let Some(subscriber) = self.subscribers.get_mut(&id) {
                subscriber.deliver(Change {
                    key: key.clone(),
                    old: old.cloned(),
                    new: new.cloned(),
                    initial: self.complete.is_none(),
                    interests,
                });
            }
        }
    }
}

/// Returns the interests by which the objects of a subscriber are found in the store. The static
/// ones alone may have an index.
fn examined(subscriber: &Subscriber) -> Cow<'_, [Interest]> {
    if subscriber.moving.is_empty() {
        Cow::Borrowed(&subscriber.deliver[..])
    } else {
        Cow::Owned(vec![Interest::Everything])
    }
}

#[cfg(test)]
mod model;
