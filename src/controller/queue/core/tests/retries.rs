//! Retries: back-off, delays of their own, and limiters of users.

use super::*;

#[test]
fn failures_double_the_delay_until_they_are_forgotten() {
    let mut queue = QueueHarness::new();
    let mut delays = Vec::new();

    for _ in 0..4 {
        queue.add(1, FAILED);
        delays.push(queue.timers.values().next().map(|at| *at - queue.now).unwrap());
        queue.advance(ms(10_000));
        assert_eq!(queue.pop(), Some(1));
        queue.done(1);
    }

    assert_eq!(delays, [ms(5), ms(10), ms(20), ms(40)]);
    assert_eq!(queue.failures(1), 4);
    queue.forget(1);
    assert_eq!(queue.failures(1), 0);
    queue.add(1, FAILED);
    assert_eq!(queue.timers.values().next(), Some(&(queue.now + ms(5))));
}

#[test]
fn failures_before_the_retry_is_due_do_not_lengthen_the_back_off() {
    let mut queue = QueueHarness::new();
    queue.add(1, FAILED).advance(ms(5));
    assert_eq!(queue.pop(), Some(1));
    queue.add(1, FAILED);
    queue.done(1);

    // Changes come before each retry is due, idle or while the key is processed.
    for _ in 0..30 {
        queue.add(1, NOW);
        assert_eq!(queue.pop(), Some(1));
        queue.add(1, NOW);
        queue.add(1, FAILED);
        queue.done(1);
        assert_eq!(queue.pop(), Some(1));
        queue.add(1, FAILED);
        queue.done(1);
        assert_eq!(queue.timers.values().next(), Some(&(queue.now + ms(10))));
        queue.advance(ms(9));
    }

    queue.advance(ms(1));
    assert_eq!(queue.pop(), Some(1));
    queue.add(1, FAILED);
    assert_eq!(queue.timers.values().next(), Some(&(queue.now + ms(20))));
    assert_eq!(queue.failures(1), 3);
}

#[test]
fn delay_and_back_off_together_are_the_shorter_of_both() {
    let mut queue = QueueHarness::new();

    queue.add(1, Add { rate_limited: true, ..after(2) });
    queue.add(2, Add { rate_limited: true, ..after(900) });

    queue.advance(ms(2));
    assert_eq!(queue.pop_all(), [1]);
    queue.advance(ms(3));
    assert_eq!(queue.pop_all(), [2]);
}

#[test]
fn limit_over_all_holds_for_failures_with_a_delay_of_their_own() {
    let limit = Some(Limit { per_second: 1.0, burst: 2 });
    let mut queue =
        QueueHarness::with(QueueOptions { limit, ..Default::default() }, Instant::now());

    for key in 0..5 {
        queue.add(key, Add { failed: true, ..after(100) });
    }

    let delays: Vec<_> = queue.timers.values().map(|at| *at - queue.now).collect();
    assert_eq!(delays, [ms(100), ms(100), ms(1000), ms(2000), ms(3000)]);
}

#[test]
fn a_failure_with_a_delay_of_its_own_counts_and_does_not_back_off() {
    let mut queue = QueueHarness::new();

    queue.add(1, Add { failed: true, ..after(900) });

    assert_eq!(queue.timers.values().next(), Some(&(queue.now + ms(900))));
    assert_eq!(queue.failures(1), 1);
    queue.forget(1);
    assert_eq!(queue.failures(1), 0);
}

#[test]
fn delay_of_centuries_is_a_year() {
    let mut queue = QueueHarness::new();

    queue.add(1, Add { after: Duration::MAX, ..NOW });

    assert_eq!(queue.timers.values().next(), Some(&(queue.now + MAX_DELAY)));
}

/// Limiter with a fixed delay, which records the keys that were forgotten.
struct Recorded(Arc<Mutex<Vec<(u8, u32)>>>, bool);

impl RateLimiter<u8> for Recorded {
    fn when(&mut self, key: &u8, requeues: u32, _: Instant) -> Duration {
        assert!(!self.1, "a limiter that fails");
        self.0.lock().push((*key, requeues));
        ms(700)
    }

    fn forget(&mut self, key: &u8) {
        assert!(!self.1, "a limiter that fails");
        self.0.lock().push((*key, u32::MAX));
    }
}

#[test]
fn users_limiter_decides_the_delay_and_learns_what_is_forgotten() {
    let calls = Arc::default();
    let mut queue = QueueHarness::new();
    queue.core.limit_by(OwnLimiter::new(Box::new(Recorded(Arc::clone(&calls), false))));

    for requeues in 0..2 {
        queue.add(1, FAILED);
        assert_eq!(queue.failures(1), requeues + 1);
        queue.advance(ms(699));
        assert_eq!(queue.pop(), None);
        queue.advance(ms(1));
        assert_eq!(queue.pop(), Some(1));
        queue.done(1);
    }
    queue.forget(1);

    assert_eq!(*calls.lock(), [(1, 0), (1, 1), (1, u32::MAX)]);
    assert_eq!(queue.failures(1), 0);
}

#[test]
fn limiter_that_panics_leaves_the_queue_with_its_back_off() {
    let mut queue = QueueHarness::new();
    queue.core.limit_by(OwnLimiter::new(Box::new(Recorded(Arc::default(), true))));

    queue.add(1, FAILED).advance(ms(5));

    assert_eq!(queue.pop(), Some(1));
    queue.done(1);
    queue.forget(1);
    assert_eq!(queue.failures(1), 0);
}
