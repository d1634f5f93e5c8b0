//! Work queue: dedupes, orders, delays and rate-limits requests.
//!
//! Fair: first in, first out within a priority. Deduplicating: one worker processes a key at a
//! time, and adds during that time merge into one. Semantics: client-go's `workqueue` and
//! controller-runtime's `priorityqueue`. The queue runs no task: the callers that wait in
//! [`Queue::get`] drive its timers.
//!
//! A key may have a resync beside its add: a due time at which the key is ready at low priority.
//! Adds and failures of the key do not change it.
//!
//! Low priorities do not starve, unlike in `priorityqueue`. A key with a priority below 0 that has
//! been ready for a minute counts as priority 0, and precedes every key of priority 0 that became
//! ready after it. Later adds at priority 0 cannot delay it further. Keys with a priority above 0
//! precede it without a limit.

pub(in crate::controller) mod retry_gate;

mod core;
mod delays;
mod hashed;
mod item;
mod lazy_now;
mod limit;
mod ready;

use std::{
    fmt,
    future::poll_fn,
    hash::Hash,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{self, Poll},
};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

pub(super) use self::limit::NewLimiter;
use self::{
    core::{Core, Popped, QueueTimer},
    delays::KeyDelays,
    hashed::Hashed,
    lazy_now::LazyNow,
    limit::OwnLimiter,
};
pub use self::{
    item::{Add, Item, LOW_PRIORITY, QueueRow, QueueRowState},
    limit::{Backoff, FastSlow, Limit, MaxOf, QueueOptions, RateLimiter, TokenBucketLimiter},
};
use super::metrics::{QueueMetrics, QueueWork, WorkProbe};

/// Notifications of waiting getters that are under way at once. Each getter that receives one and
/// leaves another key notifies the next, so that a burst of adds wakes no more getters than are
/// needed. Two, since the runtime keeps one woken task for the thread that woke it, and hands the
/// second to any thread.
const MAX_NOTIFIED: usize = 2;

/// Handle of a work queue; cheap to clone.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::controller::{Add, Queue, QueueOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let queue = Queue::new(QueueOptions::default());
/// queue.add("a");
/// queue.add_with("b", Add { priority: 10, ..Add::default() });
/// queue.add_with("c", Add { after: Duration::from_secs(60), ..Add::default() });
///
/// let first = queue.get().await.unwrap();
/// assert_eq!(first.key, "b");
/// queue.add("b"); // Merged, and available again when the worker is done.
/// queue.done(&first.key);
/// queue.add_with("b", Add { rate_limited: true, ..Add::default() }); // After a failure.
/// queue.forget(&"b"); // After a success.
/// # }
/// ```
pub struct Queue<K> {
    shared: Arc<SharedQueue<K>>,
}

/// Handle that does not keep the queue alive.
pub(super) struct WeakQueue<K>(Weak<SharedQueue<K>>);

struct SharedQueue<K> {
    hasher: RandomState,
    metrics: QueueMetrics,
    state: Mutex<QueueState<K>>,
    // Wakes a getter: a key is ready, the first timer has changed, or the queue has finished.
    changed: Notify,
    // Wakes `drain`.
    finished: Notify,
}

struct QueueState<K> {
    core: Core<K>,
    delays: KeyDelays,
    // Getters that wait for a change.
    waiting: usize,
    // Notifications sent to waiting getters and not received yet, at most `MAX_NOTIFIED`.
    notified: usize,
}

