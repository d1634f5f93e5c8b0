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
mod item;
mod limit;

use std::{
    collections::BTreeSet,
    fmt,
    future::poll_fn,
    hash::Hash,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{self, Poll},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep_until},
};

use self::core::{Core, QueueTimer};
use self::limit::OwnLimiter;
pub use self::{
    item::{Add, Delayed, Item, LOW_PRIORITY, QueueRow, QueueRowState},
    limit::{Backoff, FastSlow, Limit, MaxOf, QueueOptions, RateLimiter, TokenBucketLimiter},
};
use super::metrics::{QueueMetrics, QueueWork, WorkProbe};

/// Handle of a work queue; cheap to clone.
pub struct Queue<K> {
    shared: Arc<SharedQueue<K>>,
}

/// Handle that does not keep the queue alive.
pub(super) struct WeakQueue<K>(Weak<SharedQueue<K>>);

struct SharedQueue<K> {
    state: Mutex<QueueState<K>>,
    // Wakes getters: a key is ready, a timer has changed, or the queue has finished.
    changed: Notify,
    // Wakes `drain`.
    finished: Notify,
}

struct QueueState<K> {
    core: Core<K>,
    // Delayed slots by their time and rank.
    delays: BTreeSet<(Due, u32)>,
    // Entry of each slot in `delays`.
    timers: Vec<Option<Due>>,
    // Timer of the first delay. Set by a caller of `get`, since an add may come from outside a
    // runtime.
    sleep: Option<Pin<Box<Sleep>>>,
    getters: usize,
}

/// Time of a delayed key, and its rank among the keys of the same time.
type Due = (Instant, u64);

