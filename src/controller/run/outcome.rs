//! What becomes of a request after a reconcile: decisions without I/O.

use std::{error::Error, iter, sync::Arc, time::Duration};

use kube::core::Status;

use crate::{
    controller::{Outcome, ReconcileError, metrics::ReconcileResult, run::unconfirmed::Behind},
    manager::{BoxError, retry_after},
    redaction,
};

/// How a reconcile ended.
#[derive(Debug)]
pub(in crate::controller) enum Attempt {
    /// It returned, and this becomes of the request.
    Returned(Next),
    /// It outlasted the reconcile timeout.
    TimedOut(Duration),
    /// It panicked, with this message.
    Panicked(String),
    /// The epoch's grace was over.
    Aborted,
    /// It did not begin: the caches have to catch up with a write of unknown outcome first.
    Behind(Behind),
}

/// What becomes of the request.
#[derive(Debug)]
pub(in crate::controller) enum Next {
    /// Nothing until something changes.
    Done,
    /// As `Done`, and no success: its object is not there.
    Gone,
    /// Again after this time.
    After(Duration),
    /// Again after this time, without an error: nothing was done yet.
    Postponed(Duration),
    /// Again after its back-off. Without an error, nothing is wrong.
    Retry(Option<BoxError>),
    /// Again after this time, as a failure.
    RetryAfter(BoxError, Duration),
    /// Again after its back-off, and not before the time that the API server asks for.
    Throttled(BoxError, Duration),
    /// Not again until something changes, though it failed.
    GiveUp(BoxError),
    /// Again when the caches may have caught up.
    Wait(Behind),
    /// Again in the next epoch, if that is the successor of this one.
    Abandon,
}

/// As the error of a [`ReconcileError::RetryAfter`]: whoever is needed asks to be left alone so
/// long. Nothing is wrong, and nothing is done either.
#[derive(Debug, thiserror::Error)]
#[error("asked to come back later")]
pub(crate) struct Postponed;

/// As the error of a [`ReconcileError::Terminal`]: the object is gone, and there was nothing to do.
/// No failure, and no success that would say anything about other requests.
#[derive(Debug, thiserror::Error)]
#[error("the object is gone")]
pub(crate) struct ObjectGone;

/// The request is repeated later: the timeout of the controller is over.
#[derive(Debug, thiserror::Error)]
#[error("the reconcile took longer than its timeout of {0:?}")]
struct TimeoutError(Duration);

/// The request is repeated later: its reconcile panicked.
#[derive(Debug, thiserror::Error)]
#[error("the reconcile panicked: {0}")]
struct PanicError(String);

impl Attempt {
    /// The result switch of controller-runtime (`pkg/internal/controller/controller.go`), except
    /// that a conflict is no error.
    ///
    /// Called where the reconciler is: what its error says, and how that is dropped, is its code.
    pub(in crate::controller) fn of(result: Result<Outcome, ReconcileError>) -> Self {
        let told = |error: &BoxError| BoxError::from(redaction::message(error.as_ref()));
        Self::Returned(match result {
            Ok(Outcome::Done) => Next::Done,
            Ok(Outcome::RequeueAfter(after)) => Next::After(after),
            Err(ReconcileError::Retry(error)) => {
                let asks_to_wait = statuses(&*error).find_map(retry_after);
                match asks_to_wait {
                    _ if is_conflict(&*error) => Next::Retry(None),
                    Some(after) => Next::Throttled(told(&error), after),
                    None => Next::Retry(Some(told(&error))),
                }
            }
            Err(ReconcileError::RetryAfter(error, after)) => match error.is::<Postponed>() {
                true => Next::Postponed(after),
                false => Next::RetryAfter(told(&error), after),
            },
            Err(ReconcileError::Terminal(error)) => match error.is::<ObjectGone>() {
                true => Next::Gone,
                false => Next::GiveUp(told(&error)),
            },
        })
    }

