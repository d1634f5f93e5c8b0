//! The one task that owns every runnable's state: the loop is the list of all that can happen.

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{broadcast, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, time::DelayQueue};
use tracing::{Instrument, debug, info, info_span, warn};

use super::{
    AddError, ControllerName, ControllerState, Done, DoneReason, Epoch, FailurePolicy,
    ManagerError, ManagerMetrics, ManagerOptions, Readiness, Report, RunResult, RunnableGroup,
    RunnableStatus, Snapshot, StopReason, Transition, TransitionKind, Verdict,
    entry::{Entry, Pending, Preparation, Spec},
    handle::Command,
    lifecycle::{Action, Input, Lifecycle, RunEnd},
    run::{self, Overrun},
};

/// Identifies an entry for ever, so that what belongs to a removed one never meets a new one of
/// the same name.
pub(super) type Id = u64;

/// Everything that can happen to a manager.
enum Event {
    Command(Command),
    Verdict(Id, u64, Readiness),
    Reported(Id, u64, watch::Receiver<Report>),
    Ended(Id, RunEnd),
    Prepared(Id, u64, RunResult),
    Timer(Id, Timer),
    Stop,
    Deadline,
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    Wake,
    Overdue(u64),
    Retry(u64),
}

/// How far the manager has come: groups are opened in order and closed in order.
enum Phase {
    /// `asked` once the groups of this step were told; those that come later are told as they come.
    Opening {
        step: usize,
        asked: bool,
    },
    Open,
    Closing {
        step: usize,
        asked: bool,
    },
}

const START_ORDER: [RunnableGroup; 6] = [
    RunnableGroup::HttpServers,
    RunnableGroup::Webhooks,
    RunnableGroup::Caches,
    RunnableGroup::Others,
    RunnableGroup::Warmup,
    RunnableGroup::LeaderElection,
];

/// Semantics: `engageStopProcedure` of controller-runtime (`pkg/manager/internal.go`).
const STOP_ORDER: [&[RunnableGroup]; 5] = [
    &[RunnableGroup::Others, RunnableGroup::Warmup],
    &[RunnableGroup::LeaderElection],
    &[RunnableGroup::Caches],
    &[RunnableGroup::Webhooks],
    &[RunnableGroup::HttpServers],
];

/// A replacement that cannot be prepared is tried again this often.
const PREPARE_RETRY: Duration = Duration::from_secs(5);

pub(super) struct Owner {
    options: ManagerOptions,
    metrics: ManagerMetrics,
    commands: mpsc::Receiver<Command>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    transitions: broadcast::Sender<Transition>,
    entries: BTreeMap<Id, Entry>,
    names: HashMap<ControllerName, Id>,
    /// Epochs are counted per name for as long as the process lives.
    epochs: HashMap<ControllerName, u64>,
    next: u64,
    /// The runs under way; one at most for each entry.
    runs: JoinSet<(Id, RunEnd)>,
    prepares: JoinSet<Option<(Id, u64, RunResult)>>,
    watches: FuturesUnordered<BoxFuture<'static, Option<Event>>>,
    timers: DelayQueue<(Id, Timer)>,
    phase: Phase,
    failure: Option<ManagerError>,
    dirty: Vec<Id>,
}

