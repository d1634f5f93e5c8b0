//! Delays before the next epoch: restart back-off after a failed run, and a limit for flapping
//! conditions.

use std::time::Duration;

use tokio::time::Instant;

use crate::duration::{LONGEST, doubled};

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

/// Rate limit for losses of the condition: a leaky bucket, stored as the time at which it is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaps {
    pub(super) empty_at: Option<Instant>,
}

impl Flaps {
    /// Records a loss of the condition. Returns the time before which no epoch may begin, if there
    /// is one.
    pub(super) fn lost(&mut self, now: Instant, backoff: &RestartBackoff) -> Option<Instant> {
        let interval = backoff.flap_interval.min(LONGEST);
        let empty_at = self.empty_at.map_or(now, |at| at.max(now)) + interval;
        self.empty_at = Some(empty_at);
        let burst = interval.saturating_mul(backoff.flaps);
        empty_at.checked_sub(burst).filter(|at| *at > now)
    }
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
        let (mut flaps, mut now) = (Flaps::default(), Instant::now());

        for _ in 0..3 {
            assert_eq!(flaps.lost(now, &backoff), None);
        }
        for _ in 0..5 {
            let next = flaps.lost(now, &backoff).expect("the burst is over");
            assert_eq!(next - now, Duration::from_secs(1));
            now = next;
        }

        now += Duration::from_secs(3);
        assert_eq!(flaps.lost(now, &backoff), None, "forgotten");
    }

    #[test]
    fn jitter_only_shortens() {
        let backoff = RestartBackoff::default();

        assert_eq!(backoff.wait(3, 1.0), Duration::from_millis(3200));
    }
}
