//! Transfer of a child's fields when the apply strategy changes: decisions without I/O.
//!
//! Server-side apply removes a field that is desired no longer only if its field manager alone owns
//! it. Dynamic apply removes it only if the last-applied annotation has it. Therefore
//! a change of the strategy converts one record into the other, in one write that is guarded by the
//! resourceVersion.
//!
//! Semantics: `csaupgrade` of client-go for the change to server-side apply. client-go has no
//! counterpart for the reverse change.

use serde_json::{Map, Value, json};

use crate::{
    apply::managed_fields::{entries, guarded, is_entry, merge_fields, merge_into_applied},
    meta::{children::last_applied, definition::apply_strategy::METACONTROLLER},
};

/// Returns the patch that hands the fields of dynamic apply to server-side apply; `None` if the
/// object has neither the annotation nor fields of dynamic apply.
pub(crate) fn to_server_side(live: &Value, manager: &str) -> Option<Value> {
    let mut entries = entries(live);
    let is_dynamic = |entry: &Value| is_entry(entry, METACONTROLLER, "Update");
    let is_remembered = last_applied::is_on(live);
    if !is_remembered && !entries.iter().any(is_dynamic) {
        return None;
    }
    merge_into_applied(&mut entries, METACONTROLLER, manager);
    entries.iter_mut().filter(|it| is_entry(it, manager, "Apply")).for_each(forget_annotation);
    let mut patch = guarded(live, entries);
    if is_remembered {
        patch["metadata"]["annotations"] = json!({ last_applied::LAST_APPLIED: null });
    }
    Some(patch)
}

/// Returns whether dynamic apply owns fields of an object beside owners and finalizers, which keep
/// server-side apply from removing them.
pub(crate) fn is_owned_by_dynamic(live: &Value) -> bool {
    let entries = live.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.into_iter().flatten().any(|entry| {
        let fields = entry.get("fieldsV1").and_then(Value::as_object);
        let mut fields = fields.into_iter().flatten();
        is_entry(entry, METACONTROLLER, "Update")
            && fields.any(|(field, below)| {
                let parts = below.as_object().into_iter().flatten();
                let of_children = ["f:ownerReferences", "f:finalizers", "."];
                field != "f:metadata"
                    || parts.into_iter().any(|(part, _)| !of_children.contains(&part.as_str()))
            })
    })
}

/// Fields that server-side apply has left to dynamic apply.
#[derive(Debug, PartialEq)]
pub(crate) struct AppliedFields {
    /// Object with the fields that were applied last.
    pub(crate) last: Value,
    entries: Vec<Value>,
}

/// Returns the fields that server-side apply owns; `None` if the object has the annotation, or the
/// manager has applied nothing.
pub(crate) fn applied(live: &Value, manager: &str) -> Option<AppliedFields> {
    if last_applied::is_on(live) {
        return None;
    }
    let mut entries = entries(live);
    let applied = entries.iter().position(|entry| is_entry(entry, manager, "Apply"))?;
    let fields = entries[applied].get("fieldsV1").cloned().unwrap_or_default();
    let mut last = extract(live, &fields);
    for part in ["apiVersion", "kind"] {
        last[part] = live.get(part).cloned().unwrap_or_default();
    }
    for part in ["name", "namespace"] {
        if let Some(value) = live.pointer("/metadata").and_then(|metadata| metadata.get(part)) {
            last["metadata"][part] = value.clone();
        }
    }
    if let Some(target) = entries.iter().position(|it| is_entry(it, METACONTROLLER, "Update")) {
        merge_fields(&mut entries, target, manager, "Apply");
        entries.retain(|entry| !is_entry(entry, manager, "Apply"));
    } else {
        entries[applied]["manager"] = METACONTROLLER.into();
        entries[applied]["operation"] = "Update".into();
    }
    Some(AppliedFields { last, entries })
}

impl AppliedFields {
    /// Returns the patch that hands the fields to dynamic apply, with this annotation.
    pub(crate) fn into_dynamic(self, live: &Value, remembered: &str) -> Value {
        let mut patch = guarded(live, self.entries);
        patch["metadata"]["annotations"] = json!({ last_applied::LAST_APPLIED: remembered });
        patch
    }
}

