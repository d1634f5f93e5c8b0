//! Reasons why a sync did not complete.

use std::time::Duration;

use super::health::Failure;
use crate::{
    informer::ObjectKey,
    meta::{
        hooks::{error::HookError, rule::HookKind},
        resource::{is_conflict, is_denied, is_fenced, is_gone, is_not_found, requested_wait},
    },
    redaction,
};

/// Number of failures in a row after which a conflict or a cache that lags behind is reported by a
/// Normal Event.
pub(crate) const CONFLICTS_BEFORE_EVENT: u32 = 5;
/// Number of failures in a row after which a delay is reported by a Warning Event: about a minute.
pub(crate) const DELAYS_BEFORE_WARNING: u32 = 13;

/// Reason why a sync did not complete.
#[derive(Debug)]
pub(crate) enum SyncError {
    /// The epoch is over.
    Cancelled,
    /// The hook is busy and requests a later retry.
    Busy(HookKind, Duration),
    /// Another client wrote first, which is its success. Retried soon, never as an error.
    Conflict(String),
    /// The cache lags behind, or a type is not listed. Retried soon, with a Warning Event after a
    /// while.
    Outdated(String),
    /// The hook is down: the failure is not known to be specific to this parent.
    HookDown(HookKind, Failure),
    /// The response of the hook is not usable.
    Hook(Failure),
    /// The API server throttled a request.
    Throttled { message: String, after: Duration },
    /// The chain of owners of the parent's type is too long for children of that type.
    TooDeep(String),
    /// Any other failure; reported as an Event.
    Failed(String),
}

impl SyncError {
    pub(crate) fn of_write(doing: &str, error: &kube::Error) -> Self {
        if is_fenced(error) {
            return Self::Cancelled;
        }
        let message = format!("{doing}: {}", redaction::request_error(error));
        if is_conflict(error) {
            Self::Conflict(message)
        } else if is_not_found(error) && !is_gone(error) && !is_denied(error) {
            Self::Outdated(message)
        } else {
            match requested_wait(error) {
                Some(after) => Self::Throttled { message, after },
                None => Self::Failed(message),
            }
        }
    }

    pub(crate) fn response(kind: HookKind, message: String) -> Self {
        Self::Hook(Failure { hook: Some(kind), reason: "HookAnswerInvalid", message })
    }
}

impl SyncError {
    /// Returns the message about what is refused, or cannot be used.
    pub(crate) fn refusal(self) -> Option<String> {
        if let Self::Hook(Failure { message, .. }) = self {
            Some(message)
        } else {
            self.failure().ok()
        }
    }

    /// Returns the message of a failure, after which other writes may succeed.
    ///
    /// # Errors
    ///
    /// Any other error, which ends the sync.
    pub(crate) fn failure(self) -> Result<String, Self> {
        match self {
            Self::Failed(message) => Ok(message),
            Self::Cancelled
            | Self::Busy(..)
            | Self::Conflict(_)
            | Self::Outdated(_)
            | Self::HookDown(..)
            | Self::Hook(_)
            | Self::Throttled { .. }
            | Self::TooDeep(_) => Err(self),
        }
    }

    /// Names the older revision of the parent that a hook was called for.
    pub(crate) fn about_revision(mut self, revision: &ObjectKey) -> Self {
        if let Self::HookDown(_, failure) | Self::Hook(failure) = &mut self {
            let message = &failure.message;
            failure.message = format!("{message} (called for ControllerRevision {revision})");
        }
        self
    }
}

impl Failure {
    fn of_hook(kind: HookKind, error: &HookError) -> Self {
        Self { hook: Some(kind), reason: error.reason(), message: error.to_string() }
    }
}

impl SyncError {
    /// Returns the error of a call of this hook.
    pub(crate) fn of_hook(kind: HookKind, error: HookError) -> Self {
        match error {
            HookError::Cancelled => Self::Cancelled,
            HookError::Busy(after) => Self::Busy(kind, after),
            HookError::Timeout(_)
            | HookError::ProxyTimeout { .. }
            | HookError::Transport(_)
            | HookError::Status { code: 500.., .. } => {
                Self::HookDown(kind, Failure::of_hook(kind, &error))
            }
            // The hook responded: the budget that is exhausted is that of this process.
            HookError::NoBudget { .. }
            | HookError::Status { .. }
            | HookError::NothingToConfirm { .. }
            | HookError::TooLarge { .. }
            | HookError::Encoded(_) => Self::Hook(Failure::of_hook(kind, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn refused_write_is_classified_by_its_response() {
        let of = |code: u16, reason: &str, details: Value| {
            let status = json!({ "code": code, "reason": reason, "details": details });
            let error = kube::Error::Api(serde_json::from_value(status).unwrap());
            SyncError::of_write("creating", &error)
        };
        let named = || json!({ "name": "ns" });

        assert!(matches!(of(404, "NotFound", named()), SyncError::Failed(_)), "it is not there");
        // A server that answers everything with 404 proves nothing.
        assert!(matches!(of(404, "NotFound", Value::Null), SyncError::Outdated(_)));
        assert!(matches!(of(404, "", Value::Null), SyncError::Outdated(_)));
        assert!(matches!(of(409, "Conflict", named()), SyncError::Conflict(_)));
        assert!(matches!(of(409, "AlreadyExists", named()), SyncError::Failed(_)));
        assert!(matches!(of(422, "Invalid", named()), SyncError::Failed(_)));
        let after = json!({ "retryAfterSeconds": 7 });
        let SyncError::Throttled { after, .. } = of(429, "TooManyRequests", after) else {
            panic!("it requests a later retry")
        };
        assert_eq!(after, Duration::from_secs(7));
    }
}
