//! Reconciler: the user's code, which turns a request into an outcome.

pub(super) mod std_reconcile_error;

use std::{fmt, future::Future, time::Duration};

use kube::core::ApiResource;

pub use self::std_reconcile_error::StdReconcileError;
use super::{Add, Context, Request};
use crate::manager::BoxError;

/// Successful end of a reconcile.
///
/// ```
/// # use std::time::Duration;
/// # use pilotlight::controller::*;
/// async fn reconcile(request: Request, context: Context) -> Result<Outcome, ReconcileError> {
///     # let (is_complete, is_paused) = (true, false);
///     if is_paused {
///         return Ok(Outcome::Done); // A change of the object reconciles it again.
///     }
///     if is_complete { Ok(Outcome::RequeueAfter(Duration::from_secs(600))) } else { Ok(Outcome::Requeue) }
/// }
/// # let builder = Controller::builder("example");
/// # fn is_reconciler(_: impl Reconciler) {}
/// # is_reconciler(reconcile);
/// # drop(builder);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Wait for the next change.
    #[default]
    Done,
    /// Reconcile again after this time, even without a change; resets the back-off.
    RequeueAfter(Duration),
    /// Reconcile again after the back-off, which grows with each call in a row that returns this.
    /// No error is logged or counted.
    Requeue,
    /// Reconcile again with the priority of this add; other outcomes keep the priority of the
    /// request. Waits for its delay, like [`Outcome::RequeueAfter`]. If the add is rate limited,
    /// waits for the back-off, like [`Outcome::Requeue`].
    ///
    /// Semantics: `reconcile.Result` of controller-runtime with `Priority`, except that an error
    /// keeps the priority of its request.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use pilotlight::controller::{Add, LOW_PRIORITY, Outcome};
    ///
    /// // Not urgent: requests for changes precede it.
    /// let (priority, after) = (LOW_PRIORITY, Duration::from_secs(60));
    /// let outcome = Outcome::RequeueWith(Add { priority, after, ..Add::default() });
    /// # drop(outcome);
    /// ```
    RequeueWith(Add),
}

/// Error of a reconcile, and its retry. A [`StdReconcileError`] keeps the retry where a
/// `std::error::Error` is required.
///
/// ```
/// # use std::time::Duration;
/// # use pilotlight::controller::{ReconcileError, RetryChoice};
/// fn replicas(text: &str) -> Result<u32, ReconcileError> {
///     let count = text.parse::<u32>().terminal()?; // Retried after a change of the object only.
///     let limit = std::fs::read_to_string("/etc/limit").retry_after(Duration::from_secs(60))?;
///     let limit = limit.trim().parse::<u32>()?; // Retried after the back-off.
///     Ok(count.min(limit))
/// }
/// # assert!(matches!(replicas("many"), Err(ReconcileError::Terminal(_))));
/// ```
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

/// Chooses the retry of an error in a chain with `?`.
///
/// ```
/// use pilotlight::controller::{ReconcileError, RetryChoice};
///
/// fn size(text: &str) -> Result<u32, ReconcileError> {
///     // Only a change of the object can help.
///     text.parse::<u32>().terminal()
/// }
/// # assert!(matches!(size("many"), Err(ReconcileError::Terminal(_))));
/// ```
pub trait RetryChoice<T> {
    /// Makes the error [`ReconcileError::Terminal`].
    ///
    /// # Errors
    ///
    /// The error, if this is one.
    fn terminal(self) -> Result<T, ReconcileError>;

    /// Makes the error [`ReconcileError::RetryAfter`].
    ///
    /// # Errors
    ///
    /// The error, if this is one.
    fn retry_after(self, after: Duration) -> Result<T, ReconcileError>;
}

impl<T, E: Into<BoxError>> RetryChoice<T> for Result<T, E> {
    fn terminal(self) -> Result<T, ReconcileError> {
        self.map_err(|error| ReconcileError::Terminal(error.into()))
    }

    fn retry_after(self, after: Duration) -> Result<T, ReconcileError> {
        self.map_err(|error| ReconcileError::RetryAfter(error.into(), after))
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
/// A closure is a reconciler too: see [`for_object`](super::for_object) for one that takes the object,
/// and [`for_key`](super::for_key) for one that takes a key of the program's own type. A type that
/// takes objects implements [`ObjectReconciler`](super::ObjectReconciler), and one that takes such
/// keys [`KeyReconciler`](super::KeyReconciler).
///
/// Called for deleted objects too. Two calls for the same request never overlap. Each call is
/// delayed until the caches of the controller's inputs hold the writes that the last call sent
/// through [`Context::client`].
///
/// ```
/// use pilotlight::controller::{Context, Outcome, ReconcileError, Reconciler, Request};
///
/// struct Greeter {
///     greeting: String,
/// }
///
/// impl Reconciler for Greeter {
///     async fn reconcile(&self, request: Request, _: Context) -> Result<Outcome, ReconcileError> {
///         println!("{} {request}", self.greeting);
///         Ok(Outcome::Done)
///     }
/// }
/// # drop(Greeter { greeting: "hello".into() });
/// ```
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

    /// Returns the type whose objects the reconciler takes in place of requests: the controller is
    /// built only if this is its only primary type. `None` for a reconciler of requests.
    fn object_type(&self) -> Option<ApiResource> {
        None
    }

    /// Returns whether the reconciler takes custom keys in place of requests for objects
    /// ([`Request::of_key`]): the controller is built only if it has no primary type, and no type
    /// with [`Handler::Object`](super::Handler::Object) or
    /// [`Handler::Owner`](super::Handler::Owner). False by default.
    fn takes_keys(&self) -> bool {
        false
    }
}

impl<F, R> Reconciler for F
where
    F: Fn(Request, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, ReconcileError>> + Send,
{
    fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send {
        self(request, context)
    }
}
