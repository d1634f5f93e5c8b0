//! Decoration of a parent: the writes that give it the labels, annotations and status of a
//! decorator's response. Functions without I/O.
//!
//! A status is replaced as a whole, so that it is written by PUT; a merge would keep fields that
//! the response no longer has. Labels, annotations and finalizers are written by one merge patch of
//! the changed keys. Keys of other clients stay, even if they are not cached yet. Metacontroller
//! replaces the object instead. Both writes have the resourceVersion of the cached parent, so that
//! an outdated decision causes a conflict.
//!
//! A type without `/status` gets both in one PUT of the object.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::meta::{
    json::{digest::JsonDigest, rewrite},
    protocol::StringChanges,
};

/// Decoration that a response requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoration<'a> {
    /// Changes of labels.
    pub(crate) labels: &'a StringChanges,
    /// Changes of annotations.
    pub(crate) annotations: &'a StringChanges,
    /// New status; `None` leaves the status as it is.
    pub(crate) status: Option<&'a [u8]>,
    /// Finalizer to remove.
    pub(crate) finalizer: Option<&'a str>,
}

/// Writes of a parent, in their order. Both are `None` if nothing changes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DecorationWrites {
    /// Write of the status by `/status`.
    pub(crate) status: Option<StatusWrite>,
    /// Write of everything else.
    pub(crate) object: Option<ObjectWrite>,
}

/// Write of a status.
#[derive(Debug, PartialEq)]
pub(crate) struct StatusWrite {
    /// The parent as it was seen, with the new status.
    pub(crate) body: Bytes,
    /// Digest of the new status.
    pub(crate) wanted: JsonDigest,
    /// Digest of the status that was seen, if there was one.
    pub(crate) seen: Option<JsonDigest>,
}

/// Write of a parent's labels, annotations and finalizers.
#[derive(Debug, PartialEq)]
pub(crate) enum ObjectWrite {
    /// Patch of the metadata; [`ObjectWrite::patch`] completes it.
    Patch(Map<String, Value>),
    /// Replacement with a new status, for a type without `/status`.
    Replace(StatusWrite),
}

impl ObjectWrite {
    /// Returns the merge patch of `metadata` for exactly this version of an object. The version is
    /// that of the status write, if there was one.
    pub(crate) fn patch(metadata: &Map<String, Value>, uid: &str, resource_version: &str) -> Value {
        let mut metadata = metadata.clone();
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("resourceVersion".to_owned(), resource_version.into());
        json!({ "metadata": metadata })
    }
}

/// Returns the writes that decorate a parent.
///
/// # Errors
///
/// The parent or the status is not JSON that can be decoded.
pub(crate) fn writes(
    parent: &[u8],
    decoration: Decoration<'_>,
    has_status_subresource: bool,
) -> Result<DecorationWrites, serde_json::Error> {
    let seen: SeenObject = serde_json::from_slice(parent)?;
    let changes = seen.metadata.changes(decoration);
    let status = match decoration.status {
        Some(wanted) => status_write(parent, seen.status, wanted)?,
        None => None,
    };
    Ok(match status {
        None => DecorationWrites { status: None, object: patch_of(changes) },
        Some(status) if has_status_subresource => {
            DecorationWrites { status: Some(status), object: patch_of(changes) }
        }
        Some(status) => {
            let body = with_metadata(&status.body, changes)?;
            let object = Some(ObjectWrite::Replace(StatusWrite { body, ..status }));
            DecorationWrites { status: None, object }
        }
    })
}

/// Returns the write of a status; `None` if the parent has it.
fn status_write(
    parent: &[u8],
    seen: Option<JsonDigest>,
    status: &[u8],
) -> Result<Option<StatusWrite>, serde_json::Error> {
    let wanted = JsonDigest::of(status)?;
    if seen == Some(wanted) {
        return Ok(None);
    }
    let mut text = Vec::with_capacity(status.len());
    rewrite::rewrite(status, &mut text)?;
    let mut body = Vec::with_capacity(parent.len() + text.len());
    rewrite::with_field(parent, "status", &text, &mut body)?;
    Ok(Some(StatusWrite { body: body.into(), wanted, seen }))
}

fn patch_of(changes: Map<String, Value>) -> Option<ObjectWrite> {
    (!changes.is_empty()).then_some(ObjectWrite::Patch(changes))
}

