//! Invalid requests.

use serde_json::{Value, json};

use super::{
    ALL_WIDGETS, CRD, CRDS, MAPS, WIDGETS, agree, crd, discovery, map, widget, with_widgets,
};
use crate::simulated::sequence::{
    APPLY, JSON, MERGE, STRATEGIC, Step, delete, get, patch, post, put,
};

/// Requests that are invalid for each type; an object `a` exists.
fn of(path: &str, object: fn(&str, Value) -> Value) -> Vec<Step> {
    let mut steps = of_lists(path);
    steps.extend(of_writes(path, object));
    steps.extend(of_options(path, object));
    steps
}

/// Selectors and continue tokens.
fn of_lists(path: &str) -> Vec<Step> {
    let list = |query: &str| get(&format!("{path}?{query}"));
    vec![
        list("labelSelector=app%3D%3D%3Dx"),
        list("labelSelector=app%20in%20x"),
        list("labelSelector=app%20in%20()"),
        list("labelSelector=app%20in%20(x"),
        list("labelSelector=%3Dx"),
        list("labelSelector=-app%3Dx"),
        list("labelSelector=app%3D-x"),
        list("labelSelector=app%3Ex"),
        list("labelSelector=a%20b"),
        list("labelSelector=,"),
        list("fieldSelector=metadata.name"),
        list("fieldSelector=metadata.name%3D"),
        list("fieldSelector=metadata.labels%3Dx"),
        list("fieldSelector=,"),
        list("fieldSelector=metadata.name%3Da,metadata.name%3Db"),
        list("watch=true&labelSelector=%3Dx"),
        list("watch=true&fieldSelector=nothing%3Dx"),
        // Continue tokens.
        list("continue=nonsense").brief(),
        list("continue=bm9uc2Vuc2U").brief(),
        list("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiJhIn0"),
        list("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiIifQ"),
        list("continue=eyJ2IjoidjIiLCJydiI6NSwic3RhcnQiOiJhIn0"),
    ]
}

/// Bodies and patches.
fn of_writes(path: &str, object: fn(&str, Value) -> Value) -> Vec<Step> {
    let one = format!("{path}/a");
    let named = |name: &str| object(name, json!({}));
    vec![
        // Bodies.
        post(path, "{".into()),
        post(path, "".into()),
        post(path, "[]".into()).brief(),
        post(path, json!({})),
        post(path, json!({ "metadata": "x" })).brief(),
        put(&one, "{".into()),
        put(&one, named("b")),
        put(&one, named("")),
        put(path, named("a")),
        post(&one, named("a")),
        post(path, named("..")),
        post(path, json!({ "apiVersion": "v9", "kind": "Nothing", "metadata": { "name": "n" } }))
            .brief(),
        // Patches.
        patch(MERGE, &one, "{".into()),
        patch(MERGE, &one, "[]".into()),
        patch(MERGE, &one, json!({ "metadata": { "name": "b" } })),
        patch(MERGE, &one, json!({ "metadata": { "namespace": "b" } })),
        patch(MERGE, &one, json!({ "metadata": { "uid": "b" } })),
        patch(MERGE, &one, json!({ "kind": "Nothing" })).brief(),
        patch(MERGE, &one, json!({ "apiVersion": "v9" })).brief(),
        patch(JSON, &one, "{".into()),
        patch(JSON, &one, json!({})),
        patch(JSON, &one, json!([{ "op": "nothing", "path": "/a" }])),
        patch(JSON, &one, json!([{ "op": "remove", "path": "/nothing" }])),
        patch(JSON, &one, json!([{ "op": "replace", "path": "/nothing/at/all", "value": 1 }])),
        patch(JSON, &one, json!([{ "op": "test", "path": "/kind", "value": "Nothing" }])),
        patch(APPLY, &one, named("a")),
        patch(APPLY, &format!("{one}?fieldManager=x"), named("b")),
        patch(APPLY, &format!("{one}?fieldManager=x"), json!({ "metadata": { "name": "a" } })),
        patch(MERGE, &format!("{one}?force=true"), json!({})),
        patch("text/plain", &one, json!({})),
        patch(MERGE, &format!("{path}/missing"), "{".into()),
    ]
}

