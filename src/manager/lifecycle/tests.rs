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
        assert!(lifecycle.step(LifecycleInput::Allowed(true), now, 0.0).is_empty());
        Self { lifecycle, now }
    }

    fn running() -> Self {
        let mut life = Self::new(RestartPolicy::Always);
        assert_eq!(life.step(LifecycleInput::Verdict(met_by("1"))), [LifecycleAction::Start]);
        assert!(life.step(LifecycleInput::Running).is_empty());
        life
    }

    fn step(&mut self, input: LifecycleInput) -> Vec<LifecycleAction> {
        self.lifecycle.step(input, self.now, 0.0)
    }

    /// Ends the run and its epoch.
    fn end(&mut self, end: RunEnd) -> Vec<LifecycleAction> {
        let drain = self.step(LifecycleInput::Returned(end));
        let done = self.step(LifecycleInput::Ended);
        [drain, done].concat()
    }
}

#[test]
fn starts_when_the_condition_is_met_and_stops_when_it_is_lost() {
    let mut life = Life::running();

    assert_eq!(
        life.step(LifecycleInput::Verdict(unmet())),
        [LifecycleAction::Stop(StopReason::TypeGone)]
    );
    assert_eq!(life.end(RunEnd::Completed), [LifecycleAction::Done(DoneReason::TypeGone)]);
    assert!(life.step(LifecycleInput::Wake).is_empty());
    assert_eq!(life.step(LifecycleInput::Verdict(met_by("2"))), [LifecycleAction::Start]);
}

#[test]
fn an_unknown_verdict_neither_starts_nor_stops() {
    let mut waiting = Life::new(RestartPolicy::Always);
    assert!(waiting.step(LifecycleInput::Verdict(unknown())).is_empty());
    assert_eq!(waiting.lifecycle.state(), ControllerState::Waiting);

    let mut running = Life::running();
    assert!(running.step(LifecycleInput::Verdict(unknown())).is_empty());
    assert_eq!(running.lifecycle.state(), ControllerState::Running);
}

#[test]
fn another_identity_is_a_full_stop_and_start() {
    let mut life = Life::running();

    assert_eq!(
        life.step(LifecycleInput::Verdict(met_by("2"))),
        [LifecycleAction::Stop(StopReason::TypeGone)]
    );
    assert_eq!(life.end(RunEnd::Completed), [LifecycleAction::Done(DoneReason::TypeGone)]);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
}

#[test]
fn a_verdict_that_returns_while_stopping_waits_for_done() {
    let mut life = Life::running();
    life.step(LifecycleInput::Verdict(unmet()));

    assert!(life.step(LifecycleInput::Verdict(met_by("1"))).is_empty());
    assert_eq!(life.end(RunEnd::Aborted), [LifecycleAction::Done(DoneReason::TypeGone)]);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
}

#[test]
fn a_failed_run_starts_again_after_the_back_off() {
    let mut life = Life::running();

    let done = life.end(RunEnd::Failed("boom".into()));
    assert_eq!(
        done,
        [LifecycleAction::Drain, LifecycleAction::Done(DoneReason::Failed("boom".into()))]
    );
    let until = life.now + Duration::from_secs(1);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::WakeAt(until)]);
    assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);

    life.now = until;
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
}

#[test]
fn the_back_off_counts_from_the_return_and_the_next_epoch_waits_for_done_too() {
    for (drains, waits) in [(0, 1), (3, 0)] {
        let mut life = Life::running();
        let boom = || RunEnd::Failed("boom".into());
        assert_eq!(life.step(LifecycleInput::Returned(boom())), [LifecycleAction::Drain]);
        assert_eq!(life.lifecycle.state(), ControllerState::Stopping);
        let until = life.now + Duration::from_secs(1);

        life.now += Duration::from_secs(drains);
        assert!(life.step(LifecycleInput::Wake).is_empty(), "nothing begins before done");
        assert_eq!(
            life.step(LifecycleInput::Ended),
            [LifecycleAction::Done(DoneReason::Failed("boom".into()))]
        );

        let expected =
            if waits > 0 { LifecycleAction::WakeAt(until) } else { LifecycleAction::Start };
        assert_eq!(life.step(LifecycleInput::Wake), [expected]);
    }
}

