//! Lifecycle of one runnable as a pure state machine: inputs in, actions out, no I/O.
//!
//! Only this machine decides when an epoch begins and ends. Inputs may arrive in any order and
//! repeatedly. The machine never begins an epoch before the previous one is done.

use tokio::time::Instant;

use super::{Basis, ControllerState, DoneReason, RestartBackoff, StopReason, Verdict};
use crate::token_bucket::TokenBucket;

/// Reason for which an epoch is stopping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// The epoch was asked to stop.
    Asked(StopReason),
    /// The run has ended by itself.
    Returned(DoneReason),
}

/// Reaction to a run that ends while its condition holds.
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

/// End of a run, as its owner observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    Completed,
    Failed(String),
    Panicked(String),
    /// The run was dropped after the grace.
    Aborted,
}

impl RunEnd {
    /// Error of a run that had reported another end `before`, and failed only then.
    pub(super) fn later_error(&self, before: &Self) -> Option<&str> {
        match (before, self) {
            (Self::Completed | Self::Aborted, Self::Failed(error))
            | (Self::Completed | Self::Aborted | Self::Failed(_), Self::Panicked(error)) => {
                Some(error)
            }
            (_, Self::Completed | Self::Aborted | Self::Failed(_) | Self::Panicked(_)) => None,
        }
    }
}

/// Everything that can happen to a runnable.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// The condition published this verdict.
    Verdict(Verdict),
    /// True if the group is open (and this replica leads, where that matters).
    Allowed(bool),
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
    /// The time of an [`Action::WakeAt`] has come.
    Wake,
}

/// Action that the owner must take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Begin an epoch.
    Start,
    /// Ask the epoch to stop.
    Stop(StopReason),
    /// Give the grace to the tasks that the run has left behind.
    Drain,
    /// Announce the end of the epoch.
    Done(DoneReason),
    /// Send [`Input::Wake`] at this time.
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
    failures: u32,
    not_before: Option<Instant>,
    /// Limit on losses of the condition; `None` before the first loss.
    flaps: Option<TokenBucket>,
    /// True if `not_before` was set because the condition flaps, rather than because a run failed.
    flapping: bool,
}

