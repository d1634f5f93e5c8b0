//! Puts a controller together.

use std::time::Duration;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;

use super::{Cluster, ConditionalSource, Handler, Predicate, Reconciler};
use crate::{
    informer::Index,
    kind::TypeRef,
    manager::{ConditionalRunnable, ControllerName, Epoch, Readiness, RunResult, Runnable},
};

/// What is wrong with a controller that is being built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Give it a name.
    #[error("a controller needs a name")]
    NameMissing,
    /// Call `for_` or `watches` at least once.
    #[error("{0} watches nothing: add an input with for_, owns or watches")]
    NoInput(ControllerName),
    /// Only one type can be what a controller is for.
    #[error("{0} has two types it is for; use watches for the second")]
    TwoPrimaries(ControllerName),
    /// `owns` needs to know the owner.
    #[error("{0} owns {1} but is for nothing; call for_ first")]
    OwnsWithoutFor(ControllerName, TypeRef),
}

/// Collects inputs and options. `conditional`, `optional`, `metadata_only`, `keys_only`,
/// `predicate`, `labels`, `namespace` and `index` concern the input named last.
#[derive(Debug)]
pub struct Builder {}

/// A controller: sources, a queue and workers, built anew for every epoch.
#[derive(Debug)]
pub struct Controller {}

impl Controller {
    /// Begins a controller of that name.
    pub fn builder(_name: impl Into<ControllerName>) -> Builder {
        todo!()
    }
}

#[expect(unused_variables, reason = "stub")]
impl Builder {
    /// The type that requests name.
    #[must_use]
    pub fn for_<K: kube::Resource<DynamicType = ()> + DeserializeOwned>(self) -> Self {
        self.for_type(TypeRef::of::<K>())
    }

    /// The type that requests name, known at run time only.
    #[must_use]
    pub fn for_type(self, type_ref: impl Into<TypeRef>) -> Self {
        todo!()
    }

    /// A type whose objects are controlled by the primary: their changes concern their owner.
    #[must_use]
    pub fn owns<K: kube::Resource<DynamicType = ()>>(self) -> Self {
        self.owns_type(TypeRef::of::<K>())
    }

    /// As [`Builder::owns`], known at run time only.
    #[must_use]
    pub fn owns_type(self, type_ref: impl Into<TypeRef>) -> Self {
        todo!()
    }

    /// Any other type, with a handler that maps its changes.
    #[must_use]
    pub fn watches<K: kube::Resource<DynamicType = ()>>(self, handler: Handler) -> Self {
        self.watches_type(TypeRef::of::<K>(), handler)
    }

    /// As [`Builder::watches`], known at run time only.
    #[must_use]
    pub fn watches_type(self, type_ref: impl Into<TypeRef>, handler: Handler) -> Self {
        todo!()
    }

    /// A source of one's own.
    #[must_use]
    pub fn source(self, source: impl ConditionalSource) -> Self {
        todo!()
    }

    /// The controller runs only while this input's type is served.
    #[must_use]
    pub fn conditional(self) -> Self {
        todo!()
    }

    /// The input comes and goes with its type, without a restart.
    #[must_use]
    pub fn optional(self) -> Self {
        todo!()
    }

    /// Fetches and keeps metadata alone.
    #[must_use]
    pub fn metadata_only(self) -> Self {
        todo!()
    }

    /// Drops changes of this input.
    #[must_use]
    pub fn predicate(self, predicate: Predicate) -> Self {
        todo!()
    }

    /// Keeps an index over this input's objects.
    #[must_use]
    pub fn index(self, index: Index) -> Self {
        todo!()
    }

    /// Reconciles that may run at once; 1.
    #[must_use]
    pub fn max_concurrent_reconciles(self, workers: usize) -> Self {
        todo!()
    }

    /// The longest a reconcile may take; none.
    #[must_use]
    pub fn reconcile_timeout(self, timeout: Duration) -> Self {
        todo!()
    }

    /// The longest the first sync of a plain input may take; 2 min.
    #[must_use]
    pub fn sync_timeout(self, timeout: Duration) -> Self {
        todo!()
    }

    /// Finishes it.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names what is missing.
    pub fn build(
        self,
        cluster: &Cluster,
        reconciler: impl Reconciler,
    ) -> Result<Controller, BuildError> {
        todo!()
    }
}

impl Runnable for Controller {
    fn start(&self, _epoch: Epoch) -> BoxFuture<'static, RunResult> {
        todo!()
    }

    fn reports_running(&self) -> bool {
        true
    }
}

impl ConditionalRunnable for Controller {
    fn ready(&self) -> Readiness {
        todo!()
    }
}
