//! Rules of the work queue, without I/O and without a clock.

mod dump;
mod end;
mod slots;

use std::{collections::VecDeque, hash::Hash, time::Duration};

use tokio::time::Instant;

use self::slots::{Processing, SlotPlace, Slots};
use super::{
    hashed::Hashed,
    item::{Add, Item, LOW_PRIORITY},
    lazy_now::LazyNow,
    limit::{OwnLimiter, QueueOptions},
    ready::{ReadyKeys, Ticket},
};
use crate::controller::metrics::{QueueMetrics, QueueWork};
use crate::{duration::LONGEST, token_bucket::TokenBucket};

/// Priority of changes.
const NORMAL_PRIORITY: i32 = 0;

/// Longest time that keys of normal priority precede an earlier key of low priority. Long enough
/// for changes to come first while a large initial list is processed, and short against a resync
/// interval.
const LOW_PRIORITY_WAIT: Duration = Duration::from_secs(60);

/// Upper bound of a delay, one year: the end of any longer delay may be out of range.
const MAX_DELAY: Duration = LONGEST;

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
    slots: Slots<K>,
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

/// Key that a worker gets.
#[derive(Debug)]
pub(super) struct Popped<K> {
    pub(super) item: Item<K>,
    /// Time for which the key was ready; measured for metrics alone.
    pub(super) queued: Option<Duration>,
}

/// End of the processing of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReconcileEnd {
    /// Time of the processing; measured for metrics alone.
    pub(super) worked: Option<Duration>,
    /// True if the key was added meanwhile, so that another worker may get it.
    pub(super) is_available: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePhase {
    Open,
    Draining,
    Closed,
}

