//! Custom key: a value of a program's own type, which a request names in place of an object.
//!
//! The name of the request is the key as JSON. Queue, back-off and unconfirmed writes are kept by
//! request, and so by key.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};

use super::Request;
use crate::controller::{Context, Outcome, ReconcileError, Reconciler, RetryChoice};

/// Error of a custom key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Use another type of key: JSON has no maps whose keys are neither strings nor numbers.
    #[error("the custom key cannot be written as JSON: {0}; use another type of key")]
    Encode(#[source] serde_json::Error),
    /// Make each request of the controller by [`Request::of_key`], of one type of key.
    #[error(
        "the name of the request {request} is not the custom key that the reconciler takes: \
         {source}; make each request by Request::of_key"
    )]
    Decode {
        /// Request.
        request: Request,
        /// Reason for which its name is not a key.
        source: serde_json::Error,
    },
    /// Map the changes of the object to keys, by a handler of its input and [`Request::of_key`].
    #[error(
        "the request {0} names an object and not a custom key; map changes of the object by a \
         handler and Request::of_key"
    )]
    Object(Request),
}

/// Requests of custom keys, for a controller without a primary type.
impl Request {
    /// Request for a custom key, which [`for_key`] takes: for a reconcile that concerns more than
    /// one object, or none.
    ///
    /// The name of the request is the key as compact JSON. Keys with the same JSON are one request,
    /// so a type without an order of its own, such as a `HashMap`, must not be a key. Floats must
    /// not be keys either: NaN and the infinities become `null`. A key appears in logs and in the
    /// status, and must not be secret.
    ///
    /// # Errors
    ///
    /// [`KeyError::Encode`].
    pub fn of_key<K: Serialize + ?Sized>(key: &K) -> Result<Self, KeyError> {
        serde_json::to_string(key).map(Self::cluster).map_err(KeyError::Encode)
    }

    /// Returns the custom key that this request names.
    ///
    /// # Errors
    ///
    /// [`KeyError::Decode`], [`KeyError::Object`].
    pub fn custom_key<K: DeserializeOwned>(&self) -> Result<K, KeyError> {
        if self.primary != 0 || self.key.namespace.is_some() {
            return Err(KeyError::Object(self.clone()));
        }
        serde_json::from_str(&self.key.name)
            .map_err(|source| KeyError::Decode { request: self.clone(), source })
    }
}

/// Reconciler of custom keys, for a type of the program: [`for_keys_of`] makes a [`Reconciler`] of
/// it. For a closure call [`for_key`].
///
/// ```no_run
/// use pilotlight::controller::{self, *};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize, Serialize)]
/// struct Shard {
///     tenant: String,
///     number: u32,
/// }
///
/// struct Sharder {
///     greeting: String,
/// }
///
/// impl KeyReconciler<Shard> for Sharder {
///     async fn reconcile(&self, shard: Shard, _: Context) -> Result<Outcome, ReconcileError> {
///         println!("{} {} {}", self.greeting, shard.tenant, shard.number);
///         Ok(Outcome::Done)
///     }
/// }
///
/// # fn build(cluster: &Cluster) -> Result<Controller, BuildError> {
/// // The program sends `Request::of_key(&Shard { .. })?`.
/// let (requests, source) = ChannelSource::new(100);
/// # drop(requests);
/// let sharder = Sharder { greeting: "hello".into() };
/// Controller::builder("shards").source(source).build(cluster, controller::for_keys_of(sharder))
/// # }
/// ```
pub trait KeyReconciler<K>: Send + Sync + 'static {
    /// Reconciles one key.
    ///
    /// # Cancel safety
    ///
    /// As for [`Reconciler::reconcile`].
    fn reconcile(
        &self,
        key: K,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send;
}

/// Closure that takes the custom key.
///
/// Closures implement [`KeyReconciler`] only in here: as both kinds of reconcilers, a closure of
/// requests would have two methods `reconcile`.
struct KeyClosure<F>(F);