/// Returns an object with these changes of its metadata.
fn with_metadata(object: &[u8], changes: Map<String, Value>) -> Result<Bytes, serde_json::Error> {
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_slice(object)?;
    let metadata = fields.get("metadata").map_or("{}", |metadata| metadata.get());
    let mut metadata: Map<String, Value> = serde_json::from_str(metadata)?;
    for (field, change) in changes {
        match (metadata.get_mut(&field).and_then(Value::as_object_mut), change) {
            (Some(texts), Value::Object(change)) => {
                texts.extend(change);
                texts.retain(|_, value| !value.is_null());
            }
            (None, Value::Object(mut change)) => {
                change.retain(|_, value| !value.is_null());
                metadata.insert(field, change.into());
            }
            (_, change) => {
                metadata.insert(field, change);
            }
        }
    }
    let mut body = Vec::with_capacity(object.len());
    let metadata = Value::Object(metadata).to_string();
    rewrite::with_field(object, "metadata", metadata.as_bytes(), &mut body)?;
    Ok(body.into())
}

/// Parent as it was seen.
#[derive(Deserialize)]
struct SeenObject {
    #[serde(default)]
    metadata: SeenMetadata,
    #[serde(default)]
    status: Option<JsonDigest>,
}

#[derive(Default, Deserialize)]
struct SeenMetadata {
    labels: Option<BTreeMap<String, Option<String>>>,
    annotations: Option<BTreeMap<String, Option<String>>>,
    finalizers: Option<Vec<String>>,
}

