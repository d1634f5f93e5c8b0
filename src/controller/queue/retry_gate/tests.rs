use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;
use crate::controller::Backoff;

const SECOND: Duration = Duration::from_secs(1);

const PACE: Pace = Pace {
    gap: SECOND,
    burst: 10,
    probe: Some(Duration::from_secs(10)),
    longest: Duration::from_secs(1000),
};

/// Requests from 0 up, each sent as soon as it is due. The test decides by request and time which
/// of them succeed; the tries are recorded.
struct Simulation {
    gate: RetryGate<usize>,
    failures: Vec<u32>,
    done: Vec<bool>,
    // Time of the next try; earlier entries of `queue` are outdated.
    due: Vec<Option<Instant>>,
    queue: BinaryHeap<Reverse<(Instant, usize)>>,
    start: Instant,
    random: fastrand::Rng,
    tries: Vec<(Instant, usize)>,
}

impl Simulation {
    fn new(requests: usize) -> Self {
        let start = Instant::now() + Duration::from_secs(100);
        let mut simulation = Self {
            gate: RetryGate::default(),
            failures: vec![0; requests],
            done: vec![false; requests],
            due: vec![None; requests],
            queue: BinaryHeap::new(),
            start,
            random: fastrand::Rng::with_seed(7),
            tries: Vec::new(),
        };
        for request in 0..requests {
            simulation.add(request, start);
        }
        simulation
    }

