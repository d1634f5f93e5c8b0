//! Worker slots of syncs: a sync that writes holds none.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::{
    kind::Scope,
    meta::{
        children::fixtures::served,
        rollout::{Revision, RevisionOwner},
    },
    testing::{Action, Faults, Rule},
};

/// Hook that returns one config map for each parent, and records its parents.
struct Recording(Arc<Mutex<BTreeSet<String>>>);

impl Hook for Recording {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let name = request["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        let response = json!({"children": [{
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
        }]});
        self.0.lock().unwrap().insert(name);
        async move { Ok(response.to_string().into()) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn sync_that_writes_delays_no_hook_call_of_another_parent() {
    let (faults, server) = (Faults::default(), SimulatedServer::new());
    let slow = Action::Delay(Duration::from_secs(10));
    faults.add(Rule::new(slow).mutating().path_contains("/configmaps"));
    let layers = tower::ServiceBuilder::new().layer(faults.layer());
    let client = kube::Client::new(layers.service(server.service("controller")), "default");
    let called = Arc::<Mutex<BTreeSet<String>>>::default();
    let recorded = Arc::clone(&called);
    let hooks: HookFactory = Arc::new(move |_, _| Arc::new(Recording(Arc::clone(&recorded))));
    let options = MetaOptions { workers: 1, hooks: Some(hooks), ..MetaOptions::default() };
    let harness = Harness::over(server, client, options).await;
    for name in ["a", "b", "c"] {
        let mut thing = json!({"apiVersion": "example.com/v1", "kind": "Thing"});
        thing["metadata"] = json!({"name": name});
        harness.server.apply(thing).unwrap();
    }
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);

    harness.declare("writing", spec);
    harness.running("writing", 1).await;
    sleep(Duration::from_secs(5)).await;

    assert_eq!(called.lock().unwrap().len(), 3, "while the first child is being created");
    harness.end().await;
}

/// Server that delays writes of a path by ten seconds, and a controller with one worker.
async fn slow(path: &str) -> (Harness, Arc<Mutex<BTreeSet<String>>>) {
    let (faults, server) = (Faults::default(), SimulatedServer::new());
    let slow = Action::Delay(Duration::from_secs(10));
    faults.add(Rule::new(slow).mutating().path_contains(path));
    let layers = tower::ServiceBuilder::new().layer(faults.layer());
    let client = kube::Client::new(layers.service(server.service("controller")), "default");
    let called = Arc::<Mutex<BTreeSet<String>>>::default();
    let recorded = Arc::clone(&called);
    let hooks: HookFactory = Arc::new(move |_, _| Arc::new(Recording(Arc::clone(&recorded))));
    let options = MetaOptions { workers: 1, hooks: Some(hooks), ..MetaOptions::default() };
    (Harness::over(server, client, options).await, called)
}

