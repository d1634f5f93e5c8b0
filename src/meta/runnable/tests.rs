//! Tests of the runnable.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use kube::Client;
use serde_json::{Value, json};

use super::*;
use crate::{
    controller::{ClusterOptions, Request},
    informer::{Object, ObjectKey, Selector},
    kind::TypeRef,
    meta::{
        api::controller_kind::ControllerKind,
        children::fixtures::parent,
        hooks::{
            Hook, budget::ResponseBudget, counted::CountedHook, error::HookError,
            metrics::HookMetrics, rule::HookKind,
        },
        parent::health::Failure,
        recorder::EventLimit,
    },
};

/// Hook whose release takes time, and is counted.
#[derive(Default)]
struct Slow {
    released: AtomicUsize,
}

impl Hook for Slow {
    fn call(&self, _request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        Box::pin(std::future::pending())
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.released.fetch_add(1, Ordering::SeqCst);
        })
    }
}

fn runnable(hook: Arc<dyn Hook>) -> DeclaredRunnable {
    let object = json!({
        "metadata": {"name": "a"},
        "spec": {
            "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
            "hooks": {"sync": {"webhook": {"url": "http://scripted/"}}},
        },
    });
    let definition = Arc::new(
        Definition::parse(ControllerKind::Composite, object.to_string().as_bytes()).unwrap(),
    );
    let service = tower::service_fn(|_request: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
    });
    let (cluster, _) = Cluster::new(Client::new(service, "default"), ClusterOptions::default());
    let recorder = EventRecorder::new(cluster.unfenced_client().clone(), EventLimit::default());
    let kind = HookKind::Sync;
    let series =
        HookMetrics::default().series(kind, "a", "CompositeController", "http://scripted/");
    let rule = definition.sync.clone().unwrap();
    let budget = ResponseBudget::default().controller("a");
    let hooks = Hooks::new(vec![CountedHook { kind, rule, hook, series, endpoint: None }], budget);
    DeclaredRunnable::new("a".into(), definition, hooks, &cluster, recorder, &Arc::default(), || {})
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_after_its_grace_leaves_nothing_behind() {
    let hook = Arc::new(Slow::default());
    let runnable = runnable(hook.clone());
    let key = Request::namespaced("ns", "a");
    let epoch = Epoch::new("a", 1, Duration::ZERO);
    let run = runnable.start(epoch.clone());
    runnable.parents.states.begin(&key, &"u".into());
    let failure = Failure { hook: None, reason: "HookTimeout", message: String::new() };
    runnable.parents.hook.failed(&key, failure);

    drop(run);
    assert!(runnable.parents.states.keys().is_empty());
    assert!(runnable.health().borrow().failing.is_empty());
    epoch.drain().await;
    epoch.wait_ended().await;

    assert_eq!(hook.released.load(Ordering::SeqCst), 1, "released before the epoch is done");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_by_itself_releases_its_hook_once() {
    let hook = Arc::new(Slow::default());
    let runnable = runnable(hook.clone());
    let epoch = Epoch::new("a", 1, Duration::ZERO);

    epoch.stop(crate::manager::StopReason::Cancelled);
    runnable.start(epoch.clone()).await.unwrap();
    epoch.drain().await;
    epoch.wait_ended().await;

    assert_eq!(hook.released.load(Ordering::SeqCst), 1);
}

/// Hook whose release never resolves.
struct NeverReleases;

impl Hook for NeverReleases {
    fn call(&self, _request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        Box::pin(std::future::pending())
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_whose_release_never_ends_delays_done_until_the_grace_is_over_and_is_reported() {
    let grace = Duration::from_secs(5);
    for dropped in [false, true] {
        let (epoch, begin) = (Epoch::new("a", 1, grace), tokio::time::Instant::now());
        epoch.stop(crate::manager::StopReason::Cancelled);
        let run = runnable(Arc::new(NeverReleases)).start(epoch.clone());

        let ended = async {
            let end = if dropped {
                drop(run);
                None
            } else {
                Some(run.await)
            };
            epoch.drain().await;
            epoch.wait_ended().await;
            end
        };
        let end = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it is done");

        let took = begin.elapsed();
        assert!(took >= grace && took < grace + Duration::from_secs(1), "{took:?}");
        if let Some(end) = end {
            let error = end.expect_err("it is reported").to_string();
            assert!(error.contains("the hook"), "{error}");
        }
    }
}

/// Parent with additional metadata.
fn version_of_a_parent(metadata: Value) -> Object {
    let mut object = json!({
        "metadata": {
            "namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1", "generation": 1,
            "labels": { "app": "x" },
        },
    });
    for (field, value) in metadata.as_object().unwrap() {
        object["metadata"][field] = value.clone();
    }
    Object::from_json(object.to_string(), &parent(Some("ns")).served).unwrap()
}

fn change(old: Option<Object>, new: Option<Object>) -> Delta {
    let key = ObjectKey::namespaced("ns", "p");
    Delta { key, old, new, initial: false, interests: Vec::new() }
}

#[test]
fn orphan_that_is_deleted_or_being_deleted_concerns_no_parent() {
    let check = |old: Option<Value>, new: Option<Value>, expected: bool| {
        let [old, new] = [old, new].map(|it| it.map(version_of_a_parent));
        let delta = change(old, new);
        assert_eq!(is_claimable(&delta), expected, "{delta:?}");
    };
    let orphan = || Some(json!({}));
    let deleting = || Some(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
    let owned = || {
        let owner = json!({ "apiVersion": "v1", "kind": "Thing", "name": "o", "uid": "o" });
        Some(json!({ "ownerReferences": [owner], "deletionTimestamp": "2026-01-01T00:00:00Z" }))
    };

    check(None, orphan(), true);
    check(orphan(), orphan(), true);
    check(orphan(), None, false);
    check(None, deleting(), false);
    check(deleting(), deleting(), false);
    check(deleting(), None, false);
    check(owned(), None, true);
    check(owned(), orphan(), true);
    check(deleting(), owned(), true);
}

#[test]
fn status_that_one_of_the_selecting_rules_wants_causes_a_sync() {
    let finalizer = Finalizer::of(ControllerKind::Decorator, "things", true);
    let ignoring = ParentRule { ignore_status_changes: true, ..ParentRule::default() };
    let wanting =
        |app: &str| ParentRule { labels: Selector::label("app", app), ..ParentRule::default() };
    let type_ref = || TypeRef::resource("example.com", "v1", "things");
    for finalizers in [json!([]), json!([finalizer.name])] {
        let version =
            |version| json!({ "resourceVersion": version, "finalizers": finalizers.clone() });
        let [old, new] = ["1", "2"].map(|it| Some(version_of_a_parent(version(it))));
        let delta = change(old, new);
        for (rules, expected) in [
            (vec![ignoring.clone()], false),
            (vec![ignoring.clone(), wanting("x")], true),
            (vec![ignoring.clone(), wanting("y")], false),
        ] {
            let parents = ParentType { type_ref: type_ref(), rules };

            assert_eq!(triggers_sync(&delta, &parents, &finalizer), expected, "{parents:?}");
        }
    }
}

#[test]
fn change_of_a_parent_causes_a_sync_unless_only_its_ignored_status_changed() {
    let finalizer = Finalizer::of(ControllerKind::Composite, "things", true);
    let check = |old: Option<Value>, new: Option<Value>, worth: bool, if_ignored: bool| {
        let [old, new] = [old, new].map(|it| it.map(version_of_a_parent));
        let delta = change(old, new);
        let triggers = |ignore_status_changes| {
            let labels = Selector::label("app", "x");
            let rule = ParentRule { labels, ignore_status_changes, ..ParentRule::default() };
            let type_ref = TypeRef::resource("example.com", "v1", "things");
            triggers_sync(&delta, &ParentType { type_ref, rules: vec![rule] }, &finalizer)
        };
        assert_eq!(triggers(false), worth, "{delta:?}");
        assert_eq!(triggers(true), if_ignored, "{delta:?}");
    };
    let as_before = || Some(json!({}));
    let other = || Some(json!({ "labels": { "app": "y" } }));

    check(None, as_before(), true, true);
    check(as_before(), None, true, true);
    check(as_before(), Some(json!({ "resourceVersion": "2" })), true, false);
    // Any change of a type without generations passes, such as of a ConfigMap.
    let ungenerated = |version: &str| Some(json!({ "generation": 0, "resourceVersion": version }));
    check(ungenerated("1"), ungenerated("2"), true, true);
    for change in [
        json!({ "generation": 2 }),
        json!({ "labels": { "app": "x", "more": "y" } }),
        json!({ "annotations": { "a": "b" } }),
        json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
    ] {
        check(as_before(), Some(change), true, true);
    }
    // The last match passes, so that the parent is forgotten; later changes do not.
    check(as_before(), other(), true, true);
    check(other(), as_before(), true, true);
    check(other(), other(), false, false);
    check(None, other(), false, false);
    // A parent with the finalizer passes until it has neither.
    let held = || {
        let ours = [&finalizer.name];
        Some(json!({ "labels": { "app": "y" }, "finalizers": ours }))
    };
    check(None, held(), true, true);
    check(held(), held(), true, false);
    check(held(), other(), true, true);
}