#[derive(Clone, Debug)]
enum State {
    Waiting,
    Live { since: Instant, running: bool, basis: Vec<Basis> },
    Stopping { cause: Cause, overdue: bool },
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
            not_before: None,
            flaps: None,
            flapping: false,
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
    pub(super) fn stopping(&self) -> Option<&Cause> {
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
    /// Only allowed between epochs: the caller has seen [`Action::Done`], or no epoch is live.
    pub(super) fn renew(&mut self, policy: RestartPolicy) {
        debug_assert!(!self.live(), "a live epoch keeps its specification");
        self.policy = policy;
        self.verdict = Verdict::Unknown(Vec::new());
        self.failures = 0;
        self.not_before = None;
        self.flaps = None;
        self.flapping = false;
        self.state = State::Waiting;
    }

    /// Returns whether the next epoch is delayed because the condition flaps.
    pub(super) fn flaps(&self) -> bool {
        self.flapping
    }

    pub(super) fn step(&mut self, input: Input, now: Instant, jitter: f64) -> Vec<Action> {
        match input {
            Input::Verdict(verdict) => self.verdict = verdict,
            Input::Allowed(allowed) => self.allowed = allowed,
            Input::Remove => self.removed = true,
            Input::Wake => {}
            Input::Running => {
                if let State::Live { running, .. } = &mut self.state {
                    *running = true;
                }
            }
            Input::Overdue => {
                if let State::Stopping { overdue, .. } = &mut self.state {
                    *overdue = true;
                }
            }
            Input::Supersede => {
                if matches!(self.state, State::Live { .. }) {
                    return self.stop(StopReason::Superseded, now);
                }
            }
            Input::Returned(end) => return self.returned(end, now, jitter),
            // The caller may put another specification in place now, so nothing is started here.
            Input::Ended => return self.ended(now, jitter),
        }
        self.settle(now)
    }

    fn settle(&mut self, now: Instant) -> Vec<Action> {
        match &self.state {
            State::Waiting | State::BackingOff | State::Stopped if self.removed => {
                self.state = State::Stopped;
                vec![Action::Forget]
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

    fn begin(&mut self, now: Instant) -> Vec<Action> {
        let Verdict::Met(basis) = &self.verdict else {
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
                vec![Action::WakeAt(until)]
            }
            _ => {
                self.state = State::Live { since: now, running: false, basis: basis.clone() };
                vec![Action::Start]
            }
        }
    }

    fn stop(&mut self, reason: StopReason, now: Instant) -> Vec<Action> {
        // A long run resets the failures, however it ends.
        if let State::Live { since, .. } = self.state
            && now.duration_since(since) >= self.backoff.healthy
        {
            self.failures = 0;
        }
        self.state = State::Stopping { cause: Cause::Asked(reason), overdue: false };
        vec![Action::Stop(reason)]
    }

    /// Begins the back-off at the end of the run, so that draining its tasks does not prolong it.
    fn returned(&mut self, end: RunEnd, now: Instant, jitter: f64) -> Vec<Action> {
        // A run that was asked to stop ends for that reason, whatever it returns.
        let State::Live { since, .. } = self.state else { return Vec::new() };
        let reason = match end {
            RunEnd::Completed => DoneReason::Completed,
            RunEnd::Failed(error) => DoneReason::Failed(error),
            RunEnd::Panicked(error) => DoneReason::Panicked(error),
            RunEnd::Aborted => DoneReason::Cancelled,
        };
        if self.restarts(&reason) {
            let healthy = now.duration_since(since) >= self.backoff.healthy;
            self.failures = if healthy { 1 } else { self.failures.saturating_add(1) };
            self.not_before = Some(now + self.backoff.wait(self.failures, jitter));
            self.flapping = false;
        }
        self.state = State::Stopping { cause: Cause::Returned(reason), overdue: false };
        vec![Action::Drain]
    }

    fn restarts(&self, reason: &DoneReason) -> bool {
        match self.policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => reason.error().is_some(),
            RestartPolicy::Never => false,
        }
    }

    fn ended(&mut self, now: Instant, jitter: f64) -> Vec<Action> {
        // An end without a return is a defect of the caller; the epoch is over nevertheless.
        drop(self.returned(RunEnd::Aborted, now, jitter));
        let State::Stopping { cause, .. } = &self.state else { return Vec::new() };
        let (reason, state) = match cause {
            Cause::Asked(reason) => {
                if *reason == StopReason::TypeGone {
                    let limit = self.flaps.get_or_insert_with(|| self.backoff.flap_limit(now));
                    let wait = limit.reserve(now);
                    if !wait.is_zero() {
                        self.not_before = Some(now + wait);
                        self.flapping = true;
                    }
                }
                (DoneReason::from(*reason), State::Waiting)
            }
            Cause::Returned(reason) if self.restarts(reason) => (reason.clone(), State::Waiting),
            Cause::Returned(reason) => (reason.clone(), State::Stopped),
        };
        self.state = state;
        vec![Action::Done(reason)]
    }
}

#[cfg(test)]
mod flapping;
#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::kind::{Scope, TypeIdentity};

    pub(super) fn met(uid: &str) -> Verdict {
        Verdict::Met(vec![Basis {
            identity: TypeIdentity {
                group: "example.com".into(),
                version: "v1".into(),
                plural: "widgets".into(),
                scope: Scope::Namespaced,
                uid: Some(uid.into()),
            },
            kind: "Widget".into(),
            list_kind: "WidgetList".into(),
        }])
    }

    fn unmet() -> Verdict {
        Verdict::Unmet(Vec::new())
    }

    fn unknown() -> Verdict {
        Verdict::Unknown(Vec::new())
    }

    struct Life {
        lifecycle: Lifecycle,
        now: Instant,
    }

    impl Life {
        fn new(policy: RestartPolicy) -> Self {
            let mut lifecycle = Lifecycle::new(policy, RestartBackoff::default());
            let now = Instant::now();
            assert!(lifecycle.step(Input::Allowed(true), now, 0.0).is_empty());
            Self { lifecycle, now }
        }

        fn running() -> Self {
            let mut life = Self::new(RestartPolicy::Always);
            assert_eq!(life.step(Input::Verdict(met("1"))), [Action::Start]);
            assert!(life.step(Input::Running).is_empty());
            life
        }

        fn step(&mut self, input: Input) -> Vec<Action> {
            self.lifecycle.step(input, self.now, 0.0)
        }

        /// Ends the run and its epoch.
        fn end(&mut self, end: RunEnd) -> Vec<Action> {
            let drain = self.step(Input::Returned(end));
            let done = self.step(Input::Ended);
            [drain, done].concat()
        }
    }

    #[test]
    fn starts_when_the_condition_is_met_and_stops_when_it_is_lost() {
        let mut life = Life::running();

        assert_eq!(life.step(Input::Verdict(unmet())), [Action::Stop(StopReason::TypeGone)]);
        assert_eq!(life.end(RunEnd::Completed), [Action::Done(DoneReason::TypeGone)]);
        assert!(life.step(Input::Wake).is_empty());
        assert_eq!(life.step(Input::Verdict(met("2"))), [Action::Start]);
    }

    #[test]
    fn an_unknown_verdict_neither_starts_nor_stops() {
        let mut waiting = Life::new(RestartPolicy::Always);
        assert!(waiting.step(Input::Verdict(unknown())).is_empty());
        assert_eq!(waiting.lifecycle.state(), ControllerState::Waiting);

        let mut running = Life::running();
        assert!(running.step(Input::Verdict(unknown())).is_empty());
        assert_eq!(running.lifecycle.state(), ControllerState::Running);
    }

    #[test]
    fn another_identity_is_a_full_stop_and_start() {
        let mut life = Life::running();

        assert_eq!(life.step(Input::Verdict(met("2"))), [Action::Stop(StopReason::TypeGone)]);
        assert_eq!(life.end(RunEnd::Completed), [Action::Done(DoneReason::TypeGone)]);
        assert_eq!(life.step(Input::Wake), [Action::Start]);
    }

    #[test]
    fn a_verdict_that_returns_while_stopping_waits_for_done() {
        let mut life = Life::running();
        life.step(Input::Verdict(unmet()));

        assert!(life.step(Input::Verdict(met("1"))).is_empty());
        assert_eq!(life.end(RunEnd::Aborted), [Action::Done(DoneReason::TypeGone)]);
        assert_eq!(life.step(Input::Wake), [Action::Start]);
    }

    #[test]
    fn a_failed_run_starts_again_after_the_back_off() {
        let mut life = Life::running();

        let done = life.end(RunEnd::Failed("boom".into()));
        assert_eq!(done, [Action::Drain, Action::Done(DoneReason::Failed("boom".into()))]);
        let until = life.now + Duration::from_secs(1);
        assert_eq!(life.step(Input::Wake), [Action::WakeAt(until)]);
        assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);

        life.now = until;
        assert_eq!(life.step(Input::Wake), [Action::Start]);
    }

