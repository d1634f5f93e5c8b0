//! Status of a declared controller: the manager's state of it as conditions.

use k8s_openapi::jiff::Timestamp;

use super::{
    CompositeControllerStatus, Definition, Rejection, StatusCondition, WatchStatus,
    contested::ContestedSum,
    hook_health::{FailureSum, Health},
    rollout::{RolloutHealth, WaitingParent},
};
use crate::{
    controller::Request,
    kind::{TypeName, TypeRef},
    manager::{ControllerState, Reason, RunnableStatus, WatchState},
};

/// Longest message of a condition, in characters; a specification may have very many problems.
const MESSAGE_CHARS: usize = 1024;
/// Condition of objects that parents want and others own.
const CONTESTED: &str = "Contested";

/// Verdict on the object itself.
#[derive(Clone, Debug)]
pub(crate) enum Acceptance {
    /// The object is executed, or waits for its types.
    Accepted,
    /// The object is not executed; the previous run continues.
    Rejected(Rejection),
    /// The controller is stopped by annotation.
    Paused,
}

/// Input of a status.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) generation: i64,
    pub(crate) acceptance: &'a Acceptance,
    pub(crate) definition: Option<&'a Definition>,
    pub(crate) run: Option<&'a RunnableStatus>,
    pub(crate) health: &'a Health,
    pub(crate) previous: &'a CompositeControllerStatus,
    pub(crate) now: Timestamp,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// Status, reason and message of a condition.
type ConditionParts = (ConditionStatus, String, String);