impl<K: Clone + Eq + Hash> Core<K> {
    pub(super) fn new(options: QueueOptions, metrics: QueueMetrics, now: Instant) -> Self {
        Self {
            bucket: options.limit.map(|limit| limit.bucket(now)),
            options,
            limiter: None,
            slots: Slots::default(),
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
    #[inline]
    pub(super) fn add(
        &mut self,
        key: Hashed<K>,
        add: Add,
        now: &mut LazyNow,
    ) -> (QueueTimer, bool) {
        if self.phase != QueuePhase::Open {
            return (QueueTimer::Keep, false);
        }
        let slot = self.slots.intern(key);
        self.add_slot(slot, add, now)
    }

    #[inline]
    fn add_slot(&mut self, slot: u32, add: Add, now: &mut LazyNow) -> (QueueTimer, bool) {
        self.promote_aged(now);
        let delay = self.delay(slot, add, now);
        if !delay.is_zero() {
            self.metrics.retried();
        }
        let entry = self.slots.get_mut(slot);
        match entry.place {
            SlotPlace::Idle => {
                entry.priority = add.priority;
                if delay.is_zero() {
                    (QueueTimer::Keep, self.make_ready(slot, now))
                } else {
                    (self.wait(slot, now.now() + delay), false)
                }
            }
            SlotPlace::Waiting { until: earlier, .. } => {
                entry.priority = entry.priority.max(add.priority);
                let until = now.now() + delay;
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
        self.slots.get(slot).due()
    }

    /// Makes the key of an expired timer ready; returns the next change to its timer, and whether a
    /// key became available.
    pub(super) fn expire(&mut self, slot: u32, now: Instant) -> (QueueTimer, bool) {
        let Some(due) = self.due(slot) else { return (QueueTimer::Keep, false) };
        let entry = self.slots.get_mut(slot);
        if entry.resync == Some(due) {
            entry.resync = None;
            match entry.place {
                SlotPlace::Idle => entry.priority = LOW_PRIORITY,
                SlotPlace::Waiting { .. } => {}
                // The key is about to be processed anyway.
                SlotPlace::Ready { .. } => return (self.rearm(slot), false),
            }
        }
        let available = self.make_ready(slot, &mut LazyNow::at(now));
        (self.rearm(slot), available)
    }

    /// Sets the time of the next resync of a key in place of an earlier one, or removes it. At that
    /// time the key becomes ready at low priority, regardless of adds in the meantime.
    pub(super) fn resync(
        &mut self,
        key: Hashed<K>,
        at: Option<Instant>,
        now: Instant,
    ) -> QueueTimer {
        if self.phase != QueuePhase::Open || at.is_none() && self.slots.find(key.as_ref()).is_none()
        {
            return QueueTimer::Keep;
        }
        let slot = self.slots.intern(key);
        let before = self.due(slot);
        let at = at.map(|at| (at.min(now + MAX_DELAY), self.number()));
        self.slots.get_mut(slot).resync = at;
        let timer = if self.due(slot) == before { QueueTimer::Keep } else { self.rearm(slot) };
        self.slots.free_if_unused(slot);
        timer
    }

    /// Returns the change that sets the timer of a slot to its due time.
    fn rearm(&self, slot: u32) -> QueueTimer {
        self.due(slot).map_or(QueueTimer::Cancel(slot), |(at, _)| QueueTimer::Set(slot, at))
    }

    /// Removes and returns the first ready key that no worker processes.
    #[inline]
    pub(super) fn pop(&mut self, now: &mut LazyNow) -> Option<Popped<K>> {
        if self.phase == QueuePhase::Closed {
            return None;
        }
        self.promote_aged(now);
        while let Some(Ticket { number, slot }) = self.ready.pop() {
            let entry = self.slots.get_mut(slot);
            let SlotPlace::Ready { ticket, since } = entry.place else { continue };
            if ticket != number || entry.processing.is_some() {
                continue;
            }
            let Some(key) = entry.key.clone() else { continue };
            entry.place = SlotPlace::Idle;
            let start = self.metrics.are_recorded().then(|| now.now());
            entry.processing = Some(Processing { since: start });
            self.ready_keys -= 1;
            self.processing += 1;
            let item = Item { key, priority: entry.priority, failures: entry.failures };
            let queued =
                start.zip(since).map(|(start, since)| start.saturating_duration_since(since));
            return Some(Popped { item, queued });
        }
        None
    }

    /// Returns whether a key is ready that no worker processes.
    pub(super) fn has_available(&mut self) -> bool {
        if self.phase == QueuePhase::Closed {
            return false;
        }
        while let Some(ticket) = self.ready.first() {
            let entry = self.slots.get(ticket.slot);
            if entry.holds(ticket) && entry.processing.is_none() {
                return true;
            }
            // Outdated, as in `pop`.
            self.ready.pop();
        }
        false
    }

    /// Ends the processing of a key, which becomes available if it was added meanwhile. Returns
    /// `None` if no worker processes the key.
    #[inline]
    pub(super) fn done(&mut self, key: Hashed<&K>, now: &mut LazyNow) -> Option<ReconcileEnd> {
        let (start, added) = self.slots.update(key, |slot, entry| {
            let start = entry.processing.take()?.since;
            let added = match entry.place {
                SlotPlace::Ready { ticket, since } => {
                    Some((Ticket { number: ticket, slot }, entry.priority, since))
                }
                SlotPlace::Idle | SlotPlace::Waiting { .. } => None,
            };
            Some((start, added))
        })??;
        self.processing -= 1;
        if let Some((ticket, priority, since)) = added {
            // Added meanwhile: the key keeps the position of that add.
            self.push_ticket(effective_priority(priority, since, now), ticket);
        }
        let is_available = added.is_some();
        let worked = start.map(|start| now.now().saturating_duration_since(start));
        Some(ReconcileEnd { worked, is_available })
    }

    /// Delays failed keys by a rate limiter in place of the back-off.
    pub(super) fn limit_by(&mut self, limiter: OwnLimiter<K>) {
        self.limiter = Some(limiter);
    }

    /// Resets the failures of a key.
    pub(super) fn forget(&mut self, key: Hashed<&K>) {
        if let Some(limiter) = &mut self.limiter {
            limiter.forget(key.key);
        }
        self.slots.update(key, |_, entry| (entry.failures, entry.retry_at) = (0, None));
    }

    pub(super) fn failures(&self, key: Hashed<&K>) -> u32 {
        self.slots.find(key).map_or(0, |slot| self.slots.get(slot).failures)
    }

    /// Returns the number of ready keys, including those in processing that were added again.
    pub(super) fn len(&self) -> usize {
        self.ready_keys
    }

    /// Returns the processing times of keys that are not done, and the number of delayed keys.
    pub(super) fn work(&self, now: Instant) -> QueueWork {
        let mut work = QueueWork::default();
        for entry in self.slots.entries() {
            let delayed =
                matches!(entry.place, SlotPlace::Waiting { .. }) || entry.resync.is_some();
            work.waiting += usize::from(delayed);
            if let Some(Processing { since: Some(since) }) = entry.processing {
                let seconds = now.saturating_duration_since(since).as_secs_f64();
                work.unfinished += seconds;
                work.longest = work.longest.max(seconds);
            }
        }
        work
    }

    #[inline]
    fn delay(&mut self, slot: u32, add: Add, now: &mut LazyNow) -> Duration {
        let mut delay = add.after;
        if add.counts() {
            let now = now.now();
            let entry = self.slots.get_mut(slot);
            // A retry that a change has caused before its time must not lengthen the back-off:
            // changes may come faster than it grows.
            if entry.retry_at.is_none_or(|at| at <= now) {
                entry.failures = entry.failures.saturating_add(1);
            }
            let requeues = entry.failures.saturating_sub(1);
            let own = self.limiter.as_mut().filter(|_| add.rate_limited).zip(entry.key.as_ref());
            let own = own.and_then(|(limiter, key)| limiter.when(key, requeues, now));
            let backoff = own.unwrap_or_else(|| self.options.backoff.delay(requeues));
            let limit = self.bucket.as_mut().map_or(Duration::ZERO, |bucket| bucket.reserve(now));
            delay = match add.rate_limited {
                true if delay.is_zero() => backoff.max(limit),
                true => delay.min(backoff.max(limit)),
                false => delay.max(limit),
            };
            delay = delay.min(MAX_DELAY);
            entry.retry_at = Some(now + delay);
        }
        delay.min(MAX_DELAY)
    }

    fn wait(&mut self, slot: u32, until: Instant) -> QueueTimer {
        let number = self.number();
        self.slots.get_mut(slot).place = SlotPlace::Waiting { until, number };
        self.rearm(slot)
    }

    #[inline]
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    #[inline]
    fn make_ready(&mut self, slot: u32, now: &mut LazyNow) -> bool {
        self.ready_keys += 1;
        let entry = self.slots.get(slot);
        self.metrics.added();
        self.metrics.entered(entry.priority);
        let is_low = entry.priority < NORMAL_PRIORITY;
        let since = (is_low || self.metrics.are_recorded()).then(|| now.now());
        if let Some(since) = since.filter(|_| is_low) {
            self.aging.push_back((since, slot));
            if self.aging.len() > 2 * self.ready_keys + SWEEP_AT_LEAST {
                let slots = &self.slots;
                self.aging.retain(|&(since, slot)| slots.get(slot).is_ready_since(since));
            }
        }
        self.enqueue(slot, since)
    }

    /// Promotes keys that have been ready for [`LOW_PRIORITY_WAIT`] to normal priority, at the
    /// position of their own add.
    #[inline]
    fn promote_aged(&mut self, now: &mut LazyNow) {
        let mut promoted = Vec::new();
        while let Some(&(since, slot)) = self.aging.front()
            && now.now().saturating_duration_since(since) >= LOW_PRIORITY_WAIT
        {
            self.aging.pop_front();
            let entry = self.slots.get(slot);
            if let SlotPlace::Ready { ticket, since: ready_since } = entry.place
                && ready_since == Some(since)
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
    #[inline]
    fn enqueue(&mut self, slot: u32, since: Option<Instant>) -> bool {
        let ticket = self.number();
        let entry = self.slots.get_mut(slot);
        entry.place = SlotPlace::Ready { ticket, since };
        let free = entry.processing.is_none();
        if free {
            let priority = entry.priority;
            self.push_ticket(priority, Ticket { number: ticket, slot });
        }
        free
    }

    #[inline]
    fn push_ticket(&mut self, priority: i32, ticket: Ticket) {
        self.ready.push(priority, ticket);
        self.sweep();
    }

    /// Removes the outdated tickets if they dominate.
    #[inline]
    fn sweep(&mut self) {
        // A key has two valid tickets at most: at its own priority, and at the normal one.
        if self.ready.len() > 4 * self.ready_keys + SWEEP_AT_LEAST {
            let slots = &self.slots;
            self.ready.retain(|ticket| slots.get(ticket.slot).holds(*ticket));
        }
    }
}

/// Priority by which a ready key is ordered: a low one counts for [`LOW_PRIORITY_WAIT`] only.
fn effective_priority(priority: i32, since: Option<Instant>, now: &mut LazyNow) -> i32 {
    match since.filter(|_| priority < NORMAL_PRIORITY) {
        Some(since) if now.now().saturating_duration_since(since) >= LOW_PRIORITY_WAIT => {
            NORMAL_PRIORITY
        }
        Some(_) | None => priority,
    }
}

impl<K> Drop for Core<K> {
    fn drop(&mut self) {
        // The depth gauges outlive this queue.
        for entry in self.slots.entries() {
            if matches!(entry.place, SlotPlace::Ready { .. }) {
                self.metrics.left(entry.priority);
            }
        }
    }
}

#[cfg(test)]
mod tests;
