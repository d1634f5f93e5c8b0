//! Parents with a finalizer: the finalize hook, and the ways in which a parent is freed.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    meta::{Lenience, resource::send},
    testing::{
        Action, Faults, Reply, Rule, Verb,
        simulated::{AccessRule, Delays},
    },
};

const OURS: &str = "metacontroller.io/compositecontroller-a";
const WIDGET: (&str, &str) = ("example.com/v1", "Thing");
const CONTROLLER: (&str, &str) = ("metacontroller.k8s.io/v1alpha1", "CompositeController");

type Answer = Arc<dyn Fn(HookKind, &Value) -> Value + Send + Sync>;

/// Hook that records its requests and answers by a function.
pub(super) struct Answering {
    kind: HookKind,
    answer: Answer,
    calls: Calls,
}

pub(super) type Calls = Arc<Mutex<Vec<(HookKind, Value)>>>;

impl Hook for Answering {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let answer = (self.answer)(self.kind, &request);
        self.calls.lock().unwrap().push((self.kind, request));
        async move { Ok(Bytes::from(answer.to_string())) }.boxed()
    }
}

pub(super) async fn harness(
    answer: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    harness_with(Lenience::default(), answer).await
}

/// Harness whose hooks give this answer, with this behaviour of Metacontroller.
pub(super) async fn harness_with(
    lenience: Lenience,
    answer: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    let server = SimulatedServer::new();
    let client = server.client();
    answering(server, client, lenience, answer).await
}

/// Harness that reaches a server through this client.
async fn answering(
    server: SimulatedServer,
    client: kube::Client,
    lenience: Lenience,
    answer: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    let answer: Answer = Arc::new(answer);
    let calls = Calls::default();
    let made = Arc::clone(&calls);
    let factory: HookFactory = Arc::new(move |_, kind| {
        let (answer, calls) = (answer.clone(), Arc::clone(&made));
        Arc::new(Answering { kind, answer, calls })
    });
    let (hooks, resync_period) = (Some(factory), Some(RESYNC));
    let options = MetaOptions { resync_period, hooks, lenience, ..MetaOptions::default() };
    (Harness::over(server, client, options).await, calls)
}

/// Harness with faults between its client and the server.
pub(super) async fn faulty() -> (Harness, Faults) {
    faulty_with(teardown).await
}

/// Harness whose hooks give this answer, with faults between its client and the server.
pub(super) async fn faulty_with(
    answer: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Faults) {
    let (faults, server) = (Faults::default(), SimulatedServer::new());
    let layers = tower::ServiceBuilder::new().layer(faults.layer());
    let client = kube::Client::new(layers.service(server.service("controller")), "default");
    (answering(server, client, Lenience::default(), answer).await.0, faults)
}

