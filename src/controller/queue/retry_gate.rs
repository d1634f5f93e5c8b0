//! Retry gate: paces retries while a shared dependency (a hook, the API server) is down.
//!
//! While the dependency is down every request fails. Independent back-offs would retry too often
//! in sum, and too late after the recovery. While no request succeeds, the gate admits a burst of
//! retries and then one per `gap`; with `probe` set, at least one per `probe`. Each success then
//! admits two waiting requests, so that the rate doubles until all have recovered.
//!
//! A request that fails while others succeed keeps its own back-off and does not wait in the gate.
//! The success of another request does not admit it.
//!
//! The gate decides without I/O; its owner holds the queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{duration::LONGEST, token_bucket::TokenBucket};

/// Number of waiting requests that each success admits. One would be no faster than the back-offs
/// alone. Two occupy all workers after a few successes, and stop by themselves if most of the
/// admitted requests fail.
const FOLLOWERS: usize = 2;

/// Time before the first failure of a request in which a success of any request proves that the
/// dependency is up.
const RECENTLY: Duration = Duration::from_secs(10);

/// Fraction by which a wait varies, so that requests that failed together retry apart.
const JITTER: f64 = 0.2;

/// Retry rate of all waiting requests together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Minimum time between two retries, once the burst is used up.
    pub(crate) gap: Duration,
    /// Number of retries that wait for their own back-off only.
    pub(crate) burst: u32,
    /// Maximum time between two retries: a probe cuts back-offs short. `None` for no maximum.
    pub(crate) probe: Option<Duration>,
    /// Maximum time that a request waits for its turn.
    pub(crate) longest: Duration,
}

/// Wait of one request, regardless of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Back-off of the request; a probe or the success of another request may cut it short.
    pub(crate) backoff: Duration,
    /// Minimum wait that the dependency requested; never cut short.
    pub(crate) at_least: Duration,
}

/// Failed requests, and those of them that wait for the recovery of the dependency.
#[derive(Debug)]
pub(crate) struct RetryGate<K> {
    failed: BTreeMap<K, FailedRequest>,
    // Requests that a success may admit, by the time of their next retry.
    waiting: BTreeSet<(Instant, K)>,
    // Time of the last success of any request.
    last_success: Option<Instant>,
    // Retries of all requests together; `None` before the first one.
    slots: Option<TokenBucket>,
    // Last reserved probe.
    last_probe: Option<Instant>,
}

/// Last failure of a request.
#[derive(Clone, Copy, Debug)]
struct FailedRequest {
    at: Instant,
    not_before: Instant,
    // True if no request succeeded since the request's previous failure, or within `RECENTLY`
    // before its first one: the dependency seems to be down.
    down: bool,
    // Time of the next retry, and key in `waiting`.
    due: Instant,
}

impl<K> Default for RetryGate<K> {
    fn default() -> Self {
        Self {
            failed: BTreeMap::new(),
            waiting: BTreeSet::new(),
            last_success: None,
            slots: None,
            last_probe: None,
        }
    }
}

impl<K: Clone + Ord> RetryGate<K> {
    /// Records a failure; returns the time until the retry. `spread` is random, from 0 to 1.
    pub(crate) fn failed(
        &mut self,
        key: K,
        wait: Wait,
        pace: &Pace,
        spread: f64,
        now: Instant,
    ) -> Duration {
        let pace = &Pace { longest: pace.longest.min(LONGEST), ..*pace };
        let at_least = wait.at_least.min(LONGEST);
        let before = self.remove(&key);
        let since = before.map(|failed| failed.at).or(now.checked_sub(RECENTLY));
        let down = self.last_success.is_none_or(|last| since.is_some_and(|since| last <= since));
        let mut backoff = wait.backoff.min(LONGEST);
        if !down && before.is_some_and(|failed| failed.down) {
            // Perhaps the dependency is down again. The back-off has grown through the whole
            // failure of the dependency, so it is capped until the next failure decides.
            backoff = backoff.min(pace.gap.saturating_mul(pace.burst));
        }
        let own = now + backoff.mul_f64(1.0 - JITTER * spread);
        let next = if down { self.next_slot(own, pace, spread, now) } else { own };
        let not_before = now + at_least;
        let due = next.max(not_before + at_least.mul_f64(JITTER * spread));
        if down {
            self.waiting.insert((due, key.clone()));
        }
        self.failed.insert(key, FailedRequest { at: now, not_before, down, due });
        due - now
    }

