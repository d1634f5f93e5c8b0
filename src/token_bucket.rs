//! Token bucket: admits a burst, then a steady rate.

use std::time::Duration;

use tokio::time::Instant;

use crate::duration::LONGEST;

/// Tokens of one bucket, which is full at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    burst: u32,
    /// Time in which one token refills.
    interval: Duration,
    /// Time at which the bucket is full if no more tokens are taken. Later than the time in which a
    /// whole burst refills by the tokens that are reserved.
    full_at: Instant,
}

impl TokenBucket {
    /// Full bucket of `burst` tokens, which refills one token per `interval`, at most a year.
    pub(crate) fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        // An interval of zero would divide by zero.
        let interval = interval.clamp(Duration::from_nanos(1), LONGEST);
        Self { burst, interval, full_at: now }
    }

    /// Returns the number of tokens, which need not be whole; negative while some are reserved.
    pub(crate) fn level(&self, now: Instant) -> f64 {
        f64::from(self.burst) - self.until_full(now).as_secs_f64() / self.interval.as_secs_f64()
    }

    /// Returns the time until the bucket is full, if no more tokens are taken.
    pub(crate) fn until_full(&self, now: Instant) -> Duration {
        self.full_at.saturating_duration_since(now)
    }

    /// Returns the time at which the bucket is full, if no more tokens are taken.
    pub(crate) fn full_at(&self) -> Instant {
        self.full_at
    }

    /// Takes one token, or the rest of one.
    pub(crate) fn take(&mut self, now: Instant) {
        self.reserve(now);
        self.fill_by(now + self.capacity());
    }

    /// Takes one token, even if it refills only later. Returns the time until then.
    pub(crate) fn reserve(&mut self, now: Instant) -> Duration {
        let until_full = self.until_full(now) + self.interval;
        self.full_at = now + until_full;
        until_full.saturating_sub(self.capacity())
    }

    /// Fills the bucket at this time at the latest: tokens that are reserved beyond it are forgotten.
    pub(crate) fn fill_by(&mut self, latest: Instant) {
        self.full_at = self.full_at.min(latest);
    }

    /// Returns the time in which an empty bucket refills.
    fn capacity(&self) -> Duration {
        self.interval.saturating_mul(self.burst)
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
        assert!(bucket.until_full(start) < Duration::MAX);
        let mut endless = TokenBucket::new(1, Duration::ZERO, start);
        assert_eq!(endless.reserve(start), Duration::ZERO);
    }

    #[test]
    fn taking_leaves_no_debt() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(1, Duration::from_secs(1), start);

        (0..10).for_each(|_| bucket.take(start));

        assert!(bucket.level(start).abs() < f64::EPSILON);
        assert!((bucket.level(start + Duration::from_secs(9)) - 1.0).abs() < f64::EPSILON);
    }
}