/// Options of requests, and subresources.
fn of_options(path: &str, object: fn(&str, Value) -> Value) -> Vec<Step> {
    let one = format!("{path}/a");
    let named = |name: &str| object(name, json!({}));
    vec![
        // Options.
        post(&format!("{path}?dryRun=Some"), named("d")),
        put(&format!("{one}?dryRun=Some"), named("a")),
        delete(&format!("{one}?dryRun=Some"), Value::Null),
        post(&format!("{path}?fieldValidation=Nothing"), named("d")),
        delete(&format!("{one}?propagationPolicy=Nothing"), Value::Null),
        delete(&one, json!({ "propagationPolicy": "Nothing" })),
        delete(&one, json!({ "propagationPolicy": "Orphan", "orphanDependents": true })),
        delete(&one, "{".into()),
        delete(&one, json!({ "kind": "Nothing", "apiVersion": "v1" })),
        delete(&format!("{path}/missing"), json!({ "propagationPolicy": "Nothing" })),
        delete(&format!("{path}/missing"), Value::Null),
        delete(&format!("{path}?labelSelector=%3Dx"), Value::Null),
        // Subresources.
        get(&format!("{one}/nothing")),
        get(&format!("{path}/missing/status")),
        post(&format!("{one}/status"), named("a")),
        delete(&format!("{one}/status"), Value::Null),
    ]
}

#[tokio::test]
async fn invalid_requests_for_custom_types_are_refused_with_the_same_messages() {
    let mut steps = vec![post(WIDGETS, widget("a", json!({ "size": 1 }))).keep("a").brief()];
    steps.extend(of(WIDGETS, widget));
    steps.push(patch(STRATEGIC, &format!("{WIDGETS}/a"), json!({})));
    agree("differential-nonsense", with_widgets(steps)).await;
}

#[tokio::test]
async fn invalid_requests_for_built_in_types_are_refused_with_the_same_messages() {
    let mut steps = vec![post(MAPS, map("a", json!({ "k": "1" }))).keep("a").brief()];
    steps.extend(of(MAPS, map));
    agree("differential-map-nonsense", steps).await;
}

#[tokio::test]
async fn missing_objects_are_reported_with_the_same_messages() {
    let steps = vec![
        // Unknown groups, versions, types and names.
        get("/apis/nowhere.test/v1/things"),
        get("/apis/nowhere.test/v1/namespaces/$ns/things/a"),
        post("/apis/nowhere.test/v1/namespaces/$ns/things", json!({})),
        get("/apis/nowhere.test/v1/things?watch=true"),
        get("/apis/$group/v9/widgets"),
        get("/apis/$group/v9"),
        get("/apis/$group/v1/things"),
        get("/apis/$group/v1/namespaces/$ns/things/a"),
        get(&format!("{WIDGETS}/missing")),
        get("/apis/$group/v1/namespaces/nowhere/widgets"),
        get("/apis/$group/v1/namespaces/nowhere/widgets/a"),
        post("/apis/$group/v1/namespaces/nowhere/widgets", widget("a", json!({}))),
        get("/apis/$group/v1/widgets/a"),
        delete("/apis/$group/v1/widgets/a", Value::Null),
        get("/apis/$group/v1/namespaces/$ns"),
        get("/apis/$group/v1/namespaces"),
        get("/api/v1/nothings"),
        get("/api/v1/namespaces/$ns/nothings/a"),
        get("/api/v9/configmaps"),
        get("/api/v9"),
        get("/apis/apps/v9"),
        get("/apis/apps/v9/deployments"),
        get("/apis/apps/v1/nothings"),
        get("/apis/apps/v1/namespaces/$ns/deployments/a/nothing"),
        get("/apis/apps/v1/namespaces/$ns/deployments/a/scale"),
        get("/api/v1/configmaps/a"),
        get("/api/v1/namespaces/missing"),
        get("/api/v1/namespaces/missing/configmaps"),
        get("/api/v1/namespaces/missing/configmaps/a"),
        get("/apis/rbac.authorization.k8s.io/v1/namespaces/$ns/clusterroles"),
        get("/apis/rbac.authorization.k8s.io/v1/clusterroles/missing"),
        get(&format!("{CRDS}/missing.$group")),
        get(&format!("{CRDS}/missing.$group/status")),
        post("/version", json!({})),
        post("/apis", json!({})).only(discovery::legacy),
        delete("/apis/$group", Value::Null),
        get("/api/v1/").only(|list, _| list["groupVersion"].clone()),
        get("/apis/").only(discovery::legacy),
        get("/").only(|_, _| Value::Null),
    ];
    agree("differential-missing", with_widgets(steps)).await;
}

