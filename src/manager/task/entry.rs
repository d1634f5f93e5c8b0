//! Entry of the manager: one runnable, with all that happens to it.

mod replacement;
mod status;

use std::sync::Arc;

use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tracing::{debug, warn};

use super::{
    condition_watch::ConditionWatch,
    event::{EntryKey, EntryTimer, PreparationResult, TimerKey},
    live_epoch::LiveEpoch,
    parts::Parts,
    pending_replacement::{PendingReplacement, Preparation},
};
use crate::manager::{
    ControllerState, Done, Readiness, Report, RestartBackoff, RunnableStatus, StopReason,
    TransitionKind, Verdict,
    election::term::Term,
    end::RunEnd,
    lifecycle::{Lifecycle, LifecycleAction, LifecycleInput, StopCause},
    runnable_spec::RunnableSpec,
};

pub(super) struct RunnableEntry {
    pub(super) key: EntryKey,
    pub(super) spec: RunnableSpec,
    pub(super) condition: ConditionWatch,
    pub(super) lifecycle: Lifecycle,
    /// Epoch, while the state machine has a live one.
    pub(super) live: Option<LiveEpoch>,
    /// Number of the current epoch, or of the last one.
    pub(super) epoch_number: u64,
    pub(super) pending: Option<PendingReplacement>,
    pub(super) removers: Vec<oneshot::Sender<()>>,
    last_done: Option<Done>,
    /// Timer that ends a back-off.
    pub(super) wake: Option<TimerKey>,
    /// True once the state machine has asked to remove the entry.
    pub(super) is_over: bool,
    /// Status as last published.
    status: Option<Arc<RunnableStatus>>,
}

impl RunnableEntry {
    /// Adds a runnable, which starts if it may.
    pub(super) fn new(
        key: EntryKey,
        spec: RunnableSpec,
        backoff: RestartBackoff,
        parts: &mut Parts,
    ) -> Self {
        let mut entry = Self {
            condition: ConditionWatch::new(&key),
            lifecycle: Lifecycle::new(spec.restart_policy(), backoff),
            live: None,
            epoch_number: 0,
            pending: None,
            removers: Vec::new(),
            last_done: None,
            wake: None,
            is_over: false,
            status: None,
            key,
            spec,
        };
        let (name, waiting) = (&entry.key.name, ControllerState::Waiting);
        parts.metrics.entered(name, waiting, waiting);
        parts.publisher.announce(name, 0, TransitionKind::Entered(waiting));
        entry.allow(parts);
        entry.ask(parts);
        entry
    }

    /// Feeds one input to the state machine and carries out its actions.
    pub(super) fn step(&mut self, input: LifecycleInput, parts: &mut Parts) {
        const LIVE: &str = "the state machine stops an epoch only after its start";
        let before = self.lifecycle.state();
        for action in self.lifecycle.step(input, Instant::now(), fastrand::f64()) {
            match action {
                LifecycleAction::Start => {
                    if self.epoch_number == 0 {
                        self.epoch_number = parts.last_epoch_numbers.take(&self.key.name);
                    }
                    self.epoch_number += 1;
                    let (key, number) = (&self.key, self.epoch_number);
                    self.live = Some(LiveEpoch::start(key, number, &self.spec, parts));
                }
                LifecycleAction::Stop(reason) => {
                    self.live.as_mut().expect(LIVE).stop(reason, parts);
                }
                LifecycleAction::Drain => self.live.as_mut().expect(LIVE).drain(parts),
                LifecycleAction::Done(reason) => {
                    self.last_done = Some(self.live.take().expect(LIVE).done(reason, parts));
                }
                // Keeps a single timer, however often the condition flaps meanwhile.
                LifecycleAction::WakeAt(at) => match &self.wake {
                    Some(wake) => parts.timers.reset_at(wake, at),
                    None => self.wake = Some(parts.set_timer(&self.key, EntryTimer::Wake, at)),
                },
                LifecycleAction::Forget => {
                    self.is_over = true;
                    return;
                }
            }
        }
        let state = self.lifecycle.state();
        if (before, state) == (ControllerState::Starting, ControllerState::Running) {
            self.live.iter().for_each(|live| live.started(parts));
        }
        self.entered(before, parts);
        // Runnables that do not report running count as running from the start.
        if state == ControllerState::Starting && !self.spec.reports_running {
            self.step(LifecycleInput::Running, parts);
        }
    }

