//! Resyncs of one parent: the period of all parents, and the time that a response requested.
//!
//! Parents are spread over the period, in groups: a sync that wakes an idle process costs twice as
//! much as a sync that follows another. Other syncs do not move the due time of a resync.
//!
//! Semantics: the resync of client-go's informers and the delayed add of Metacontroller, except
//! that a newer response replaces the time of an older one.

use std::time::Duration;

use tokio::time::Instant;

use super::digest::digest;
use crate::duration::LONGEST;

/// Due times of one parent.
#[derive(Debug, Default)]
pub(crate) struct ResyncTimes {
    // Time that the last response with a requested time; kept until it has passed.
    requested: Option<Instant>,
    // Next due time: the end of the period, or `requested` if that is earlier.
    due: Option<Instant>,
    // True if a due time passed during a sync.
    passed: bool,
}

impl ResyncTimes {
    /// Begins a sync; returns whether a resync was due.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        self.requested = self.requested.filter(|requested| *requested > now);
        let is_due = self.due.take_if(|due| *due <= now).is_some();
        std::mem::take(&mut self.passed) || is_due
    }

    /// Records the time that a response requests. A response without a time leaves an earlier one.
    pub(crate) fn requested(&mut self, after: Duration, now: Instant) {
        self.requested = Some(now.checked_add(after).unwrap_or(now + LONGEST));
    }

    /// Returns the next due time, which also counts as the current one from now on.
    pub(crate) fn next(&mut self, tick: Option<Instant>, now: Instant) -> Option<Instant> {
        self.passed |= self.due.is_some_and(|due| due <= now);
        self.due = self.requested.into_iter().chain(tick).min();
        self.due
    }
}

/// Longest time between two groups of parents. A group is at most a twentieth of the parents.
const GROUP_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the next end of a period after `now`. The periods of `uid` begin with those of its
/// group.
pub(crate) fn tick(period: Duration, uid: &str, begin: Instant, now: Instant) -> Option<Instant> {
    let period_nanos = period.min(LONGEST).as_nanos().max(1);
    let group_nanos = GROUP_INTERVAL.as_nanos().min(period_nanos.div_ceil(20));
    let phase = (u128::from(digest(uid)) * period_nanos) >> 64;
    let phase = phase - phase % group_nanos;
    let elapsed = now.saturating_duration_since(begin).as_nanos();
    let passed = (elapsed + period_nanos - phase) % period_nanos;
    let left = u64::try_from(period_nanos - passed).unwrap_or(u64::MAX);
    now.checked_add(Duration::from_nanos(left).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    #[test]
    fn each_parent_is_due_once_in_each_period_at_any_time_of_the_request() {
        let begin = Instant::now();
        for uid in ["a", "b", "c"] {
            let first = tick(PERIOD, uid, begin, begin).unwrap();
            assert!(first > begin && first <= begin + PERIOD);
            for millis in [1, 500, 59_999] {
                let inside = first + Duration::from_millis(millis);
                assert_eq!(tick(PERIOD, uid, begin, inside), Some(first + PERIOD), "{millis}");
            }
            assert_eq!(tick(PERIOD, uid, begin, first), Some(first + PERIOD));
        }
    }

    #[test]
    fn parents_are_spread_over_the_period() {
        let begin = Instant::now();
        let tenths = (0..1000).map(|uid| {
            let due = tick(PERIOD, &uid.to_string(), begin, begin).unwrap() - begin;
            due.as_millis() * 10 / (PERIOD.as_millis() + 1)
        });

        let mut count = [0; 10];
        tenths.for_each(|tenth| count[usize::try_from(tenth).unwrap()] += 1);
        assert!(count.iter().all(|count| (50..=150).contains(count)), "{count:?}");
    }

    #[test]
    fn time_that_a_response_requested_stays_until_it_has_passed() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut resync = ResyncTimes::default();
        assert!(!resync.begin(now));
        resync.requested(Duration::from_secs(10), now);
        assert_eq!(resync.next(Some(after(60)), now), Some(after(10)));

        assert!(!resync.begin(after(5)), "a sync in between");
        assert_eq!(resync.next(Some(after(60)), after(5)), Some(after(10)));

        assert!(resync.begin(after(10)));
        assert_eq!(resync.next(Some(after(60)), after(11)), Some(after(60)));
        assert!(resync.begin(after(60)), "the period");
        assert_eq!(resync.next(None, after(61)), None);
    }

    #[test]
    fn resync_that_was_due_during_a_sync_is_that_of_the_next_one() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut resync = ResyncTimes::default();
        resync.next(Some(after(1)), now);
        assert!(!resync.begin(now));
        assert_eq!(resync.next(Some(after(3)), after(2)), Some(after(3)));

        assert!(resync.begin(after(2)));
        assert!(!resync.begin(after(2)));
    }

    #[test]
    fn newer_response_replaces_the_time_of_an_older_one() {
        let now = Instant::now();
        let mut resync = ResyncTimes::default();
        resync.requested(Duration::from_secs(10), now);
        resync.requested(Duration::from_secs(20), now);
        assert_eq!(resync.next(None, now), Some(now + Duration::from_secs(20)));
        resync.requested(Duration::MAX, now);
        assert_eq!(resync.next(None, now), Some(now + LONGEST));
    }

    #[test]
    fn parents_are_due_in_groups() {
        let begin = Instant::now();
        let of = |period| {
            let dues = (0..6000).filter_map(|uid| tick(period, &uid.to_string(), begin, begin));
            dues.collect::<BTreeSet<_>>().len()
        };

        assert_eq!(of(PERIOD), 300, "every 200 ms");
        assert_eq!(of(Duration::from_secs(1)), 20);
        assert_eq!(of(Duration::from_nanos(1)), 1);
    }
}
