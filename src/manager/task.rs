//! Task that owns the state of every runnable: its event loop lists everything that can happen.

mod condition_watch;
mod election_state;
mod entry;
mod event;
mod last_epoch_numbers;
mod live_epoch;
mod parts;
mod pending_replacement;
mod phase;
mod publisher;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{broadcast, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, time::DelayQueue};
use tracing::warn;

use self::{
    election_state::ElectionState,
    entry::RunnableEntry,
    event::{EntryKey, Id, ManagerEvent, next_command_or_change},
    last_epoch_numbers::LastEpochNumbers,
    parts::Parts,
    phase::{ManagerPhase, PhaseAction},
    publisher::Publisher,
};
use super::{
    AddError, ControllerName, ControllerState, Election, ManagerError, ManagerOptions, Snapshot,
    StopReason, Transition,
    command::ManagerCommand,
    election::{ElectionChange, term::Term},
    runnable_spec::RunnableSpec,
};

/// Largest number of events before a snapshot is published. Bounds the delay of the first change of
/// a burst, and the transitions of one batch, so that they fit into the channel of receivers.
const BATCH: usize = 128;

pub(super) struct ManagerTask {
    options: ManagerOptions,
    commands: mpsc::Receiver<ManagerCommand>,
    entries: BTreeMap<Id, RunnableEntry>,
    names: HashMap<ControllerName, Id>,
    parts: Parts,
    /// True if a change is taken before a command when both are ready. Alternates.
    watches_first: bool,
    /// Entries that may have changed since the last snapshot.
    dirty: Vec<Id>,
}

