//! Attachments of decorated objects, and other owners of the same objects.

use std::time::Duration;

use pilotlight::meta::HookKind;
use serde_json::json;
use tokio::time::sleep;

use super::{
    DECORATOR, FINALIZER,
    harness::{DecoratorHarness, config_map, decorating, hook, thing},
    nothing, one_attachment,
};

#[tokio::test(start_paused = true)]
async fn attachments_are_created_updated_and_deleted() {
    let harness = DecoratorHarness::running(decorating(), one_attachment).await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;

    let created = harness.config_map("t").unwrap();
    assert_eq!(created["metadata"]["annotations"][DECORATOR], "a");
    let owners = created["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(
        (owners.len(), &owners[0]["kind"], &owners[0]["name"]),
        (1, &json!("Thing"), &json!("t"))
    );
    assert_eq!(owners[0]["controller"], true);
    assert_eq!(owners[0]["uid"], harness.thing("t").unwrap()["metadata"]["uid"]);

    harness.answers(|_, _| json!({"attachments": [config_map("t", "2"), config_map("u", "2")]}));
    harness.server.merge(&thing("t", json!({"labels": {"touched": "1"}}))).unwrap();
    harness.settle().await;
    let updated = harness.config_map("t").unwrap();
    assert_eq!(
        (&updated["data"]["value"], &updated["metadata"]["uid"]),
        (&json!("2"), &created["metadata"]["uid"])
    );
    assert!(harness.config_map("u").is_some());

    harness.answers(|_, _| json!({"attachments": [config_map("u", "2")]}));
    harness.server.merge(&thing("t", json!({"labels": {"touched": "2"}}))).unwrap();
    harness.settle().await;
    assert_eq!(harness.config_map("t"), None);
    let kept = harness.config_map("u").unwrap();

    // Another client's change and deletion are repaired.
    let changed = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "u", "namespace": "default"}, "data": {"value": "changed"},
    });
    harness.server.merge(&changed).unwrap();
    harness.settle().await;
    assert_eq!(harness.config_map("u").unwrap()["data"], kept["data"]);
    harness.server.remove("v1", "ConfigMap", "default", "u").unwrap();
    harness.settle().await;
    assert_ne!(harness.config_map("u").unwrap()["metadata"]["uid"], kept["metadata"]["uid"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_of_the_same_owner_without_the_annotation_is_left_alone() {
    let harness = DecoratorHarness::running(decorating(), nothing).await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    let uid = harness.thing("t").unwrap()["metadata"]["uid"].clone();
    let owned = |name: &str, decorator: Option<&str>| {
        let owner = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": uid, "controller": true,
        });
        let mut object = config_map(name, "foreign");
        object["metadata"]["namespace"] = json!("default");
        object["metadata"]["ownerReferences"] = json!([owner]);
        if let Some(decorator) = decorator {
            object["metadata"]["annotations"] = json!({DECORATOR: decorator});
        }
        harness.server.apply(object).unwrap();
    };

    owned("none", None);
    owned("other", Some("b"));
    harness.server.merge(&thing("t", json!({"labels": {"touched": "1"}}))).unwrap();
    harness.settle().await;

    assert!(harness.config_map("none").is_some() && harness.config_map("other").is_some());
    for call in harness.calls() {
        assert_eq!(call.request["attachments"], json!({"ConfigMap.v1": {}}));
    }
    assert_eq!(harness.writes(), []);
    owned("ours", Some("a"));
    harness.settle().await;
    assert_eq!(harness.config_map("ours"), None, "an attachment that the hook does not want");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn composite_and_decorator_of_one_name_do_not_disturb_each_other() {
    let mut spec = decorating();
    spec["hooks"]["finalize"] = hook();
    let harness = DecoratorHarness::running(spec, |kind, request| {
        let composite = request["controller"]["kind"] == "CompositeController";
        match (kind, composite) {
            (HookKind::Finalize, _) => json!({"finalized": true}),
            (_, true) => json!({"children": [config_map("child", "1")], "status": {"a": 1}}),
            (_, false) => json!({"attachments": [config_map("attachment", "1")]}),
        }
    })
    .await;
    let composite = json!({
        "generateSelector": true,
        "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
        "childResources": [{"apiVersion": "v1", "resource": "configmaps"}],
        "hooks": {"sync": hook(), "finalize": hook()},
    });
    harness.declare("CompositeController", "a", composite.clone());
    harness.runs("CompositeController-a", 1).await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;

    let finalizers = |expected: &[&str]| {
        let found = harness.thing("t").unwrap()["metadata"]["finalizers"].clone();
        let mut found: Vec<String> = serde_json::from_value(found).unwrap_or_default();
        found.sort_unstable();
        assert_eq!(found, expected);
    };
    finalizers(&["metacontroller.io/compositecontroller-a", FINALIZER]);
    let [child, attachment] =
        ["child", "attachment"].map(|name| harness.config_map(name).expect(name));
    assert_eq!(child["metadata"]["annotations"].get(DECORATOR), None);
    assert_eq!(attachment["metadata"]["annotations"][DECORATOR], "a");
    for call in harness.calls() {
        let (own, list) = match call.request["controller"]["kind"] == "CompositeController" {
            true => ("child", "children"),
            false => ("attachment", "attachments"),
        };
        let seen = call.request[list]["ConfigMap.v1"].as_object().unwrap();
        assert!(seen.keys().all(|name| name == own), "{call:#?}");
    }
    harness.is_at_rest().await;

    let kind = "metacontroller.k8s.io/v1alpha1";
    harness.server.remove(kind, "CompositeController", "", "a").unwrap();
    harness.settle().await;
    finalizers(&[FINALIZER]);
    assert!(harness.config_map("attachment").is_some());
    harness.runs("DecoratorController-a", 1).await;
    harness.declare("CompositeController", "a", composite);
    harness.runs("CompositeController-a", 2).await;
    harness.server.remove(kind, "DecoratorController", "", "a").unwrap();
    harness.settle().await;
    finalizers(&["metacontroller.io/compositecontroller-a"]);
    harness.runs("CompositeController-a", 2).await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn composite_that_wants_an_attachment_of_a_decorator_reports_it_and_leaves_it() {
    let harness = DecoratorHarness::running(decorating(), |_, request| {
        match request["controller"]["kind"] == "CompositeController" {
            true => json!({"children": [config_map("c", "composite")], "status": {"a": 1}}),
            false => json!({"attachments": [config_map("c", "decorator")]}),
        }
    })
    .await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    let before = harness.config_map("c").expect("the decorator is first");

    let composite = json!({
        "generateSelector": true,
        "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
        "childResources": [{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
        }],
        "hooks": {"sync": hook()},
    });
    harness.declare("CompositeController", "a", composite);
    harness.runs("CompositeController-a", 1).await;
    harness.settle().await;
    harness.writes();
    sleep(Duration::from_secs(3600)).await;

    assert_eq!(harness.config_map("c"), Some(before));
    let writes = harness.writes();
    let refused = writes.iter().filter(|(_, resource, _)| resource == "configmaps");
    assert!(refused.count() <= 12, "it is tried again once in five minutes: {writes:?}");
    let events = harness.server.list("events.k8s.io/v1", "Event").unwrap();
    let of_thing = events.iter().filter(|event| event["regarding"]["name"] == "t");
    let notes: Vec<_> = of_thing.filter_map(|event| event["note"].as_str()).collect();
    let contested: Vec<_> = notes.iter().filter(|note| note.contains("ConfigMap")).collect();
    assert_eq!(contested.len(), 1, "reported once: {notes:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_deleted_without_a_finalize_hook_is_decorated_and_keeps_its_attachments() {
    let harness = DecoratorHarness::running(decorating(), one_attachment).await;
    harness.server.apply(thing("t", json!({"finalizers": ["example.com/other"]}))).unwrap();
    harness.settle().await;
    assert!(harness.config_map("t").is_some());

    harness.answers(|_, _| json!({"labels": {"last": "words"}, "attachments": []}));
    harness.server.remove("example.com/v1", "Thing", "default", "t").unwrap();
    harness.settle().await;

    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["labels"], json!({"last": "words"}));
    assert_eq!(found["metadata"]["finalizers"], json!(["example.com/other"]));
    assert!(harness.config_map("t").is_some(), "it belongs to the garbage collector");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_object_has_attachments_in_any_namespace() {
    let mut spec = decorating();
    spec["resources"] = json!([{"apiVersion": "v1", "resource": "namespaces"}]);
    let harness = DecoratorHarness::running(spec, |_, request| {
        let mut attachment = config_map("settings", "1");
        attachment["metadata"]["namespace"] = request["object"]["metadata"]["name"].clone();
        json!({"attachments": [attachment], "annotations": {"settings": "yes"}})
    })
    .await;

    for name in ["one", "two"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        harness.server.apply(namespace).unwrap();
    }
    harness.settle().await;

    for name in ["one", "two"] {
        assert!(harness.server.get("v1", "ConfigMap", name, "settings").is_ok());
        let namespace = harness.server.get("v1", "Namespace", "", name).unwrap();
        assert_eq!(namespace["metadata"]["annotations"], json!({"settings": "yes"}));
        let calls = harness.calls();
        let last = calls.iter().rfind(|call| call.about() == ("Namespace", name)).unwrap();
        let seen = last.request["attachments"]["ConfigMap.v1"].as_object().unwrap();
        assert_eq!(seen.keys().collect::<Vec<_>>(), [&format!("{name}/settings")]);
    }
    harness.is_at_rest().await;
    harness.end().await;
}
