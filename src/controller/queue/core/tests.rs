mod model;
mod resync;
mod retries;

use std::{
    collections::BTreeMap,
    hash::{BuildHasherDefault, DefaultHasher},
    sync::Arc,
};

use parking_lot::Mutex;

use super::*;
use crate::controller::ControllerMetrics;
use crate::controller::queue::{Backoff, LOW_PRIORITY, Limit, QueueRowState, RateLimiter};

/// Queue core with a clock, and with the timers that `Queue` keeps otherwise.
struct QueueHarness {
    core: Core<u8>,
    now: Instant,
    timers: BTreeMap<u32, Instant>,
}

impl QueueHarness {
    fn new() -> Self {
        Self::with(QueueOptions::default(), Instant::now())
    }

    fn with(options: QueueOptions, now: Instant) -> Self {
        let core = Core::new(options, QueueMetrics::default(), now);
        Self { core, now, timers: BTreeMap::new() }
    }

    fn measured() -> Self {
        let metrics = ControllerMetrics::default().series(&"measured".into()).queue();
        let now = Instant::now();
        let core = Core::new(QueueOptions::default(), metrics, now);
        Self { core, now, timers: BTreeMap::new() }
    }

    fn add(&mut self, key: u8, add: Add) -> &mut Self {
        let (timer, _) = self.core.add(hashed(key), add, &mut LazyNow::at(self.now));
        self.keep(timer);
        self
    }

    fn forget(&mut self, key: u8) {
        self.core.forget(hashed(&key));
    }

    fn failures(&self, key: u8) -> u32 {
        self.core.failures(hashed(&key))
    }

    fn keep(&mut self, timer: QueueTimer) {
        match timer {
            QueueTimer::Keep => {}
            QueueTimer::Set(slot, at) => drop(self.timers.insert(slot, at)),
            QueueTimer::Cancel(slot) => drop(self.timers.remove(&slot)),
        }
    }

    fn pop(&mut self) -> Option<u8> {
        self.take().map(|item| item.key)
    }

    fn take(&mut self) -> Option<Item<u8>> {
        self.core.pop(&mut LazyNow::at(self.now)).map(|popped| popped.item)
    }

