//! Outcome of a reconcile for its request: decisions without I/O.

use std::{error::Error, sync::Arc, time::Duration};

use kube::core::Status;

use crate::{
    controller::{
        Add, Outcome, ReconcileError, metrics::ReconcileResult,
        reconciler::std_reconcile_error::ChosenRetry, unconfirmed::Behind,
    },
    manager::{BoxError, retry_after},
    redaction,
};

/// End of a reconcile.
#[derive(Debug)]
pub(in crate::controller) enum Attempt {
    /// The reconciler returned, with this decision about the request.
    Returned(NextReconcile),
    /// The reconcile exceeded its timeout.
    TimedOut(Duration),
    /// The reconciler panicked, with this message.
    Panicked(String),
    /// The epoch's grace was over.
    Aborted,
    /// The reconcile did not begin: the caches are behind an unconfirmed write.
    Behind(Behind),
}

/// Decision about a request after its reconcile.
#[derive(Debug)]
pub(in crate::controller) enum NextReconcile {
    /// Wait for the next change.
    Done,
    /// Wait for the next change; neither success nor failure, since the object does not exist.
    Gone,
    /// Requeue after this time.
    After(Duration),
    /// Requeue after this time; neither success nor failure, since nothing has been done yet.
    Postponed(Duration),
    /// Requeue after the back-off, as a success.
    Again,
    /// Requeue as this add says, as a success.
    With(Add),
    /// Requeue after the back-off: a conflict if there is no error.
    Retry(Option<BoxError>),
    /// Requeue after this time, as a failure.
    RetryAfter(BoxError, Duration),
    /// Requeue through the retry gate, after at least the time that the API server requests.
    Throttled(BoxError, Duration),
    /// Wait for the next change after a final failure.
    GiveUp(BoxError),
    /// Requeue until the caches hold the write.
    Wait(Behind),
    /// No requeue: the epoch is over.
    Interrupted,
}

/// Error in a [`ReconcileError::RetryAfter`] for a reconcile that has to wait for a dependency,
/// such as a hook. The request is requeued as neither failed nor succeeded.
#[derive(Debug, thiserror::Error)]
#[error("the reconcile waits for a dependency")]
pub(crate) struct PostponedError;

/// Error in a [`ReconcileError::Terminal`] for a reconcile whose object is gone. Counts as no
/// failure, and as no success from which other requests could conclude anything.
#[derive(Debug, thiserror::Error)]
#[error("the object is gone")]
pub(crate) struct ObjectGone;

/// The reconcile exceeded the controller's timeout; the request is retried.
#[derive(Debug, thiserror::Error)]
#[error("the reconcile took longer than its timeout of {0:?}")]
struct TimeoutError(Duration);

/// The reconcile panicked; the request is retried.
#[derive(Debug, thiserror::Error)]
#[error("the reconcile panicked: {0}")]
struct PanicError(String);

impl Attempt {
    /// Returns whether the server answered the reads before the reconcile.
    pub(in crate::controller) fn has_read(&self) -> bool {
        match self {
            Self::Behind(behind) => behind.unanswered().is_none(),
            Self::Aborted => false,
            Self::Returned(_) | Self::TimedOut(_) | Self::Panicked(_) => true,
        }
    }