    pub(in crate::controller) fn next(self) -> Next {
        match self {
            Self::Returned(next) => next,
            Self::TimedOut(timeout) => Next::Retry(Some(TimeoutError(timeout).into())),
            Self::Panicked(message) => Next::Retry(Some(PanicError(message).into())),
            Self::Aborted => Next::Abandon,
            Self::Behind(behind) => Next::Wait(behind),
        }
    }
}

impl Next {
    /// Returns whether nothing is left to be done until something changes.
    pub(in crate::controller) fn is_final(&self) -> bool {
        match self {
            Self::Done | Self::Gone | Self::GiveUp(_) => true,
            Self::After(_)
            | Self::Postponed(_)
            | Self::Retry(_)
            | Self::RetryAfter(..)
            | Self::Throttled(..)
            | Self::Wait(_)
            | Self::Abandon => false,
        }
    }

    /// How it is counted, if it is.
    pub(in crate::controller) fn result(&self) -> Option<ReconcileResult> {
        match self {
            Self::Done | Self::Gone => Some(ReconcileResult::Success),
            Self::After(_) | Self::Postponed(_) => Some(ReconcileResult::RequeueAfter),
            Self::Retry(None) | Self::Throttled(..) => Some(ReconcileResult::Requeue),
            Self::Retry(Some(_)) | Self::RetryAfter(..) | Self::GiveUp(_) => {
                Some(ReconcileResult::Error)
            }
            Self::Wait(_) | Self::Abandon => None,
        }
    }
}