impl Owner {
    pub(super) fn new(
        options: ManagerOptions,
        metrics: ManagerMetrics,
        commands: mpsc::Receiver<Command>,
        snapshot: watch::Sender<Arc<Snapshot>>,
        transitions: broadcast::Sender<Transition>,
    ) -> Self {
        Self {
            options,
            metrics,
            commands,
            snapshot,
            transitions,
            entries: BTreeMap::new(),
            names: HashMap::new(),
            epochs: HashMap::new(),
            next: 0,
            runs: JoinSet::new(),
            prepares: JoinSet::new(),
            watches: FuturesUnordered::new(),
            timers: DelayQueue::new(),
            phase: Phase::Opening { step: 0, asked: false },
            failure: None,
            dirty: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), ManagerError> {
        let mut deadline: BoxFuture<'static, ()> = std::future::pending().boxed();
        let mut closing = false;
        self.advance();
        while !self.closed() {
            self.publish();
            let event = self.next_event(&stop, closing, &mut deadline).await;
            self.handle(event);
            if !closing && matches!(self.phase, Phase::Closing { .. }) {
                closing = true;
                if let Some(patience) = self.options.graceful_shutdown_timeout {
                    deadline = tokio::time::sleep(patience).boxed();
                }
            }
            self.advance();
        }
        self.commands.close();
        self.runs.abort_all();
        self.prepares.shutdown().await;
        for entry in self.entries.values() {
            entry.watching.cancel();
            self.metrics.removed(&entry.name);
        }
        self.snapshot.send_replace(Arc::default());
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits for one thing to happen. Cancel safe.
    async fn next_event(
        &mut self,
        stop: &CancellationToken,
        closing: bool,
        deadline: &mut BoxFuture<'static, ()>,
    ) -> Event {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !closing => return Event::Stop,
                () = &mut *deadline => return Event::Deadline,
                Some(ended) = self.runs.join_next() => {
                    // `run::drive` catches every panic and is aborted by nobody.
                    let (id, end) = ended.expect("a run is driven to its end");
                    return Event::Ended(id, end);
                }
                // The manager keeps a sender, so this yields for as long as it is polled. Whoever
                // asks for something waits for no stream of changes.
                Some(command) = self.commands.recv() => return Event::Command(command),
                Some(prepared) = self.prepares.join_next() => {
                    let prepared = prepared.expect("panics are caught within");
                    if let Some((id, serial, result)) = prepared {
                        return Event::Prepared(id, serial, result);
                    }
                }
                Some(timer) = self.timers.next(), if !self.timers.is_empty() => {
                    let (id, timer) = timer.into_inner();
                    return Event::Timer(id, timer);
                }
                // Last: a condition that changes all the time is always ready, and holds up nobody.
                Some(event) = self.watches.next(), if !self.watches.is_empty() => {
                    if let Some(event) = event {
                        return event;
                    }
                }
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Command(command) => self.on_command(command),
            Event::Verdict(id, serial, readiness) => self.on_verdict(id, serial, readiness),
            Event::Reported(id, epoch, report) => self.on_reported(id, epoch, report),
            Event::Ended(id, end) => self.on_ended(id, end),
            Event::Prepared(id, serial, result) => self.on_prepared(id, serial, result),
            Event::Timer(id, timer) => self.on_timer(id, timer),
            Event::Stop => self.close(),
            Event::Deadline => self.give_up(),
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Add(name, runnable, options, reply) => {
                // Nobody waits for an answer that was given up.
                drop(reply.send(self.add(name, Spec::new(runnable, options))));
            }
            Command::Replace(name, runnable, options, reply) => {
                drop(reply.send(self.replace(&name, Spec::new(runnable, options))));
            }
            Command::Remove(name, reply) => match self.names.get(&name).copied() {
                Some(id) => {
                    let entry = self.entries.get_mut(&id).expect("a name leads to its entry");
                    entry.removers.push(reply);
                    drop_pending(entry);
                    self.step(id, Input::Remove);
                }
                None => reply.send(()).unwrap_or_default(),
            },
        }
    }

    pub(super) fn add(&mut self, name: ControllerName, spec: Spec) -> Result<(), AddError> {
        if matches!(self.phase, Phase::Closing { .. }) {
            return Err(AddError::Stopping);
        }
        if self.names.contains_key(&name) {
            return Err(AddError::AlreadyThere(name));
        }
        let (id, serial) = (self.serial(), self.serial());
        let watching = CancellationToken::new();
        let lifecycle = Lifecycle::new(spec.options.restart, self.options.restart_backoff.clone());
        let mut readiness = spec.ready();
        let verdict = readiness.verdict();
        let status = RunnableStatus {
            name: name.clone(),
            group: spec.group,
            state: ControllerState::Waiting,
            reason: String::new(),
            message: String::new(),
            since: Timestamp::now(),
            epoch: 0,
            unmet: Vec::new(),
            report: Report::default(),
            last_done: None,
            pending: None,
            stuck: false,
            failures: 0,
        };
        let group = spec.group;
        self.watch(id, serial, readiness, &watching);
        self.entries.insert(
            id,
            Entry {
                epoch_number: self.epochs.get(&name).copied().unwrap_or(0),
                name: name.clone(),
                spec,
                serial,
                lifecycle,
                epoch: None,
                pending: None,
                removers: Vec::new(),
                watching,
                last_done: None,
                begun_at: None,
                stopped_at: None,
                wake: None,
                status: Arc::new(status),
            },
        );
        self.names.insert(name.clone(), id);
        self.metrics.entered(&name, ControllerState::Waiting, ControllerState::Waiting);
        self.announce(&name, 0, TransitionKind::Entered(ControllerState::Waiting));
        let allowed = self.is_open(group);
        self.step(id, Input::Allowed(allowed));
        self.step(id, Input::Verdict(verdict));
        Ok(())
    }

    fn replace(&mut self, name: &ControllerName, spec: Spec) -> Result<(), AddError> {
        if matches!(self.phase, Phase::Closing { .. }) {
            return Err(AddError::Stopping);
        }
        let id = *self.names.get(name).ok_or_else(|| AddError::NotThere(name.clone()))?;
        let serial = self.serial();
        let entry = self.entries.get_mut(&id).expect("a name leads to its entry");
        if !entry.removers.is_empty() {
            return Err(AddError::NotThere(name.clone()));
        }
        drop_pending(entry);
        if std::ptr::addr_eq(Arc::as_ptr(&entry.spec.runnable), Arc::as_ptr(&spec.runnable)) {
            self.dirty.push(id);
            return Ok(());
        }
        let watching = CancellationToken::new();
        let mut readiness = spec.ready();
        let verdict = readiness.verdict();
        entry.pending = Some(Pending {
            spec,
            serial,
            verdict: Verdict::Unknown(Vec::new()),
            why: String::new(),
            preparation: Preparation::None,
            watching: watching.clone(),
        });
        self.watch(id, serial, readiness, &watching);
        self.judge_pending(id, verdict);
        Ok(())
    }

    /// A replacement takes over when it can run and is prepared, or when nothing would run
    /// otherwise.
    fn judge_pending(&mut self, id: Id, verdict: Verdict) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(pending) = &mut entry.pending else { return };
        pending.verdict = verdict;
        self.dirty.push(id);
        if self.swap_if_due(id) {
            return;
        }
        let Some(pending) = self.entries.get_mut(&id).and_then(|entry| entry.pending.as_mut())
        else {
            return;
        };
        match &pending.verdict {
            Verdict::Met(_) if matches!(pending.preparation, Preparation::None) => {
                self.prepare(id);
            }
            Verdict::Met(_) => {}
            Verdict::Unmet(unmet) | Verdict::Unknown(unmet) => {
                let all: Vec<_> = unmet.iter().map(|part| part.message.as_str()).collect();
                pending.why = all.join("; ");
                // What was acquired for it would be held for nobody.
                pending.unprepare();
            }
        }
    }

