//! Condition `Updated` of a parent, in the status of the hook response.
//!
//! Semantics: `syncRollingUpdate` of Metacontroller (`pkg/controller/composite/rolling_update.go`).
//! A condition of the hook with this type is replaced, and an absent status is an empty one.

use bytes::Bytes;
use serde_json::{Value, json};

use super::plan::RolloutProgress;
use crate::{meta::json::rewrite, redaction};

/// Type of the condition.
const TYPE: &str = "Updated";

/// State of a rollout, as its parent's status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpdatedCondition {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl UpdatedCondition {
    /// Returns the condition for this progress. `latest` is the name of the latest revision.
    pub(crate) fn new(progress: &RolloutProgress, latest: &str) -> Self {
        let (status, reason, message) = match progress {
            RolloutProgress::Complete => {
                ("True", "OnLatestRevision", format!("latest ControllerRevision: {latest}"))
            }
            RolloutProgress::Updating(child) => {
                ("False", "RolloutProgressing", format!("updating {child}"))
            }
            RolloutProgress::Waiting(wait) => ("False", "RolloutWaiting", wait.to_string()),
        };
        Self { status, reason, message }
    }

    /// Returns the status of the hook with this condition.
    ///
    /// # Errors
    ///
    /// Name of a field of the status that is no valid list of conditions.
    pub(crate) fn within(&self, status: Option<&Bytes>) -> Result<Bytes, String> {
        let status = status.map_or(&b"{}"[..], |status| status);
        let mut conditions = conditions_of(status)?.unwrap_or_default();
        let condition = json!({
            "type": TYPE, "status": self.status, "reason": self.reason, "message": self.message,
        });
        match conditions.iter_mut().find(|known| is_updated(known)) {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
        let text = Value::Array(conditions).to_string();
        let mut with = Vec::with_capacity(status.len() + text.len());
        rewrite::with_field(status, "conditions", text.as_bytes(), &mut with)
            .map_err(unreadable)?;
        Ok(with.into())
    }

    /// Returns whether an observed parent has this condition.
    #[cfg(test)]
    fn is_on(&self, parent: &Value) -> bool {
        let conditions = parent.pointer("/status/conditions").and_then(Value::as_array);
        let known = conditions.into_iter().flatten().find(|known| is_updated(known));
        known.is_some_and(|known| {
            known["status"] == self.status
                && known["reason"] == self.reason
                && known["message"] == *self.message
        })
    }
}

fn is_updated(condition: &Value) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(TYPE)
}

/// Decodes the conditions alone.
fn conditions_of(status: &[u8]) -> Result<Option<Vec<Value>>, String> {
    #[derive(serde::Deserialize)]
    struct StatusConditions {
        #[serde(default)]
        conditions: Option<Vec<Value>>,
    }
    let status: StatusConditions = serde_json::from_slice(status).map_err(unreadable)?;
    Ok(status.conditions)
}

fn unreadable(error: serde_json::Error) -> String {
    format!("status.conditions of the hook's response: {}", redaction::decoding(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::rollout::plan::{ChildId, RolloutWait};

    fn complete() -> UpdatedCondition {
        UpdatedCondition::new(&RolloutProgress::Complete, "r")
    }

    #[track_caller]
    fn check(status: Option<&str>, expected: Value) {
        let status = status.map(|status| Bytes::copy_from_slice(status.as_bytes()));

        let with = complete().within(status.as_ref()).unwrap();

        assert_eq!(serde_json::from_slice::<Value>(&with).unwrap(), expected);
    }

    #[test]
    fn condition_is_added_to_any_status_and_always_overwrites_the_hooks() {
        let updated = json!({
            "type": "Updated", "status": "True", "reason": "OnLatestRevision",
            "message": "latest ControllerRevision: r",
        });
        check(None, json!({"conditions": [updated]}));
        check(Some(r#"{"a":1,"conditions":null}"#), json!({"a": 1, "conditions": [updated]}));
        check(
            Some(r#"{"conditions":[{"type":"Updated","status":"False","x":1},{"type":"Ready"}]}"#),
            json!({"conditions": [updated, {"type": "Ready"}]}),
        );
        let error = complete().within(Some(&Bytes::from_static(br#"{"conditions":{}}"#)));
        assert!(error.unwrap_err().starts_with("status.conditions of the hook's response"));
    }

    #[test]
    fn condition_reads_as_that_of_metacontroller() {
        let child = || ChildId::new("apps", "Deployment", "ns/a");
        for (progress, reason, message) in [
            (RolloutProgress::Updating(child()), "RolloutProgressing", "updating Deployment ns/a"),
            (
                RolloutProgress::Waiting(RolloutWait::missing(child())),
                "RolloutWaiting",
                "missing child Deployment ns/a",
            ),
        ] {
            let condition = UpdatedCondition::new(&progress, "r");

            assert_eq!((condition.status, condition.reason), ("False", reason));
            assert_eq!(condition.message, message);
            let status = condition.within(None).unwrap();
            let parent = |status: Value| json!({ "status": status });
            assert!(condition.is_on(&parent(serde_json::from_slice(&status).unwrap())));
            assert!(!complete().is_on(&parent(serde_json::from_slice(&status).unwrap())));
        }
    }
}
