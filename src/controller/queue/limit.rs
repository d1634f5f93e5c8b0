//! Delays of failed items: rate limiters, which a user may implement, and the limit of a queue.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::error;

use crate::{
    duration::doubled,
    guard::{self, GuardedDrop},
    token_bucket::TokenBucket,
};

/// Rate limiter of a queue: decides how long a failed item waits for its retry.
///
/// The queue counts the requeues of each item until [`Queue::forget`](super::Queue::forget), and
/// passes their number. So a limiter needs a state of its own only for other rules. [`Backoff`],
/// [`FastSlow`], [`TokenBucketLimiter`] and [`MaxOf`] are the limiters of client-go.
///
/// The queue is locked while it calls a limiter, which must not block.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::controller::{Backoff, RateLimiter, Request};
/// use tokio::time::Instant;
///
/// /// Retries of requests in `kube-system` wait for a minute.
/// #[derive(Clone)]
/// struct SystemLast(Backoff);
///
/// impl RateLimiter<Request> for SystemLast {
///     fn when(&mut self, request: &Request, requeues: u32, now: Instant) -> Duration {
///         match request.namespace.as_deref() {
///             Some("kube-system") => Duration::from_secs(60),
///             _ => self.0.when(request, requeues, now),
///         }
///     }
/// }
/// # let mut limiter = SystemLast(Backoff::default());
/// # let request = Request::namespaced("kube-system", "dns");
/// # assert_eq!(limiter.when(&request, 0, Instant::now()), Duration::from_secs(60));
/// ```
///
/// Semantics: `TypedRateLimiter` of client-go, whose `NumRequeues` is
/// [`Queue::requeues`](super::Queue::requeues). A limiter that panics is logged, and the back-off
/// of [`QueueOptions`] applies in its place.
pub trait RateLimiter<K>: Send {
    /// Returns the delay of the next retry of `key`, which was requeued `requeues` times since it
    /// was last forgotten.
    fn when(&mut self, key: &K, requeues: u32, now: Instant) -> Duration;

    /// Drops the state of a key, whose requeues count from 0 again.
    fn forget(&mut self, key: &K) {
        let _ = key;
    }
}

/// Function that builds the rate limiter of each epoch of a controller.
pub(in crate::controller) struct NewLimiter<K>(Arc<NewLimiterFn<K>>);

type NewLimiterFn<K> = dyn Fn() -> Box<dyn RateLimiter<K>> + Send + Sync;

impl<K: 'static> NewLimiter<K> {
    /// Returns a function that clones a rate limiter.
    pub(in crate::controller) fn cloning(
        limiter: impl RateLimiter<K> + Clone + Sync + 'static,
    ) -> Self {
        let limiter = GuardedDrop::new(limiter);
        Self(Arc::new(move || Box::new((*limiter).clone())))
    }

    /// Builds a rate limiter.
    pub(in crate::controller) fn build(&self) -> Box<dyn RateLimiter<K>> {
        (self.0)()
    }
}

impl<K> Clone for NewLimiter<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> fmt::Debug for NewLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewLimiter")
    }
}

/// Rate limits of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    /// Back-off of each item, for queues without a rate limiter of their own.
    pub backoff: Backoff,
    /// Shared limit of all adds that count as failures; none by default.
    pub limit: Option<Limit>,
}

/// Back-off of one item: `base` doubled for every failure in a row, at most `max`.
///
/// Semantics: `ItemExponentialFailureRateLimiter` of client-go, with controller-runtime's numbers.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::controller::Backoff;
///
/// let backoff = Backoff { max: Duration::from_secs(60), ..Backoff::default() };
/// assert_eq!(backoff.delay(1), Duration::from_millis(10));
/// assert_eq!(backoff.delay(20), Duration::from_secs(60));
/// ```
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

/// Rate limiter with two delays: `fast` for the first attempts, then `slow`.
///
/// Semantics: `ItemFastSlowRateLimiter` of client-go.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::controller::{Controller, FastSlow};
///
/// let (fast, slow) = (Duration::from_millis(50), Duration::from_secs(60));
/// let builder =
///     Controller::builder("gears").rate_limiter(FastSlow { fast, slow, fast_retries: 5 });
/// # drop(builder);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastSlow {
    /// Delay of the first retries.
    pub fast: Duration,
    /// Delay of all later ones.
    pub slow: Duration,
    /// Number of retries with the fast delay.
    pub fast_retries: u32,
}

/// Rate limiter of all items together: see [`Limit`].
///
/// Semantics: `BucketRateLimiter` of client-go.
///
/// ```
/// use pilotlight::controller::{Controller, Limit, TokenBucketLimiter};
///
/// // Ten retries a second of all requests together, after the first hundred.
/// let limiter = TokenBucketLimiter::new(Limit { per_second: 10.0, burst: 100 });
/// let builder = Controller::builder("gears").rate_limiter(limiter);
/// # drop(builder);
/// ```
#[derive(Clone, Debug)]
pub struct TokenBucketLimiter {
    limit: Limit,
    // Filled at the first retry.
    bucket: Option<TokenBucket>,
}

