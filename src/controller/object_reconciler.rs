//! Reconciler of objects, which takes the object of a request in place of the request.

use std::{marker::PhantomData, sync::Arc};

use kube::core::ApiResource;

use super::{
    CachedResource, Context, ListerError, LookupError, Outcome, ReconcileError, Reconciler,
    Request, RetryChoice,
};
use crate::informer::StoreReadError;

/// Reconciler of objects, for a type of the program: [`for_objects_of`] makes a [`Reconciler`] of it.
/// For a closure call [`for_object`].
///
/// Semantics: `reconcile.ObjectReconciler` of controller-runtime, which is not called for a deleted
/// object.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// use pilotlight::controller::{self, *};
///
/// struct Greeter {
///     greeting: String,
/// }
///
/// impl ObjectReconciler<ConfigMap> for Greeter {
///     async fn reconcile(
///         &self,
///         settings: Option<Arc<ConfigMap>>,
///         _: Context,
///     ) -> Result<Outcome, ReconcileError> {
///         println!("{} {:?}", self.greeting, settings.and_then(|settings| settings.data.clone()));
///         Ok(Outcome::Done)
///     }
/// }
///
/// # fn build(cluster: &Cluster) -> Result<Controller, BuildError> {
/// let greeter = Greeter { greeting: "hello".into() };
/// let described = Controller::builder("settings").for_::<ConfigMap>();
/// described.build(cluster, controller::for_objects_of(greeter))
/// # }
/// ```
pub trait ObjectReconciler<K>: Send + Sync + 'static {
    /// Reconciles one object; `None` for a deleted one, which [`Context::request`] names.
    ///
    /// # Cancel safety
    ///
    /// As for [`Reconciler::reconcile`].
    fn reconcile(
        &self,
        object: Option<Arc<K>>,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send;
}

/// Closure that takes the object; it implements [`ObjectReconciler`] only in here, as for keys.
struct ObjectClosure<F>(F);

impl<K, F, R> ObjectReconciler<K> for ObjectClosure<F>
where
    F: Fn(Option<Arc<K>>, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, ReconcileError>> + Send,
{
    fn reconcile(
        &self,
        object: Option<Arc<K>>,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send {
        (self.0)(object, context)
    }
}

/// Returns a reconciler that takes the object of a request from the cache, decoded; `None` for a
/// deleted object, which [`Context::request`] names.
///
/// `K` is the only primary type of the controller, which is not built otherwise: a request for an
/// object of another type would look like a deletion. An object that does not have the shape of `K`
/// is an error, retried at its next change.
///
/// While the cache is missing, as for an optional type that is not served, no object is known to be
/// deleted. The request is then retried once the type has synced, and until then after a growing
/// back-off, without an error and without a call.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::controller::{self, *};
/// # fn build(cluster: &Cluster) -> Result<Controller, BuildError> {
/// Controller::builder("settings").for_::<ConfigMap>().conditional().build(
///     cluster,
///     controller::for_object(|settings: Option<std::sync::Arc<ConfigMap>>, _| async move {
///         println!("{:?}", settings.and_then(|settings| settings.data.clone()));
///         Ok(Outcome::Done)
///     }),
/// )
/// # }
/// ```
pub fn for_object<K, F, R>(reconcile: F) -> impl Reconciler
where
    K: CachedResource,
    F: Fn(Option<Arc<K>>, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, ReconcileError>> + Send,
{
    for_objects_of::<K, ObjectClosure<F>>(ObjectClosure(reconcile))
}

/// Like [`for_object`], for a type of the program that implements [`ObjectReconciler`].
pub fn for_objects_of<K, T>(reconciler: T) -> impl Reconciler
where
    K: CachedResource,
    T: ObjectReconciler<K>,
{
    ObjectReader { reconciler, kind: PhantomData::<fn() -> K> }
}

/// Result of a read of the primary type.
enum CacheRead<K> {
    /// Object; `None` for a deleted one.
    Object(Option<Arc<K>>),
    /// The type is not listed.
    NoCache,
}

/// Reads the object of a request from the cache of the primary type.
fn read<K: CachedResource>(
    context: &Context,
    request: &Request,
) -> Result<CacheRead<K>, ReconcileError> {
    let objects = match context.primary_lister::<K>() {
        Err(ListerError::Unavailable { .. }) => return Ok(CacheRead::NoCache),
        objects => objects?,
    };
    match objects.get(request) {
        Err(LookupError::Decode(error)) => Err(error).terminal(),
        Err(LookupError::Store(StoreReadError::Gone)) => Ok(CacheRead::NoCache),
        found => Ok(CacheRead::Object(found?)),
    }
}

/// Reconciler that reads the object of each request for another one.
struct ObjectReader<K, T> {
    reconciler: T,
    kind: PhantomData<fn() -> K>,
}

impl<K, T> Reconciler for ObjectReader<K, T>
where
    K: CachedResource,
    T: ObjectReconciler<K>,
{
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let unlisted = context.statuses().unlisted();
        let object = match read(&context, &request)? {
            CacheRead::Object(object) => object,
            CacheRead::NoCache => {
                unlisted.insert(request.clone());
                // The type may have synced since the first read.
                match read(&context, &request)? {
                    CacheRead::Object(object) => object,
                    CacheRead::NoCache => return Ok(Outcome::Requeue),
                }
            }
        };
        unlisted.remove(&request);
        self.reconciler.reconcile(object, context).await
    }

    fn object_type(&self) -> Option<ApiResource> {
        Some(ApiResource::erase::<K>(&()))
    }
}
