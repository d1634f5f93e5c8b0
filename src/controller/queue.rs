//! The work queue: dedupes, orders, delays and rate-limits requests.
//!
//! Fair (first come, first served within a priority), stingy (a key is in the hands of one worker
//! at a time, and what is added meanwhile comes once, afterwards), delaying, rate-limited.
//! Semantics: client-go's `workqueue` and controller-runtime's `priorityqueue`. It runs no task:
//! whoever waits in [`Queue::get`] keeps its time.
//!
//! Low priorities do not starve, other than in `priorityqueue`: a key with a priority below 0 that
//! has been ready for a minute counts as priority 0 and precedes every key of that priority which
//! became ready after it. So it is handed out after a minute and what was ready before it, however
//! many keys of priority 0 are added. Keys with a priority above 0 precede it without a limit.

pub(in crate::controller) mod retry_gate;

mod core;
mod limit;

use std::{
    fmt,
    future::poll_fn,
    hash::Hash,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::time::{DelayQueue, delay_queue};

use self::core::{Core, Timer};
pub use self::limit::{Backoff, Limit};
use super::metrics::{QueueMetrics, Work, WorkProbe};

/// Priority of what nobody waits for: the initial list, and resyncs.
///
/// As any priority below 0 it counts as 0 once the key has been ready for a minute.
pub const LOW_PRIORITY: i32 = -100;

/// Priority of changes.
const NORMAL_PRIORITY: i32 = 0;

/// The longest that keys of normal priority precede an earlier one of low priority. Long enough
/// for changes to come first while a large initial list is worked off, short enough to be noticed
/// by nobody who waits for a resync.
const LOW_PRIORITY_WAIT: Duration = Duration::from_secs(60);

/// `DelayQueue` panics beyond two years; nobody means more than one.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a queue slows down.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    /// Per item.
    pub backoff: Backoff,
    /// Over all adds that count as failures; none by default.
    pub limit: Option<Limit>,
}

/// How something is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Add {
    /// Higher ones come first; never lowered by a second add. One below 0 counts as 0 once the key
    /// has been ready for a minute.
    pub priority: i32,
    /// Not before this time is over; the earliest of several adds counts. A year at most.
    pub after: Duration,
    /// Counts as a failure of the key, and waits for its back-off; with `after` too, the
    /// shorter of both.
    pub rate_limited: bool,
    /// Counts as a failure of the key, without its back-off; the limit over all may delay it.
    pub failed: bool,
}

/// What is handed out: to be given back with [`Queue::done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<K> {
    /// The key.
    pub key: K,
    /// The priority it had.
    pub priority: i32,
    /// How often it was added rate-limited since it was last forgotten.
    pub failures: u32,
}

/// What a closed queue had left, for another one to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delayed<K> {
    /// The key.
    pub key: K,
    /// Its priority.
    pub priority: i32,
    /// Its failures in a row.
    pub failures: u32,
    /// When it is due.
    pub at: Instant,
}

/// A handle on a work queue; cheap to clone.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    // Something to get, or over.
    changed: Notify,
    // Drained.
    over: Notify,
}

struct State<K> {
    core: Core<K>,
    // Timers are set by whoever waits in `get`, as only that is sure to be inside a runtime.
    wanted: Vec<Timer>,
    delays: DelayQueue<u32>,
    timers: Vec<Option<delay_queue::Key>>,
    // Kept for its capacity.
    expired: Vec<((Instant, u64), u32)>,
    getters: usize,
}

