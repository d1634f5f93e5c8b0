//! Model test: each input in each state of the machine, until no new state is found.
//!
//! Two states are equal if no sequence of inputs distinguishes them: clocks count relative to now,
//! and only as far as they affect a decision. The search is therefore finite, and complete for
//! sequences of any length. A [`Model`] that sees only the machine's actions checks it. From every
//! state, the model also stops disturbing the machine and checks the state in which it comes to
//! rest.

#![expect(clippy::print_stderr, reason = "prints figures of the search")]

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::{
    discovery::{InstallingReason, TypeState, TypeStatus},
    kind::{Scope, ServedType, Subresources, TypeIdentity, TypeRef, VersionOrder},
    manager::verdict::{self, Basis},
};

const TICK: Duration = Duration::from_secs(1);

/// Small enough that the clocks have few values, with each rule of the back-off in reach.
const BACKOFF: RestartBackoff = RestartBackoff {
    first: TICK,
    longest: Duration::from_secs(2),
    healthy: Duration::from_secs(3),
    // No limit on flaps: its counter has too many values.
    flaps: 0,
    flap_interval: Duration::ZERO,
};
/// Number of failures beyond which one more changes nothing.
const FAILURES_MAX: u32 = 2;
/// Upper bound on the steps after which an undisturbed machine is at rest.
const PATIENCE: usize = 8;

const POLICIES: [RestartPolicy; 3] =
    [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];

/// State of the one type that the condition depends on, as discovery reports it; the letter is its
/// uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Served(char),
    Terminating(char),
    Installing,
    Absent,
    Unknown,
}

const TYPES: [Type; 7] = [
    Type::Served('a'),
    Type::Terminating('a'),
    Type::Served('b'),
    Type::Terminating('b'),
    Type::Installing,
    Type::Absent,
    Type::Unknown,
];

impl Type {
    fn verdict(self) -> Verdict {
        let type_ref = TypeRef::resource("example.com", "v1", "widgets");
        let state = match self {
            Self::Served(_) => TypeState::Served,
            Self::Terminating(_) => TypeState::Terminating,
            Self::Installing => {
                TypeState::Installing(InstallingReason::NotEstablished("not yet".into()))
            }
            Self::Absent => TypeState::Absent,
            Self::Unknown => TypeState::Unknown(Some(Box::new(TypeState::Served))),
        };
        let served = match self {
            Self::Served(uid) | Self::Terminating(uid) => Some(Arc::new(served(uid))),
            Self::Installing | Self::Absent | Self::Unknown => None,
        };
        verdict::of_type(
            &type_ref,
            None,
            &TypeStatus { state, served, last_served: None, since: Timestamp::UNIX_EPOCH },
        )
    }
}

fn served(uid: char) -> ServedType {
    ServedType {
        identity: TypeIdentity {
            group: "example.com".into(),
            version: "v1".into(),
            plural: "widgets".into(),
            scope: Scope::Namespaced,
            uid: Some(uid.to_string().into()),
        },
        kind: "Widget".into(),
        list_kind: "WidgetList".into(),
        subresources: Subresources::default(),
        version_order: VersionOrder::Comparable,
        polled: false,
    }
}

/// Everything that the owner may do to a machine in one step.
#[derive(Clone, Debug)]
enum Event {
    Type(Type),
    Allowed(bool),
    LeaseLost,
    Running,
    /// The run ends; its tasks may not have ended yet.
    Returned(RunEnd),
    /// The epoch ends; the owner wakes the machine right after.
    Ended,
    /// The epoch ends, and another specification takes over at that moment.
    Replaced(RestartPolicy, Type),
    /// Another specification takes over while no epoch is live.
    Renewed(RestartPolicy, Type),
    Supersede,
    Overdue,
    Remove,
    /// A stale timer fires.
    Wake,
    Tick,
}