/// Caller inside [`Queue::take`].
struct Getter<'a, K: Clone + Eq + Hash> {
    queue: &'a SharedQueue<K>,
    // True from its first wait until it takes a key. The timers may hold its waker, and it may have
    // been woken for a key that it leaves.
    waits: bool,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Returns an empty queue without metrics.
    pub fn new(options: QueueOptions) -> Self {
        Self::with_metrics(options, QueueMetrics::default())
    }

    pub(super) fn with_metrics(options: QueueOptions, metrics: QueueMetrics) -> Self {
        let state = QueueState {
            core: Core::new(options, metrics.clone(), Instant::now()),
            delays: KeyDelays::default(),
            waiting: 0,
            notified: 0,
        };
        let shared = SharedQueue {
            hasher: RandomState::default(),
            metrics,
            state: Mutex::new(state),
            changed: Notify::new(),
            finished: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Delays failed keys by a rate limiter, in place of the back-off of the options.
    #[must_use]
    pub fn rate_limited_by(self, limiter: impl RateLimiter<K> + 'static) -> Self {
        self.limit_by(Box::new(limiter));
        self
    }

    pub(super) fn limit_by(&self, limiter: Box<dyn RateLimiter<K>>) {
        self.shared.lock().core.limit_by(OwnLimiter::new(limiter));
    }

    /// Adds a key; ignored once the queue is shut down.
    pub fn add(&self, key: K) {
        self.add_with(key, Add::default());
    }

    /// Adds a key with a delay or a priority; ignored once the queue is shut down.
    #[inline]
    pub fn add_with(&self, key: K, add: Add) {
        let key = self.shared.hashed(key);
        let mut now = self.shared.lazy_now();
        if add != Add::default() {
            // Read before the lock, as for metrics.
            now.now();
        }
        let mut state = self.shared.lock();
        let added = state.core.add(key, add, &mut now);
        self.shared.announce(state, added);
    }

    /// Sets the time of the next resync of a key in place of an earlier one; `None` removes it. At
    /// that time the key becomes ready at low priority, regardless of adds in the meantime.
    pub(super) fn resync(&self, key: K, at: Option<Instant>) {
        let key = self.shared.hashed(key);
        let now = Instant::now();
        let mut state = self.shared.lock();
        let timer = state.core.resync(key, at, now);
        self.shared.announce(state, (timer, false));
    }

    /// Waits for the next key that no worker processes; `None` once the queue is closed, or
    /// drained.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped future takes no key.
    pub async fn get(&self) -> Option<Item<K>> {
        match self.try_get() {
            Some(item) => Some(item),
            None => self.wait().await,
        }
    }

    /// Like [`Queue::get`]. Without `capacity` it returns no key and only drives the timers, so
    /// that delayed keys still become ready in the order of their times.
    pub(super) async fn get_if(&self, capacity: bool) -> Option<Item<K>> {
        match capacity {
            true => self.get().await,
            false => self.take(|_, _| None).await,
        }
    }

    /// Waits for the next key.
    async fn wait(&self) -> Option<Item<K>> {
        let popped = self.take(|core, now| core.pop(now)).await?;
        Some(self.shared.record_get(popped))
    }

    /// Returns the next key, if one is ready that no worker processes.
    #[inline]
    pub(super) fn try_get(&self) -> Option<Item<K>> {
        let mut now = self.shared.lazy_now();
        let mut state = self.shared.lock();
        state.expire();
        let popped = state.core.pop(&mut now)?;
        let notifies = state.notifies_next();
        drop(state);
        self.shared.notify_if(notifies);
        Some(self.shared.record_get(popped))
    }

    /// Waits until `take` returns something, or the queue is finished, and drives the timers
    /// meanwhile.
    async fn take<T>(&self, take: impl Fn(&mut Core<K>, &mut LazyNow) -> Option<T>) -> Option<T> {
        let mut getter = Getter { queue: &self.shared, waits: false };
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            let got = poll_fn(|context| getter.poll(&take, changed.as_mut(), context));
            if let Some(got) = got.await {
                return got;
            }
        }
    }

    /// Ends the processing of a key; a key that was added meanwhile becomes available again.
    #[inline]
    pub fn done(&self, key: &K) {
        let key = self.shared.hashed(key);
        let mut now = self.shared.lazy_now();
        let mut state = self.shared.lock();
        let Some(ended) = state.core.done(key, &mut now) else { return };
        self.shared.announce(state, (QueueTimer::Keep, ended.is_available));
        if let Some(worked) = ended.worked {
            self.shared.metrics.worked_for(worked);
        }
    }

    /// Resets the failures of a key.
    pub fn forget(&self, key: &K) {
        let key = self.shared.hashed(key);
        self.shared.lock().core.forget(key);
    }

    /// Returns the number of failures of a key that were counted since it was last forgotten.
    pub fn requeues(&self, key: &K) -> u32 {
        let key = self.shared.hashed(key);
        self.shared.lock().core.failures(key)
    }

    /// Returns the number of ready keys, without the delayed ones.
    pub fn len(&self) -> usize {
        self.shared.lock().core.len()
    }

    /// Returns whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns every key for debugging: those in processing, then the ready ones in the order in
    /// which workers get them, then the delayed ones by time.
    pub fn dump(&self) -> Vec<QueueRow<K>> {
        let now = Instant::now();
        let dump = self.shared.lock().core.dump(now);
        dump.sorted()
    }

    pub(super) fn downgrade(&self) -> WeakQueue<K> {
        WeakQueue(Arc::downgrade(&self.shared))
    }

    /// Closes the queue for adds and gets, and drops its keys.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.core.close();
        state.delays.clear();
        self.shared.announce_finished(state);
    }

    /// Closes the queue for adds and drops the delayed keys; resolves when all ready keys have
    /// been processed.
    pub async fn drain(&self) {
        self.shared.start_drain();
        loop {
            let finished = self.shared.finished.notified();
            if self.shared.is_finished() {
                return;
            }
            finished.await;
        }
    }
}

