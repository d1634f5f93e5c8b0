//! Task that owns the state of every runnable: its event loop lists everything that can happen.

mod condition_watch;
mod conditions;
mod effect;
mod election_state;
mod entry;
mod event;
mod last_epoch_numbers;
mod phase;
mod replacement;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, time::DelayQueue};
use tracing::warn;

use self::{
    election_state::ElectionState,
    entry::RunnableEntry,
    event::{
        EntryTimer, Id, ManagerEvent, PreparationResult, Timers, Watches, next_command_or_change,
    },
    last_epoch_numbers::LastEpochNumbers,
    phase::ManagerPhase,
};
use super::{
    AddError, ControllerName, ControllerState, Election, Epoch, FailurePolicy, ManagerError,
    ManagerMetrics, ManagerOptions, Report, Snapshot, StopReason, Transition, TransitionKind,
    command::ManagerCommand,
    end::RunEnd,
    lifecycle::{Lifecycle, LifecycleInput},
    runnable_spec::RunnableSpec,
};

/// Largest number of events before a snapshot is published. Bounds the delay of the first change of
/// a burst, and the transitions of one batch, so that they fit into the channel of receivers.
const BATCH: usize = 128;

pub(super) struct ManagerTask {
    options: ManagerOptions,
    metrics: ManagerMetrics,
    commands: mpsc::Receiver<ManagerCommand>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    transitions: broadcast::Sender<Transition>,
    entries: BTreeMap<Id, RunnableEntry>,
    names: HashMap<ControllerName, Id>,
    /// Last epoch numbers of removed names.
    last_epoch_numbers: LastEpochNumbers,
    next: u64,
    /// Runs under way; at most one for each entry.
    runs: JoinSet<(Id, RunEnd)>,
    prepares: JoinSet<Option<PreparationResult>>,
    watches: Watches,
    /// True if a change is taken before a command when both are ready. Alternates.
    watches_first: bool,
    timers: Timers,
    phase: ManagerPhase,
    election: ElectionState,
    failure: Option<ManagerError>,
    dirty: Vec<Id>,
    /// Names removed since the last snapshot.
    gone: Vec<ControllerName>,
    outgoing: Vec<QueuedMessage>,
}

/// Message that leaves the manager after the snapshot that shows its cause, so that its receiver
/// never reads an older snapshot.
enum QueuedMessage {
    Transition(Transition),
    Answer(oneshot::Sender<Result<(), AddError>>, Result<(), AddError>),
    Resolve(oneshot::Sender<()>),
    /// Dropped, which its receiver takes for an end without an answer.
    Discard(oneshot::Sender<()>),
}

