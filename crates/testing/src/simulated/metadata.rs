//! Field names and types that are checked in objects of every type: those of their metadata.
//!
//! Values of config maps and secrets are checked too: a number in place of a string is a common
//! mistake of templates and hooks. Other fields of built-in types are not checked.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::schema;

static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let text = || json!({ "type": "string", "nullable": true });
    let number = || json!({ "type": "integer", "nullable": true });
    let flag = || json!({ "type": "boolean", "nullable": true });
    let list = |items: Value| json!({ "type": "array", "nullable": true, "items": items });
    let fields =
        |fields: Value| json!({ "type": "object", "nullable": true, "properties": fields });
    let owner = fields(json!({
        "apiVersion": text(), "kind": text(), "name": text(), "uid": text(),
        "controller": flag(), "blockOwnerDeletion": flag(),
    }));
    let manager = fields(json!({
        "manager": text(), "operation": text(), "apiVersion": text(), "time": text(),
        "fieldsType": text(), "subresource": text(),
        "fieldsV1": { "nullable": true, "x-kubernetes-preserve-unknown-fields": true },
    }));
    fields(json!({
        "name": text(), "generateName": text(), "namespace": text(), "selfLink": text(),
        "uid": text(), "resourceVersion": text(), "generation": number(),
        "creationTimestamp": text(), "deletionTimestamp": text(),
        "deletionGracePeriodSeconds": number(), "labels": texts(), "annotations": texts(),
        "ownerReferences": list(owner), "finalizers": list(text()),
        "managedFields": list(manager),
    }))
});

static TEXTS: LazyLock<Value> = LazyLock::new(texts);

fn texts() -> Value {
    let text = json!({ "type": "string", "nullable": true });
    json!({ "type": "object", "nullable": true, "additionalProperties": text })
}

/// Removes unknown fields of the metadata and returns their paths.
pub(super) fn prune(object: &mut Value) -> Vec<String> {
    match object.get_mut("metadata") {
        Some(metadata) => schema::prune_field(&METADATA, metadata, "metadata"),
        None => Vec::new(),
    }
}

/// Returns a message about the first value whose type does not fit its field.
pub(super) fn wrong_type(kind: &str, object: &Value) -> Option<String> {
    let texts: &[&str] = match kind {
        "ConfigMap" => &["data", "binaryData"],
        "Secret" => &["data", "stringData"],
        _ => &[],
    };
    let texts = texts.iter().map(|field| (*field, &*TEXTS));
    let mut fields = std::iter::once(("metadata", &*METADATA)).chain(texts);
    fields.find_map(|(field, schema)| {
        let fault = schema::validate_field(schema, &object[field], field).into_iter().next()?;
        Some(format!("json: cannot unmarshal {}: {}", fault.field, fault.body))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_metadata_are_pruned() {
        let mut object = json!({ "x": 1, "metadata": { "name": "a", "nam": 1, "labels": { "x": "y" },
            "ownerReferences": [{ "uid": "1" }, { "u": 2 }],
            "managedFields": [{ "fieldsV1": { "f:x": {} } }] } });

        let pruned = prune(&mut object);

        assert_eq!(pruned, ["metadata.nam", "metadata.ownerReferences[1].u"]);
        assert_eq!(
            object,
            json!({ "x": 1, "metadata": { "name": "a", "labels": { "x": "y" },
                "ownerReferences": [{ "uid": "1" }, {}],
                "managedFields": [{ "fieldsV1": { "f:x": {} } }] } })
        );
    }

    #[track_caller]
    fn check(kind: &str, object: Value, field: Option<&str>) {
        let message = wrong_type(kind, &object);
        let begins = field.map(|field| format!("json: cannot unmarshal {field}: "));
        assert_eq!(message.is_some(), begins.is_some(), "{message:?}");
        assert!(message.unwrap_or_default().starts_with(&begins.unwrap_or_default()));
    }

    #[test]
    fn values_of_a_wrong_type_are_found_and_null_fits_every_type() {
        let nulls = json!({ "name": null, "labels": { "a": null }, "creationTimestamp": null });
        check("Widget", json!({ "metadata": nulls, "data": { "a": 1 } }), None);
        check("Widget", json!({}), None);
        check("Widget", json!({ "metadata": { "labels": { "a": 1 } } }), Some("metadata.labels.a"));
        check("Widget", json!({ "metadata": [] }), Some("metadata"));
        check("ConfigMap", json!({ "data": { "a": 8080 } }), Some("data.a"));
        check("ConfigMap", json!({ "data": [] }), Some("data"));
        check("Secret", json!({ "stringData": { "a": true } }), Some("stringData.a"));
        check("Secret", json!({ "data": null }), None);
    }
}