impl<K, F, R> KeyReconciler<K> for KeyClosure<F>
where
    F: Fn(K, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, ReconcileError>> + Send,
{
    fn reconcile(
        &self,
        key: K,
        context: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send {
        (self.0)(key, context)
    }
}

/// Returns a reconciler that takes the custom key of a request, made by [`Request::of_key`].
///
/// The controller has no primary type, and is not built otherwise: requests of a primary type name
/// its objects. Its inputs are sources of requests, such as a
/// [`ChannelSource`](crate::controller::ChannelSource), and types whose handlers map changes to
/// keys. A type with `Handler::Object` or `Handler::Owner`, which name objects, is refused too. A
/// request that names no key of the type `K` is an error, retried when it is added again.
///
/// The promises about requests hold for keys: one reconcile of a key at a time, retries, and caches
/// that hold the writes of the key's last reconcile. The requests end with their epoch, also those
/// that wait for their time; sources add them again in the next one.
///
/// Semantics: `reconcile.TypedReconciler` of controller-runtime.
///
/// ```no_run
/// # use std::time::Duration;
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::ResourceExt;
/// use pilotlight::controller::{self, *};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Deserialize, Serialize)]
/// enum Work {
///     Everything,
///     Shard { namespace: String, number: u32 },
/// }
///
/// # fn build(cluster: &Cluster) -> Result<Controller, Box<dyn std::error::Error>> {
/// let shards = Handler::typed(|event: Event<ConfigMap>, queue: &mut Enqueue<'_>| {
///     let namespace = event.object().namespace().unwrap_or_default();
///     for number in 0..4 {
///         let shard = Work::Shard { namespace: namespace.clone(), number };
///         queue.add(Request::of_key(&shard).expect("it has no map"));
///     }
/// });
/// let everything = Request::of_key(&Work::Everything)?;
/// let controller = Controller::builder("work")
///     .watches::<ConfigMap>(shards)
///     .source(FunctionSource::interval(Duration::from_secs(3600), everything))
///     .build(
///         cluster,
///         controller::for_key(|work: Work, _| async move {
///             println!("{work:?}");
///             Ok(Outcome::Done)
///         }),
///     )?;
/// # Ok(controller)
/// # }
/// ```
pub fn for_key<K, F, R>(reconcile: F) -> impl Reconciler
where
    K: DeserializeOwned + Send + 'static,
    F: Fn(K, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, ReconcileError>> + Send,
{
    for_keys_of::<K, KeyClosure<F>>(KeyClosure(reconcile))
}

/// Like [`for_key`], for a type of the program that implements [`KeyReconciler`].
pub fn for_keys_of<K, T>(reconciler: T) -> impl Reconciler
where
    K: DeserializeOwned + Send + 'static,
    T: KeyReconciler<K>,
{
    KeyDecoder { reconciler, key: PhantomData::<fn() -> K> }
}

/// Reconciler that decodes the custom key of each request for another one.
struct KeyDecoder<K, T> {
    reconciler: T,
    key: PhantomData<fn() -> K>,
}

impl<K, T> Reconciler for KeyDecoder<K, T>
where
    K: DeserializeOwned + Send + 'static,
    T: KeyReconciler<K>,
{
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let key = request.custom_key::<K>().terminal()?;
        KeyReconciler::reconcile(&self.reconciler, key, context).await
    }

    fn takes_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt};

    use serde::Deserialize;

    use super::*;
    use crate::informer::ObjectKey;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    enum Work {
        Everything,
        Shard { tenant: String, number: u32 },
    }

    fn shard(tenant: &str, number: u32) -> Work {
        Work::Shard { tenant: tenant.to_owned(), number }
    }

    #[test]
    fn request_of_a_key_is_cluster_scoped_and_has_its_compact_json_as_the_name() {
        let request = Request::of_key(&shard("a", 1)).unwrap();

        assert_eq!(request, Request::cluster(r#"{"Shard":{"tenant":"a","number":1}}"#));
    }

    #[track_caller]
    fn check<K: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(key: K) {
        let request = Request::of_key(&key).unwrap();

        assert_eq!(request.custom_key::<K>().unwrap(), key, "{request}");
    }

    #[test]
    fn key_of_a_request_is_the_one_that_it_was_made_of() {
        check(Work::Everything);
        check(shard("a/b \"c\"\n\u{1b}[31mé", u32::MAX));
        check((u64::MAX, i64::MIN));
        check(());
        check(String::new());
        check(BTreeMap::from([(2, vec![Some(true), None]), (10, Vec::new())]));
    }

    #[test]
    fn request_that_names_no_key_of_the_type_is_an_error_that_names_it() {
        for (request, name) in [
            (Request::cluster("a"), "a"),
            (Request::cluster("-1"), "-1"),
            (Request::of_key(&shard("a", 1)).unwrap(), r#"{"Shard":{"tenant":"a","number":1}}"#),
            (Request::of_key(&f64::NAN).unwrap(), "null"),
            // Objects, although their names are numbers.
            (Request::namespaced("ns", "7"), "ns/7"),
            (Request::new(1, ObjectKey::cluster("7")), "7"),
        ] {
            let error = request.custom_key::<u32>().unwrap_err().to_string();

            assert!(error.contains(&format!("request {name} ")), "{error}");
        }
    }

    #[test]
    fn key_without_json_is_an_error() {
        let key = BTreeMap::from([((1, 2), 3)]);

        assert!(matches!(Request::of_key(&key), Err(KeyError::Encode(_))));
    }
}