    /// Reports the state, unless it is the one before.
    fn entered(&self, before: ControllerState, parts: &mut Parts) {
        let (name, epoch, state) = (&self.key.name, self.epoch_number, self.lifecycle.state());
        if before != state {
            parts.metrics.entered(name, before, state);
            parts.publisher.announce(name, epoch, TransitionKind::Entered(state));
            debug!(controller = %name, epoch, state = state.word(), "state entered");
        }
    }

    /// Lets the runnable start if it may, and no longer if it may not.
    pub(super) fn allow(&mut self, parts: &mut Parts) {
        let allowed = parts.allows(&self.spec);
        self.step(LifecycleInput::Allowed(allowed), parts);
    }

    /// Discards the new specification, and stops the epoch for the removal of the entry.
    pub(super) fn remove(&mut self, parts: &mut Parts) {
        self.drop_pending(parts);
        self.step(LifecycleInput::Remove, parts);
    }

    /// Announces that the entry is removed.
    pub(super) fn removed(mut self, parts: &mut Parts) {
        let (name, epoch) = (self.key.name, self.epoch_number);
        self.condition.end(parts);
        parts.end_timer(self.wake);
        parts.last_epoch_numbers.add(&name, epoch);
        parts.metrics.removed(&name);
        parts.publisher.announce(&name, epoch, TransitionKind::Removed);
        self.removers.into_iter().for_each(|remover| parts.publisher.resolve(remover));
        parts.publisher.removed.push(name);
    }

    /// Returns whether the epoch runs on after its term has ended.
    pub(super) fn has_lost_lease(&self) -> bool {
        let reason = self.live.as_ref().and_then(|live| live.epoch.stop_reason());
        reason == Some(StopReason::LeaseLost) && self.lifecycle.stopping().is_none()
    }

    /// Follows the end of a term, if one `ends`, and then the begin of the next one.
    pub(super) fn on_term(&mut self, ends: bool, next: Option<&Arc<Term>>, parts: &mut Parts) {
        if ends {
            // The term has stopped the epoch already.
            self.step(LifecycleInput::LeaseLost, parts);
        }
        if let (Some(term), Some(live)) = (next, &self.live) {
            live.epoch.lead(term);
        }
        // A closing manager allows nothing any more, and leaves what runs to the end of its group.
        if ends || !parts.phase.is_closing() {
            self.allow(parts);
        }
    }

    /// Passes a new verdict to the specification in place, or to the one that waits to replace it.
    pub(super) fn on_verdict(&mut self, serial: u64, readiness: Readiness, parts: &mut Parts) {
        if self.condition.serial == serial {
            let verdict = self.condition.follow(readiness, parts);
            self.step(LifecycleInput::Verdict(verdict), parts);
            self.install_if_due(parts);
        } else if let Some(pending) =
            self.pending.as_mut().filter(|it| it.condition.serial == serial)
        {
            pending.verdict = pending.condition.follow(readiness, parts);
            self.judge_pending(parts);
        }
    }

    /// Asks the specification in place for its condition. The entry must have no live epoch.
    fn ask(&mut self, parts: &mut Parts) {
        let verdict = self.condition.ask(&self.spec, parts);
        let is_known = !matches!(verdict, Verdict::Unknown(_));
        self.step(LifecycleInput::Verdict(verdict), parts);
        // The first verdict may be published later. It decides then whether the specification that
        // waits takes over.
        if is_known {
            self.install_if_due(parts);
        }
    }