/// Removes the annotation from the fields of an entry, and the maps that become empty.
fn forget_annotation(entry: &mut Value) {
    fn remove(fields: &mut Map<String, Value>, path: &[&str]) {
        let [first, rest @ ..] = path else { return };
        let Some(below) = fields.get_mut(*first).and_then(Value::as_object_mut) else { return };
        remove(below, rest);
        if below.is_empty() {
            fields.remove(*first);
        }
    }
    let annotation = format!("f:{}", last_applied::LAST_APPLIED);
    if let Some(fields) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) {
        remove(fields, &["f:metadata", "f:annotations", &annotation]);
    }
}

/// Returns the part of a value that a set of fields names.
fn extract(value: &Value, fields: &Value) -> Value {
    let Some(fields) = fields.as_object().filter(|fields| !fields.is_empty()) else {
        return value.clone();
    };
    match value {
        Value::Object(object) => {
            let parts = fields.iter().filter_map(|(name, below)| {
                let name = name.strip_prefix("f:")?;
                Some((name.to_owned(), extract(object.get(name)?, below)))
            });
            Value::Object(parts.collect())
        }
        Value::Array(items) => {
            let item = |(index, item): (usize, &Value)| {
                let below = fields.iter().find(|(name, _)| is_named(name, index, item))?.1;
                let mut part = extract(item, below);
                // A set may leave out the fields that identify the item.
                if let (Some(part), Some(keys)) = (part.as_object_mut(), keys_of(fields, item)) {
                    part.extend(keys);
                }
                Some(part)
            };
            items.iter().enumerate().filter_map(item).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns whether an element of a set names this item of a list.
fn is_named(element: &str, index: usize, item: &Value) -> bool {
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    match element.split_once(':') {
        Some(("k", keys)) => json(keys).as_ref().and_then(Value::as_object).is_some_and(|keys| {
            keys.iter().all(|(name, value)| item.get(name).unwrap_or(&Value::Null) == value)
        }),
        Some(("v", value)) => json(value).as_ref() == Some(item),
        Some(("i", number)) => number.parse() == Ok(index),
        Some(_) | None => false,
    }
}

/// Returns the identifying fields of an item, as the set names them.
fn keys_of(fields: &Map<String, Value>, item: &Value) -> Option<Map<String, Value>> {
    let element = fields.keys().find(|name| name.starts_with("k:") && is_named(name, 0, item))?;
    serde_json::from_str(element.strip_prefix("k:")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": fields, "time": "2000-01-01T00:00:00Z",
        })
    }

    fn config_map(annotations: Value, managed: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "7",
                "annotations": annotations, "managedFields": managed,
            },
            "data": {"a": "1", "b": "2"},
        })
    }

    #[test]
    fn fields_of_dynamic_apply_become_those_of_server_side_apply() {
        let annotation = format!("f:{}", last_applied::LAST_APPLIED);
        let written = json!({
            "f:data": {".": {}, "f:a": {}},
            "f:metadata": {"f:annotations": {".": {}, annotation: {}, "f:x": {}}},
        });
        let other = entry("kubectl", "Update", json!({"f:data": {"f:b": {}}}));
        let status = {
            let mut status = entry("metacontroller", "Update", json!({"f:status": {}}));
            status["subresource"] = json!("status");
            status
        };
        let live = config_map(
            json!({last_applied::LAST_APPLIED: "{}", "x": "y"}),
            json!([other, entry("metacontroller", "Update", written), status]),
        );

        let patch = to_server_side(&live, "team").unwrap();

        let kept = json!({
            "f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:annotations": {".": {}, "f:x": {}}},
        });
        assert_eq!(
            patch,
            json!({"metadata": {
                "uid": "u", "resourceVersion": "7",
                "annotations": {last_applied::LAST_APPLIED: null},
                "managedFields": [other, entry("team", "Apply", kept), status],
            }})
        );
    }

    #[test]
    fn fields_of_both_ways_are_united_in_the_entry_of_server_side_apply() {
        let live = config_map(
            json!({}),
            json!([
                entry("m", "Apply", json!({"f:data": {"f:a": {}}})),
                entry("metacontroller", "Update", json!({"f:data": {}, "f:x": {}})),
            ]),
        );

        let patch = to_server_side(&live, "m").unwrap();

        let both = json!({"f:data": {".": {}, "f:a": {}}, "f:x": {}});
        assert_eq!(patch["metadata"]["managedFields"], json!([entry("m", "Apply", both)]));
        assert_eq!(patch["metadata"].get("annotations"), None, "it has none");
    }

    #[test]
    fn object_without_traces_of_dynamic_apply_keeps_its_fields() {
        let foreign = json!([entry("kubectl", "Update", json!({"f:data": {}}))]);
        assert_eq!(to_server_side(&config_map(json!({}), foreign), "m"), None);
        let cleared = config_map(json!({last_applied::LAST_APPLIED: "{}"}), json!([]));
        let patch = to_server_side(&cleared, "m").unwrap();
        assert_eq!(patch["metadata"].get("managedFields"), None);
    }

    #[test]
    fn owners_and_finalizers_of_dynamic_apply_are_left_to_it() {
        let of = |fields: Value| {
            let managed = json!([entry("metacontroller", "Update", fields)]);
            is_owned_by_dynamic(&config_map(json!({}), managed))
        };

        assert!(!of(json!({"f:metadata": {"f:ownerReferences": {"k:{}": {}}}})));
        assert!(!of(json!({"f:metadata": {".": {}, "f:finalizers": {}}})));
        assert!(of(json!({"f:metadata": {"f:labels": {}}})));
        assert!(of(json!({"f:data": {"f:a": {}}})));
    }

    #[test]
    fn fields_of_server_side_apply_become_those_of_dynamic_apply() {
        let managed = json!([
            entry("m", "Apply", json!({"f:data": {"f:a": {}}})),
            entry("metacontroller", "Update", json!({"f:metadata": {"f:ownerReferences": {}}})),
        ]);
        let live = config_map(json!({}), managed);

        let fields = applied(&live, "m").unwrap();

        let last = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "ns"}, "data": {"a": "1"},
        });
        assert_eq!(fields.last, last);
        let patch = fields.into_dynamic(&live, "{}");
        let both = json!({
            "f:data": {"f:a": {}}, "f:metadata": {"f:ownerReferences": {}},
        });
        assert_eq!(
            patch["metadata"]["managedFields"],
            json!([entry("metacontroller", "Update", both)])
        );
        assert_eq!(patch["metadata"]["annotations"], json!({last_applied::LAST_APPLIED: "{}"}));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn object_that_server_side_apply_has_not_written_has_no_way_back() {
        let managed = json!([entry("m", "Apply", json!({"f:data": {}}))]);
        assert_eq!(applied(&config_map(json!({}), managed.clone()), "another"), None);
        let annotated = config_map(json!({last_applied::LAST_APPLIED: "{}"}), managed);
        assert_eq!(applied(&annotated, "m"), None);
    }

    #[test]
    fn applied_fields_are_extracted_with_the_items_of_their_lists() {
        let object = json!({
            "spec": {
                "ports": [
                    {"port": 80, "protocol": "TCP", "name": "x", "nodePort": 3},
                    {"port": 81, "protocol": "TCP"},
                ],
                "set": ["a", "b"], "atomic": [{"k": 1}], "empty": {"x": 1}, "rest": 1,
            },
        });
        let fields = json!({
            "f:spec": {
                "f:ports": {
                    "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}},
                },
                "f:set": {"v:\"b\"": {}}, "f:atomic": {}, "f:empty": {".": {}}, "f:gone": {},
            },
        });

        assert_eq!(
            extract(&object, &fields),
            json!({"spec": {
                "ports": [{"port": 80, "protocol": "TCP", "name": "x"}],
                "set": ["b"], "atomic": [{"k": 1}], "empty": {},
            }})
        );
    }
}