impl ManagerTask {
    pub(super) fn new(
        options: ManagerOptions,
        metrics: ManagerMetrics,
        commands: mpsc::Receiver<ManagerCommand>,
        snapshot: watch::Sender<Arc<Snapshot>>,
        transitions: broadcast::Sender<Transition>,
        election: Option<Election>,
    ) -> Self {
        Self {
            options,
            metrics,
            commands,
            snapshot,
            transitions,
            entries: BTreeMap::new(),
            names: HashMap::new(),
            last_epoch_numbers: LastEpochNumbers::default(),
            next: 0,
            runs: JoinSet::new(),
            prepares: JoinSet::new(),
            watches: FuturesUnordered::new(),
            watches_first: false,
            timers: DelayQueue::new(),
            phase: ManagerPhase::opening(0),
            election: ElectionState::new(election),
            failure: None,
            dirty: Vec::new(),
            gone: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), ManagerError> {
        let mut deadline: BoxFuture<'static, ()> = std::future::pending().boxed();
        let mut closing = false;
        self.advance();
        while !self.closed() {
            self.publish();
            let mut event = Some(self.next_event(&stop, closing, &mut deadline).await);
            let mut handled = 0;
            while let Some(next) = event {
                self.handle(next);
                handled += 1;
                if !closing && self.is_closing() {
                    closing = true;
                    if let Some(timeout) = self.options.graceful_shutdown_timeout {
                        deadline = tokio::time::sleep(timeout).boxed();
                    }
                }
                self.advance();
                if handled == BATCH || self.closed() {
                    break;
                }
                // Events that are ready now belong to the same batch.
                event = self.next_event(&stop, closing, &mut deadline).now_or_never();
            }
        }
        self.publish();
        // Runs that are abandoned must not write when another replica leads, nor after the end of
        // the commands has answered a removal.
        self.end_epochs();
        self.commands.close();
        self.runs.abort_all();
        self.prepares.shutdown().await;
        self.election.ended().await;
        for entry in self.entries.values_mut() {
            conditions::end(&mut entry.condition, &mut self.timers);
            self.metrics.removed(&entry.name);
        }
        self.snapshot.send_replace(Arc::default());
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits for the next event. Cancel safe.
    async fn next_event(
        &mut self,
        stop: &CancellationToken,
        closing: bool,
        deadline: &mut BoxFuture<'static, ()>,
    ) -> ManagerEvent {
        let opens_at = self.opens_at();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !closing => return ManagerEvent::Stop,
                () = &mut *deadline => return ManagerEvent::Deadline,
                () = sleep_until(opens_at.unwrap_or_else(Instant::now)), if opens_at.is_some() => {
                    return ManagerEvent::GroupLate;
                }
                change = self.election.changed() => return ManagerEvent::Election(change),
                Some(ended) = self.runs.join_next() => {
                    // `run::drive` catches every panic, and only `run` aborts, after its loop.
                    let (id, end) = ended.expect("a run is driven to its end");
                    return ManagerEvent::Ended(id, end);
                }
                Some(prepared) = self.prepares.join_next() => {
                    let prepared = prepared.expect("panics are caught within");
                    if let Some(prepared) = prepared {
                        return ManagerEvent::Prepared(prepared);
                    }
                }
                Some(timer) = self.timers.next(), if !self.timers.is_empty() => {
                    let (id, timer, _counted) = timer.into_inner();
                    return ManagerEvent::Timer(id, timer);
                }
                // Polled last, since either may be ready at every poll.
                event = next_command_or_change(&mut self.commands, &mut self.watches, self.watches_first) => {
                    self.watches_first = matches!(event, ManagerEvent::Command(_));
                    return event;
                }
            }
        }
    }

    fn handle(&mut self, event: ManagerEvent) {
        match event {
            ManagerEvent::Command(command) => self.on_command(command),
            ManagerEvent::Verdict(id, serial, readiness) => self.on_verdict(id, serial, readiness),
            ManagerEvent::Reported(id, epoch, report) => self.on_reported(id, epoch, report),
            ManagerEvent::Returned(id, epoch, end) => self.on_returned(id, epoch, end),
            ManagerEvent::Ended(id, end) => self.on_ended(id, end),
            ManagerEvent::Prepared(prepared) => self.on_prepared(prepared),
            ManagerEvent::Timer(id, timer) => self.on_timer(id, timer),
            ManagerEvent::Election(change) => self.on_election(change),
            ManagerEvent::GroupLate => self.open_next(),
            ManagerEvent::Stop => self.close(),
            ManagerEvent::Deadline => self.give_up(),
        }
    }

    fn on_command(&mut self, command: ManagerCommand) {
        match command {
            ManagerCommand::Add(name, spec, reply) => {
                let added = self.add(name, spec);
                self.outgoing.push(QueuedMessage::Answer(reply, added));
            }
            ManagerCommand::Replace(name, spec, installed, reply) => {
                let replaced = self.replace(&name, spec, installed);
                self.outgoing.push(QueuedMessage::Answer(reply, replaced));
            }
            ManagerCommand::Restart(name, reply) => self.restart(&name, reply),
            ManagerCommand::Find(name, reply) => {
                let entry = self.names.get(&name).and_then(|id| self.entries.get(id));
                let found = entry.map(|entry| entry.spec.runnable.clone());
                reply.send(found).unwrap_or_default();
            }
            ManagerCommand::Remove(name, reply) => match self.names.get(&name).copied() {
                Some(id) => {
                    let entry = self.entries.get_mut(&id).expect("a name leads to its entry");
                    entry.removers.push(reply);
                    self.drop_pending(id);
                    self.step(id, LifecycleInput::Remove);
                }
                None => self.outgoing.push(QueuedMessage::Resolve(reply)),
            },
        }
    }

