//! Status of a declared controller: the manager's state of it as conditions.

use k8s_openapi::jiff::Timestamp;

use crate::{
    controller::Request,
    kind::{TypeName, TypeRef},
    manager::{ControllerState, RunnableStatus, WatchState},
    meta::{
        api::{ControllerStatus, StatusCondition, WatchStatus, rejection::Rejection},
        definition::Definition,
        parent::{
            contested::ContestedSum,
            health::{FailureSum, Health, RolloutHealth, WaitingParent},
        },
    },
};

/// Longest message of a condition, in characters; a specification may have very many problems.
const MESSAGE_CHARS: usize = 1024;
/// Condition of desired objects that other controllers own.
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
    pub(crate) previous: &'a ControllerStatus,
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
    pub(crate) fn status(&self) -> ControllerStatus {
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
        ControllerStatus {
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
                "paused by the annotation pilotlight.dev/paused; remove it to resume".to_owned(),
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
            let status = if run.unmet.iter().all(|unmet| unmet.reason.is_of_unknown_type()) {
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

    /// Desired objects of parents that others own.
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
mod tests;
