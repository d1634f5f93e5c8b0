//! Failure streak: failed reconciles without a success between them. Decides without I/O.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use crate::controller::Request;

/// Duration of a failure streak after which the controller is not ready, one minute.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Failures since the last success.
#[derive(Debug, Default)]
pub(super) struct FailureStreak {
    since: Option<Instant>,
    requests: HashSet<Request>,
    reported: bool,
}

impl FailureStreak {
    /// Records that a reconcile failed.
    pub(super) fn failed(&mut self, key: &Request, now: Instant) {
        self.since.get_or_insert(now);
        if !self.requests.contains(key) {
            self.requests.insert(key.clone());
        }
    }

    /// Records that the object of a request is gone, which ends the streak only if no other request
    /// failed. Returns whether an ended streak had been reported.
    pub(super) fn gone(&mut self, key: &Request) -> bool {
        self.requests.remove(key);
        self.requests.is_empty() && self.succeeded()
    }

    /// Returns the requests that have failed since the last success.
    #[cfg(feature = "runtime")]
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter()
    }

    /// Records that a reconcile succeeded, which ends the streak. Returns whether the streak had
    /// been reported.
    pub(super) fn succeeded(&mut self) -> bool {
        // Most reconciles succeed without a streak before.
        self.since.is_some() && std::mem::take(self).reported
    }

    /// Returns the time at which the streak is to be reported; `None` without a streak, or once it
    /// is reported.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.filter(|_| !self.reported)?.checked_add(LIMIT)
    }

    /// Records that the streak is reported.
    pub(super) fn report(&mut self) {
        self.reported = self.since.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_is_due_a_minute_after_its_first_failure_and_ends_with_a_success() {
        let (mut streak, begin) = (FailureStreak::default(), Instant::now());
        let a = Request::cluster("a");
        assert_eq!(streak.due(), None);

        streak.failed(&a, begin);
        streak.failed(&a, begin + LIMIT / 2);
        assert_eq!(streak.due(), Some(begin + LIMIT));
        assert!(!streak.succeeded(), "it was not reported");
        assert_eq!(streak.due(), None);

        let again = begin + LIMIT;
        streak.failed(&a, again);
        assert_eq!(streak.due(), Some(again + LIMIT), "the streak before does not count");
        streak.report();
        assert_eq!(streak.due(), None, "it is reported once");
        streak.failed(&a, again + 2 * LIMIT);
        assert_eq!(streak.due(), None);
        assert!(streak.succeeded());
        assert!(!streak.succeeded());
    }

    #[test]
    fn a_deleted_object_ends_the_streak_only_if_no_other_request_failed() {
        let (mut streak, begin) = (FailureStreak::default(), Instant::now());
        let [a, b] = ["a", "b"].map(Request::cluster);
        streak.failed(&a, begin);
        streak.failed(&b, begin);
        streak.report();

        assert!(!streak.gone(&a));
        assert!(streak.gone(&b));
        assert_eq!(streak.due(), None);
    }
}