impl SeenMetadata {
    /// Returns the changed parts of the metadata, as a merge patch has them.
    fn changes(&self, decoration: Decoration<'_>) -> Map<String, Value> {
        let mut changes = Map::new();
        for (field, seen, wanted) in [
            ("labels", &self.labels, decoration.labels),
            ("annotations", &self.annotations, decoration.annotations),
        ] {
            let seen = |key: &String| seen.as_ref().and_then(|texts| texts.get(key));
            let changed = wanted.iter().filter(|(key, value)| match (seen(key), value) {
                (None, value) => value.is_some(),
                (Some(_), None) => true,
                // Go decodes a null value as an empty string.
                (Some(seen), Some(value)) => seen.as_deref().unwrap_or_default() != value,
            });
            let changed: Map<String, Value> =
                changed.map(|(key, value)| (key.clone(), json!(value))).collect();
            if !changed.is_empty() {
                changes.insert(field.to_owned(), changed.into());
            }
        }
        if let (Some(finalizers), Some(name)) = (&self.finalizers, decoration.finalizer)
            && finalizers.iter().any(|it| it == name)
        {
            let others: Vec<_> = finalizers.iter().filter(|it| *it != name).collect();
            changes.insert("finalizers".to_owned(), json!(others));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "metacontroller.io/decoratorcontroller-things";

    /// Parent with a label, an annotation and a finalizer of another client.
    fn parent() -> Value {
        json!({
            "kind": "Thing",
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "7",
                "labels": {"kept": "1", "old": "1"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "1"},
                "finalizers": ["other", OURS],
            },
            "spec": {"n": 9_007_199_254_740_993_i64},
            "status": {"phase": "Old", "n": 1},
        })
    }

    #[track_caller]
    fn of(
        parent: &Value,
        response: Value,
        finalizer: Option<&str>,
        subresource: bool,
    ) -> DecorationWrites {
        let changes = |field: &str| {
            serde_json::from_value::<Option<StringChanges>>(response[field].clone()).unwrap()
        };
        let (labels, annotations) =
            (changes("labels").unwrap_or_default(), changes("annotations").unwrap_or_default());
        let status = Some(&response["status"]).filter(|status| !status.is_null());
        let status = status.map(Value::to_string);
        let decoration = Decoration {
            labels: &labels,
            annotations: &annotations,
            status: status.as_deref().map(str::as_bytes),
            finalizer,
        };
        writes(parent.to_string().as_bytes(), decoration, subresource).unwrap()
    }

    fn body(write: &StatusWrite) -> Value {
        serde_json::from_slice(&write.body).unwrap()
    }

    #[test]
    fn metadata_is_patched_by_the_keys_that_change() {
        for (response, finalizer, expected) in [
            (json!({}), None, json!({})),
            (json!({"labels": {}, "annotations": null}), None, json!({})),
            (json!({"labels": {"kept": "1", "gone": null}}), None, json!({})),
            (
                json!({"labels": {"kept": "2", "old": null, "new": "", "gone": null}}),
                None,
                json!({"labels": {"kept": "2", "old": null, "new": ""}}),
            ),
            (
                json!({"annotations": {"a": "any text", "b": "<"}}),
                None,
                json!({"annotations": {"a": "any text", "b": "<"}}),
            ),
            (
                json!({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}),
                None,
                json!({}),
            ),
            (json!({}), Some(OURS), json!({"finalizers": ["other"]})),
            (json!({}), Some("metacontroller.io/decoratorcontroller-no"), json!({})),
            (
                json!({"labels": {"old": null}}),
                Some(OURS),
                json!({"labels": {"old": null}, "finalizers": ["other"]}),
            ),
        ] {
            let writes = of(&parent(), response.clone(), finalizer, true);

            assert_eq!(writes.status, None, "{response}");
            let changes = expected.as_object().unwrap().clone();
            assert_eq!(writes.object, patch_of(changes), "{response} {finalizer:?}");
        }
    }

    #[test]
    fn patch_is_for_the_version_of_the_object_that_was_seen() {
        let metadata = json!({"labels": {"a": null}}).as_object().unwrap().clone();

        let patch = ObjectWrite::patch(&metadata, "u", "8");

        let expected = json!({"labels": {"a": null}, "uid": "u", "resourceVersion": "8"});
        assert_eq!(patch, json!({ "metadata": expected }));
    }

    #[test]
    fn status_is_left_or_replaced_as_a_whole() {
        let mut without = parent();
        without.as_object_mut().unwrap().remove("status");
        for (seen, response, expected) in [
            (parent(), json!({}), None),
            (parent(), json!({"status": null}), None),
            (parent(), json!({"status": {"n": 1, "phase": "Old"}}), None),
            (parent(), json!({"status": {"n": 2}}), Some(json!({"n": 2}))),
            (parent(), json!({"status": {}}), Some(json!({}))),
            (without.clone(), json!({}), None),
            (without.clone(), json!({"status": {}}), Some(json!({}))),
        ] {
            let writes = of(&seen, response.clone(), None, true);

            assert_eq!(writes.object, None, "{response}");
            let mut wanted = seen.clone();
            let wanted = expected.map(|status| {
                wanted["status"] = status;
                wanted
            });
            assert_eq!(writes.status.as_ref().map(body), wanted, "{response}");
        }
    }

    #[test]
    fn status_and_metadata_are_two_writes() {
        let response = json!({"labels": {"new": "1"}, "status": {"n": 2}});

        let writes = of(&parent(), response, Some(OURS), true);

        let status = body(&writes.status.unwrap());
        assert_eq!(
            status["metadata"],
            parent()["metadata"],
            "the status write changes no metadata"
        );
        assert_eq!(status["status"], json!({"n": 2}));
        let changes = json!({"labels": {"new": "1"}, "finalizers": ["other"]});
        assert_eq!(writes.object, patch_of(changes.as_object().unwrap().clone()));
    }

    #[test]
    fn type_without_a_status_subresource_gets_one_write() {
        let response = json!({
            "labels": {"new": "1", "old": null, "gone": null}, "annotations": {"b": "2"},
            "status": {"n": 2},
        });

        let writes = of(&parent(), response, Some(OURS), false);

        assert_eq!(writes.status, None);
        let Some(ObjectWrite::Replace(write)) = writes.object else { panic!("no replacement") };
        let mut expected = parent();
        expected["metadata"]["labels"] = json!({"kept": "1", "new": "1"});
        expected["metadata"]["annotations"]["b"] = json!("2");
        expected["metadata"]["finalizers"] = json!(["other"]);
        expected["status"] = json!({"n": 2});
        assert_eq!(body(&write), expected);
        let bare = json!({"kind": "Thing", "metadata": {"name": "a"}});
        let response = json!({"labels": {"new": "1", "gone": null}, "status": {}});
        let Some(ObjectWrite::Replace(write)) = of(&bare, response, None, false).object else {
            panic!("no replacement")
        };
        let metadata = json!({"name": "a", "labels": {"new": "1"}});
        assert_eq!(body(&write), json!({"kind": "Thing", "metadata": metadata, "status": {}}));
        let labels_alone = of(&bare, json!({"labels": {"new": "1"}}), None, false);
        assert!(matches!(labels_alone.object, Some(ObjectWrite::Patch(_))));
    }
}
