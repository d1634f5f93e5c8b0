//! Fields of other field managers.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::fixture::*;

/// Applies a configuration of ConfigMap `a` as another field manager.
async fn apply_as(fixture: &Fixture, manager: &str, data: Value, force: bool) {
    let maps = Api::<ConfigMap>::namespaced(fixture.server.client(), "default");
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data,
    });
    let by = PatchParams { force, ..PatchParams::apply(manager) };
    maps.patch("a", &by, &Patch::Apply(object)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn field_that_another_manager_owns_is_contested_by_name() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    apply_as(&fixture, "kubectl-edit", json!({ "v": "theirs" }), true).await;

    let outcome = fixture.apply(fixture.maps(&[("a", "2"), ("b", "2")])).await;

    let expected =
        ["contested ConfigMap default/a: .data.v of kubectl-edit", "updated ConfigMap default/b"];
    assert_eq!(lines(&outcome), expected);
    assert!(!outcome.is_complete());
    assert_eq!(fixture.map("default", "a").unwrap()["data"]["v"], "theirs");
    let plan = fixture.plan(fixture.maps(&[("a", "2"), ("b", "2")])).await;
    let expected = [expected[0], "unchanged ConfigMap default/b"];
    assert_eq!(plan_lines(&plan), expected);
}

#[tokio::test(start_paused = true)]
async fn field_that_the_set_owns_beside_another_manager_is_changed() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    apply_as(&fixture, "mirror", json!({ "v": "1" }), false).await;

    let outcome = fixture.apply(fixture.maps(&[("a", "2")])).await;

    assert_eq!(lines(&outcome), ["updated ConfigMap default/a"]);
    assert_eq!(fixture.map("default", "a").unwrap()["data"]["v"], "2");
}

#[tokio::test(start_paused = true)]
async fn contested_field_that_leaves_the_set_stays_with_its_manager() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    apply_as(&fixture, "scaler", json!({ "v": "9" }), true).await;
    let mut without = map("default", "a", "");
    without.data = None;

    let outcome = fixture.apply(fixture.set().object(without)).await;

    assert!(outcome.is_complete(), "{:?}", lines(&outcome));
    assert_eq!(fixture.map("default", "a").unwrap()["data"]["v"], "9");
}

#[tokio::test(start_paused = true)]
async fn create_without_a_hand_over_is_completed_by_the_next_apply() {
    let fixture = Fixture::new();
    let client = intercept(&fixture.server.clone(), |server, method, path| {
        // A write that makes the hand-over a conflict.
        if method == "PATCH" && path.ends_with("/a") {
            let change = json!({ "metadata": { "name": "a", "labels": { "new": "x" } } });
            server.merge(&with_type(change, "v1", "ConfigMap")).unwrap();
        }
    });
    let applier = crate::apply::Applier::new(client, MANAGER);
    let first = applier.apply(fixture.maps(&[("a", "1")])).await.unwrap();
    assert_eq!(verb(&first, "a"), "created");
    let operations = || {
        let live = fixture.map("default", "a").unwrap();
        let entries = live["metadata"]["managedFields"].as_array().unwrap().clone();
        let ours = entries.into_iter().filter(|it| it["manager"] == MANAGER);
        ours.map(|it| it["operation"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(operations(), ["Update"]);
    let plan = fixture.plan(fixture.maps(&[("a", "2")])).await;

    let outcome = fixture.apply(fixture.maps(&[("a", "2")])).await;

    assert_eq!(lines(&outcome), ["updated ConfigMap default/a"]);
    assert_eq!(plan_lines(&plan)[0], "updated ConfigMap default/a");
    assert_eq!(operations(), ["Apply"]);
}
