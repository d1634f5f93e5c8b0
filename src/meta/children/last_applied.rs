//! Last-applied annotation: the desired child as of the last write.
//!
//! The annotation is Metacontroller's, so that both programs read each other's children. It is
//! compared by meaning rather than bytes, so that the spelling of another encoder causes no write.
//! Metacontroller compares bytes, so a write has those that it would have written: the whole object
//! as the hook sent it, with its status and nulls.

use serde_json::{Map, Value};

/// Name of the annotation.
pub const LAST_APPLIED: &str = "metacontroller.k8s.io/last-applied-configuration";

/// Metadata fields that the server owns; never taken from a hook.
pub(crate) const SYSTEM_FIELDS: [&str; 8] = [
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
];

/// Returns the annotation of `child`; `None` if it is missing or unreadable.
pub(crate) fn read(child: &Value) -> Option<Value> {
    let text = child.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    serde_json::from_str(text).ok()
}

/// Returns whether `child` has the annotation.
pub(crate) fn is_on(child: &Value) -> bool {
    let annotations = child.pointer("/metadata/annotations");
    annotations.is_some_and(|annotations| annotations.get(LAST_APPLIED).is_some())
}

/// Sets the annotation of `child` to `desired`.
#[cfg(test)]
pub(crate) fn write(child: &mut Value, desired: &Value) {
    write_text(child, crate::meta::json::go_json::encode(desired));
}

/// Removes an annotation that was copied from the live object, and would grow with each copy.
pub(crate) fn remove(desired: &mut Value) {
    let metadata = desired.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else { return };
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    let is_last = annotations.is_some_and(|annotations| {
        annotations.remove(LAST_APPLIED).is_some() && annotations.is_empty()
    });
    if is_last {
        metadata.remove("annotations");
    }
}

/// Sets the annotation of `child` to an encoded object. Returns whether `child` has changed.
pub(crate) fn write_text(child: &mut Value, text: String) -> bool {
    let Some(metadata) = object_at(child, "metadata") else { return false };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    let annotation = &mut annotations[LAST_APPLIED];
    let differs = *annotation != text;
    *annotation = Value::String(text);
    differs
}

fn object_at<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    value.as_object_mut()?.entry(key).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

/// Returns the fields of a desired object that a hook decides: without system metadata, owners, the
/// status, and an annotation that was copied from the live object.
pub(crate) fn into_desired_fields(fields: Value) -> Value {
    let mut fields = without_undecided_fields(fields);
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata")
        && metadata.get("annotations").and_then(Value::as_object).is_some_and(Map::is_empty)
    {
        metadata.remove("annotations");
    }
    fields
}

/// Like [`into_desired_fields`], but keeps annotations that are empty.
pub(crate) fn without_undecided_fields(mut fields: Value) -> Value {
    let Some(object) = fields.as_object_mut() else { return fields };
    object.remove("status");
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.retain(|field, _| {
            !SYSTEM_FIELDS.contains(&field.as_str()) && field != "ownerReferences"
        });
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
    }
    fields
}

/// Returns whether two values mean the same: numbers are compared by value, and `null` equals an
/// absent field.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let absent = |value: Option<&Value>| value.is_none_or(Value::is_null);
            one.iter().all(|(key, value)| match other.get(key) {
                Some(other) => same(value, other),
                None => value.is_null(),
            }) && other.iter().all(|(key, value)| value.is_null() || !absent(one.get(key)))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64()
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotation_survives_a_round_trip() {
        let desired = json!({"metadata": {"name": "a"}, "data": {"x": "<"}});
        let mut child = json!({"metadata": {"name": "a"}});

        write(&mut child, &desired);

        assert_eq!(read(&child), Some(desired));
    }

    #[test]
    fn an_unreadable_annotation_counts_as_none() {
        let child = json!({"metadata": {"annotations": {LAST_APPLIED: "{"}}});

        assert_eq!(read(&child), None);
    }

    #[test]
    fn values_are_compared_by_meaning() {
        for (one, other, expected) in [
            (json!({"a": 1}), json!({"a": 1.0}), true),
            (json!({"a": 1}), json!({"a": 2}), false),
            (json!({"a": null}), json!({}), true),
            (json!({}), json!({"a": null}), true),
            (json!({}), json!({"a": {}}), false),
            (json!([1, 2]), json!([2, 1]), false),
            (json!([null]), json!([]), false),
            (json!(u64::MAX), json!(u64::MAX - 1), false),
        ] {
            assert_eq!(same(&one, &other), expected, "{one} {other}");
        }
    }

    #[test]
    fn fields_of_the_server_are_not_part_of_the_annotation() {
        let desired = json!({
            "metadata": {
                "name": "a", "creationTimestamp": null, "uid": "u",
                "annotations": {LAST_APPLIED: "{}"}
            },
            "status": {}
        });

        assert_eq!(into_desired_fields(desired), json!({"metadata": {"name": "a"}}));
    }
}
