//! Creation, change and deletion of a type.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, CRD, CRDS, MAPS, WIDGETS, agree, crd, widget, with_widgets};
use crate::simulated::sequence::{JSON, MERGE, delete, events, get, patch, post, put};

#[tokio::test]
async fn a_crd_has_the_same_life_cycle() {
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
            // An equal object is written, since its storage version has changed.
            put(&path, same.clone()),
            put(&path, same),
            get(&path),
            get("/apis/$group/v2/namespaces/$ns/widgets/a"),
        ]),
    )
    .await;
}