    /// Records a success; returns the requests to retry, each with its delay: none, unless the
    /// dependency requested a minimum wait.
    pub(crate) fn answered(&mut self, key: &K, now: Instant) -> Vec<(K, Duration)> {
        self.last_success = Some(now);
        (self.slots, self.last_probe) = (None, None);
        if !self.remove(key).is_some_and(|failed| failed.down) {
            return Vec::new();
        }
        let left = |key: &K| {
            let not_before = self.failed.get(key).map_or(now, |failed| failed.not_before);
            not_before.saturating_duration_since(now)
        };
        let (at_once, later) = (|key: &K| left(key).is_zero(), |key: &K| !left(key).is_zero());
        let next = self.waiting.iter().filter(|(_, key)| at_once(key));
        // Remaining places go to requests with a minimum wait, since no later success may admit
        // them.
        let next = next.chain(self.waiting.iter().filter(|(_, key)| later(key)));
        let next = next.take(FOLLOWERS).map(|waiting| (waiting.clone(), left(&waiting.1)));
        let next: Vec<_> = next.collect();
        for (waiting, left) in &next {
            self.waiting.remove(waiting);
            if let Some(failed) = self.failed.get_mut(&waiting.1) {
                failed.due = now + *left;
            }
        }
        next.into_iter().map(|((_, key), left)| (key, left)).collect()
    }

    /// Returns whether the last try of a request failed.
    pub(crate) fn holds(&self, key: &K) -> bool {
        self.failed.contains_key(key)
    }

    /// Returns the rest of the minimum wait of a request; events for it do not shorten it.
    pub(crate) fn left(&self, key: &K, now: Instant) -> Option<Duration> {
        let left = self.failed.get(key)?.not_before.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time until the retry of a request.
    pub(crate) fn until_retry(&self, key: &K, now: Instant) -> Option<Duration> {
        let left = self.failed.get(key)?.due.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a request whose object is gone, or that failed for another reason.
    pub(crate) fn forget(&mut self, key: &K) {
        self.remove(key);
    }

    fn remove(&mut self, key: &K) -> Option<FailedRequest> {
        let (key, failed) = self.failed.remove_entry(key)?;
        self.waiting.remove(&(failed.due, key));
        Some(failed)
    }

    /// Returns the time of the retry of a request whose own back-off ends at `own`.
    fn next_slot(&mut self, own: Instant, pace: &Pace, spread: f64, now: Instant) -> Instant {
        let Pace { gap, burst, probe, longest } = *pace;
        let slots = self.slots.get_or_insert_with(|| TokenBucket::new(burst, gap, now));
        let wait = slots.reserve(now);
        slots.fill_by(now + longest);
        let longest = longest.mul_f64(1.0 - JITTER * spread);
        let next = match wait {
            Duration::ZERO => own.max(now),
            wait => own.max(now + (wait + gap.mul_f64(spread)).min(longest)),
        };
        let Some(interval) = probe else { return next };
        // Probes queue up one behind the other, at most one for each waiting request.
        let others = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let probe = self.last_probe.map_or(now, |probe| probe.max(now));
        let probe = (probe + interval).min(now + interval.saturating_mul(others.saturating_add(1)));
        if next <= probe {
            return next;
        }
        self.last_probe = Some(probe);
        probe
    }
}

#[cfg(test)]
mod tests;