impl ManagerTask {
    pub(super) fn new(
        options: ManagerOptions,
        commands: mpsc::Receiver<ManagerCommand>,
        snapshot: watch::Sender<Arc<Snapshot>>,
        transitions: broadcast::Sender<Transition>,
        election: Option<Election>,
    ) -> Self {
        let publisher =
            Publisher { snapshot, transitions, removed: Vec::new(), messages: Vec::new() };
        let parts = Parts {
            metrics: options.metrics.clone(),
            publisher,
            phase: ManagerPhase::opening(0),
            election: ElectionState::new(election),
            failure: None,
            runs: JoinSet::new(),
            prepares: JoinSet::new(),
            watches: FuturesUnordered::new(),
            timers: DelayQueue::new(),
            last_epoch_numbers: LastEpochNumbers::default(),
            last_serial: 0,
        };
        Self {
            parts,
            options,
            commands,
            entries: BTreeMap::new(),
            names: HashMap::new(),
            watches_first: false,
            dirty: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), ManagerError> {
        let mut deadline: BoxFuture<'static, ()> = std::future::pending().boxed();
        let mut closing = false;
        self.advance();
        while !self.parts.phase.is_closed() {
            self.publish();
            let mut event = Some(self.next_event(&stop, &mut deadline).await);
            let mut handled = 0;
            while let Some(next) = event {
                self.handle(next);
                handled += 1;
                if !closing && self.parts.phase.is_closing() {
                    closing = true;
                    if let Some(timeout) = self.options.graceful_shutdown_timeout {
                        deadline = tokio::time::sleep(timeout).boxed();
                    }
                }
                self.advance();
                if handled == BATCH || self.parts.phase.is_closed() {
                    break;
                }
                // Events that are ready now belong to the same batch.
                event = self.next_event(&stop, &mut deadline).now_or_never();
            }
        }
        self.publish();
        // Runs that are abandoned must not write when another replica leads, nor after the end of
        // the commands has answered a removal.
        self.end_epochs();
        self.commands.close();
        self.parts.runs.abort_all();
        self.parts.prepares.shutdown().await;
        self.parts.election.ended().await;
        for entry in self.entries.values_mut() {
            entry.condition.end(&mut self.parts);
            self.parts.metrics.removed(&entry.key.name);
        }
        self.parts.publisher.snapshot.send_replace(Arc::default());
        self.parts.failure.take().map_or(Ok(()), Err)
    }

    /// Waits for the next event. Cancel safe.
    async fn next_event(
        &mut self,
        stop: &CancellationToken,
        deadline: &mut BoxFuture<'static, ()>,
    ) -> ManagerEvent {
        let parts = &mut self.parts;
        let opens_at = parts.phase.opens_at();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !parts.phase.is_closing() => return ManagerEvent::Stop,
                () = &mut *deadline => return ManagerEvent::Deadline,
                () = sleep_until(opens_at.unwrap_or_else(Instant::now)), if opens_at.is_some() => {
                    return ManagerEvent::GroupLate;
                }
                change = parts.election.changed() => return ManagerEvent::Election(change),
                Some(ended) = parts.runs.join_next() => {
                    // `run::drive` catches every panic, and only `run` aborts, after its loop.
                    let (id, end) = ended.expect("a run is driven to its end");
                    return ManagerEvent::Ended(id, end);
                }
                Some(prepared) = parts.prepares.join_next() => {
                    let prepared = prepared.expect("panics are caught within");
                    if let Some(prepared) = prepared {
                        return ManagerEvent::Prepared(prepared);
                    }
                }
                Some(timer) = parts.timers.next(), if !parts.timers.is_empty() => {
                    let (id, timer, _counted) = timer.into_inner();
                    return ManagerEvent::Timer(id, timer);
                }
                // Polled last, since either may be ready at every poll.
                event = next_command_or_change(&mut self.commands, &mut parts.watches, self.watches_first) => {
                    self.watches_first = matches!(event, ManagerEvent::Command(_));
                    return event;
                }
            }
        }
    }

    fn handle(&mut self, event: ManagerEvent) {
        match event {
            ManagerEvent::Command(command) => self.on_command(command),
            ManagerEvent::Verdict(id, serial, readiness) => {
                self.update(id, |entry, parts| entry.on_verdict(serial, readiness, parts));
            }
            ManagerEvent::Reported(id, epoch, report) => {
                self.update(id, |entry, parts| entry.on_reported(epoch, report, parts));
            }
            ManagerEvent::Returned(id, epoch, end) => {
                self.update_at_end(id, |entry, parts| entry.on_returned(epoch, end, parts));
            }
            ManagerEvent::Ended(id, end) => {
                self.update_at_end(id, |entry, parts| entry.on_ended(end, parts));
            }
            ManagerEvent::Prepared(prepared) => {
                self.update(prepared.0, |entry, parts| entry.on_prepared(prepared, parts));
            }
            ManagerEvent::Timer(id, timer) => {
                self.update(id, |entry, parts| entry.on_timer(timer, parts));
            }
            ManagerEvent::Election(change) => self.on_election(change),
            ManagerEvent::GroupLate => self.open_next(),
            ManagerEvent::Stop => self.parts.close(),
            ManagerEvent::Deadline => self.abandon(),
        }
    }

    fn on_command(&mut self, command: ManagerCommand) {
        match command {
            ManagerCommand::Add(.., reply)
            | ManagerCommand::Replace(.., reply)
            | ManagerCommand::Restart(.., reply)
                if self.parts.phase.is_closing() =>
            {
                self.parts.publisher.answer(reply, Err(AddError::Stopping));
            }
            ManagerCommand::Add(name, spec, reply) => {
                let added = self.add(name, spec);
                self.parts.publisher.answer(reply, added);
            }
            ManagerCommand::Replace(name, spec, installed, reply) => match self.names.get(&name) {
                Some(id) => self.update(*id, |entry, parts| {
                    let replaced = entry.replace(spec, installed, parts);
                    parts.publisher.answer(reply, replaced);
                }),
                None => self.parts.publisher.answer(reply, Err(AddError::NotThere(name))),
            },
            ManagerCommand::Restart(name, reply) => match self.names.get(&name) {
                Some(id) => self.update(*id, |entry, parts| entry.restart(reply, parts)),
                None => self.parts.publisher.answer(reply, Err(AddError::NotThere(name))),
            },
            ManagerCommand::Find(name, reply) => {
                let entry = self.names.get(&name).and_then(|id| self.entries.get(id));
                let found = entry.map(|entry| entry.spec.runnable.clone());
                reply.send(found).unwrap_or_default();
            }
            ManagerCommand::Remove(name, reply) => match self.names.get(&name) {
                Some(id) => self.update(*id, |entry, parts| {
                    entry.removers.push(reply);
                    entry.remove(parts);
                }),
                None => self.parts.publisher.resolve(reply),
            },
        }
    }

    pub(super) fn add(&mut self, name: ControllerName, spec: RunnableSpec) -> Result<(), AddError> {
        spec.check_name(&name)?;
        if self.names.contains_key(&name) {
            return Err(AddError::AlreadyThere(name));
        }
        spec.check_condition(&name)?;
        let id = self.parts.serial();
        self.names.insert(name.clone(), id);
        let backoff = self.options.restart_backoff.clone();
        let entry = RunnableEntry::new(EntryKey { id, name }, spec, backoff, &mut self.parts);
        self.entries.insert(id, entry);
        self.dirty.push(id);
        Ok(())
    }

    /// Lets an entry act, unless it is removed already. Removes it if it is over then.
    fn update(&mut self, id: Id, act: impl FnOnce(&mut RunnableEntry, &mut Parts)) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        act(entry, &mut self.parts);
        self.dirty.push(id);
        if entry.is_over
            && let Some(entry) = self.entries.remove(&id)
        {
            self.names.remove(&entry.key.name);
            entry.removed(&mut self.parts);
        }
    }

    /// Lets each entry with such a specification act.
    fn update_each(
        &mut self,
        is_meant: impl Fn(&RunnableSpec) -> bool,
        mut act: impl FnMut(&mut RunnableEntry, &mut Parts),
    ) {
        let meant = self.entries.values().filter(|entry| is_meant(&entry.spec));
        let ids: Vec<_> = meant.map(|entry| entry.key.id).collect();
        for id in ids {
            self.update(id, &mut act);
        }
    }

    /// Opens or closes as many groups as possible now.
    fn advance(&mut self) {
        let timeout = self.options.group_start_timeout;
        loop {
            let entries = self.entries.values();
            let states = entries.map(|entry| (entry.spec.group, entry.lifecycle.state()));
            match self.parts.phase.advance(timeout, states) {
                Some(PhaseAction::Open(group)) => {
                    self.update_each(|spec| spec.group == group, RunnableEntry::allow);
                }
                Some(PhaseAction::Campaign) => self.parts.election.campaign(),
                Some(PhaseAction::Close(groups)) => {
                    self.update_each(|spec| groups.contains(&spec.group), RunnableEntry::remove);
                }
                Some(PhaseAction::Release) => self.parts.election.release(),
                None => return,
            }
        }
    }

    /// Logs the runnables of the group that are still starting, and opens the next group.
    fn open_next(&mut self) {
        let late = self.parts.phase.open_next();
        let timeout = self.options.group_start_timeout;
        self.update_each(
            |spec| Some(spec.group) == late,
            |entry, _| {
                if entry.lifecycle.state() == ControllerState::Starting {
                    entry.live.iter_mut().for_each(|live| live.late = timeout);
                    warn!(
                        controller = %entry.key.name,
                        epoch = entry.epoch_number,
                        runnable_group = ?entry.spec.group,
                        "runnable has not reported running in time, later groups start without it"
                    );
                }
            },
        );
    }

    fn on_election(&mut self, change: ElectionChange) {
        // A term may have begun and ended between two changes.
        self.set_term(None);
        match change {
            ElectionChange::Term(next) if next.is_some() && !self.parts.phase.is_closing() => {
                self.set_term(next);
            }
            ElectionChange::Term(_) => {}
            ElectionChange::Failed(error) => {
                self.parts.fail(ManagerError::ElectionFailed(error));
            }
        }
    }

    /// Lets an entry act on the end of its run. Ends the term first that the run has lost: the election
    /// ends it on a thread of its own, and the run may see that before this task. Nothing may start in
    /// that term.
    fn update_at_end(&mut self, id: Id, act: impl FnOnce(&mut RunnableEntry, &mut Parts)) {
        if self.entries.get(&id).is_some_and(RunnableEntry::has_lost_lease) {
            self.set_term(None);
        }
        self.update(id, act);
    }

    fn set_term(&mut self, next: Option<Arc<Term>>) {
        let ElectionState::Campaigning(_, term) = &mut self.parts.election else { return };
        let ends = std::mem::replace(term, next.clone()).is_some();
        if self.parts.phase.is_closing() {
            // The lease is not taken again.
            self.parts.election.withdraw();
        }
        self.update_each(RunnableSpec::needs_leadership, |entry, parts| {
            entry.on_term(ends, next.as_ref(), parts);
        });
    }

    /// Ends the shutdown when its timeout expires: records the late runnables as the error, unless
    /// nothing was to be waited for, and abandons them.
    fn abandon(&mut self) {
        self.parts.phase = ManagerPhase::CLOSED;
        if self.options.graceful_shutdown_timeout != Some(Duration::ZERO) {
            let late = self.entries.values().filter(|entry| entry.lifecycle.live());
            let names = late.map(|entry| entry.key.name.clone()).collect();
            let before = self.parts.failure.take().map(Box::new);
            self.parts.failure = Some(ManagerError::Late { names, before });
        }
    }

    /// Publishes all changes since the last call as one snapshot, and then the messages about them.
    fn publish(&mut self) {
        let mut changed = Vec::new();
        for id in self.dirty.drain(..) {
            let entry = self.entries.get_mut(&id);
            changed.extend(entry.and_then(|entry| entry.changed_status(&self.parts)));
        }
        self.parts.publisher.publish(changed);
    }

    /// Stops and closes every epoch that is left.
    fn end_epochs(&self) {
        for live in self.entries.values().filter_map(|entry| entry.live.as_ref()) {
            live.epoch.stop(StopReason::Cancelled);
            live.epoch.close();
        }
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
