//! Unknown fields, duplicate fields, and values of a wrong type.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, MAPS, WIDGETS, agree, map, with_widgets};
use crate::simulated::sequence::{APPLY, MERGE, STRATEGIC, Step, delete, get, patch, post, put};

/// Returns one request under each of the three modes, and without a mode.
fn in_each_mode(step: impl Fn(&str) -> Step) -> impl Iterator<Item = Step> {
    ["?fieldValidation=Strict", "?fieldValidation=Ignore", "?fieldValidation=Warn", ""]
        .into_iter()
        .map(step)
}

#[tokio::test]
async fn values_of_another_type_than_their_field_are_refused() {
    let secret = json!({ "metadata": { "name": "a" }, "stringData": { "k": 1 } });
    let mut labels = map("a", json!({}));
    labels["metadata"]["labels"] = json!({ "a": 1 });
    let path = format!("{MAPS}/a");
    let steps = vec![
        post(MAPS, map("a", json!({ "k": 1 }))).brief(),
        post(MAPS, map("a", json!([]))).brief(),
        post(MAPS, labels).brief(),
        post("/api/v1/namespaces/$ns/secrets", secret).brief(),
        post(MAPS, map("a", Value::Null)),
        put(&path, map("a", json!({ "k": 1 }))).brief(),
        patch(MERGE, &path, json!({ "data": { "k": 1 } })).brief(),
        patch(MERGE, &path, json!({ "data": [] })).brief(),
        patch(APPLY, &format!("{path}?fieldManager=x"), map("a", json!({ "k": 1 }))).brief(),
        get(&path),
    ];
    agree("differential-wrong-types", steps).await;
}

#[tokio::test]
async fn duplicate_fields_of_custom_types_are_warned_of_or_refused() {
    let twice = r#"{ "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "a", "nam": 1,
        "ownerReferences": [], "name": "a" }, "spec": { "size": 1, "size": 2 }, "extra": 1 }"#;
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let steps = vec![post(&strict, twice.into()), post(WIDGETS, twice.into()), get(ALL_WIDGETS)];
    agree("differential-odd-types", with_widgets(steps)).await;
}

#[tokio::test]
async fn unknown_and_duplicate_fields_of_metadata_are_dropped_warned_of_or_refused() {
    let mut odd = map("odd", json!({ "k": "1" }));
    odd["metadata"]["label"] = json!({ "a": "b" });
    let text = r#"{ "metadata": { "name": "odd", "labels": {"a": "1", "a": "2"} },
        "data": { "k": "1", "k": "2" },
        "apiVersion": "v1", "kind": "ConfigMap", "kind": "ConfigMap" }"#;
    let path = format!("{MAPS}/odd");
    let mut steps = Vec::new();
    for body in [odd.clone(), text.into()] {
        steps.extend(in_each_mode(|mode| post(&format!("{MAPS}{mode}"), body.clone())));
        steps.extend(in_each_mode(|mode| put(&format!("{path}{mode}"), body.clone())));
        steps.push(get(&path));
        steps.push(delete(&path, Value::Null).brief());
    }
    steps.push(post(MAPS, map("odd", json!({ "k": "1" }))));
    for kind in [MERGE, STRATEGIC] {
        let change = json!({ "metadata": { "label": { "a": "b" } }, "data": { "m": "1" } });
        let patched = |mode: &str| patch(kind, &format!("{path}{mode}"), change.clone());
        // The message contains the whole object.
        steps.extend(in_each_mode(patched).enumerate().map(|(at, step)| match at {
            0 => step.brief(),
            _ => step,
        }));
    }
    let applied = format!("{path}?fieldManager=x&force=true");
    let mut named = map("odd", Value::Null);
    named["metadata"]["label"] = json!({});
    steps.extend([patch(APPLY, &applied, named), get(&path)]);
    agree("differential-odd-fields", steps).await;
}