/// Answers of the API server in an error and its causes.
///
/// A `kube::Error` in a box, behind `#[error(transparent)]` or in an `anyhow::Error` cannot be
/// seen. Its source can, which is the boxed status.
fn statuses<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a Status> {
    iter::successors(Some(error), |&error| redaction::cause(error)).filter_map(status)
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

/// Whether somebody else wrote the object first; an object that exists already is another matter.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let no_reason = |status: &Status| status.code == 409 && status.reason.is_empty();
    statuses(error).any(|status| status.is_conflict() || no_reason(status))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn api(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("told so", reason).with_code(code).boxed())
    }

    #[derive(Debug, thiserror::Error)]
    #[error("writing: {0}")]
    struct Outer(#[source] kube::Error);

    #[test]
    fn who_is_asked_to_come_back_later_has_neither_failed_nor_succeeded() {
        let after = Duration::from_secs(3);
        let later = ReconcileError::RetryAfter(Postponed.into(), after);

        let next = Attempt::of(Err(later)).next();

        assert!(matches!(next, Next::Postponed(it) if it == after), "{next:?}");
        assert_eq!(next.result(), Some(ReconcileResult::RequeueAfter));
    }

    fn retry(error: impl Into<BoxError>) -> Next {
        Attempt::of(Err(ReconcileError::Retry(error.into()))).next()
    }

    #[test]
    fn conflict_is_no_error_however_deep_it_is() {
        assert!(matches!(retry(api(409, "Conflict")), Next::Retry(None)));
        assert!(matches!(retry(api(409, "")), Next::Retry(None)));
        assert!(matches!(retry(Outer(api(409, "Conflict"))), Next::Retry(None)));
        let status = Status::failure("told so", "Conflict").with_code(409);
        assert!(matches!(retry(status), Next::Retry(None)));
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

    /// `?` of a function that reports by `anyhow`.
    fn by_anyhow(error: impl Into<anyhow::Error>) -> BoxError {
        let next = || -> Result<Outcome, ReconcileError> { Err(error.into())? };
        let Err(ReconcileError::Retry(error)) = next() else { unreachable!() };
        error
    }

    /// The ways in which reconcilers pass on an answer of the API server.
    fn wrapped(answer: impl Fn() -> kube::Error) -> Vec<(&'static str, BoxError)> {
        let status = || {
            let kube::Error::Api(status) = answer() else { panic!("{}", answer()) };
            status
        };
        let deep = anyhow::Error::from(Transparent(answer())).context("a").context("b");
        vec![
            ("itself", answer().into()),
            ("boxed", Box::new(answer()).into()),
            ("boxed twice", Box::new(Box::new(answer())).into()),
            ("shared", Arc::new(answer()).into()),
            ("source", Outer(answer()).into()),
            ("transparent", Transparent(answer()).into()),
            ("boxed source", Nested(Box::new(Box::new(answer()))).into()),
            ("shared source", Shared(Arc::new(answer())).into()),
            ("shared source of a shared one", Shared(Arc::new(Arc::new(answer()))).into()),
            ("shared status", Shared(Arc::new(*status())).into()),
            ("boxed status", status().into()),
            ("anyhow", by_anyhow(answer())),
            ("anyhow of a transparent one", by_anyhow(Transparent(answer()))),
            ("anyhow with context", by_anyhow(anyhow::Error::from(answer()).context("a"))),
            (
                "anyhow of a status with context",
                by_anyhow(anyhow::Error::from(*status()).context("a")),
            ),
            ("anyhow, deep", by_anyhow(deep)),
            ("input and output", io::Error::other(answer()).into()),
            ("status of input and output", io::Error::other(*status()).into()),
            ("all of them", Nested(by_anyhow(io::Error::other(Transparent(answer())))).into()),
            ("service", kube::Error::Service(Outer(answer()).into()).into()),
        ]
    }

    #[test]
    fn an_answer_is_known_however_it_is_wrapped() {
        let check = |answer: &dyn Fn() -> kube::Error, is: &dyn Fn(&Next) -> bool| {
            let wrapped = wrapped(answer).into_iter();
            let unknown = wrapped.filter_map(|(how, error)| (!is(&retry(error))).then_some(how));
            assert_eq!(unknown.collect::<Vec<_>>(), [""; 0], "{}", answer());
        };

        check(&|| api(409, "Conflict"), &|next| matches!(next, Next::Retry(None)));
        let seven = Duration::from_secs(7);
        for code in [429, 503] {
            let is_throttled = |next: &Next| matches!(next, Next::Throttled(_, it) if *it == seven);
            check(&|| asks_for(code, 7), &is_throttled);
        }
        check(&|| api(409, "AlreadyExists"), &|next| matches!(next, Next::Retry(Some(_))));
    }

    fn asks_for(code: u16, seconds: u32) -> kube::Error {
        let details = serde_json::json!({ "retryAfterSeconds": seconds });
        let status = serde_json::json!({ "code": code, "details": details });
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_server_that_asks_to_wait_is_no_error_however_deep_it_is() {
        let after = |next: Next| {
            let Next::Throttled(_, after) = next else { panic!("{next:?}") };
            after.as_secs()
        };

        assert_eq!(after(retry(asks_for(429, 7))), 7);
        assert_eq!(after(retry(Outer(asks_for(503, 7)))), 7);
        assert_eq!(after(retry(asks_for(429, u32::MAX))), 300);
        for (code, seconds) in [(429, 0), (503, 0), (500, 7), (504, 7), (409, 7)] {
            let next = retry(asks_for(code, seconds));
            assert!(!matches!(next, Next::Throttled(..)), "{code} {seconds}");
        }
    }

    #[test]
    fn other_answers_are_errors() {
        for (code, reason) in [(409, "AlreadyExists"), (404, "NotFound"), (500, "InternalError")] {
            assert!(matches!(retry(api(code, reason)), Next::Retry(Some(_))), "{code} {reason}");
        }
        assert!(matches!(retry("409 Conflict"), Next::Retry(Some(_))));
    }

    #[test]
    fn terminal_conflict_is_given_up() {
        let error = ReconcileError::Terminal(api(409, "Conflict").into());

        assert!(matches!(Attempt::of(Err(error)).next(), Next::GiveUp(_)));
    }

    #[test]
    fn timeout_and_panic_are_repeated_with_a_message() {
        let error = |next: Next| {
            let Next::Retry(Some(error)) = next else { panic!("{next:?}") };
            error.to_string()
        };

        assert_eq!(
            error(Attempt::TimedOut(Duration::from_secs(3)).next()),
            "the reconcile took longer than its timeout of 3s"
        );
        assert_eq!(error(Attempt::Panicked("boom".into()).next()), "the reconcile panicked: boom");
    }
}