    /// Classifies the result of a reconciler.
    ///
    /// Semantics: controller-runtime (`pkg/internal/controller/controller.go`), except that a
    /// conflict is not an error.
    ///
    /// To be called in the reconcile's task: `Display` and `Drop` of the error are user code, which
    /// may panic.
    pub(in crate::controller) fn of(result: Result<Outcome, ReconcileError>) -> Self {
        let redacted = |error: &BoxError| BoxError::from(redaction::message(error.as_ref()));
        Self::Returned(match result {
            Ok(Outcome::Done) => NextReconcile::Done,
            Ok(Outcome::RequeueAfter(after)) => NextReconcile::After(after),
            Ok(Outcome::Requeue) => NextReconcile::Again,
            Ok(Outcome::RequeueWith(add)) => NextReconcile::With(add),
            Err(ReconcileError::Retry(error)) => match chosen_retry(&*error) {
                Some(ReconcileError::RetryAfter(_, after)) => {
                    NextReconcile::RetryAfter(redacted(&error), *after)
                }
                Some(ReconcileError::Terminal(_)) => NextReconcile::GiveUp(redacted(&error)),
                Some(ReconcileError::Retry(_)) | None => {
                    match statuses(&*error).find_map(retry_after) {
                        _ if is_conflict(&*error) => NextReconcile::Retry(None),
                        Some(after) => NextReconcile::Throttled(redacted(&error), after),
                        None => NextReconcile::Retry(Some(redacted(&error))),
                    }
                }
            },
            Err(ReconcileError::RetryAfter(error, after)) => match error.is::<PostponedError>() {
                true => NextReconcile::Postponed(after),
                false => NextReconcile::RetryAfter(redacted(&error), after),
            },
            Err(ReconcileError::Terminal(error)) => match error.is::<ObjectGone>() {
                true => NextReconcile::Gone,
                false => NextReconcile::GiveUp(redacted(&error)),
            },
        })
    }

    pub(in crate::controller) fn next(self) -> NextReconcile {
        match self {
            Self::Returned(next) => next,
            Self::TimedOut(timeout) => NextReconcile::Retry(Some(TimeoutError(timeout).into())),
            Self::Panicked(message) => NextReconcile::Retry(Some(PanicError(message).into())),
            Self::Aborted => NextReconcile::Interrupted,
            Self::Behind(behind) => NextReconcile::Wait(behind),
        }
    }
}

impl NextReconcile {
    /// Returns the result under which the reconcile is counted; `None` if it is not counted.
    pub(in crate::controller) fn result(&self) -> Option<ReconcileResult> {
        match self {
            Self::Done | Self::Gone => Some(ReconcileResult::Success),
            Self::With(add) if add.counts() => Some(ReconcileResult::Requeue),
            Self::After(_) | Self::With(_) | Self::Postponed(_) => {
                Some(ReconcileResult::RequeueAfter)
            }
            Self::Again | Self::Retry(None) | Self::Throttled(..) => Some(ReconcileResult::Requeue),
            Self::Retry(Some(_)) | Self::RetryAfter(..) | Self::GiveUp(_) => {
                Some(ReconcileResult::Error)
            }
            Self::Wait(_) | Self::Interrupted => None,
        }
    }
}

/// Returns the first choice in an error and its causes that is not the back-off.
fn chosen_retry<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ReconcileError> {
    let chosen = redaction::chain(error).filter_map(|error| error.downcast_ref::<ChosenRetry>());
    chosen.map(|chosen| &chosen.0).find(|choice| !matches!(choice, ReconcileError::Retry(_)))
}

/// Returns the API server's statuses in an error and its causes.
///
/// A `kube::Error` in a box, behind `#[error(transparent)]` or in an `anyhow::Error` cannot be
/// seen. Its source can, which is the boxed status.
fn statuses<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a Status> {
    redaction::chain(error).filter_map(status)
}

fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return Some(status);
    }
    error
        .downcast_ref::<Status>()
        .or_else(|| error.downcast_ref::<Box<Status>>().map(|status| &**status))
        .or_else(|| error.downcast_ref::<Arc<Status>>().map(|status| &**status))
}

