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
mod ready;

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
    sync::{Notify, futures::Notified},
    time::{Instant, Sleep, sleep_until},
};

use self::core::{Core, QueueTimer};
pub(super) use self::limit::NewLimiter;
use self::limit::OwnLimiter;
pub use self::{
    item::{Add, Item, LOW_PRIORITY, QueueRow, QueueRowState, RemainingItem},
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
}

/// Time of a delayed key, and its rank among the keys of the same time.
type Due = (Instant, u64);

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
            core: Core::new(options, metrics, Instant::now()),
            delays: BTreeSet::new(),
            timers: Vec::new(),
            sleep: None,
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
        let now = Instant::now();
        let mut state = self.shared.lock();
        let added = state.core.add(key, add, now);
        self.shared.apply_timer(state, added);
    }

    /// Sets the time of the next resync of a key in place of an earlier one; `None` removes it. At
    /// that time the key becomes ready at low priority, regardless of adds in the meantime.
    #[cfg(any(test, feature = "meta"))]
    pub(super) fn resync(&self, key: K, at: Option<Instant>) {
        let mut state = self.shared.lock();
        let timer = state.core.resync(key, at, Instant::now());
        self.shared.apply_timer(state, (timer, false));
    }

    /// Adds a key that another queue had left.
    pub fn restore(&self, delayed: RemainingItem<K>) {
        let mut state = self.shared.lock();
        let added = state.core.restore(delayed, Instant::now());
        self.shared.apply_timer(state, added);
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
        let available = self.take(|core| core.has_available().then_some(())).await;
        // The key is left to another caller.
        self.shared.changed.notify_one();
        available
    }

    /// Returns the next key, if one is ready that no worker processes.
    pub(super) fn try_get(&self) -> Option<Item<K>> {
        self.shared.lock().core.pop(Instant::now())
    }

    /// Waits until `take` returns something, or the queue is finished, and drives the timers
    /// meanwhile.
    async fn take<T>(&self, take: impl Fn(&mut Core<K>) -> Option<T>) -> Option<T> {
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
    pub fn done(&self, key: &K) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        let ready = state.core.done(key, now);
        self.shared.apply_timer(state, (QueueTimer::Keep, ready));
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
    pub fn close(&self) -> Vec<RemainingItem<K>> {
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

    fn apply_timer(
        &self,
        mut state: MutexGuard<'_, QueueState<K>>,
        (timer, ready): (QueueTimer, bool),
    ) {
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
        self.apply_timer(state, (QueueTimer::Keep, false));
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

    /// Makes the keys ready whose time has come; returns how many became available.
    fn expire(&mut self) -> usize {
        let mut expired = 0;
        while let Some(((at, _), slot)) = self.delays.first().copied() {
            let now = Instant::now();
            if at > now {
                break;
            }
            self.delays.pop_first();
            self.timers[slot as usize] = None;
            // The slot may have a later time: of a resync, or of a delay.
            let (timer, available) = self.core.expire(slot, now);
            expired += usize::from(available);
            self.set_timer(timer);
        }
        expired
    }

    /// Waits for the first delay; ready once it has ended.
    fn poll_sleep(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        let Some(&((at, _), _)) = self.delays.first() else {
            self.sleep = None;
            return Poll::Pending;
        };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(context)
    }
}

impl<K: Clone + Eq + Hash> Getter<'_, K> {
    /// Takes a key, or waits for a change; `None` once there may be one.
    fn poll<T>(
        &mut self,
        take: impl Fn(&mut Core<K>) -> Option<T>,
        mut changed: Pin<&mut Notified<'_>>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Option<T>>> {
        // Received first: a notification that is left is sent to another caller.
        let notified = self.waits && changed.as_mut().poll(context).is_ready();
        let mut state = self.queue.lock();
        let expired = state.expire();
        if state.core.is_finished() {
            return Poll::Ready(Some(None));
        }
        if let Some(taken) = take(&mut state.core) {
            let is_armed = self.waits && !state.delays.is_empty();
            drop(state);
            self.waits = false;
            // A notification for each further key, and one for the caller that takes over the timers.
            let others = expired.saturating_sub(1) + usize::from(is_armed);
            (0..others).for_each(|_| self.queue.changed.notify_one());
            return Poll::Ready(Some(Some(taken)));
        }
        // Under the lock, so that the next change wakes this task.
        let waited = self.waits || changed.poll(context).is_pending();
        self.waits = true;
        match state.poll_sleep(context) {
            Poll::Pending if waited && !notified => Poll::Pending,
            Poll::Pending | Poll::Ready(()) => Poll::Ready(None),
        }
    }
}

impl<K: Clone + Eq + Hash> Drop for Getter<'_, K> {
    fn drop(&mut self) {
        if self.waits {
            let state = self.queue.lock();
            let leaves = !state.delays.is_empty() || state.core.len() > 0;
            drop(state);
            if leaves {
                self.queue.changed.notify_one();
            }
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
