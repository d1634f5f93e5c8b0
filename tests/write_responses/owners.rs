//! Ownership of objects: adopted, released or left alone; nothing is written for a parent that is
//! deleted or replaced.

use std::time::Duration;

use pilotlight::testing::{Action, CrdBuilder, RequestInfo, Rule, Verb};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::support::SimulatedHarness;

fn config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "default" },
    })
}

/// ConfigMap without an owner that this parent would adopt.
fn orphan_of(parent: &Value) -> Value {
    let mut orphan = config_map("orphan");
    orphan["metadata"]["labels"] = json!({ "controller-uid": parent["metadata"]["uid"] });
    orphan
}

/// Cuts the parents' watch and holds the next ones, so that changes of parents stay unseen.
fn hide_parents(harness: &SimulatedHarness) {
    harness
        .faults
        .add(Rule::new(Action::Hang).verb(Verb::Watch).resource("harness.test", "widgets"));
    let is_watch = |info: &RequestInfo| info.verb == Verb::Watch && info.resource == "widgets";
    assert_eq!(harness.faults.cut_open(is_watch), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_adopted_for_a_terminating_or_replaced_parent() {
    let get = |harness: &SimulatedHarness, api_version, kind, name| {
        harness.server.get(api_version, kind, "default", name).unwrap()
    };
    for replaced in [false, true] {
        let harness = SimulatedHarness::start().await;
        harness.parent("p", 0, "ours");
        harness.settled(&["p"], 0, "ours").await;
        let mut seen = get(&harness, "harness.test/v1", "Widget", "p");
        if !replaced {
            seen["metadata"]["finalizers"] = json!(["harness.test/theirs"]);
            harness.server.apply(seen.clone()).unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        hide_parents(&harness);
        harness.server.remove("harness.test/v1", "Widget", "default", "p").unwrap();
        if replaced {
            harness.parent("p", 0, "ours");
        }

        harness.server.apply(orphan_of(&seen)).unwrap();
        let is_read =
            |info: &RequestInfo| info.verb == Verb::Get && info.path.ends_with("/widgets/p");
        let read =
            |harness: &SimulatedHarness| harness.requests().iter().any(|(_, info)| is_read(info));
        harness.until("the parent is read", read).await;
        sleep(Duration::from_secs(10)).await;

        let found = get(&harness, "v1", "ConfigMap", "orphan");
        assert_eq!(found.pointer("/metadata/ownerReferences"), None, "replaced: {replaced}");
        assert!(harness.sent(Verb::Patch).is_empty(), "replaced: {replaced}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_released_keeps_its_other_owners() {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "ours");
    harness.settled(&["p"], 1, "ours").await;
    let other = harness.server.apply(config_map("other")).unwrap();
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"],
    });
    let child = || harness.server.get("v1", "ConfigMap", "default", "p-0").unwrap();
    let owned = child();
    let mut shared = owned.clone();
    shared["metadata"]["labels"] = json!({});
    shared["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other.clone());

    harness.server.apply(shared).unwrap();
    let owners = |child: &Value| child["metadata"]["ownerReferences"].clone();
    let released = |_: &SimulatedHarness| {
        let owners = owners(&child());
        !owners.to_string().contains("\"Widget\"")
    };
    harness.until("the child is released", released).await;

    assert_eq!(owners(&child()), json!([other]));
    assert_eq!(child()["metadata"]["uid"], owned["metadata"]["uid"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_of_another_owner_is_not_changed_and_its_owner_is_named() {
    let harness = SimulatedHarness::start().await;
    let owner = harness.server.apply(config_map("owner")).unwrap();
    let mut theirs = config_map("p-0");
    theirs["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner["metadata"]["uid"], "controller": true,
    }]);
    let theirs = harness.server.apply(theirs).unwrap();

    harness.parent("p", 2, "ours");
    harness
        .until("the other child is created", |harness| harness.children().contains_key("p-1"))
        .await;
    sleep(Duration::from_secs(10)).await;

    let events = harness.events("SyncError").concat();
    assert!(events.contains("it exists already and belongs to ConfigMap owner"), "{events}");
    assert_eq!(harness.server.get("v1", "ConfigMap", "default", "p-0").unwrap(), theirs);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_not_written_to_a_replacement_of_its_parent() {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "one").await;
    hide_parents(&harness);
    harness.hook.answers(|_| async { Ok(json!({ "status": { "of": "the old one" } })) });

    // The deletion of the child causes a sync of the old parent, which no longer exists.
    harness.server.remove("harness.test/v1", "Widget", "default", "p").unwrap();
    harness.parent("p", 1, "two");
    let is_status = |info: &RequestInfo| info.resource == "widgets" && info.subresource == "status";
    let tries = |harness: &SimulatedHarness| {
        let requests = harness.requests();
        requests.iter().filter(|(_, info)| is_status(info) && info.verb == Verb::Update).count()
    };
    let before = tries(&harness);
    harness.until("a status write is tried", |harness| tries(harness) > before).await;
    sleep(Duration::from_secs(10)).await;

    let found = harness.server.get("harness.test/v1", "Widget", "default", "p").unwrap();
    assert_eq!(found.get("status"), None, "{found:#}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn orphan_that_appears_during_the_first_hook_call_is_adopted() {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 0, "one");
    harness.settled(&["p"], 0, "one").await;
    // A new controller has no state about its parents. The parent's status is already right,
    // because its change would cause an event.
    harness
        .server
        .remove("metacontroller.k8s.io/v1alpha1", "CompositeController", "", "a")
        .unwrap();
    sleep(Duration::from_secs(60)).await;
    harness.hook.answers(|request| async move {
        sleep(Duration::from_secs(5)).await;
        // Returns all observed children as desired.
        let there = request["children"]["ConfigMap.v1"].as_object().cloned().unwrap_or_default();
        Ok(json!({ "status": { "size": 0 }, "children": there.values().collect::<Vec<_>>() }))
    });
    let before = harness.hook.calls().len();
    harness.declare("b", &CrdBuilder::new("harness.test", "Widget"), "http://function/");
    let sent = async {
        while harness.hook.calls().len() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), sent).await.unwrap();

    let parent = harness.server.get("harness.test/v1", "Widget", "default", "p").unwrap();
    harness.server.apply(orphan_of(&parent)).unwrap();

    let owner = |harness: &SimulatedHarness| {
        let found = harness.server.get("v1", "ConfigMap", "default", "orphan").unwrap();
        found.pointer("/metadata/ownerReferences/0/uid").cloned()
    };
    let adopted =
        |harness: &SimulatedHarness| owner(harness).as_ref() == parent.pointer("/metadata/uid");
    let took = harness.until("the orphan is adopted", adopted).await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_in_another_namespace_is_no_child_whatever_its_owner_reference() {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "one").await;
    harness
        .server
        .apply(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "far" },
        }))
        .unwrap();
    let mut far = harness.server.get("v1", "ConfigMap", "default", "p-0").unwrap();
    far["metadata"] = json!({
        "name": "p-7", "namespace": "far", "labels": far["metadata"]["labels"],
        "ownerReferences": far["metadata"]["ownerReferences"],
    });

    harness.server.apply(far).unwrap();
    harness.parent("p", 2, "one");
    harness.settled(&["p"], 2, "one").await;
    sleep(Duration::from_secs(60)).await;

    // The garbage collector deletes it, not the controller.
    assert_eq!(harness.sent(Verb::Delete), []);
    harness.end().await;
}
