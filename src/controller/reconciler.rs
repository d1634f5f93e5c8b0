//! Reconciler: the user's code, which turns a request into an outcome.

use std::{fmt, future::Future, time::Duration};

use super::{Context, Request};
use crate::manager::BoxError;

/// Successful end of a reconcile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Wait for the next change.
    #[default]
    Done,
    /// Reconcile again after this time, even without a change; resets the back-off.
    RequeueAfter(Duration),
}

/// Error of a reconcile, and its retry.
#[derive(Debug)]
pub enum ReconcileError {
    /// Retry after the back-off of this request. A conflict is retried without a log line. A
    /// request that the API server refused with a `Retry-After` (429, 503) is retried after that
    /// time at the earliest.
    ///
    /// Both are recognized in a `kube::Error` that is wrapped in other errors: boxed, shared, as a
    /// source, transparent, or by `anyhow`. They are not recognized in an error that keeps its
    /// cause as text, nor for a bare `Status` that is transparent or the only error in an
    /// `anyhow::Error`.
    Retry(BoxError),
    /// Retry after this time instead of the back-off. Counts as a failure, also for
    /// [`Builder::retry_limit`](super::Builder::retry_limit).
    RetryAfter(BoxError, Duration),
    /// Do not retry until the next change.
    Terminal(BoxError),
}

/// Makes `?` turn any error into [`ReconcileError::Retry`].
impl<E: Into<BoxError>> From<E> for ReconcileError {
    fn from(error: E) -> Self {
        Self::Retry(error.into())
    }
}

impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Retry(error) | Self::RetryAfter(error, _) | Self::Terminal(error)) = self;
        error.fmt(f)
    }
}

/// Reconciler: brings the state of one object in line with its specification.
///
/// Called for deleted objects too. Two calls for the same request never overlap. Each call finds
/// what the last one wrote through [`Context::client`] in the caches of the controller's inputs: it
/// is delayed until they hold it.
pub trait Reconciler: Send + Sync + 'static {
    /// Reconciles one request.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped at an await point when the epoch's grace or the reconcile timeout is
    /// over. The request is then reconciled again later.
    fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send;
}
