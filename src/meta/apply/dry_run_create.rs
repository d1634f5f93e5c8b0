//! Dry run of a replacement: checks that the new child would be accepted before the old one is
//! deleted.
//!
//! The dry run creates the new child under its own name, which the old one still has. A dry run of
//! an update would be refused for immutable fields, the reason for the replacement. A dry run under
//! another name would be another object to policies that match names. The server validates and
//! admits before it looks for the name, so it answers "already exists" for an acceptable object. A
//! server without dry runs creates nothing either, since the name is taken. Node ports and
//! addresses that the old child holds are omitted.

use std::time::Duration;

use super::{
    quota::fits_in_place,
    service_allocation::{is_service, without_held},
};
use crate::{
    kind::ServedType,
    meta::{
        children::Write,
        parent::sync_error::SyncError,
        resource::{
            Resource, is_already_there, is_conflict, is_denied, is_fenced, is_gone, is_no_dry_run,
            requested_wait,
        },
    },
    redaction,
};

/// Time for which the old child stays while the new one is refused as anything but invalid. The
/// cause may be that the old one exists, and the refusals would then have no end.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// Sends the dry run; an error if the old child is to stay. `observed` is the old child.
/// `refused_for` records a refusal of the new one and returns the time since the first refusal.
pub(super) async fn dry_run_create(
    resource: &Resource<'_>,
    served: &ServedType,
    created: &Write,
    observed: &[u8],
    refused_for: impl FnOnce() -> Duration,
) -> Result<(), SyncError> {
    let reduced = is_service(served).then(|| without_held(&created.body, observed)).flatten();
    let body = reduced.unwrap_or_else(|| created.body.clone());
    let Err(error) = resource.dry_run_create(&created.key, body).await else { return Ok(()) };
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
        // The deletion of the old child makes room.
        DryRunCreate::Contested if fits_in_place(&error, &created.body, observed) => Ok(()),
        DryRunCreate::Cancelled => Err(SyncError::Cancelled),
        DryRunCreate::Contested if refused_for() >= REFUSED_FOR => Ok(()),
        DryRunCreate::Contested => {
            let message = format!(
                "replacing {} {}: the new object is refused, perhaps because the old one exists; \
                 the old one is deleted after five minutes of refusals: {}",
                served.kind,
                created.key,
                redaction::request_error(&error)
            );
            Err(match is_conflict(&error) {
                true => SyncError::Conflict(message),
                false => SyncError::Failed(message),
            })
        }
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
        return DryRunCreate::Cancelled;
    }
    let kube::Error::Api(status) = error else { return DryRunCreate::Unknown };
    match status.code {
        422 => DryRunCreate::Invalid,
        // A decision, also with the code of a failure or of an existing object.
        _ if is_denied(error) => DryRunCreate::Contested,
        _ if is_already_there(error) => DryRunCreate::Acceptable,
        // Does not concern the object, and would block every replacement for ever.
        _ if is_no_dry_run(error) => DryRunCreate::Acceptable,
        // A 404 that names nothing is that of a server which may not serve the type.
        404 if !is_gone(error) => DryRunCreate::Unknown,
        401 | 408 | 429 | 500.. => DryRunCreate::Unknown,
        _ => DryRunCreate::Contested,
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
        let quota = "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1";
        check(403, "Forbidden", quota, Contested);
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
    fn denial_by_admission_is_a_refusal_whatever_its_code_and_a_failed_call_is_none() {
        use DryRunCreate::{Contested, Invalid, Unknown};

        let denied = "admission webhook \"one.x.y\" denied the request: only one is allowed";
        for (code, reason) in [
            (400, ""),
            (401, "Unauthorized"),
            (403, "Forbidden"),
            (404, "NotFound"),
            (409, "AlreadyExists"),
            (429, "TooManyRequests"),
            (500, "InternalError"),
            (503, "ServiceUnavailable"),
        ] {
            check(code, reason, denied, Contested);
        }
        let silent = "admission webhook \"one.x.y\" denied the request without explanation";
        check(500, "", silent, Contested);
        let policy = "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'one' with binding \
                      'all' denied request: only one is allowed";
        check(401, "Unauthorized", policy, Contested);
        check(422, "Invalid", denied, Invalid);
        check(422, "Invalid", policy, Invalid);
        let failed = "Internal error occurred: failed calling webhook \"one.x.y\": failed to call \
                      webhook: Post \"https://one.x.svc:443/\": EOF";
        check(500, "InternalError", failed, Unknown);
    }

    #[test]
    fn port_that_another_service_holds_keeps_the_old_child() {
        let port =
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
        check(422, "Invalid", port, DryRunCreate::Invalid);
    }

    #[test]
    fn webhook_without_dry_runs_does_not_prevent_a_replacement() {
        let message = "admission webhook \"x.y\" does not support dry run";
        check(400, "BadRequest", message, DryRunCreate::Acceptable);
    }
}
