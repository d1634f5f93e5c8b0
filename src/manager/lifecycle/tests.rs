//! Tests of the state machine of one runnable.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::manager::verdict::tests::met_by;

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
        assert_eq!(life.step(Input::Verdict(met_by("1"))), [Action::Start]);
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
    assert_eq!(life.step(Input::Verdict(met_by("2"))), [Action::Start]);
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

    assert_eq!(life.step(Input::Verdict(met_by("2"))), [Action::Stop(StopReason::TypeGone)]);
    assert_eq!(life.end(RunEnd::Completed), [Action::Done(DoneReason::TypeGone)]);
    assert_eq!(life.step(Input::Wake), [Action::Start]);
}

#[test]
fn a_verdict_that_returns_while_stopping_waits_for_done() {
    let mut life = Life::running();
    life.step(Input::Verdict(unmet()));

    assert!(life.step(Input::Verdict(met_by("1"))).is_empty());
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
        Input::Verdict(met_by("1")),
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
    life.step(Input::Verdict(met_by("2")));

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
    life.step(Input::Verdict(met_by("2")));
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
        life.step(Input::Verdict(met_by("1")));

        life.end(end);
        life.step(Input::Wake);

        assert_eq!(life.lifecycle.state(), state, "{policy:?}");
    }
}

#[test]
fn another_specification_begins_with_a_clean_record() {
    let mut life = Life::running();
    for number in 0..300 {
        life.step(Input::Verdict(met_by(&number.to_string())));
        life.end(RunEnd::Completed);
        life.step(Input::Wake);
        life.step(Input::Running);
    }
    assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);
    assert!(life.lifecycle.flaps());

    life.lifecycle.renew(RestartPolicy::OnFailure);

    assert!(!life.lifecycle.flaps() && !life.lifecycle.backs_off(life.now));
    assert_eq!(life.step(Input::Verdict(met_by("new"))), [Action::Start]);
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
            Just(met_by("1")), Just(met_by("2")), Just(unmet()), Just(unknown())
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
        actions.extend(lifecycle.step(Input::Verdict(met_by("9")), now, 0.5));
        while lifecycle.live() && lifecycle.stopping().is_some() {
            lifecycle.step(Input::Ended, now, 0.5);
        }
        now += Duration::from_secs(600);
        lifecycle.step(Input::Wake, now, 0.5);
        lifecycle.step(Input::Running, now, 0.5);
        prop_assert_eq!(lifecycle.state(), ControllerState::Running);
    }
}
