use super::*;
use crate::{
    manager::{Reason, RunnableGroup, UnmetRequirement, WatchReport},
    meta::{hooks::rule::HookKind, parent::health::Failure},
};

fn run(state: ControllerState, reason: &'static str) -> RunnableStatus {
    RunnableStatus {
        state,
        reason: reason.into(),
        since: Timestamp::UNIX_EPOCH,
        epoch: 3,
        ..RunnableStatus::new("CompositeController-a".into(), RunnableGroup::LeaderElection)
    }
}

fn said(
    acceptance: &Acceptance,
    run: Option<&RunnableStatus>,
    health: &Health,
) -> ControllerStatus {
    let previous = ControllerStatus::default();
    View {
        generation: 7,
        acceptance,
        definition: None,
        run,
        health,
        previous: &previous,
        now: Timestamp::UNIX_EPOCH,
    }
    .status()
}

fn failures(hook: Option<HookKind>, count: usize, parent: &str) -> FailureSum {
    let message = "hook did not answer within 10s".to_owned();
    let failure = Failure { hook, reason: "HookTimeout", message };
    FailureSum { count, example: (Request::namespaced("ns", parent), failure) }
}

#[track_caller]
fn check(status: &ControllerStatus, expected: [(&str, &str, &str); 4]) {
    let found: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| (&*condition.type_, &*condition.status, &*condition.reason))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_controller_that_runs_is_ready() {
    let health = Health { proven: true, ..Health::default() };

    let status =
        said(&Acceptance::Accepted, Some(&run(ControllerState::Running, "Running")), &health);

    assert_eq!(status.state.as_deref(), Some("Running"));
    assert_eq!(status.epoch, Some(3));
    assert_eq!(status.observed_generation, Some(7));
    check(
        &status,
        [
            ("Ready", "True", "Running"),
            ("TypesReady", "True", "TypesServed"),
            ("Running", "True", "Running"),
            ("HooksHealthy", "True", "HooksAnswer"),
        ],
    );
}

#[test]
fn a_controller_whose_syncs_fail_is_not_ready_for_the_reason_of_its_hook() {
    let mut running = run(ControllerState::Running, "Running");
    running.report.failing = true;
    running.report.last_error = Some("ns/p: creating ConfigMap ns/a: quota".to_owned());
    let failing = vec![failures(Some(HookKind::Sync), 1, "p")];
    let broken = Health { proven: true, failing, ..Health::default() };

    let of_hook = said(&Acceptance::Accepted, Some(&running), &broken);
    let of_others = said(&Acceptance::Accepted, Some(&running), &Health::default());

    assert_eq!(of_hook.conditions[0].reason, "HookTimeout");
    assert_eq!(
        (of_hook.state.as_deref(), of_hook.reason.as_deref()),
        (Some("Running"), Some("HookTimeout"))
    );
    assert_eq!(of_others.conditions[0].reason, "SyncsFailing");
    assert!(of_others.conditions[0].message.ends_with("quota"));
    for status in [of_hook, of_others] {
        assert_eq!(status.conditions[0].status, "False");
        assert_eq!(status.conditions[2].status, "True", "it runs");
    }
}

#[test]
fn every_failing_hook_is_named_with_the_number_of_its_parents() {
    let message = |failing: Vec<FailureSum>| {
        let health = Health { failing, ..Health::default() };
        said(&Acceptance::Accepted, None, &health).conditions[3].message.clone()
    };
    let late = "hook did not answer within 10s";

    assert_eq!(
        message(vec![
            failures(Some(HookKind::Customize), 1, "a"),
            failures(Some(HookKind::Finalize), 3, "b"),
            failures(Some(HookKind::Sync), 2, "d"),
        ]),
        format!(
            "customize: ns/a: {late}; finalize: 3 parents fail, first ns/b: {late}; \
             sync: 2 parents fail, first ns/d: {late}"
        )
    );
    assert_eq!(message(vec![failures(None, 1, "a")]), format!("ns/a: {late}"));
}

#[test]
fn parents_that_wait_in_a_rollout_are_named_with_their_times() {
    let waiting = |name: &str| WaitingParent {
        parent: crate::controller::Request::namespaced("ns", name),
        since: Timestamp::UNIX_EPOCH,
        wait: "missing child Pod x".to_owned(),
    };
    let rollouts = RolloutHealth {
        pending: 9,
        waiting: 3,
        since: Some(Timestamp::UNIX_EPOCH),
        longest: vec![waiting("a"), waiting("b")],
    };
    let previous = ControllerStatus::default();
    let view = View {
        generation: 7,
        acceptance: &Acceptance::Accepted,
        definition: None,
        run: None,
        health: &Health { rollouts, ..Health::default() },
        previous: &previous,
        now: Timestamp::UNIX_EPOCH,
    };

    let (status, reason, message) = view.rolled_out();

    assert_eq!((status, &*reason), (ConditionStatus::False, "RolloutWaiting"));
    assert_eq!(
        message,
        "9 rollouts, 3 waiting; ns/a since 1970-01-01T00:00:00Z: missing child Pod x; \
         ns/b since 1970-01-01T00:00:00Z: missing child Pod x; 1 more"
    );
}

