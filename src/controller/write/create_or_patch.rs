//! Creation or change of an object, with no request if nothing has changed.

use std::fmt;

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::manager::BoxError;

/// Write that [`create_or_patch`] or [`create_or_update`](super::create_or_update) has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The object did not exist.
    Created,
    /// The object was different, and its difference was sent.
    Patched,
    /// The object was different, and was sent whole.
    Updated,
    /// The object was as desired: no write.
    Unchanged,
}

/// Error of [`create_or_patch`] and [`create_or_update`](super::create_or_update).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateOrPatchError {
    /// The closure has failed; nothing was written.
    #[error(transparent)]
    Change(BoxError),
    /// The object has no `metadata.name`, or the closure has changed its name or namespace.
    #[error("metadata.{0} must be set, and must not be changed by the closure")]
    Identity(&'static str),
    /// The Rust type cannot be written as JSON.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// The API server cannot be reached, or has refused a request: a conflict if the object has
    /// changed since it was read.
    #[error(transparent)]
    Server(#[from] kube::Error),
}

/// Reads an object, lets `change` set the desired fields, and writes the difference.
///
/// If the object does not exist, `change` is applied to `object`, which is created. Otherwise
/// `change` is applied to the object of the server, and the fields that differ are sent as a merge
/// patch. Fields that the Rust type does not know stay, except in lists, which are sent whole. The
/// patch carries the resourceVersion that was read, so that a concurrent change is a conflict,
/// which a controller retries. A changed `status` is a patch of its subresource. At most three
/// requests; one if nothing differs.
///
/// The read is live. For objects that the reconciler knows whole, server-side apply
/// ([`Context::apply`](crate::controller::Context::apply)) needs no read.
///
/// Semantics: controller-runtime (`pkg/controller/controllerutil/controllerutil.go`,
/// `CreateOrPatch`), except for the resourceVersion.
///
/// # Errors
///
/// [`CreateOrPatchError`].
///
/// # Cancel safety
///
/// Dropped between two requests, the object may be written without its status; the next call
/// completes it.
pub async fn create_or_patch<K>(
    api: &Api<K>,
    object: K,
    change: impl FnOnce(&mut K) -> Result<(), BoxError>,
) -> Result<(K, OperationResult), CreateOrPatchError>
where
    K: Resource + Clone + fmt::Debug + Serialize + DeserializeOwned,
{
    let ChangedObject { name, exists, version, mut before, desired, mut after } =
        ChangedObject::read(api, object, change).await?;
    let (mut status_before, status) = (take_status(&mut before), take_status(&mut after));
    let (mut current, mut written) = if exists {
        match difference(&before, &after) {
            None => (desired, OperationResult::Unchanged),
            Some(patch) => {
                (send(api, &name, version, patch, None).await?, OperationResult::Patched)
            }
        }
    } else {
        let created = api.create(&PostParams::default(), &desired).await?;
        // A creation ignores the status where it is a subresource.
        status_before = take_status(&mut serde_json::to_value(&created)?);
        (created, OperationResult::Created)
    };
    let is_desired = exists || !status.is_null();
    if let Some(patch) = difference(&status_before, &status).filter(|_| is_desired) {
        let patch = Value::Object(Map::from_iter([("status".to_owned(), patch)]));
        let version = current.resource_version();
        current = send(api, &name, version, patch, Some("status")).await?;
        if written == OperationResult::Unchanged {
            written = OperationResult::Patched;
        }
    }
    Ok((current, written))
}

/// Object that was read, or is to be created, with the change of a closure.
pub(super) struct ChangedObject<K> {
    pub(super) name: String,
    /// True if the server has the object.
    pub(super) exists: bool,
    /// resourceVersion that was read.
    pub(super) version: Option<String>,
    pub(super) before: Value,
    pub(super) desired: K,
    pub(super) after: Value,
}

impl<K> ChangedObject<K>
where
    K: Resource + Clone + fmt::Debug + Serialize + DeserializeOwned,
{
    /// Reads the object live and changes it; without one, changes `object`.
    pub(super) async fn read(
        api: &Api<K>,
        object: K,
        change: impl FnOnce(&mut K) -> Result<(), BoxError>,
    ) -> Result<Self, CreateOrPatchError> {
        let name = object.meta().name.clone().ok_or(CreateOrPatchError::Identity("name"))?;
        let found = api.get_opt(&name).await?;
        let exists = found.is_some();
        let mut desired = found.unwrap_or(object);
        let before = serde_json::to_value(&desired)?;
        let (namespace, version) = (desired.namespace(), desired.resource_version());
        change(&mut desired).map_err(CreateOrPatchError::Change)?;
        if desired.meta().name.as_ref() != Some(&name) {
            return Err(CreateOrPatchError::Identity("name"));
        }
        if desired.namespace() != namespace {
            return Err(CreateOrPatchError::Identity("namespace"));
        }
        // A closure that replaces the metadata changes nothing thereby.
        desired.meta_mut().resource_version.clone_from(&version);
        let after = serde_json::to_value(&desired)?;
        Ok(Self { name, exists, version, before, desired, after })
    }
}

/// Sends a merge patch for this version of an object.
async fn send<K: Clone + fmt::Debug + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
    version: Option<String>,
    mut patch: Value,
    subresource: Option<&str>,
) -> Result<K, kube::Error> {
    patch["metadata"]["resourceVersion"] = version.into();
    let (by, patch) = (PatchParams::default(), Patch::Merge(patch));
    match subresource {
        None => api.patch(name, &by, &patch).await,
        Some(subresource) => api.patch_subresource(subresource, name, &by, &patch).await,
    }
}

fn take_status(object: &mut Value) -> Value {
    object.as_object_mut().and_then(|it| it.remove("status")).unwrap_or_default()
}

/// Returns the merge patch (RFC 7396) from one value to another; `None` if they are equal.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    match (before, after) {
        (before, after) if before == after => None,
        (Value::Object(before), Value::Object(after)) => {
            let removed = before.keys().filter(|field| !after.contains_key(*field));
            let removed = removed.map(|field| (field.clone(), Value::Null));
            let changed = after.iter().filter_map(|(field, value)| {
                let patch = difference(before.get(field).unwrap_or(&Value::Null), value)?;
                Some((field.clone(), patch))
            });
            Some(Value::Object(removed.chain(changed).collect()))
        }
        (_, after) => Some(after.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patch_has_what_differs_and_nothing_else() {
        let before = json!({ "a": 1, "b": { "c": [1, 2], "d": "x" }, "e": true });

        assert_eq!(difference(&before, &before), None);
        let after = json!({ "a": 1, "b": { "c": [1], "d": "x", "f": {} } });
        let patch = json!({ "b": { "c": [1], "f": {} }, "e": null });
        assert_eq!(difference(&before, &after), Some(patch));
        assert_eq!(difference(&Value::Null, &json!({ "a": 1 })), Some(json!({ "a": 1 })));
    }
}
