//! Declared controller as hooks receive it.
//!
//! Metacontroller decodes the object into structs of Go and encodes those: a struct is never
//! absent, an empty list, map or text is left out where its field says so, and a duration has Go's
//! spelling. A field of a pointer type keeps its empty value. The API server has encoded `metadata`
//! in the same way already.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::duration::{self, DurationError};

/// The only list that Metacontroller sends while it is empty.
const SENT_EMPTY_LIST: &str = "spec.resources";
/// Ends of the paths of maps with keys of users, which are left out while they are empty.
const MAPS: &[&str] = &[".matchLabels", ".matchAnnotations"];
/// Ends of the paths of texts that are left out while they are empty.
const TEXTS: &[&str] = &[
    ".updateStrategy.method",
    ".authorization.type",
    ".basicAuth.usernameKey",
    ".basicAuth.passwordKey",
    ".clientTLS.certKey",
    ".clientTLS.privateKeyKey",
    ".caBundle.secretRef.key",
    ".caBundle.configMapRef.key",
];

/// Returns the object with an empty status, as Metacontroller sends it. The status that Pilotlight
/// writes would change the requests of hooks with each start.
pub(crate) fn encode(mut object: Value) -> Bytes {
    object["status"] = Value::Object(Map::new());
    if let Some(spec) = object.get_mut("spec") {
        prune("spec", spec);
    }
    let rules = object.pointer_mut("/spec/childResources").and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        if let Some(strategy) = rule.get_mut("updateStrategy").and_then(Value::as_object_mut) {
            strategy.entry("statusChecks").or_insert_with(|| Value::Object(Map::new()));
        }
    }
    let hooks = object.pointer_mut("/spec/hooks").and_then(Value::as_object_mut);
    for hook in hooks.into_iter().flat_map(|hooks| hooks.values_mut()) {
        let timeout = hook.pointer_mut("/webhook/timeout");
        if let Some(Value::String(text)) = timeout
            && let Some(respelled) = respelled(text)
        {
            *text = respelled;
        }
    }
    object.to_string().into()
}

