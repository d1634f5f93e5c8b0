//! Period of resyncs, as it applies to each parent.
//!
//! Parents are spread over the period, in groups: a sync that wakes an idle process costs twice as
//! much as a sync that follows another. Other syncs do not move the end of a period.
//!
//! Semantics: the resync of client-go's informers.

use std::time::Duration;

use tokio::time::Instant;

use crate::{duration::LONGEST, meta::json::digest::digest};

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
