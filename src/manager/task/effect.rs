//! Effects: carries out the actions that an entry's state machine returns.

use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span, warn};

use super::{
    super::{
        ControllerState, Done, DoneReason, Epoch, StopReason, TransitionKind,
        election::term::Leadership,
        lifecycle::{LifecycleAction, LifecycleInput},
        run::{self, Overrun},
    },
    Id, ManagerTask, QueuedMessage, conditions,
    event::EntryTimer,
};

impl ManagerTask {
    /// Feeds one input to an entry's state machine and carries out its actions.
    pub(super) fn step(&mut self, id: Id, input: LifecycleInput) {
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
                LifecycleAction::Start => self.start(id, now),
                LifecycleAction::Stop(reason) => self.stop(id, reason, now),
                LifecycleAction::Drain => self.drain(id, now),
                LifecycleAction::Done(reason) => self.done(id, reason, now),
                LifecycleAction::WakeAt(at) => self.wake_at(id, at),
                LifecycleAction::Forget => return self.forget(id),
            }
        }
        let Some(entry) = self.entries.get(&id) else { return };
        let state = entry.lifecycle.state();
        let counts_as_running = !entry.spec.reports_running;
        if before != state {
            let (name, epoch) = (entry.name.clone(), entry.epoch_number);
            self.metrics.entered(&name, before, state);
            self.announce(&name, epoch, TransitionKind::Entered(state));
            debug!(controller = %name, epoch, state = state.word(), "state entered");
        }
        // Runnables that do not report running count as running from the start.
        if state == ControllerState::Starting && counts_as_running {
            self.step(id, LifecycleInput::Running);
        }
    }

    /// Sets the one wake timer of the entry, however often the condition flaps meanwhile.
    pub(super) fn wake_at(&mut self, id: Id, at: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match &entry.wake {
            Some(wake) => self.timers.reset_at(wake, at),
            None => {
                let counted = self.metrics.timer(&entry.name, EntryTimer::Wake.word());
                entry.wake = Some(self.timers.insert_at((id, EntryTimer::Wake, counted), at));
            }
        }
    }

    pub(super) fn forget(&mut self, id: Id) {
        let Some(mut entry) = self.entries.remove(&id) else { return };
        conditions::end(&mut entry.condition, &mut self.timers);
        for timer in [&entry.wake, &entry.stop_timer].into_iter().flatten() {
            self.timers.try_remove(timer);
        }
        self.names.remove(&entry.name);
        self.last_epoch_numbers.add(&entry.name, entry.epoch_number);
        self.metrics.removed(&entry.name);
        self.announce(&entry.name, entry.epoch_number, TransitionKind::Removed);
        self.outgoing.extend(entry.removers.into_iter().map(QueuedMessage::Resolve));
        self.gone.push(entry.name);
    }

    /// Creates the next epoch, and spawns its run.
    pub(super) fn start(&mut self, id: Id, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let last = match entry.epoch_number {
            0 => self.last_epoch_numbers.take(&entry.name),
            number => number,
        };
        let count = last + 1;
        entry.epoch_number = count;
        entry.begun_at = Some(now);
        let panics = self.metrics.panics(&entry.name);
        let (leadership, term) = match entry.spec.needs_leadership() {
            true => self.election.of_new_epoch(),
            false => (Leadership::NotNeeded, None),
        };
        let grace = entry.spec.options.grace;
        let epoch = Epoch::counted(entry.name.clone(), count, grace, panics, leadership);
        if let Some(term) = term {
            epoch.lead(term);
        }
        self.metrics.epoch(&entry.name, count);
        info!(controller = %entry.name, epoch = count, "epoch started");
        let span = info_span!("runnable", controller = %entry.name, epoch = count);
        let (number, report) = (count, epoch.subscribe());
        entry.epoch = Some(epoch.clone());
        entry.returned = None;
        // Building the future is the runnable's code too: its panic must not be ours.
        let (runnable, inside) = (entry.spec.runnable.clone(), epoch.clone());
        let run = async move { runnable.start(inside).await };
        let overrun = match entry.spec.keeps_grace {
            true => Overrun::WaitedFor,
            false => Overrun::Dropped,
        };
        let tasks = self.metrics.run(&epoch);
        let returned = epoch.subscribe_returned();
        let driven = run::drive(epoch, run.boxed(), overrun);
        let driven = async move {
            let _tasks = tasks;
            (id, driven.await)
        };
        self.runs.spawn(driven.instrument(span));
        self.watch_report(id, number, report);
        self.watch_return(id, number, returned);
    }

    pub(super) fn started(&mut self, id: Id, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(begun_at) = entry.begun_at.take() {
            self.metrics.started(&entry.name, (now - begun_at).as_secs_f64());
        }
        info!(controller = %entry.name, epoch = entry.epoch_number, "epoch reported running");
    }

    /// Signals the epoch to stop, and begins its grace.
    pub(super) fn stop(&mut self, id: Id, reason: StopReason, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(epoch) = &entry.epoch {
            epoch.stop(reason);
        }
        info!(controller = %entry.name, epoch = entry.epoch_number, ?reason, "stop signalled");
        self.drain(id, now);
    }

    /// Begins the grace of the epoch. The manager owns the timer, so that a run that blocks its
    /// thread cannot delay it.
    pub(super) fn drain(&mut self, id: Id, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.stopped_at = Some(now);
        let deadline = entry.epoch.as_ref().and_then(Epoch::deadline).unwrap_or(now);
        let grace = EntryTimer::Grace(entry.epoch_number);
        let counted = self.metrics.timer(&entry.name, grace.word());
        entry.stop_timer = Some(self.timers.insert_at((id, grace, counted), deadline));
    }

    /// Ends the grace: aborts tasks and drops requests.
    pub(super) fn end_grace(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(epoch) = &entry.epoch {
            epoch.close();
        }
        let overdue = EntryTimer::Overdue(entry.epoch_number);
        let counted = self.metrics.timer(&entry.name, overdue.word());
        entry.stop_timer = Some(self.timers.insert((id, overdue, counted), run::LATE));
    }

    /// Announces that the epoch is done, with the reason and the requests of unknown outcome.
    pub(super) fn done(&mut self, id: Id, reason: DoneReason, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let unknown_requests = entry.epoch.take().map_or(0, |epoch| epoch.fence().unknown());
        entry.begun_at = None;
        if let Some(timer) = entry.stop_timer.take() {
            self.timers.try_remove(&timer);
        }
        if let Some(stopped_at) = entry.stopped_at.take() {
            self.metrics.stopped(&entry.name, (now - stopped_at).as_secs_f64());
        }
        let (name, epoch) = (entry.name.clone(), entry.epoch_number);
        match reason.error() {
            // Already logged when the run returned.
            Some(error) => debug!(controller = %name, epoch, error, "epoch done"),
            None => info!(controller = %name, epoch, reason = reason.word(), "epoch done"),
        }
        if unknown_requests > 0 {
            warn!(controller = %name, epoch, unknown_requests, "outcome of requests is unknown");
        }
        let at = Timestamp::now();
        entry.last_done = Some(Done { epoch, reason: reason.clone(), at, unknown_requests });
        let restarters = std::mem::take(&mut entry.restarters);
        self.announce(&name, epoch, TransitionKind::Done(reason));
        self.outgoing
            .extend(restarters.into_iter().map(|reply| QueuedMessage::Answer(reply, Ok(()))));
    }
}