fn events() -> Vec<Event> {
    let why = || "boom".to_owned();
    let ends = [
        RunEnd::Completed,
        RunEnd::SourceDone,
        RunEnd::Failed(why()),
        RunEnd::Panicked(why()),
        RunEnd::Aborted,
    ];
    // Initial types of a specification: each kind of verdict once.
    let first = [Type::Served('a'), Type::Served('b'), Type::Absent, Type::Unknown];
    let specs = || {
        POLICIES.into_iter().flat_map(move |policy| first.into_iter().map(move |of| (policy, of)))
    };
    let mut all: Vec<Event> = TYPES.into_iter().map(Event::Type).collect();
    all.extend([true, false].map(Event::Allowed));
    all.extend(ends.map(Event::Returned));
    all.extend(specs().map(|(policy, of)| Event::Renewed(policy, of)));
    all.extend(specs().map(|(policy, of)| Event::Replaced(policy, of)));
    all.extend([
        Event::Ended,
        Event::LeaseLost,
        Event::Running,
        Event::Supersede,
        Event::Overdue,
        Event::Remove,
        Event::Wake,
        Event::Tick,
    ]);
    all
}

/// Machine, and the knowledge of its owner as derived only from the machine's actions.
#[derive(Clone, Debug)]
struct Model {
    machine: Lifecycle,
    now: Instant,
    /// Pending wake timer.
    wake: Option<Instant>,
    epoch: Option<Epoch>,
    forgotten: bool,
    /// Number of failed runs in a row since the last specification.
    failures: u32,
    /// Number of runs in a row that were followed by a back-off.
    restarts: u32,
    /// True if the last run ended because a required source was done, which had run for a while.
    source_done: bool,
    /// Time before which no epoch may begin.
    rest: Option<Instant>,
    /// True if the restart policy ended the runnable for good.
    retired: bool,
}

#[derive(Clone, Debug)]
struct Epoch {
    basis: Vec<Basis>,
    since: Instant,
    /// True once it has started up.
    is_running: bool,
    signalled: Option<StopReason>,
    /// End of the run, if it returned by itself.
    returned: Option<DoneReason>,
}

impl Epoch {
    /// Returns whether the run continues and was not signalled to stop.
    fn runs(&self) -> bool {
        self.signalled.is_none() && self.returned.is_none()
    }
}

type Checked = Result<(), &'static str>;

fn must(holds: bool, promise: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(promise) }
}

impl Model {
    fn new(policy: RestartPolicy, now: Instant) -> Self {
        Self {
            machine: Lifecycle::new(policy, BACKOFF),
            now,
            wake: None,
            epoch: None,
            forgotten: false,
            failures: 0,
            restarts: 0,
            source_done: false,
            rest: None,
            retired: false,
        }
    }

    /// Returns whether the owner could do this now.
    fn possible(&self, event: &Event) -> bool {
        match event {
            Event::Renewed(..) => !self.machine.live() && !self.machine.removed,
            Event::Ended => self.stops(),
            Event::Replaced(..) => self.stops() && !self.machine.removed,
            Event::Type(_)
            | Event::Allowed(_)
            | Event::LeaseLost
            | Event::Running
            | Event::Returned(_)
            | Event::Supersede
            | Event::Overdue
            | Event::Remove
            | Event::Wake
            | Event::Tick => true,
        }
    }

