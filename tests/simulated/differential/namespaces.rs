//! Termination of namespaces.

use serde_json::{Value, json};

use super::{MAPS, WIDGETS, agree_alone, map, widget, with_widgets};
use crate::simulated::sequence::{APPLY, MERGE, delete, ends, get, opens, patch, post, put};

const NAMESPACE: &str = "/api/v1/namespaces/$ns";

fn names_a_condition(namespace: &Value, kind: &str, status: &str) -> bool {
    let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter(|it| it["type"] == kind).any(|it| it["status"] == status)
}

#[tokio::test]
async fn a_namespace_ends_when_its_objects_have_no_finalizers() {
    let held = |name: &str, finalizers: Value| {
        let mut map = map(name, json!({ "k": "1" }));
        map["metadata"]["finalizers"] = finalizers;
        map
    };
    let mut gear = widget("held", json!({}));
    gear["metadata"]["finalizers"] = json!(["x.test/hold"]);
    let release = json!({ "metadata": { "finalizers": null } });
    let by = format!("{MAPS}/applied?fieldManager=alice");
    agree_alone(
        "namespaces::a_namespace_ends_when_its_objects_have_no_finalizers",
        "differential-ends",
        with_widgets(vec![
            get(NAMESPACE).keep("ns"),
            post(MAPS, map("free", json!({ "k": "1" }))).brief(),
            post(MAPS, held("held", json!(["x.test/hold", "x.test/more"]))).brief(),
            post(MAPS, held("other", json!(["x.test/hold"]))).brief(),
            post(WIDGETS, gear).brief(),
            opens("namespace", "/api/v1/namespaces?resourceVersion=$version.ns&fieldSelector=metadata.name%3D$ns&timeoutSeconds=25"),
            delete(NAMESPACE, Value::Null),
            get(&format!("{MAPS}/free")).until(404),
            post(MAPS, map("late", json!({ "k": "1" }))),
            post(WIDGETS, widget("late", json!({}))),
            post("/api/v1/namespaces/$ns/serviceaccounts", json!({ "metadata": { "generateName": "made-" } })),
            patch(APPLY, &by, map("applied", json!({ "k": "1" }))),
            // Existing objects can still be changed.
            patch(MERGE, &format!("{MAPS}/held"), json!({ "data": { "a": "1" } })).brief(),
            put(&format!("{MAPS}/late"), map("late", json!({ "k": "1" }))),
            delete(NAMESPACE, Value::Null).settled(|it, _| names_a_condition(it, "NamespaceFinalizersRemaining", "True")),
            post("/api/v1/namespaces", json!({ "metadata": { "name": "$ns" } })),
            patch(MERGE, NAMESPACE, json!({ "metadata": { "labels": { "app": "x" } } })).brief(),
            patch(MERGE, &format!("{MAPS}/held"), release.clone()).brief(),
            patch(MERGE, &format!("{MAPS}/other"), release.clone()).brief(),
            patch(MERGE, &format!("{WIDGETS}/held"), release).brief(),
            get(NAMESPACE).until(404),
            get(NAMESPACE),
            get(MAPS),
            post(MAPS, map("late", json!({ "k": "1" }))),
            post("/api/v1/namespaces", json!({ "metadata": { "name": "$ns" } })),
            post(MAPS, map("late", json!({ "k": "1" }))).until(201),
            ends("namespace"),
        ]),
    )
    .await;
}

#[tokio::test]
async fn protected_namespaces_are_kept() {
    agree_alone(
        "namespaces::protected_namespaces_are_kept",
        "differential-kept",
        vec![
            delete("/api/v1/namespaces/default", Value::Null),
            delete("/api/v1/namespaces/kube-system", Value::Null),
            delete("/api/v1/namespaces/kube-public", Value::Null),
            delete("/api/v1/namespaces/missing", Value::Null),
            delete("/api/v1/namespaces", Value::Null),
            post("/api/v1/namespaces", json!({ "metadata": { "name": "A_" } })),
            post("/api/v1/namespaces", json!({ "metadata": { "name": "$ns" } })),
            patch(MERGE, NAMESPACE, json!({ "status": { "phase": "Terminating" } })),
            patch(MERGE, NAMESPACE, json!({ "metadata": { "finalizers": ["x.test/hold"] } })),
            delete(&format!("{NAMESPACE}?dryRun=All"), Value::Null),
            delete(NAMESPACE, Value::Null),
            get(NAMESPACE).settled(|it, _| it["spec"]["finalizers"].is_null()),
            patch(MERGE, NAMESPACE, json!({ "metadata": { "finalizers": null } })).brief(),
            get(NAMESPACE).until(404),
        ],
    )
    .await;
}
