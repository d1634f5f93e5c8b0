//! Model test: every order of events that can reach the manager's task, up to a depth.
//!
//! The handlers of the task are synchronous, and only it changes its state, so a schedule can
//! decide nothing but the order of events: exploring these orders explores the schedules. Each
//! order is played from the start on its own task, whose runs, watches and preparations are never
//! polled; the model sends the events in their place. States with equal fingerprints behave alike
//! from there on, so the search does not visit one twice.

#![expect(clippy::print_stderr, reason = "prints figures of the search and the steps to a failure")]

use std::{
    collections::{HashSet, VecDeque},
    fmt::Debug,
    sync::Mutex,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{event::EntryTimer, pending_replacement::Preparation, *};
use crate::{
    kind::{Scope, TypeIdentity},
    manager::{
        Basis, ConditionalRunnable, Epoch, Readiness, Report, RunResult, Runnable, RunnableOptions,
        TransitionKind, Verdict,
        end::RunEnd,
        lifecycle::{LifecycleInput, StopCause},
    },
};

/// Upper bound on the events, beyond the pending timers, after which an undisturbed task is at
/// rest.
const PATIENCE: usize = 12;
/// Longest sequence of events.
const DEPTH: usize = 12;
const NAME: &str = "widgets";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PlainVerdict {
    A,
    B,
    Unmet,
    Unknown,
}

impl PlainVerdict {
    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Met(basis) => match basis[0].identity.uid.as_deref() {
                Some("a") => Self::A,
                Some(_) | None => Self::B,
            },
            Verdict::Unmet(_) => Self::Unmet,
            Verdict::Unknown(_) => Self::Unknown,
        }
    }

    fn verdict(self) -> Verdict {
        let met = |uid: &str| {
            let identity = TypeIdentity {
                group: "example.com".into(),
                version: "v1".into(),
                plural: "widgets".into(),
                scope: Scope::Namespaced,
                uid: Some(uid.into()),
            };
            let (kind, list_kind) = ("Widget".into(), "WidgetList".into());
            Verdict::Met(vec![Basis { identity, kind, list_kind }])
        };
        match self {
            Self::A => met("a"),
            Self::B => met("b"),
            Self::Unmet => Verdict::Unmet(Vec::new()),
            Self::Unknown => Verdict::Unknown(Vec::new()),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(PlainVerdict),
    Replace(PlainVerdict),
    Remove,
    /// The condition of the specification in place changes.
    Verdict(PlainVerdict),
    /// The condition of the specification that waits to take over changes.
    PendingVerdict(PlainVerdict),
    Running,
    /// A report of an earlier epoch arrives late.
    LateReport,
    Returned(RunEnd),
    /// The epoch ends.
    Ended,
    Prepared(bool),
    /// The result of a cancelled preparation arrives late.
    LatePrepared,
    /// The next timer fires.
    Timer,
    Stop,
}

/// Specification that does nothing by itself.
struct Probe {
    verdict: Mutex<PlainVerdict>,
    /// Calls of `prepare`, `start` and `unprepare`, in order.
    log: Mutex<Vec<&'static str>>,
}

impl Runnable for Probe {
    fn start(&self, _epoch: Epoch) -> BoxFuture<'static, RunResult> {
        std::future::pending().boxed()
    }

    fn reports_running(&self) -> bool {
        true
    }

    fn keeps_grace(&self) -> bool {
        true
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        std::future::pending().boxed()
    }

    fn unprepare(&self) {
        self.log.lock().unwrap().push("unprepare");
    }
}

impl ConditionalRunnable for Probe {
    fn ready(&self) -> Readiness {
        readiness(*self.verdict.lock().unwrap())
    }
}

fn readiness(word: PlainVerdict) -> Readiness {
    Readiness::published(watch::channel(word.verdict()).1)
}

/// Task under test, and the transitions that its users have seen.
struct Model {
    task: ManagerTask,
    transitions: broadcast::Receiver<Transition>,
    _commands: mpsc::Sender<ManagerCommand>,
    probes: Vec<Arc<Probe>>,
    live: Option<u64>,
    epochs: u64,
    /// Last epoch whose run has returned by itself.
    returned: Option<u64>,
    /// True if an epoch has begun since the name was added.
    begun: bool,
    attempts: HashSet<u64>,
}

