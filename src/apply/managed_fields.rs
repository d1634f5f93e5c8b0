//! Managed fields: the record of the server about which field manager wrote which field.
//!
//! A create is recorded as an `Update` of its manager, and server-side apply as an `Apply`. The two
//! entries of one manager count as two managers: they conflict, and each keeps fields that the other
//! has removed. After a create its entry therefore becomes that of server-side apply.
//!
//! The record shows who owns a field now, and not who owned it before.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

/// Returns whether a field manager owns an annotation of an object: it wrote the present value, or
/// has applied the same value.
pub(super) fn owns_annotation(metadata: &ObjectMeta, manager: &str, annotation: &str) -> bool {
    annotation_owners(metadata, annotation).any(|entry| {
        entry.manager.as_deref() == Some(manager)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    })
}

/// Returns whether an annotation has an owner. The server drops all managed fields where it cannot
/// convert them, such as after the removal of a version of the type.
pub(super) fn has_annotation_owner(metadata: &ObjectMeta, annotation: &str) -> bool {
    annotation_owners(metadata, annotation).next().is_some()
}

fn annotation_owners<'a>(
    metadata: &'a ObjectMeta,
    annotation: &str,
) -> impl Iterator<Item = &'a ManagedFieldsEntry> {
    let field = format!("f:{annotation}");
    metadata.managed_fields.iter().flatten().filter(move |entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let annotations = fields.and_then(|fields| fields.get("f:metadata")?.get("f:annotations"));
        annotations.is_some_and(|annotations| annotations.get(&field).is_some())
    })
}

/// Returns the paths of the fields that a manager has applied and owns now, in the notation of
/// refusals: `.spec.ports[port=80].name`.
pub(super) fn applied_paths(live: &Value, manager: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for entry in entries(live).iter().filter(|entry| is_entry(entry, manager, "Apply")) {
        collect(entry.get("fieldsV1").unwrap_or(&Value::Null), String::new(), &mut paths);
    }
    paths
}

fn collect(fields: &Value, path: String, paths: &mut BTreeSet<String>) {
    for (element, below) in fields.as_object().into_iter().flatten().filter(|(it, _)| *it != ".") {
        let path = format!("{path}{}", in_refusals(element));
        let is_member = below.as_object().is_none_or(|it| it.is_empty() || it.contains_key("."));
        if is_member {
            paths.insert(path.clone());
        }
        collect(below, path, paths);
    }
}

