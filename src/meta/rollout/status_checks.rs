//! Status checks: conditions that an updated child must have before the rollout continues.

use serde_json::Value;

use crate::meta::{api::StatusChecks, definition::UpdateMethod};

/// Returns whether the status of a child passes the checks, and describes its latest generation.
///
/// A child without `status.observedGeneration` counts as described.
///
/// # Errors
///
/// Text about the missing condition, to follow the words `child <kind> <name>`.
pub(crate) fn readiness(
    child: &Value,
    method: UpdateMethod,
    checks: &StatusChecks,
) -> Result<(), String> {
    let number = |pointer| child.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    let observed = number("/status/observedGeneration");
    if observed > 0 && observed < number("/metadata/generation") {
        return Err(format!("with {method} update strategy hasn't observed latest spec"));
    }
    let conditions = child.pointer("/status/conditions").and_then(Value::as_array);
    for check in &checks.conditions {
        let text = |condition: &Value, field: &str| {
            condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let is_named = |condition: &&Value| text(condition, "type") == check.type_;
        let Some(found) = conditions.into_iter().flatten().find(is_named) else {
            return Err(format!(
                "failed status check: required condition type missing: {:?}",
                check.type_
            ));
        };
        for (field, wanted) in [("status", &check.status), ("reason", &check.reason)] {
            let is = text(found, field);
            if let Some(wanted) = wanted.as_ref().filter(|wanted| **wanted != is) {
                return Err(format!(
                    "failed status check: {:?} condition {field} is {is:?} (want {wanted:?})",
                    check.type_
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::meta::api::StatusConditionCheck;

    #[track_caller]
    fn check(child: Value, checks: &[(&str, Option<&str>, Option<&str>)], expected: &str) {
        let conditions = checks.iter().map(|(type_, status, reason)| StatusConditionCheck {
            type_: (*type_).to_owned(),
            status: status.map(str::to_owned),
            reason: reason.map(str::to_owned),
        });
        let checks = StatusChecks { conditions: conditions.collect() };

        let found = readiness(&child, UpdateMethod::RollingInPlace, &checks);

        assert_eq!(found.err().unwrap_or_default(), expected, "{child}");
    }

    #[test]
    fn every_check_is_decided() {
        let ready = |status: &str, reason: &str| {
            json!({"status": {"conditions": [
                7, {"type": "Other"}, {"type": "Ready", "status": status, "reason": reason},
            ]}})
        };
        let wanted = [("Ready", Some("True"), Some("Up"))];
        check(json!({}), &[], "");
        check(ready("True", "Up"), &wanted, "");
        check(ready("False", ""), &[("Ready", None, None)], "");
        check(
            json!({"status": {"conditions": "x"}}),
            &wanted,
            r#"failed status check: required condition type missing: "Ready""#,
        );
        check(
            ready("False", "Up"),
            &wanted,
            r#"failed status check: "Ready" condition status is "False" (want "True")"#,
        );
        check(
            ready("True", "Down"),
            &wanted,
            r#"failed status check: "Ready" condition reason is "Down" (want "Up")"#,
        );
    }

    #[test]
    fn status_of_an_earlier_generation_does_not_count() {
        let child = |generation: i64, observed: i64| {
            json!({
                "metadata": {"generation": generation},
                "status": {"observedGeneration": observed},
            })
        };
        check(child(2, 2), &[], "");
        check(child(2, 1), &[], "with RollingInPlace update strategy hasn't observed latest spec");
        check(child(2, 0), &[], "");
        check(json!({"metadata": {"generation": 2}}), &[], "");
    }
}
