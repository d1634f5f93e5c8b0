//! Parents of a controller that is deleted or no longer finalizes them: they are freed.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    finalize::{
        OURS, WIDGET, events, faulty, finalizers, finalizing, has_child, hooks, manage_parent,
        parent, teardown, thing,
    },
    responding_hook::{harness, harness_of, pass},
    *,
};
use crate::{
    meta::definition::strictness::Strictness,
    testing::{Action, Reply, Rule, Verb, simulated::AccessRule},
};

const CONTROLLER: (&str, &str) = ("metacontroller.k8s.io/v1alpha1", "CompositeController");

#[tokio::test(start_paused = true)]
async fn parents_are_freed_when_the_finalize_hook_is_dropped() {
    let (harness, calls) = harness(teardown).await;
    manage_parent(&harness, finalizing()).await;
    let mut spec = finalizing();
    spec["hooks"].as_object_mut().unwrap().remove("finalize");

    harness.declare("a", spec);
    pass().await;

    assert_eq!(harness.epoch("a"), Some(1), "changed in place");
    assert_eq!(finalizers(&harness), Value::Null);
    assert!(has_child(&harness));
    assert_eq!(hooks(&calls), [HookKind::Sync]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_are_freed_and_the_run_ends_when_the_only_hook_is_dropped() {
    let (harness, calls) = harness(teardown).await;
    let mut spec = finalizing();
    spec["hooks"].as_object_mut().unwrap().remove("sync");
    manage_parent(&harness, spec.clone()).await;
    assert_eq!(finalizers(&harness), json!([OURS]));

    spec["hooks"] = json!({});
    harness.declare("a", spec);
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    assert_eq!(harness.epoch("a"), None, "it has no run");
    let object = harness.server.get(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    assert_eq!(object["status"]["state"], "Invalid");
    let ready = object["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(ready.contains("sync or finalize needs a webhook"), "{ready}");
    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;
    assert_eq!(parent(&harness), None);
    assert!(calls.lock().unwrap().is_empty(), "the dropped hook is not called");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_without_hooks_ends_the_run_unless_another_mistake_rejects_it() {
    let (harness, calls) = harness(teardown).await;
    manage_parent(&harness, finalizing()).await;
    let mut spec = finalizing();
    spec["hooks"] = json!({});
    spec["parentResource"]["resource"] = json!("");

    harness.declare("a", spec.clone());
    pass().await;
    assert_eq!((harness.epoch("a"), finalizers(&harness)), (Some(1), json!([OURS])));

    spec["parentResource"]["resource"] = json!("things");
    harness.declare("a", spec);
    pass().await;
    assert_eq!((harness.epoch("a"), finalizers(&harness)), (None, Value::Null));
    assert!(has_child(&harness));

    harness.declare("a", finalizing());
    harness.running("a", 2).await;
    pass().await;
    assert_eq!(finalizers(&harness), json!([OURS]));
    assert_eq!(hooks(&calls), [HookKind::Sync]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_are_freed_at_the_start_if_the_finalize_hook_was_dropped_while_no_process_ran() {
    let (harness, calls) = harness(teardown).await;
    let held = |name: &str, labels: Value| {
        let mut thing = thing(labels);
        thing["metadata"]["name"] = json!(name);
        thing["metadata"]["finalizers"] = json!([OURS, "example.com/other"]);
        harness.server.apply(thing).unwrap();
    };
    held("selected", json!({"app": "x"}));
    held("unselected", json!({"app": "y"}));
    let mut spec = finalizing();
    spec["hooks"].as_object_mut().unwrap().remove("finalize");

    harness.declare("a", spec);
    harness.running("a", 1).await;
    pass().await;

    for name in ["selected", "unselected"] {
        let parent = harness.server.get(WIDGET.0, WIDGET.1, "", name).unwrap();
        assert_eq!(parent["metadata"]["finalizers"], json!(["example.com/other"]), "{name}");
    }
    let calls = calls.lock().unwrap().clone();
    let synced = calls.iter().map(|(_, request)| &request["parent"]["metadata"]["name"]);
    assert!(synced.clone().count() > 0 && synced.clone().all(|name| name == "selected"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_of_a_deleted_controller_are_freed_without_the_hook() {
    let (harness, calls) = harness(teardown).await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    let mut alien = thing(json!({"app": "y"}));
    alien["metadata"]["name"] = json!("q");
    alien["metadata"]["finalizers"] = json!(["metacontroller.io/compositecontroller-b"]);
    harness.server.apply(alien).unwrap();
    pass().await;

    harness
        .server
        .remove("metacontroller.k8s.io/v1alpha1", "CompositeController", "", "a")
        .unwrap();
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    assert!(has_child(&harness), "nothing else is done for it");
    assert_eq!(events(&harness, "FinalizerRemoved"), ["p"]);
    assert_eq!(hooks(&calls), [HookKind::Sync]);
    let other = harness.server.get(WIDGET.0, WIDGET.1, "", "q").unwrap();
    assert_eq!(
        other["metadata"]["finalizers"],
        json!(["metacontroller.io/compositecontroller-b"]),
        "that of another controller stays"
    );
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_in_deletion_waits_for_its_deleted_controller_to_return() {
    let ends = Arc::new(AtomicBool::new(false));
    let may_end = Arc::clone(&ends);
    let (harness, calls) = harness(move |kind, _| match kind {
        HookKind::Sync => json!({"children": []}),
        HookKind::Finalize => json!({"children": [], "finalized": may_end.load(Ordering::Relaxed)}),
        HookKind::Customize => panic!("it is not declared"),
    })
    .await;
    manage_parent(&harness, finalizing()).await;
    let mut other = thing(json!({"app": "x"}));
    other["metadata"]["name"] = json!("q");
    harness.server.apply(other).unwrap();
    pass().await;
    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(finalizers(&harness), json!([OURS]), "its hook has not finalized it");
    let other = harness.server.get(WIDGET.0, WIDGET.1, "", "q").unwrap();
    assert_eq!(other["metadata"]["finalizers"], Value::Null);
    assert_eq!(events(&harness, "FinalizerKept"), ["p"]);
    let all = harness.server.list("v1", "Event").unwrap();
    let kept = all.iter().find(|event| event["reason"] == "FinalizerKept").unwrap();
    assert!(kept["message"].as_str().unwrap().ends_with("or run: pilotlight release a"), "{kept}");
    assert_eq!(events(&harness, "Stopped"), ["a"], "nothing else is due");

    ends.store(true, Ordering::Relaxed);
    calls.lock().unwrap().clear();
    harness.declare("a", finalizing());
    harness.running("a", 2).await;
    pass().await;
    assert_eq!(parent(&harness), None);
    assert!(hooks(&calls).contains(&HookKind::Finalize));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn renamed_controller_takes_over_the_parents_of_its_old_name() {
    let (harness, calls) = harness(teardown).await;
    manage_parent(&harness, finalizing()).await;
    assert_eq!(finalizers(&harness), json!([OURS]));

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    harness.declare("b", finalizing());
    harness.running("b", 1).await;
    pass().await;

    assert_eq!(finalizers(&harness), json!(["metacontroller.io/compositecontroller-b"]));
    assert!(has_child(&harness));
    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    pass().await;
    assert_eq!((parent(&harness), has_child(&harness)), (None, false));
    let calls = calls.lock().unwrap().clone();
    let finalize = calls.iter().find(|(kind, _)| *kind == HookKind::Finalize).unwrap();
    assert_eq!(finalize.1["controller"]["metadata"]["name"], "b");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_of_an_earlier_type_are_freed() {
    let (harness, _) = harness(teardown).await;
    let others = CrdBuilder::new("example.com", "Other").cluster_scoped();
    harness.server.install(&others.build()).unwrap();
    manage_parent(&harness, finalizing()).await;
    let mut spec = finalizing();
    spec["parentResource"]["resource"] = json!("others");

    harness.declare("a", spec);
    harness.running("a", 2).await;
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    harness.end().await;
}

/// Harness whose client may not send requests of these verbs for CRDs.
async fn without_crds(verbs: &[&str]) -> Harness {
    let server = SimulatedServer::new();
    let crds = ["customresourcedefinitions.apiextensions.k8s.io"];
    let verbs = verbs.iter().copied();
    server.set_rbac([AccessRule::deny().users(["controller"]).verbs(verbs).resources(crds)]);
    let client = server.client_as("controller");
    harness_of(server, client, Strictness::default(), teardown).await.0
}

#[tokio::test(start_paused = true)]
async fn crd_that_may_not_be_read_frees_no_parents_when_it_is_deleted() {
    let harness = without_crds(&[]).await;
    manage_parent(&harness, finalizing()).await;

    for crd in crds() {
        harness.server.uninstall(&crd.metadata.name.unwrap()).unwrap();
    }
    sleep(10 * MISSING_GRACE).await;

    assert_eq!(finalizers(&harness), json!([OURS]), "no client has deleted the controller");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_are_freed_after_a_minute_if_the_crd_may_not_be_read() {
    let harness = without_crds(&["get"]).await;
    manage_parent(&harness, finalizing()).await;

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    sleep(MISSING_GRACE - Duration::from_secs(1)).await;
    assert_eq!(harness.epoch("a"), None, "it stops at once");
    assert_eq!(finalizers(&harness), json!([OURS]), "its CRD may be in deletion");
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_written_although_parents_of_an_earlier_type_cannot_be_freed() {
    let (harness, faults) = faulty().await;
    let others = CrdBuilder::new("example.com", "Other").cluster_scoped();
    harness.server.install(&others.build()).unwrap();
    manage_parent(&harness, finalizing()).await;
    let refused = Reply::status(422, "Invalid", "refused by a webhook");
    faults.add(Rule::new(Action::Reply(refused)).mutating().path_contains("/things/p"));
    let mut spec = finalizing();
    spec["parentResource"]["resource"] = json!("others");

    harness.declare("a", spec);
    harness.running("a", 2).await;
    sleep(Duration::from_secs(60)).await;

    assert_eq!(finalizers(&harness), json!([OURS]));
    let object = harness.server.get(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    assert_eq!(object["status"]["observedGeneration"], 2);
    assert_eq!(object["status"]["reason"], "Running");
    faults.clear();
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(finalizers(&harness), Value::Null, "the release is tried again");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_cannot_be_written_keeps_no_other_parent_from_being_freed() {
    let (harness, faults) = faulty().await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    for name in ["p", "q"] {
        let mut thing = thing(json!({"app": "x"}));
        thing["metadata"]["name"] = json!(name);
        harness.server.apply(thing).unwrap();
    }
    pass().await;
    let refused = Reply::status(422, "Invalid", "refused by a webhook");
    faults.add(Rule::new(Action::Reply(refused)).mutating().path_contains("/things/p"));

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(finalizers(&harness), json!([OURS]));
    let other = harness.server.get(WIDGET.0, WIDGET.1, "", "q").unwrap();
    assert_eq!(other["metadata"]["finalizers"], Value::Null);
    faults.clear();
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(finalizers(&harness), Value::Null, "the release is tried again");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_whose_version_is_no_longer_served_are_freed_at_another_one() {
    let (harness, _) = harness(teardown).await;
    let things = || CrdBuilder::new("example.com", "Thing").cluster_scoped();
    harness.server.install(&things().version("v1").version("v2").build()).unwrap();
    manage_parent(&harness, finalizing()).await;
    assert_eq!(finalizers(&harness), json!([OURS]));

    harness.server.install(&things().unserved_version("v1").version("v2").build()).unwrap();
    pass().await;
    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    sleep(Duration::from_secs(60)).await;

    let parent = harness.server.get("example.com/v2", "Thing", "", "p").unwrap();
    assert_eq!(parent["metadata"]["finalizers"], Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_keep_their_finalizer_if_only_the_declared_version_changes() {
    let (harness, _) = harness(teardown).await;
    let things = || CrdBuilder::new("example.com", "Thing").cluster_scoped();
    harness.server.install(&things().version("v1").version("v2").build()).unwrap();
    manage_parent(&harness, finalizing()).await;
    let mut spec = finalizing();
    spec["parentResource"]["apiVersion"] = json!("example.com/v2");

    harness.declare("a", spec);
    harness.running("a", 2).await;
    sleep(Duration::from_secs(60)).await;

    assert_eq!(finalizers(&harness), json!([OURS]));
    assert!(events(&harness, "FinalizerRemoved").is_empty(), "the controller finalizes it still");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn type_whose_parents_cannot_be_freed_keeps_no_other_type_from_being_freed() {
    let (harness, faults) = faulty().await;
    let others = CrdBuilder::new("example.com", "Other").cluster_scoped();
    harness.server.install(&others.build()).unwrap();
    manage_parent(&harness, finalizing()).await;
    let refused = Reply::status(403, "Forbidden", "things may not be listed");
    faults.add(Rule::new(Action::Reply(refused)).verb(Verb::List).path_contains("/things"));
    let mut spec = finalizing();
    spec["parentResource"]["resource"] = json!("others");
    harness.declare("a", spec);
    harness.running("a", 2).await;
    let mut other = thing(json!({"app": "x"}));
    other["kind"] = json!("Other");
    harness.server.apply(other).unwrap();
    pass().await;
    let of_other = || {
        let other = harness.server.get("example.com/v1", "Other", "", "p").unwrap();
        other["metadata"]["finalizers"].clone()
    };
    assert_eq!(of_other(), json!([OURS]));

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(finalizers(&harness), json!([OURS]));
    assert_eq!(of_other(), Value::Null);
    faults.clear();
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(finalizers(&harness), Value::Null, "the release is tried again");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_of_a_controller_that_was_paused_at_the_start_are_freed() {
    let (harness, _) = harness(teardown).await;
    let mut held = thing(json!({"app": "x"}));
    held["metadata"]["finalizers"] = json!([OURS]);
    harness.server.apply(held).unwrap();
    let paused = json!({
        "apiVersion": CONTROLLER.0, "kind": CONTROLLER.1, "spec": finalizing(),
        "metadata": {"name": "a", "annotations": {PAUSED: "true"}},
    });
    harness.server.apply(paused).unwrap();
    pass().await;
    assert_eq!(finalizers(&harness), json!([OURS]), "nothing is freed while the object exists");

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_of_a_controller_that_was_rejected_at_the_start_are_freed() {
    let (harness, _) = harness(teardown).await;
    let mut held = thing(json!({"app": "x"}));
    held["metadata"]["finalizers"] = json!([OURS]);
    harness.server.apply(held).unwrap();
    let mut spec = finalizing();
    spec["childResources"][0]["updateStrategy"] = json!({"method": "InPlace"});
    let mut other = spec["childResources"][0].clone();
    other["updateStrategy"] = json!({"method": "Recreate"});
    spec["childResources"].as_array_mut().unwrap().push(other);
    let rejected = json!({
        "apiVersion": CONTROLLER.0, "kind": CONTROLLER.1, "spec": spec, "metadata": {"name": "a"},
    });
    harness.server.apply(rejected).unwrap();
    pass().await;
    let found = harness.server.get(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    assert_eq!(found["status"]["state"], "Invalid", "{found}");
    assert_eq!(finalizers(&harness), json!([OURS]), "nothing is freed while the object exists");

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    assert_eq!(events(&harness, "FinalizerRemoved"), ["p"]);
    harness.end().await;
}
