//! When to try again what failed because something that all requests need is out.
//!
//! A hook or an API server that refuses one request because it is down refuses all of them. Their
//! own back-offs would be too eager in sum, and too lazy afterwards. So while nothing is answered,
//! the requests that wait are tried one by one at a bounded rate, and no less often than a probe is
//! due; and once one of them is answered, two others follow it at once, and four those, through
//! the work queue as ever.
//!
//! A request that fails although others are answered fails for reasons of its own: it keeps to its
//! own back-off, and nobody's success is a reason to try it again.
//!
//! Decisions without I/O; whoever owns an [`RetryGate`] has the queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::duration::LONGEST;

/// How many follow one that was answered. One would never be faster than those that wait would be
/// by themselves; with two all workers are busy after a few answers, and a set of which the most
/// part fails is not kept going.
const FOLLOWERS: usize = 2;

/// What was answered so long before a first failure says that nothing is out.
const RECENTLY: Duration = Duration::from_secs(10);

/// By how much a wait is varied, so that what failed together does not come back together.
const JITTER: f64 = 0.2;

/// How often those that wait are tried, all of them together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// At least so far apart, once the burst is used up.
    pub(crate) gap: Duration,
    /// So many of them as soon as their own back-offs allow.
    pub(crate) burst: u32,
    /// One at least so often, whatever the back-offs say.
    pub(crate) probe: Option<Duration>,
    /// No request waits longer than this for the others' sake.
    pub(crate) longest: Duration,
}

/// How long one request has to wait for its own sake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Its back-off; not needed while others wait with it, and may be cut short by a probe.
    pub(crate) backoff: Duration,
    /// It was asked to wait so long, and does in any case.
    pub(crate) at_least: Duration,
}

/// The requests that wait for an end of something that is out.
#[derive(Debug)]
pub(crate) struct RetryGate<K> {
    failed: BTreeMap<K, Failed>,
    // Those that may follow one that is answered, by the time of their next try.
    waiting: BTreeSet<(Instant, K)>,
    // When something was answered last.
    answered: Option<Instant>,
    // The last time that is taken, if every one took its turn; and the last of the probes.
    turn: Option<Instant>,
    probe: Option<Instant>,
}

/// The last failure of a request.
#[derive(Clone, Copy, Debug)]
struct Failed {
    at: Instant,
    not_before: Instant,
    // Nothing was answered: it did not fail for reasons of its own.
    out: bool,
    // Its next try, as long as it waits for that.
    due: Instant,
}

impl<K> Default for RetryGate<K> {
    fn default() -> Self {
        Self {
            failed: BTreeMap::new(),
            waiting: BTreeSet::new(),
            answered: None,
            turn: None,
            probe: None,
        }
    }
}

impl<K: Clone + Ord> RetryGate<K> {
    /// A request failed; says how long it waits. `spread` is random, from 0 to 1.
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
        let out = self.answered.is_none_or(|answered| since.is_some_and(|it| answered <= it));
        let mut backoff = wait.backoff.min(LONGEST);
        if !out && before.is_some_and(|failed| failed.out) {
            // An end that was none, perhaps: its back-off is that of the whole outage. Its next
            // failure decides.
            backoff = backoff.min(pace.gap.saturating_mul(pace.burst));
        }
        let own = now + backoff.mul_f64(1.0 - JITTER * spread);
        let next = if out { self.in_turn(own, pace, spread, now) } else { own };
        let not_before = now + at_least;
        let due = next.max(not_before + at_least.mul_f64(JITTER * spread));
        if out {
            self.waiting.insert((due, key.clone()));
        }
        self.failed.insert(key, Failed { at: now, not_before, out, due });
        due - now
    }

    /// A request was answered; says which others to try, and after how long: at once, unless they
    /// were asked to wait.
    pub(crate) fn answered(&mut self, key: &K, now: Instant) -> Vec<(K, Duration)> {
        self.answered = Some(now);
        (self.turn, self.probe) = (None, None);
        if !self.remove(key).is_some_and(|failed| failed.out) {
            return Vec::new();
        }
        let left = |key: &K| {
            let not_before = self.failed.get(key).map_or(now, |failed| failed.not_before);
            not_before.saturating_duration_since(now)
        };
        let (at_once, later) = (|key: &K| left(key).is_zero(), |key: &K| !left(key).is_zero());
        let next = self.waiting.iter().filter(|(_, key)| at_once(key));
        // The last of those that were tried would have nobody to follow.
        let next = next.chain(self.waiting.iter().filter(|(_, key)| later(key)));
        let next: Vec<_> = next.take(FOLLOWERS).map(|it| (it.clone(), left(&it.1))).collect();
        for (waiting, _) in &next {
            self.waiting.remove(waiting);
        }
        next.into_iter().map(|((_, key), left)| (key, left)).collect()
    }

    /// Whether a request failed when it was tried last.
    pub(crate) fn holds(&self, key: &K) -> bool {
        self.failed.contains_key(key)
    }

    /// How long a request has to wait before anybody tries it, whatever happens to it meanwhile.
    pub(crate) fn left(&self, key: &K, now: Instant) -> Option<Duration> {
        let left = self.failed.get(key)?.not_before.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a request: it is gone, or failed otherwise.
    pub(crate) fn forget(&mut self, key: &K) {
        self.remove(key);
    }

    fn remove(&mut self, key: &K) -> Option<Failed> {
        let (key, failed) = self.failed.remove_entry(key)?;
        self.waiting.remove(&(failed.due, key));
        Some(failed)
    }

    /// When one is tried that would be due at `own`.
    fn in_turn(&mut self, own: Instant, pace: &Pace, spread: f64, now: Instant) -> Instant {
        let Pace { gap, burst, probe, longest } = *pace;
        let taken = self.turn.map_or(now, |turn| turn.max(now)) + gap;
        let turn = taken.checked_sub(gap.saturating_mul(burst)).filter(|turn| *turn > now);
        let latest = now + longest.mul_f64(1.0 - JITTER * spread);
        let turn = turn.map_or(now, |turn| (turn + gap.mul_f64(spread)).min(latest));
        self.turn = Some(taken.min(now + longest));
        let next = own.max(turn);
        let Some(interval) = probe else { return next };
        // One after the other, but as many of them as there are now, and no more.
        let others = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let probe = self.probe.map_or(now, |probe| probe.max(now));
        let probe = (probe + interval).min(now + interval.saturating_mul(others.saturating_add(1)));
        if next <= probe {
            return next;
        }
        self.probe = Some(probe);
        probe
    }
}

#[cfg(test)]
mod tests;
