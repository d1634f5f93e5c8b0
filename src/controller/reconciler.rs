//! What a user writes: one request in, one outcome out.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use kube::Client;
use serde::de::DeserializeOwned;

use crate::{
    informer::{ObjectKey, Store},
    kind::{ServedType, TypeRef},
    manager::{BoxError, Epoch},
};

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
    /// Again after the back-off of this request. A conflict is repeated without a log line.
    Retry(BoxError),
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
        let (Self::Retry(error) | Self::Terminal(error)) = self;
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

/// What a reconcile has at hand. Cheap to clone.
#[derive(Clone)]
pub struct Context {}

impl Context {
    /// The epoch of the run.
    pub fn epoch(&self) -> &Epoch {
        todo!()
    }

    /// A client behind the epoch's fence: use no other for what must not outlive the epoch.
    pub fn client(&self) -> &Client {
        todo!()
    }

    /// Resolves when the reconcile should end: the epoch stops. Cancel safe.
    pub async fn cancelled(&self) {
        todo!()
    }

    /// The cache of one of the controller's inputs, as it was named to the builder; `None` while
    /// the type is missing (an optional one) or is no input.
    pub fn store(&self, _type_ref: &TypeRef) -> Option<Store> {
        todo!()
    }

    /// Typed reads from the cache of an input.
    pub fn lister<K: kube::Resource<DynamicType = ()> + DeserializeOwned>(&self) -> Lister<K> {
        todo!()
    }

    /// How to talk to one of the controller's inputs, in this epoch.
    pub fn served(&self, _type_ref: &TypeRef) -> Option<Arc<ServedType>> {
        todo!()
    }

    /// How often this request has failed in a row.
    pub fn attempt(&self) -> u32 {
        todo!()
    }

    /// Whether the cache is known to be behind.
    pub fn stale(&self) -> bool {
        todo!()
    }
}

/// Typed reads from a cache; each read decodes.
#[derive(Clone, Debug)]
pub struct Lister<K> {
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> Lister<K> {
    /// The object as last seen; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When it does not have the shape of `K`; the error names the field.
    pub fn get(&self, _key: &ObjectKey) -> Result<Option<K>, serde_json::Error> {
        todo!()
    }
}
