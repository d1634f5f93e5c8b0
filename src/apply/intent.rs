//! Intent of server-side apply: the fields to be sent, and their encoding.

use serde_json::{Value, value::RawValue};

/// Returns the fields to be sent: an intent has a type, and no metadata of the server. For a
/// subresource it has the identity of the object and the subresource alone.
pub(crate) fn intent(
    mut object: Value,
    api_version: &str,
    kind: &str,
    subresource: Option<&str>,
) -> Value {
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    let Some(fields) = object.as_object_mut() else { return object };
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| match subresource {
            None => !matches!(
                field.as_str(),
                "creationTimestamp"
                    | "deletionGracePeriodSeconds"
                    | "deletionTimestamp"
                    | "generation"
                    | "managedFields"
                    | "resourceVersion"
                    | "selfLink"
            ),
            Some(_) => matches!(field.as_str(), "name" | "namespace" | "uid"),
        });
    }
    if let Some(subresource) = subresource {
        fields.retain(|field, _| {
            matches!(field.as_str(), "apiVersion" | "kind" | "metadata") || field == subresource
        });
    }
    object
}

/// Returns JSON that is YAML too, as which the API server reads an intent. YAML refuses some
/// characters of JSON, and takes the character U+0085 for a space.
pub(crate) fn as_yaml(json: String) -> String {
    let is_refused =
        |one: &char| matches!(one, '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    if !json.chars().any(|one| is_refused(&one)) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len());
    for one in json.chars() {
        if is_refused(&one) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(one)));
        } else {
            escaped.push(one);
        }
    }
    escaped
}

/// Returns an intent as the body of a request.
pub(super) fn body(intent: &Value) -> Result<Box<RawValue>, serde_json::Error> {
    RawValue::from_string(as_yaml(intent.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn intent_has_the_type_and_no_metadata_of_the_server() {
        let read = json!({
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "5",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
                "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [],
                "labels": { "app": "a" },
            },
            "spec": { "replicas": 1 }, "status": { "replicas": 1 },
        });
        let typed = json!({ "apiVersion": "apps/v1", "kind": "Deployment" });

        let whole = intent(read.clone(), "apps/v1", "Deployment", None);
        let mut expected = typed.clone();
        expected["metadata"] = json!({
            "name": "a", "namespace": "ns", "uid": "1", "labels": { "app": "a" },
        });
        expected["spec"] = json!({ "replicas": 1 });
        expected["status"] = json!({ "replicas": 1 });
        assert_eq!(whole, expected);

        let status = intent(read, "apps/v1", "Deployment", Some("status"));
        let mut expected = typed;
        expected["metadata"] = json!({ "name": "a", "namespace": "ns", "uid": "1" });
        expected["status"] = json!({ "replicas": 1 });
        assert_eq!(status, expected);
    }

    #[test]
    fn characters_that_yaml_refuses_are_escaped() {
        let text = "\u{7f}\u{85}\u{feff}\u{ffff}é\u{1f600}\n";

        let encoded = body(&json!({ "a": text })).unwrap();

        let shown = "{\"a\":\"\\u007f\\u0085\\ufeff\\uffffé\u{1f600}\\n\"}";
        assert_eq!(encoded.get(), shown);
        assert_eq!(serde_json::from_str::<Value>(encoded.get()).unwrap(), json!({ "a": text }));
    }
}