#[test]
fn a_run_that_returned_is_stopping_whatever_else_happens() {
    let mut life = Life::running();
    life.step(LifecycleInput::Returned(RunEnd::Completed));

    for input in [
        LifecycleInput::Running,
        LifecycleInput::Verdict(unmet()),
        LifecycleInput::Verdict(met_by("1")),
        LifecycleInput::Supersede,
        LifecycleInput::Returned(RunEnd::Failed("late".into())),
        LifecycleInput::Allowed(false),
        LifecycleInput::Allowed(true),
        LifecycleInput::Wake,
        LifecycleInput::Overdue,
    ] {
        assert!(life.step(input).is_empty());
        assert_eq!(life.lifecycle.state(), ControllerState::Stopping);
    }

    assert!(life.lifecycle.stuck());
    assert_eq!(life.step(LifecycleInput::Ended), [LifecycleAction::Done(DoneReason::Completed)]);
}

#[test]
fn the_back_off_outlives_a_flap_of_the_condition() {
    let mut life = Life::running();
    life.end(RunEnd::Failed("boom".into()));
    life.step(LifecycleInput::Wake);

    life.step(LifecycleInput::Verdict(unmet()));
    assert_eq!(life.lifecycle.state(), ControllerState::Waiting);
    life.step(LifecycleInput::Verdict(met_by("2")));

    assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);
}

#[test]
fn ten_healthy_minutes_forget_the_failures() {
    let mut life = Life::running();
    for _ in 0..5 {
        life.end(RunEnd::Failed("boom".into()));
        life.now += Duration::from_secs(300);
        assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
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
        assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
    }

    // Runs for a day without failing, until its type is replaced.
    life.now += Duration::from_secs(24 * 3600);
    life.step(LifecycleInput::Verdict(met_by("2")));
    life.end(RunEnd::Completed);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
    life.end(RunEnd::Failed("boom".into()));

    assert_eq!(life.lifecycle.failures(), 1);
    let until = life.now + Duration::from_secs(1);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::WakeAt(until)]);
}

#[test]
fn the_restart_policy_decides_about_a_clean_end() {
    for (policy, end, state) in [
        (RestartPolicy::Always, RunEnd::Completed, ControllerState::BackingOff),
        (RestartPolicy::OnFailure, RunEnd::Completed, ControllerState::Stopped),
        (RestartPolicy::OnFailure, RunEnd::SourceDone, ControllerState::BackingOff),
        (RestartPolicy::Never, RunEnd::SourceDone, ControllerState::BackingOff),
        (RestartPolicy::OnFailure, RunEnd::Panicked("x".into()), ControllerState::BackingOff),
        (RestartPolicy::Never, RunEnd::Failed("x".into()), ControllerState::Stopped),
    ] {
        let mut life = Life::new(policy);
        life.step(LifecycleInput::Verdict(met_by("1")));

        life.end(end);
        life.step(LifecycleInput::Wake);

        assert_eq!(life.lifecycle.state(), state, "{policy:?}");
    }
}

#[test]
fn clean_ends_delay_the_next_run_and_are_no_failures() {
    let mut life = Life::running();
    life.end(RunEnd::Failed("boom".into()));
    assert_eq!(life.lifecycle.failures(), 1);
    life.now += Duration::from_secs(1);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);

    life.end(RunEnd::Completed);

    assert_eq!(life.lifecycle.failures(), 0);
    let until = life.now + Duration::from_secs(2);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::WakeAt(until)]);
}

#[test]
fn end_of_a_source_after_a_minute_is_followed_by_the_first_delay() {
    let mut life = Life::running();
    for _ in 0..9 {
        life.now += Duration::from_secs(61);
        life.end(RunEnd::SourceDone);
        let until = life.now + Duration::from_secs(1);
        assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::WakeAt(until)]);
        life.now = until;
        assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
    }
}

#[test]
fn source_that_is_done_before_its_condition_is_lost_delays_nothing() {
    let mut life = Life::running();
    for round in 0..1000 {
        life.now += Duration::from_secs(1);
        life.end(RunEnd::SourceDone);
        life.step(LifecycleInput::Wake);
        life.step(LifecycleInput::Verdict(if round % 2 == 0 { unmet() } else { unknown() }));
        assert_eq!(life.lifecycle.state(), ControllerState::Waiting);
        let start = life.step(LifecycleInput::Verdict(met_by("1")));
        assert_eq!(start, [LifecycleAction::Start], "round {round}");
        life.step(LifecycleInput::Running);
    }
    assert_eq!(life.lifecycle.restarts(), 0);
}