/// Rate limiter that waits for the longer of two delays; may be nested.
///
/// Both limiters count each retry. Semantics: `MaxOfRateLimiter` of client-go.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::controller::{Backoff, Controller, FastSlow, MaxOf};
///
/// let (fast, slow) = (Duration::from_millis(50), Duration::from_secs(60));
/// let fast_slow = FastSlow { fast, slow, fast_retries: 5 };
/// let builder =
///     Controller::builder("gears").rate_limiter(MaxOf(fast_slow, Backoff::default()));
/// # drop(builder);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxOf<A, B>(
    /// First limiter.
    pub A,
    /// Second limiter.
    pub B,
);

/// Rate limiter of one queue, whose panics are contained.
pub(super) struct OwnLimiter<K>(GuardedDrop<Box<dyn RateLimiter<K>>>);

impl<K> OwnLimiter<K> {
    pub(super) fn new(limiter: Box<dyn RateLimiter<K>>) -> Self {
        Self(GuardedDrop::new(limiter))
    }

    /// Returns the delay of a retry; `None` after a panic.
    pub(super) fn when(&mut self, key: &K, requeues: u32, now: Instant) -> Option<Duration> {
        let delay = guard::run(|| self.0.when(key, requeues, now));
        delay.map_err(|error| error!(error, "the rate limiter panicked")).ok()
    }

    pub(super) fn forget(&mut self, key: &K) {
        if let Err(error) = guard::run(|| self.0.forget(key)) {
            error!(error, "the rate limiter panicked");
        }
    }
}

impl<K> fmt::Debug for OwnLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnLimiter")
    }
}

impl<K> RateLimiter<K> for Backoff {
    fn when(&mut self, _: &K, requeues: u32, _: Instant) -> Duration {
        self.delay(requeues)
    }
}

impl<K> RateLimiter<K> for FastSlow {
    fn when(&mut self, _: &K, requeues: u32, _: Instant) -> Duration {
        if requeues < self.fast_retries { self.fast } else { self.slow }
    }
}

impl TokenBucketLimiter {
    /// Returns a limiter with a full bucket.
    pub fn new(limit: Limit) -> Self {
        Self { limit, bucket: None }
    }
}

impl<K> RateLimiter<K> for TokenBucketLimiter {
    fn when(&mut self, _: &K, _: u32, now: Instant) -> Duration {
        self.bucket.get_or_insert_with(|| self.limit.bucket(now)).reserve(now)
    }
}

impl<K, A: RateLimiter<K>, B: RateLimiter<K>> RateLimiter<K> for MaxOf<A, B> {
    fn when(&mut self, key: &K, requeues: u32, now: Instant) -> Duration {
        self.0.when(key, requeues, now).max(self.1.when(key, requeues, now))
    }

    fn forget(&mut self, key: &K) {
        self.0.forget(key);
        self.1.forget(key);
    }
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

    fn delays(mut limiter: impl RateLimiter<u8>, requeues: std::ops::Range<u32>) -> Vec<u128> {
        let now = Instant::now();
        requeues.map(|requeues| limiter.when(&1, requeues, now).as_millis()).collect()
    }

    #[test]
    fn fast_slow_limiter_slows_down_after_its_fast_retries() {
        let (fast, slow) = (Duration::from_millis(1), Duration::from_secs(120));

        assert_eq!(
            delays(FastSlow { fast, slow, fast_retries: 3 }, 0..5),
            [1, 1, 1, 120_000, 120_000]
        );
    }

    #[test]
    fn token_bucket_limiter_delays_all_items_together() {
        let limiter = TokenBucketLimiter::new(Limit { per_second: 10.0, burst: 2 });

        assert_eq!(delays(limiter.clone(), 0..4), [0, 0, 100, 200]);
        assert_eq!(delays(limiter, 7..9), [0, 0], "a clone has a bucket of its own");
    }

    /// Semantics: `defaultRateLimiter` of lasso.
    #[test]
    fn fast_slow_and_exponential_limiter_together_wait_for_the_longer_delay() {
        let (fast, slow) = (Duration::from_millis(1), Duration::from_secs(120));
        let backoff = Backoff { base: Duration::from_millis(5), max: Duration::from_secs(30) };
        let limiter = MaxOf(FastSlow { fast, slow, fast_retries: 3 }, backoff);

        assert_eq!(delays(limiter, 0..5), [5, 10, 20, 120_000, 120_000]);
    }

    #[test]
    fn max_of_limiters_waits_for_the_longest_and_counts_in_each() {
        let bucket = TokenBucketLimiter::new(Limit { per_second: 10.0, burst: 1 });
        let (fast, slow) = (Duration::from_millis(50), Duration::from_millis(250));
        let limiter =
            MaxOf(MaxOf(Backoff::default(), bucket), FastSlow { fast, slow, fast_retries: 4 });

        assert_eq!(delays(limiter, 0..7), [50, 100, 200, 300, 400, 500, 600]);
    }
}
