//! Dry run of a replacement: checks that the new child would be accepted before the old one is
//! deleted.
//!
//! The dry run creates the new child under its own name, which the old one still has. A dry run of
//! an update would be refused for immutable fields, the reason for the replacement. A dry run under
//! another name would be another object to policies that match names. The server validates and
//! admits before it looks for the name, so it answers "already exists" for an acceptable object. A
//! server without dry runs creates nothing either, since the name is taken.

use std::time::Duration;

use crate::{
    kind::ServedType,
    meta::{
        children::Write,
        resource::{
            Resource, is_already_there, is_fenced, is_gone, is_no_dry_run, is_taken, requested_wait,
        },
        sync_error::SyncError,
    },
    redaction,
};

/// Time for which the old child stays while the new one is refused as anything but invalid. The
/// cause may be that the old one exists, and the refusals would then have no end.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// Sends the dry run; an error if the old child is to stay. `refused_for` records a refusal of the
/// child and returns the time since the first one.
pub(super) async fn dry_run_create(
    resource: &Resource<'_>,
    served: &ServedType,
    created: &Write,
    refused_for: impl FnOnce() -> Duration,
) -> Result<(), SyncError> {
    let answer = resource.dry_run_create(&created.key, created.body.clone()).await;
    let Err(error) = answer else { return Ok(()) };
    if let Some(after) = requested_wait(&error) {
        let message = format!(
            "dry run of {} {}: {}",
            served.kind,
            created.key,
            redaction::request_error(&error)
        );
        return Err(SyncError::Throttled { message, after });
    }
    match classify_refusal(&error) {
        DryRunCreate::Acceptable => Ok(()),
        DryRunCreate::Cancelled => Err(SyncError::Cancelled),
        DryRunCreate::Contested if refused_for() >= REFUSED_FOR => Ok(()),
        DryRunCreate::Contested => Err(SyncError::Failed(format!(
            "replacing {} {}: the new object is refused, perhaps because the old one exists; \
             the old one is deleted after five minutes of refusals: {}",
            served.kind,
            created.key,
            redaction::request_error(&error)
        ))),
        DryRunCreate::Invalid => Err(SyncError::Failed(format!(
            "replacing {} {}: the old object is kept, since the new one is refused as invalid: {}",
            served.kind,
            created.key,
            redaction::request_error(&error)
        ))),
        DryRunCreate::Unknown => Err(SyncError::Failed(format!(
            "replacing {} {}: the old object is kept, since the server has not decided: {}",
            served.kind,
            created.key,
            redaction::request_error(&error)
        ))),
    }
}

/// Outcome of a dry run of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DryRunCreate {
    /// The child can be created once the old one is gone, as far as a dry run shows.
    Acceptable,
    /// The epoch is over.
    Cancelled,
    /// The child would be refused, perhaps because of the old one, which stays for some time.
    Contested,
    /// The child is invalid. The old child stays.
    Invalid,
    /// The server has not decided: it failed, throttled, did not know the client, or may not serve
    /// the type. The old child stays.
    Unknown,
}

fn classify_refusal(error: &kube::Error) -> DryRunCreate {
    if is_fenced(error) {
        DryRunCreate::Cancelled
    } else if is_already_there(error) || is_taken(error) || is_no_dry_run(error) {
        // The last error does not concern the object, and would block every replacement for ever.
        DryRunCreate::Acceptable
    } else {
        let kube::Error::Api(status) = error else { return DryRunCreate::Unknown };
        match status.code {
            422 => DryRunCreate::Invalid,
            // A 404 that names nothing is that of a server which may not serve the type.
            404 if !is_gone(error) => DryRunCreate::Unknown,
            401 | 408 | 429 | 500.. => DryRunCreate::Unknown,
            _ => DryRunCreate::Contested,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[track_caller]
    fn check(code: u16, reason: &str, message: &str, expected: DryRunCreate) {
        let status = Status::failure(message, reason).with_code(code);

        assert_eq!(classify_refusal(&kube::Error::Api(status.boxed())), expected, "{message}");
    }

    #[test]
    fn old_child_is_deleted_only_if_the_new_one_can_be_created() {
        use DryRunCreate::{Acceptable, Contested, Invalid, Unknown};

        check(409, "AlreadyExists", "configmaps \"a\" already exists", Acceptable);
        check(422, "Invalid", "ConfigMap \"a\" is invalid: data[b/c]: Invalid value", Invalid);
        let right = "configmaps is forbidden: User \"x\" cannot create resource \"configmaps\"";
        check(403, "Forbidden", right, Contested);
        check(403, "Forbidden", "admission webhook \"one\" denied: only one is allowed", Contested);
        check(400, "BadRequest", "ConfigMap cannot be handled: json: cannot unmarshal", Contested);
        check(401, "Unauthorized", "Unauthorized", Unknown);
        check(404, "NotFound", "the server could not find the requested resource", Unknown);
        let named = serde_json::json!({
            "code": 404, "reason": "NotFound", "details": {"kind": "namespaces", "name": "ns"},
        });
        let named: Status = serde_json::from_value(named).unwrap();
        assert_eq!(classify_refusal(&kube::Error::Api(named.boxed())), Contested);
        check(409, "Conflict", "quota was changed meanwhile", Contested);
        check(429, "TooManyRequests", "too many requests", Unknown);
        check(500, "InternalError", "failed calling webhook", Unknown);
        check(504, "Timeout", "no answer in time", Unknown);
        let no_answer = kube::Error::Service("no answer".into());
        assert_eq!(classify_refusal(&no_answer), Unknown);
    }

    #[test]
    fn ports_and_quota_of_the_old_child_do_not_prevent_its_replacement() {
        let port =
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
        check(422, "Invalid", port, DryRunCreate::Acceptable);
        let quota = "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1";
        check(403, "Forbidden", quota, DryRunCreate::Acceptable);
    }

    #[test]
    fn webhook_without_dry_runs_does_not_prevent_a_replacement() {
        let message = "admission webhook \"x.y\" does not support dry run";
        check(400, "BadRequest", message, DryRunCreate::Acceptable);
    }
}