    pub(super) fn on_timer(&mut self, timer: EntryTimer, parts: &mut Parts) {
        match timer {
            EntryTimer::Wake => {
                self.wake = None;
                // The verdict may have been published once, before a long back-off.
                if self.lifecycle.state() == ControllerState::BackingOff {
                    self.ask(parts);
                }
                self.step(LifecycleInput::Wake, parts);
            }
            // The timers of an epoch end with it.
            EntryTimer::Grace | EntryTimer::Overdue if self.lifecycle.stopping().is_none() => {}
            EntryTimer::Grace => self.live.iter_mut().for_each(|live| live.end_grace(parts)),
            EntryTimer::Overdue => {
                self.live.iter_mut().for_each(LiveEpoch::report_overdue);
                self.step(LifecycleInput::Overdue, parts);
            }
            EntryTimer::Ask(serial) if self.condition.serial == serial => {
                self.condition.retry = None;
                self.ask(parts);
            }
            EntryTimer::Ask(serial) => {
                let pending = self.pending.as_mut();
                if let Some(pending) = pending.filter(|it| it.condition.serial == serial) {
                    pending.condition.retry = None;
                    pending.verdict = pending.condition.ask(&pending.spec, parts);
                    self.judge_pending(parts);
                }
            }
            EntryTimer::Retry => {
                if let Some(pending) = &mut self.pending {
                    pending.preparation = Preparation::None;
                    self.judge_pending(parts);
                }
            }
        }
    }

    pub(super) fn on_reported(
        &mut self,
        epoch: u64,
        mut report: watch::Receiver<Report>,
        parts: &mut Parts,
    ) {
        if self.live.is_none() || self.epoch_number != epoch {
            return;
        }
        let running = report.borrow_and_update().running;
        parts.watch_report(self.key.id, epoch, report);
        if running && self.lifecycle.state() == ControllerState::Starting {
            self.step(LifecycleInput::Running, parts);
        }
    }

    /// Records the end of the run; its tasks may continue until the grace is over.
    pub(super) fn on_returned(&mut self, epoch: u64, end: RunEnd, parts: &mut Parts) {
        let Some(live) = &mut self.live else { return };
        if self.epoch_number != epoch || live.returned.is_some() {
            return;
        }
        live.returned = Some(end.clone());
        if let RunEnd::Failed(error) | RunEnd::Panicked(error) = &end {
            let name = &self.key.name;
            parts.metrics.failed(name);
            if self.lifecycle.stopping().is_some() {
                // Does not end the manager.
                warn!(controller = %name, %error, "run failed while it was stopping");
            } else {
                warn!(controller = %name, epoch, %error, "run failed");
                parts.fail_by_policy(&self.key, &self.spec, error);
            }
        }
        self.step(LifecycleInput::Returned(end), parts);
    }

    /// Ends the epoch, of which nothing is left, and begins the next one if it is due.
    pub(super) fn on_ended(&mut self, end: RunEnd, parts: &mut Parts) {
        let Some(live) = &self.live else { return };
        // The epoch may have ended by itself before its restart was requested, with a back-off.
        let restarts = !live.restarters.is_empty();
        if let Some(error) = live.returned.as_ref().and_then(|before| end.later_error(before)) {
            let (name, epoch) = (&self.key.name, self.epoch_number);
            parts.metrics.failed(name);
            warn!(controller = %name, epoch, error, "run failed after it had reported its end");
            if let Some(StopCause::Returned(_)) = self.lifecycle.stopping() {
                parts.fail_by_policy(&self.key, &self.spec, error);
            }
        }
        // The end may be polled before the return.
        self.on_returned(self.epoch_number, end, parts);
        self.step(LifecycleInput::Ended, parts);
        let is_installed = self.install_if_due(parts);
        let waits = self.lifecycle.state() == ControllerState::Waiting;
        if !parts.phase.is_closing() {
            if restarts {
                self.start_again_if_stopped(parts);
            } else if waits && !is_installed && self.removers.is_empty() {
                self.ask(parts);
            }
        }
        self.step(LifecycleInput::Wake, parts);
    }
}
