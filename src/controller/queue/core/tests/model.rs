//! Random steps on the queue core and on a naive model of it.

use std::cmp::Reverse;

use proptest::{prelude::*, sample::select, test_runner::TestCaseResult};

use super::*;

/// All times are whole ticks and every rate divides them, so that no sum is rounded.
const TICK: Duration = Duration::from_micros(15_625);
const BACKOFF: Backoff = Backoff { base: TICK, max: Duration::from_secs(1000) };
/// Refill of one token in eight ticks, with a burst of two.
const LIMIT: Limit = Limit { per_second: 8.0, burst: 2 };
const TOKEN: i64 = 8;
const FULL: i64 = 2 * TOKEN;

/// Naive implementation of the rules, to compare with.
struct Model {
    keys: BTreeMap<u8, ModelKey>,
    counter: u64,
    /// Tokens in eighths, and the time at which they were counted.
    tokens: Option<(i64, Duration)>,
    draining: bool,
}

#[derive(Clone, Copy, Default)]
struct ModelKey {
    priority: i32,
    // Time at which the key is or became ready, whether it is ready, and its position.
    queued: Option<(Duration, bool, u64)>,
    processing: bool,
    failures: u32,
    retry_at: Option<Duration>,
}

impl ModelKey {
    /// Priority by which a ready key is ordered.
    fn counted(&self, since: Duration, now: Duration) -> i32 {
        if now - since >= Duration::from_secs(60) { self.priority.max(0) } else { self.priority }
    }
}

impl Model {
    fn new(limited: bool, now: Duration) -> Self {
        let tokens = limited.then_some((FULL, now));
        Self { keys: BTreeMap::new(), counter: 0, tokens, draining: false }
    }

    /// Reserves a token; returns the time until it is available.
    fn token(&mut self, now: Duration) -> Duration {
        let Some((tokens, filled)) = &mut self.tokens else { return Duration::ZERO };
        let ticks = (now - *filled).as_micros() / TICK.as_micros();
        *tokens = (*tokens + i64::try_from(ticks).unwrap()).min(FULL) - TOKEN;
        *filled = now;
        TICK * u32::try_from(-*tokens).unwrap_or(0)
    }

    fn drain(&mut self) {
        self.draining = true;
        for entry in self.keys.values_mut() {
            entry.queued = entry.queued.filter(|(_, ready, _)| *ready);
        }
    }

    fn is_finished(&self) -> bool {
        self.draining && self.ready() == 0 && self.keys.values().all(|entry| !entry.processing)
    }

    fn add(&mut self, key: u8, add: Add, now: Duration) {
        if self.draining {
            return;
        }
        let fails = add.rate_limited || add.failed;
        let token = if fails { self.token(now) } else { Duration::ZERO };
        let entry = self.keys.entry(key).or_default();
        let mut delay = add.after;
        if fails && entry.retry_at.is_none_or(|at| now >= at) {
            entry.failures += 1;
        }
        if add.rate_limited {
            let limited = BACKOFF.delay(entry.failures - 1).max(token);
            delay = if delay.is_zero() { limited } else { limited.min(delay) };
        } else if add.failed {
            delay = delay.max(token);
        }
        if fails {
            entry.retry_at = Some(now + delay);
        }
        let wanted = (now + delay, delay.is_zero(), self.counter);
        match entry.queued {
            None => {
                entry.priority = add.priority;
                entry.queued = Some(wanted);
            }
            Some((since, true, _)) => {
                let counted = entry.counted(since, now);
                if add.priority > entry.priority {
                    if add.priority > counted {
                        entry.queued = Some((since, true, self.counter));
                    }
                    entry.priority = add.priority;
                }
            }
            Some((ready_at, false, _)) => {
                entry.priority = entry.priority.max(add.priority);
                if wanted.1 || wanted.0 < ready_at {
                    entry.queued = Some(wanted);
                }
            }
        }
        self.counter += 1;
    }

