//! Declared controller as hooks receive it.
//!
//! Metacontroller decodes the object into structs of Go and encodes those: a struct is never
//! absent, and a duration has Go's spelling.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::duration;

/// Returns the object with an empty status, as Metacontroller sends it. The status that Pilotlight
/// writes would change the requests of hooks with each start.
pub(crate) fn encode(mut object: Value) -> Bytes {
    let empty = || Value::Object(Map::new());
    object["status"] = empty();
    let rules = object.pointer_mut("/spec/childResources").and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        if let Some(strategy) = rule.get_mut("updateStrategy").and_then(Value::as_object_mut) {
            let checks = strategy.entry("statusChecks").or_insert(Value::Null);
            if checks.is_null() {
                *checks = empty();
            }
        }
    }
    let hooks = object.pointer_mut("/spec/hooks").and_then(Value::as_object_mut);
    for hook in hooks.into_iter().flat_map(|hooks| hooks.values_mut()) {
        let timeout = hook.pointer_mut("/webhook/timeout");
        if let Some(Value::String(text)) = timeout
            && let Ok(read) = duration::parse(text)
        {
            *text = duration::text(read);
        }
    }
    object.to_string().into()
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

        let hook = |timeout: &str| json!({ "hooks": { "sync": { "webhook": { "timeout": timeout } }, "finalize": null } });
        check(hook("1m"), hook("1m0s"));
        check(hook("-1m"), hook("-1m"));
        check(json!({}), json!({}));
    }
}