/// Removes the fields of a value that Go's encoder leaves out. Items of a list have its path.
fn prune(path: &str, value: &mut Value) {
    match value {
        Value::Object(fields) if !ends_with_any(path, MAPS) => fields.retain(|field, value| {
            let path = format!("{path}.{field}");
            prune(&path, value);
            !is_left_out(&path, value)
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| prune(path, item)),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns whether Go's encoder leaves out a field with this value.
fn is_left_out(path: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() && ends_with_any(path, TEXTS),
        Value::Array(items) => items.is_empty() && path != SENT_EMPTY_LIST,
        Value::Object(fields) => fields.is_empty() && ends_with_any(path, MAPS),
        // Fields of these types are pointers.
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn ends_with_any(path: &str, ends: &[&str]) -> bool {
    ends.iter().any(|end| path.ends_with(end))
}

/// Returns a duration in the spelling of Go's `Duration.String`; `None` if it is no duration.
fn respelled(text: &str) -> Option<String> {
    match duration::parse(text) {
        Ok(positive) => Some(duration::text(positive)),
        Err(DurationError::Negative(_)) => {
            let positive = duration::parse(text.strip_prefix('-')?).ok()?;
            Some(format!("-{}", duration::text(positive)))
        }
        Err(DurationError::Malformed(_) | DurationError::TooLong(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: Value, expected: Value) {
        let sent = encode(json!({ "spec": spec, "status": { "state": "Running" } }));

        let sent: Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!(sent, json!({ "spec": expected, "status": {} }));
    }

    #[test]
    fn controller_is_sent_as_go_encodes_it() {
        let strategy =
            |strategy: Value| json!({ "childResources": [{ "updateStrategy": strategy }] });
        for given in
            [json!({ "method": "InPlace" }), json!({ "method": "InPlace", "statusChecks": null })]
        {
            check(strategy(given), strategy(json!({ "method": "InPlace", "statusChecks": {} })));
        }
        let conditions = json!({ "statusChecks": { "conditions": [{ "type": "Ready" }] } });
        check(strategy(conditions.clone()), strategy(conditions));
        check(json!({ "childResources": [{}] }), json!({ "childResources": [{}] }));
        check(json!({}), json!({}));
    }

    #[test]
    fn timeout_of_any_hook_is_sent_in_the_spelling_of_go() {
        let hook = |timeout: &str| {
            let webhook = json!({ "timeout": timeout });
            json!({ "hooks": { "preUpdateChild": { "webhook": webhook } } })
        };
        for (given, expected) in [
            ("1m", "1m0s"),
            ("90s", "1m30s"),
            ("1.5h", "1h30m0s"),
            ("1500ms", "1.5s"),
            ("100ms", "100ms"),
            ("1us", "1\u{b5}s"),
            ("+5s", "5s"),
            ("0", "0s"),
            ("-0", "0s"),
            ("-1m", "-1m0s"),
            ("-1.5h", "-1h30m0s"),
            ("-0.5s", "-500ms"),
            ("-1ns", "-1ns"),
            ("soon", "soon"),
        ] {
            check(hook(given), hook(expected));
        }
    }

    /// The expected values are those of Go's encoder for the types of Metacontroller 4.17.2.
    #[test]
    fn empty_value_of_a_composite_is_left_out_where_go_leaves_it_out() {
        let reference = json!({ "name": "", "namespace": "", "key": "" });
        let short = json!({ "name": "", "namespace": "" });
        let pointers = json!({
            "url": "", "path": "", "responseUnMarshallMode": "",
            "etag": { "enabled": false, "cacheTimeoutSeconds": 0, "cacheCleanupSeconds": 0 },
            "service": { "name": "", "namespace": "", "port": 0, "protocol": "" },
        });
        let webhook = |credentials: Value| {
            let mut webhook = pointers.clone();
            webhook.as_object_mut().unwrap().extend(credentials.as_object().unwrap().clone());
            webhook
        };
        let sync = webhook(json!({
            "caBundle": { "inline": "", "secretRef": reference, "configMapRef": reference },
            "clientTLS": { "secretRef": short, "certKey": "", "privateKeyKey": "" },
            "authorization": { "type": "", "secretRef": reference },
            "basicAuth": { "secretRef": short, "usernameKey": "", "passwordKey": "" },
        }));
        let sent_sync = webhook(json!({
            "caBundle": { "inline": "", "secretRef": short, "configMapRef": short },
            "clientTLS": { "secretRef": short },
            "authorization": { "secretRef": reference },
            "basicAuth": { "secretRef": short },
        }));
        let condition = json!({ "type": "", "status": "", "reason": "" });
        let checks = json!({ "statusChecks": { "conditions": [condition] } });
        let no_checks = json!({ "method": "", "statusChecks": { "conditions": [] } });
        check(
            json!({
                "parentResource": {
                    "apiVersion": "", "resource": "", "ignoreStatusChanges": false,
                    "revisionHistory": { "fieldPaths": [] },
                    "labelSelector": { "matchLabels": {}, "matchExpressions": [] },
                },
                "childResources": [
                    { "resource": "a", "updateStrategy": no_checks },
                    { "resource": "b", "updateStrategy": checks },
                    { "resource": "c", "updateStrategy": {} },
                    { "resource": "d", "updateStrategy": null },
                ],
                "hooks": {
                    "sync": { "version": "", "webhook": sync }, "finalize": {},
                    "customize": { "version": null, "webhook": {} }, "preUpdateChild": null,
                },
                "endpointConfigs": [{ "host": "", "caBundle": {}, "clientTLS": null }],
                "resyncPeriodSeconds": 0, "generateSelector": false,
            }),
            json!({
                "parentResource": {
                    "apiVersion": "", "resource": "", "ignoreStatusChanges": false,
                    "revisionHistory": {}, "labelSelector": {},
                },
                "childResources": [
                    { "resource": "a", "updateStrategy": { "statusChecks": {} } },
                    { "resource": "b", "updateStrategy": checks },
                    { "resource": "c", "updateStrategy": { "statusChecks": {} } },
                    { "resource": "d" },
                ],
                "hooks": {
                    "sync": { "version": "", "webhook": sent_sync }, "finalize": {},
                    "customize": { "webhook": {} },
                },
                "endpointConfigs": [{ "host": "", "caBundle": {} }],
                "resyncPeriodSeconds": 0, "generateSelector": false,
            }),
        );
        let lists = json!({ "childResources": [], "endpointConfigs": [], "hooks": {} });
        check(lists, json!({ "hooks": {} }));
    }

    #[test]
    fn empty_value_of_a_decorator_is_left_out_where_go_leaves_it_out() {
        check(
            json!({ "resources": [], "attachments": [], "endpointConfigs": [], "hooks": {} }),
            json!({ "resources": [], "hooks": {} }),
        );
        let selector = json!({ "matchLabels": {}, "matchExpressions": [] });
        let annotations = json!({ "matchAnnotations": {}, "matchExpressions": [] });
        check(
            json!({
                "resources": [{
                    "resource": "a", "labelSelector": selector, "annotationSelector": annotations,
                    "ignoreStatusChanges": false,
                }],
                "attachments": [{ "resource": "b", "updateStrategy": { "method": "" } }],
            }),
            json!({
                "resources": [{
                    "resource": "a", "labelSelector": {}, "annotationSelector": {},
                    "ignoreStatusChanges": false,
                }],
                "attachments": [{ "resource": "b", "updateStrategy": {} }],
            }),
        );
    }

    #[test]
    fn label_of_a_selector_is_sent_whatever_its_key_and_value() {
        let parent = |selector: Value| json!({ "parentResource": { "labelSelector": selector } });
        let exists = |extra: Value| {
            let mut expression = json!({ "key": "", "operator": "Exists" });
            expression.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!([expression])
        };
        let labels = json!({ "matchLabels": "", "updateStrategy.method": "", "a": "" });

        let without_values = exists(json!({ "values": [] }));
        check(
            parent(json!({ "matchLabels": labels, "matchExpressions": without_values })),
            parent(json!({ "matchLabels": labels, "matchExpressions": exists(json!({})) })),
        );

        let named = json!({ "matchExpressions": exists(json!({ "values": [""] })) });
        check(parent(named.clone()), parent(named));
    }
}