#[test]
fn source_that_is_done_within_a_second_delays_the_next_run_more_and_more() {
    let mut life = Life::running();
    for seconds in [1, 2, 4, 8] {
        life.step(LifecycleInput::Running);
        life.end(RunEnd::SourceDone);
        life.step(LifecycleInput::Verdict(unmet()));
        let until = life.now + Duration::from_secs(seconds);
        let wait = life.step(LifecycleInput::Verdict(met_by("1")));
        assert_eq!(wait, [LifecycleAction::WakeAt(until)]);
        life.now = until;
        assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Start]);
    }
}

#[test]
fn another_specification_begins_with_a_clean_record() {
    let mut life = Life::running();
    for number in 0..300 {
        life.step(LifecycleInput::Verdict(met_by(&number.to_string())));
        life.end(RunEnd::Completed);
        life.step(LifecycleInput::Wake);
        life.step(LifecycleInput::Running);
    }
    assert_eq!(life.lifecycle.state(), ControllerState::BackingOff);
    assert!(life.lifecycle.is_flapping());

    life.lifecycle.renew(RestartPolicy::OnFailure);

    assert!(!life.lifecycle.is_flapping() && !life.lifecycle.backs_off(life.now));
    assert_eq!(life.step(LifecycleInput::Verdict(met_by("new"))), [LifecycleAction::Start]);
}

#[test]
fn removal_forgets_only_after_done() {
    let mut life = Life::running();

    assert_eq!(life.step(LifecycleInput::Remove), [LifecycleAction::Stop(StopReason::Cancelled)]);
    life.end(RunEnd::Completed);
    assert_eq!(life.step(LifecycleInput::Wake), [LifecycleAction::Forget]);
}

fn input() -> impl Strategy<Value = LifecycleInput> {
    prop_oneof![
        4 => prop_oneof![
            Just(met_by("1")), Just(met_by("2")), Just(unmet()), Just(unknown())
        ].prop_map(LifecycleInput::Verdict),
        1 => any::<bool>().prop_map(LifecycleInput::Allowed),
        2 => Just(LifecycleInput::Running),
        4 => prop_oneof![
            Just(RunEnd::Completed),
            Just(RunEnd::Failed("x".into())),
            Just(RunEnd::Panicked("x".into())),
            Just(RunEnd::Aborted)
        ].prop_map(LifecycleInput::Returned),
        4 => Just(LifecycleInput::Ended),
        1 => Just(LifecycleInput::Overdue),
        1 => Just(LifecycleInput::Supersede),
        2 => Just(LifecycleInput::Wake),
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
                    LifecycleAction::Start => {
                        prop_assert!(!live, "an epoch began before the last was done");
                        live = true;
                        asked_to_stop = false;
                    }
                    LifecycleAction::Stop(_) => {
                        prop_assert!(live && !asked_to_stop);
                        asked_to_stop = true;
                    }
                    LifecycleAction::Drain => prop_assert!(live && !asked_to_stop),
                    LifecycleAction::Done(_) => {
                        prop_assert!(live, "done without an epoch");
                        live = false;
                    }
                    LifecycleAction::WakeAt(at) => prop_assert!(at > now),
                    LifecycleAction::Forget => prop_assert!(!live),
                }
            }
            prop_assert_eq!(live, lifecycle.live());
        }

        // Convergence: after the last input, the state depends on the last verdict alone.
        let mut actions = lifecycle.step(LifecycleInput::Allowed(true), now, 0.5);
        actions.extend(lifecycle.step(LifecycleInput::Verdict(met_by("9")), now, 0.5));
        while lifecycle.live() && lifecycle.stopping().is_some() {
            lifecycle.step(LifecycleInput::Ended, now, 0.5);
        }
        now += Duration::from_secs(600);
        lifecycle.step(LifecycleInput::Wake, now, 0.5);
        lifecycle.step(LifecycleInput::Running, now, 0.5);
        prop_assert_eq!(lifecycle.state(), ControllerState::Running);
    }
}
