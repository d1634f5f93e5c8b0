//! Typed lister of a cache.

use std::{marker::PhantomData, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{
    informer::{Object, ObjectKey, Selector, Store, StoreReadError, UnknownIndex},
    kind::TypeRef,
};

/// Rust type of a kind, as a lister reads it.
pub trait CachedResource:
    kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static> CachedResource
    for K
{
}

/// Error of a read from a cache that the controller does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListerError {
    /// Add the type as an input. A custom source that offers a cache of it has offered none yet.
    #[error(
        "no cache of {0}: no input of this controller has it; add it with for_, owns or watches"
    )]
    NotAnInput(TypeRef),
    /// Add the input of this name, or wait until it is listed.
    #[error("no cache of the input {input}: {why}")]
    OfName {
        /// Name of the input.
        input: String,
        /// Reason, as for a type.
        why: String,
    },
    /// Wait until the type of this input is served and listed, or reconcile without it.
    #[error("no cache of {type_ref}: {why}")]
    Unavailable {
        /// Type that is read.
        type_ref: TypeRef,
        /// Reason: the type is not served, not listed yet, or forbidden.
        why: String,
    },
    /// Build the input without `metadata_only` and `keys_only`, or read the headers of
    /// [`Context::store`](super::Context::store).
    #[error(
        "{0} is cached in part, so that its objects cannot be decoded: build the input without \
         metadata_only and keys_only, or read the headers in its store"
    )]
    Projected(TypeRef),
}

/// Error of a lookup in a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// Build the input with `.whole()`, or read the object with
    /// [`Context::fetch`](super::Context::fetch).
    #[error(
        "{0} does not concern this input, which keeps its metadata only: build the input with \
         .whole(), or read the object with Context::fetch"
    )]
    Entry(ObjectKey),
    /// The input keeps some objects as metadata entries, as for one object; or the cache has ended
    /// since it was read first, and [`Context::lister`](super::Context::lister) has the reason now.
    #[error(transparent)]
    Store(#[from] StoreReadError),
    /// Add the index to the input.
    #[error(transparent)]
    UnknownIndex(#[from] UnknownIndex),
    /// The object does not have the shape of its Rust type; the error names the field.
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
}

/// Typed lister of a cache, which keeps JSON.
///
/// The first read of a version decodes it, and all typed reads share the result, of every
/// controller. It takes memory until the object changes or is deleted; read large types that
/// concern few requests by [`Context::store`](super::Context::store). Of two Rust types for one
/// type of the server, the one that is read first is kept, and the other is decoded by each read.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::*, informer::*, kind::{Scope, ServedType}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In a reconciler: `context.lister::<ConfigMap>()?`. A unit test makes the store by hand.
/// let maps = ServedType::of::<ConfigMap>(Scope::Namespaced);
/// let object = br#"{"metadata": {"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "7"},
///     "data": {"size": "3"}}"#;
/// let lister = Lister::<ConfigMap>::of(Store::of([Object::from_json(object.to_vec(), &maps)?]));
///
/// let map = lister.get(&ObjectKey::namespaced("ns", "a"))?.ok_or("not in the cache")?;
/// assert_eq!(map.data.as_ref().unwrap()["size"], "3");
/// assert_eq!(lister.in_namespace("other")?.len(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Lister<K> {
    store: Store,
    kind: PhantomData<fn() -> K>,
}

/// Objects, each decoded by itself, so that a malformed one hides no other.
pub type DecodedObjects<K> = Vec<Result<Arc<K>, serde_json::Error>>;

