//! Token bucket: admits a burst, then a steady rate.

use std::time::Duration;

use tokio::time::Instant;

/// Tokens of one bucket, which is full at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    burst: f64,
    // Seconds in which one token refills.
    interval: f64,
    // Level at the last change. Negative by the tokens that are reserved.
    tokens: f64,
    changed: Instant,
}

impl TokenBucket {
    /// Full bucket of `burst` tokens, which refills one token per `interval`.
    pub(crate) fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        let burst = f64::from(burst);
        // A rate without bounds would divide by zero.
        let interval = interval.max(Duration::from_nanos(1)).as_secs_f64();
        Self { burst, interval, tokens: burst, changed: now }
    }

    /// Returns the number of tokens, which need not be whole.
    pub(crate) fn level(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.changed).as_secs_f64();
        (self.tokens + elapsed / self.interval).min(self.burst)
    }

    /// Takes one token, or what is left of one.
    #[cfg(feature = "meta")]
    pub(crate) fn take(&mut self, now: Instant) {
        self.tokens = (self.level(now) - 1.0).max(0.0);
        self.changed = now;
    }

    /// Takes one token, even if it refills only later. Returns the time until then.
    pub(crate) fn reserve(&mut self, now: Instant) -> Duration {
        self.tokens = self.level(now) - 1.0;
        self.changed = now;
        let missing = (-self.tokens).max(0.0);
        Duration::try_from_secs_f64(missing * self.interval).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_admits_a_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(2, Duration::from_millis(100), start);

        let delays: Vec<_> = (0..4).map(|_| bucket.reserve(start).as_millis()).collect();

        assert_eq!(delays, [0, 0, 100, 200]);
        assert_eq!(bucket.reserve(start + Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn bucket_without_a_rate_never_overflows() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(1, Duration::MAX, start);

        assert_eq!(bucket.reserve(start), Duration::ZERO);
        assert!(bucket.reserve(start) > Duration::from_secs(1_000_000));
        let mut endless = TokenBucket::new(1, Duration::ZERO, start);
        assert_eq!(endless.reserve(start), Duration::ZERO);
    }

    #[cfg(feature = "meta")]
    #[test]
    fn taking_leaves_no_debt() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(1, Duration::from_secs(1), start);

        (0..10).for_each(|_| bucket.take(start));

        assert!(bucket.level(start).abs() < f64::EPSILON);
        assert!((bucket.level(start + Duration::from_secs(9)) - 1.0).abs() < f64::EPSILON);
    }
}
