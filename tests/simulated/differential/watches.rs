//! Watches that are open while their type changes.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, CRD, CRDS, WIDGETS, agree, widget, with_widgets};
use crate::simulated::sequence::{
    JSON, MERGE, Step, delete, ends, events, get, opens, patch, post, wait,
};

fn begun() -> Vec<Step> {
    vec![
        post(WIDGETS, widget("a", json!({ "size": 1 }))).keep("a").brief(),
        get(CRD).keep("crd").brief(),
        opens("watch", &format!("{ALL_WIDGETS}?resourceVersion=$version.a")),
        opens("new", ALL_WIDGETS),
        opens(
            "crd",
            &format!(
                "{CRDS}?resourceVersion=$version.crd&fieldSelector=metadata.name%3Dwidgets.$group&timeoutSeconds=12"
            ),
        ),
        patch(MERGE, &format!("{WIDGETS}/a"), json!({ "spec": { "size": 2 } })).brief(),
    ]
}

#[tokio::test]
async fn change_of_the_spec_ends_a_watch_after_its_pending_events() {
    let described = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "x" }]);
    let mut steps = begun();
    steps.extend([
        patch(JSON, CRD, described).brief(),
        patch(MERGE, &format!("{WIDGETS}/a"), json!({ "spec": { "size": 3 } })).keep("c").brief(),
        ends("watch"),
        ends("new"),
        ends("crd"),
        // Older versions expire with the watch, and the current one can be watched.
        events(&format!("{ALL_WIDGETS}?resourceVersion=$version.a")),
        post(WIDGETS, widget("b", json!({ "size": 1 }))).keep("b").brief(),
        events(&format!("{ALL_WIDGETS}?resourceVersion=$version.b")),
        events(&format!("{ALL_WIDGETS}?resourceVersion=0")),
    ]);
    agree("differential-changed", with_widgets(steps)).await;
}

#[tokio::test]
async fn changes_outside_the_spec_keep_watches_open() {
    let mut steps = begun();
    steps.extend([
        patch(MERGE, CRD, json!({ "metadata": { "labels": { "app": "x" } } })).brief(),
        patch(MERGE, &format!("{CRD}/status"), json!({ "status": { "storedVersions": ["v1"] } }))
            .brief(),
        wait(2000),
        patch(MERGE, &format!("{WIDGETS}/a"), json!({ "spec": { "size": 3 } })).brief(),
        patch(MERGE, CRD, json!({ "spec": { "names": { "shortNames": ["wdg"] } } })).brief(),
        ends("watch"),
        ends("new"),
        ends("crd"),
    ]);
    agree("differential-untouched", with_widgets(steps)).await;
}

#[tokio::test]
async fn watch_ends_after_the_deletions_of_its_type() {
    let mut held = widget("held", json!({ "size": 1 }));
    held["metadata"]["finalizers"] = json!(["x.test/hold"]);
    let mut steps = begun();
    steps.extend([
        post(WIDGETS, held).brief(),
        delete(CRD, Value::Null).brief(),
        get(&format!("{WIDGETS}/a")).until(404),
        get(&format!("{WIDGETS}/a")),
        events(&format!("{ALL_WIDGETS}?resourceVersion=$version.a")),
        patch(MERGE, &format!("{WIDGETS}/held"), json!({ "metadata": { "finalizers": null } }))
            .brief(),
        ends("watch"),
        ends("new"),
        ends("crd"),
        get(&format!("{ALL_WIDGETS}?watch=true")).until(404),
        get(&format!("{ALL_WIDGETS}?watch=true")),
    ]);
    agree("differential-deleted", with_widgets(steps)).await;
}

#[tokio::test]
async fn a_watch_ends_when_its_version_is_no_longer_served() {
    let serve = |at: usize, served: bool| {
        let path = format!("/spec/versions/{at}/served");
        patch(JSON, CRD, json!([{ "op": "replace", "path": path, "value": served }])).brief()
    };
    let mut steps = vec![serve(1, true), get("/apis/$group/v2/widgets").until(200)];
    steps.extend(begun());
    steps.extend([
        opens("v2", "/apis/$group/v2/widgets?resourceVersion=$version.a"),
        serve(1, false),
        patch(MERGE, &format!("{WIDGETS}/a"), json!({ "spec": { "size": 3 } })).brief(),
        ends("v2"),
        ends("watch"),
        ends("new"),
        ends("crd"),
        get("/apis/$group/v2/widgets?watch=true"),
        events(&format!("{ALL_WIDGETS}?resourceVersion=0")),
    ]);
    agree("differential-unserved", with_widgets(steps)).await;
}
