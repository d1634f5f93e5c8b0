//! The status of a declared controller: what the manager knows, in Kubernetes' words. Pure.

use k8s_openapi::jiff::Timestamp;

use super::{CompositeControllerStatus, StatusCondition, WatchStatus};
use crate::{
    kind::{TypeName, TypeRef},
    manager::{ControllerState, RunnableStatus},
};

/// The finding that a composite's run reports about its hooks.
pub(crate) const HOOKS_HEALTHY: &str = "HooksHealthy";

/// All that a status is made of.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    /// Generation of the object that is answered.
    pub(crate) generation: i64,
    /// Why the object's specification is not executed: reason and message.
    pub(crate) rejected: Option<(&'a str, String)>,
    /// Its author has paused it.
    pub(crate) paused: bool,
    /// What the manager says of the controller, if there is one.
    pub(crate) runnable: Option<&'a RunnableStatus>,
    /// The status as it stands.
    pub(crate) before: &'a CompositeControllerStatus,
}

/// What a condition says.
struct Verdict {
    holds: Option<bool>,
    reason: String,
    message: String,
}

impl Verdict {
    fn new(holds: Option<bool>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { holds, reason: reason.into(), message: message.into() }
    }

    fn word(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

impl Facts<'_> {
    /// The status to be written; equal to the one before when there is nothing new.
    pub(crate) fn status(&self, now: Timestamp) -> CompositeControllerStatus {
        let (state, reason) = self.state();
        let conditions = [
            ("Ready", self.ready()),
            ("TypesReady", self.types_ready()),
            ("Running", self.running()),
            (HOOKS_HEALTHY, self.hooks_healthy()),
        ];
        CompositeControllerStatus {
            conditions: conditions
                .into_iter()
                .map(|(name, verdict)| self.condition(name, verdict, now))
                .collect(),
            observed_generation: Some(self.generation),
            epoch: self.runnable.and_then(|runnable| i64::try_from(runnable.epoch).ok()),
            state: Some(state),
            reason: Some(reason),
            watches: self.watches(),
        }
    }

    fn state(&self) -> (String, String) {
        match (self.runnable, &self.rejected) {
            (Some(runnable), _) => (runnable.state.word().to_owned(), runnable.reason.clone()),
            (None, Some((reason, _))) => ("Invalid".to_owned(), (*reason).to_owned()),
            (None, None) if self.paused => ("Paused".to_owned(), "Paused".to_owned()),
            (None, None) => ("Waiting".to_owned(), "NotStarted".to_owned()),
        }
    }

    /// Ready is running as its author wants it now.
    fn ready(&self) -> Verdict {
        if let Some((reason, message)) = &self.rejected {
            let suffix = match self.runnable {
                Some(_) => "; the controller goes on with the specification before",
                None => "",
            };
            return Verdict::new(Some(false), *reason, format!("{message}{suffix}"));
        }
        if let Some(pending) = self.runnable.and_then(|runnable| runnable.pending.as_ref()) {
            return Verdict::new(
                Some(false),
                "SpecPending",
                format!(
                    "the controller goes on with the specification before, because the new one \
                     cannot start: {pending}"
                ),
            );
        }
        self.running()
    }

    fn types_ready(&self) -> Verdict {
        let Some(runnable) = self.runnable else {
            return Verdict::new(None, "NotRunning", "");
        };
        let typed: Vec<_> =
            runnable.unmet.iter().filter(|unmet| unmet.type_ref.is_some()).collect();
        let messages =
            || typed.iter().map(|unmet| unmet.message.as_str()).collect::<Vec<_>>().join("; ");
        match (runnable.state, typed.first()) {
            (ControllerState::Waiting, Some(first)) => {
                let holds = (first.reason != "TypeUnknown").then_some(false);
                Verdict::new(holds, first.reason.as_str(), messages())
            }
            // Nothing is proven: what runs goes on, and says so.
            (_, Some(first)) => Verdict::new(None, first.reason.as_str(), messages()),
            (_, None) if !runnable.report.missing.is_empty() => {
                let missing: Vec<_> =
                    runnable.report.missing.iter().map(ToString::to_string).collect();
                Verdict::new(
                    Some(true),
                    "OptionalTypesMissing",
                    format!("not installed: {}", missing.join(", ")),
                )
            }
            (_, None) => Verdict::new(Some(true), "TypesServed", ""),
        }
    }

    fn running(&self) -> Verdict {
        match self.runnable {
            Some(runnable) => Verdict::new(
                Some(runnable.state == ControllerState::Running),
                runnable.reason.as_str(),
                match runnable.last_error() {
                    Some(error) if runnable.message.is_empty() => error,
                    _ => runnable.message.as_str(),
                },
            ),
            None if self.paused => Verdict::new(
                Some(false),
                "Paused",
                "remove the annotation pilotlight.dev/paused to start it again",
            ),
            None => match &self.rejected {
                Some((reason, message)) => Verdict::new(Some(false), *reason, message.as_str()),
                None => Verdict::new(Some(false), "NotStarted", ""),
            },
        }
    }

    fn hooks_healthy(&self) -> Verdict {
        let finding = self.runnable.and_then(|it| it.report.findings.get(HOOKS_HEALTHY));
        match finding {
            Some(finding) => {
                Verdict::new(finding.holds, finding.reason.as_str(), finding.message.as_str())
            }
            None => Verdict::new(None, "NotCalled", "no hook has been called in this run"),
        }
    }

    fn condition(&self, name: &str, verdict: Verdict, now: Timestamp) -> StatusCondition {
        let status = verdict.word();
        let since = self
            .before
            .conditions
            .iter()
            .find(|before| before.type_ == name && before.status == status)
            .map_or(now, |before| before.last_transition_time);
        StatusCondition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason,
            message: verdict.message,
            last_transition_time: since,
            observed_generation: Some(self.generation),
        }
    }

