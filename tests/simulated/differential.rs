//! The same requests to both servers. Where they disagree, the simulation is wrong.

use pilotlight::testing::{ControlPlane, simulated::SimulatedServer};
use serde_json::{Value, json};

use super::sequence::{
    APPLY, JSON, MERGE, STRATEGIC, Step, delete, events, get, patch, play, post, put,
};

const MAPS: &str = "/api/v1/namespaces/$ns/configmaps";
const WIDGETS: &str = "/apis/$group/v1/namespaces/$ns/widgets";
const ALL_WIDGETS: &str = "/apis/$group/v1/widgets";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.$group";

async fn agree(name: &str, steps: Vec<Step>) {
    let plane = ControlPlane::shared();
    let scope = plane.scope(name).await.unwrap();
    let real = scope.client().clone();
    let server = SimulatedServer::new();
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": scope.namespace } });
    server.apply(namespace).unwrap();
    let simulated = server.client();

    let (real, simulated) = tokio::join!(
        play(&real, &scope.group, &scope.namespace, &steps),
        play(&simulated, &scope.group, &scope.namespace, &steps)
    );

    let mut wrong = String::new();
    for (at, step) in steps.iter().enumerate() {
        let (real, simulated) = (&real[at], &simulated[at]);
        if real != simulated {
            wrong +=
                &format!("{at}. {}\n  real      {real}\n  simulated {simulated}\n", step.says());
        }
    }
    assert!(wrong.is_empty(), "the servers disagree:\n{wrong}");
}

fn widget(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": name }, "spec": spec })
}

fn map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

fn crd() -> Value {
    let version = |name: &str, served: bool, storage: bool| {
        json!({
            "name": name, "served": served, "storage": storage,
            "schema": { "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {
                            "size": { "type": "integer", "minimum": 0, "maximum": 9 },
                            "color": { "type": "string", "enum": ["red", "blue"] },
                        },
                    },
                    "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                },
            } },
            "subresources": {
                "status": {},
                "scale": { "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size" },
            },
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.$group" },
        "spec": {
            "group": "$group", "scope": "Namespaced",
            "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [version("v1", true, true), version("v2", false, false)],
        },
    })
}

/// A served type, past the hold of creates.
fn with_widgets(steps: Vec<Step>) -> Vec<Step> {
    let mut all = vec![
        post(CRDS, crd()).brief(),
        get("/apis/$group/v1").until(200),
        get(ALL_WIDGETS).until(200),
    ];
    all.extend(steps);
    all
}

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

#[tokio::test]
async fn a_crds_life_is_the_same() {
    let held = json!({
        "apiVersion": "$group/v1", "kind": "Widget",
        "metadata": { "name": "held", "finalizers": ["x.test/hold"] } });
    let serve = |served: bool| json!([{ "op": "replace", "path": "/spec/versions/1/served", "value": served }]);
    let other = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.other" }, "spec": crd()["spec"] });
    agree(
        "differential-crd",
        vec![
            get(ALL_WIDGETS),
            post(CRDS, other).brief(),
            post(CRDS, crd()),
            get("/apis/$group/v1").until(200),
            get(ALL_WIDGETS).until(200),
            get("/apis/$group/v1"),
            get("/apis/$group"),
            delete(ALL_WIDGETS, Value::Null),
            put(WIDGETS, widget("a", json!({}))),
            get("/apis/nowhere.test"),
            get("/apis/nowhere.test/v1"),
            get("/api/v2"),
            get("/nothing"),
            get(CRD).keep("crd"),
            post(CRDS, crd()),
            get("/apis/$group/v2/widgets"),
            get("/apis/$group/v1/gears"),
            get("/apis/apiregistration.k8s.io/v1/apiservices/v1.$group").brief(),
            post(WIDGETS, held).keep("held"),
            patch(JSON, CRD, serve(true)).brief(),
            get("/apis/$group/v2/widgets").until(200),
            get("/apis/$group/v2/namespaces/$ns/widgets/held"),
            events(&format!("{ALL_WIDGETS}?resourceVersion=$version.held")),
            patch(JSON, CRD, serve(false)).brief(),
            get("/apis/$group/v2/widgets").until(404),
            get("/apis/$group/v2/widgets"),
            patch(MERGE, CRD, json!({ "spec": { "scope": "Cluster" } })).brief(),
            delete(CRD, Value::Null).brief(),
            delete(CRD, Value::Null).brief(),
            post(WIDGETS, widget("late", json!({}))).until(403),
            post(WIDGETS, widget("late", json!({}))),
            // Takes 2 s, in which the instances are deleted.
            events(&format!("{MAPS}?fieldSelector=metadata.name%3Dnone")),
            patch(MERGE, &format!("{WIDGETS}/held"), json!({ "metadata": { "finalizers": null } })),
            get(CRD).until(404),
            get(ALL_WIDGETS).until(404),
            get(ALL_WIDGETS),
            get(CRD),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_switch_of_the_stored_version_is_the_same() {
    let path = format!("{WIDGETS}/a");
    let same = json!({
        "apiVersion": "$group/v1", "kind": "Widget",
        "metadata": { "name": "a", "resourceVersion": "$version.a" }, "spec": { "size": 1 } });
    let switch = json!([
        { "op": "replace", "path": "/spec/versions/0/storage", "value": false },
        { "op": "replace", "path": "/spec/versions/1/storage", "value": true },
        { "op": "replace", "path": "/spec/versions/1/served", "value": true },
    ]);
    agree(
        "differential-stored",
        with_widgets(vec![
            post(WIDGETS, widget("a", json!({ "size": 1 }))).keep("a"),
            put(&path, same.clone()),
            put(&path, same.clone()),
            patch(JSON, CRD, switch).brief(),
            get("/apis/$group/v2/widgets").until(200),
            get(CRD),
            // It is written anew, though it says the same.
            put(&path, same.clone()),
            put(&path, same),
            get(&path),
            get("/apis/$group/v2/namespaces/$ns/widgets/a"),
        ]),
    )
    .await;
}
