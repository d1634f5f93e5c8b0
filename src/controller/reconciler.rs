//! What a user writes: one request in, one outcome out.

use std::{fmt, future::Future, time::Duration};

use super::Context;
use crate::{informer::ObjectKey, manager::BoxError};

/// Which object to reconcile: its name, never the event. It may be deleted by now.
pub type Request = ObjectKey;

/// How a reconcile went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    #[default]
    Done,
    /// Again after this time, whatever changes; forgets the back-off.
    RequeueAfter(Duration),
}

/// Why a reconcile failed.
#[derive(Debug)]
pub enum ReconcileError {
    /// Again after the back-off of this request. A conflict is repeated without a log line, and
    /// what the API server refused with a `Retry-After` (429, 503) not before that.
    ///
    /// Both are recognized in a `kube::Error` that is wrapped in other errors: boxed, shared, as a
    /// source, transparent, or by `anyhow`. They are not in an error that keeps its cause as text,
    /// nor for a bare `Status` that is transparent or the only error in an `anyhow::Error`.
    Retry(BoxError),
    /// Again after this time, whatever the back-off says; counts as a failure all the same, also
    /// for [`Builder::retry_limit`](super::Builder::retry_limit).
    RetryAfter(BoxError, Duration),
    /// Not again until something changes.
    Terminal(BoxError),
}

/// `?` makes any error one to retry.
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

/// Brings one object to where it should be.
///
/// Called for deleted objects too. Two calls for the same request never overlap.
pub trait Reconciler: Send + Sync + 'static {
    /// Reconciles one request.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped at an await point when the epoch's grace or the reconcile timeout is
    /// over; the request is reconciled again later.
    fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send;
}