    pub(super) fn add(&mut self, name: ControllerName, spec: RunnableSpec) -> Result<(), AddError> {
        if self.is_closing() {
            return Err(AddError::Stopping);
        }
        spec.check_name(&name)?;
        if self.names.contains_key(&name) {
            return Err(AddError::AlreadyThere(name));
        }
        spec.check_condition(&name)?;
        let (id, ready) = (self.serial(), spec.ready());
        let lifecycle = Lifecycle::new(spec.restart_policy(), self.options.restart_backoff.clone());
        let (condition, verdict) = self.subscribe(id, &name, ready, 0);
        let standby = self.stands_by(&spec);
        let allowed = self.allows(&spec);
        self.entries.insert(
            id,
            RunnableEntry {
                epoch_number: 0,
                name: name.clone(),
                spec,
                condition,
                lifecycle,
                epoch: None,
                pending: None,
                removers: Vec::new(),
                restarters: Vec::new(),
                last_done: None,
                returned: None,
                ended_by_itself: false,
                begun_at: None,
                late: None,
                stopped_at: None,
                wake: None,
                stop_timer: None,
                standby,
                status: None,
            },
        );
        self.names.insert(name.clone(), id);
        self.metrics.entered(&name, ControllerState::Waiting, ControllerState::Waiting);
        self.announce(&name, 0, TransitionKind::Entered(ControllerState::Waiting));
        self.step(id, LifecycleInput::Allowed(allowed));
        self.step(id, LifecycleInput::Verdict(verdict));
        Ok(())
    }

    fn on_reported(&mut self, id: Id, epoch: u64, mut report: watch::Receiver<Report>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.epoch.is_none() || entry.epoch_number != epoch {
            return;
        }
        let running = report.borrow_and_update().running;
        self.watch_report(id, epoch, report);
        self.dirty.push(id);
        let starting = |entry: &RunnableEntry| entry.lifecycle.state() == ControllerState::Starting;
        if running && self.entries.get(&id).is_some_and(starting) {
            self.step(id, LifecycleInput::Running);
        }
    }

    /// Records the end of the run; its tasks may continue until the grace is over.
    fn on_returned(&mut self, id: Id, epoch: u64, end: RunEnd) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.returned.is_some() || entry.epoch.is_none() || entry.epoch_number != epoch {
            return;
        }
        // The election ends its term on a thread of its own, and a run may see that before this task:
        // nothing may start in that term.
        let reason = entry.epoch.as_ref().and_then(|epoch| epoch.stop_reason());
        if reason == Some(StopReason::LeaseLost) && entry.lifecycle.stopping().is_none() {
            self.set_term(None);
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        // A failure of a run that is already stopping does not end the manager.
        let stopping = entry.lifecycle.stopping().is_some();
        entry.returned = Some(end.clone());
        entry.ended_by_itself = !stopping;
        if let RunEnd::Failed(error) | RunEnd::Panicked(error) = &end {
            let policy = entry.spec.options.on_failure;
            if policy == FailurePolicy::FailManager && self.failure.is_none() && !stopping {
                self.failure = Some(ManagerError::RunnableFailed {
                    name: entry.name.clone(),
                    error: error.clone(),
                });
            }
            self.metrics.failed(&entry.name);
            match stopping {
                true => warn!(controller = %entry.name, %error, "run failed while it was stopping"),
                false => warn!(controller = %entry.name, epoch, %error, "run failed"),
            }
        }
        self.step(id, LifecycleInput::Returned(end));
        if self.failure.is_some() {
            self.close();
        }
    }

    fn on_ended(&mut self, id: Id, end: RunEnd) {
        let Some(entry) = self.entries.get(&id) else { return };
        if let Some(error) = entry.returned.as_ref().and_then(|before| end.later_error(before)) {
            self.metrics.failed(&entry.name);
            let epoch = entry.epoch_number;
            warn!(controller = %entry.name, epoch, error, "run failed after it had reported its end");
            let policy = entry.spec.options.on_failure;
            let ends_manager = policy == FailurePolicy::FailManager && entry.ended_by_itself;
            if ends_manager && self.failure.is_none() {
                let (name, error) = (entry.name.clone(), error.to_owned());
                self.failure = Some(ManagerError::RunnableFailed { name, error });
                self.close();
            }
        }
        let Some(entry) = self.entries.get(&id) else { return };
        // The epoch may have ended by itself before its restart was requested, with a back-off.
        let restarts = !entry.restarters.is_empty();
        // The end may be polled before the return.
        self.on_returned(id, entry.epoch_number, end);
        self.step(id, LifecycleInput::Ended);
        let is_installed = self.install_if_due(id);
        if restarts && !self.is_closing() {
            self.start_again_if_stopped(id);
        } else if !is_installed && self.begins_again(id) {
            self.ask_again(id);
        }
        self.step(id, LifecycleInput::Wake);
    }

