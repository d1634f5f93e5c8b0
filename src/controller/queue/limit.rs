//! Delays of failed items: the back-off of each item, and the rate limit of a queue.

use std::time::Duration;

use tokio::time::Instant;

use crate::{duration::doubled, token_bucket::TokenBucket};

/// Rate limits of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    /// Back-off of each item.
    pub backoff: Backoff,
    /// Shared limit of all adds that count as failures; none by default.
    pub limit: Option<Limit>,
}

/// Back-off of one item: `base` doubled for every failure in a row, at most `max`.
///
/// Semantics: `ItemExponentialFailureRateLimiter` of client-go, with controller-runtime's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure; 5 ms.
    pub base: Duration,
    /// Longest delay; 1000 s.
    pub max: Duration,
}

/// Shared rate limit of all items of a queue: `burst` at once, then `per_second`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Sustained rate.
    pub per_second: f64,
    /// Number of items that pass at once after a pause; at least 1.
    pub burst: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(5), max: Duration::from_secs(1000) }
    }
}

impl Backoff {
    /// Returns the delay after a failure that follows this many others.
    pub fn delay(&self, failures: u32) -> Duration {
        doubled(self.base, failures, self.max)
    }
}

impl Limit {
    /// Full bucket of this limit.
    pub(super) fn bucket(&self, now: Instant) -> TokenBucket {
        let interval = Duration::try_from_secs_f64(1.0 / self.per_second).unwrap_or(Duration::MAX);
        TokenBucket::new(self.burst.max(1), interval, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_from_5_ms_to_1000_s() {
        let backoff = Backoff::default();

        let delays: Vec<_> = (0..6).map(|failures| backoff.delay(failures).as_millis()).collect();

        assert_eq!(delays, [5, 10, 20, 40, 80, 160]);
        assert_eq!(backoff.delay(17), Duration::from_millis(655_360));
        for failures in [18, 31, 32, 64, u32::MAX] {
            assert_eq!(backoff.delay(failures), Duration::from_secs(1000), "{failures} failures");
        }
    }
}
