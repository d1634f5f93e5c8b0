//! Lifecycle of one runnable as a pure state machine: inputs in, actions out, no I/O.
//!
//! Only this machine starts epochs. It also decides when one stops, except that the end of a term
//! ends its epochs directly. Inputs may arrive in any order and repeatedly. The machine never
//! begins an epoch before the previous one is done.

use std::time::Duration;

use tokio::time::Instant;

use super::{Basis, ControllerState, DoneReason, RestartBackoff, StopReason, Verdict, end::RunEnd};
use crate::token_bucket::TokenBucket;

/// Length of a run after which the end of a required source is followed by the first delay again,
/// as that of an optional source.
const HEALTHY_SOURCE: Duration = Duration::from_secs(60);

/// Reason for which an epoch is stopping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StopCause {
    /// The epoch was signalled to stop.
    Signalled(StopReason),
    /// The run has ended by itself.
    Returned(DoneReason),
}

/// Reaction to a run that ends while its condition holds. A controller whose required source is done
/// starts again after the back-off in any case; remove it to end it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Restart after every end.
    #[default]
    Always,
    /// Restart after an error or a panic.
    OnFailure,
    /// Do not restart.
    Never,
}

/// Everything that can happen to a runnable.
#[derive(Clone, Debug)]
pub(super) enum LifecycleInput {
    /// The condition published this verdict.
    Verdict(Verdict),
    /// True if the group is open (and this replica leads, where that matters).
    Allowed(bool),
    /// This replica has lost the lease, and the runnable needs it.
    LeaseLost,
    /// The epoch has started up.
    Running,
    /// The run has ended by itself; its tasks and requests may not have ended yet.
    Returned(RunEnd),
    /// The run has ended and nothing of the epoch is left.
    Ended,
    /// The epoch outlived its grace.
    Overdue,
    /// The specification is being replaced: this epoch ends, and the next one uses the new
    /// specification.
    Supersede,
    /// The runnable is to be removed.
    Remove,
    /// The time of an [`LifecycleAction::WakeAt`] has come.
    Wake,
}

/// Action that the owner must take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LifecycleAction {
    /// Begin an epoch.
    Start,
    /// Signal the epoch to stop.
    Stop(StopReason),
    /// Give the grace to the tasks that the run has left behind.
    Drain,
    /// Announce the end of the epoch.
    Done(DoneReason),
    /// Send [`LifecycleInput::Wake`] at this time.
    WakeAt(Instant),
    /// Remove the entry: it was to be removed, and no epoch is live.
    Forget,
}

#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    state: State,
    verdict: Verdict,
    allowed: bool,
    removed: bool,
    policy: RestartPolicy,
    backoff: RestartBackoff,
    /// Failed runs in a row.
    failures: u32,
    /// Number of runs in a row that were followed by a back-off; determines the next one.
    restarts: u32,
    not_before: Option<Instant>,
    /// Limit on losses of the condition; `None` before the first loss.
    flaps: Option<TokenBucket>,
    /// True if `not_before` was set because the condition flaps, rather than because a run failed.
    flapping: bool,
    /// True if the last run ended because a required source was done.
    is_source_done: bool,
    /// True if that run had started up, and lasted for the first delay at least.
    has_source_run: bool,
}

#[derive(Clone, Debug)]
enum State {
    Waiting,
    Live { since: Instant, running: bool, basis: Vec<Basis> },
    Stopping { cause: StopCause, overdue: bool },
    BackingOff,
    Stopped,
}

impl Lifecycle {
    pub(super) fn new(policy: RestartPolicy, backoff: RestartBackoff) -> Self {
        Self {
            state: State::Waiting,
            verdict: Verdict::Unknown(Vec::new()),
            allowed: false,
            removed: false,
            policy,
            backoff,
            failures: 0,
            restarts: 0,
            not_before: None,
            flaps: None,
            flapping: false,
            is_source_done: false,
            has_source_run: false,
        }
    }

    pub(super) fn state(&self) -> ControllerState {
        match &self.state {
            State::Waiting => ControllerState::Waiting,
            State::Live { running: false, .. } => ControllerState::Starting,
            State::Live { running: true, .. } => ControllerState::Running,
            State::Stopping { .. } => ControllerState::Stopping,
            State::BackingOff => ControllerState::BackingOff,
            State::Stopped => ControllerState::Stopped,
        }
    }

