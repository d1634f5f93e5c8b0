//! Streak of failed reconciles without one that succeeded: a decision without I/O.

use std::time::Duration;

use tokio::time::Instant;

/// Duration of a failure streak after which the controller is not ready, one minute.
pub(in crate::controller) const LIMIT: Duration = Duration::from_secs(60);

/// Failures since the last success.
#[derive(Debug, Default)]
pub(in crate::controller) struct FailureStreak {
    since: Option<Instant>,
    reported: bool,
}

impl FailureStreak {
    /// Records that a reconcile failed.
    pub(in crate::controller) fn failed(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Records that a reconcile succeeded, which ends the streak. Returns whether the streak had
    /// been reported.
    pub(in crate::controller) fn succeeded(&mut self) -> bool {
        std::mem::take(self).reported
    }

    /// Returns the time at which the streak is to be reported; `None` without a streak, or once it
    /// is reported.
    pub(in crate::controller) fn due(&self) -> Option<Instant> {
        self.since.filter(|_| !self.reported)?.checked_add(LIMIT)
    }

    /// Records that the streak is reported.
    pub(in crate::controller) fn report(&mut self) {
        self.reported = self.since.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_is_due_a_minute_after_its_first_failure_and_ends_with_a_success() {
        let (mut streak, begin) = (FailureStreak::default(), Instant::now());
        assert_eq!(streak.due(), None);

        streak.failed(begin);
        streak.failed(begin + LIMIT / 2);
        assert_eq!(streak.due(), Some(begin + LIMIT));
        assert!(!streak.succeeded(), "it was not reported");
        assert_eq!(streak.due(), None);

        let again = begin + LIMIT;
        streak.failed(again);
        assert_eq!(streak.due(), Some(again + LIMIT), "the streak before does not count");
        streak.report();
        assert_eq!(streak.due(), None, "it is reported once");
        streak.failed(again + 2 * LIMIT);
        assert_eq!(streak.due(), None);
        assert!(streak.succeeded());
        assert!(!streak.succeeded());
    }
}
