//! Refusals of the API server: what a response to a write proves.

use kube::core::Status;

/// Returns the HTTP status and reason, if the server answered.
pub(crate) fn status(error: &kube::Error) -> Option<(u16, &str)> {
    let kube::Error::Api(status) = error else { return None };
    Some((status.code, status.reason.as_str()))
}

/// Returns whether the object is proven to be absent: the server serves the type and names the
/// object that it did not find. Any other 404 proves nothing; a server sends it while it starts, or
/// while it does not serve the type.
pub(crate) fn is_gone(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let names_it = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    status.code == 404 && status.reason == "NotFound" && names_it && !is_denied(error)
}

/// Returns whether the response is any 404: the object or its type is absent, or its state is
/// unknown.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    status(error).is_some_and(|(code, _)| code == 404)
}

/// Returns whether the server cannot do the dry run, because a webhook does not support it.
pub(crate) fn is_no_dry_run(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 400 && status.message.contains("does not support dry run")
}

/// Returns whether an admission webhook or an admission policy denies the request, which may have
/// any code. A denial has no reason of its own, so it is recognised by its text. A webhook that
/// cannot be called denies nothing.
pub(crate) fn is_denied(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let has = |text: &str| status.message.contains(text);
    has("admission webhook") && has("denied the request") || has("' denied request: ")
}

/// Returns whether the server finds the object invalid.
pub(crate) fn is_invalid(error: &kube::Error) -> bool {
    status(error).is_some_and(|(code, _)| code == 422)
}

/// Returns whether the object has another uid than the one that is applied.
pub(crate) fn is_other_uid(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 422 && causes(status).any(|cause| cause.field == "metadata.uid")
}

/// Returns whether an object of that name exists.
pub(crate) fn is_already_there(error: &kube::Error) -> bool {
    let is_there =
        status(error).is_some_and(|(code, reason)| code == 409 && reason == "AlreadyExists");
    is_there && !is_denied(error)
}

/// Returns whether another client wrote first. Denials by admission have any code, this one too.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    let is_conflict =
        status(error).is_some_and(|(code, reason)| code == 409 && reason != "AlreadyExists");
    is_conflict && !is_denied(error)
}

/// Returns the causes of a refusal.
pub(super) fn causes(status: &Status) -> impl Iterator<Item = &kube::core::response::StatusCause> {
    status.details.iter().flat_map(|details| &details.causes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(reason: &str, name: Option<&str>, gone: bool) {
        let details = name.map(|name| json!({ "name": name }));
        let status = json!({ "code": 404, "reason": reason, "details": details });
        let error = kube::Error::Api(serde_json::from_value(status).unwrap());

        assert!(is_not_found(&error));
        assert_eq!(is_gone(&error), gone, "{reason} {name:?}");
    }

    #[test]
    fn a_404_proves_absence_only_of_what_it_names() {
        check("NotFound", Some("gear"), true);
        // A type that the server does not serve, built in or not, and a server that starts.
        check("NotFound", Some(""), false);
        check("NotFound", None, false);
        check("Failed to parse error data", None, false);
    }
}
