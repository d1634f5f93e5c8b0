//! Whether a child that is to be recreated differs at all.
//!
//! A hook may spell a value otherwise than the server keeps it: `0.5` for `500m`, a null for what
//! is empty or has a default. Only the server knows that both mean the same, so it is asked what
//! an update would leave, by a dry run. Without this such a child would be deleted and created
//! with every sync.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::meta::{
    fingerprint::Fingerprint,
    resource::{asks_to_wait, is_conflict, is_fenced},
};

/// Fields in which two looks at one unchanged object differ; a dry run counts as a change.
const OF_EACH_LOOK: [&str; 3] = ["resourceVersion", "managedFields", "generation"];

/// How a child differs from what is wanted, as the server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DryRunUpdate {
    /// An update would change nothing.
    None,
    /// It does, or nobody knows: a field that cannot be changed refuses the update, and so does a
    /// server that lets us delete and create but not update.
    Some,
    /// What was observed is old.
    Behind,
    /// The epoch is over.
    Over,
    /// The server asks to wait.
    Throttled(Duration),
}

/// What the answer to the dry run of an update of `observed` means.
pub(super) fn dry_run_update(
    observed: &[u8],
    answer: &Result<Box<RawValue>, kube::Error>,
) -> DryRunUpdate {
    let essence = |object: &[u8]| Fingerprint::of_object(object, &OF_EACH_LOOK).ok();
    match answer {
        Ok(updated) => match (essence(observed), essence(updated.get().as_bytes())) {
            (Some(observed), Some(updated)) if observed == updated => DryRunUpdate::None,
            _ => DryRunUpdate::Some,
        },
        Err(error) if is_fenced(error) => DryRunUpdate::Over,
        Err(error) if is_conflict(error) => DryRunUpdate::Behind,
        Err(error) => asks_to_wait(error).map_or(DryRunUpdate::Some, DryRunUpdate::Throttled),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    #[track_caller]
    fn answers(updated: Value, expected: DryRunUpdate) {
        let observed = json!({
            "kind": "ResourceQuota",
            "metadata": { "name": "a", "uid": "u", "resourceVersion": "7", "generation": 1 },
            "spec": { "hard": { "cpu": "500m" } },
        });

        assert_eq!(
            dry_run_update(observed.to_string().as_bytes(), &Ok(to_raw_value(&updated).unwrap())),
            expected,
            "{updated}"
        );
    }

    #[test]
    fn a_child_differs_only_where_the_server_would_keep_something_else() {
        let as_it_is = json!({
            "kind": "ResourceQuota",
            "metadata": { "name": "a", "uid": "u", "resourceVersion": "7", "generation": 1 },
            "spec": { "hard": { "cpu": "500m" } },
        });
        let with = |pointer: &str, field: &str, value: Value| {
            let mut changed = as_it_is.clone();
            changed.pointer_mut(pointer).unwrap()[field] = value;
            changed
        };

        answers(as_it_is.clone(), DryRunUpdate::None);
        answers(with("/metadata", "resourceVersion", json!("8")), DryRunUpdate::None);
        answers(with("/metadata", "generation", json!(2)), DryRunUpdate::None);
        answers(
            with("/metadata", "managedFields", json!([{ "manager": "m" }])),
            DryRunUpdate::None,
        );
        answers(with("/spec", "scopes", Value::Null), DryRunUpdate::None);
        answers(with("/spec/hard", "cpu", json!("1")), DryRunUpdate::Some);
        answers(with("/spec/hard", "memory", json!("1Gi")), DryRunUpdate::Some);
        answers(with("/metadata", "labels", json!({ "a": "b" })), DryRunUpdate::Some);
        answers(with("/metadata", "annotations", json!({ "a": "b" })), DryRunUpdate::Some);
        answers(with("/metadata", "uid", json!("another")), DryRunUpdate::Some);
        answers(Value::Null, DryRunUpdate::Some);
    }

    #[track_caller]
    fn refuses(code: u16, reason: &str, expected: DryRunUpdate) {
        let status = Status::failure("no", reason).with_code(code);
        let refused = Err(kube::Error::Api(status.boxed()));

        assert_eq!(dry_run_update(b"{}", &refused), expected, "{reason}");
    }

    #[test]
    fn an_update_that_is_refused_is_a_difference_unless_the_cache_is_behind() {
        refuses(422, "Invalid", DryRunUpdate::Some);
        refuses(403, "Forbidden", DryRunUpdate::Some);
        refuses(404, "NotFound", DryRunUpdate::Some);
        refuses(405, "MethodNotAllowed", DryRunUpdate::Some);
        refuses(400, "BadRequest", DryRunUpdate::Some);
        refuses(500, "InternalError", DryRunUpdate::Some);
        refuses(409, "Conflict", DryRunUpdate::Behind);
    }
}
