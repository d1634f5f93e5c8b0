//! Objects in the form of one version of their type.

use serde_json::{Map, Value, json};

use super::{object, resource::SimulatedResource};

/// Shape in which an object is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Whole,
    Metadata,
}

/// Renders an object that is returned alone.
pub(super) fn render(resource: &SimulatedResource, stored: &Value, shape: Shape) -> Value {
    let mut shown = item(resource, stored, shape);
    if shape == Shape::Metadata {
        return shown;
    }
    let fields = object::fields(&mut shown);
    fields.insert("apiVersion".to_owned(), resource.api_version().into());
    fields.insert("kind".to_owned(), resource.kind.clone().into());
    shown
}

/// Renders an item of a list. A whole object of a built-in type omits the list's type.
pub(super) fn item(resource: &SimulatedResource, stored: &Value, shape: Shape) -> Value {
    if shape == Shape::Metadata {
        return json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": stored["metadata"],
        });
    }
    let mut shown = stored.clone();
    let fields = object::fields(&mut shown);
    if resource.custom {
        fields.insert("apiVersion".to_owned(), resource.api_version().into());
        fields.insert("kind".to_owned(), resource.kind.clone().into());
    } else {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    if resource.group == "events.k8s.io" {
        rename(fields, |(stored, shown)| (stored, shown));
    }
    shown
}

/// Inverts the changes of [`render`] to an object's own fields.
pub(super) fn stored(resource: &SimulatedResource, mut shown: Value) -> Value {
    let fields = object::fields(&mut shown);
    if resource.group == "events.k8s.io" {
        rename(fields, |(stored, shown)| (shown, stored));
    }
    fields.insert("apiVersion".to_owned(), resource.api_version().into());
    fields.insert("kind".to_owned(), resource.kind.clone().into());
    shown
}

/// Event fields in the core group, and in `events.k8s.io`.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

type FieldRename = (&'static str, &'static str);

fn rename(fields: &mut Map<String, Value>, direction: impl Fn(FieldRename) -> FieldRename) {
    for names in EVENT_FIELDS {
        let (from, to) = direction(names);
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}
