//! Model test: every way in which a condition can flap, up to a depth. Checks the limit on starts
//! together with the state machine that it limits.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use super::*;
use crate::manager::verdict::tests::met_by;

const INTERVAL: Duration = Duration::from_secs(1);
const BURST: u32 = 2;
/// Depth of the search: enough for the bucket to be empty again twice.
const DEPTH: usize = 14;

#[derive(Clone, Copy, Debug)]
enum Event {
    Met(&'static str),
    Unmet,
    Unknown,
    /// The stopping epoch ends.
    Ended,
    /// Another specification takes over between two epochs.
    Renewed,
    HalfAnInterval,
}

const EVENTS: [Event; 7] = [
    Event::Met("a"),
    Event::Met("b"),
    Event::Unmet,
    Event::Unknown,
    Event::Ended,
    Event::Renewed,
    Event::HalfAnInterval,
];

#[derive(Clone, Debug)]
struct Model {
    machine: Lifecycle,
    now: Instant,
    wake: Option<Instant>,
    /// Time of the first start under this specification, and number of starts since.
    starts: Option<(Instant, u32)>,
}

impl Model {
    fn new(now: Instant) -> Self {
        let backoff =
            RestartBackoff { flaps: BURST, flap_interval: INTERVAL, ..RestartBackoff::default() };
        let mut machine = Lifecycle::new(RestartPolicy::Always, backoff);
        machine.step(LifecycleInput::Allowed(true), now, 0.0);
        Self { machine, now, wake: None, starts: None }
    }

    fn feed(&mut self, input: LifecycleInput) {
        for action in self.machine.step(input, self.now, 0.0) {
            match action {
                LifecycleAction::Start => self.started(),
                LifecycleAction::WakeAt(at) => {
                    assert!(at > self.now && at - self.now <= INTERVAL, "held down for longer");
                    self.wake = Some(at);
                }
                LifecycleAction::Stop(_)
                | LifecycleAction::Drain
                | LifecycleAction::Done(_)
                | LifecycleAction::Forget => {}
            }
        }
    }

    fn started(&mut self) {
        let (since, before) = self.starts.unwrap_or((self.now, 0));
        self.starts = Some((since, before + 1));
        let intervals = (self.now - since).as_secs() / INTERVAL.as_secs();
        let most = u64::from(BURST) + 1 + intervals;
        assert!(u64::from(before) < most, "{} starts, {most} at most", before + 1);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Met(uid) => self.feed(LifecycleInput::Verdict(met_by(uid))),
            Event::Unmet => self.feed(LifecycleInput::Verdict(Verdict::Unmet(Vec::new()))),
            Event::Unknown => self.feed(LifecycleInput::Verdict(Verdict::Unknown(Vec::new()))),
            Event::Ended => {
                if self.machine.stopping().is_some() {
                    self.feed(LifecycleInput::Ended);
                    self.feed(LifecycleInput::Wake);
                }
            }
            Event::Renewed => {
                if !self.machine.live() {
                    self.machine.renew(RestartPolicy::Always);
                    self.starts = None;
                    self.feed(LifecycleInput::Verdict(Verdict::Unknown(Vec::new())));
                }
            }
            Event::HalfAnInterval => {
                self.now += INTERVAL / 2;
                if self.wake.take_if(|at| *at <= self.now).is_some() {
                    self.feed(LifecycleInput::Wake);
                }
            }
        }
    }

    /// Checks that the machine follows a condition that stays constant, within the flap interval.
    fn settles(&self) {
        let mut model = self.clone();
        model.happen(Event::Ended);
        for _ in 0..2 {
            model.happen(Event::HalfAnInterval);
        }
        match &model.machine.verdict {
            Verdict::Met(met) => {
                assert_eq!(model.machine.basis(), Some(&**met), "the last basis runs");
            }
            Verdict::Unmet(_) => assert_eq!(model.machine.state(), ControllerState::Waiting),
            Verdict::Unknown(_) => {
                assert_ne!(
                    model.machine.state(),
                    ControllerState::BackingOff,
                    "nothing to wait for"
                );
            }
        }
    }

    /// Value that is equal for states that behave alike from here on.
    fn fingerprint(&self) -> impl Eq + std::hash::Hash + use<> {
        let left = |until: Option<Instant>| {
            until.map_or(0, |until| until.saturating_duration_since(self.now).as_millis())
        };
        let verdict = match &self.machine.verdict {
            Verdict::Met(basis) => (0, basis.clone()),
            Verdict::Unmet(_) => (1, Vec::new()),
            Verdict::Unknown(_) => (2, Vec::new()),
        };
        let flaps = self.machine.flaps.map(|limit| self.now + limit.until_full(self.now));
        let clocks = [flaps, self.machine.not_before, self.wake].map(left);
        let basis = self.machine.basis().map(<[Basis]>::to_vec);
        let starts = self.starts.map(|(since, count)| ((self.now - since).as_millis(), count));
        (self.machine.state(), verdict, basis, clocks, self.wake.is_some(), starts)
    }
}

#[test]
fn starts_are_bounded_and_the_last_verdict_holds_however_a_condition_flaps() {
    let first = Model::new(Instant::now());
    let mut known = HashSet::from([first.fingerprint()]);
    let mut queue = VecDeque::from([(first, 0)]);

    while let Some((model, depth)) = queue.pop_front() {
        model.settles();
        if depth == DEPTH {
            continue;
        }
        for event in EVENTS {
            let mut next = model.clone();
            next.happen(event);
            if known.insert(next.fingerprint()) {
                queue.push_back((next, depth + 1));
            }
        }
    }

    assert!(known.len() > 1000, "the search has found too few states: {}", known.len());
}
