//! Summary of an object: whether its own controller has done what its spec asks.
//!
//! [`Summary::of`] is a pure function of the JSON of any object. It follows the rules of kstatus
//! (`pkg/kstatus/status` of sigs.k8s.io/cli-utils), in this order:
//!
//! 1. An object with a deletionTimestamp is `Terminating`.
//! 2. An object whose `status.observedGeneration` differs from `metadata.generation` is
//!    `InProgress`.
//! 3. The conditions `Reconciling` and `Stalled` decide if one of them is true.
//! 4. Kinds of Kubernetes have rules of their own: workloads, pods, jobs, claims of volumes,
//!    services and CRDs.
//! 5. The condition `Ready` decides.
//! 6. Without any of these the phases `Failed` and `Error` are `Failed`, `Pending` is
//!    `InProgress`, and everything else is `Current`. This step is not one of kstatus, which ignores
//!    phases of other kinds.

mod builtin;
#[cfg(test)]
mod tests;

use std::{fmt, time::SystemTime};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// State of an object, as a [`Summary`] judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum SummaryState {
    /// Object that is as its spec asks, or has no status that says otherwise.
    Current,
    /// Object whose controller has not finished yet.
    InProgress,
    /// Object whose controller cannot continue without a change.
    Failed,
    /// Object that is being deleted.
    Terminating,
    /// Object with a status that the rules of its kind do not know.
    Unknown,
}

/// Summary of one object.
///
/// ```
/// use pilotlight::summary::{SummaryState, Summary};
///
/// let object = serde_json::json!({
///     "apiVersion": "apps/v1", "kind": "Deployment",
///     "metadata": {"name": "web", "generation": 2},
///     "status": {"observedGeneration": 1},
/// });
/// let summary = Summary::of(&object);
/// assert_eq!(summary.state, SummaryState::InProgress);
/// assert_eq!(summary.reason, "LatestGenerationNotObserved");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// State of the object.
    pub state: SummaryState,
    /// Reason in CamelCase, such as that of the condition which decided; empty for `Current`.
    pub reason: String,
    /// Sentence for people, with the figures that decided.
    pub message: String,
    /// `status.phase`, if there is one.
    pub phase: Option<String>,
    /// Owner that controls the object, if there is one.
    pub controller: Option<OwnerReference>,
}

/// Condition of an object, as far as summaries read it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReportedCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
}

/// Judgement of one rule.
#[derive(Debug, PartialEq)]
struct Judgement {
    state: SummaryState,
    reason: String,
    message: String,
}

/// Fields of an object. A field of another type than expected counts as missing.
#[derive(Clone, Copy)]
struct ObjectFields<'a>(&'a Value);

impl Summary {
    /// Summarizes an object at the current time.
    pub fn of(object: &Value) -> Self {
        Self::at(object, SystemTime::now())
    }

    /// Summarizes an object at this time: a pod may be unschedulable for 15 s before it counts as
    /// `Failed`.
    pub fn at(object: &Value, now: SystemTime) -> Self {
        let fields = ObjectFields(object);
        let conditions = fields.conditions();
        let judgement = of_deletion(fields)
            .or_else(|| of_generation(fields))
            .or_else(|| of_standard_conditions(&conditions))
            .or_else(|| builtin::of_kind(fields, &conditions, now))
            .or_else(|| of_ready(&conditions))
            .or_else(|| of_phase(fields))
            .unwrap_or_else(|| Judgement::current("Resource is current"));
        Self {
            state: judgement.state,
            reason: judgement.reason,
            message: judgement.message,
            phase: fields.text("/status/phase").map(str::to_owned),
            controller: fields.controller(),
        }
    }

    /// Returns whether the object is `Current`.
    pub fn is_current(&self) -> bool {
        self.state == SummaryState::Current
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

impl fmt::Display for SummaryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Current => "Current",
            Self::InProgress => "InProgress",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
            Self::Unknown => "Unknown",
        })
    }
}

impl Judgement {
    fn current(message: impl Into<String>) -> Self {
        Self::new(SummaryState::Current, "", message)
    }

    fn in_progress(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(SummaryState::InProgress, reason, message)
    }

    fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(SummaryState::Failed, reason, message)
    }

    fn new(state: SummaryState, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { state, reason: reason.into(), message: message.into() }
    }
}

impl<'a> ObjectFields<'a> {
    fn integer(self, pointer: &str) -> Option<i64> {
        self.0.pointer(pointer)?.as_i64()
    }

    fn text(self, pointer: &str) -> Option<&'a str> {
        self.0.pointer(pointer)?.as_str()
    }

    fn kind(self) -> &'a str {
        self.text("/kind").unwrap_or_default()
    }

    fn group(self) -> &'a str {
        let api_version = self.text("/apiVersion").unwrap_or_default();
        api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the conditions that have the form of one.
    fn conditions(self) -> Vec<ReportedCondition> {
        let conditions = self.0.pointer("/status/conditions").and_then(Value::as_array);
        conditions
            .into_iter()
            .flatten()
            .filter_map(|it| ReportedCondition::deserialize(it).ok())
            .collect()
    }

    fn controller(self) -> Option<OwnerReference> {
        let owners = self.0.pointer("/metadata/ownerReferences")?.as_array()?;
        let owners = owners.iter().filter_map(|it| OwnerReference::deserialize(it).ok());
        owners.into_iter().find(|owner| owner.controller == Some(true))
    }
}

impl ReportedCondition {
    fn is(&self, kind: &str, status: &str) -> bool {
        self.kind == kind && self.status == status
    }
}

fn of_deletion(fields: ObjectFields<'_>) -> Option<Judgement> {
    let time = fields.text("/metadata/deletionTimestamp")?;
    let message = format!("deleted at {time}; waits for finalizers or its grace period");
    Some(Judgement::new(SummaryState::Terminating, "Deleted", message))
}

fn of_generation(fields: ObjectFields<'_>) -> Option<Judgement> {
    let generation = fields.integer("/metadata/generation")?;
    let observed = fields.integer("/status/observedGeneration")?;
    (observed != generation).then(|| {
        let message = format!("generation is {generation}, and {observed} was observed last");
        Judgement::in_progress("LatestGenerationNotObserved", message)
    })
}

fn of_standard_conditions(conditions: &[ReportedCondition]) -> Option<Judgement> {
    conditions.iter().find_map(|it| {
        if it.is("Reconciling", "True") {
            Some(Judgement::in_progress(&it.reason, &it.message))
        } else if it.is("Stalled", "True") {
            Some(Judgement::failed(&it.reason, &it.message))
        } else {
            None
        }
    })
}

fn of_ready(conditions: &[ReportedCondition]) -> Option<Judgement> {
    let ready = conditions.iter().find(|it| it.kind == "Ready")?;
    if ready.status == "True" {
        return Some(Judgement::current("Resource is ready"));
    }
    Some(Judgement::in_progress(&ready.reason, &ready.message))
}

fn of_phase(fields: ObjectFields<'_>) -> Option<Judgement> {
    match fields.text("/status/phase")? {
        phase @ ("Failed" | "Error") => Some(Judgement::failed(phase, format!("phase is {phase}"))),
        phase @ "Pending" => Some(Judgement::in_progress(phase, "phase is Pending")),
        _ => None,
    }
}