/// Specification with both hooks; children are ConfigMaps.
fn finalizing() -> Value {
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

fn thing(labels: Value) -> Value {
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

/// Answer that wants a child until the parent is finalized, which takes until the child is gone.
fn teardown(kind: HookKind, request: &Value) -> Value {
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

fn parent(harness: &Harness) -> Option<Value> {
    harness.server.get(WIDGET.0, WIDGET.1, "", "p").ok()
}

fn has_child(harness: &Harness) -> bool {
    harness.server.get("v1", "ConfigMap", "default", "c").is_ok()
}

fn finalizers(harness: &Harness) -> Value {
    parent(harness).map(|parent| parent["metadata"]["finalizers"].clone()).unwrap_or_default()
}

fn hooks(calls: &Calls) -> Vec<HookKind> {
    let mut kinds: Vec<_> = calls.lock().unwrap().iter().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    kinds
}

fn events(harness: &Harness, reason: &str) -> Vec<String> {
    let events = harness.server.list("v1", "Event").unwrap();
    let events = events.iter().filter(|event| event["reason"] == reason);
    events.map(|event| event["involvedObject"]["name"].as_str().unwrap().to_owned()).collect()
}

pub(super) async fn pass() {
    sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn parent_is_deleted_when_its_finalize_hook_says_so() {
    let (harness, calls) = harness(teardown).await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_is_no_longer_selected_is_finalized_and_stays() {
    let (harness, calls) = harness(teardown).await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;

    harness.server.merge(&thing(json!({"app": "y"}))).unwrap();
    pass().await;

    assert!(!has_child(&harness));
    assert_eq!(finalizers(&harness), Value::Null);
    assert_eq!(parent(&harness).unwrap()["status"]["phase"], "down");
    let asked = calls.lock().unwrap().len();
    harness.server.merge(&thing(json!({"app": "z"}))).unwrap();
    pass().await;
    assert_eq!(calls.lock().unwrap().len(), asked, "it is of no concern");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalize_only_controller_acts_when_its_parent_is_deleted() {
    let (harness, calls) = harness(teardown).await;
    let mut spec = finalizing();
    spec["hooks"].as_object_mut().unwrap().remove("sync");
    harness.declare("a", spec);
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
    let hour = Duration::from_secs(3600);
    harness.server.set_delays(Delays { garbage_collection: hour, ..Delays::default() });

    let orphaning = json!({"propagationPolicy": "Orphan"});
    let path = "/apis/example.com/v1/things/p".to_owned();
    let client = harness.server.client();
    send::<Value>(&client, http::Method::DELETE, path, "application/json", Some(&orphaning))
        .await
        .unwrap();
    pass().await;
    assert_eq!(finalizers(&harness), json!([OURS, "orphan"]));

    assert!(has_child(&harness));
    let asked = calls.lock().unwrap().len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(calls.lock().unwrap().len(), asked + 1, "resyncAfterSeconds counts");
    harness.end().await;
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
async fn parents_are_freed_when_the_finalize_hook_is_dropped() {
    let (harness, calls) = harness(teardown).await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
async fn parents_of_an_earlier_type_are_freed() {
    let (harness, _) = harness(teardown).await;
    let others = CrdBuilder::new("example.com", "Other").cluster_scoped();
    harness.server.install(&others.build()).unwrap();
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
    let mut spec = finalizing();
    spec["parentResource"]["resource"] = json!("others");

    harness.declare("a", spec);
    harness.running("a", 2).await;
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalized_in_the_answer_of_a_sync_removes_no_finalizer() {
    let answers = AtomicUsize::new(0);
    let (harness, calls) = harness(move |kind, _| {
        assert_eq!(kind, HookKind::Sync);
        // Bounded, since paused time does not advance during a loop.
        let finalized = answers.fetch_add(1, Ordering::SeqCst) < 100;
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

/// Harness whose client may not send requests of these verbs for CRDs.
async fn without_crds(verbs: &[&str]) -> Harness {
    let server = SimulatedServer::new();
    let crds = ["customresourcedefinitions.apiextensions.k8s.io"];
    let verbs = verbs.iter().copied();
    server.set_rbac([AccessRule::deny().users(["controller"]).verbs(verbs).resources(crds)]);
    let client = server.client_as("controller");
    answering(server, client, Lenience::default(), teardown).await.0
}

#[tokio::test(start_paused = true)]
async fn crd_that_may_not_be_read_frees_no_parents_when_it_is_deleted() {
    let harness = without_crds(&[]).await;
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;

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
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;

    harness.server.remove(CONTROLLER.0, CONTROLLER.1, "", "a").unwrap();
    sleep(MISSING_GRACE - Duration::from_secs(1)).await;
    assert_eq!(harness.epoch("a"), None, "it stops at once");
    assert_eq!(finalizers(&harness), json!([OURS]), "its CRD may be in deletion");
    pass().await;

    assert_eq!(finalizers(&harness), Value::Null);
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
    harness.declare("a", spec);
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;

    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(hooks(&calls), [HookKind::Sync], "its children are unknown");
    assert_eq!(finalizers(&harness), json!([OURS]));
    assert_eq!(events(&harness, "SyncDelayed"), ["p"]);
    harness.server.set_rbac([]);
    sleep(Duration::from_secs(300)).await;

    assert_eq!(parent(&harness), None, "the other type is proven absent");
    assert_eq!(hooks(&calls), [HookKind::Sync, HookKind::Finalize]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_written_although_parents_of_an_earlier_type_cannot_be_freed() {
    let (harness, faults) = faulty().await;
    let others = CrdBuilder::new("example.com", "Other").cluster_scoped();
    harness.server.install(&others.build()).unwrap();
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
    harness.declare("a", finalizing());
    harness.running("a", 1).await;
    harness.server.apply(thing(json!({"app": "x"}))).unwrap();
    pass().await;
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