impl<K: DeserializeOwned + Send + Sync + 'static> Lister<K> {
    /// Returns a typed lister of a store; the names of the store's type and of `K` may differ.
    pub fn of(store: Store) -> Self {
        Self { store, kind: PhantomData }
    }

    /// Returns a cached object; `None` if the cache has no such object.
    ///
    /// # Errors
    ///
    /// [`LookupError::Store`] if the cache has ended; [`LookupError::Entry`] if the input keeps only
    /// the metadata entry of the object; [`LookupError::Decode`] if the object does not have the
    /// shape of `K`.
    pub fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, LookupError> {
        match self.store.get(key) {
            None => self.current(None),
            Some(object) if object.is_whole() => Ok(Some(object.decode_shared()?)),
            Some(_) => Err(LookupError::Entry(key.clone())),
        }
    }

    /// Returns all cached objects, in the order of their keys.
    ///
    /// # Errors
    ///
    /// [`LookupError::Store`] if the cache has ended, or the input keeps some objects as metadata
    /// entries.
    pub fn list(&self) -> Result<DecodedObjects<K>, LookupError> {
        Ok(decoded(&self.store.list()?))
    }

    /// Returns the cached objects of a namespace, in the order of their names.
    ///
    /// # Errors
    ///
    /// As for [`Lister::list`].
    pub fn in_namespace(&self, namespace: &str) -> Result<DecodedObjects<K>, LookupError> {
        Ok(decoded(&self.store.in_namespace(namespace)?))
    }

    /// Returns the cached objects that a selector selects, by a scan of all labels. Only those are
    /// decoded. The labels are those of the server, also with a
    /// [`Transform`](crate::informer::Transform).
    ///
    /// # Errors
    ///
    /// As for [`Lister::list`].
    pub fn matching(
        &self,
        selector: impl Into<Selector>,
    ) -> Result<DecodedObjects<K>, LookupError> {
        let selector = selector.into();
        let mut objects = self.store.list()?;
        objects.retain(|object| selector.matches(&object.header().labels));
        Ok(decoded(&objects))
    }

    /// Returns the cached objects whose controller has this uid, by index.
    ///
    /// # Errors
    ///
    /// [`LookupError::Store`] if the cache has ended.
    pub fn controlled_by(&self, uid: &str) -> Result<DecodedObjects<K>, LookupError> {
        self.current(decoded(&self.store.controlled_by(uid)))
    }

    /// Returns the cached objects of which an owner has this uid, the controller or another one, by
    /// index.
    ///
    /// # Errors
    ///
    /// [`LookupError::Store`] if the cache has ended.
    pub fn owned_by(&self, uid: &str) -> Result<DecodedObjects<K>, LookupError> {
        self.current(decoded(&self.store.owned_by(uid)))
    }

    /// Returns the cached objects under a value of an index that
    /// [`Builder::index`](super::Builder::index) added. Objects that the input keeps as metadata
    /// entries are in no index.
    ///
    /// # Errors
    ///
    /// [`LookupError::Store`] if the cache has ended; [`LookupError::UnknownIndex`] if the input has no
    /// index of that name, or its epoch has ended.
    pub fn by_index(&self, name: &str, value: &str) -> Result<DecodedObjects<K>, LookupError> {
        let found = self.store.by_index(name, value).map(|objects| decoded(&objects));
        self.current(())?;
        Ok(found?)
    }

    /// Returns what was read, unless the cache has ended, so that it has nothing.
    fn current<T>(&self, found: T) -> Result<T, LookupError> {
        if self.store.is_gone() { Err(StoreReadError::Gone.into()) } else { Ok(found) }
    }
}

fn decoded<K: DeserializeOwned + Send + Sync + 'static>(objects: &[Object]) -> DecodedObjects<K> {
    objects.iter().map(Object::decode_shared).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::kind::{Scope, ServedType};

    fn map(namespace: &str, name: &str, app: &str) -> Object {
        let owner = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": format!("uid-{app}"),
            "controller": name != "b",
        });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "namespace": namespace, "name": name, "uid": name, "resourceVersion": "1",
                "labels": {"app": app}, "ownerReferences": [owner],
            },
        });
        let maps = ServedType::of::<ConfigMap>(Scope::Namespaced);
        Object::from_json(map.to_string(), &maps).unwrap()
    }

    #[test]
    fn objects_are_listed_by_namespace_label_and_controller() {
        let objects = [map("one", "a", "x"), map("one", "b", "x"), map("two", "c", "y")];
        let lister = Lister::<ConfigMap>::of(Store::of(objects));
        let names = |found: DecodedObjects<ConfigMap>| -> Vec<_> {
            found.into_iter().map(|map| map.unwrap().metadata.name.clone().unwrap()).collect()
        };

        assert_eq!(names(lister.list().unwrap()), ["a", "b", "c"]);
        assert_eq!(names(lister.in_namespace("one").unwrap()), ["a", "b"]);
        let selector = Selector::label("app", "y");
        assert_eq!(names(lister.matching(&selector).unwrap()), ["c"]);
        assert_eq!(names(lister.matching(selector).unwrap()), ["c"]);
        let of_kube: kube::core::Selector = [("app", "y")].into_iter().collect();
        assert_eq!(names(lister.matching(of_kube).unwrap()), ["c"]);
        assert_eq!(
            names(lister.controlled_by("uid-x").unwrap()),
            ["a"],
            "b has an owner of another role"
        );
        assert_eq!(names(lister.in_namespace("three").unwrap()), [""; 0]);
    }
}