/// Returns whether the API server has refused a request (403).
pub(crate) fn is_forbidden(error: &(dyn Error + 'static)) -> bool {
    statuses(error).any(|status| status.code == 403)
}

impl ReconcileError {
    /// Returns whether the API server has refused a request (403).
    ///
    /// To be called in the reconcile's task: the sources of the error are user code.
    pub(in crate::controller) fn is_forbidden(&self) -> bool {
        let (Self::Retry(error) | Self::RetryAfter(error, _) | Self::Terminal(error)) = self;
        is_forbidden(&**error)
    }
}

/// Returns whether an error is a conflict with another writer. `AlreadyExists`, also 409, is not.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let no_reason = |status: &Status| status.code == 409 && status.reason.is_empty();
    statuses(error).any(|status| status.is_conflict() || no_reason(status))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::controller::StdReconcileError;

    fn api(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("conflict", reason).with_code(code).boxed())
    }

    #[derive(Debug, thiserror::Error)]
    #[error("writing: {0}")]
    struct Outer(#[source] kube::Error);

    #[test]
    fn postponed_reconcile_has_neither_failed_nor_succeeded() {
        let after = Duration::from_secs(3);
        let later = ReconcileError::RetryAfter(PostponedError.into(), after);

        let next = Attempt::of(Err(later)).next();

        assert!(matches!(next, NextReconcile::Postponed(it) if it == after), "{next:?}");
        assert_eq!(next.result(), Some(ReconcileResult::RequeueAfter));
    }

    fn retry(error: impl Into<BoxError>) -> NextReconcile {
        Attempt::of(Err(ReconcileError::Retry(error.into()))).next()
    }

    #[test]
    fn conflict_is_no_error_however_deep_it_is() {
        assert!(matches!(retry(api(409, "Conflict")), NextReconcile::Retry(None)));
        assert!(matches!(retry(api(409, "")), NextReconcile::Retry(None)));
        assert!(matches!(retry(Outer(api(409, "Conflict"))), NextReconcile::Retry(None)));
        let status = Status::failure("conflict", "Conflict").with_code(409);
        assert!(matches!(retry(status), NextReconcile::Retry(None)));
    }

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(#[from] kube::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("writing: {0}")]
    struct Shared(#[source] Arc<dyn Error + Send + Sync>);

    #[derive(Debug, thiserror::Error)]
    #[error("writing: {0}")]
    struct Nested(#[source] BoxError);

    /// Error of a function that returns `anyhow::Error`, after `?`.
    fn by_anyhow(error: impl Into<anyhow::Error>) -> BoxError {
        let next = || -> Result<Outcome, ReconcileError> { Err(error.into())? };
        let Err(ReconcileError::Retry(error)) = next() else { unreachable!() };
        error
    }

    /// Forms in which reconcilers return an error of the API server.
    fn wrapped(response: impl Fn() -> kube::Error) -> Vec<(&'static str, BoxError)> {
        let status = || {
            let kube::Error::Api(status) = response() else { panic!("{}", response()) };
            status
        };
        let deep = anyhow::Error::from(Transparent(response())).context("a").context("b");
        vec![
            ("itself", response().into()),
            ("boxed", Box::new(response()).into()),
            ("boxed twice", Box::new(Box::new(response())).into()),
            ("shared", Arc::new(response()).into()),
            ("source", Outer(response()).into()),
            ("transparent", Transparent(response()).into()),
            ("boxed source", Nested(Box::new(Box::new(response()))).into()),
            ("shared source", Shared(Arc::new(response())).into()),
            ("shared source of a shared one", Shared(Arc::new(Arc::new(response()))).into()),
            ("shared status", Shared(Arc::new(*status())).into()),
            ("boxed status", status().into()),
            ("anyhow", by_anyhow(response())),
            ("anyhow of a transparent one", by_anyhow(Transparent(response()))),
            ("anyhow with context", by_anyhow(anyhow::Error::from(response()).context("a"))),
            (
                "anyhow of a status with context",
                by_anyhow(anyhow::Error::from(*status()).context("a")),
            ),
            ("anyhow, deep", by_anyhow(deep)),
            ("input and output", io::Error::other(response()).into()),
            ("status of input and output", io::Error::other(*status()).into()),
            ("all of them", Nested(by_anyhow(io::Error::other(Transparent(response())))).into()),
            ("service", kube::Error::Service(Outer(response()).into()).into()),
        ]
    }

    #[test]
    fn a_response_is_known_however_it_is_wrapped() {
        let check = |response: &dyn Fn() -> kube::Error, is: &dyn Fn(&NextReconcile) -> bool| {
            let wrapped = wrapped(response).into_iter();
            let unknown = wrapped.filter_map(|(how, error)| (!is(&retry(error))).then_some(how));
            assert_eq!(unknown.collect::<Vec<_>>(), [""; 0], "{}", response());
        };

        check(&|| api(409, "Conflict"), &|next| matches!(next, NextReconcile::Retry(None)));
        let seven = Duration::from_secs(7);
        for code in [429, 503] {
            let is_throttled = |next: &NextReconcile| matches!(next, NextReconcile::Throttled(_, it) if *it == seven);
            check(&|| throttled(code, 7), &is_throttled);
        }
        check(&|| api(409, "AlreadyExists"), &|next| matches!(next, NextReconcile::Retry(Some(_))));
    }

    fn throttled(code: u16, seconds: u32) -> kube::Error {
        let details = serde_json::json!({ "retryAfterSeconds": seconds });
        let status = serde_json::json!({ "code": code, "details": details });
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn throttling_is_not_an_error_however_deeply_it_is_wrapped() {
        let after = |next: NextReconcile| {
            let NextReconcile::Throttled(_, after) = next else { panic!("{next:?}") };
            after.as_secs()
        };

        assert_eq!(after(retry(throttled(429, 7))), 7);
        assert_eq!(after(retry(Outer(throttled(503, 7)))), 7);
        assert_eq!(after(retry(throttled(429, u32::MAX))), 300);
        for (code, seconds) in [(429, 0), (503, 0), (500, 7), (504, 7), (409, 7)] {
            let next = retry(throttled(code, seconds));
            assert!(!matches!(next, NextReconcile::Throttled(..)), "{code} {seconds}");
        }
    }

    #[test]
    fn other_responses_are_errors() {
        for (code, reason) in [(409, "AlreadyExists"), (404, "NotFound"), (500, "InternalError")] {
            assert!(
                matches!(retry(api(code, reason)), NextReconcile::Retry(Some(_))),
                "{code} {reason}"
            );
        }
        assert!(matches!(retry("409 Conflict"), NextReconcile::Retry(Some(_))));
    }

    #[test]
    fn terminal_conflict_is_not_retried() {
        let error = ReconcileError::Terminal(api(409, "Conflict").into());

        assert!(matches!(Attempt::of(Err(error)).next(), NextReconcile::GiveUp(_)));
    }

    #[test]
    fn chosen_retry_is_known_however_its_error_is_wrapped() {
        let after = Duration::from_secs(7);
        let terminal = || StdReconcileError::from(ReconcileError::Terminal("hopeless".into()));
        let later = || StdReconcileError::from(ReconcileError::RetryAfter("later".into(), after));
        let wrapped = |error: &dyn Fn() -> StdReconcileError| -> [(&str, BoxError); 7] {
            [
                ("itself", error().into()),
                ("boxed", Box::new(error()).into()),
                ("shared", Arc::new(error()).into()),
                ("source", Nested(error().into()).into()),
                ("anyhow", by_anyhow(error())),
                ("anyhow with context", by_anyhow(anyhow::Error::from(error()).context("a"))),
                ("twice", StdReconcileError::from(ReconcileError::Retry(error().into())).into()),
            ]
        };

        for (how, error) in wrapped(&terminal) {
            let next = retry(error);
            let NextReconcile::GiveUp(error) = next else { panic!("{how}: {next:?}") };
            let text = error.to_string();
            assert!(["hopeless", "writing: hopeless", "a"].contains(&text.as_str()), "{text}");
        }
        for (how, error) in wrapped(&later) {
            let next = retry(error);
            assert!(matches!(next, NextReconcile::RetryAfter(_, it) if it == after), "{how}");
        }
        let outer = ReconcileError::RetryAfter(terminal().into(), after);
        let next = Attempt::of(Err(outer)).next();
        assert!(matches!(next, NextReconcile::RetryAfter(..)), "the outer choice precedes");
        let conflict = ReconcileError::Retry(api(409, "Conflict").into());
        let next = retry(StdReconcileError::from(conflict));
        assert!(matches!(next, NextReconcile::Retry(None)), "{next:?}");
    }

    #[test]
    fn timeout_and_panic_are_repeated_with_a_message() {
        let error = |next: NextReconcile| {
            let NextReconcile::Retry(Some(error)) = next else { panic!("{next:?}") };
            error.to_string()
        };

        assert_eq!(
            error(Attempt::TimedOut(Duration::from_secs(3)).next()),
            "the reconcile took longer than its timeout of 3s"
        );
        assert_eq!(error(Attempt::Panicked("boom".into()).next()), "the reconcile panicked: boom");
    }
}