impl View<'_> {
    /// Returns the status to be written.
    pub(crate) fn status(&self) -> CompositeControllerStatus {
        let ready = self.ready();
        let (state, reason) = match (self.acceptance, self.run) {
            (Acceptance::Paused, None) => ("Paused", "Paused".to_owned()),
            (Acceptance::Rejected(rejected), None) => ("Invalid", rejected.reason().to_owned()),
            (_, None) => ("Waiting", "NotStarted".to_owned()),
            (_, Some(run)) if ready.0 == ConditionStatus::True => {
                (run.state.word(), run.reason.to_string())
            }
            (_, Some(run)) => (run.state.word(), ready.1.clone()),
        };
        let mut conditions = vec![
            self.condition("Ready", ready),
            self.condition("TypesReady", self.types_ready()),
            self.condition("Running", self.running()),
            self.condition("HooksHealthy", self.hooks_healthy()),
        ];
        if self.definition.is_some_and(Definition::is_rolling) {
            conditions.push(self.condition("RolledOut", self.rolled_out()));
        }
        // Stays once an object was contested.
        let was_contested = self.previous.conditions.iter().any(|it| it.type_ == CONTESTED);
        if was_contested || self.health.contested.count > 0 {
            conditions.push(self.condition(CONTESTED, self.contested()));
        }
        CompositeControllerStatus {
            conditions,
            observed_generation: Some(self.generation),
            epoch: self.run.and_then(|run| i64::try_from(run.epoch).ok()),
            state: Some(state.to_owned()),
            reason: Some(reason),
            watches: self.watches(),
        }
    }

    fn ready(&self) -> ConditionParts {
        match (self.acceptance, self.run) {
            (Acceptance::Rejected(rejected), _) => {
                (ConditionStatus::False, rejected.reason().to_owned(), rejected.to_string())
            }
            (Acceptance::Paused, _) => (
                ConditionStatus::False,
                "Paused".to_owned(),
                "paused by the annotation pilotlight.dev/paused".to_owned(),
            ),
            (Acceptance::Accepted, None) => {
                (ConditionStatus::False, "NotStarted".to_owned(), String::new())
            }
            (Acceptance::Accepted, Some(run)) => match &run.pending {
                Some(pending) => (
                    ConditionStatus::False,
                    "SpecPending".to_owned(),
                    format!("the previous specification keeps running: {pending}"),
                ),
                None if !run.report.forbidden.is_empty() && run.report.late.is_empty() => (
                    ConditionStatus::False,
                    "Forbidden".to_owned(),
                    run.report.forbidden.join("; "),
                ),
                None if run.report.failing => self.failing(run),
                None => self.running(),
            },
        }
    }

    /// No sync has succeeded for a minute; the reason is the hook's, if it has failed.
    fn failing(&self, run: &RunnableStatus) -> ConditionParts {
        let hooks = self.hooks_healthy();
        if hooks.0 == ConditionStatus::False {
            return hooks;
        }
        let error = run.last_error().map(|error| format!(": {error}")).unwrap_or_default();
        let message = format!("no sync has succeeded for a minute{error}");
        (ConditionStatus::False, "SyncsFailing".to_owned(), message)
    }

    fn types_ready(&self) -> ConditionParts {
        let Some(run) = self.run else {
            return (ConditionStatus::Unknown, "NotStarted".to_owned(), String::new());
        };
        if let Some(first) = run.unmet.first() {
            let messages: Vec<_> = run.unmet.iter().map(|unmet| &*unmet.message).collect();
            let status = if run.unmet.iter().all(|unmet| unmet.reason == Reason::TypeUnknown) {
                ConditionStatus::Unknown
            } else {
                ConditionStatus::False
            };
            return (status, first.reason.to_string(), messages.join("; "));
        }
        match run.state {
            ControllerState::Waiting => {
                (ConditionStatus::Unknown, run.reason.to_string(), run.message.clone())
            }
            ControllerState::Starting
            | ControllerState::Running
            | ControllerState::Stopping
            | ControllerState::BackingOff
            | ControllerState::Stopped => {
                let missing: Vec<_> = run.report.missing.iter().map(TypeRef::to_string).collect();
                if missing.is_empty() {
                    (ConditionStatus::True, "TypesServed".to_owned(), String::new())
                } else {
                    let message = format!("optional types are missing: {}", missing.join(", "));
                    (ConditionStatus::True, "OptionalTypesMissing".to_owned(), message)
                }
            }
        }
    }

    fn running(&self) -> ConditionParts {
        let Some(run) = self.run else {
            let reason = match self.acceptance {
                Acceptance::Paused => "Paused",
                Acceptance::Rejected(rejected) => rejected.reason(),
                Acceptance::Accepted => "NotStarted",
            };
            return (ConditionStatus::False, reason.to_owned(), String::new());
        };
        let status = if run.state == ControllerState::Running {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        let mut message = run.message.clone();
        if message.is_empty()
            && let Some(error) = run.last_error()
        {
            message = format!("last error: {error}");
        }
        (status, run.reason.to_string(), message)
    }

    fn hooks_healthy(&self) -> ConditionParts {
        let Health { failing, proven, .. } = self.health;
        match (failing.first(), proven) {
            (Some(FailureSum { example: (_, failure), .. }), _) => {
                let messages: Vec<_> = failing.iter().map(|sum| self.failures(sum)).collect();
                (ConditionStatus::False, failure.reason.to_owned(), messages.join("; "))
            }
            (None, true) => (ConditionStatus::True, "HooksAnswer".to_owned(), String::new()),
            (None, false) => (ConditionStatus::Unknown, "NotAsked".to_owned(), String::new()),
        }
    }

    /// Returns the message about the failures of one hook: its name, and the number of parents or
    /// the name of a single one.
    fn failures(&self, sum: &FailureSum) -> String {
        let FailureSum { count, example: (parent, failure) } = sum;
        let hook = failure.hook.map(|hook| format!("{}: ", hook.word())).unwrap_or_default();
        let parent = self.name_of(parent);
        match count {
            1 => format!("{hook}{parent}: {}", failure.message),
            count => format!("{hook}{count} parents fail, first {parent}: {}", failure.message),
        }
    }

    /// Returns the name of a parent, with its type if there are several: their objects may have one
    /// name.
    fn name_of(&self, parent: &Request) -> String {
        let types = self.definition.map(|it| it.parents.as_slice()).unwrap_or_default();
        match types.get(parent.primary) {
            Some(own) if types.len() > 1 => format!("{} {parent}", own.type_ref),
            Some(_) | None => parent.to_string(),
        }
    }

    /// Objects that parents want and others own.
    fn contested(&self) -> ConditionParts {
        let ContestedSum { count, first } = &self.health.contested;
        if first.is_empty() {
            return (ConditionStatus::False, "NoneContested".to_owned(), String::new());
        }
        let named =
            |(parent, what): &(Request, String)| format!("{what} for {}", self.name_of(parent));
        let names: Vec<_> = first.iter().map(named).collect();
        let mut message = format!("{count} contested: {}", names.join(", "));
        if let Some(more) = count.checked_sub(first.len()).filter(|more| *more > 0) {
            message.push_str(&format!("; {more} more"));
        }
        (ConditionStatus::True, "ObjectsContested".to_owned(), message)
    }

    /// Rollouts that are under way, with the parents that have waited longest.
    fn rolled_out(&self) -> ConditionParts {
        let RolloutHealth { pending, waiting, since, longest } = &self.health.rollouts;
        if since.is_none() {
            return (ConditionStatus::True, "NoRollout".to_owned(), String::new());
        }
        let mut message = format!("{pending} rollouts");
        if longest.is_empty() {
            return (ConditionStatus::False, "RolloutProgressing".to_owned(), message);
        }
        message.push_str(&format!(", {waiting} waiting"));
        for WaitingParent { parent, since, wait } in longest {
            message.push_str(&format!("; {parent} since {since:.0}: {wait}"));
        }
        if let Some(more) = waiting.checked_sub(longest.len()).filter(|more| *more > 0) {
            message.push_str(&format!("; {more} more"));
        }
        (ConditionStatus::False, "RolloutWaiting".to_owned(), message)
    }

    fn condition(&self, type_: &str, (status, reason, message): ConditionParts) -> StatusCondition {
        let status = status.word();
        let before = self.previous.conditions.iter().find(|before| before.type_ == type_);
        let now = Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
        let last_transition_time = match before {
            Some(before) if before.status == status => before.last_transition_time,
            Some(_) | None => now,
        };
        StatusCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: if reason.is_empty() { "Unknown".to_owned() } else { reason },
            message: message.chars().take(MESSAGE_CHARS).collect(),
            last_transition_time,
            observed_generation: Some(self.generation),
        }
    }

    fn watches(&self) -> Vec<WatchStatus> {
        if let Some(run) = self.run
            && matches!(run.state, ControllerState::Starting | ControllerState::Running)
            && !run.report.watches.is_empty()
        {
            return run
                .report
                .watches
                .iter()
                .map(|watch| {
                    row(
                        &watch.type_ref,
                        watch.state.word(),
                        watch.error.clone().unwrap_or_default(),
                    )
                })
                .collect();
        }
        let Some(definition) = self.definition else { return Vec::new() };
        let types = definition.children.iter().map(|rule| &rule.type_ref);
        definition
            .parent_types()
            .chain(types)
            .map(|type_ref| {
                let unmet = self.run.iter().flat_map(|run| &run.unmet);
                let message = unmet
                    .filter(|unmet| unmet.type_ref.as_ref() == Some(type_ref))
                    .map(|unmet| unmet.message.clone())
                    .next()
                    .unwrap_or_default();
                row(type_ref, WatchState::Waiting.word(), message)
            })
            .collect()
    }
}

fn row(type_ref: &TypeRef, state: &str, message: String) -> WatchStatus {
    let (TypeName::Resource(resource) | TypeName::Kind(resource)) = &type_ref.name;
    let version = type_ref.version.as_deref().unwrap_or_default();
    WatchStatus {
        resource: resource.clone(),
        api_version: match type_ref.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        state: state.to_owned(),
        message: message.chars().take(MESSAGE_CHARS).collect(),
    }
}

impl ConditionStatus {
    fn word(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        manager::{RunnableGroup, UnmetRequirement, WatchReport},
        meta::{HookKind, hook_health::Failure},
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
    ) -> CompositeControllerStatus {
        let previous = CompositeControllerStatus::default();
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
    fn check(status: &CompositeControllerStatus, expected: [(&str, &str, &str); 4]) {
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
        let previous = CompositeControllerStatus::default();
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
        let view = |previous: &CompositeControllerStatus, run: &RunnableStatus, now| {
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
        let first = view(&CompositeControllerStatus::default(), &starting, Timestamp::UNIX_EPOCH);

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
}