impl Model {
    fn new() -> Self {
        let (sender, commands) = mpsc::channel(1);
        let (snapshot, seen) = (watch::Sender::default(), broadcast::Sender::new(64));
        let transitions = seen.subscribe();
        let restart_backoff = crate::manager::RestartBackoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(1),
            healthy: Duration::from_secs(600),
            flaps: 0,
            flap_interval: Duration::ZERO,
        };
        let options = ManagerOptions { restart_backoff, ..ManagerOptions::default() };
        let mut task = ManagerTask::new(options, commands, snapshot, seen, None);
        task.advance();
        Self {
            task,
            transitions,
            _commands: sender,
            probes: Vec::new(),
            live: None,
            epochs: 0,
            returned: None,
            begun: false,
            attempts: HashSet::new(),
        }
    }

    fn entry(&self) -> Option<(Id, &RunnableEntry)> {
        self.task.entries.iter().next().map(|(id, entry)| (*id, entry))
    }

    fn attempt(&self) -> Option<u64> {
        match self.entry()?.1.pending.as_ref()?.preparation {
            Preparation::Running(attempt, _) => Some(attempt),
            Preparation::None | Preparation::Failed(..) | Preparation::Done => None,
        }
    }

    /// Steps that are possible now.
    fn steps(&self) -> Vec<Step> {
        let closing = matches!(self.task.parts.phase, ManagerPhase::Closing { .. });
        let mut steps = Vec::new();
        let Some((_, entry)) = self.entry() else {
            if !closing {
                steps.extend([PlainVerdict::A, PlainVerdict::Unmet].map(Step::Add));
            }
            return steps;
        };
        let words = [PlainVerdict::A, PlainVerdict::B, PlainVerdict::Unmet, PlainVerdict::Unknown];
        steps.extend(words.map(Step::Verdict));
        steps.push(Step::Remove);
        if !closing {
            steps.extend(
                [PlainVerdict::A, PlainVerdict::Unmet, PlainVerdict::Unknown].map(Step::Replace),
            );
            steps.push(Step::Stop);
        }
        if entry.pending.is_some() {
            steps.extend(
                [PlainVerdict::A, PlainVerdict::Unmet, PlainVerdict::Unknown]
                    .map(Step::PendingVerdict),
            );
        }
        if entry.live.is_some() {
            let boom = || "boom".to_owned();
            steps.push(Step::Running);
            steps.push(Step::Returned(RunEnd::Completed));
            steps.push(Step::Returned(RunEnd::Failed(boom())));
            steps.push(Step::Ended);
        }
        if entry.epoch_number > 0 {
            steps.push(Step::LateReport);
        }
        if self.attempt().is_some() {
            steps.extend([true, false].map(Step::Prepared));
        }
        if !self.attempts.is_empty() {
            steps.push(Step::LatePrepared);
        }
        if !self.task.parts.timers.is_empty() {
            steps.push(Step::Timer);
        }
        steps
    }

    async fn play(&mut self, step: &Step) {
        match step {
            Step::Add(word) => {
                let spec = self.spec(*word);
                self.task.add(NAME.into(), spec).unwrap();
            }
            Step::Replace(word) => {
                let spec = self.spec(*word);
                let (installed, reply) = (oneshot::channel().0, oneshot::channel().0);
                let command = ManagerCommand::Replace(NAME.into(), spec, installed, reply);
                self.task.handle(ManagerEvent::Command(command));
            }
            Step::Remove => {
                let (reply, _) = oneshot::channel();
                self.task.handle(ManagerEvent::Command(ManagerCommand::Remove(NAME.into(), reply)));
            }
            Step::Verdict(word) => {
                let (id, entry) = self.entry().unwrap();
                let serial = entry.condition.serial;
                *self.probe(&entry.spec).verdict.lock().unwrap() = *word;
                self.task.handle(ManagerEvent::Verdict(id, serial, readiness(*word)));
            }
            Step::PendingVerdict(word) => {
                let (id, entry) = self.entry().unwrap();
                let pending = entry.pending.as_ref().unwrap();
                let serial = pending.condition.serial;
                *self.probe(&pending.spec).verdict.lock().unwrap() = *word;
                self.task.handle(ManagerEvent::Verdict(id, serial, readiness(*word)));
            }
            Step::Running => self.report(0),
            Step::LateReport => self.report(1),
            Step::Returned(end) => {
                let (id, entry) = self.entry().unwrap();
                let epoch = entry.epoch_number;
                self.task.handle(ManagerEvent::Returned(id, epoch, end.clone()));
                self.returned = Some(epoch);
                let state = self.entry().unwrap().1.lifecycle.state();
                assert_eq!(state, ControllerState::Stopping, "a run that returned is not running");
            }
            // Possibly before the task has handled the return of the run.
            Step::Ended => {
                let (id, _) = self.entry().unwrap();
                self.task.handle(ManagerEvent::Ended(id, RunEnd::Panicked("boom".to_owned())));
            }
            Step::Prepared(well) => {
                let (id, attempt) = (self.entry().unwrap().0, self.attempt().unwrap());
                let result = if *well { Ok(()) } else { Err("boom".into()) };
                self.task.handle(ManagerEvent::Prepared((id, attempt, result)));
            }
            Step::LatePrepared => {
                let id = self.entry().unwrap().0;
                let now = self.attempt();
                let late = self.attempts.iter().filter(|attempt| Some(**attempt) != now).max();
                if let Some(&late) = late {
                    self.task.handle(ManagerEvent::Prepared((id, late, Ok(()))));
                }
            }
            Step::Timer => {
                let key = self.task.parts.timers.peek().unwrap();
                let at = self.task.parts.timers.deadline(&key);
                // The timer wheel has a resolution of one millisecond.
                let ahead = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                tokio::time::advance(ahead).await;
                let timer =
                    self.task.parts.timers.next().now_or_never().flatten().expect("it is due");
                let (id, timer, _counted) = timer.into_inner();
                self.task.handle(ManagerEvent::Timer(id, timer));
            }
            Step::Stop => self.task.handle(ManagerEvent::Stop),
        }
        self.task.advance();
        self.task.publish();
        self.judge();
    }

    fn spec(&mut self, first: PlainVerdict) -> RunnableSpec {
        let probe = Arc::new(Probe { verdict: Mutex::new(first), log: Mutex::default() });
        self.probes.push(probe.clone());
        RunnableSpec::new(probe, RunnableOptions::default())
    }

    fn probe(&self, spec: &RunnableSpec) -> &Probe {
        let runnable = Arc::as_ptr(&spec.runnable);
        let is_same = |probe: &&Arc<Probe>| std::ptr::addr_eq(Arc::as_ptr(probe), runnable);
        self.probes.iter().find(is_same).unwrap()
    }

    /// Reports that the epoch `back` before the current one is running.
    fn report(&mut self, back: u64) {
        let (id, entry) = self.entry().unwrap();
        let report = Report { running: true, ..Report::default() };
        let epoch = entry.epoch_number - back;
        self.task.handle(ManagerEvent::Reported(id, epoch, watch::channel(report).1));
    }

    /// Checks that users see one epoch after the other, each done exactly once.
    fn judge(&mut self) {
        while let Ok(transition) = self.transitions.try_recv() {
            let epoch = transition.epoch;
            match transition.kind {
                TransitionKind::Entered(ControllerState::Starting) => {
                    assert_eq!(self.live, None, "P1: an epoch began before the last was done");
                    assert_eq!(epoch, self.epochs + 1, "epochs are counted");
                    (self.live, self.epochs, self.begun) = (Some(epoch), epoch, true);
                    let (_, entry) = self.entry().unwrap();
                    assert!(matches!(entry.lifecycle.verdict(), Verdict::Met(_)));
                    self.probe(&entry.spec).log.lock().unwrap().push("start");
                }
                TransitionKind::Entered(ControllerState::Running | ControllerState::Stopping) => {
                    assert_eq!(self.live, Some(epoch))
                }
                TransitionKind::Entered(
                    ControllerState::Waiting
                    | ControllerState::BackingOff
                    | ControllerState::Stopped,
                ) => assert_eq!(self.live, None, "P2: at rest before done"),
                TransitionKind::Done(_) => {
                    assert_eq!(self.live.take(), Some(epoch), "P2: done once");
                }
                TransitionKind::Removed => {
                    assert_eq!(self.live, None, "P2: removed before done");
                    self.begun = false;
                }
            }
        }
        let attempt = self.attempt();
        let Some((_, entry)) = self.entry() else { return };
        assert_eq!(entry.live.is_some(), self.live.is_some());
        assert_eq!(entry.lifecycle.live(), self.live.is_some());
        let status = self.task.parts.publisher.snapshot.borrow()[&entry.key.name].clone();
        assert_eq!(status.state, entry.lifecycle.state(), "P10: the status has the state");
        let stopping = status.state == ControllerState::Stopping;
        assert!(self.live.is_none() || self.returned != self.live || stopping, "shown as stopping");
        assert_eq!(status.epoch, if self.begun { self.epochs } else { 0 });
        assert_eq!(status.pending.is_some(), entry.pending.is_some());
        if let Some(attempt) = attempt
            && self.attempts.insert(attempt)
        {
            self.probes.last().unwrap().log.lock().unwrap().push("prepare");
        }
    }

    /// Plays only the steps that were requested, until the task is at rest.
    async fn rest(&mut self) {
        for _ in 0..PATIENCE + self.task.parts.timers.len() {
            let Some((_, entry)) = self.entry() else { break };
            let step = match entry.lifecycle.state() {
                ControllerState::Stopping => Step::Ended,
                ControllerState::Starting => Step::Running,
                ControllerState::Waiting
                | ControllerState::Running
                | ControllerState::BackingOff
                | ControllerState::Stopped => {
                    if self.attempt().is_some() {
                        Step::Prepared(true)
                    } else if self.task.parts.timers.is_empty() {
                        break;
                    } else {
                        Step::Timer
                    }
                }
            };
            self.play(&step).await;
        }
    }

    fn rested(&self, removed: bool) {
        for probe in &self.probes {
            let log = probe.log.lock().unwrap();
            assert_ne!(log.last(), Some(&"prepare"), "P3: a preparation leaked: {log:?}");
        }
        let Some((_, entry)) = self.entry() else {
            assert!(self.task.names.is_empty() && self.live.is_none());
            return;
        };
        assert!(!removed, "P4: what was removed is forgotten");
        assert!(!matches!(self.task.parts.phase, ManagerPhase::Closing { .. }), "P4: it closes");
        assert!(self.task.parts.timers.is_empty(), "P4: timers stop firing");
        let (state, verdict) = (entry.lifecycle.state(), entry.lifecycle.verdict());
        match PlainVerdict::of(verdict) {
            PlainVerdict::A | PlainVerdict::B => assert_eq!(state, ControllerState::Running, "P4"),
            PlainVerdict::Unmet => assert_eq!(state, ControllerState::Waiting, "P4"),
            PlainVerdict::Unknown => {
                assert!(matches!(state, ControllerState::Waiting | ControllerState::Running));
            }
        }
        if let Some(pending) = &entry.pending {
            assert!(!matches!(pending.verdict, Verdict::Met(_)), "P4: a met one takes over");
            let is_unknown = matches!(entry.lifecycle.verdict(), Verdict::Unknown(_));
            assert!(entry.lifecycle.live() || is_unknown, "P4: it waits for a run or a verdict");
        }
    }

    /// Text that is equal for states that behave alike from here on.
    fn fingerprint(&mut self) -> String {
        // Only their order matters: a timer step moves the clock to the next one.
        let timers = self.timers();
        let phase = match self.task.parts.phase {
            ManagerPhase::Opening { step, is_entered, .. } => (0, step, is_entered),
            ManagerPhase::Open => (1, 0, true),
            ManagerPhase::Closing { step, is_entered } => (2, step, is_entered),
        };
        let late = self.attempts.len() > usize::from(self.attempt().is_some());
        let entry = self.entry().map(|(_, entry)| {
            let machine = &entry.lifecycle;
            let basis =
                machine.basis().map(|basis| PlainVerdict::of(&Verdict::Met(basis.to_vec())));
            let pending = entry.pending.as_ref().map(|pending| {
                let preparation = match pending.preparation {
                    Preparation::None | Preparation::Failed(..) => 0,
                    Preparation::Running(..) => 1,
                    Preparation::Done => 2,
                };
                (PlainVerdict::of(&pending.verdict), preparation)
            });
            let orders =
                (machine.allowed(), !entry.removers.is_empty(), machine.backs_off(Instant::now()));
            let signalled = machine.stopping().map(|cause| match cause {
                StopCause::Signalled(reason) => Some(*reason),
                // Every end restarts alike, since the policy is `Always`.
                StopCause::Returned(_) => None,
            });
            let returned = entry.live.as_ref().is_some_and(|live| live.returned.is_some());
            let stopping = (signalled, machine.stuck(), returned);
            (machine.state(), basis, PlainVerdict::of(machine.verdict()), pending, orders, stopping)
        });
        format!("{phase:?} {entry:?} {timers:?} {late} {}", self.epochs.min(2))
    }

    /// Timers that still have an effect, in their order.
    fn timers(&mut self) -> Vec<&'static str> {
        let mut all = Vec::new();
        while let Some(key) = self.task.parts.timers.peek() {
            let timer = self.task.parts.timers.remove(&key);
            all.push((timer.deadline(), timer.into_inner()));
        }
        let mut words = Vec::new();
        for (at, (id, timer, counted)) in all {
            let key = self.task.parts.timers.insert_at((id, timer, counted), at);
            let entry = self.task.entries.get_mut(&id).expect("no timer outlives its entry");
            match timer {
                EntryTimer::Wake => {
                    entry.wake = Some(key);
                    words.push("wake");
                }
                EntryTimer::Grace => {
                    let live = entry.live.as_mut().expect("no such timer outlives its epoch");
                    live.stop_timer = Some(key);
                    words.push("grace");
                }
                EntryTimer::Overdue => {
                    let live = entry.live.as_mut().expect("no such timer outlives its epoch");
                    live.stop_timer = Some(key);
                    words.push("overdue");
                }
                EntryTimer::Ask(_) => panic!("no condition panics"),
                EntryTimer::Retry => {
                    let pending = entry.pending.as_mut().map(|pending| &mut pending.preparation);
                    let Some(Preparation::Failed(_, retry)) = pending else {
                        panic!("no such timer outlives the failure")
                    };
                    *retry = key;
                    words.push("retry");
                }
            }
        }
        // A second timer of the same kind has no effect.
        words.dedup();
        words
    }
}

