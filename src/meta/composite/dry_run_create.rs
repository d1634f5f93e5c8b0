//! Whether a child would be accepted in the place of another, asked before that one is deleted.
//!
//! It is asked by a dry run of its creation under its own name. Of the ways that the API has this
//! is the one that tells the truth: an update would be refused for fields that cannot be changed,
//! which is why children are recreated at all, and another name is another object to policies that
//! go by names. The server validates and admits before it looks for the name, so an acceptable
//! object is answered with "already exists". Nothing is created even by a server that knows no dry
//! run, since the name is taken.

use super::SyncError;
use crate::{
    kind::ServedType,
    meta::{
        children::Write,
        resource::{
            Resource, asks_to_wait, explain, is_already_there, is_fenced, is_no_dry_run, is_taken,
        },
    },
};

/// Asks the server; an error when the old child is to stay.
pub(super) async fn dry_run_create(
    resource: &Resource<'_>,
    served: &ServedType,
    created: &Write,
) -> Result<(), SyncError> {
    let asked = resource.dry_run_create(&created.key, created.body.clone()).await;
    let Err(error) = asked else { return Ok(()) };
    if let Some(after) = asks_to_wait(&error) {
        let message = format!("dry run of {} {}: {}", served.kind, created.key, explain(&error));
        return Err(SyncError::Throttled { message, after });
    }
    match verdict(&error) {
        DryRunCreate::Acceptable => Ok(()),
        DryRunCreate::Over => Err(SyncError::Cancelled),
        DryRunCreate::Refused => Err(SyncError::Failed(format!(
            "replacing {} {}: the old one stays, since the new one is refused: {}",
            served.kind,
            created.key,
            explain(&error)
        ))),
    }
}

/// What the answer to a dry run means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DryRunCreate {
    /// It can be created once the old one is gone, as far as anybody can tell.
    Acceptable,
    /// The epoch is over.
    Over,
    /// It cannot, or nobody knows; what is there is worth more.
    Refused,
}

fn verdict(error: &kube::Error) -> DryRunCreate {
    if is_fenced(error) {
        DryRunCreate::Over
    } else if is_already_there(error) || is_taken(error) || is_no_dry_run(error) {
        // The last says nothing of the object, and would stop every replacement for ever.
        DryRunCreate::Acceptable
    } else {
        DryRunCreate::Refused
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[track_caller]
    fn check(code: u16, reason: &str, message: &str, expected: DryRunCreate) {
        let status = Status::failure(message, reason).with_code(code);

        assert_eq!(verdict(&kube::Error::Api(status.boxed())), expected, "{message}");
    }

    #[test]
    fn the_old_child_goes_only_for_one_that_can_be_created() {
        use DryRunCreate::{Acceptable, Refused};

        check(409, "AlreadyExists", "configmaps \"a\" already exists", Acceptable);
        check(422, "Invalid", "ConfigMap \"a\" is invalid: data[b/c]: Invalid value", Refused);
        check(403, "Forbidden", "configmaps is forbidden: User \"x\" cannot create", Refused);
        check(400, "BadRequest", "ConfigMap cannot be handled: json: cannot unmarshal", Refused);
        check(404, "NotFound", "namespaces \"ns\" not found", Refused);
        check(409, "Conflict", "quota was changed meanwhile", Refused);
        check(429, "TooManyRequests", "slow down", Refused);
        check(500, "InternalError", "failed calling webhook", Refused);
    }

    #[test]
    fn what_the_old_child_holds_is_free_for_the_new_one() {
        let port =
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
        check(422, "Invalid", port, DryRunCreate::Acceptable);
        let quota = "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1";
        check(403, "Forbidden", quota, DryRunCreate::Acceptable);
    }

    #[test]
    fn a_webhook_that_takes_part_in_no_dry_run_stops_no_replacement() {
        let message = "admission webhook \"x.y\" does not support dry run";
        check(400, "BadRequest", message, DryRunCreate::Acceptable);
    }
}