    fn on_timer(&mut self, id: Id, timer: EntryTimer) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match timer {
            EntryTimer::Wake => {
                entry.wake = None;
                // The verdict may have been published once, before a long back-off.
                if entry.lifecycle.state() == ControllerState::BackingOff {
                    self.ask_again(id);
                }
                self.step(id, LifecycleInput::Wake);
            }
            EntryTimer::Grace(epoch) => {
                entry.stop_timer = None;
                if entry.epoch_number == epoch && entry.lifecycle.stopping().is_some() {
                    self.end_grace(id);
                }
            }
            EntryTimer::Overdue(epoch) => {
                entry.stop_timer = None;
                if entry.epoch_number == epoch && entry.lifecycle.stopping().is_some() {
                    let late = entry.epoch.as_ref().map(Epoch::unfinished_work).unwrap_or_default();
                    warn!(controller = %entry.name, epoch, late, "the epoch does not end");
                    self.step(id, LifecycleInput::Overdue);
                }
            }
            EntryTimer::Ask(serial) => self.ask_after_panic(id, serial),
            EntryTimer::Retry(serial) => {
                if let Some(pending) =
                    entry.pending.as_mut().filter(|pending| pending.serial == serial)
                {
                    pending.retry = None;
                    let verdict = pending.verdict.clone();
                    self.judge_pending(id, verdict);
                }
            }
        }
    }

    /// Returns whether another epoch of the entry may begin.
    fn begins_again(&self, id: Id) -> bool {
        let waits = |entry: &RunnableEntry| {
            entry.removers.is_empty() && entry.lifecycle.state() == ControllerState::Waiting
        };
        !self.is_closing() && self.entries.get(&id).is_some_and(waits)
    }

    fn watch_report(&self, id: Id, epoch: u64, mut report: watch::Receiver<Report>) {
        // Ends with the epoch: its last clone drops the sender.
        self.watches.push(
            async move {
                report.changed().await.ok()?;
                Some(ManagerEvent::Reported(id, epoch, report))
            }
            .boxed(),
        );
    }

    fn watch_return(&self, id: Id, epoch: u64, mut end: watch::Receiver<Option<RunEnd>>) {
        // Ends with the epoch: its last clone drops the sender.
        self.watches.push(
            async move {
                let end = end.wait_for(Option::is_some).await.ok()?.clone()?;
                Some(ManagerEvent::Returned(id, epoch, end))
            }
            .boxed(),
        );
    }

    fn announce(&mut self, name: &ControllerName, epoch: u64, kind: TransitionKind) {
        let transition = Transition { name: name.clone(), epoch, kind };
        self.outgoing.push(QueuedMessage::Transition(transition));
    }

    /// Publishes all changes since the last call as one snapshot, and then sends the messages about
    /// them.
    fn publish(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let mut changed = Vec::new();
        for id in dirty {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let status = entry.describe();
            if entry.status.as_deref() != Some(&status) {
                let status = Arc::new(status);
                entry.status = Some(status.clone());
                changed.push(status);
            }
        }
        let gone = std::mem::take(&mut self.gone);
        if !changed.is_empty() || !gone.is_empty() {
            self.snapshot.send_modify(|snapshot| {
                // Copies the map if a reader holds the last snapshot.
                let snapshot = Arc::make_mut(snapshot);
                for name in &gone {
                    snapshot.remove(name);
                }
                changed.into_iter().for_each(|status| snapshot.insert(status));
            });
        }
        for message in self.outgoing.drain(..) {
            // A receiver that was dropped needs no message.
            match message {
                QueuedMessage::Transition(transition) => drop(self.transitions.send(transition)),
                QueuedMessage::Answer(reply, response) => drop(reply.send(response)),
                QueuedMessage::Resolve(reply) => reply.send(()).unwrap_or_default(),
                QueuedMessage::Discard(reply) => drop(reply),
            }
        }
    }

    /// Stops and closes every epoch that is left.
    fn end_epochs(&self) {
        for epoch in self.entries.values().filter_map(|entry| entry.epoch.as_ref()) {
            epoch.stop(StopReason::Cancelled);
            epoch.close();
        }
    }

    fn serial(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Stops and closes every epoch that is left when the shutdown timeout expires or the manager is
/// dropped, so that it can send no more requests.
impl Drop for ManagerTask {
    fn drop(&mut self) {
        self.end_epochs();
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
