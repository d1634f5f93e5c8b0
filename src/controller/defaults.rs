//! Defaults of controllers and of their inputs.

use std::{sync::Arc, time::Duration};

use super::{Backoff, RateLimiter, Request, queue::NewLimiter};
use crate::kind::TypeRef;

/// Defaults of the controllers that are built with a [`Cluster`](super::Cluster), by
/// [`Cluster::with_defaults`](super::Cluster::with_defaults). An option of a
/// [`Builder`](super::Builder) takes precedence.
///
/// Semantics: `manager.Options.Controller` and `cache.ByObject` of controller-runtime
/// (`pkg/config`, `pkg/cache`).
///
/// ```no_run
/// # fn example(cluster: pilotlight::controller::Cluster) {
/// use std::time::Duration;
///
/// use k8s_openapi::api::core::v1::Pod;
/// use pilotlight::{controller::{ControllerDefaults, TypeDefaults}, kind::TypeRef};
///
/// let pods = TypeDefaults { labels: Some("app=web".into()), ..TypeDefaults::default() };
/// let cluster = cluster.with_defaults(
///     ControllerDefaults::default()
///         .max_concurrent_reconciles(4)
///         .reconcile_timeout(Duration::from_secs(60))
///         .of_type(TypeRef::of::<Pod>(), pods),
/// );
/// # drop(cluster);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "pass it to Cluster::with_defaults"]
pub struct ControllerDefaults {
    pub(super) workers: Option<usize>,
    pub(super) reconcile_timeout: Option<Duration>,
    pub(super) sync_timeout: Option<Duration>,
    pub(super) backoff: Option<Backoff>,
    pub(super) limiter: Option<NewLimiter<Request>>,
    pub(super) recover_panic: Option<bool>,
    types: Vec<(TypeRef, TypeDefaults)>,
}

/// Defaults of the inputs of one type, and of the controllers that are for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeDefaults {
    /// Namespaces; those of the cluster if there are none.
    pub namespaces: Vec<Arc<str>>,
    /// Label selector that the server applies.
    pub labels: Option<Arc<str>>,
    /// Field selector that the server applies.
    pub fields: Option<Arc<str>>,
    /// Maximum number of concurrent reconciles of a controller whose first primary type this is.
    pub max_concurrent_reconciles: Option<usize>,
}

impl ControllerDefaults {
    /// Sets the default of [`Builder::max_concurrent_reconciles`](super::Builder::max_concurrent_reconciles).
    pub fn max_concurrent_reconciles(self, workers: usize) -> Self {
        Self { workers: Some(workers), ..self }
    }

    /// Sets the default of [`Builder::reconcile_timeout`](super::Builder::reconcile_timeout).
    pub fn reconcile_timeout(self, timeout: Duration) -> Self {
        Self { reconcile_timeout: Some(timeout), ..self }
    }

    /// Sets the default of [`Builder::sync_timeout`](super::Builder::sync_timeout).
    pub fn sync_timeout(self, timeout: Duration) -> Self {
        Self { sync_timeout: Some(timeout), ..self }
    }

    /// Sets the default of [`Builder::backoff`](super::Builder::backoff).
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff: Some(backoff), ..self }
    }

    /// Sets the default of [`Builder::rate_limiter`](super::Builder::rate_limiter), for controllers
    /// without a back-off of their own.
    pub fn rate_limiter(self, limiter: impl RateLimiter<Request> + Clone + Sync + 'static) -> Self {
        Self { limiter: Some(NewLimiter::cloning(limiter)), ..self }
    }

    /// Sets the default of [`Builder::recover_panic`](super::Builder::recover_panic).
    pub fn recover_panic(self, recovers: bool) -> Self {
        Self { recover_panic: Some(recovers), ..self }
    }

    /// Sets the defaults of the inputs of a type, which the inputs must name in the same way: by
    /// its kind, or by its plural name as a Rust type does.
    pub fn of_type(mut self, type_ref: impl Into<TypeRef>, defaults: TypeDefaults) -> Self {
        self.types.push((type_ref.into(), defaults));
        self
    }

    /// Returns the defaults of a type: those that were set last.
    pub(super) fn of(&self, type_ref: &TypeRef) -> Option<&TypeDefaults> {
        let mut newest_first = self.types.iter().rev();
        newest_first.find(|(known, _)| known == type_ref).map(|(_, defaults)| defaults)
    }
}
