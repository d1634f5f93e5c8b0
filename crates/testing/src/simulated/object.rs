//! Accessors for objects as JSON, mainly for their metadata.

use serde_json::{Map, Value};

pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub(super) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let all = object["metadata"]["finalizers"].as_array();
    all.into_iter().flatten().filter_map(Value::as_str)
}

pub(super) fn has_finalizer(object: &Value, name: &str) -> bool {
    finalizers(object).any(|it| it == name)
}

pub(super) fn add_finalizer(object: &mut Value, name: &str) {
    if !has_finalizer(object, name) {
        let metadata = metadata(object);
        let all = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
        if let Some(all) = all.as_array_mut() {
            all.push(name.into());
        } else {
            *all = Value::Array(vec![name.into()]);
        }
    }
}

pub(super) fn remove_finalizer(object: &mut Value, name: &str) {
    let metadata = metadata(object);
    if let Some(all) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        all.retain(|it| it.as_str() != Some(name));
        if all.is_empty() {
            metadata.remove("finalizers");
        }
    }
}

pub(super) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

/// Returns the metadata as an object, which replaces any other value.
pub(super) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    member(object, "metadata")
}

/// Returns a member as an object, which replaces any other value.
pub(super) fn member<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let inner = fields(object).entry(field).or_insert_with(|| Value::Object(Map::new()));
    fields(inner)
}

/// Returns the members; a value that is not an object becomes an empty one.
pub(super) fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("an object since the line above")
}

/// Copies a field from another object, or removes it if that has none.
pub(super) fn keep(metadata: &mut Map<String, Value>, from: &Value, field: &str) {
    match from["metadata"].get(field) {
        Some(value) => metadata.insert(field.to_owned(), value.clone()),
        None => metadata.remove(field),
    };
}

/// Removes nulls, empty maps and empty lists from the metadata, as the real server does.
pub(super) fn tidy(object: &mut Value) {
    metadata(object).retain(|_, value| {
        !(value.is_null()
            || value.as_object().is_some_and(Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_str() == Some(""))
    });
}
