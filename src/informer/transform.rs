//! Transform: a function of the user that changes objects before a cache stores them.
//!
//! An object keeps its identity, and the part of its header by which interests select it. The state
//! of the server decides which objects are delivered and kept; the transform decides the content
//! that readers get.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde_json::{Map, Value};

use crate::guard::{self, GuardedDrop};

/// Type of an object, as members of its JSON.
const TYPE: [&str; 2] = ["apiVersion", "kind"];
/// Identity of an object, as members of its metadata.
const IDENTITY: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];

/// Function that changes objects before a cache stores them, such as the removal of parts that no
/// reconciler reads. Cheap to clone.
///
/// [`Builder::transform`](crate::controller::Builder::transform) sets that of an input;
/// [`TypeDefaults`](crate::controller::TypeDefaults) and
/// [`ControllerDefaults`](crate::controller::ControllerDefaults) have defaults. Transforms are
/// equal if they are clones of one transform: inputs with equal transforms share a watch and its
/// objects. Other inputs of the type have another watch, and read unchanged objects.
///
/// The function receives each object that is kept whole, as its [`Projection`](super::Projection)
/// and the cut of `managedFields` leave it. Metadata entries and the objects of
/// [`Projection::Keys`](super::Projection::Keys) are not transformed. Nor are objects that
/// [`Context::fetch`](crate::controller::Context::fetch) reads for an input with `metadata_only`.
///
/// - The function must be deterministic, since the same object may arrive again. It must not block,
///   since it runs in the task of the informer.
/// - Identity stays: `apiVersion`, `kind`, and in the metadata `name`, `namespace`, `uid` and
///   `resourceVersion` are restored.
/// - Selection stays: labels, owners and deletion time in a [`Header`](super::Header) are those of
///   the server, since metadata entries have them too. Generation, annotations and finalizers are
///   those that the function leaves.
/// - Numbers are those of a [`Value`]: integers within `i64` and `u64` are exact, and all others
///   are rounded to the nearest `f64`.
/// - A panic affects its object alone, which is left out like an object that cannot be decoded
///   ([`InformerStatus::quarantined`](super::InformerStatus::quarantined)). So is an object that is
///   nested too deeply for a [`Value`], or has a number beyond `f64`, such as `1e400`. After an
///   update that fails so, the cache keeps the previous version of the object.
///
/// Do not send a transformed object back as a whole, which would remove the same parts on the
/// server: patch or apply fields. Keep `finalizers` for a reconciler that calls kube's `finalizer`:
/// without them in the object, it fails and never cleans up.
///
/// Semantics: `cache.TransformFunc` of client-go (`tools/cache/controller.go`), except that
/// identity and selection stay, and that an error concerns one object.
///
/// ```
/// # use k8s_openapi::api::core::v1::Pod;
/// use pilotlight::{controller::Controller, informer::Transform};
///
/// let without_status = Transform::new(|object| {
///     if let Some(members) = object.as_object_mut() {
///         members.remove("status");
///     }
/// });
/// let builder = Controller::builder("pods").for_::<Pod>().transform(without_status);
/// # drop(builder);
/// ```
#[derive(Clone)]
pub struct Transform(GuardedDrop<Arc<TransformFn>>);

type TransformFn = dyn Fn(&mut Value) + Send + Sync;

/// Error of a transform, for one object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// Fix the function, which panicked with this message.
    #[error("transform panicked: {0}")]
    Panicked(String),
    /// Fix the function, which replaced the object by another JSON value: change its members.
    #[error("transform left no object; let it change members only")]
    NoObject,
}

impl Transform {
    /// Returns a transform that is equal to its clones only.
    pub fn new(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self(GuardedDrop::new(Arc::new(change)))
    }

    /// Returns an object as the function changes it, with its type and identity restored.
    pub(crate) fn apply(&self, mut object: Value) -> Result<Value, TransformError> {
        let (of_type, identity) = (kept(&object, &TYPE), kept(&object["metadata"], &IDENTITY));
        guard::run(|| (self.0)(&mut object)).map_err(TransformError::Panicked)?;
        let members = object.as_object_mut().ok_or(TransformError::NoObject)?;
        restore(members, of_type);
        let metadata = members.entry("metadata").or_insert(Value::Null);
        if !metadata.is_object() {
            *metadata = Value::Object(Map::new());
        }
        if let Some(metadata) = metadata.as_object_mut() {
            restore(metadata, identity);
        }
        Ok(object)
    }

    /// Returns the address of the function, which is in use while this transform exists.
    fn address(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }
}

/// Returns the values of members; `None` for those that are missing.
fn kept(object: &Value, names: &[&'static str]) -> Vec<(&'static str, Option<Value>)> {
    names.iter().map(|&name| (name, object.get(name).cloned())).collect()
}

/// Sets members to the values that they had.
fn restore(members: &mut Map<String, Value>, kept: Vec<(&'static str, Option<Value>)>) {
    for (name, value) in kept {
        match value {
            Some(value) => drop(members.insert(name.to_owned(), value)),
            None => drop(members.remove(name)),
        }
    }
}

impl PartialEq for Transform {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Transform {}

impl PartialOrd for Transform {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Transform {
    fn cmp(&self, other: &Self) -> Ordering {
        self.address().cmp(&other.address())
    }
}

impl Hash for Transform {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transform").field(&self.address()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn transforms_are_equal_if_they_are_clones_of_one() {
        // Without captures, so that the functions take no memory.
        let transforms = [Transform::new(|_| {}), Transform::new(|_| {})];

        let [one, other] = &transforms;
        assert_eq!(*one, one.clone());
        assert_eq!(one.cmp(&one.clone()), Ordering::Equal);
        assert_ne!(one, other);
        assert_ne!(one.cmp(other), Ordering::Equal);
        assert_eq!(HashSet::from([one, &one.clone(), other]).len(), 2);
        assert_eq!(format!("{one:?}"), format!("{:?}", one.clone()));
    }

    #[track_caller]
    fn check(change: fn(&mut Value), given: Value, expected: Result<Value, TransformError>) {
        assert_eq!(Transform::new(change).apply(given), expected);
    }

    #[test]
    fn transform_changes_everything_but_type_and_identity() {
        let given = || {
            json!({
                "apiVersion": "v1", "kind": "Widget", "spec": {"size": 1},
                "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}},
            })
        };
        let bare = json!({
            "apiVersion": "v1", "kind": "Widget",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7"},
        });

        check(|object| *object = json!({}), given(), Ok(bare.clone()));
        check(|object| *object = json!({"metadata": 5}), given(), Ok(bare.clone()));
        let renamed = |object: &mut Value| {
            let metadata = json!({
                "name": "b", "namespace": "ns", "uid": null, "resourceVersion": "8",
            });
            *object = json!({"apiVersion": "v2", "kind": "Other", "metadata": metadata});
        };
        check(renamed, given(), Ok(bare));
        let mut resized = given();
        resized["spec"]["size"] = json!(2);
        check(|object| object["spec"]["size"] = json!(2), given(), Ok(resized));
        check(|object| *object = Value::Null, given(), Err(TransformError::NoObject));
        check(|_| panic!("boom"), given(), Err(TransformError::Panicked("boom".to_owned())));
    }
}