    fn stops(&self) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| !epoch.runs())
    }

    fn happen(&mut self, event: &Event) -> Checked {
        match event.clone() {
            Event::Type(Type::Terminating(uid)) => {
                let before = self.machine.state();
                let runs_on_it = self.epoch.as_ref().is_some_and(|epoch| {
                    epoch.runs() && epoch.basis == [Basis::from(&served(uid))]
                });
                self.feed(LifecycleInput::Verdict(Type::Terminating(uid).verdict()))?;
                must(!runs_on_it || self.machine.state() == before, "P6: terminating is not gone")
            }
            Event::Type(of) => self.feed(LifecycleInput::Verdict(of.verdict())),
            Event::Allowed(allowed) => self.feed(LifecycleInput::Allowed(allowed)),
            Event::LeaseLost => self.feed(LifecycleInput::LeaseLost),
            Event::Running => self.feed(LifecycleInput::Running),
            Event::Returned(end) => {
                let ran_on = self.epoch.as_ref().is_some_and(Epoch::runs);
                self.feed(LifecycleInput::Returned(end))?;
                must(!ran_on || self.stops(), "a run that has returned is drained")
            }
            Event::Ended => {
                self.feed(LifecycleInput::Ended)?;
                self.feed(LifecycleInput::Wake)
            }
            Event::Replaced(policy, of) => {
                self.feed(LifecycleInput::Ended)?;
                self.renew(policy, of)?;
                self.feed(LifecycleInput::Wake)
            }
            Event::Renewed(policy, of) => self.renew(policy, of),
            Event::Supersede => self.feed(LifecycleInput::Supersede),
            Event::Overdue => self.feed(LifecycleInput::Overdue),
            Event::Remove => self.feed(LifecycleInput::Remove),
            Event::Wake => self.feed(LifecycleInput::Wake),
            Event::Tick => {
                self.now += TICK;
                match self.wake.take_if(|at| *at <= self.now) {
                    Some(_) => self.feed(LifecycleInput::Wake),
                    None => Ok(()),
                }
            }
        }
    }

    fn renew(&mut self, policy: RestartPolicy, of: Type) -> Checked {
        self.machine.renew(policy);
        (self.failures, self.restarts, self.rest) = (0, 0, None);
        (self.source_done, self.retired) = (false, false);
        self.feed(LifecycleInput::Verdict(of.verdict()))
    }

    fn feed(&mut self, input: LifecycleInput) -> Checked {
        let actions = self.machine.step(input.clone(), self.now, 0.0);
        // A loss that is seen after the end of a source is one of the condition: nothing failed.
        if let (LifecycleInput::Running, Some(epoch)) = (&input, &mut self.epoch)
            && epoch.runs()
        {
            epoch.is_running = true;
        }
        let decides = !matches!(input, LifecycleInput::Returned(_) | LifecycleInput::Ended);
        let is_unmet = !matches!(self.machine.verdict, Verdict::Met(_));
        if self.source_done && decides && is_unmet && self.epoch.is_none() && !self.machine.removed
        {
            (self.source_done, self.restarts, self.rest) = (false, 0, None);
        }
        for action in actions {
            match action {
                LifecycleAction::Start => self.started()?,
                LifecycleAction::Stop(reason) => self.stopped(reason, &input)?,
                LifecycleAction::Drain => self.drained(&input)?,
                LifecycleAction::Done(reason) => self.done(&reason, &input)?,
                LifecycleAction::WakeAt(at) => {
                    must(at > self.now, "a timer is set for later")?;
                    self.wake = Some(at);
                }
                LifecycleAction::Forget => {
                    must(self.epoch.is_none(), "P2: a live epoch is not forgotten")?;
                    must(self.machine.removed, "only what was removed is forgotten")?;
                    self.forgotten = true;
                }
            }
        }
        self.check()
    }

    fn started(&mut self) -> Checked {
        must(self.epoch.is_none(), "P1: one epoch at a time")?;
        must(!self.forgotten && !self.machine.removed, "what is removed does not start")?;
        must(self.machine.allowed, "nothing starts before its group is open")?;
        must(self.rest.is_none_or(|until| until <= self.now), "the back-off is over")?;
        must(!self.retired, "its policy forbids a restart")?;
        let Verdict::Met(basis) = &self.machine.verdict else {
            return Err("nothing starts without a condition that is met");
        };
        self.source_done = false;
        self.epoch = Some(Epoch {
            basis: basis.clone(),
            since: self.now,
            is_running: false,
            signalled: None,
            returned: None,
        });
        Ok(())
    }

    fn stopped(&mut self, reason: StopReason, input: &LifecycleInput) -> Checked {
        let Some(epoch) = &mut self.epoch else { return Err("a stop has an epoch") };
        must(epoch.runs(), "a run is signalled to stop once, and not after its end")?;
        must(
            match reason {
                StopReason::TypeGone => match &self.machine.verdict {
                    Verdict::Met(basis) => *basis != epoch.basis,
                    Verdict::Unmet(_) => true,
                    Verdict::Unknown(_) => false,
                },
                StopReason::Superseded => matches!(input, LifecycleInput::Supersede),
                StopReason::Cancelled => self.machine.removed || !self.machine.allowed,
                StopReason::LeaseLost => matches!(input, LifecycleInput::LeaseLost),
            },
            "P5: a stop has a proof, and names it",
        )?;
        epoch.signalled = Some(reason);
        if self.now - epoch.since >= BACKOFF.healthy {
            (self.failures, self.restarts) = (0, 0);
        }
        Ok(())
    }

    fn drained(&mut self, input: &LifecycleInput) -> Checked {
        let LifecycleInput::Returned(end) = input else { return Err("what runs is not drained") };
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| epoch.runs()) else {
            return Err("a run ends once");
        };
        epoch.returned = Some(match end {
            RunEnd::Completed | RunEnd::SourceDone => DoneReason::Completed,
            RunEnd::Failed(error) => DoneReason::Failed(error.clone()),
            RunEnd::Panicked(error) => DoneReason::Panicked(error.clone()),
            RunEnd::Aborted => DoneReason::Cancelled,
        });
        let has_run = epoch.is_running && self.now - epoch.since >= BACKOFF.first;
        self.source_done = *end == RunEnd::SourceDone && has_run;
        let failed = matches!(end, RunEnd::Failed(_) | RunEnd::Panicked(_));
        let restarts = match self.machine.policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => failed || *end == RunEnd::SourceDone,
            RestartPolicy::Never => *end == RunEnd::SourceDone,
        };
        if restarts {
            if self.now - epoch.since >= BACKOFF.healthy {
                (self.failures, self.restarts) = (0, 0);
            }
            self.failures = if failed { self.failures + 1 } else { 0 };
            self.restarts += 1;
            let waits = [BACKOFF.first, BACKOFF.longest];
            let wait = waits.get(self.restarts as usize - 1).unwrap_or(&BACKOFF.longest);
            self.rest = Some(self.now + *wait);
        } else {
            self.retired = true;
        }
        Ok(())
    }

    fn done(&mut self, reason: &DoneReason, input: &LifecycleInput) -> Checked {
        must(matches!(input, LifecycleInput::Ended), "P2: done means that nothing is left")?;
        let Some(epoch) = self.epoch.take() else { return Err("P2: each epoch is done once") };
        let expected = match (epoch.signalled, epoch.returned) {
            (Some(signalled), _) => DoneReason::from(signalled),
            (None, Some(returned)) => returned,
            (None, None) => return Err("P2: what runs is not done"),
        };
        must(*reason == expected, "done has the right reason")
    }

    /// Checks the invariants that hold between any two inputs.
    fn check(&self) -> Checked {
        must(self.machine.live() == self.epoch.is_some(), "the machine knows its epoch")?;
        let cause =
            self.epoch.as_ref().and_then(|epoch| match (epoch.signalled, &epoch.returned) {
                (Some(signalled), _) => Some(StopCause::Signalled(signalled)),
                (None, Some(returned)) => Some(StopCause::Returned(returned.clone())),
                (None, None) => None,
            });
        must(self.machine.stopping() == cause.as_ref(), "the state is stopping, with the cause")?;
        let stopping = self.machine.state() == ControllerState::Stopping;
        must(stopping == cause.is_some(), "a returned or signalled epoch is stopping")?;
        must(!self.machine.stuck() || stopping, "only a stopping epoch is stuck")?;
        must(self.machine.failures() == self.failures, "failures in a row are counted")?;
        let Some(epoch) = self.epoch.as_ref().filter(|epoch| epoch.runs()) else {
            return Ok(());
        };
        must(self.machine.allowed && !self.machine.removed, "what may not run is being stopped")?;
        must(
            match &self.machine.verdict {
                Verdict::Met(basis) => *basis == epoch.basis,
                Verdict::Unmet(_) => false,
                Verdict::Unknown(_) => true,
            },
            "P8: what runs rests on what its condition says now",
        )
    }

    /// Checks convergence: without disturbances, where stopping runs end, starting runs start up
    /// and timers fire, the machine comes to rest in the one state that the last verdict and the
    /// last orders determine.
    fn converges(&self) -> Checked {
        let mut model = self.clone();
        let ran_on = self.epoch.as_ref().filter(|epoch| epoch.runs());
        for _ in 0..PATIENCE {
            if model.machine.stopping().is_some() {
                model.happen(&Event::Ended)?;
            } else if model.machine.state() == ControllerState::Starting {
                model.feed(LifecycleInput::Running)?;
            } else if let Some(at) = model.wake.take() {
                model.now = model.now.max(at);
                model.feed(LifecycleInput::Wake)?;
            }
        }
        let rests = model.machine.state();
        let basis = model.epoch.as_ref().map(|epoch| &epoch.basis);
        if model.machine.removed {
            return must(model.forgotten && model.epoch.is_none(), "P4: removed is forgotten");
        }
        must(model.wake.is_none(), "P4: timers stop firing")?;
        if !model.machine.allowed {
            let quiet = matches!(rests, ControllerState::Waiting | ControllerState::Stopped);
            return must(quiet, "P4: it is at rest if it may not run");
        }
        match &model.machine.verdict {
            _ if model.retired => must(rests == ControllerState::Stopped, "P4: by its policy"),
            Verdict::Met(met) => must(
                rests == ControllerState::Running && basis == Some(met),
                "P4: a condition that is met ends in a run on it",
            ),
            Verdict::Unmet(_) => {
                must(rests == ControllerState::Waiting, "P4: proof of absence ends in waiting")
            }
            // An unknown verdict neither starts nor stops an epoch.
            Verdict::Unknown(_) => match ran_on {
                Some(epoch) => must(
                    rests == ControllerState::Running && basis == Some(&epoch.basis),
                    "P5: a running epoch continues",
                ),
                None => must(rests == ControllerState::Waiting, "P5: without an epoch it waits"),
            },
        }
    }

    /// Value that is equal for states that behave alike from here on.
    fn fingerprint(&self) -> impl Eq + std::hash::Hash + use<> {
        let left = |until: Option<Instant>| {
            until.map_or(0, |until| until.saturating_duration_since(self.now).as_secs())
        };
        let verdict = match &self.machine.verdict {
            Verdict::Met(basis) => (0, basis.clone()),
            Verdict::Unmet(_) => (1, Vec::new()),
            Verdict::Unknown(_) => (2, Vec::new()),
        };
        let epoch = self.epoch.as_ref().map(|epoch| {
            let healthy = (self.now - epoch.since).min(BACKOFF.healthy);
            // The length of a run matters only until it stops.
            let age = if epoch.runs() { healthy } else { Duration::ZERO };
            (epoch.basis.clone(), epoch.signalled, epoch.returned.clone(), age)
        });
        let clocks =
            (left(self.machine.not_before), left(self.rest), self.wake.map(|_| left(self.wake)));
        let machine = &self.machine;
        let orders = (machine.allowed, machine.removed, machine.policy as u8, self.retired);
        let rests = (self.restarts.min(FAILURES_MAX), self.source_done);
        let failures = (self.failures.min(FAILURES_MAX), rests);
        let state = (machine.state(), machine.stuck(), self.forgotten);
        (state, verdict, epoch, clocks, orders, failures)
    }
}

