//! Creates, updates and deletions of objects of built-in and custom types.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, MAPS, WIDGETS, agree, map, widget, with_widgets};
use crate::simulated::sequence::{
    APPLY, JSON, MERGE, STRATEGIC, delete, events, get, patch, post, put,
};

#[tokio::test]
async fn built_in_objects_are_treated_alike() {
    let path = |name: &str| format!("{MAPS}/{name}");
    let held = json!({ "metadata": { "name": "held", "finalizers": ["x.test/hold"] } });
    agree(
        "differential-maps",
        vec![
            post(MAPS, map("a", json!({ "k": "1" }))).keep("a"),
            post(MAPS, map("a", json!({}))),
            post(MAPS, map("A_", json!({}))),
            post(MAPS, map("", json!({}))),
            post(MAPS, json!({ "metadata": { "generateName": "made-" } })),
            post("/api/v1/namespaces/nowhere/configmaps", map("a", json!({}))),
            post("/api/v1/configmaps", map("a", json!({}))),
            get(&path("a")),
            get(&path("missing")),
            get("/apis/apps/v1/namespaces/$ns/nothings"),
            get("/apis/apps/v2/deployments"),
            get("/api/v1/namespaces/$ns/namespaces"),
            delete("/api/v1/configmaps", Value::Null),
            put(MAPS, map("a", json!({}))),
            get("/api/v1/namespaces/$ns/nothings"),
            get("/apis/nowhere.test/v1/things"),
            put(&path("a"), map("a", json!({ "k": "2" }))),
            put(&path("b"), map("a", json!({}))),
            put(&path("a"), json!({
                "metadata": { "name": "a", "resourceVersion": "$version.a" }, "data": {} })),
            put(&path("a"), json!({ "metadata": { "name": "a", "uid": "other" }, "data": {} })),
            patch(MERGE, &path("a"), json!({ "data": { "m": "1", "k": null } })),
            patch(STRATEGIC, &path("a"), json!({ "metadata": { "labels": { "app": "x" } } })),
            patch(JSON, &path("a"), json!([{ "op": "add", "path": "/data/j", "value": "1" }])),
            patch(JSON, &path("a"), json!([{ "op": "test", "path": "/data/j", "value": "2" }])),
            patch(JSON, &path("a"), json!([
                { "op": "test", "path": "/metadata/finalizers", "value": null },
                { "op": "add", "path": "/data/n", "value": "1" }])),
            patch(JSON, &path("a"), json!([{ "op": "test", "path": "/data/n", "value": null }])),
            patch(JSON, &path("a"), json!([{ "op": "test", "path": "/none/n", "value": null }])),
            patch(MERGE, &path("missing"), json!({})),
            get(&format!("{MAPS}?labelSelector=app%3Dx")),
            get(&format!("{MAPS}?labelSelector=app%20in%20%28")).brief(),
            get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")),
            get(&format!("{MAPS}?fieldSelector=data.k%3Da")),
            post(MAPS, held),
            delete(&path("held"), Value::Null),
            patch(MERGE, &path("held"), json!({ "metadata": { "finalizers": ["x.test/hold", "x.test/b"] } })),
            patch(MERGE, &path("held"), json!({ "metadata": { "finalizers": null } })),
            get(&path("held")),
            delete(&path("a"), json!({ "preconditions": { "uid": "other" } })),
            delete(&path("a"), json!({ "preconditions": { "resourceVersion": "1" } })),
            delete(&format!("{}?dryRun=All", path("a")), Value::Null),
            events(&format!("{MAPS}?resourceVersion=$version.a&fieldSelector=metadata.name%3Da")),
            delete(&path("a"), Value::Null),
            delete(&path("a"), Value::Null),
            events(&format!("{MAPS}?resourceVersion=$version.a&labelSelector=app%3Dx")),
            events(&format!("{MAPS}?resourceVersionMatch=NotOlderThan&sendInitialEvents=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnone")),
            get(&format!("{MAPS}?watch=true&sendInitialEvents=true")),
            get(&format!("{MAPS}?resourceVersionMatch=Exact")),
            get(&format!("{MAPS}?resourceVersion=x")),
            get(&format!("{MAPS}?continue=nonsense")).brief(),
        ],
    )
    .await;
}

#[tokio::test]
async fn string_data_of_a_secret_is_stored_alike() {
    let all = "/api/v1/namespaces/$ns/secrets";
    let one = "/api/v1/namespaces/$ns/secrets/a";
    let texts = json!({ "metadata": { "name": "a" }, "stringData": { "a": "1", "b": "ü" } });
    let steps = vec![
        post(all, texts),
        get(one),
        patch(MERGE, one, json!({ "stringData": { "a": "2" }, "data": { "b": null } })),
        put(one, json!({ "metadata": { "name": "a" }, "data": { "c": "Mw==" }, "type": "Opaque" })),
        post(all, json!({ "metadata": { "name": "b" }, "type": "x.test/own" })),
    ];
    agree("differential-secrets", steps).await;
}