    #[test]
    fn the_back_off_counts_from_the_return_and_the_next_epoch_waits_for_done_too() {
        for (drains, waits) in [(0, 1), (3, 0)] {
            let mut life = Life::running();
            let boom = || RunEnd::Failed("boom".into());
            assert_eq!(life.step(Input::Returned(boom())), [Action::Drain]);
            assert_eq!(life.lifecycle.state(), ControllerState::Stopping);
            let until = life.now + Duration::from_secs(1);

            life.now += Duration::from_secs(drains);
            assert!(life.step(Input::Wake).is_empty(), "nothing begins before done");
            assert_eq!(life.step(Input::Ended), [Action::Done(DoneReason::Failed("boom".into()))]);

            let expected = if waits > 0 { Action::WakeAt(until) } else { Action::Start };
            assert_eq!(life.step(Input::Wake), [expected]);
        }
    }

    #[test]
    fn a_run_that_returned_is_stopping_whatever_else_happens() {
        let mut life = Life::running();
        life.step(Input::Returned(RunEnd::Completed));

        for input in [
            Input::Running,
            Input::Verdict(unmet()),
            Input::Verdict(met("1")),
            Input::Supersede,
            Input::Returned(RunEnd::Failed("late".into())),
            Input::Allowed(false),
            Input::Allowed(true),
            Input::Wake,
            Input::Overdue,
        ] {
            assert!(life.step(input).is_empty());
            assert_eq!(life.lifecycle.state(), ControllerState::Stopping);
        }

        assert!(life.lifecycle.stuck());
        assert_eq!(life.step(Input::Ended), [Action::Done(DoneReason::Completed)]);
    }