/// Returns an element of a path in the notation of refusals.
///
/// Semantics: `PathElement.String` of structured-merge-diff (`fieldpath/element.go`).
fn in_refusals(element: &str) -> String {
    match element.split_once(':') {
        Some(("f", field)) => format!(".{field}"),
        Some(("k", keys)) => {
            let keys: Value = serde_json::from_str(keys).unwrap_or_default();
            let keys = keys.as_object().into_iter().flatten();
            let pairs: Vec<_> = keys.map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", pairs.join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        Some((_, index)) => format!("[{index}]"),
        None => element.to_owned(),
    }
}

/// Returns the patch that makes what a manager created or updated the fields of its server-side
/// apply; `None` if there is nothing to hand over. A manager that has applied the object keeps what
/// it has updated since, such as the kinds of another set.
pub(super) fn handed_over(live: &Value, manager: &str) -> Option<Value> {
    let mut entries = entries(live);
    let has = |operation| entries.iter().any(|entry| is_entry(entry, manager, operation));
    if !has("Update") || has("Apply") {
        return None;
    }
    merge_into_applied(&mut entries, manager, manager);
    Some(guarded(live, entries))
}

/// Adds the fields that one manager has updated to those that another has applied.
pub(crate) fn merge_into_applied(entries: &mut Vec<Value>, from: &str, manager: &str) {
    let applied = entries.iter().position(|entry| is_entry(entry, manager, "Apply"));
    let updated = || entries.iter().position(|entry| is_entry(entry, from, "Update"));
    let Some(target) = applied.or_else(updated) else { return };
    merge_fields(entries, target, from, "Update");
    entries[target]["manager"] = manager.into();
    entries[target]["operation"] = "Apply".into();
    entries.retain(|entry| !is_entry(entry, from, "Update"));
}

/// Returns a patch of the managed fields for exactly this version of the object.
pub(crate) fn guarded(live: &Value, entries: Vec<Value>) -> Value {
    let metadata = live.get("metadata").unwrap_or(&Value::Null);
    let mut patch = json!({
        "metadata": { "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] },
    });
    // An empty list would not be taken as given.
    if !entries.is_empty() {
        patch["metadata"]["managedFields"] = entries.into();
    }
    patch
}

/// Returns the entries of an object.
pub(crate) fn entries(live: &Value) -> Vec<Value> {
    let entries = live.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.cloned().unwrap_or_default()
}

/// Returns whether an entry is that of a manager for the object itself, without its subresources.
pub(crate) fn is_entry(entry: &Value, manager: &str, operation: &str) -> bool {
    let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
    (text("manager"), text("operation"), text("subresource")) == (manager, operation, "")
}

/// Adds the fields of a manager's entries to those of another entry. Entries of another version of
/// the type have other paths, and are left out.
pub(crate) fn merge_fields(entries: &mut [Value], target: usize, manager: &str, operation: &str) {
    let version = entries[target].get("apiVersion").cloned();
    let mut fields = entries[target].get("fieldsV1").cloned().unwrap_or_default();
    for entry in entries.iter().filter(|entry| is_entry(entry, manager, operation)) {
        if entry.get("apiVersion") == version.as_ref() {
            add(&mut fields, entry.get("fieldsV1").unwrap_or(&Value::Null));
        }
    }
    entries[target]["fieldsV1"] = fields;
}

/// Adds a set of fields to another. An empty map is a field by itself; a map with members is one
/// only with the member `.`.
fn add(fields: &mut Value, more: &Value) {
    let Some(more) = more.as_object() else { return };
    let Some(fields) = fields.as_object_mut() else {
        *fields = Value::Object(more.clone());
        return;
    };
    if fields.is_empty() != more.is_empty() {
        fields.insert(".".to_owned(), json!({}));
    }
    for (name, below) in more {
        match fields.get_mut(name) {
            Some(known) => add(known, below),
            None => {
                fields.insert(name.clone(), below.clone());
            }
        }
    }
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

    fn live(managed: Value) -> Value {
        json!({ "metadata": { "uid": "u", "resourceVersion": "7", "managedFields": managed } })
    }

    #[test]
    fn paths_have_the_notation_of_refusals() {
        let fields = json!({
            "f:spec": {
                "f:ports": {
                    "k:{\"name\":\"a\",\"port\":80}": { ".": {}, "f:port": {} },
                    "v:\"x\"": {}, "i:3": {},
                },
                "f:replicas": {},
            },
        });

        let paths = applied_paths(&live(json!([entry("m", "Apply", fields)])), "m");

        let expected = [
            ".spec.ports[3]",
            ".spec.ports[=\"x\"]",
            ".spec.ports[name=\"a\",port=80]",
            ".spec.ports[name=\"a\",port=80].port",
            ".spec.replicas",
        ];
        assert_eq!(paths.iter().collect::<Vec<_>>(), expected);
        let updated = live(json!([entry("m", "Update", json!({ "f:data": {} }))]));
        assert!(applied_paths(&updated, "m").is_empty(), "only an apply owns what it may force");
    }

    #[test]
    fn created_object_becomes_an_applied_one_for_exactly_its_version() {
        let other = entry("kubectl", "Update", json!({ "f:data": { "f:b": {} } }));
        let created = entry("m", "Update", json!({ "f:data": { "f:a": {} } }));

        let patch = handed_over(&live(json!([other, created])), "m").unwrap();

        let applied = entry("m", "Apply", json!({ "f:data": { "f:a": {} } }));
        assert_eq!(patch, live(json!([other, applied])));
        assert_eq!(handed_over(&live(json!([other, applied])), "m"), None);
        let kinds = entry("m", "Update", json!({ "f:metadata": {} }));
        assert_eq!(handed_over(&live(json!([applied, kinds])), "m"), None);
    }

    #[test]
    fn annotation_is_owned_by_the_manager_that_wrote_it_alone() {
        let fields = json!({ "f:metadata": { "f:annotations": { "f:x/y": {} } } });
        let metadata = |managed: Value| -> ObjectMeta {
            serde_json::from_value(json!({ "managedFields": managed })).unwrap()
        };

        let one = metadata(json!([entry("m", "Apply", fields.clone())]));

        assert!(owns_annotation(&one, "m", "x/y"));
        assert!(!owns_annotation(&one, "m", "x/z"));
        assert!(!owns_annotation(&one, "other", "x/y"));
        let mut status = entry("m", "Update", fields);
        status["subresource"] = "status".into();
        assert!(!owns_annotation(&metadata(json!([status])), "m", "x/y"));
    }
}