impl<K: Clone + Eq + Hash> SharedQueue<K> {
    #[inline]
    fn hashed<T: Hash>(&self, key: T) -> Hashed<T> {
        Hashed::new(&self.hasher, key)
    }

    /// Returns the time of an operation, which is read before the lock if metrics need it.
    fn lazy_now(&self) -> LazyNow {
        let mut now = LazyNow::default();
        if self.metrics.are_recorded() {
            now.now();
        }
        now
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, QueueState<K>> {
        // The core does not panic between two consistent states.
        self.state.lock()
    }

    /// Applies the change of a timer and unlocks the queue; notifies a getter if that or an
    /// available key concerns it.
    #[inline]
    fn announce(
        &self,
        mut state: MutexGuard<'_, QueueState<K>>,
        (timer, is_available): (QueueTimer, bool),
    ) {
        let is_first = state.set_timer(timer);
        if state.core.is_finished() {
            self.announce_finished(state);
            return;
        }
        let notifies = (is_available && state.notifies_next()) || (is_first && state.notifies());
        drop(state);
        self.notify_if(notifies);
    }

    #[inline]
    fn notify_if(&self, notifies: bool) {
        if notifies {
            self.changed.notify_one();
        }
    }

    /// Records the key that a worker gets.
    #[inline]
    fn record_get(&self, Popped { item, queued }: Popped<K>) -> Item<K> {
        self.metrics.left(item.priority);
        if let Some(queued) = queued {
            self.metrics.queued_for(queued);
        }
        item
    }

    fn start_drain(&self) {
        let mut state = self.lock();
        state.core.drain();
        state.delays.clear();
        self.announce(state, (QueueTimer::Keep, false));
    }

    fn is_finished(&self) -> bool {
        self.lock().core.is_finished()
    }

    fn announce_finished(&self, state: MutexGuard<'_, QueueState<K>>) {
        drop(state);
        // A getter that is about to wait looks at the queue under the lock first.
        self.changed.notify_waiters();
        self.finished.notify_waiters();
    }
}

impl<K: Clone + Eq + Hash> QueueState<K> {
    /// Returns whether the caller must notify a getter of a change, after it has unlocked the
    /// queue.
    fn notifies(&mut self) -> bool {
        let notifies = self.notified < MAX_NOTIFIED.min(self.waiting);
        self.notified += usize::from(notifies);
        notifies
    }

