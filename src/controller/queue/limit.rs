//! Delays of failed items: the back-off of each item, and the shared rate limit.

use std::time::Duration;

use tokio::time::Instant;

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

/// Token bucket that returns a delay instead of refusing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    limit: Limit,
    // Negative if tokens are reserved ahead.
    tokens: f64,
    filled: Instant,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(5), max: Duration::from_secs(1000) }
    }
}

impl Backoff {
    /// Returns the delay after a failure that follows this many others.
    pub fn delay(&self, failures: u32) -> Duration {
        2u32.checked_pow(failures)
            .and_then(|factor| self.base.checked_mul(factor))
            .map_or(self.max, |delay| delay.min(self.max))
    }
}

impl Bucket {
    pub(super) fn new(limit: Limit, now: Instant) -> Self {
        Self { limit, tokens: f64::from(limit.burst.max(1)), filled: now }
    }

    /// Reserves a token; returns the time until it is available.
    pub(super) fn reserve(&mut self, now: Instant) -> Duration {
        let rate = if self.limit.per_second > 0.0 { self.limit.per_second } else { f64::EPSILON };
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        self.tokens = (self.tokens + elapsed * rate).min(f64::from(self.limit.burst.max(1))) - 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / rate).unwrap_or(Duration::MAX)
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

    #[test]
    fn bucket_lets_a_burst_pass_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Limit { per_second: 10.0, burst: 2 }, start);

        let delays: Vec<_> = (0..4).map(|_| bucket.reserve(start).as_millis()).collect();

        assert_eq!(delays, [0, 0, 100, 200]);
        assert_eq!(bucket.reserve(start + Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn bucket_without_a_rate_never_overflows() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Limit { per_second: 0.0, burst: 0 }, start);

        assert_eq!(bucket.reserve(start), Duration::ZERO);
        assert!(bucket.reserve(start) > Duration::from_secs(1_000_000));
    }
}
