//! Error of a reconcile as a `std::error::Error` that keeps its retry.

use std::{error::Error, fmt};

use super::ReconcileError;

/// [`ReconcileError`] as a [`std::error::Error`], for a function that requires one, such as kube's
/// `finalizer`.
///
/// Returned to the controller with `?`, itself or as a source of other errors, it keeps the retry
/// that was chosen: an error of [`ReconcileError::Retry`] is searched for it. A retry that the
/// reconciler chooses for the outer error precedes it.
///
/// ```
/// # use std::sync::Arc;
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::{Api, ResourceExt};
/// use kube::runtime::{
///     controller::Action,
///     finalizer::{Event, finalizer},
/// };
/// use pilotlight::controller::*;
///
/// fn apply(map: &ConfigMap) -> Result<u32, ReconcileError> {
///     let size = map.data.as_ref().and_then(|data| data.get("size")).ok_or("no size")?;
///     size.parse::<u32>().terminal()
/// }
///
/// async fn reconcile(
///     map: Option<Arc<ConfigMap>>,
///     context: Context,
/// ) -> Result<Outcome, ReconcileError> {
///     let Some(map) = map else { return Ok(Outcome::Done) };
///     let namespace = map.namespace().unwrap_or_default();
///     let maps = Api::<ConfigMap>::namespaced(context.client().clone(), &namespace);
///     finalizer(&maps, "example.com/map", map, |event| async {
///         if let Event::Apply(map) = event {
///             apply(&map)?;
///         }
///         Ok::<_, StdReconcileError>(Action::await_change())
///     })
///     .await?; // Not retried if the size is no number.
///     Ok(Outcome::Done)
/// }
/// # drop(for_object(reconcile));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StdReconcileError(#[source] ChosenRetry);

impl From<ReconcileError> for StdReconcileError {
    fn from(error: ReconcileError) -> Self {
        Self(ChosenRetry(error))
    }
}

/// Source of a [`StdReconcileError`], with the retry. A source is also seen where the error itself
/// is not: in a box, behind `#[error(transparent)]` and in an `anyhow::Error`.
#[derive(Debug)]
pub(in crate::controller) struct ChosenRetry(pub(in crate::controller) ReconcileError);

impl fmt::Display for ChosenRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for ChosenRetry {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let (ReconcileError::Retry(error)
        | ReconcileError::RetryAfter(error, _)
        | ReconcileError::Terminal(error)) = &self.0;
        Some(&**error)
    }
}