async fn replay(path: &[Step]) -> Model {
    let mut model = Model::new();
    for step in path {
        model.play(step).await;
    }
    model
}

#[tokio::test(start_paused = true)]
async fn every_order_of_events_keeps_the_promises_and_comes_to_rest() {
    let (mut known, mut queue) = (HashSet::new(), VecDeque::from([Vec::new()]));
    let mut transitions = 0_u64;

    while let Some(path) = queue.pop_front() {
        let steps = replay(&path).await.steps();
        for step in steps {
            transitions += 1;
            let mut longer: Vec<Step> = path.clone();
            longer.push(step);
            let printer = PrintOnPanic(&longer);
            let mut model = replay(&longer).await;
            if !known.insert(model.fingerprint()) {
                printer.disarm();
                continue;
            }
            let removed = model.entry().is_some_and(|(_, entry)| !entry.removers.is_empty());
            model.rest().await;
            model.rested(removed);
            printer.disarm();
            if longer.len() < DEPTH {
                queue.push_back(longer);
            }
        }
    }

    eprintln!(
        "task: {} states, {transitions} transitions, every order of up to {DEPTH} events",
        known.len()
    );
}

/// Prints the sequence of steps when a check fails.
struct PrintOnPanic<'a>(&'a dyn Debug);

impl PrintOnPanic<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        eprintln!("after {:?}", self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_come_and_go_leave_nothing_and_no_epoch_number_is_used_twice() {
    let mut model = Model::new();
    let mut last = std::collections::HashMap::new();
    for number in 0..20_000 {
        // Each name is added twice.
        let name = ControllerName::from(format!("c{}", number % 10_000));
        let spec = model.spec(PlainVerdict::A);
        model.probes.clear();
        let task = &mut model.task;
        task.add(name.clone(), spec).unwrap();
        let (&id, entry) = task.entries.iter().next().unwrap();
        let epoch = entry.epoch_number;
        assert!(epoch > 0);
        assert!(last.insert(name.clone(), epoch).is_none_or(|before| epoch > before), "{name}");
        task.update(id, |entry, parts| entry.step(LifecycleInput::Remove, parts));
        task.handle(ManagerEvent::Ended(id, RunEnd::Completed));
        task.publish();
    }

    let task = &model.task;
    assert_eq!((task.entries.len(), task.names.len(), task.parts.timers.len()), (0, 0, 0));
    assert_eq!(task.parts.publisher.snapshot.borrow().len(), 0);
    assert!(task.parts.last_epoch_numbers.len() <= 1024);
}