    /// Returns whether the caller must notify a getter, as [`QueueState::notifies`] does, because a
    /// key is available for which no getter was notified yet.
    #[inline]
    fn notifies_next(&mut self) -> bool {
        self.notified < MAX_NOTIFIED.min(self.waiting).min(self.core.len())
            && self.core.has_available()
            && self.notifies()
    }

    /// Counts a notification that a getter has received.
    fn receive(&mut self) {
        self.notified = self.notified.saturating_sub(1);
    }

    /// Counts a getter that does not wait any longer.
    fn leave(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            // `Notify` keeps one of several notifications whose receivers are gone.
            self.notified = 0;
        }
    }

    /// Applies the change of a timer; returns whether the timer is the first one now.
    fn set_timer(&mut self, timer: QueueTimer) -> bool {
        match timer {
            QueueTimer::Keep => false,
            QueueTimer::Set(slot, _) => self.delays.set(slot, self.core.due(slot)),
            QueueTimer::Cancel(slot) => self.delays.set(slot, None),
        }
    }

    /// Makes the keys ready whose time has come.
    fn expire(&mut self) {
        if self.delays.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(slot) = self.delays.pop(now) {
            // The slot may have a later time: of a resync, or of a delay.
            let (timer, _) = self.core.expire(slot, now);
            self.set_timer(timer);
        }
    }
}

impl<K: Clone + Eq + Hash> Getter<'_, K> {
    /// Takes a key, or waits for a change; `None` once there may be one.
    fn poll<T>(
        &mut self,
        take: impl Fn(&mut Core<K>, &mut LazyNow) -> Option<T>,
        mut changed: Pin<&mut Notified<'_>>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Option<T>>> {
        // Received first: a notification that is left is sent to another caller.
        let mut received = self.waits && changed.as_mut().poll(context).is_ready();
        let mut now = self.queue.lazy_now();
        let mut state = self.queue.lock();
        if received {
            state.receive();
        }
        state.expire();
        if state.core.is_finished() {
            return Poll::Ready(Some(None));
        }
        if let Some(taken) = take(&mut state.core, &mut now) {
            if self.waits {
                state.leave();
            }
            // The timers may hold the waker of this getter: another one takes them over.
            let is_armed = self.waits && !state.delays.is_empty();
            let notifies = if is_armed { state.notifies() } else { state.notifies_next() };
            drop(state);
            self.waits = false;
            self.queue.notify_if(notifies);
            return Poll::Ready(Some(Some(taken)));
        }
        if !self.waits {
            self.waits = true;
            state.waiting += 1;
            // Under the lock, so that the next change wakes this task.
            if changed.poll(context).is_ready() {
                received = true;
                state.receive();
            }
        }
        match state.delays.poll_first(context) {
            Poll::Pending if !received => Poll::Pending,
            Poll::Pending | Poll::Ready(()) => {
                // `Notify` merges notifications that find no getter registered, so that this one
                // counts again once it is.
                state.leave();
                self.waits = false;
                Poll::Ready(None)
            }
        }
    }
}

impl<K: Clone + Eq + Hash> Drop for Getter<'_, K> {
    fn drop(&mut self) {
        if self.waits {
            let mut state = self.queue.lock();
            state.leave();
            let is_needed = !state.delays.is_empty() || state.core.has_available();
            let notifies = is_needed && state.notifies();
            drop(state);
            self.queue.notify_if(notifies);
        }
    }
}

impl<K: Clone + Eq + Hash + Send + Sync> WorkProbe for SharedQueue<K> {
    fn work(&self) -> QueueWork {
        let now = Instant::now();
        self.lock().core.work(now)
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Queue<K> {
    pub(super) fn probe(&self) -> Weak<dyn WorkProbe> {
        let probe: Arc<dyn WorkProbe> = self.shared.clone();
        Arc::downgrade(&probe)
    }
}

impl<K> WeakQueue<K> {
    pub(super) fn upgrade(&self) -> Option<Queue<K>> {
        self.0.upgrade().map(|shared| Queue { shared })
    }
}

impl<K> Default for WeakQueue<K> {
    fn default() -> Self {
        Self(Weak::new())
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
