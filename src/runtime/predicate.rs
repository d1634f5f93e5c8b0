//! Predicate of kube in a controller of this crate.

use kube_runtime::Predicate as KubePredicate;
use serde::de::DeserializeOwned;

use crate::{controller::Predicate, informer::Object};

/// Returns a predicate that passes the changes of an object for which a predicate of kube, such as
/// `kube_runtime::predicates::generation`, computes another value.
///
/// Creations, deletions and recreated objects always pass, and so do objects that cannot be decoded
/// and those for which the predicate has no value. kube's own filter drops deletions whose value is
/// unchanged.
///
/// Each change decodes the old and the new object. The predicates of
/// [`Predicate`](crate::controller::Predicate) read the cached header instead.
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilotlight::runtime::{kube_runtime::predicates, object_predicate};
///
/// let labels = object_predicate::<ConfigMap>(predicates::labels); // For `Builder::predicate`.
/// # drop(labels);
/// ```
pub fn object_predicate<K>(predicate: impl KubePredicate<K> + Send + Sync + 'static) -> Predicate
where
    K: DeserializeOwned,
{
    let value = move |object: &Object| {
        let object = object.is_whole().then(|| object.decode::<K>().ok()).flatten();
        object.and_then(|object| predicate.hash_property(&object))
    };
    Predicate::new(move |delta| match (&delta.old, &delta.new) {
        (Some(old), Some(new)) => {
            let same = old.header().uid == new.header().uid;
            let before = same.then(|| value(old)).flatten();
            before.is_none() || before != value(new)
        }
        (None, _) | (_, None) => true,
    })
}
