//! Attachments of decorated objects, and other owners of the same objects.

use std::time::Duration;

use pilotlight::meta::HookKind;
use serde_json::json;
use tokio::time::sleep;

use super::{
    DECORATOR, FINALIZER,
    bench::{Bench, config_map, decorating, hook, thing},
    nothing, one_attachment,
};

#[tokio::test(start_paused = true)]
async fn attachments_are_created_updated_and_deleted() {
    let bench = Bench::running(decorating(), one_attachment).await;
    bench.server.apply(thing("t", json!({}))).unwrap();
    bench.settle().await;

    let created = bench.config_map("t").unwrap();
    assert_eq!(created["metadata"]["annotations"][DECORATOR], "a");
    let owners = created["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(
        (owners.len(), &owners[0]["kind"], &owners[0]["name"]),
        (1, &json!("Thing"), &json!("t"))
    );
    assert_eq!(owners[0]["controller"], true);
    assert_eq!(owners[0]["uid"], bench.thing("t").unwrap()["metadata"]["uid"]);

    bench.answers(|_, _| json!({"attachments": [config_map("t", "2"), config_map("u", "2")]}));
    bench.server.merge(&thing("t", json!({"labels": {"touched": "1"}}))).unwrap();
    bench.settle().await;
    let updated = bench.config_map("t").unwrap();
    assert_eq!(
        (&updated["data"]["value"], &updated["metadata"]["uid"]),
        (&json!("2"), &created["metadata"]["uid"])
    );
    assert!(bench.config_map("u").is_some());

    bench.answers(|_, _| json!({"attachments": [config_map("u", "2")]}));
    bench.server.merge(&thing("t", json!({"labels": {"touched": "2"}}))).unwrap();
    bench.settle().await;
    assert_eq!(bench.config_map("t"), None);
    let kept = bench.config_map("u").unwrap();

    // Another client's change and deletion are repaired.
    let changed = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "u", "namespace": "default"}, "data": {"value": "changed"},
    });
    bench.server.merge(&changed).unwrap();
    bench.settle().await;
    assert_eq!(bench.config_map("u").unwrap()["data"], kept["data"]);
    bench.server.remove("v1", "ConfigMap", "default", "u").unwrap();
    bench.settle().await;
    assert_ne!(bench.config_map("u").unwrap()["metadata"]["uid"], kept["metadata"]["uid"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_of_the_same_owner_without_the_annotation_is_left_alone() {
    let bench = Bench::running(decorating(), nothing).await;
    bench.server.apply(thing("t", json!({}))).unwrap();
    bench.settle().await;
    let uid = bench.thing("t").unwrap()["metadata"]["uid"].clone();
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
        bench.server.apply(object).unwrap();
    };

    owned("none", None);
    owned("other", Some("b"));
    bench.server.merge(&thing("t", json!({"labels": {"touched": "1"}}))).unwrap();
    bench.settle().await;

    assert!(bench.config_map("none").is_some() && bench.config_map("other").is_some());
    for call in bench.calls() {
        assert_eq!(call.request["attachments"], json!({"ConfigMap.v1": {}}));
    }
    assert_eq!(bench.writes(), []);
    owned("ours", Some("a"));
    bench.settle().await;
    assert_eq!(bench.config_map("ours"), None, "an attachment that the hook does not want");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn composite_and_decorator_of_one_name_do_not_disturb_each_other() {
    let mut spec = decorating();
    spec["hooks"]["finalize"] = hook();
    let bench = Bench::running(spec, |kind, request| {
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
    bench.declare("CompositeController", "a", composite.clone());
    bench.runs("CompositeController-a", 1).await;
    bench.server.apply(thing("t", json!({}))).unwrap();
    bench.settle().await;

    let finalizers = |expected: &[&str]| {
        let found = bench.thing("t").unwrap()["metadata"]["finalizers"].clone();
        let mut found: Vec<String> = serde_json::from_value(found).unwrap_or_default();
        found.sort_unstable();
        assert_eq!(found, expected);
    };
    finalizers(&["metacontroller.io/compositecontroller-a", FINALIZER]);
    let [child, attachment] =
        ["child", "attachment"].map(|name| bench.config_map(name).expect(name));
    assert_eq!(child["metadata"]["annotations"].get(DECORATOR), None);
    assert_eq!(attachment["metadata"]["annotations"][DECORATOR], "a");
    for call in bench.calls() {
        let (own, list) = match call.request["controller"]["kind"] == "CompositeController" {
            true => ("child", "children"),
            false => ("attachment", "attachments"),
        };
        let seen = call.request[list]["ConfigMap.v1"].as_object().unwrap();
        assert!(seen.keys().all(|name| name == own), "{call:#?}");
    }
    bench.is_at_rest().await;

    let kind = "metacontroller.k8s.io/v1alpha1";
    bench.server.remove(kind, "CompositeController", "", "a").unwrap();
    bench.settle().await;
    finalizers(&[FINALIZER]);
    assert!(bench.config_map("attachment").is_some());
    bench.runs("DecoratorController-a", 1).await;
    bench.declare("CompositeController", "a", composite);
    bench.runs("CompositeController-a", 2).await;
    bench.server.remove(kind, "DecoratorController", "", "a").unwrap();
    bench.settle().await;
    finalizers(&["metacontroller.io/compositecontroller-a"]);
    bench.runs("CompositeController-a", 2).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn composite_that_wants_an_attachment_of_a_decorator_reports_it_and_leaves_it() {
    let bench = Bench::running(decorating(), |_, request| {
        match request["controller"]["kind"] == "CompositeController" {
            true => json!({"children": [config_map("c", "composite")], "status": {"a": 1}}),
            false => json!({"attachments": [config_map("c", "decorator")]}),
        }
    })
    .await;
    bench.server.apply(thing("t", json!({}))).unwrap();
    bench.settle().await;
    let before = bench.config_map("c").expect("the decorator is first");

    let composite = json!({
        "generateSelector": true,
        "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
        "childResources": [{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
        }],
        "hooks": {"sync": hook()},
    });
    bench.declare("CompositeController", "a", composite);
    bench.runs("CompositeController-a", 1).await;
    bench.settle().await;
    bench.writes();
    sleep(Duration::from_secs(3600)).await;

    assert_eq!(bench.config_map("c"), Some(before));
    let writes = bench.writes();
    let refused = writes.iter().filter(|(_, resource, _)| resource == "configmaps");
    assert!(refused.count() <= 12, "it is tried again once in five minutes: {writes:?}");
    let events = bench.server.list("events.k8s.io/v1", "Event").unwrap();
    let of_thing = events.iter().filter(|event| event["regarding"]["name"] == "t");
    let notes: Vec<_> = of_thing.filter_map(|event| event["note"].as_str()).collect();
    let contested: Vec<_> = notes.iter().filter(|note| note.contains("ConfigMap")).collect();
    assert_eq!(contested.len(), 1, "reported once: {notes:?}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_deleted_without_a_finalize_hook_is_decorated_and_keeps_its_attachments() {
    let bench = Bench::running(decorating(), one_attachment).await;
    bench.server.apply(thing("t", json!({"finalizers": ["example.com/other"]}))).unwrap();
    bench.settle().await;
    assert!(bench.config_map("t").is_some());

    bench.answers(|_, _| json!({"labels": {"last": "words"}, "attachments": []}));
    bench.server.remove("example.com/v1", "Thing", "default", "t").unwrap();
    bench.settle().await;

    let found = bench.thing("t").unwrap();
    assert_eq!(found["metadata"]["labels"], json!({"last": "words"}));
    assert_eq!(found["metadata"]["finalizers"], json!(["example.com/other"]));
    assert!(bench.config_map("t").is_some(), "it belongs to the garbage collector");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_object_has_attachments_in_any_namespace() {
    let mut spec = decorating();
    spec["resources"] = json!([{"apiVersion": "v1", "resource": "namespaces"}]);
    let bench = Bench::running(spec, |_, request| {
        let mut attachment = config_map("settings", "1");
        attachment["metadata"]["namespace"] = request["object"]["metadata"]["name"].clone();
        json!({"attachments": [attachment], "annotations": {"settings": "yes"}})
    })
    .await;

    for name in ["one", "two"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        bench.server.apply(namespace).unwrap();
    }
    bench.settle().await;

    for name in ["one", "two"] {
        assert!(bench.server.get("v1", "ConfigMap", name, "settings").is_ok());
        let namespace = bench.server.get("v1", "Namespace", "", name).unwrap();
        assert_eq!(namespace["metadata"]["annotations"], json!({"settings": "yes"}));
        let calls = bench.calls();
        let last = calls.iter().rfind(|call| call.about() == ("Namespace", name)).unwrap();
        let seen = last.request["attachments"]["ConfigMap.v1"].as_object().unwrap();
        assert_eq!(seen.keys().collect::<Vec<_>>(), [&format!("{name}/settings")]);
    }
    bench.is_at_rest().await;
    bench.end().await;
}