#[tokio::test]
async fn unknown_fields_are_dropped_warned_of_or_refused() {
    let odd = |name: &str| {
        let mut odd = widget(name, json!({ "size": 1, "free": { "a": 1 } }));
        odd["extra"] = json!({ "a": 1 });
        odd["another"] = json!([1]);
        odd["metadata"]["strange"] = "x".into();
        odd["status"] = json!({ "size": 1 });
        odd
    };
    let mut map = map("odd", json!({ "k": "1" }));
    map["metadata"]["strange"] = "x".into();
    let at = |path: &str, validation: &str| format!("{path}?fieldValidation={validation}");
    let (path, status) = (format!("{WIDGETS}/a"), format!("{WIDGETS}/a/status"));
    let apply = format!("{path}?fieldManager=x&force=true");
    let steps = vec![
        post(WIDGETS, odd("a")),
        post(&at(WIDGETS, "Warn"), odd("b")),
        post(&at(WIDGETS, "Ignore"), odd("c")),
        post(&at(WIDGETS, "Strict"), odd("d")),
        put(&at(&path, "Strict"), odd("a")),
        patch(MERGE, &path, json!({ "extra": 1 })),
        // The message contains the whole object.
        patch(MERGE, &at(&path, "Strict"), json!({ "extra": 1, "spec": { "free": 1 } })).brief(),
        patch(JSON, &at(&path, "Strict"), json!([{ "op": "add", "path": "/extra", "value": 1 }]))
            .brief(),
        patch(MERGE, &at(&status, "Strict"), json!({ "extra": 1, "status": { "x": 1 } })).brief(),
        patch(APPLY, &apply, odd("a")).brief(),
        patch(APPLY, &format!("{apply}&fieldValidation=Strict"), odd("a")).brief(),
        post(MAPS, map.clone()),
        post(&at(MAPS, "Strict"), map.clone()),
        put(&at(&format!("{MAPS}/odd"), "Strict"), map),
        get(ALL_WIDGETS),
    ];
    agree("differential-unknown-fields", with_widgets(steps)).await;
}

#[tokio::test]
async fn invalid_types_are_refused() {
    let with = |pointer: &str, value: Value| {
        let mut crd = crd();
        *crd.pointer_mut(pointer).unwrap() = value;
        post(CRDS, crd).brief()
    };
    let steps = vec![
        with("/spec/scope", "Nowhere".into()),
        with("/spec/group", "other.$group".into()),
        with("/spec/names/plural", "others".into()),
        with("/spec/names/kind", "".into()),
        with("/spec/versions", json!([])),
        with("/spec/versions/0/storage", false.into()),
        with("/spec/versions/1/storage", true.into()),
        post(CRDS, crd()).brief(),
        get("/apis/$group/v1").until(200),
        get("/apis/$group/v1/widgets").until(200),
        patch(MERGE, CRD, json!({ "spec": { "scope": "Cluster" } })).brief(),
        patch(MERGE, CRD, json!({ "spec": { "group": "other" } })).brief(),
        patch(MERGE, CRD, json!({ "spec": { "names": { "plural": "others" } } })).brief(),
        get(CRD),
    ];
    agree("differential-types", steps).await;
}
