//! Parents with a finalizer: the finalize hook.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    responding_hook::{Calls, faulty_with, harness, pass},
    *,
};
use crate::{
    meta::resource::send,
    testing::{
        Faults, Verb,
        simulated::{AccessRule, Delays},
    },
};

pub(super) const OURS: &str = "metacontroller.io/compositecontroller-a";
pub(super) const WIDGET: (&str, &str) = ("example.com/v1", "Thing");

/// Harness with faults between its client and the server.
pub(super) async fn faulty() -> (Harness, Faults) {
    faulty_with(teardown).await
}

/// Specification with both hooks; children are ConfigMaps.
pub(super) fn finalizing() -> Value {
    let hook = || json!({"webhook": {"url": "http://scripted/"}});
    json!({
        "generateSelector": true,
        "parentResource": {
            "apiVersion": "example.com/v1", "resource": "things",
            "labelSelector": {"matchLabels": {"app": "x"}},
        },
        "childResources": [{"apiVersion": "v1", "resource": "configmaps"}],
        "hooks": {"sync": hook(), "finalize": hook()},
    })
}

pub(super) fn thing(labels: Value) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "p", "labels": labels},
    })
}

fn child() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "default"},
    })
}

/// Response with a child until the parent is finalized; finalized once the child is gone.
pub(super) fn teardown(kind: HookKind, request: &Value) -> Value {
    let children = &request["children"]["ConfigMap.v1"];
    match kind {
        HookKind::Sync => json!({"children": [child()], "status": {"phase": "up"}}),
        HookKind::Finalize => {
            let finalized = children.as_object().unwrap().is_empty();
            json!({"children": [], "status": {"phase": "down"}, "finalized": finalized})
        }
        HookKind::Customize => panic!("it is not declared"),
    }
}

pub(super) fn parent(harness: &Harness) -> Option<Value> {
    harness.server.get(WIDGET.0, WIDGET.1, "", "p").ok()
}

pub(super) fn has_child(harness: &Harness) -> bool {
    harness.server.get("v1", "ConfigMap", "default", "c").is_ok()
}

pub(super) fn finalizers(harness: &Harness) -> Value {
    parent(harness).map(|parent| parent["metadata"]["finalizers"].clone()).unwrap_or_default()
}

pub(super) fn hooks(calls: &Calls) -> Vec<HookKind> {
    let mut kinds: Vec<_> = calls.lock().unwrap().iter().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    kinds
}

