//! How long to wait before a failed run is started again.

use std::time::Duration;

/// Doubles from `first` to `longest`, with jitter; forgets after `healthy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    /// The first wait; 1 s.
    pub first: Duration,
    /// The longest wait; 5 min.
    pub longest: Duration,
    /// A run that lasted this long is followed by the first wait again; 10 min.
    pub healthy: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(5 * 60),
            healthy: Duration::from_secs(10 * 60),
        }
    }
}

impl RestartBackoff {
    /// The wait after so many failures in a row (from 1), shortened by up to a fifth so that
    /// what failed together does not come back together.
    pub(super) fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.longest);
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
    fn jitter_only_shortens() {
        let backoff = RestartBackoff::default();

        assert_eq!(backoff.wait(3, 1.0), Duration::from_millis(3200));
    }
}