    #[test]
    fn the_back_off_outlives_a_flap_of_the_condition() {
        let mut life = Life::running();
        life.end(RunEnd::Failed("boom".into()));
        life.step(Input::Wake);

        life.step(Input::Verdict(unmet()));
        assert_eq!(life.lifecycle.state(), ControllerState::Waiting);
        life.step(Input::Verdict(met("2")));

        assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);
    }

    #[test]
    fn ten_healthy_minutes_forget_the_failures() {
        let mut life = Life::running();
        for _ in 0..5 {
            life.end(RunEnd::Failed("boom".into()));
            life.now += Duration::from_secs(300);
            assert_eq!(life.step(Input::Wake), [Action::Start]);
        }

        life.now += Duration::from_secs(600);
        life.end(RunEnd::Failed("boom".into()));

        assert_eq!(life.lifecycle.failures(), 1);
    }

    #[test]
    fn a_healthy_epoch_forgets_the_failures_however_it_ends() {
        let mut life = Life::running();
        for _ in 0..9 {
            life.end(RunEnd::Failed("boom".into()));
            life.now += Duration::from_secs(300);
            assert_eq!(life.step(Input::Wake), [Action::Start]);
        }

        // Runs for a day without failing, until its type is replaced.
        life.now += Duration::from_secs(24 * 3600);
        life.step(Input::Verdict(met("2")));
        life.end(RunEnd::Completed);
        assert_eq!(life.step(Input::Wake), [Action::Start]);
        life.end(RunEnd::Failed("boom".into()));

        assert_eq!(life.lifecycle.failures(), 1);
        let until = life.now + Duration::from_secs(1);
        assert_eq!(life.step(Input::Wake), [Action::WakeAt(until)]);
    }

    #[test]
    fn the_restart_policy_decides_about_a_clean_end() {
        for (policy, end, state) in [
            (RestartPolicy::Always, RunEnd::Completed, ControllerState::BackingOff),
            (RestartPolicy::OnFailure, RunEnd::Completed, ControllerState::Stopped),
            (RestartPolicy::OnFailure, RunEnd::Panicked("x".into()), ControllerState::BackingOff),
            (RestartPolicy::Never, RunEnd::Failed("x".into()), ControllerState::Stopped),
        ] {
            let mut life = Life::new(policy);
            life.step(Input::Verdict(met("1")));

            life.end(end);
            life.step(Input::Wake);

            assert_eq!(life.lifecycle.state(), state, "{policy:?}");
        }
    }

    #[test]
    fn another_specification_begins_with_a_clean_record() {
        let mut life = Life::running();
        for number in 0..300 {
            life.step(Input::Verdict(met(&number.to_string())));
            life.end(RunEnd::Completed);
            life.step(Input::Wake);
            life.step(Input::Running);
        }
        assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);
        assert!(life.lifecycle.flaps());

        life.lifecycle.renew(RestartPolicy::OnFailure);

        assert!(!life.lifecycle.flaps() && !life.lifecycle.backs_off(life.now));
        assert_eq!(life.step(Input::Verdict(met("new"))), [Action::Start]);
    }

    #[test]
    fn removal_forgets_only_after_done() {
        let mut life = Life::running();

        assert_eq!(life.step(Input::Remove), [Action::Stop(StopReason::Cancelled)]);
        life.end(RunEnd::Completed);
        assert_eq!(life.step(Input::Wake), [Action::Forget]);
    }

    fn input() -> impl Strategy<Value = Input> {
        prop_oneof![
            4 => prop_oneof![
                Just(met("1")), Just(met("2")), Just(unmet()), Just(unknown())
            ].prop_map(Input::Verdict),
            1 => any::<bool>().prop_map(Input::Allowed),
            2 => Just(Input::Running),
            4 => prop_oneof![
                Just(RunEnd::Completed),
                Just(RunEnd::Failed("x".into())),
                Just(RunEnd::Panicked("x".into())),
                Just(RunEnd::Aborted)
            ].prop_map(Input::Returned),
            4 => Just(Input::Ended),
            1 => Just(Input::Overdue),
            1 => Just(Input::Supersede),
            2 => Just(Input::Wake),
        ]
    }

    proptest! {
        #[test]
        fn epochs_never_overlap_and_each_is_done_once(
            inputs in prop::collection::vec(input(), 0..60)
        ) {
            let mut lifecycle = Lifecycle::new(RestartPolicy::Always, RestartBackoff::default());
            let mut now = Instant::now();
            let (mut live, mut asked_to_stop) = (false, false);

            for input in inputs {
                now += Duration::from_secs(1);
                for action in lifecycle.step(input, now, 0.5) {
                    match action {
                        Action::Start => {
                            prop_assert!(!live, "an epoch began before the last was done");
                            live = true;
                            asked_to_stop = false;
                        }
                        Action::Stop(_) => {
                            prop_assert!(live && !asked_to_stop);
                            asked_to_stop = true;
                        }
                        Action::Drain => prop_assert!(live && !asked_to_stop),
                        Action::Done(_) => {
                            prop_assert!(live, "done without an epoch");
                            live = false;
                        }
                        Action::WakeAt(at) => prop_assert!(at > now),
                        Action::Forget => prop_assert!(!live),
                    }
                }
                prop_assert_eq!(live, lifecycle.live());
            }

            // Convergence: after the last input, the state depends on the last verdict alone.
            let mut actions = lifecycle.step(Input::Allowed(true), now, 0.5);
            actions.extend(lifecycle.step(Input::Verdict(met("9")), now, 0.5));
            while lifecycle.live() && lifecycle.stopping().is_some() {
                lifecycle.step(Input::Ended, now, 0.5);
            }
            now += Duration::from_secs(600);
            lifecycle.step(Input::Wake, now, 0.5);
            lifecycle.step(Input::Running, now, 0.5);
            prop_assert_eq!(lifecycle.state(), ControllerState::Running);
        }
    }
}
