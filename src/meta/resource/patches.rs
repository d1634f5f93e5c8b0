//! Merge patches of objects, for roles with and without the right to patch.
//!
//! Metacontroller updates whole objects, so that a role made for it may lack the verb `patch`.
//! Where a patch is refused for that, the object is read and replaced by an update instead. The
//! refusal is remembered for the type until the epoch ends, or an update is refused too: the role of
//! another namespace may allow patches alone.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use kube::core::Status;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};

use super::{Resource, ServerObject, is_forbidden, is_patch_forbidden};
use crate::{informer::ObjectKey, kind::TypeIdentity};

/// Types whose objects may not be patched: group and plural name.
#[derive(Debug, Default)]
pub(crate) struct Patches {
    refused: Mutex<BTreeSet<(String, String)>>,
}

impl Patches {
    /// Merges a patch into an object. The patch names uid and resourceVersion of the object.
    ///
    /// # Errors
    ///
    /// A conflict, if the object has another uid or resourceVersion.
    pub(crate) async fn merge<T: DeserializeOwned>(
        &self,
        resource: &Resource<'_>,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<T, kube::Error> {
        let name = name_of(resource.identity());
        let is_refused = self.refused.lock().contains(&name);
        if !is_refused {
            match resource.merge_patch(key, None, patch).await {
                Err(error) if is_patch_forbidden(&error) => {}
                other => return other,
            }
        }
        match update(resource, key, patch).await {
            Ok(updated) => {
                self.refused.lock().insert(name);
                serde_json::from_str(updated.get()).map_err(kube::Error::SerdeError)
            }
            Err(error) if is_forbidden(&error) && is_refused => {
                self.refused.lock().remove(&name);
                resource.merge_patch(key, None, patch).await
            }
            Err(error) => Err(error),
        }
    }

    /// Forgets all refusals.
    pub(crate) fn clear(&self) {
        self.refused.lock().clear();
    }
}

fn name_of(identity: &TypeIdentity) -> (String, String) {
    (identity.group.to_string(), identity.plural.to_string())
}

/// Reads an object, and replaces the version that the patch names.
async fn update(
    resource: &Resource<'_>,
    key: &ObjectKey,
    patch: &Value,
) -> Result<Box<RawValue>, kube::Error> {
    let live = resource.get(key).await?;
    if !is_version(&live, patch) {
        let message = format!("{key} has changed since it was read");
        let status = Status::failure(&message, "Conflict").with_code(StatusCode::CONFLICT.as_u16());
        return Err(kube::Error::Api(status.boxed()));
    }
    let patched = patched(live.json(), patch).map_err(kube::Error::SerdeError)?;
    resource.replace(key, patched.into()).await
}

/// Returns whether an object is the version that a patch names.
fn is_version(live: &ServerObject, patch: &Value) -> bool {
    let named = |field: &str| {
        let value = patch.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
        value.filter(|value| !value.is_empty())
    };
    named("uid").is_none_or(|uid| live.is(uid))
        && named("resourceVersion").is_none_or(|version| live.version() == Some(version))
}

/// Merges a patch into an object. Fields that the patch lacks stay as their text is.
fn patched(object: &[u8], patch: &Value) -> Result<Vec<u8>, serde_json::Error> {
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(object)?;
    for (field, change) in patch.as_object().into_iter().flatten() {
        let seen = fields.remove(field);
        let seen = seen.map(|seen| serde_json::from_str(seen.get())).transpose()?;
        let mut value = seen.unwrap_or_default();
        merge(&mut value, change);
        if !value.is_null() {
            fields.insert(field.clone(), serde_json::value::to_raw_value(&value)?);
        }
    }
    serde_json::to_vec(&fields)
}

/// Merges as RFC 7396 describes.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    let Some(fields) = value.as_object_mut() else { return };
    for (field, change) in changes {
        if change.is_null() {
            fields.remove(field);
        } else {
            merge(fields.entry(field.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(patch: Value, expected: &str) {
        let object = r#"{"kind":"A","metadata":{"name":"a","labels":{"x":"1"}},"n":1.50,"c":[1]}"#;

        let patched = patched(object.as_bytes(), &patch).unwrap();

        assert_eq!(String::from_utf8(patched).unwrap(), expected);
    }

    #[test]
    fn update_has_the_object_with_the_changes_of_the_patch() {
        check(
            json!({"metadata": {"labels": {"x": null, "y": "2"}, "finalizers": ["f"]}}),
            r#"{"c":[1],"kind":"A","metadata":{"finalizers":["f"],"labels":{"y":"2"},"name":"a"},"n":1.50}"#,
        );
        check(
            json!({"c": null, "metadata": {"name": "a"}}),
            r#"{"kind":"A","metadata":{"labels":{"x":"1"},"name":"a"},"n":1.50}"#,
        );
        check(
            json!({"c": [2], "d": {"e": null}}),
            r#"{"c":[2],"d":{},"kind":"A","metadata":{"name":"a","labels":{"x":"1"}},"n":1.50}"#,
        );
    }
}