/// Caller inside `get`. On drop it wakes another one, since the leaving caller may have been the
/// one whose waker the timers hold.
struct Getter<'a, K: Clone + Eq + Hash>(&'a SharedQueue<K>);

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Returns an empty queue without metrics.
    pub fn new(options: QueueOptions) -> Self {
        Self::with_metrics(options, QueueMetrics::default())
    }

    pub(super) fn with_metrics(options: QueueOptions, metrics: QueueMetrics) -> Self {
        let state = QueueState {
            core: Core::new(options, metrics, Instant::now()),
            delays: BTreeSet::new(),
            timers: Vec::new(),
            sleep: None,
            getters: 0,
        };
        let shared = SharedQueue {
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
    pub fn add_with(&self, key: K, add: Add) {
        let mut state = self.shared.lock();
        let added = state.core.add(key, add, Instant::now());
        self.shared.settle(state, added);
    }

    /// Sets the time of the next resync of a key in place of an earlier one; `None` removes it. At
    /// that time the key becomes ready at low priority, regardless of adds in the meantime.
    #[cfg(any(test, feature = "meta"))]
    pub(super) fn resync(&self, key: K, at: Option<Instant>) {
        let mut state = self.shared.lock();
        let timer = state.core.resync(key, at, Instant::now());
        self.shared.settle(state, (timer, false));
    }

    /// Adds a key that another queue had left.
    pub fn restore(&self, delayed: Delayed<K>) {
        let mut state = self.shared.lock();
        let added = state.core.restore(delayed, Instant::now());
        self.shared.settle(state, added);
    }

    /// Waits for the next key that no worker processes; `None` once the queue is closed, or
    /// drained.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped future takes no key.
    pub async fn get(&self) -> Option<Item<K>> {
        self.get_if(true).await
    }

    /// Like [`Queue::get`]. Without `capacity` it returns no key and only drives the timers, so
    /// that delayed keys still become ready in the order of their times.
    pub(super) async fn get_if(&self, capacity: bool) -> Option<Item<K>> {
        self.take(|core| if capacity { core.pop(Instant::now()) } else { None }).await
    }

    /// Waits until a key is ready that no worker processes; `None` as for [`Queue::get`]. Cancel
    /// safe.
    pub(super) async fn available(&self) -> Option<()> {
        self.take(|core| core.has_available().then_some(())).await
    }

    /// Returns the next key, if one is ready that no worker processes.
    pub(super) fn try_get(&self) -> Option<Item<K>> {
        self.shared.lock().core.pop(Instant::now())
    }

    /// Waits until `take` returns something, or the queue is finished, and drives the timers
    /// meanwhile.
    async fn take<T>(&self, take: impl Fn(&mut Core<K>) -> Option<T>) -> Option<T> {
        {
            let mut state = self.shared.lock();
            if let Some(taken) = state.take_at_once(&take) {
                return Some(taken);
            }
            state.getters += 1;
        }
        let _getter = Getter(&self.shared);
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            let got = poll_fn(|context| {
                // Polled first, so that an add after `poll_take` wakes this task.
                let notified = changed.as_mut().poll(context).is_ready();
                match self.shared.lock().poll_take(&take, context) {
                    Poll::Ready(got) => Poll::Ready(Some(got)),
                    Poll::Pending if notified => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            if let Some(got) = got.await {
                return got;
            }
        }
    }

    /// Ends the processing of a key; a key that was added meanwhile becomes available again.
    pub fn done(&self, key: &K) {
        let mut state = self.shared.lock();
        let ready = state.core.done(key, Instant::now());
        self.shared.settle(state, (QueueTimer::Keep, ready));
    }

    /// Resets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.shared.lock().core.forget(key);
    }

    /// Returns the number of failed adds of a key since it was last forgotten.
    pub fn requeues(&self, key: &K) -> u32 {
        self.shared.lock().core.failures(key)
    }

    /// Returns whether a key is ready or delayed.
    pub(super) fn contains(&self, key: &K) -> bool {
        self.shared.lock().core.contains(key)
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
        let dump = self.shared.lock().core.dump(Instant::now());
        dump.sorted()
    }

    pub(super) fn downgrade(&self) -> WeakQueue<K> {
        WeakQueue(Arc::downgrade(&self.shared))
    }

    /// Closes the queue for adds and gets; returns the keys left: the ready ones, then the delayed
    /// ones by their time.
    pub fn close(&self) -> Vec<Delayed<K>> {
        let mut state = self.shared.lock();
        let left = state.core.close(Instant::now());
        state.clear_timers();
        self.shared.announce_finished(state);
        left
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
    fn lock(&self) -> MutexGuard<'_, QueueState<K>> {
        // The core does not panic between two consistent states.
        self.state.lock()
    }

    fn settle(&self, mut state: MutexGuard<'_, QueueState<K>>, (timer, ready): (QueueTimer, bool)) {
        state.set_timer(timer);
        if state.core.is_finished() {
            self.announce_finished(state);
        } else if ready || timer != QueueTimer::Keep {
            drop(state);
            self.changed.notify_one();
        }
    }

    fn start_drain(&self) {
        let mut state = self.lock();
        state.core.drain();
        state.clear_timers();
        self.settle(state, (QueueTimer::Keep, false));
    }

    fn is_finished(&self) -> bool {
        self.lock().core.is_finished()
    }

    fn announce_finished(&self, state: MutexGuard<'_, QueueState<K>>) {
        drop(state);
        self.changed.notify_waiters();
        // Stored for a getter that is about to wait.
        self.changed.notify_one();
        self.finished.notify_waiters();
    }
}

impl<K: Clone + Eq + Hash> QueueState<K> {
    /// Takes without a waker. Not while a delay has ended: its keys may concern other getters too.
    fn take_at_once<T>(&mut self, take: impl Fn(&mut Core<K>) -> Option<T>) -> Option<T> {
        let is_due = |((at, _), _): &(Due, u32)| *at <= Instant::now();
        if self.core.is_finished() || self.delays.first().is_some_and(is_due) {
            return None;
        }
        take(&mut self.core)
    }

    fn poll_take<T>(
        &mut self,
        take: impl Fn(&mut Core<K>) -> Option<T>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<T>> {
        self.poll_timers(context);
        if self.core.is_finished() {
            return Poll::Ready(None);
        }
        take(&mut self.core).map_or(Poll::Pending, |taken| Poll::Ready(Some(taken)))
    }

    fn clear_timers(&mut self) {
        self.delays.clear();
        self.timers.clear();
        self.sleep = None;
    }

    fn set_timer(&mut self, timer: QueueTimer) {
        let (slot, due) = match timer {
            QueueTimer::Keep => return,
            QueueTimer::Set(slot, _) => (slot, self.core.due(slot)),
            QueueTimer::Cancel(slot) => (slot, None),
        };
        let index = slot as usize;
        if self.timers.len() <= index {
            self.timers.resize(index + 1, None);
        }
        if let Some(old) = self.timers[index].take() {
            self.delays.remove(&(old, slot));
        }
        if let Some(due) = due {
            self.timers[index] = Some(due);
            self.delays.insert((due, slot));
        }
    }

    /// Makes the keys ready whose time has come, and sleeps until the next time.
    fn poll_timers(&mut self, context: &mut task::Context<'_>) {
        while let Some(((at, _), slot)) = self.delays.first().copied() {
            let now = Instant::now();
            if at <= now {
                self.delays.pop_first();
                self.timers[slot as usize] = None;
                // The slot may have a later time: of a resync, or of a delay.
                let (timer, _) = self.core.expire(slot, now);
                self.set_timer(timer);
                continue;
            }
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if sleep.deadline() != at {
                sleep.as_mut().reset(at);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return;
            }
        }
        self.sleep = None;
    }
}

impl<K: Clone + Eq + Hash> Drop for Getter<'_, K> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.getters -= 1;
        // Another one is to take over the timers, or the further keys whose delays have ended.
        let others = state.getters > 0 && (!state.delays.is_empty() || state.core.len() > 0);
        drop(state);
        if others {
            self.0.changed.notify_one();
        }
    }
}

impl<K: Clone + Eq + Hash + Send + Sync> WorkProbe for SharedQueue<K> {
    fn work(&self) -> QueueWork {
        self.lock().core.work(Instant::now())
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
