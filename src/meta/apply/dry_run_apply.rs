//! Dry run of a server-side apply: checks that a child which is to be recreated differs from the
//! desired one.
//!
//! The dry run has uid and resourceVersion of the observed child, so that a change of another
//! client is no difference. A kind with a generation has another one if its specification would
//! change.

use serde_json::value::RawValue;

use crate::{
    meta::{
        json::digest::JsonDigest,
        parent::sync_error::SyncError,
        resource::{is_gone, is_invalid, is_other_uid, is_refused},
    },
    redaction,
};

/// Fields of the metadata that a dry run changes even if the apply would change nothing else.
const VOLATILE_FIELDS: [&str; 3] = ["resourceVersion", "managedFields", "generation"];

/// Outcome of a dry run of an apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DryRunApply {
    /// The apply would change nothing.
    Unchanged,
    /// The apply would change the object.
    Changed,
    /// The apply is invalid: the desired object is, or a field that it changes is immutable.
    Invalid,
    /// The server or a policy refuses the apply, so that it shows no difference. The child stays.
    Refused(String),
}

/// Reads the response to a dry run over `observed`.
///
/// # Errors
///
/// The outcome is unknown, or the observed child is outdated.
pub(super) fn dry_run_apply(
    observed: &[u8],
    response: &Result<Box<RawValue>, kube::Error>,
    what: &str,
) -> Result<DryRunApply, SyncError> {
    match response {
        Ok(applied) if same(observed, applied.get().as_bytes()) => Ok(DryRunApply::Unchanged),
        Ok(_) => Ok(DryRunApply::Changed),
        Err(error) if is_invalid(error) && !is_other_uid(error) => Ok(DryRunApply::Invalid),
        Err(error) if is_refused(error) => Ok(DryRunApply::Refused(format!(
            "comparing {what}: the child is kept, since the dry run is refused: {}",
            redaction::request_error(error)
        ))),
        Err(error) if is_gone(error) || is_other_uid(error) => {
            Err(SyncError::Outdated(format!("comparing {what}: the object no longer exists")))
        }
        Err(error) => Err(SyncError::of_write(&format!("comparing {what}"), error)),
    }
}

/// Returns whether two versions of an object differ in nothing that an apply decides.
fn same(one: &[u8], other: &[u8]) -> bool {
    let digest = |object: &[u8]| JsonDigest::of_applied(object, &VOLATILE_FIELDS).ok();
    match (digest(one), digest(other)) {
        (Some(one), Some(other)) => one == other,
        (None, _) | (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    fn object(generation: u64, cpu: &str) -> Value {
        json!({
            "kind": "ResourceQuota",
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "7", "generation": generation,
            },
            "spec": { "hard": { "cpu": cpu } },
        })
    }

    fn responses(applied: Value) -> DryRunApply {
        let response = Ok(to_raw_value(&applied).unwrap());
        dry_run_apply(object(1, "500m").to_string().as_bytes(), &response, "x").unwrap()
    }

    fn refused(code: u16, reason: &str) -> Result<DryRunApply, SyncError> {
        let status = Status::failure("no", reason).with_code(code);
        dry_run_apply(b"{}", &Err(kube::Error::Api(status.boxed())), "x")
    }

    #[test]
    fn child_of_a_kind_with_a_generation_differs_if_its_specification_would_change() {
        assert_eq!(responses(object(1, "500m")), DryRunApply::Unchanged);
        assert_eq!(responses(object(2, "1")), DryRunApply::Changed);
        let mut written = object(1, "500m");
        written["metadata"]["managedFields"] = json!([{"manager": "m"}]);
        written["status"] = json!({"used": {}});
        assert_eq!(responses(written), DryRunApply::Unchanged);
        let mut labelled = object(1, "500m");
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(responses(labelled), DryRunApply::Changed, "metadata has no generation");
    }

    #[test]
    fn refused_dry_run_shows_no_difference_unless_a_field_is_immutable() {
        assert_eq!(refused(422, "Invalid").unwrap(), DryRunApply::Invalid);
        for (code, reason) in [(400, "BadRequest"), (403, "Forbidden")] {
            let DryRunApply::Refused(why) = refused(code, reason).unwrap() else {
                panic!("{code} is a refusal")
            };
            assert!(why.ends_with("the dry run is refused: no"), "{why}");
        }
        let other = json!({
            "code": 422, "reason": "Invalid", "details": {"causes": [{"field": "metadata.uid"}]},
        });
        let other = serde_json::from_value::<Status>(other).unwrap();
        let other = dry_run_apply(b"{}", &Err(kube::Error::Api(other.boxed())), "x");
        assert!(matches!(other, Err(SyncError::Outdated(_))), "{other:?}");
        assert!(matches!(refused(409, "Conflict"), Err(SyncError::Conflict(_))));
        assert!(matches!(refused(500, "InternalError"), Err(SyncError::Failed(_))));
    }
}
