//! Delays before the next epoch: restart back-off after a failed run, and a limit for flapping
//! conditions.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    duration::{LONGEST, doubled},
    token_bucket::TokenBucket,
};

/// Restart back-off: doubles from `first` to `longest`, with jitter, and resets after a run of
/// `healthy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    /// First delay; 1 s.
    pub first: Duration,
    /// Longest delay; 5 min.
    pub longest: Duration,
    /// Length of a run after which the delay starts at `first` again; 10 min.
    pub healthy: Duration,
    /// Number of epochs in a burst that may end through a lost condition before new epochs are
    /// delayed; 250.
    pub flaps: u32,
    /// Shortest interval between epochs once the burst is used up; 1 s. Each interval without a
    /// loss restores one start of the burst.
    pub flap_interval: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(5 * 60),
            healthy: Duration::from_secs(10 * 60),
            flaps: 250,
            flap_interval: Duration::from_secs(1),
        }
    }
}

impl RestartBackoff {
    /// Returns the limit on losses of the condition: one token per epoch that ends through one.
    pub(super) fn flap_limit(&self, now: Instant) -> TokenBucket {
        TokenBucket::new(self.flaps, self.flap_interval, now)
    }

    /// Returns the delay after `failures` failed runs in a row (from 1). It is shortened by up to a
    /// fifth, so that runnables that failed together do not restart together.
    pub(super) fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let full = doubled(self.first, failures.saturating_sub(1), self.longest.min(LONGEST));
        full.mul_f64(1.0 - 0.2 * jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_longest() {
        let backoff = RestartBackoff::default();

        let waits: Vec<_> = (1..12).map(|failures| backoff.wait(failures, 0.0).as_secs()).collect();

        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(backoff.wait(u32::MAX, 0.0).as_secs(), 300);
    }

    #[test]
    fn a_burst_of_flaps_is_free_and_more_of_them_are_spread() {
        let backoff = RestartBackoff { flaps: 3, ..RestartBackoff::default() };
        let mut now = Instant::now();
        let mut flaps = backoff.flap_limit(now);

        for _ in 0..3 {
            assert_eq!(flaps.reserve(now), Duration::ZERO);
        }
        for _ in 0..5 {
            let wait = flaps.reserve(now);
            assert_eq!(wait, Duration::from_secs(1));
            now += wait;
        }

        now += Duration::from_secs(3);
        assert_eq!(flaps.reserve(now), Duration::ZERO, "forgotten");
    }

    #[test]
    fn jitter_only_shortens() {
        let backoff = RestartBackoff::default();

        assert_eq!(backoff.wait(3, 1.0), Duration::from_millis(3200));
    }
}