#[tokio::test]
async fn custom_objects_are_treated_alike() {
    let path = |name: &str| format!("{WIDGETS}/{name}");
    let a = path("a");
    let by = |manager: &str| format!("{a}?fieldManager={manager}");
    agree(
        "differential-widgets",
        with_widgets(vec![
            post(WIDGETS, widget("a", json!({ "size": 1 }))).keep("a"),
            post(WIDGETS, widget("a", json!({}))),
            post(WIDGETS, widget("b", json!({ "size": 2 }))),
            post(WIDGETS, widget("bad", json!({ "color": 1 }))),
            post(WIDGETS, widget("bad", json!({ "size": 10 }))),
            post(WIDGETS, widget("bad", json!({ "color": "green" }))),
            post(WIDGETS, json!({ "apiVersion": "$group/v2", "kind": "Widget", "metadata": { "name": "c" } })),
            post(WIDGETS, json!({ "apiVersion": "$group/v1", "kind": "Gear", "metadata": { "name": "c" } })).brief(),
            post(WIDGETS, json!({ "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "c", "resourceVersion": "5" } })),
            post(WIDGETS, json!({ "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "c", "namespace": "other" } })),
            post(ALL_WIDGETS, widget("c", json!({}))),
            post(WIDGETS, json!({
                "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "pruned" },
                "spec": { "size": 1, "free": 1 }, "nothing": { "a": 1 } })),
            post(&format!("{WIDGETS}?fieldValidation=Strict"), json!({
                "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "strict" },
                "nothing": { "a": 1 } })),
            delete(&path("pruned"), Value::Null),
            put(&a, widget("a", json!({ "size": 2 }))),
            put(&path("missing"), widget("missing", json!({}))),
            patch(MERGE, &a, json!({ "spec": { "size": 3 } })),
            patch(MERGE, &a, json!({ "spec": { "size": 3 } })),
            patch(MERGE, &a, json!({ "spec": { "size": 99 } })),
            patch(MERGE, &a, json!({ "metadata": { "resourceVersion": "$version.a" }, "spec": { "size": 4 } })),
            patch(STRATEGIC, &a, json!({})).brief(),
            patch(MERGE, &format!("{a}/status"), json!({ "spec": { "size": 5 }, "status": { "size": 3 } })),
            patch(MERGE, &a, json!({ "status": { "size": 7 } })),
            get(&format!("{a}/scale")),
            patch(MERGE, &format!("{a}/scale"), json!({ "spec": { "replicas": 6 } })),
            get(&format!("{a}/nothing")),
            get(&a),
            patch(APPLY, &by("alice"), widget("a", json!({ "size": 7 }))).brief(),
            patch(APPLY, &format!("{}&force=true", by("alice")), widget("a", json!({ "size": 7 }))),
            patch(APPLY, &by("bob"), widget("a", json!({ "size": 8 }))),
            patch(APPLY, &by("bob"), widget("a", json!({ "size": 7, "color": "red" }))),
            patch(APPLY, &by("bob"), widget("a", json!({ "size": 7 }))),
            patch(APPLY, &a, widget("a", json!({ "size": 7 }))),
            patch(APPLY, &format!("{}?fieldManager=alice", path("new")), widget("new", json!({ "size": 1 }))),
            get(&format!("{ALL_WIDGETS}?limit=2")).keep("page"),
            get(&format!("{ALL_WIDGETS}?limit=2&continue=$continue.page")),
            get(&format!("{ALL_WIDGETS}?resourceVersion=0&limit=1")),
            get(&format!("{ALL_WIDGETS}?resourceVersion=$version.page&resourceVersionMatch=Exact")),
            get(&format!("{ALL_WIDGETS}?fieldSelector=spec.size%3D1")),
            delete(&path("b"), json!({ "preconditions": { "uid": "other" } })),
            delete(&path("b"), json!({ "propagationPolicy": "Background" })),
            delete(&path("new"), Value::Null),
            delete(&path("new"), Value::Null),
            events(&format!("{ALL_WIDGETS}?resourceVersion=$version.a&fieldSelector=metadata.name%3Da")),
            events(&format!("{ALL_WIDGETS}?fieldSelector=metadata.name%3Da")),
            delete(WIDGETS, Value::Null).brief(),
            get(ALL_WIDGETS),
        ]),
    )
    .await;
}
