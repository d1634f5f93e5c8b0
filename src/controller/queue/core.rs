//! Rules of the work queue, without I/O and without a clock.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash, RandomState},
    time::Duration,
};

use hashbrown::{HashTable, hash_table::Entry};
use tokio::time::Instant;

use super::{
    item::{Add, Item, LOW_PRIORITY, QueueRow, QueueRowState, RemainingItem},
    limit::{OwnLimiter, QueueOptions},
    ready::{ReadyKeys, Ticket},
};
use crate::controller::metrics::{QueueMetrics, QueueWork};
use crate::token_bucket::TokenBucket;

/// Priority of changes.
const NORMAL_PRIORITY: i32 = 0;

/// Longest time that keys of normal priority precede an earlier key of low priority. Long enough
/// for changes to come first while a large initial list is processed, and short against a resync
/// interval.
const LOW_PRIORITY_WAIT: Duration = Duration::from_secs(60);

/// Upper bound of a delay, one year: the end of any longer delay may be out of range.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

/// State of every key, and the rules by which keys move.
///
/// The caller keeps the timers: it gets a delayed key's slot as a [`QueueTimer`] and returns it
/// through [`Core::expire`].
#[derive(Debug)]
pub(super) struct Core<K> {
    options: QueueOptions,
    // Rate limiter that replaces the back-off of the options.
    limiter: Option<OwnLimiter<K>>,
    bucket: Option<TokenBucket>,
    // Slab: a key is stored and hashed once, and then addressed by its slot.
    entries: Vec<SlotEntry<K>>,
    free: Vec<u32>,
    // Slots by the hashes of their keys.
    slots: HashTable<u32>,
    hasher: RandomState,
    ready: ReadyKeys,
    // Keys of low priority with the time at which they became ready, oldest first. Outdated
    // entries are skipped and removed as in `ready`.
    aging: VecDeque<(Instant, u32)>,
    next_number: u64,
    ready_keys: usize,
    processing: usize,
    phase: QueuePhase,
    metrics: QueueMetrics,
}

/// Number of outdated entries below which a sweep is not worth its cost.
const SWEEP_AT_LEAST: usize = 64;