    fn tick(&mut self, now: Duration) {
        let mut due: Vec<_> = self
            .keys
            .iter()
            .filter_map(|(key, entry)| match entry.queued {
                Some((at, false, number)) if at <= now => Some((at, number, *key)),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        for (_, _, key) in due {
            self.keys.get_mut(&key).unwrap().queued = Some((now, true, self.counter));
            self.counter += 1;
        }
    }

    fn ready(&self) -> usize {
        self.keys.values().filter(|entry| matches!(entry.queued, Some((_, true, _)))).count()
    }

    fn pop(&mut self, now: Duration) -> Option<(u8, i32, u32)> {
        let (_, key) = self
            .keys
            .iter()
            .filter(|(_, entry)| !entry.processing)
            .filter_map(|(key, entry)| match entry.queued {
                Some((since, true, number)) => {
                    Some(((Reverse(entry.counted(since, now)), number), *key))
                }
                _ => None,
            })
            .min()?;
        let entry = self.keys.get_mut(&key)?;
        entry.queued = None;
        entry.processing = true;
        Some((key, entry.priority, entry.failures))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, Add),
    Pop,
    Done(u8),
    Forget(u8),
    Advance(u32),
    Drain,
    /// Closes the queue, and takes another one.
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6u8;
    let delay = prop_oneof![Just(0), 1..50u32];
    let priority = select(vec![LOW_PRIORITY, LOW_PRIORITY, -50, 0, 0, 0, 10]);
    let fails =
        prop_oneof![7 => Just((false, false)), 2 => Just((true, false)), 1 => Just((false, true))];
    let add = (key.clone(), priority, delay, fails).prop_map(
        |(key, priority, ticks, (rate_limited, failed))| {
            Step::Add(key, Add { priority, after: TICK * ticks, rate_limited, failed })
        },
    );
    prop_oneof![
        24 => add,
        18 => Just(Step::Pop),
        18 => key.clone().prop_map(Step::Done),
        6 => key.prop_map(Step::Forget),
        12 => (0..40u32).prop_map(Step::Advance),
        // Around the time after which a low priority counts as normal.
        3 => (1900..4000u32).prop_map(Step::Advance),
        1 => Just(Step::Drain),
        2 => Just(Step::Replace),
    ]
}

proptest! {
    #[test]
    fn queue_behaves_as_the_model(
        limited in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let options = QueueOptions {
            limit: limited.then_some(LIMIT),
            backoff: BACKOFF,
        };
        let start = Instant::now();
        let mut queue = QueueHarness::with(options, start);
        let mut model = Model::new(limited, Duration::ZERO);

        for step in steps {
            let now = queue.now - start;
            match step {
                Step::Add(key, add) => {
                    queue.add(key, add);
                    model.add(key, add, now);
                }
                Step::Pop => {
                    let popped = queue.take().map(|it| (it.key, it.priority, it.failures));
                    prop_assert_eq!(popped, model.pop(now));
                }
                Step::Done(key) => {
                    queue.done(key);
                    model.keys.entry(key).or_default().processing = false;
                }
                Step::Forget(key) => {
                    queue.forget(key);
                    let entry = model.keys.entry(key).or_default();
                    (entry.failures, entry.retry_at) = (0, None);
                }
                Step::Advance(ticks) => {
                    queue.advance(TICK * ticks);
                    model.tick(queue.now - start);
                }
                Step::Drain => {
                    queue.core.drain();
                    // `Queue` drops all timers at once.
                    queue.timers.clear();
                    model.drain();
                }
                Step::Replace => {
                    queue.core.close();
                    prop_assert_eq!((queue.pop(), queue.core.len()), (None, 0));
                    prop_assert!(queue.core.is_finished());

                    queue = QueueHarness::with(options, queue.now);
                    model = Model::new(limited, now);
                }
            }
            prop_assert_eq!(queue.core.len(), model.ready());
            prop_assert_eq!(queue.core.is_finished(), model.is_finished());
            for (key, entry) in &model.keys {
                prop_assert_eq!(queue.failures(*key), entry.failures);
            }
        }

        check_end(queue, model, start)?;
    }
}

/// Checks that in the end every key is available, and no state is left.
fn check_end(mut queue: QueueHarness, mut model: Model, start: Instant) -> TestCaseResult {
    queue.advance(Duration::from_secs(2000));
    model.tick(queue.now - start);
    for key in 0..6 {
        queue.done(key);
        model.keys.entry(key).or_default().processing = false;
    }
    while let Some(expected) = model.pop(queue.now - start) {
        let item = queue.take().unwrap();
        prop_assert_eq!((item.key, item.priority, item.failures), expected);
        queue.done(item.key);
        model.keys.get_mut(&item.key).unwrap().processing = false;
        queue.forget(item.key);
    }
    prop_assert_eq!(queue.core.is_finished(), model.is_finished());
    for key in 0..6 {
        queue.forget(key);
    }
    prop_assert!(queue.core.slots.is_empty());
    prop_assert!(queue.timers.is_empty());
    Ok(())
}