pub(super) fn events(harness: &Harness, reason: &str) -> Vec<String> {
    let events = harness.server.list("v1", "Event").unwrap();
    let events = events.iter().filter(|event| event["reason"] == reason);
    events.map(|event| event["involvedObject"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Declares the controller `a`, runs it, and gives it a parent.
pub(super) async fn manage_parent(harness: &Harness, spec: Value) {
    harness.declare("a", spec);
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
}

/// Deletes the parent with this propagation policy, as `kubectl delete --cascade` does.
pub(super) async fn delete_parent(harness: &Harness, policy: &str) {
    let options = json!({ "propagationPolicy": policy });
    let path = "/apis/example.com/v1/things/p".to_owned();
    let client = harness.server.client();
    send::<Value>(&client, http::Method::DELETE, path, "application/json", Some(&options))
        .await
        .unwrap();
}

/// Returns the number of writes of objects of a type since the requests were forgotten.
pub(super) fn writes(harness: &Harness, resource: &str) -> usize {
    let requests = harness.server.requests();
    let written = requests.iter().filter(|request| Verb::MUTATING.contains(&request.info.verb));
    written.filter(|request| request.info.resource == resource).count()
}

#[tokio::test(start_paused = true)]
async fn parent_is_deleted_when_its_finalize_hook_says_so() {
    let (harness, calls) = harness(teardown).await;
    manage_parent(&harness, finalizing()).await;
    assert_eq!(finalizers(&harness), json!([OURS]));
    assert!(has_child(&harness));
    let first = calls.lock().unwrap()[0].1.clone();
    assert_eq!(first["parent"]["metadata"]["finalizers"], json!([OURS]), "before any hook call");
    assert_eq!(first["finalizing"], json!(false));

    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;

    assert_eq!(parent(&harness), None);
    assert!(!has_child(&harness));
    assert_eq!(hooks(&calls), [HookKind::Sync, HookKind::Finalize]);
    let calls = calls.lock().unwrap().clone();
    let finalizing = calls.iter().filter(|(kind, _)| *kind == HookKind::Finalize);
    assert!(finalizing.clone().all(|(_, request)| request["finalizing"] == json!(true)));
    assert_eq!(finalizing.count(), 2, "once with the child, once without");
    assert_eq!(events(&harness, "Flapping"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_is_no_longer_selected_is_finalized_and_stays() {
    let (harness, calls) = harness(teardown).await;
    manage_parent(&harness, finalizing()).await;

    harness.server.merge(&thing(json!({"app": "y"}))).unwrap();
    pass().await;

    assert!(!has_child(&harness));
    assert_eq!(finalizers(&harness), Value::Null);
    assert_eq!(parent(&harness).unwrap()["status"]["phase"], "down");
    let before = calls.lock().unwrap().len();
    harness.server.merge(&thing(json!({"app": "z"}))).unwrap();
    pass().await;
    assert_eq!(calls.lock().unwrap().len(), before, "it is of no concern");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_an_edited_selector_leaves_out_is_finalized_in_the_running_epoch() {
    let (harness, calls) = harness(teardown).await;
    manage_parent(&harness, finalizing()).await;
    let mut spec = finalizing();
    spec["parentResource"]["labelSelector"]["matchLabels"]["tier"] = json!("web");

    harness.declare("a", spec);
    pass().await;

    assert_eq!(harness.epoch("a"), Some(1), "changed in place");
    assert_eq!(hooks(&calls), [HookKind::Sync, HookKind::Finalize]);
    assert!(!has_child(&harness));
    assert_eq!(finalizers(&harness), Value::Null);
    assert_eq!(parent(&harness).unwrap()["status"]["phase"], "down");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalize_only_controller_acts_when_its_parent_is_deleted() {
    let (harness, calls) = harness(teardown).await;
    let mut spec = finalizing();
    spec["hooks"].as_object_mut().unwrap().remove("sync");
    manage_parent(&harness, spec).await;
    assert_eq!(finalizers(&harness), json!([OURS]));
    assert!(calls.lock().unwrap().is_empty());

    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;

    assert_eq!(parent(&harness), None);
    assert_eq!(hooks(&calls), [HookKind::Finalize]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn children_of_a_parent_that_the_collector_handles_are_left_alone() {
    let (harness, calls) = harness(|kind, request| match kind {
        HookKind::Sync | HookKind::Customize => teardown(kind, request),
        HookKind::Finalize => json!({"children": [], "resyncAfterSeconds": 60}),
    })
    .await;
    manage_parent(&harness, finalizing()).await;
    let hour = Duration::from_secs(3600);
    harness.server.set_delays(Delays { garbage_collection: hour, ..Delays::default() });

    delete_parent(&harness, "Orphan").await;
    pass().await;
    assert_eq!(finalizers(&harness), json!([OURS, "orphan"]));

    assert!(has_child(&harness));
    let before = calls.lock().unwrap().len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(calls.lock().unwrap().len(), before + 1, "resyncAfterSeconds counts");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_is_deleted_in_the_foreground_goes_after_its_children_and_its_finalizer() {
    let minute = Duration::from_secs(60);
    for has_finalize in [true, false] {
        let (harness, calls) = harness(teardown).await;
        let mut spec = finalizing();
        let (mut held, mut called) = (vec![OURS, "foregroundDeletion"], vec![HookKind::Sync]);
        if has_finalize {
            called.push(HookKind::Finalize);
        } else {
            spec["hooks"].as_object_mut().unwrap().remove("finalize");
            held.remove(0);
        }
        manage_parent(&harness, spec).await;
        harness.server.set_delays(Delays { garbage_collection: minute, ..Delays::default() });
        harness.server.forget_requests();

        delete_parent(&harness, "Foreground").await;
        pass().await;
        assert_eq!(finalizers(&harness), json!(held));
        assert_eq!(hooks(&calls), called, "the hook is called at once");
        assert!(has_child(&harness), "the garbage collector deletes it");
        sleep(4 * minute).await;

        assert_eq!((parent(&harness), has_child(&harness)), (None, false));
        assert_eq!(hooks(&calls), called);
        assert_eq!(writes(&harness, "configmaps"), 0, "it is neither deleted nor created again");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn parent_without_the_finalizer_is_synced_while_it_is_deleted() {
    let (harness, calls) = harness(|_, request| {
        let phase = request["parent"]["metadata"]["deletionTimestamp"].is_string();
        json!({"children": [], "status": {"phase": if phase { "leaves" } else { "up" }}})
    })
    .await;
    let mut spec = finalizing();
    spec["hooks"].as_object_mut().unwrap().remove("finalize");
    harness.declare("a", spec);
    harness.running("a", 1).await;
    let mut held = thing(json!({"app": "x"}));
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    harness.server.apply(held).unwrap();
    pass().await;

    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;

    assert_eq!(parent(&harness).unwrap()["status"]["phase"], "leaves");
    assert_eq!(hooks(&calls), [HookKind::Sync]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalized_in_the_response_of_a_sync_removes_no_finalizer() {
    let responses = AtomicUsize::new(0);
    let (harness, calls) = harness(move |kind, _| {
        assert_eq!(kind, HookKind::Sync);
        // Bounded, since paused time does not advance during a loop.
        let finalized = responses.fetch_add(1, Ordering::SeqCst) < 100;
        json!({"children": [], "status": {"phase": "up"}, "finalized": finalized})
    })
    .await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();

    sleep(Duration::from_secs(60)).await;

    assert_eq!(finalizers(&harness), json!([OURS]));
    let called = calls.lock().unwrap().len();
    assert!(called < 10, "the hook was called {called} times");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn orphan_in_place_of_a_child_is_contested_in_a_finalization_and_holds_no_parent() {
    let (harness, calls) = harness(|kind, request| {
        let step = &request["parent"]["metadata"]["labels"]["step"];
        let wants = kind == HookKind::Finalize && !step.is_null();
        let children = if wants { vec![child()] } else { Vec::new() };
        json!({"children": children, "finalized": step == "done"})
    })
    .await;
    manage_parent(&harness, finalizing()).await;
    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;
    let mut orphan = child();
    orphan["metadata"]["labels"] =
        json!({"controller-uid": parent(&harness).unwrap()["metadata"]["uid"]});
    harness.server.apply(orphan).unwrap();

    harness.server.merge(&thing(json!({"step": "cleanup"}))).unwrap();
    // Longer than the back-off until a conflict is reported.
    sleep(Duration::from_secs(60)).await;
    assert_eq!(events(&harness, "SyncError"), ["p"], "its name is taken");
    assert_eq!(events(&harness, "SyncDelayed"), [""; 0], "it is never adopted");
    let before = calls.lock().unwrap().len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(calls.lock().unwrap().len(), before, "it is tried again after five minutes");
    assert_eq!(finalizers(&harness), json!([OURS]));

    harness.server.merge(&thing(json!({"step": "done"}))).unwrap();
    pass().await;
    assert_eq!(parent(&harness), None);
    assert!(has_child(&harness), "it was never a child");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_that_stops_matching_in_a_finalization_is_contested_and_holds_no_parent() {
    let (harness, calls) = harness(|_, request| {
        let step = &request["parent"]["metadata"]["labels"]["step"];
        json!({"children": [child()], "finalized": step == "done"})
    })
    .await;
    manage_parent(&harness, finalizing()).await;
    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;

    let mut moved = child();
    moved["metadata"]["labels"] = json!({"controller-uid": "another"});
    harness.server.merge(&moved).unwrap();
    // Longer than the back-off until a conflict is reported.
    sleep(Duration::from_secs(60)).await;
    assert_eq!(events(&harness, "SyncError"), ["p"], "its name is taken");
    assert_eq!(events(&harness, "SyncDelayed"), [""; 0], "the cache is not behind");
    let before = calls.lock().unwrap().len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(calls.lock().unwrap().len(), before, "it is tried again after five minutes");

    harness.server.merge(&thing(json!({"step": "done"}))).unwrap();
    pass().await;
    assert_eq!(parent(&harness), None);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn hook_finalizes_nothing_while_an_optional_child_type_is_not_listed() {
    let (harness, calls) = harness(|kind, request| match kind {
        HookKind::Sync | HookKind::Customize => json!({"children": []}),
        HookKind::Finalize => {
            let children = request["children"]["ConfigMap.v1"].as_object();
            json!({"children": [], "finalized": children.is_none_or(|children| children.is_empty())})
        }
    })
    .await;
    let maps = ["configmaps"];
    harness.server.set_rbac([AccessRule::deny().verbs(["list", "watch"]).resources(maps)]);
    let mut spec = finalizing();
    spec["childResources"] = json!([
        {"apiVersion": "v1", "resource": "configmaps", "optional": true},
        {"apiVersion": "example.com/v1", "resource": "absents", "optional": true},
    ]);
    manage_parent(&harness, spec).await;

    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(hooks(&calls), [HookKind::Sync], "its children are unknown");
    assert_eq!(finalizers(&harness), json!([OURS]));
    let mut delayed = events(&harness, "SyncDelayed");
    delayed.dedup();
    assert_eq!(delayed, ["p"]);
    harness.server.set_rbac([]);
    sleep(Duration::from_secs(300)).await;

    assert_eq!(parent(&harness), None, "the other type is proven absent");
    assert_eq!(hooks(&calls), [HookKind::Sync, HookKind::Finalize]);
    harness.end().await;
}
