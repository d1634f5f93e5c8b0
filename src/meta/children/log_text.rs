//! Texts for the log: bodies of hooks without secrets, and fields that differ.

use serde_json::{Map, Value};

use super::last_applied::LAST_APPLIED;
use crate::meta::api::controller_kind::ControllerKind;

/// Longest body that is logged, in bytes: its tree takes many times as much memory.
const LONGEST_BODY: usize = 256 * 1024;
/// Number of fields that are logged for one child.
const FIELDS: usize = 8;
/// Value in place of a secret one.
const ELIDED: &str = "(elided)";

/// Returns a body of a hook for the log. Values of Secrets, the declaration of the controller, and
/// the URLs and paths of hooks in other declarations, which may hold passwords, are left out; a long
/// body is replaced by its length.
pub(crate) fn body(body: &[u8]) -> String {
    if body.len() > LONGEST_BODY {
        return format!("({} bytes)", body.len());
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else {
        return format!("({} bytes that are not JSON)", body.len());
    };
    if let Some(controller) = value.get_mut("controller") {
        *controller = ELIDED.into();
    }
    elide(&mut value);
    value.to_string()
}

fn elide(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let kind = object.get("kind").and_then(Value::as_str);
            let is_secret = kind == Some("Secret");
            let is_declaration = ControllerKind::ALL.iter().any(|one| kind == Some(one.kind()));
            if is_secret {
                elide_secret(object);
            }
            if is_declaration {
                elide_declaration(object);
            }
            object.values_mut().for_each(elide);
        }
        Value::Array(items) => items.iter_mut().for_each(elide),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn elide_secret(secret: &mut Map<String, Value>) {
    for field in ["data", "stringData"] {
        if let Some(values) = secret.get_mut(field).and_then(Value::as_object_mut) {
            values.values_mut().for_each(|value| *value = ELIDED.into());
        }
    }
    elide_copies(secret);
}

fn elide_declaration(declaration: &mut Map<String, Value>) {
    let hooks = declaration.get_mut("spec").and_then(|spec| spec.get_mut("hooks"));
    if let Some(hooks) = hooks.and_then(Value::as_object_mut) {
        for hook in hooks.values_mut() {
            for field in ["/webhook/url", "/webhook/path"] {
                if let Some(text) = hook.pointer_mut(field) {
                    *text = ELIDED.into();
                }
            }
        }
    }
    elide_copies(declaration);
}

/// Elides the annotations with a copy of the whole object.
fn elide_copies(object: &mut Map<String, Value>) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let annotations = metadata.and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        for copy in [LAST_APPLIED, "kubectl.kubernetes.io/last-applied-configuration"] {
            if let Some(copy) = annotations.get_mut(copy) {
                *copy = ELIDED.into();
            }
        }
    }
}

/// Returns the paths of the fields that differ, at most [`FIELDS`], without their values.
pub(crate) fn differing(observed: &Value, desired: &Value) -> String {
    let mut paths = Vec::new();
    collect(observed, desired, "", &mut paths);
    let more = paths.len() > FIELDS;
    paths.truncate(FIELDS);
    let text = paths.join(" ");
    if more { format!("{text} ...") } else { text }
}

fn collect(one: &Value, other: &Value, path: &str, paths: &mut Vec<String>) {
    if one == other || paths.len() > FIELDS {
        return;
    }
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            for (key, value) in one {
                let path = format!("{path}/{key}");
                collect(value, other.get(key).unwrap_or(&Value::Null), &path, paths);
            }
            for (key, value) in other.iter().filter(|(key, _)| !one.contains_key(*key)) {
                collect(&Value::Null, value, &format!("{path}/{key}"), paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn data_of_secrets_and_the_declaration_are_not_logged() {
        let secret = json!({
            "kind": "Secret", "data": {"key": "hush"}, "stringData": {"key": "hush"},
            "metadata": {"name": "a", "annotations": {LAST_APPLIED: "hush"}},
        });
        let request = json!({
            "controller": {"spec": {"url": "http://user:hush@hook"}},
            "children": {"Secret.v1": {"a": secret}},
            "parent": {"spec": {"x": 1}},
        });

        let text = body(request.to_string().as_bytes());

        assert!(!text.contains("hush") && text.contains(r#""key":"(elided)""#), "{text}");
        assert!(text.contains(r#""parent":{"spec":{"x":1}}"#), "{text}");
        assert_eq!(body(b"hush"), "(4 bytes that are not JSON)");
        assert_eq!(body(&vec![b' '; LONGEST_BODY + 1]), "(262145 bytes)");
    }

    #[test]
    fn urls_of_hooks_in_declarations_are_not_logged() {
        let copies = json!({
            LAST_APPLIED: "hush", "kubectl.kubernetes.io/last-applied-configuration": "hush",
        });
        let hooks = json!({
            "sync": {"webhook": {"url": "http://user:hush@hook/?key=hush", "timeout": "1s"}},
            "finalize": {"webhook": {"service": {"name": "a"}, "path": "/a?key=hush"}},
            "customize": {"version": "v1"},
        });
        let other = json!({"kind": "Other", "spec": {"hooks": {"a": {"webhook": {"url": "u"}}}}});
        for kind in ControllerKind::ALL {
            let declaration = json!({
                "kind": kind.kind(), "metadata": {"annotations": copies}, "spec": {"hooks": hooks},
            });
            let request = json!({
                "object": declaration, "related": {"a": {"b": declaration}}, "attachments": [other],
            });

            let text = body(request.to_string().as_bytes());

            assert!(!text.contains("hush") && text.contains(r#""url":"(elided)""#), "{text}");
            assert!(text.contains(r#""timeout":"1s""#) && text.contains(r#""url":"u""#), "{text}");
        }
    }

    #[test]
    fn fields_that_differ_are_named_without_their_values() {
        let one = json!({"a": 1, "b": {"c": [1], "d": 2}, "e": "x"});
        let other = json!({"a": 1, "b": {"c": [2], "f": 3}, "e": "y"});

        assert_eq!(differing(&one, &other), "/b/c /b/d /b/f /e");
        assert_eq!(differing(&one, &one), "");
        let many: Map<String, Value> = (0..20).map(|key| (key.to_string(), json!(key))).collect();
        assert!(differing(&json!({}), &Value::Object(many)).ends_with(" ..."));
    }
}