#[test]
fn every_life_keeps_the_promises_and_comes_to_rest() {
    let events = events();
    let (mut known, mut queue) = (HashSet::new(), VecDeque::new());
    // Predecessor and event by which each state was first reached.
    let mut origins: Vec<Option<(usize, usize)>> = Vec::new();
    let (mut transitions, mut deepest) = (0_u64, 0);
    let now = Instant::now();
    for policy in POLICIES {
        let model = Model::new(policy, now);
        known.insert(model.fingerprint());
        queue.push_back((model, origins.len(), 0));
        origins.push(None);
    }
    let story = |origins: &[Option<(usize, usize)>], mut at: usize| {
        let mut story = Vec::new();
        while let Some((before, event)) = origins[at] {
            story.push(events[event].clone());
            at = before;
        }
        story.reverse();
        story
    };

    while let Some((model, at, depth)) = queue.pop_front() {
        deepest = deepest.max(depth);
        if let Err(promise) = model.converges() {
            panic!("{promise}, after {:?}, from {model:?}", story(&origins, at));
        }
        // The owner has removed the machine.
        if model.forgotten {
            continue;
        }
        for (index, event) in events.iter().enumerate() {
            if !model.possible(event) {
                continue;
            }
            let mut next = model.clone();
            transitions += 1;
            if let Err(promise) = next.happen(event) {
                panic!("{promise}, after {:?} and {event:?}: {next:?}", story(&origins, at));
            }
            if known.insert(next.fingerprint()) {
                queue.push_back((next, origins.len(), depth + 1));
                origins.push(Some((at, index)));
            }
        }
    }

    eprintln!(
        "lifecycle: {} states, {transitions} transitions, every state within {deepest} events",
        known.len()
    );
    assert!(known.len() > 1000, "the search has met next to nothing: {}", known.len());
}