    /// Returns whether an epoch is live: from its start until it is done.
    pub(super) fn live(&self) -> bool {
        matches!(self.state, State::Live { .. } | State::Stopping { .. })
    }

    /// Reason for which the epoch is stopping, if it is.
    pub(super) fn stopping(&self) -> Option<&StopCause> {
        match &self.state {
            State::Stopping { cause, .. } => Some(cause),
            State::Waiting | State::Live { .. } | State::BackingOff | State::Stopped => None,
        }
    }

    pub(super) fn stuck(&self) -> bool {
        matches!(self.state, State::Stopping { overdue: true, .. })
    }

    pub(super) fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub(super) fn allowed(&self) -> bool {
        self.allowed
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns whether the last run ended because a required source was done.
    pub(super) fn is_source_done(&self) -> bool {
        self.is_source_done
    }

    /// Basis of the live epoch.
    #[cfg(test)]
    pub(super) fn basis(&self) -> Option<&[Basis]> {
        match &self.state {
            State::Live { basis, .. } => Some(basis),
            State::Waiting | State::Stopping { .. } | State::BackingOff | State::Stopped => None,
        }
    }

    /// Returns whether the next epoch must still wait for a delay.
    #[cfg(test)]
    pub(super) fn backs_off(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| until > now)
    }

    /// Resets the machine for another specification, with a new condition and no earlier failures.
    ///
    /// Only allowed between epochs: the caller has seen [`LifecycleAction::Done`], or no epoch is
    /// live.
    pub(super) fn renew(&mut self, policy: RestartPolicy) {
        debug_assert!(!self.live(), "a live epoch keeps its specification");
        self.policy = policy;
        self.verdict = Verdict::Unknown(Vec::new());
        (self.failures, self.restarts) = (0, 0);
        self.not_before = None;
        self.flaps = None;
        self.flapping = false;
        self.is_source_done = false;
        self.state = State::Waiting;
    }

    /// Returns whether the next epoch is delayed because the condition flaps.
    pub(super) fn is_flapping(&self) -> bool {
        self.flapping
    }

    pub(super) fn step(
        &mut self,
        input: LifecycleInput,
        now: Instant,
        jitter: f64,
    ) -> Vec<LifecycleAction> {
        match input {
            LifecycleInput::Verdict(verdict) => self.verdict = verdict,
            LifecycleInput::Allowed(allowed) => self.allowed = allowed,
            LifecycleInput::Remove => self.removed = true,
            LifecycleInput::Wake => {}
            LifecycleInput::Running => {
                if let State::Live { running, .. } = &mut self.state {
                    *running = true;
                }
            }
            LifecycleInput::Overdue => {
                if let State::Stopping { overdue, .. } = &mut self.state {
                    *overdue = true;
                }
            }
            LifecycleInput::Supersede => {
                if matches!(self.state, State::Live { .. }) {
                    return self.stop(StopReason::Superseded, now);
                }
            }
            LifecycleInput::LeaseLost => {
                if matches!(self.state, State::Live { .. }) {
                    return self.stop(StopReason::LeaseLost, now);
                }
            }
            LifecycleInput::Returned(end) => return self.returned(end, now, jitter),
            // The caller may put another specification in place now, so nothing is started here.
            LifecycleInput::Ended => return self.ended(now, jitter),
        }
        self.decide(now)
    }

    /// Decides whether to start or to stop, from the state, the verdict and the permission of the
    /// owner.
    fn decide(&mut self, now: Instant) -> Vec<LifecycleAction> {
        match &self.state {
            State::Waiting | State::BackingOff | State::Stopped if self.removed => {
                self.state = State::Stopped;
                vec![LifecycleAction::Forget]
            }
            State::Waiting | State::BackingOff => self.begin(now),
            State::Live { .. } if self.removed || !self.allowed => {
                self.stop(StopReason::Cancelled, now)
            }
            State::Live { basis, .. } if self.verdict.change_since(basis).is_loss() => {
                self.stop(StopReason::TypeGone, now)
            }
            // Unknown does not prove absence: the epoch continues.
            State::Live { .. } => Vec::new(),
            State::Stopping { .. } | State::Stopped => Vec::new(),
        }
    }