/// Passes the baton: who leaves `get` was perhaps the one that kept the time.
struct Getter<'a, K: Clone + Eq + Hash>(&'a Shared<K>);

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue without metrics.
    pub fn new(options: QueueOptions) -> Self {
        Self::with_metrics(options, QueueMetrics::default())
    }

    pub(super) fn with_metrics(options: QueueOptions, metrics: QueueMetrics) -> Self {
        let state = State {
            core: Core::new(options, metrics, Instant::now()),
            wanted: Vec::new(),
            delays: DelayQueue::new(),
            timers: Vec::new(),
            expired: Vec::new(),
            getters: 0,
        };
        let shared =
            Shared { state: Mutex::new(state), changed: Notify::new(), over: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a key; ignored once the queue is shut down.
    pub fn add(&self, key: K) {
        self.add_with(key, Add::default());
    }

    /// Adds a key, later or with a priority; ignored once the queue is shut down.
    pub fn add_with(&self, key: K, add: Add) {
        let mut state = self.shared.lock();
        let added = state.core.add(key, add, Instant::now());
        self.shared.settle(state, added);
    }

    /// Puts back what another queue had left.
    pub fn restore(&self, delayed: Delayed<K>) {
        let mut state = self.shared.lock();
        let added = state.core.restore(delayed, Instant::now());
        self.shared.settle(state, added);
    }

    /// The next key that nobody works on; `None` once the queue is shut down, and drained if
    /// that was asked for.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is handed out to a future that is dropped.
    pub async fn get(&self) -> Option<Item<K>> {
        self.get_if(true).await
    }

    /// As [`Queue::get`]; without `capacity` it hands nothing out and merely keeps the time, so
    /// that what becomes ready does so in its order.
    pub(super) async fn get_if(&self, capacity: bool) -> Option<Item<K>> {
        self.shared.lock().getters += 1;
        let _getter = Getter(&self.shared);
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            let got = poll_fn(|context| {
                // Asked first, so that what is added after the look below wakes us.
                let notified = changed.as_mut().poll(context).is_ready();
                match self.shared.lock().poll_get(capacity, context) {
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

    /// Gives a key back; if it was added meanwhile, it is handed out again.
    pub fn done(&self, key: &K) {
        let mut state = self.shared.lock();
        let ready = state.core.done(key, Instant::now());
        self.shared.settle(state, (Timer::Keep, ready));
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.shared.lock().core.forget(key);
    }

    /// How often a key was added rate-limited since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.shared.lock().core.failures(key)
    }

    /// Returns whether a key is ready or waits for its time.
    pub(super) fn contains(&self, key: &K) -> bool {
        self.shared.lock().core.contains(key)
    }

    /// How many keys are ready; those that wait for their time are not.
    pub fn len(&self) -> usize {
        self.shared.lock().core.len()
    }

    /// Whether no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes nothing in and hands nothing out from now on; returns what was left, the ready ones
    /// and then the others by their time.
    pub fn close(&self) -> Vec<Delayed<K>> {
        let mut state = self.shared.lock();
        let left = state.core.close(Instant::now());
        state.forget_timers();
        self.shared.announce_over(state);
        left
    }

    /// Takes nothing in from now on, and resolves when what is ready is handed out and done.
    /// What waits for its time is dropped.
    pub async fn drain(&self) {
        self.shared.stop_taking_in();
        loop {
            let over = self.shared.over.notified();
            if self.shared.is_over() {
                return;
            }
            over.await;
        }
    }
}

impl<K: Clone + Eq + Hash> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // The core does not panic between two consistent states.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, mut state: MutexGuard<'_, State<K>>, (timer, ready): (Timer, bool)) {
        if timer != Timer::Keep {
            state.wanted.push(timer);
        }
        if state.core.is_over() {
            self.announce_over(state);
        } else if ready || timer != Timer::Keep {
            drop(state);
            self.changed.notify_one();
        }
    }

    fn stop_taking_in(&self) {
        let mut state = self.lock();
        state.core.drain();
        state.forget_timers();
        self.settle(state, (Timer::Keep, false));
    }

    fn is_over(&self) -> bool {
        self.lock().core.is_over()
    }

    fn announce_over(&self, state: MutexGuard<'_, State<K>>) {
        drop(state);
        self.changed.notify_waiters();
        // Also for one that is about to wait.
        self.changed.notify_one();
        self.over.notify_waiters();
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn poll_get(
        &mut self,
        capacity: bool,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Item<K>>> {
        self.keep_time(context);
        if self.core.is_over() {
            return Poll::Ready(None);
        }
        if !capacity {
            return Poll::Pending;
        }
        self.core.pop(Instant::now()).map_or(Poll::Pending, |item| Poll::Ready(Some(item)))
    }

    fn forget_timers(&mut self) {
        self.wanted.clear();
        self.timers.clear();
        self.delays.clear();
    }

    fn keep_time(&mut self, context: &mut task::Context<'_>) {
        let Self { core, wanted, delays, timers, expired, .. } = self;
        for timer in wanted.drain(..) {
            match timer {
                Timer::Keep => {}
                // What was wanted since then stands in the core; a later wish follows.
                Timer::Set(slot, at) => {
                    let index = slot as usize;
                    if timers.len() <= index {
                        timers.resize(index + 1, None);
                    }
                    match &timers[index] {
                        Some(timer) => delays.reset_at(timer, at),
                        None => timers[index] = Some(delays.insert_at(slot, at)),
                    }
                }
                Timer::Cancel(slot) => {
                    if let Some(timer) = timers.get_mut(slot as usize).and_then(Option::take) {
                        delays.remove(&timer);
                    }
                }
            }
        }
        while let Poll::Ready(Some(slot)) = delays.poll_expired(context) {
            let slot = slot.into_inner();
            timers[slot as usize] = None;
            expired.extend(core.due(slot).map(|at| (at, slot)));
        }
        // The wheel hands out what is due in the same millisecond in any order.
        expired.sort_unstable();
        let now = Instant::now();
        for (_, slot) in expired.drain(..) {
            core.expire(slot, now);
        }
    }
}

impl<K: Clone + Eq + Hash> Drop for Getter<'_, K> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.getters -= 1;
        let others = state.getters > 0;
        drop(state);
        if others {
            self.0.changed.notify_one();
        }
    }
}

impl<K: Clone + Eq + Hash + Send + Sync> WorkProbe for Shared<K> {
    fn work(&self) -> Work {
        self.lock().core.work(Instant::now())
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Queue<K> {
    pub(super) fn probe(&self) -> std::sync::Weak<dyn WorkProbe> {
        let probe: Arc<dyn WorkProbe> = self.shared.clone();
        Arc::downgrade(&probe)
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