    fn add(&mut self, request: usize, at: Instant) {
        self.due[request] = Some(at);
        self.queue.push(Reverse((at, request)));
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    /// Runs the simulation up to a second; each try takes 5 ms.
    fn run(&mut self, pace: &Pace, until: u64, responses: impl Fn(usize, Instant) -> bool) {
        let end = self.at(until);
        let mut free = self.start;
        while let Some(&Reverse((due, request))) = self.queue.peek() {
            let now = due.max(free);
            if now >= end {
                return;
            }
            self.queue.pop();
            if self.due[request] != Some(due) {
                continue;
            }
            self.due[request] = None;
            self.tries.push((now, request));
            free = now + Duration::from_millis(5);
            if responses(request, now) {
                self.done[request] = true;
                self.failures[request] = 0;
                for (next, after) in self.gate.answered(&request, free) {
                    self.add(next, free + after);
                }
            } else {
                let backoff = Backoff::default().delay(self.failures[request]);
                self.failures[request] += 1;
                let wait = Wait { backoff, at_least: Duration::ZERO };
                let spread = self.random.f64();
                let after = self.gate.failed(request, wait, pace, spread, free);
                self.add(request, free + after);
            }
        }
    }

    fn tries(&self, from: u64, to: u64) -> usize {
        let span = self.at(from)..self.at(to);
        self.tries.iter().filter(|(at, _)| span.contains(at)).count()
    }

    /// Returns the longest time without a try between two seconds.
    fn longest_pause(&self, from: u64, to: u64) -> Duration {
        let span = self.at(from)..self.at(to);
        let moments = self.tries.iter().map(|(at, _)| *at).filter(|at| span.contains(at));
        let moments: Vec<_> = [span.start].into_iter().chain(moments).chain([span.end]).collect();
        moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }
}

/// Simulates a failure of the dependency of ten minutes. In its second half the tries per minute
/// are bounded; after it every request succeeds in time.
#[track_caller]
fn check(requests: usize, most_a_minute: usize, longest_pause: u64, done_within: u64) {
    let mut simulation = Simulation::new(requests);
    let back = simulation.at(600);

    simulation.run(&PACE, 2000, |_, now| now >= back);

    for minute in 5..10 {
        let tries = simulation.tries(60 * minute, 60 * minute + 60);
        assert!(tries <= most_a_minute, "{requests}: {tries} in minute {minute}");
    }
    let pause = simulation.longest_pause(60, 600);
    assert!(pause <= Duration::from_secs(longest_pause), "{requests}: {pause:?} without a try");
    assert!(
        simulation.tries(0, 60) <= 2 * requests + 100,
        "{requests}: {}",
        simulation.tries(0, 60)
    );
    assert!(simulation.done.iter().all(|done| *done));
    let last = simulation.tries.iter().map(|(at, _)| *at).max().unwrap();
    let took = last.saturating_duration_since(back);
    assert!(took <= Duration::from_secs(done_within), "{requests}: {took:?}");
    assert_eq!(simulation.tries(600, 2000), requests, "no request is tried twice");
}

#[test]
fn down_dependency_is_probed_and_then_tried_by_all_at_once() {
    check(1, 7, 11, 10);
    check(2, 10, 11, 11);
    check(10, 15, 11, 11);
    check(100, 70, 11, 12);
    // 5 ms for each request, and a few seconds until the first probe.
    check(1000, 70, 3, 8);
    check(5000, 700, 11, 36);
}

#[test]
fn single_success_while_down_does_not_delay_requests_by_the_downtime() {
    let mut simulation = Simulation::new(3);
    let (back, gone, well) = (simulation.at(1200), simulation.at(1220), simulation.at(1230));

    // The first probe succeeds, then the dependency is down again for a while.
    simulation.run(&PACE, 1200, |_, _| false);
    let first = std::cell::Cell::new(None);
    simulation.run(&PACE, 4000, |request, now| {
        let is_first = *first.get().get_or_insert(request) == request;
        first.set(first.get().or(Some(request)));
        now >= well || now >= back && now < gone && is_first
    });

    assert!(simulation.done.iter().all(|done| *done));
    let last = simulation.tries.iter().map(|(at, _)| *at).max().unwrap();
    assert!(last < simulation.at(1300), "{:?} after the recovery", last - well);
}

#[test]
fn very_long_waits_are_bounded() {
    let mut gate = RetryGate::default();
    let wait = Wait { backoff: Duration::MAX, at_least: Duration::MAX };
    let pace = Pace { longest: Duration::MAX, ..PACE };
    for key in 0..20 {
        let after = gate.failed(key, wait, &pace, 1.0, Instant::now());
        assert!(after <= 2 * LONGEST, "{after:?}");
    }
}

#[test]
fn request_that_fails_alone_keeps_its_own_back_off() {
    let mut simulation = Simulation::new(105);
    let gate = |broken: bool, now: Instant, simulation: &mut Simulation| {
        // The other requests come in all the time and succeed.
        let changed = simulation.random.usize(5..105);
        if !broken {
            assert_eq!(simulation.gate.answered(&changed, now), []);
        }
    };
    for second in 0..3600 {
        simulation.run(&PACE, second, |request, _| request >= 5);
        let now = simulation.at(second);
        gate(false, now, &mut simulation);
    }

    let tries = |request: usize| simulation.tries.iter().filter(|(_, it)| *it == request).count();
    for broken in 0..5 {
        // 5 ms doubled up to 1000 s, shortened by up to a fifth.
        assert!((15..=23).contains(&tries(broken)), "{broken}: {}", tries(broken));
    }
}

#[test]
fn success_of_one_request_does_not_retry_broken_ones() {
    let mut simulation = Simulation::new(3);
    let now = simulation.at(100);
    assert!(simulation.gate.answered(&7, now).is_empty());
    let wait = Wait { backoff: SECOND, at_least: Duration::ZERO };
    for broken in [0, 1, 2] {
        simulation.gate.failed(broken, wait, &PACE, 0.0, now + SECOND);
    }

    // The first of them succeeds: it changed, or its hook did.
    let released = simulation.gate.answered(&0, now + 2 * SECOND);

    assert!(released.is_empty(), "{released:?}");
}

#[test]
fn a_broken_half_costs_two_tries_for_each_that_recovers() {
    let mut simulation = Simulation::new(1000);
    let back = simulation.at(600);

    simulation.run(&PACE, 4000, |request, now| now >= back && request % 2 == 0);

    let healthy = |(request, done): (usize, &bool)| request % 2 == 1 || *done;
    assert!(simulation.done.iter().enumerate().all(healthy));
    let first = simulation.tries(600, 660);
    assert!(first < 1000 * 8, "{first}");
    assert!(simulation.tries(3000, 4000) <= 500 * 3, "{}", simulation.tries(3000, 4000));
}

#[test]
fn short_recovery_causes_no_storm() {
    let mut simulation = Simulation::new(1000);
    let (back, out, well) = (simulation.at(300), simulation.at(302), simulation.at(900));

    simulation.run(&PACE, 2000, |_, now| now >= well || (back..out).contains(&now));

    for minute in 6..15 {
        let tries = simulation.tries(60 * minute, 60 * minute + 60);
        assert!(tries <= 70, "{tries} in minute {minute}");
    }
    let last = simulation.tries.iter().map(|(at, _)| *at).max().unwrap();
    assert!(last < well + Duration::from_secs(20), "{:?}", last - well);
}

#[test]
fn throttled_request_is_not_retried_before_its_time() {
    let (mut gate, now) = (RetryGate::default(), Instant::now() + 100 * SECOND);
    let wait = |seconds: u32| Wait { backoff: Duration::ZERO, at_least: seconds * SECOND };
    for (key, seconds) in [("a", 1), ("b", 60), ("c", 2), ("d", 3)] {
        let after = gate.failed(key, wait(seconds), &PACE, 0.5, now);
        assert_eq!(after, (seconds * SECOND).mul_f64(1.1), "{key}");
    }

    let at_once = Duration::ZERO;
    let followers = gate.answered(&"a", now + 10 * SECOND);
    assert_eq!(followers, [("c", at_once), ("d", at_once)], "though b has waited as long");
    assert_eq!(gate.answered(&"c", now + 11 * SECOND), [("b", 49 * SECOND)]);
    assert_eq!(gate.answered(&"d", now + 11 * SECOND), []);
}

#[test]
fn forgotten_request_is_not_retried() {
    let (mut gate, now) = (RetryGate::default(), Instant::now() + 100 * SECOND);
    let wait = Wait { backoff: SECOND, at_least: Duration::ZERO };
    for key in ["a", "b", "c"] {
        gate.failed(key, wait, &PACE, 0.0, now);
    }

    gate.forget(&"b");

    assert!(!gate.holds(&"b"));
    assert_eq!(gate.answered(&"a", now + SECOND), [("c", Duration::ZERO)]);
    assert!(gate.answered(&"a", now + SECOND).is_empty(), "c no longer waits");
}

#[test]
fn gate_without_probes_retries_by_the_back_offs_only() {
    let mut simulation = Simulation::new(1);
    let pace = Pace { probe: None, ..PACE };

    simulation.run(&pace, 600, |_, _| false);

    assert!(simulation.tries(0, 600) <= 20, "{}", simulation.tries(0, 600));
    assert!(simulation.tries(300, 600) <= 2);
}