    fn pop_all(&mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    fn done(&mut self, key: u8) -> bool {
        let ended = self.core.done(hashed(&key), &mut LazyNow::at(self.now));
        ended.is_some_and(|ended| ended.is_available)
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        loop {
            let due = self.timers.iter().filter(|(_, at)| **at <= self.now);
            let mut due: Vec<_> =
                due.map(|(&slot, &at)| (self.core.due(slot).unwrap(), at, slot)).collect();
            if due.is_empty() {
                return;
            }
            due.sort_unstable();
            for ((until, _), at, slot) in due {
                assert_eq!(until, at, "the timer and the core agree");
                self.timers.remove(&slot);
                let (timer, _) = self.core.expire(slot, self.now);
                self.keep(timer);
            }
        }
    }

    fn resync(&mut self, key: u8, after: Option<Duration>) {
        let timer = self.core.resync(hashed(key), after.map(|after| self.now + after), self.now);
        self.keep(timer);
    }
}

fn hashed<T: Hash>(key: T) -> Hashed<T> {
    Hashed::new(&BuildHasherDefault::<DefaultHasher>::default(), key)
}

const NOW: Add = Add { priority: 0, after: Duration::ZERO, rate_limited: false, failed: false };

fn at(priority: i32) -> Add {
    Add { priority, ..NOW }
}

fn after(millis: u64) -> Add {
    Add { after: Duration::from_millis(millis), ..NOW }
}

const FAILED: Add = Add { rate_limited: true, ..NOW };

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn keys_come_in_the_order_of_their_first_add() {
    let mut queue = QueueHarness::new();

    queue.add(3, NOW).add(1, NOW).add(3, NOW).add(2, NOW);

    assert_eq!(queue.core.len(), 3);
    assert_eq!(queue.pop_all(), [3, 1, 2]);
}

#[test]
fn higher_priorities_come_first_and_priority_is_never_lowered() {
    let mut queue = QueueHarness::new();

    queue.add(1, at(LOW_PRIORITY)).add(2, at(5)).add(3, NOW).add(2, at(LOW_PRIORITY));

    assert_eq!(queue.pop_all(), [2, 3, 1]);
}

#[test]
fn raised_key_goes_behind_those_that_were_there_before() {
    let mut queue = QueueHarness::new();

    queue.add(1, at(LOW_PRIORITY)).add(2, NOW).add(3, NOW).add(1, NOW);

    assert_eq!(queue.core.len(), 3);
    assert_eq!(queue.pop_all(), [2, 3, 1]);
}

#[test]
fn key_is_processed_by_one_worker_and_is_ready_again_when_done() {
    let mut queue = QueueHarness::new();
    queue.add(1, NOW);
    assert_eq!(queue.pop(), Some(1));

    queue.add(1, NOW).add(1, NOW).add(2, at(LOW_PRIORITY));

    assert_eq!(queue.pop_all(), [2]);
    assert!(queue.done(1));
    assert_eq!(queue.pop_all(), [1]);
    assert!(!queue.done(1));
    assert!(!queue.done(1), "done twice is done once");
}

#[test]
fn delayed_key_is_not_ready_before_its_time_and_is_counted_then() {
    let mut queue = QueueHarness::new();

    queue.add(1, after(20)).add(2, after(10));

    assert_eq!((queue.core.len(), queue.pop()), (0, None));
    queue.advance(ms(9));
    assert_eq!(queue.core.len(), 0);
    queue.advance(ms(100));
    assert_eq!(queue.core.len(), 2);
    assert_eq!(queue.pop_all(), [2, 1], "in the order of readiness");
}

#[test]
fn earliest_of_several_delays_counts() {
    let mut queue = QueueHarness::new();

    queue.add(1, after(50)).add(1, after(10)).add(1, after(90));
    queue.advance(ms(10));

    assert_eq!(queue.pop_all(), [1]);
    queue.advance(ms(200));
    assert_eq!(queue.pop(), None);
}

#[test]
fn delayed_key_that_is_added_at_once_is_ready_at_once_and_only_once() {
    let mut queue = QueueHarness::new();

    queue.add(1, after(50)).add(1, NOW);

    assert_eq!(queue.core.len(), 1);
    assert!(queue.timers.is_empty());
    assert_eq!(queue.pop_all(), [1]);
    queue.advance(ms(100));
    assert_eq!(queue.core.len(), 0);
}

#[test]
fn ready_key_never_becomes_a_waiting_one() {
    let mut queue = QueueHarness::new();

    queue.add(1, NOW).add(1, after(50)).add(1, FAILED);

    assert_eq!(queue.pop_all(), [1]);
}

#[test]
fn urgent_key_that_just_became_ready_precedes_older_ones() {
    let mut queue = QueueHarness::new();
    queue.add(1, NOW).add(2, Add { priority: 7, ..after(5) });

    queue.advance(ms(5));

    assert_eq!(queue.pop_all(), [2, 1]);
}

#[test]
fn low_priority_that_has_waited_a_minute_counts_as_normal() {
    let mut queue = QueueHarness::new();
    queue.add(1, at(LOW_PRIORITY)).add(2, at(-1));
    queue.advance(ms(59_999));
    queue.add(3, NOW);
    assert_eq!(queue.pop(), Some(3));

    queue.advance(ms(1));
    queue.add(4, NOW).add(5, at(1));

    assert_eq!(queue.pop_all(), [5, 1, 2, 4], "as they came");
}

#[test]
fn key_that_counts_as_normal_keeps_its_place_when_it_is_raised_to_that() {
    let mut queue = QueueHarness::new();
    queue.add(1, at(LOW_PRIORITY));
    queue.advance(ms(60_000));
    queue.add(2, NOW);

    queue.add(1, NOW);

    assert_eq!(queue.pop_all(), [1, 2]);
}

#[test]
fn key_that_counts_as_normal_is_handed_out_with_its_own_priority() {
    let mut queue = QueueHarness::new();
    queue.add(1, at(LOW_PRIORITY));
    queue.advance(ms(60_000));

    let item = queue.take().unwrap();

    assert_eq!(item.priority, LOW_PRIORITY, "a repetition waits anew");
}

#[test]
fn key_that_waits_for_its_own_reconcile_counts_as_normal_too() {
    let mut queue = QueueHarness::new();
    queue.add(1, NOW);
    queue.pop();
    queue.add(1, at(LOW_PRIORITY));
    queue.advance(ms(60_000));
    queue.add(2, NOW);

    queue.done(1);

    assert_eq!(queue.pop_all(), [1, 2]);
}

#[test]
fn queue_that_is_never_empty_keeps_no_outdated_tickets() {
    let mut queue = QueueHarness::new();
    queue.add(0, at(LOW_PRIORITY));

    for round in 0..10_000u32 {
        let key = (round % 100) as u8 + 1;
        queue.add(key, at(LOW_PRIORITY)).add(key, at(-50)).add(key, NOW).add(200, NOW);
        queue.pop();
        queue.pop();
        queue.done(key);
        queue.done(200);
        queue.now += ms(1);
    }

    assert_eq!(queue.core.len(), 1, "the first one");
    assert!(queue.core.ready.len() < 100, "{}", queue.core.ready.len());
    assert!(queue.core.aging.len() < 100, "{}", queue.core.aging.len());
}

#[test]
fn closed_queue_drops_its_keys_and_takes_no_other() {
    let mut queue = QueueHarness::new();
    queue.add(1, after(50)).add(2, FAILED).add(3, at(4)).add(4, NOW);
    queue.take();

    queue.core.close();

    queue.add(5, NOW);
    assert_eq!((queue.core.len(), queue.pop()), (0, None));
    assert!(queue.core.is_finished());
    assert!(!queue.done(3));
}

#[test]
fn draining_queue_returns_ready_keys_and_finishes_with_the_last() {
    let mut queue = QueueHarness::new();
    queue.add(1, NOW).add(2, NOW).add(3, after(10));
    assert_eq!(queue.pop(), Some(1));
    queue.add(1, NOW);

    queue.core.drain();

    queue.add(4, NOW);
    assert_eq!(queue.pop_all(), [2]);
    queue.done(2);
    assert!(!queue.core.is_finished());
    queue.done(1);
    assert_eq!(queue.pop_all(), [1], "it was added before the end");
    queue.done(1);
    assert!(queue.core.is_finished());
}

#[test]
fn slots_are_used_again() {
    let mut queue = QueueHarness::new();

    for round in 0..1000u32 {
        queue.add((round % 200) as u8, NOW);
        let key = queue.pop().unwrap();
        queue.done(key);
    }

    assert_eq!(queue.core.slots.entries().len(), 1);
    assert!(queue.core.slots.is_empty());
    assert_eq!(queue.core.ready.len(), 0);
}

#[test]
fn work_includes_delayed_keys() {
    let mut queue = QueueHarness::new();
    queue.add(1, after(1000)).add(2, after(2000)).add(3, NOW);
    assert_eq!(queue.core.work(queue.now).waiting, 2);

    queue.add(1, NOW);
    assert_eq!(queue.core.work(queue.now).waiting, 1);

    queue.core.close();
    assert_eq!(queue.core.work(queue.now), QueueWork::default());
}

#[test]
fn unfinished_work_is_measured_in_sum_and_by_the_longest() {
    let mut queue = QueueHarness::measured();
    queue.add(1, NOW).add(2, NOW);
    queue.pop();
    queue.now += ms(2000);
    queue.pop();
    queue.now += ms(1000);

    let work = queue.core.work(queue.now);
    assert_eq!((work.unfinished, work.longest), (4.0, 3.0));
}

#[test]
fn dump_without_metrics_shows_ready_keys_without_the_time_unless_their_priority_is_low() {
    let mut queue = QueueHarness::new();
    queue.add(1, NOW).add(2, Add { priority: LOW_PRIORITY, ..NOW });

    let rows = queue.core.dump(queue.now).sorted();

    let rows: Vec<_> = rows.iter().map(|row| (row.key, row.due)).collect();
    assert_eq!(rows, [(1, None), (2, Some(queue.now))]);
}

#[test]
fn dump_shows_each_key_with_its_state_due_time_and_requeues() {
    let mut queue = QueueHarness::measured();
    let start = queue.now;
    queue.add(1, FAILED).advance(ms(5));
    queue.add(2, NOW).add(3, at(9)).add(4, after(500)).add(5, Add { priority: 20, ..after(100) });
    queue.resync(6, Some(ms(300)));
    assert_eq!(queue.pop(), Some(3));
    queue.add(3, after(50));
    queue.forget(2);

    let rows = queue.core.dump(queue.now).sorted();

    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let due = row.due.map(|due| (due - start).as_millis());
            (row.key, row.state, row.priority, due, row.requeues)
        })
        .collect();
    assert_eq!(
        rows,
        [
            (3, QueueRowState::Running, 0, Some(55), 0),
            (1, QueueRowState::Ready, 0, Some(5), 1),
            (2, QueueRowState::Ready, 0, Some(5), 0),
            (5, QueueRowState::Waiting, 20, Some(105), 0),
            (6, QueueRowState::Waiting, 0, Some(305), 0),
            (4, QueueRowState::Waiting, 0, Some(505), 0),
        ]
    );
}
