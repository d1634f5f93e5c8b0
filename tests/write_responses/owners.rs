//! Ownership of objects: adopted, released or left alone; nothing is written for a parent that is
//! deleted or replaced.

use std::time::Duration;

use pilotlight::testing::{Action, CrdBuilder, RequestInfo, Rule, Verb};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::support::Bench;

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
fn hide_parents(bench: &Bench) {
    bench.faults.add(Rule::new(Action::Hang).verb(Verb::Watch).resource("bench.test", "widgets"));
    let is_watch = |info: &RequestInfo| info.verb == Verb::Watch && info.resource == "widgets";
    assert_eq!(bench.faults.cut_open(is_watch), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_adopted_for_a_terminating_or_replaced_parent() {
    let get = |bench: &Bench, api_version, kind, name| {
        bench.server.get(api_version, kind, "default", name).unwrap()
    };
    for replaced in [false, true] {
        let bench = Bench::start().await;
        bench.parent("p", 0, "ours");
        bench.settled(&["p"], 0, "ours").await;
        let mut seen = get(&bench, "bench.test/v1", "Widget", "p");
        if !replaced {
            seen["metadata"]["finalizers"] = json!(["bench.test/theirs"]);
            bench.server.apply(seen.clone()).unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        hide_parents(&bench);
        bench.server.remove("bench.test/v1", "Widget", "default", "p").unwrap();
        if replaced {
            bench.parent("p", 0, "ours");
        }

        bench.server.apply(orphan_of(&seen)).unwrap();
        let is_read =
            |info: &RequestInfo| info.verb == Verb::Get && info.path.ends_with("/widgets/p");
        let read = |bench: &Bench| bench.requests().iter().any(|(_, info)| is_read(info));
        bench.until("the parent is read", read).await;
        sleep(Duration::from_secs(10)).await;

        let found = get(&bench, "v1", "ConfigMap", "orphan");
        assert_eq!(found.pointer("/metadata/ownerReferences"), None, "replaced: {replaced}");
        assert!(bench.sent(Verb::Patch).is_empty(), "replaced: {replaced}");
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_released_keeps_its_other_owners() {
    let bench = Bench::start().await;
    bench.parent("p", 1, "ours");
    bench.settled(&["p"], 1, "ours").await;
    let other = bench.server.apply(config_map("other")).unwrap();
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"],
    });
    let child = || bench.server.get("v1", "ConfigMap", "default", "p-0").unwrap();
    let owned = child();
    let mut shared = owned.clone();
    shared["metadata"]["labels"] = json!({});
    shared["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other.clone());

    bench.server.apply(shared).unwrap();
    let owners = |child: &Value| child["metadata"]["ownerReferences"].clone();
    let released = |_: &Bench| {
        let owners = owners(&child());
        !owners.to_string().contains("\"Widget\"")
    };
    bench.until("the child is released", released).await;

    assert_eq!(owners(&child()), json!([other]));
    assert_eq!(child()["metadata"]["uid"], owned["metadata"]["uid"]);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_of_another_owner_is_not_changed_and_its_owner_is_named() {
    let bench = Bench::start().await;
    let owner = bench.server.apply(config_map("owner")).unwrap();
    let mut theirs = config_map("p-0");
    theirs["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner["metadata"]["uid"], "controller": true,
    }]);
    let theirs = bench.server.apply(theirs).unwrap();

    bench.parent("p", 2, "ours");
    bench.until("the other child is created", |bench| bench.children().contains_key("p-1")).await;
    sleep(Duration::from_secs(10)).await;

    let events = bench.events("SyncError").concat();
    assert!(events.contains("it exists already and belongs to ConfigMap owner"), "{events}");
    assert_eq!(bench.server.get("v1", "ConfigMap", "default", "p-0").unwrap(), theirs);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_not_written_to_a_replacement_of_its_parent() {
    let bench = Bench::start().await;
    bench.parent("p", 1, "one");
    bench.settled(&["p"], 1, "one").await;
    hide_parents(&bench);
    bench.hook.answers(|_| async { Ok(json!({ "status": { "of": "the old one" } })) });

    // The deletion of the child causes a sync of the old parent, which no longer exists.
    bench.server.remove("bench.test/v1", "Widget", "default", "p").unwrap();
    bench.parent("p", 1, "two");
    let is_status = |info: &RequestInfo| info.resource == "widgets" && info.subresource == "status";
    let tries = |bench: &Bench| {
        let requests = bench.requests();
        requests.iter().filter(|(_, info)| is_status(info) && info.verb == Verb::Update).count()
    };
    let before = tries(&bench);
    bench.until("a status write is tried", |bench| tries(bench) > before).await;
    sleep(Duration::from_secs(10)).await;

    let found = bench.server.get("bench.test/v1", "Widget", "default", "p").unwrap();
    assert_eq!(found.get("status"), None, "{found:#}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn orphan_that_appears_during_the_first_hook_call_is_adopted() {
    let bench = Bench::start().await;
    bench.parent("p", 0, "one");
    bench.settled(&["p"], 0, "one").await;
    // A new controller has no state about its parents. The parent's status is already right,
    // because its change would cause an event.
    bench.server.remove("metacontroller.k8s.io/v1alpha1", "CompositeController", "", "a").unwrap();
    sleep(Duration::from_secs(60)).await;
    bench.hook.answers(|request| async move {
        sleep(Duration::from_secs(5)).await;
        // Returns all observed children as desired.
        let there = request["children"]["ConfigMap.v1"].as_object().cloned().unwrap_or_default();
        Ok(json!({ "status": { "size": 0 }, "children": there.values().collect::<Vec<_>>() }))
    });
    let before = bench.hook.calls().len();
    bench.declare("b", &CrdBuilder::new("bench.test", "Widget"), "http://function/");
    let sent = async {
        while bench.hook.calls().len() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), sent).await.unwrap();

    let parent = bench.server.get("bench.test/v1", "Widget", "default", "p").unwrap();
    bench.server.apply(orphan_of(&parent)).unwrap();

    let owner = |bench: &Bench| {
        let found = bench.server.get("v1", "ConfigMap", "default", "orphan").unwrap();
        found.pointer("/metadata/ownerReferences/0/uid").cloned()
    };
    let adopted = |bench: &Bench| owner(bench).as_ref() == parent.pointer("/metadata/uid");
    let took = bench.until("the orphan is adopted", adopted).await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_in_another_namespace_is_no_child_whatever_its_owner_reference() {
    let bench = Bench::start().await;
    bench.parent("p", 1, "one");
    bench.settled(&["p"], 1, "one").await;
    bench
        .server
        .apply(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "far" },
        }))
        .unwrap();
    let mut far = bench.server.get("v1", "ConfigMap", "default", "p-0").unwrap();
    far["metadata"] = json!({
        "name": "p-7", "namespace": "far", "labels": far["metadata"]["labels"],
        "ownerReferences": far["metadata"]["ownerReferences"],
    });

    bench.server.apply(far).unwrap();
    bench.parent("p", 2, "one");
    bench.settled(&["p"], 2, "one").await;
    sleep(Duration::from_secs(60)).await;

    // The garbage collector deletes it, not the controller.
    assert_eq!(bench.sent(Verb::Delete), []);
    bench.end().await;
}