    fn begin(&mut self, now: Instant) -> Vec<LifecycleAction> {
        let Verdict::Met(basis) = &self.verdict else {
            if self.is_source_done && self.has_source_run {
                self.source_lost(now);
            }
            self.state = State::Waiting;
            return Vec::new();
        };
        if !self.allowed {
            self.state = State::Waiting;
            return Vec::new();
        }
        match self.not_before {
            Some(until) if until > now => {
                self.state = State::BackingOff;
                vec![LifecycleAction::WakeAt(until)]
            }
            _ => {
                self.is_source_done = false;
                self.state = State::Live { since: now, running: false, basis: basis.clone() };
                vec![LifecycleAction::Start]
            }
        }
    }

    fn stop(&mut self, reason: StopReason, now: Instant) -> Vec<LifecycleAction> {
        // A long run resets the failures, however it ends.
        if let State::Live { since, .. } = self.state
            && now.duration_since(since) >= self.backoff.healthy
        {
            (self.failures, self.restarts) = (0, 0);
        }
        self.state = State::Stopping { cause: StopCause::Signalled(reason), overdue: false };
        vec![LifecycleAction::Stop(reason)]
    }

    /// Begins the back-off at the end of the run, so that draining its tasks does not prolong it.
    fn returned(&mut self, end: RunEnd, now: Instant, jitter: f64) -> Vec<LifecycleAction> {
        // A run that was signalled to stop ends for that reason, regardless of its result.
        let State::Live { since, running, .. } = self.state else { return Vec::new() };
        self.is_source_done = end == RunEnd::SourceDone;
        let ran_for = now.duration_since(since);
        self.has_source_run = self.is_source_done && running && ran_for >= self.backoff.first;
        let reason = match end {
            RunEnd::Completed | RunEnd::SourceDone => DoneReason::Completed,
            RunEnd::Failed(error) => DoneReason::Failed(error),
            RunEnd::Panicked(error) => DoneReason::Panicked(error),
            RunEnd::Aborted => DoneReason::Cancelled,
        };
        if self.begins_again(&reason) {
            let healthy = match self.is_source_done {
                true => self.backoff.healthy.min(HEALTHY_SOURCE),
                false => self.backoff.healthy,
            };
            if ran_for >= healthy {
                (self.failures, self.restarts) = (0, 0);
            }
            self.failures = match reason.error() {
                Some(_) => self.failures.saturating_add(1),
                None => 0,
            };
            self.restarts = self.restarts.saturating_add(1);
            self.not_before = Some(now + self.backoff.wait(self.restarts, jitter));
            self.flapping = false;
        }
        self.state = State::Stopping { cause: StopCause::Returned(reason), overdue: false };
        vec![LifecycleAction::Drain]
    }

    fn begins_again(&self, reason: &DoneReason) -> bool {
        match self.policy {
            _ if self.is_source_done => true,
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => reason.error().is_some(),
            RestartPolicy::Never => false,
        }
    }

    fn ended(&mut self, now: Instant, jitter: f64) -> Vec<LifecycleAction> {
        // An end without a return is a defect of the caller; the epoch is over nevertheless.
        drop(self.returned(RunEnd::Aborted, now, jitter));
        let State::Stopping { cause, .. } = &self.state else { return Vec::new() };
        let (reason, state) = match cause {
            StopCause::Signalled(reason) => {
                let reason = *reason;
                if reason == StopReason::TypeGone {
                    self.limit_flaps(now);
                }
                (DoneReason::from(reason), State::Waiting)
            }
            StopCause::Returned(reason) if self.begins_again(reason) => {
                (reason.clone(), State::Waiting)
            }
            StopCause::Returned(reason) => (reason.clone(), State::Stopped),
        };
        self.state = state;
        vec![LifecycleAction::Done(reason)]
    }

    /// Treats the end of a required source that had run as a loss of the condition, which is not met
    /// since. A loss is limited, and delays nothing.
    fn source_lost(&mut self, now: Instant) {
        self.is_source_done = false;
        self.restarts = 0;
        self.not_before = None;
        self.limit_flaps(now);
    }

    /// Delays the next epoch if the condition was lost too often.
    fn limit_flaps(&mut self, now: Instant) {
        let limit = self.flaps.get_or_insert_with(|| self.backoff.flap_limit(now));
        let wait = limit.reserve(now);
        if !wait.is_zero() {
            self.not_before = Some(now + wait);
            self.flapping = true;
        }
    }
}

#[cfg(test)]
mod flapping;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