/// Change to the timer of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueTimer {
    Keep,
    Set(u32, Instant),
    Cancel(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePhase {
    Open,
    Draining,
    Closed,
}

#[derive(Debug)]
struct SlotEntry<K> {
    // `None` while the slot is free.
    key: Option<K>,
    place: SlotPlace,
    // Time of the next resync, with its rank; adds and failures of the key leave it.
    resync: Option<(Instant, u64)>,
    priority: i32,
    // Start of the processing by a worker; no other worker gets the key until it is done.
    processing: Option<Instant>,
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPlace {
    Idle,
    Waiting { until: Instant, number: u64 },
    Ready { ticket: u64, since: Instant },
}

impl<K: Clone + Eq + Hash> Core<K> {
    pub(super) fn new(options: QueueOptions, metrics: QueueMetrics, now: Instant) -> Self {
        Self {
            bucket: options.limit.map(|limit| limit.bucket(now)),
            options,
            limiter: None,
            entries: Vec::new(),
            free: Vec::new(),
            slots: HashTable::new(),
            hasher: RandomState::new(),
            ready: ReadyKeys::default(),
            aging: VecDeque::new(),
            next_number: 0,
            ready_keys: 0,
            processing: 0,
            phase: QueuePhase::Open,
            metrics,
        }
    }

    /// Adds a key; returns the change to its timer, and whether a key became available.
    pub(super) fn add(&mut self, key: K, add: Add, now: Instant) -> (QueueTimer, bool) {
        if self.phase != QueuePhase::Open {
            return (QueueTimer::Keep, false);
        }
        self.promote_aged(now);
        let slot = self.intern(key);
        let delay = self.delay(slot, add, now);
        if !delay.is_zero() {
            self.metrics.retried();
        }
        let entry = &mut self.entries[slot as usize];
        match entry.place {
            SlotPlace::Idle => {
                entry.priority = add.priority;
                if delay.is_zero() {
                    (QueueTimer::Keep, self.make_ready(slot, now))
                } else {
                    (self.wait(slot, now + delay), false)
                }
            }
            SlotPlace::Waiting { until: earlier, .. } => {
                entry.priority = entry.priority.max(add.priority);
                let until = now + delay;
                if delay.is_zero() {
                    let available = self.make_ready(slot, now);
                    (self.rearm(slot), available)
                } else if until < earlier {
                    (self.wait(slot, until), false)
                } else {
                    (QueueTimer::Keep, false)
                }
            }
            SlotPlace::Ready { since, .. } if add.priority > entry.priority => {
                let current = effective_priority(entry.priority, since, now);
                self.metrics.left(entry.priority);
                entry.priority = add.priority;
                self.metrics.entered(add.priority);
                if add.priority > current {
                    // Behind the keys that already have the new priority.
                    self.enqueue(slot, since);
                }
                (QueueTimer::Keep, false)
            }
            SlotPlace::Ready { .. } => (QueueTimer::Keep, false),
        }
    }

    /// Returns the time at which a delayed key becomes ready, and its rank among the keys of the
    /// same time.
    pub(super) fn due(&self, slot: u32) -> Option<(Instant, u64)> {
        let entry = self.entries.get(slot as usize)?;
        let delayed = match entry.place {
            SlotPlace::Waiting { until, number } => Some((until, number)),
            SlotPlace::Idle | SlotPlace::Ready { .. } => None,
        };
        delayed.into_iter().chain(entry.resync).min()
    }

    /// Makes the key of an expired timer ready; returns the next change to its timer, and whether a
    /// key became available.
    pub(super) fn expire(&mut self, slot: u32, now: Instant) -> (QueueTimer, bool) {
        let Some(due) = self.due(slot) else { return (QueueTimer::Keep, false) };
        let entry = &mut self.entries[slot as usize];
        if entry.resync == Some(due) {
            entry.resync = None;
            match entry.place {
                SlotPlace::Idle => entry.priority = LOW_PRIORITY,
                SlotPlace::Waiting { .. } => {}
                // The key is about to be processed anyway.
                SlotPlace::Ready { .. } => return (self.rearm(slot), false),
            }
        }
        let available = self.make_ready(slot, now);
        (self.rearm(slot), available)
    }

    /// Sets the time of the next resync of a key in place of an earlier one, or removes it. At that
    /// time the key becomes ready at low priority, regardless of adds in the meantime.
    #[cfg(any(test, feature = "meta"))]
    pub(super) fn resync(&mut self, key: K, at: Option<Instant>, now: Instant) -> QueueTimer {
        if self.phase != QueuePhase::Open || at.is_none() && self.slot(&key).is_none() {
            return QueueTimer::Keep;
        }
        let slot = self.intern(key);
        let before = self.due(slot);
        let at = at.map(|at| (at.min(now + MAX_DELAY), self.number()));
        self.entries[slot as usize].resync = at;
        let timer = if self.due(slot) == before { QueueTimer::Keep } else { self.rearm(slot) };
        self.free_if_unused(slot, None);
        timer
    }

    /// Returns the change that sets the timer of a slot to its due time.
    fn rearm(&self, slot: u32) -> QueueTimer {
        self.due(slot).map_or(QueueTimer::Cancel(slot), |(at, _)| QueueTimer::Set(slot, at))
    }

    /// Removes and returns the first ready key that no worker processes.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Item<K>> {
        if self.phase == QueuePhase::Closed {
            return None;
        }
        self.promote_aged(now);
        while let Some(Ticket { number, slot }) = self.ready.pop() {
            let entry = &mut self.entries[slot as usize];
            let SlotPlace::Ready { ticket, since } = entry.place else { continue };
            if ticket != number || entry.processing.is_some() {
                continue;
            }
            let Some(key) = entry.key.clone() else { continue };
            entry.place = SlotPlace::Idle;
            entry.processing = Some(now);
            self.ready_keys -= 1;
            self.processing += 1;
            self.metrics.left(entry.priority);
            self.metrics.queued_for(now.saturating_duration_since(since));
            return Some(Item { key, priority: entry.priority, failures: entry.failures });
        }
        None
    }

    /// Returns whether a key is ready that no worker processes.
    pub(super) fn has_available(&mut self) -> bool {
        if self.phase == QueuePhase::Closed {
            return false;
        }
        while let Some(ticket) = self.ready.first() {
            let entry = &self.entries[ticket.slot as usize];
            if entry.holds(ticket) && entry.processing.is_none() {
                return true;
            }
            // Outdated, as in `pop`.
            self.ready.pop();
        }
        false
    }

    /// Returns the keys in processing, ready or delayed, to be sorted without the lock of the queue.
    pub(super) fn dump(&self, now: Instant) -> QueueDump<K> {
        let mut rows = Vec::new();
        for (slot, entry) in (0..).zip(&self.entries) {
            let Some(key) = entry.key.clone() else { continue };
            let (state, due) = match (entry.processing, entry.place) {
                (Some(_), SlotPlace::Ready { ticket, since }) => {
                    (QueueRowState::Running, Some((since, ticket)))
                }
                (Some(_), SlotPlace::Idle | SlotPlace::Waiting { .. }) => {
                    (QueueRowState::Running, self.due(slot))
                }
                (None, SlotPlace::Ready { ticket, since }) => {
                    (QueueRowState::Ready, Some((since, ticket)))
                }
                (None, SlotPlace::Idle | SlotPlace::Waiting { .. }) => {
                    (QueueRowState::Waiting, self.due(slot))
                }
            };
            if state == QueueRowState::Waiting && due.is_none() {
                continue; // Known only for its failures.
            }
            let SlotEntry { priority, failures: requeues, .. } = *entry;
            let row = QueueRow { key, priority, state, due: due.map(|(at, _)| at), requeues };
            let rank = due.map_or(0, |(_, rank)| rank);
            let order = match state {
                QueueRowState::Running => (0, 0, None),
                QueueRowState::Ready => {
                    let since = row.due.unwrap_or(now);
                    (1, -i64::from(effective_priority(priority, since, now)), None)
                }
                QueueRowState::Waiting => (2, 0, row.due),
            };
            rows.push((order, rank, row));
        }
        QueueDump(rows)
    }

    /// Ends the processing of a key; returns whether a key became available.
    pub(super) fn done(&mut self, key: &K, now: Instant) -> bool {
        let hash = self.hasher.hash_one(key);
        let Some(slot) = self.slot_by(hash, key) else { return false };
        let entry = &mut self.entries[slot as usize];
        let Some(since) = entry.processing.take() else { return false };
        self.processing -= 1;
        self.metrics.worked_for(now.saturating_duration_since(since));
        match entry.place {
            SlotPlace::Ready { ticket, since } => {
                // Added meanwhile: the key keeps the position of that add.
                let priority = effective_priority(entry.priority, since, now);
                self.push_ticket(priority, Ticket { number: ticket, slot });
                true
            }
            SlotPlace::Idle | SlotPlace::Waiting { .. } => {
                self.free_if_unused(slot, Some(hash));
                false
            }
        }
    }

    /// Delays failed keys by a rate limiter in place of the back-off.
    pub(super) fn limit_by(&mut self, limiter: OwnLimiter<K>) {
        self.limiter = Some(limiter);
    }

    /// Resets the failures of a key.
    pub(super) fn forget(&mut self, key: &K) {
        if let Some(limiter) = &mut self.limiter {
            limiter.forget(key);
        }
        if let Some(slot) = self.slot(key) {
            self.entries[slot as usize].failures = 0;
            self.free_if_unused(slot, None);
        }
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.slot(key).map_or(0, |slot| self.entries[slot as usize].failures)
    }

    /// Returns whether a key is ready or delayed.
    pub(super) fn contains(&self, key: &K) -> bool {
        let slot = self.slot(key);
        slot.is_some_and(|slot| self.entries[slot as usize].place != SlotPlace::Idle)
    }

    /// Returns the number of ready keys, including those in processing that were added again.
    pub(super) fn len(&self) -> usize {
        self.ready_keys
    }

    /// Refuses adds from now on and drops the delayed keys; ready keys stay available.
    pub(super) fn drain(&mut self) {
        if self.phase != QueuePhase::Open {
            return;
        }
        self.phase = QueuePhase::Draining;
        for slot in 0..self.entries.len() {
            let entry = &mut self.entries[slot];
            entry.resync = None;
            if let SlotPlace::Waiting { .. } = entry.place {
                entry.place = SlotPlace::Idle;
            }
        }
    }

    /// Refuses adds and gets from now on; returns the ready and the delayed keys by time.
    pub(super) fn close(&mut self, now: Instant) -> Vec<RemainingItem<K>> {
        self.phase = QueuePhase::Closed;
        self.ready.clear();
        self.aging.clear();
        let mut left = Vec::new();
        for entry in &mut self.entries {
            let resync = entry.resync.take();
            let (at, ticket) = match entry.place {
                SlotPlace::Idle => {
                    let Some(resync) = resync else { continue };
                    entry.priority = LOW_PRIORITY;
                    resync
                }
                SlotPlace::Waiting { until, number } => (until, number),
                SlotPlace::Ready { ticket, .. } => {
                    self.ready_keys -= 1;
                    self.metrics.left(entry.priority);
                    (now, ticket)
                }
            };
            entry.place = SlotPlace::Idle;
            if let Some(key) = entry.key.clone() {
                let SlotEntry { priority, failures, .. } = *entry;
                left.push((ticket, RemainingItem { key, priority, failures, at }));
            }
        }
        left.sort_by_key(|(ticket, delayed)| (delayed.at, *ticket));
        left.into_iter().map(|(_, delayed)| delayed).collect()
    }

    /// Adds a key that another queue had left when it was closed.
    pub(super) fn restore(
        &mut self,
        delayed: RemainingItem<K>,
        now: Instant,
    ) -> (QueueTimer, bool) {
        let RemainingItem { key, priority, failures, at } = delayed;
        let after = at.saturating_duration_since(now);
        let added = self.add(key.clone(), Add { priority, after, ..Add::default() }, now);
        if let Some(slot) = self.slot(&key) {
            let entry = &mut self.entries[slot as usize];
            entry.failures = entry.failures.max(failures);
        }
        added
    }

    /// Returns whether the queue will not return any key from now on.
    pub(super) fn is_finished(&self) -> bool {
        match self.phase {
            QueuePhase::Open => false,
            QueuePhase::Draining => self.ready_keys == 0 && self.processing == 0,
            QueuePhase::Closed => true,
        }
    }

    /// Returns the processing times of keys that are not done, and the number of delayed keys.
    pub(super) fn work(&self, now: Instant) -> QueueWork {
        let mut work = QueueWork::default();
        for entry in &self.entries {
            let delayed =
                matches!(entry.place, SlotPlace::Waiting { .. }) || entry.resync.is_some();
            work.waiting += usize::from(delayed);
            if let Some(since) = entry.processing {
                let seconds = now.saturating_duration_since(since).as_secs_f64();
                work.unfinished += seconds;
                work.longest = work.longest.max(seconds);
            }
        }
        work
    }

    fn slot(&self, key: &K) -> Option<u32> {
        self.slot_by(self.hasher.hash_one(key), key)
    }

    /// Returns the slot of a key by its hash.
    fn slot_by(&self, hash: u64, key: &K) -> Option<u32> {
        let is_same = |slot: &u32| self.entries[*slot as usize].key.as_ref() == Some(key);
        self.slots.find(hash, is_same).copied()
    }

    fn intern(&mut self, key: K) -> u32 {
        let (entries, hasher) = (&self.entries, &self.hasher);
        let vacant = match self.slots.entry(
            hasher.hash_one(&key),
            |slot| entries[*slot as usize].key.as_ref() == Some(&key),
            |slot| hasher.hash_one(entries[*slot as usize].key.as_ref().expect("a slot in use")),
        ) {
            Entry::Occupied(slot) => return *slot.get(),
            Entry::Vacant(vacant) => vacant,
        };
        let entry = SlotEntry {
            key: Some(key),
            place: SlotPlace::Idle,
            resync: None,
            priority: 0,
            processing: None,
            failures: 0,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 keys fit in memory")
            }
        };
        vacant.insert(slot);
        slot
    }

    /// Frees the slot of a key that is idle and has neither failures nor a resync. `hash` is that
    /// of the key, if it is known.
    fn free_if_unused(&mut self, slot: u32, hash: Option<u64>) {
        let entry = &mut self.entries[slot as usize];
        let idle = entry.place == SlotPlace::Idle && entry.processing.is_none();
        if idle
            && entry.resync.is_none()
            && entry.failures == 0
            && let Some(key) = entry.key.take()
        {
            let hash = hash.unwrap_or_else(|| self.hasher.hash_one(&key));
            if let Ok(known) = self.slots.find_entry(hash, |other| *other == slot) {
                known.remove();
            }
            self.free.push(slot);
        }
    }

    fn delay(&mut self, slot: u32, add: Add, now: Instant) -> Duration {
        let mut delay = add.after;
        if add.rate_limited || add.failed {
            let entry = &mut self.entries[slot as usize];
            let requeues = entry.failures;
            entry.failures = entry.failures.saturating_add(1);
            let own = self.limiter.as_mut().filter(|_| add.rate_limited).zip(entry.key.as_ref());
            let own = own.and_then(|(limiter, key)| limiter.when(key, requeues, now));
            let backoff = own.unwrap_or_else(|| self.options.backoff.delay(requeues));
            let limit = self.bucket.as_mut().map_or(Duration::ZERO, |bucket| bucket.reserve(now));
            delay = match add.rate_limited {
                true if delay.is_zero() => backoff.max(limit),
                true => delay.min(backoff.max(limit)),
                false => delay.max(limit),
            };
        }
        delay.min(MAX_DELAY)
    }

    fn wait(&mut self, slot: u32, until: Instant) -> QueueTimer {
        let number = self.number();
        self.entries[slot as usize].place = SlotPlace::Waiting { until, number };
        self.rearm(slot)
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn make_ready(&mut self, slot: u32, now: Instant) -> bool {
        self.ready_keys += 1;
        let entry = &self.entries[slot as usize];
        self.metrics.added();
        self.metrics.entered(entry.priority);
        if entry.priority < NORMAL_PRIORITY {
            self.aging.push_back((now, slot));
            if self.aging.len() > 2 * self.ready_keys + SWEEP_AT_LEAST {
                let entries = &self.entries;
                self.aging.retain(|&(since, slot)| entries[slot as usize].is_ready_since(since));
            }
        }
        self.enqueue(slot, now)
    }

    /// Promotes keys that have been ready for [`LOW_PRIORITY_WAIT`] to normal priority, at the
    /// position of their own add.
    fn promote_aged(&mut self, now: Instant) {
        let mut promoted = Vec::new();
        while let Some(&(since, slot)) = self.aging.front()
            && now.saturating_duration_since(since) >= LOW_PRIORITY_WAIT
        {
            self.aging.pop_front();
            let entry = &self.entries[slot as usize];
            if let SlotPlace::Ready { ticket, since: ready_since } = entry.place
                && ready_since == since
                && entry.priority < NORMAL_PRIORITY
                && entry.processing.is_none()
            {
                promoted.push(Ticket { number: ticket, slot });
            }
        }
        if !promoted.is_empty() {
            self.ready.extend(NORMAL_PRIORITY, promoted);
            self.sweep();
        }
    }

    /// Puts a key behind all others of its priority; returns whether it became available.
    fn enqueue(&mut self, slot: u32, since: Instant) -> bool {
        let ticket = self.number();
        let entry = &mut self.entries[slot as usize];
        entry.place = SlotPlace::Ready { ticket, since };
        let free = entry.processing.is_none();
        if free {
            let priority = entry.priority;
            self.push_ticket(priority, Ticket { number: ticket, slot });
        }
        free
    }

    fn push_ticket(&mut self, priority: i32, ticket: Ticket) {
        self.ready.push(priority, ticket);
        self.sweep();
    }

    /// Removes the outdated tickets if they dominate.
    fn sweep(&mut self) {
        // A key has two valid tickets at most: at its own priority, and at the normal one.
        if self.ready.len() > 4 * self.ready_keys + SWEEP_AT_LEAST {
            let entries = &self.entries;
            self.ready.retain(|ticket| entries[ticket.slot as usize].holds(*ticket));
        }
    }
}

/// Rows of a queue with their order.
pub(super) struct QueueDump<K>(Vec<(RowOrder, u64, QueueRow<K>)>);

/// State, inverse priority if ready, and time if waiting.
type RowOrder = (u8, i64, Option<Instant>);

impl<K> QueueDump<K> {
    /// Returns the keys in processing, then the ready ones in order, then the delayed ones by time.
    pub(super) fn sorted(self) -> Vec<QueueRow<K>> {
        let Self(mut rows) = self;
        rows.sort_by_key(|(order, rank, _)| (*order, *rank));
        rows.into_iter().map(|(.., row)| row).collect()
    }
}

impl<K> SlotEntry<K> {
    fn holds(&self, it: Ticket) -> bool {
        matches!(self.place, SlotPlace::Ready { ticket, .. } if ticket == it.number)
    }

    fn is_ready_since(&self, time: Instant) -> bool {
        matches!(self.place, SlotPlace::Ready { since, .. } if since == time)
    }
}

/// Priority by which a ready key is ordered: a low one counts for [`LOW_PRIORITY_WAIT`] only.
fn effective_priority(priority: i32, since: Instant, now: Instant) -> i32 {
    match now.saturating_duration_since(since) >= LOW_PRIORITY_WAIT {
        true => priority.max(NORMAL_PRIORITY),
        false => priority,
    }
}

impl<K> Drop for Core<K> {
    fn drop(&mut self) {
        // The depth gauges outlive this queue.
        for entry in &self.entries {
            if matches!(entry.place, SlotPlace::Ready { .. }) {
                self.metrics.left(entry.priority);
            }
        }
    }
}

#[cfg(test)]
mod tests;