#[test]
fn contested_objects_are_counted_and_named_and_their_condition_stays() {
    let first = vec![
        (Request::namespaced("ns", "a"), "ConfigMap ns/x".to_owned()),
        (Request::namespaced("ns", "b"), "ConfigMap ns/y".to_owned()),
    ];
    let contested = ContestedSum { count: 3, first };
    let health = Health { contested, ..Health::default() };
    let status = said(&Acceptance::Accepted, None, &health);
    let condition = status.conditions.last().unwrap();
    assert_eq!((&*condition.type_, &*condition.status), ("Contested", "True"));
    assert_eq!(
        condition.message,
        "3 contested: ConfigMap ns/x for ns/a, ConfigMap ns/y for ns/b; 1 more"
    );

    let view = View {
        generation: 7,
        acceptance: &Acceptance::Accepted,
        definition: None,
        run: None,
        health: &Health::default(),
        previous: &status,
        now: Timestamp::UNIX_EPOCH,
    };

    let status = view.status();
    let condition = status.conditions.last().unwrap();
    assert_eq!((&*condition.type_, &*condition.status), ("Contested", "False"));
    assert_eq!(condition.reason, "NoneContested");
}

#[test]
fn waiting_controller_names_its_missing_types() {
    let mut waiting = run(ControllerState::Waiting, "TypeAbsent");
    waiting.unmet = vec![UnmetRequirement {
        reason: Reason::TypeAbsent,
        message: "things.example.com/v1 is not installed".to_owned(),
        type_ref: None,
    }];

    let status = said(&Acceptance::Accepted, Some(&waiting), &Health::default());

    assert_eq!(status.reason.as_deref(), Some("TypeAbsent"));
    assert!(status.conditions[1].message.contains("things.example.com"));
    check(
        &status,
        [
            ("Ready", "False", "TypeAbsent"),
            ("TypesReady", "False", "TypeAbsent"),
            ("Running", "False", "TypeAbsent"),
            ("HooksHealthy", "Unknown", "NotAsked"),
        ],
    );
}

#[test]
fn rejected_edit_keeps_the_old_run_and_is_reported() {
    let rejected =
        Rejection::Undecodable { field: "spec.x".to_owned(), message: "wrong".to_owned() };

    let status = said(
        &Acceptance::Rejected(rejected.clone()),
        Some(&run(ControllerState::Running, "Running")),
        &Health::default(),
    );
    let alone = said(&Acceptance::Rejected(rejected), None, &Health::default());

    assert_eq!(status.state.as_deref(), Some("Running"));
    assert_eq!(status.reason.as_deref(), Some("SpecInvalid"));
    assert_eq!(status.conditions[0].message, "spec.x: wrong");
    assert_eq!(status.conditions[2].status, "True");
    assert_eq!(alone.state.as_deref(), Some("Invalid"));
}

#[test]
fn pending_edit_has_its_reason() {
    let mut running = run(ControllerState::Running, "Running");
    running.pending = Some("pods is not installed".to_owned());

    let status = said(&Acceptance::Accepted, Some(&running), &Health::default());

    assert_eq!(status.reason.as_deref(), Some("SpecPending"));
    assert!(status.conditions[0].message.contains("pods is not installed"));
}

#[test]
fn paused_controller_has_the_reason_paused() {
    let status = said(&Acceptance::Paused, None, &Health::default());

    assert_eq!(status.state.as_deref(), Some("Paused"));
    assert_eq!(status.conditions[0].reason, "Paused");
}

#[test]
fn a_condition_keeps_its_time_while_its_status_holds() {
    let later: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
    let (acceptance, health) = (Acceptance::Accepted, Health::default());
    let view = |previous: &ControllerStatus, run: &RunnableStatus, now| {
        View {
            generation: 1,
            acceptance: &acceptance,
            definition: None,
            run: Some(run),
            health: &health,
            previous,
            now,
        }
        .status()
    };
    let starting = run(ControllerState::Starting, "SourcesSyncing");
    let first = view(&ControllerStatus::default(), &starting, Timestamp::UNIX_EPOCH);

    let second = view(&first, &run(ControllerState::Running, "Running"), later);

    assert_eq!(second.conditions[1].last_transition_time, Timestamp::UNIX_EPOCH);
    assert_eq!(second.conditions[2].last_transition_time.to_string(), "2026-01-01T00:00:00Z");
}

#[test]
fn watches_are_listed() {
    let mut running = run(ControllerState::Running, "Running");
    running.report.watches = vec![WatchReport {
        type_ref: TypeRef::resource("apps", "v1", "deployments"),
        state: WatchState::Forbidden,
        error: Some("no rule".to_owned()),
    }];

    let status = said(&Acceptance::Accepted, Some(&running), &Health::default());

    assert_eq!(
        status.watches,
        [WatchStatus {
            resource: "deployments".to_owned(),
            api_version: "apps/v1".to_owned(),
            state: "Forbidden".to_owned(),
            message: "no rule".to_owned(),
        }]
    );
}
