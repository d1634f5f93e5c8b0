//! Defaults of controllers and of their inputs.

use std::{sync::Arc, time::Duration};

use super::{Backoff, Limit, RateLimiter, Request, WatchErrorHandler, queue::NewLimiter};
use crate::{informer::Transform, kind::TypeRef, manager::RunnableGroup};

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
/// use pilotlight::controller::{ControllerDefaults, TypeDefaults};
///
/// let pods = TypeDefaults { labels: Some("app=web".into()), ..TypeDefaults::default() };
/// let cluster = cluster.with_defaults(
///     ControllerDefaults::default()
///         .max_concurrent_reconciles(4)
///         .reconcile_timeout(Duration::from_secs(60))
///         .of::<Pod>(pods),
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
    pub(super) retry_limit: Option<Limit>,
    pub(super) limiter: Option<NewLimiter<Request>>,
    pub(super) recover_panic: Option<bool>,
    pub(super) group: Option<RunnableGroup>,
    pub(super) warm_up: Option<bool>,
    pub(super) transform: Option<Transform>,
    // By the names of a type: that of `of_type`, or plural and kind.
    types: Vec<(Vec<TypeRef>, TypeDefaults)>,
}

/// Defaults of the inputs of one type, and of the controllers that are for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeDefaults {
    /// Namespaces, as by [`Builder::namespaces`](super::Builder::namespaces); that of the cluster by
    /// default.
    pub namespaces: Vec<Arc<str>>,
    /// Label selector that the server applies.
    pub labels: Option<Arc<str>>,
    /// Field selector that the server applies.
    pub fields: Option<Arc<str>>,
    /// Transform of cached objects, as by [`Builder::transform`](super::Builder::transform), in
    /// place of that of all types. Inputs with `keys_only` have none.
    pub transform: Option<Transform>,
    /// Period of resyncs, as by [`Builder::resync`](super::Builder::resync); none by default. An
    /// input opts out by a period of zero.
    pub resync: Option<Duration>,
    /// Handler of watch errors; none by default. See
    /// [`Builder::on_watch_error`](super::Builder::on_watch_error).
    ///
    /// ```
    /// # use pilotlight::controller::{TypeDefaults, WatchErrorHandler};
    /// let on_error = WatchErrorHandler::new(|state, error| eprintln!("{state:?}: {error}"));
    /// let defaults = TypeDefaults { on_watch_error: Some(on_error), ..TypeDefaults::default() };
    /// # drop(defaults);
    /// ```
    pub on_watch_error: Option<WatchErrorHandler>,
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

    /// Sets the default of [`Builder::retry_limit`](super::Builder::retry_limit): each controller has
    /// a limit of its own.
    pub fn retry_limit(self, limit: Limit) -> Self {
        Self { retry_limit: Some(limit), ..self }
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

    /// Sets the default of [`Builder::group`](super::Builder::group).
    pub fn group(self, group: RunnableGroup) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Sets the default of [`Builder::warm_up`](super::Builder::warm_up).
    pub fn warm_up(self, warms_up: bool) -> Self {
        Self { warm_up: Some(warms_up), ..self }
    }

    /// Sets the default of [`Builder::transform`](super::Builder::transform), for the inputs of all
    /// types. That of a type, [`TypeDefaults::transform`], takes precedence. Inputs with
    /// `keys_only` have none.
    ///
    /// Where the transform drops a field that a Rust type requires, typed reads of its objects fail
    /// at run time.
    ///
    /// Semantics: `cache.Options.DefaultTransform` of controller-runtime (`pkg/cache`).
    pub fn transform(self, transform: Transform) -> Self {
        Self { transform: Some(transform), ..self }
    }

    /// Sets the defaults of the inputs of a type, at any version, by the type's Rust struct.
    pub fn of<K: kube::Resource<DynamicType = ()>>(mut self, defaults: TypeDefaults) -> Self {
        let by_kind = TypeRef::kind(K::group(&()), K::version(&()), K::kind(&()));
        self.types.push((vec![TypeRef::of::<K>(), by_kind], defaults));
        self
    }

    /// Sets the defaults of the inputs of a type, at any version.
    ///
    /// A kind also matches inputs that are named by its regular plural, such as `networkpolicies`
    /// of `NetworkPolicy`, and the reverse. For a type with another plural use
    /// [`ControllerDefaults::of`], or the name that its inputs have; the inputs of a Rust struct
    /// have the plural.
    pub fn of_type(mut self, type_ref: impl Into<TypeRef>, defaults: TypeDefaults) -> Self {
        self.types.push((vec![type_ref.into()], defaults));
        self
    }

    /// Returns the defaults of a type: those that were set last.
    pub(super) fn find(&self, type_ref: &TypeRef) -> Option<&TypeDefaults> {
        let is_named = |names: &[TypeRef]| names.iter().any(|name| name.is_alike(type_ref));
        let mut newest_first = self.types.iter().rev();
        newest_first.find(|(names, _)| is_named(names)).map(|(_, defaults)| defaults)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        core::v1::Endpoints, discovery::v1::EndpointSlice, networking::v1::Ingress,
    };
    use kube::{api::ObjectMeta, core::DynamicResourceScope};

    use super::*;

    /// Rust struct of a type whose plural is not a regular one.
    struct Datum(ObjectMeta);

    impl kube::Resource for Datum {
        type DynamicType = ();
        type Scope = DynamicResourceScope;

        fn kind(_: &()) -> std::borrow::Cow<'_, str> {
            "Datum".into()
        }

        fn group(_: &()) -> std::borrow::Cow<'_, str> {
            "example.com".into()
        }

        fn version(_: &()) -> std::borrow::Cow<'_, str> {
            "v1".into()
        }

        fn plural(_: &()) -> std::borrow::Cow<'_, str> {
            "data".into()
        }

        fn meta(&self) -> &ObjectMeta {
            &self.0
        }

        fn meta_mut(&mut self) -> &mut ObjectMeta {
            &mut self.0
        }
    }

    #[test]
    fn defaults_of_a_rust_struct_match_its_kind_and_its_irregular_plural() {
        let of_data = TypeDefaults { labels: Some("a=b".into()), ..TypeDefaults::default() };

        let defaults = ControllerDefaults::default().of::<Datum>(of_data.clone());

        for name in [
            TypeRef::of::<Datum>(),
            TypeRef::kind("example.com", "v1", "Datum"),
            TypeRef::resource("example.com", "v2", "data"),
        ] {
            assert_eq!(defaults.find(&name), Some(&of_data), "{name}");
        }
    }

    #[test]
    fn defaults_by_kind_match_the_plurals_of_kubernetes() {
        let kinds = [("", "Endpoints"), ("networking.k8s.io", "Ingress")];
        let defaults =
            kinds.into_iter().fold(ControllerDefaults::default(), |all, (group, kind)| {
                all.of_type(TypeRef::kind(group, "v1", kind), TypeDefaults::default())
            });

        assert!(defaults.find(&TypeRef::of::<Endpoints>()).is_some());
        assert!(defaults.find(&TypeRef::of::<Ingress>()).is_some());
        assert!(defaults.find(&TypeRef::of::<EndpointSlice>()).is_none());
    }
}