    fn prepare(&mut self, id: Id) {
        let attempt = self.serial();
        let Some(pending) = self.entries.get_mut(&id).and_then(|entry| entry.pending.as_mut())
        else {
            return;
        };
        let given_up = CancellationToken::new();
        pending.why = "its caches are being filled".to_owned();
        pending.preparation = Preparation::Running(attempt, given_up.clone());
        let runnable = pending.spec.runnable.clone();
        self.prepares.spawn(async move {
            let prepare = AssertUnwindSafe(async { runnable.prepare().await });
            let result = tokio::select! {
                biased;
                () = given_up.cancelled() => return None,
                result = prepare.catch_unwind() => result,
            };
            let panicked = |panic: Box<_>| Err(run::message(&*panic).into());
            Some((id, attempt, result.unwrap_or_else(panicked)))
        });
    }

    fn on_prepared(&mut self, id: Id, attempt: u64, result: RunResult) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(pending) = &mut entry.pending else { return };
        if !matches!(pending.preparation, Preparation::Running(this, _) if this == attempt) {
            return;
        }
        self.dirty.push(id);
        match result {
            Ok(()) => {
                // Its condition holds: had it been lost, the preparation would have been given up.
                pending.preparation = Preparation::Done;
                self.step(id, Input::Supersede);
            }
            Err(error) => {
                pending.preparation = Preparation::None;
                pending.spec.unprepare();
                pending.why = format!("it cannot be prepared: {error}");
                let serial = pending.serial;
                self.timers.insert((id, Timer::Retry(serial)), PREPARE_RETRY);
            }
        }
    }

    /// Puts the waiting specification in place if that stops nothing that could run.
    fn swap_if_due(&mut self, id: Id) -> bool {
        let Some(entry) = self.entries.get(&id) else { return false };
        let Some(pending) = &entry.pending else { return false };
        if entry.lifecycle.live() {
            return false;
        }
        let can_run = |verdict: &Verdict| matches!(verdict, Verdict::Met(_));
        let old_rests = entry.lifecycle.state() == ControllerState::Stopped;
        let due = can_run(&pending.verdict) || old_rests || !can_run(entry.lifecycle.verdict());
        if due {
            self.swap(id);
        }
        due
    }

    /// Puts the waiting specification in place. Nothing of the entry is live.
    fn swap(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(mut pending) = entry.pending.take() else { return };
        if !matches!(pending.preparation, Preparation::Done) {
            pending.unprepare();
        }
        let before = entry.lifecycle.state();
        entry.watching.cancel();
        entry.watching = pending.watching;
        entry.serial = pending.serial;
        entry.lifecycle.renew(pending.spec.options.restart);
        entry.spec = pending.spec;
        let group = entry.spec.group;
        if before != ControllerState::Waiting {
            let (name, epoch) = (entry.name.clone(), entry.epoch_number);
            self.metrics.entered(&name, before, ControllerState::Waiting);
            self.announce(&name, epoch, TransitionKind::Entered(ControllerState::Waiting));
        }
        // It may be of another group than the one before.
        let allowed = self.is_open(group);
        self.step(id, Input::Allowed(allowed));
        self.step(id, Input::Verdict(pending.verdict));
        if let Some(entry) = self.entries.get(&id).filter(|entry| !entry.lifecycle.live()) {
            entry.spec.unprepare();
        }
    }

    fn on_verdict(&mut self, id: Id, serial: u64, mut readiness: Readiness) {
        let Some(entry) = self.entries.get(&id) else { return };
        let verdict = readiness.verdict();
        if entry.serial == serial {
            let watching = entry.watching.clone();
            self.watch(id, serial, readiness, &watching);
            self.step(id, Input::Verdict(verdict));
            self.swap_if_due(id);
        } else if let Some(pending) = entry.pending.as_ref().filter(|new| new.serial == serial) {
            let watching = pending.watching.clone();
            self.watch(id, serial, readiness, &watching);
            self.judge_pending(id, verdict);
        }
    }

    fn on_reported(&mut self, id: Id, epoch: u64, mut report: watch::Receiver<Report>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.epoch.is_none() || entry.epoch_number != epoch {
            return;
        }
        let running = report.borrow_and_update().running;
        self.watch_report(id, epoch, report);
        self.dirty.push(id);
        let starting = |entry: &Entry| entry.lifecycle.state() == ControllerState::Starting;
        if running && self.entries.get(&id).is_some_and(starting) {
            self.step(id, Input::Running);
        }
    }

    fn on_ended(&mut self, id: Id, end: RunEnd) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let RunEnd::Failed(error) | RunEnd::Panicked(error) = &end {
            let policy = entry.spec.options.on_failure;
            // Whoever fails while it is being stopped has nothing more to end.
            let stopping = entry.lifecycle.stopping().is_some();
            if policy == FailurePolicy::FailManager && self.failure.is_none() && !stopping {
                self.failure = Some(ManagerError::RunnableFailed {
                    name: entry.name.clone(),
                    error: error.clone(),
                });
            }
            self.metrics.failed(&entry.name);
            if stopping {
                warn!(controller = %entry.name, %error, "run failed while it was stopping");
            }
        }
        self.step(id, Input::Ended(end));
        self.swap_if_due(id);
        self.step(id, Input::Wake);
        if self.failure.is_some() {
            self.close();
        }
    }

    fn on_timer(&mut self, id: Id, timer: Timer) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match timer {
            Timer::Wake => {
                entry.wake = None;
                self.step(id, Input::Wake);
            }
            Timer::Overdue(epoch) => {
                if entry.epoch_number == epoch && entry.lifecycle.stopping().is_some() {
                    warn!(controller = %entry.name, epoch, "the run does not end");
                    self.step(id, Input::Overdue);
                }
            }
            Timer::Retry(serial) => {
                if let Some(pending) =
                    entry.pending.as_ref().filter(|pending| pending.serial == serial)
                {
                    let verdict = pending.verdict.clone();
                    self.judge_pending(id, verdict);
                }
            }
        }
    }

    /// Feeds one input to an entry's machine and does what it says.
    fn step(&mut self, id: Id, input: Input) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let now = Instant::now();
        let before = entry.lifecycle.state();
        let actions = entry.lifecycle.step(input, now, fastrand::f64());
        let after = entry.lifecycle.state();
        self.dirty.push(id);
        if before == ControllerState::Starting && after == ControllerState::Running {
            self.started(id, now);
        }
        for action in actions {
            match action {
                Action::Start => self.start(id, now),
                Action::Stop(reason) => self.stop(id, reason, now),
                Action::Done(reason) => self.done(id, reason, now),
                Action::WakeAt(at) => self.wake_at(id, at),
                Action::Forget => return self.forget(id),
            }
        }
        let Some(entry) = self.entries.get(&id) else { return };
        let state = entry.lifecycle.state();
        if before != state {
            let (name, epoch) = (entry.name.clone(), entry.epoch_number);
            self.metrics.entered(&name, before, state);
            self.announce(&name, epoch, TransitionKind::Entered(state));
            debug!(controller = %name, epoch, state = state.word(), "entered");
        }
        // Whoever never says so runs from the start.
        if state == ControllerState::Starting && !entry.spec.reports_running {
            self.step(id, Input::Running);
        }
    }

    /// One timer for each, however often the condition flaps meanwhile.
    fn wake_at(&mut self, id: Id, at: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match &entry.wake {
            Some(wake) => self.timers.reset_at(wake, at),
            None => entry.wake = Some(self.timers.insert_at((id, Timer::Wake), at)),
        }
    }

    fn start(&mut self, id: Id, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let count = self.epochs.entry(entry.name.clone()).or_default();
        *count += 1;
        entry.epoch_number = *count;
        entry.begun_at = Some(now);
        let epoch = Epoch::new(entry.name.clone(), *count, entry.spec.options.grace);
        self.metrics.epoch(&entry.name, *count);
        info!(controller = %entry.name, epoch = *count, "starting");
        let span = info_span!("runnable", controller = %entry.name, epoch = *count);
        let (number, report) = (*count, epoch.subscribe());
        entry.epoch = Some(epoch.clone());
        // Building the future is the runnable's code too: its panic must not be ours.
        let (runnable, inside) = (entry.spec.runnable.clone(), epoch.clone());
        let run = async move { runnable.start(inside).await };
        let overrun = match entry.spec.keeps_grace {
            true => Overrun::WaitedFor,
            false => Overrun::Dropped,
        };
        let driven = run::drive(epoch, run.boxed(), overrun);
        self.runs.spawn(async move { (id, driven.await) }.instrument(span));
        self.watch_report(id, number, report);
    }

    fn started(&mut self, id: Id, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(begun_at) = entry.begun_at.take() {
            self.metrics.started(&entry.name, (now - begun_at).as_secs_f64());
        }
        info!(controller = %entry.name, epoch = entry.epoch_number, "running");
    }

    fn stop(&mut self, id: Id, reason: StopReason, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.stopped_at = Some(now);
        if let Some(epoch) = &entry.epoch {
            epoch.stop(reason);
        }
        let overdue = run::overdue_after(entry.spec.options.grace);
        self.timers.insert((id, Timer::Overdue(entry.epoch_number)), overdue);
        info!(controller = %entry.name, epoch = entry.epoch_number, ?reason, "stopping");
    }

    fn done(&mut self, id: Id, reason: DoneReason, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let unknown_requests = entry.epoch.take().map_or(0, |epoch| epoch.fence().unknown());
        entry.begun_at = None;
        if let Some(stopped_at) = entry.stopped_at.take() {
            self.metrics.stopped(&entry.name, (now - stopped_at).as_secs_f64());
        }
        let (name, epoch) = (entry.name.clone(), entry.epoch_number);
        match reason.error() {
            Some(error) => warn!(controller = %name, epoch, error, "run failed"),
            None => info!(controller = %name, epoch, reason = reason.word(), "done"),
        }
        if unknown_requests > 0 {
            warn!(controller = %name, epoch, unknown_requests, "the outcome of requests is unknown");
        }
        let at = Timestamp::now();
        entry.last_done = Some(Done { epoch, reason: reason.clone(), at, unknown_requests });
        self.announce(&name, epoch, TransitionKind::Done(reason));
    }

    fn forget(&mut self, id: Id) {
        let Some(entry) = self.entries.remove(&id) else { return };
        entry.watching.cancel();
        if let Some(wake) = &entry.wake {
            self.timers.try_remove(wake);
        }
        self.names.remove(&entry.name);
        self.metrics.removed(&entry.name);
        self.announce(&entry.name, entry.epoch_number, TransitionKind::Removed);
        self.snapshot.send_if_modified(|snapshot| Arc::make_mut(snapshot).remove(&entry.name));
        for remover in entry.removers {
            // Whoever asked may have gone.
            remover.send(()).unwrap_or_default();
        }
    }

    /// Opens the next groups, or closes them, as far as can be gone now.
    fn advance(&mut self) {
        loop {
            match self.phase {
                Phase::Opening { step, asked } => {
                    let Some(group) = START_ORDER.get(step) else {
                        self.phase = Phase::Open;
                        return;
                    };
                    if !asked {
                        self.phase = Phase::Opening { step, asked: true };
                        for id in self.ids_of(&[*group]) {
                            self.step(id, Input::Allowed(true));
                        }
                    }
                    // Whoever waits for a condition holds nobody up; whoever starts, only where
                    // the later groups rely on it.
                    let starting = *group <= RunnableGroup::Caches
                        && self.entries.values().any(|entry| {
                            entry.spec.group == *group
                                && entry.lifecycle.state() == ControllerState::Starting
                        });
                    if starting {
                        return;
                    }
                    self.phase = Phase::Opening { step: step + 1, asked: false };
                }
                Phase::Open => return,
                Phase::Closing { step, asked } => {
                    let Some(groups) = STOP_ORDER.get(step) else { return };
                    if !asked {
                        self.phase = Phase::Closing { step, asked: true };
                        for id in self.ids_of(groups) {
                            if let Some(entry) = self.entries.get_mut(&id) {
                                drop_pending(entry);
                            }
                            self.step(id, Input::Remove);
                        }
                    }
                    if self.entries.values().any(|entry| groups.contains(&entry.spec.group)) {
                        return;
                    }
                    self.phase = Phase::Closing { step: step + 1, asked: false };
                }
            }
        }
    }

    fn is_open(&self, group: RunnableGroup) -> bool {
        match self.phase {
            Phase::Opening { step, .. } => {
                START_ORDER.iter().take(step + 1).any(|open| *open == group)
            }
            Phase::Open => true,
            Phase::Closing { .. } => false,
        }
    }

    fn close(&mut self) {
        if !matches!(self.phase, Phase::Closing { .. }) {
            info!("stopping every runnable");
            self.phase = Phase::Closing { step: 0, asked: false };
        }
    }

    fn closed(&self) -> bool {
        matches!(self.phase, Phase::Closing { step, .. } if step >= STOP_ORDER.len())
    }

    /// The patience is over: name the late and leave them behind.
    fn give_up(&mut self) {
        let late: Vec<_> = self
            .entries
            .values()
            .filter(|entry| entry.lifecycle.live())
            .map(|entry| entry.name.clone())
            .collect();
        let before = self.failure.take().map(Box::new);
        self.failure = Some(ManagerError::Late { names: late, before });
        self.phase = Phase::Closing { step: STOP_ORDER.len(), asked: true };
    }

    fn ids_of(&self, groups: &[RunnableGroup]) -> Vec<Id> {
        self.entries
            .iter()
            .filter(|(_, entry)| groups.contains(&entry.spec.group))
            .map(|(id, _)| *id)
            .collect()
    }

    fn watch(&self, id: Id, serial: u64, mut readiness: Readiness, watching: &CancellationToken) {
        let ended = watching.clone().cancelled_owned();
        self.watches.push(
            async move {
                tokio::select! {
                    biased;
                    () = ended => return None,
                    () = readiness.changed() => {}
                }
                Some(Event::Verdict(id, serial, readiness))
            }
            .boxed(),
        );
    }

    fn watch_report(&self, id: Id, epoch: u64, mut report: watch::Receiver<Report>) {
        // Ends with the epoch, whose last clone takes the sender along.
        self.watches.push(
            async move { report.changed().await.ok().map(|()| Event::Reported(id, epoch, report)) }
                .boxed(),
        );
    }

    fn announce(&self, name: &ControllerName, epoch: u64, kind: TransitionKind) {
        // Nobody has to listen.
        drop(self.transitions.send(Transition { name: name.clone(), epoch, kind }));
    }

    /// Publishes what has changed, once for everything that was handled since.
    fn publish(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let mut changed = Vec::new();
        for id in dirty {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let status = entry.describe();
            if status != *entry.status || entry.status.reason.is_empty() {
                entry.status = Arc::new(status);
                changed.push(entry.status.clone());
            }
        }
        if !changed.is_empty() {
            self.snapshot.send_modify(|snapshot| {
                // Readers keep what they have; of ours, what has changed is copied.
                let snapshot = Arc::make_mut(snapshot);
                changed.into_iter().for_each(|status| snapshot.insert(status));
            });
        }
    }

    fn serial(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Whatever is left behind, when the patience is over or the manager is dropped, may not send.
impl Drop for Owner {
    fn drop(&mut self) {
        for epoch in self.entries.values().filter_map(|entry| entry.epoch.as_ref()) {
            epoch.stop(StopReason::Cancelled);
            epoch.fence().close();
        }
    }
}

fn drop_pending(entry: &mut Entry) {
    if let Some(mut pending) = entry.pending.take() {
        pending.watching.cancel();
        pending.unprepare();
    }
}