    /// The types that it watches, or waits for.
    fn watches(&self) -> Vec<WatchStatus> {
        let Some(runnable) = self.runnable else { return Vec::new() };
        let mut watches: Vec<_> = runnable
            .report
            .watches
            .iter()
            .map(|watch| row(&watch.type_ref, watch.state, watch.error.clone()))
            .collect();
        if watches.is_empty() {
            watches.extend(runnable.unmet.iter().filter_map(|unmet| {
                let type_ref = unmet.type_ref.as_ref()?;
                Some(row(type_ref, &unmet.reason, Some(unmet.message.clone())))
            }));
        }
        watches
    }
}

fn row(type_ref: &TypeRef, state: &str, message: Option<String>) -> WatchStatus {
    let (TypeName::Resource(resource) | TypeName::Kind(resource)) = &type_ref.name;
    let version = type_ref.version.as_deref().unwrap_or("*");
    WatchStatus {
        api_version: match type_ref.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        resource: resource.clone(),
        state: state.to_owned(),
        message: message.unwrap_or_default(),
    }
}

/// What was told in Events of a controller's life: the last epoch, and whether it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    epoch: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Idle,
    Starting,
    Running,
    Stopping,
}

impl Told {
    /// The reasons of the Events that are due, with Metacontroller's words, and what is told then.
    ///
    /// Steps that were too quick to be seen are told all the same, in their order.
    pub(crate) fn next(self, runnable: Option<&RunnableStatus>) -> (Vec<&'static str>, Self) {
        let (epoch, stage) = match runnable {
            None => (self.epoch, Stage::Idle),
            Some(runnable) => (
                runnable.epoch,
                match runnable.state {
                    ControllerState::Starting => Stage::Starting,
                    ControllerState::Running => Stage::Running,
                    ControllerState::Stopping => Stage::Stopping,
                    ControllerState::Waiting
                    | ControllerState::BackingOff
                    | ControllerState::Stopped => Stage::Idle,
                },
            ),
        };
        let mut events = Vec::new();
        let same = epoch == self.epoch;
        // The end of what was told before.
        if self.stage != Stage::Idle && (!same || stage == Stage::Idle || stage == Stage::Stopping)
        {
            if self.stage != Stage::Stopping {
                events.push("Stopping");
            }
            if !same || stage != Stage::Stopping {
                events.push("Stopped");
            }
        }
        if (!same || self.stage == Stage::Idle) && stage != Stage::Idle && stage != Stage::Stopping
        {
            events.push("Starting");
        }
        if stage == Stage::Running && (!same || self.stage != Stage::Running) {
            events.push("Started");
        }
        (events, Self { epoch, stage })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manager::{Report, RunnableGroup, Unmet};

    fn runnable(state: ControllerState, epoch: u64) -> RunnableStatus {
        RunnableStatus {
            name: "CompositeController-things".into(),
            group: RunnableGroup::LeaderElection,
            state,
            reason: state.word().to_owned(),
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
            epoch,
            unmet: Vec::new(),
            report: Report::default(),
            last_done: None,
            pending: None,
            stuck: false,
            failures: 0,
        }
    }

    fn waiting() -> RunnableStatus {
        let type_ref = TypeRef::resource("example.com", "v1", "things");
        RunnableStatus {
            reason: "TypeAbsent".into(),
            unmet: vec![Unmet {
                reason: "TypeAbsent".into(),
                message: "things.example.com/v1 is not installed".into(),
                type_ref: Some(type_ref),
            }],
            ..runnable(ControllerState::Waiting, 0)
        }
    }

    fn facts<'a>(
        runnable: Option<&'a RunnableStatus>,
        before: &'a CompositeControllerStatus,
    ) -> Facts<'a> {
        Facts { generation: 3, rejected: None, paused: false, runnable, before }
    }

    #[track_caller]
    fn check(facts: &Facts<'_>, expected: &[(&str, &str, &str)]) {
        let status = facts.status(Timestamp::UNIX_EPOCH);

        let conditions: Vec<_> = status
            .conditions
            .iter()
            .map(|it| (it.type_.as_str(), it.status.as_str(), it.reason.as_str()))
            .collect();
        assert_eq!(conditions, expected);
        assert_eq!(status.observed_generation, Some(3));
    }

    #[test]
    fn a_missing_type_is_named() {
        let (runnable, before) = (waiting(), CompositeControllerStatus::default());
        let facts = facts(Some(&runnable), &before);

        check(
            &facts,
            &[
                ("Ready", "False", "TypeAbsent"),
                ("TypesReady", "False", "TypeAbsent"),
                ("Running", "False", "TypeAbsent"),
                ("HooksHealthy", "Unknown", "NotCalled"),
            ],
        );
        let watches = facts.status(Timestamp::UNIX_EPOCH).watches;
        assert_eq!(watches[0].resource, "things");
        assert_eq!(watches[0].message, "things.example.com/v1 is not installed");
    }

    #[test]
    fn a_rejected_edit_does_not_hide_that_the_old_one_runs() {
        let (runnable, before) =
            (runnable(ControllerState::Running, 1), CompositeControllerStatus::default());
        let facts = Facts {
            rejected: Some(("SpecInvalid", "spec.hooks.sync: is required".to_owned())),
            ..facts(Some(&runnable), &before)
        };

        check(
            &facts,
            &[
                ("Ready", "False", "SpecInvalid"),
                ("TypesReady", "True", "TypesServed"),
                ("Running", "True", "Running"),
                ("HooksHealthy", "Unknown", "NotCalled"),
            ],
        );
    }

    #[test]
    fn a_pause_says_how_to_end_it() {
        let before = CompositeControllerStatus::default();
        let facts = Facts { paused: true, ..facts(None, &before) };

        let status = facts.status(Timestamp::UNIX_EPOCH);

        assert_eq!(status.state.as_deref(), Some("Paused"));
        assert!(status.conditions[0].message.contains("pilotlight.dev/paused"));
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let (waiting, running) = (waiting(), runnable(ControllerState::Running, 1));
        let before = CompositeControllerStatus::default();
        let first = facts(Some(&waiting), &before).status(Timestamp::from_second(1).unwrap());

        let same = facts(Some(&waiting), &first).status(Timestamp::from_second(2).unwrap());
        assert_eq!(same, first);

        let next = facts(Some(&running), &first).status(Timestamp::from_second(3).unwrap());
        assert_eq!(next.conditions[0].last_transition_time, Timestamp::from_second(3).unwrap());
        assert_eq!(next.conditions[3].last_transition_time, Timestamp::from_second(1).unwrap());
    }

    #[test]
    fn events_tell_a_life_in_order_and_each_step_once() {
        use ControllerState::{Running, Starting, Stopping, Waiting};
        let mut told = Told::default();
        for (state, epoch, expected) in [
            (Waiting, 0, vec![]),
            (Starting, 1, vec!["Starting"]),
            (Running, 1, vec!["Started"]),
            (Running, 1, vec![]),
            (Stopping, 1, vec!["Stopping"]),
            (Waiting, 1, vec!["Stopped"]),
            (Running, 2, vec!["Starting", "Started"]),
            // An epoch went by unseen.
            (Starting, 4, vec!["Stopping", "Stopped", "Starting"]),
            (Waiting, 4, vec!["Stopping", "Stopped"]),
        ] {
            let status = Arc::new(runnable(state, epoch));

            let (events, next) = told.next(Some(&status));

            assert_eq!(events, expected, "{state:?} {epoch}");
            told = next;
        }
    }
}
