//! Dry run of an update: checks that a child which is to be recreated differs from the desired one.
//!
//! A hook may spell a value differently than the server stores it: `0.5` for `500m`, or a null for
//! a field that is empty or has a default. Only the server knows that both mean the same, so a dry
//! run requests the result of an update. Without it such a child would be deleted and created by
//! every sync.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::meta::{
    json::digest::JsonDigest,
    parent::sync_error::{CONFLICTS_BEFORE_EVENT, SyncError},
    resource::{is_conflict, is_fenced, requested_wait},
};

/// Fields that a dry run changes even if the update would change nothing else.
const VOLATILE_FIELDS: [&str; 3] = ["resourceVersion", "managedFields", "generation"];

/// Returns whether the server would store another object than the observed one, from the response
/// to a dry run.
pub(super) fn differs(
    observed: &[u8],
    response: &Result<Box<RawValue>, kube::Error>,
    what: &str,
    attempt: u32,
) -> Result<bool, SyncError> {
    match dry_run_update(observed, response) {
        DryRunUpdate::Unchanged => Ok(false),
        DryRunUpdate::Cancelled => Err(SyncError::Cancelled),
        DryRunUpdate::Throttled(after) => {
            let message = format!("comparing {what}: the API server throttles requests");
            Err(SyncError::Throttled { message, after })
        }
        // A cache that never catches up must not block a replacement for ever.
        DryRunUpdate::Conflict if attempt < CONFLICTS_BEFORE_EVENT => {
            Err(SyncError::Conflict(format!("comparing {what}: the cache is behind")))
        }
        DryRunUpdate::Conflict | DryRunUpdate::Changed => Ok(true),
    }
}

/// Outcome of a dry run of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DryRunUpdate {
    /// The update would change nothing.
    Unchanged,
    /// The update would change the object, or the server refuses it, as for an immutable field.
    Changed,
    /// The observed object is outdated.
    Conflict,
    /// The epoch is over.
    Cancelled,
    /// The server throttled the request.
    Throttled(Duration),
}

/// Reads the response to the dry run of an update of `observed`.
fn dry_run_update(observed: &[u8], response: &Result<Box<RawValue>, kube::Error>) -> DryRunUpdate {
    let digest = |object: &[u8]| JsonDigest::of_object(object, &VOLATILE_FIELDS).ok();
    match response {
        Ok(updated) => match (digest(observed), digest(updated.get().as_bytes())) {
            (Some(observed), Some(updated)) if observed == updated => DryRunUpdate::Unchanged,
            _ => DryRunUpdate::Changed,
        },
        Err(error) if is_fenced(error) => DryRunUpdate::Cancelled,
        Err(error) if is_conflict(error) => DryRunUpdate::Conflict,
        Err(error) => requested_wait(error).map_or(DryRunUpdate::Changed, DryRunUpdate::Throttled),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    #[track_caller]
    fn responses(updated: Value, expected: DryRunUpdate) {
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
    fn child_differs_only_where_the_server_would_store_another_value() {
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

        responses(as_it_is.clone(), DryRunUpdate::Unchanged);
        responses(with("/metadata", "resourceVersion", json!("8")), DryRunUpdate::Unchanged);
        responses(with("/metadata", "generation", json!(2)), DryRunUpdate::Unchanged);
        responses(
            with("/metadata", "managedFields", json!([{ "manager": "m" }])),
            DryRunUpdate::Unchanged,
        );
        responses(with("/spec", "scopes", Value::Null), DryRunUpdate::Unchanged);
        responses(with("/spec/hard", "cpu", json!("1")), DryRunUpdate::Changed);
        responses(with("/spec/hard", "memory", json!("1Gi")), DryRunUpdate::Changed);
        responses(with("/metadata", "labels", json!({ "a": "b" })), DryRunUpdate::Changed);
        responses(with("/metadata", "annotations", json!({ "a": "b" })), DryRunUpdate::Changed);
        responses(with("/metadata", "uid", json!("another")), DryRunUpdate::Changed);
        responses(Value::Null, DryRunUpdate::Changed);
    }

    #[track_caller]
    fn refuses(code: u16, reason: &str, expected: DryRunUpdate) {
        let status = Status::failure("no", reason).with_code(code);
        let refused = Err(kube::Error::Api(status.boxed()));

        assert_eq!(dry_run_update(b"{}", &refused), expected, "{reason}");
    }

    #[test]
    fn an_update_that_is_refused_is_a_difference_unless_the_cache_is_behind() {
        refuses(422, "Invalid", DryRunUpdate::Changed);
        refuses(403, "Forbidden", DryRunUpdate::Changed);
        refuses(404, "NotFound", DryRunUpdate::Changed);
        refuses(405, "MethodNotAllowed", DryRunUpdate::Changed);
        refuses(400, "BadRequest", DryRunUpdate::Changed);
        refuses(500, "InternalError", DryRunUpdate::Changed);
        refuses(409, "Conflict", DryRunUpdate::Conflict);
    }
}