fn names(called: &Mutex<BTreeSet<String>>) -> Vec<String> {
    called.lock().unwrap().iter().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn parents_that_get_their_finalizer_delay_no_hook_call_of_another_parent() {
    let (harness, called) = slow("/things").await;
    let thing = |name: &str, finalizers: Value| {
        let mut thing = json!({"apiVersion": "example.com/v1", "kind": "Thing"});
        thing["metadata"] = json!({"name": name, "finalizers": finalizers});
        harness.server.apply(thing).unwrap();
    };
    for name in ["a", "b", "c", "d", "e"] {
        thing(name, json!([]));
    }
    thing("z", json!(["metacontroller.io/compositecontroller-writing"]));
    let mut spec = good();
    spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();

    harness.declare("writing", spec);
    harness.running("writing", 1).await;
    sleep(Duration::from_secs(5)).await;

    assert_eq!(names(&called), ["z"], "while the finalizers are being written");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(names(&called).len(), 6);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_that_adopt_and_release_children_delay_no_hook_call_of_another_parent() {
    let (harness, called) = slow("/configmaps").await;
    for (name, orphans) in [("a", 3), ("z", 0)] {
        let thing = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}},
        });
        harness.server.apply(thing).unwrap();
        for number in 0..orphans {
            let orphan = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
                    "name": format!("{name}-{number}"), "namespace": "default",
                    "labels": {"app": name},
                },
            });
            harness.server.apply(orphan).unwrap();
        }
    }
    let mut spec = good();
    spec["generateSelector"] = json!(false);
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);

    harness.declare("writing", spec);
    harness.running("writing", 1).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(names(&called), ["z"], "while orphans are being adopted");
    sleep(Duration::from_secs(6)).await;
    assert_eq!(names(&called), ["a", "z"], "the adoptions overlap");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_adopts_a_revision_delays_no_hook_call_of_another_parent() {
    let (harness, called) = slow("/controllerrevisions").await;
    for name in ["a", "z"] {
        let thing = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}},
        });
        harness.server.apply(thing).unwrap();
    }
    let parent = harness.server.get("example.com/v1", "Thing", "", "a").unwrap();
    let things = served("example.com", "things", "Thing", Scope::Cluster);
    let uid = parent["metadata"]["uid"].as_str().unwrap();
    let owner = RevisionOwner { identity: &things.identity, uid };
    let revision = Revision::new(owner, "default".into(), json!({"spec": {}}));
    let orphan = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "ControllerRevision",
        "metadata": {
            "name": revision.key.name, "namespace": "default", "labels": {
                "app": "a", "metacontroller.k8s.io/apiGroup": "example.com",
                "metacontroller.k8s.io/resource": "things",
            },
        },
        "parentPatch": {"spec": {}},
    });
    harness.server.apply(orphan).unwrap();
    let mut spec = good();
    spec["generateSelector"] = json!(false);
    spec["parentResource"]["revisionHistory"] = json!({"fieldPaths": ["spec.template"]});
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "configmaps",
        "updateStrategy": {"method": "RollingInPlace"},
    }]);

    harness.declare("writing", spec);
    harness.running("writing", 1).await;
    sleep(Duration::from_secs(5)).await;

    assert_eq!(names(&called), ["z"], "while the revision is being adopted");
    sleep(Duration::from_secs(6)).await;
    assert_eq!(names(&called), ["a", "z"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_are_synced_at_once_without_a_limit_of_requests() {
    const PARENTS: usize = 500;
    let called = Arc::<Mutex<BTreeSet<String>>>::default();
    let hooks: HookFactory = Arc::new(move |_, _| Arc::new(Recording(Arc::clone(&called))));
    let harness = Harness::with(hooks, RESYNC).await;
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("many", spec);
    harness.running("many", 1).await;

    for number in 0..PARENTS {
        let thing = json!({
            "apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {"name": format!("p{number}")},
        });
        harness.server.apply(thing).unwrap();
    }
    // 5 requests a second, the default of `--client-go-qps`, would take 100 s for the children.
    sleep(Duration::from_secs(1)).await;

    assert_eq!(harness.server.list("v1", "ConfigMap").unwrap().len(), PARENTS);
    harness.end().await;
}

/// Hook that takes a second, and records its parents and the largest number of concurrent calls.
#[derive(Default)]
struct Counting {
    parents: Mutex<BTreeSet<String>>,
    calls: AtomicUsize,
    most: AtomicUsize,
}

impl Hook for Counting {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let name = request["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        async move {
            let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(calls, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            self.calls.fetch_sub(1, Ordering::Relaxed);
            self.parents.lock().unwrap().insert(name);
            Ok(Bytes::from_static(b"{}"))
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn annotation_sets_the_workers_of_a_controller_and_its_edit_loses_no_parent() {
    let made = Arc::<Mutex<Vec<Arc<Counting>>>>::default();
    let kept = Arc::clone(&made);
    let hooks: HookFactory = Arc::new(move |_, _| {
        let hook = Arc::<Counting>::default();
        kept.lock().unwrap().push(Arc::clone(&hook));
        hook
    });
    let options = MetaOptions { workers: 1, hooks: Some(hooks), ..MetaOptions::default() };
    let server = SimulatedServer::new();
    let client = server.client();
    let harness = Harness::over(server, client, options).await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        let thing = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name},
        });
        harness.server.apply(thing).unwrap();
    }
    let declare = |workers: &str| {
        let object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "a", "annotations": {"pilotlight.dev/workers": workers}},
            "spec": good(),
        });
        harness.server.apply(object).unwrap();
    };

    declare("2");
    harness.running("a", 1).await;
    sleep(Duration::from_millis(1500)).await;
    declare("3");
    run_until_idle().await;
    assert_eq!(harness.epoch("a"), Some(1), "the number of workers needs no new epoch");
    sleep(Duration::from_secs(10)).await;

    let hooks = made.lock().unwrap().clone();
    let most: Vec<_> = hooks.iter().map(|hook| hook.most.load(Ordering::Relaxed)).collect();
    assert_eq!(most, [2, 3]);
    assert_eq!(hooks[1].parents.lock().unwrap().len(), 6);
    declare("many");
    run_until_idle().await;
    assert_eq!(harness.epoch("a"), Some(1), "a rejected edit");
    harness.end().await;
}
