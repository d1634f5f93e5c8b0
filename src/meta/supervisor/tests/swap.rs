//! Edits that are executed in the running epoch.

mod hooks;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    responding_hook::{Calls, harness, pass},
    *,
};
use crate::testing::Verb;

fn thing(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": name, "labels": {"app": name}},
    })
}

/// Gets and lists. Watches are compared by their number.
fn reads(harness: &Harness) -> Vec<String> {
    let requests = harness.server.requests();
    let reads =
        requests.iter().filter(|request| matches!(request.info.verb, Verb::Get | Verb::List));
    reads.map(|request| format!("{:?} {}", request.info.verb, request.resource())).collect()
}

#[tokio::test(start_paused = true)]
async fn edit_reads_no_object_that_stays_in_the_running_epoch_and_in_a_new_one() {
    let (harness, calls) = harness(|_, request| {
        let name = &request["parent"]["metadata"]["name"];
        json!({"children": [{
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"}, "data": {"a": "b"},
        }]})
    })
    .await;
    let gadgets = CrdBuilder::new("example.com", "Gadget").cluster_scoped();
    harness.server.install(&gadgets.build()).unwrap();
    for name in ["p", "q"] {
        harness.server.apply(thing(name)).unwrap();
    }
    let child = |resource: &str| json!({"apiVersion": "v1", "resource": resource});
    let mut spec = good();
    spec["childResources"] = json!([child("configmaps")]);
    harness.declare("a", spec.clone());
    harness.running("a", 1).await;
    pass().await;
    assert_eq!(harness.server.list("v1", "ConfigMap").unwrap().len(), 2);
    take(&calls, HookKind::Sync);
    harness.server.forget_requests();

    spec["hooks"]["sync"]["webhook"]["url"] = json!("http://other/");
    harness.declare("a", spec.clone());
    pass().await;
    assert_eq!(take(&calls, HookKind::Sync), ["p", "q"]);
    assert_eq!(harness.epoch("a"), Some(1));
    assert_eq!(reads(&harness), [""; 0]);

    spec["childResources"] = json!([child("configmaps"), child("secrets")]);
    harness.declare("a", spec.clone());
    harness.running("a", 2).await;
    pass().await;
    assert_eq!(take(&calls, HookKind::Sync), ["p", "q"]);
    assert_eq!(reads(&harness), ["List secrets"]);

    harness.server.forget_requests();
    spec["parentResource"]["resource"] = json!("gadgets");
    harness.declare("a", spec);
    harness.running("a", 3).await;
    pass().await;
    assert_eq!(reads(&harness), ["List gadgets.example.com"]);
    harness.end().await;
}

/// Removes the recorded calls. Returns the parents of those of one hook, each once.
fn take(calls: &Calls, kind: HookKind) -> Vec<String> {
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    let of_kind = calls.iter().filter(|(it, _)| *it == kind);
    let names = of_kind.map(|(_, request)| request["parent"]["metadata"]["name"].as_str().unwrap());
    let names: std::collections::BTreeSet<_> = names.map(str::to_owned).collect();
    names.into_iter().collect()
}

async fn with_things(names: &[&str]) -> (Harness, Calls) {
    let (harness, calls) = harness(|kind, _| match kind {
        HookKind::Customize => json!({"relatedResources": [
            {"apiVersion": "v1", "resource": "configmaps", "labelSelector": {}},
        ]}),
        HookKind::Sync | HookKind::Finalize => json!({"children": [], "finalized": true}),
    })
    .await;
    for name in names {
        harness.server.apply(thing(name)).unwrap();
    }
    (harness, calls)
}

#[tokio::test(start_paused = true)]
async fn selector_is_swapped_and_only_the_parents_that_it_selects_are_synced() {
    let (harness, calls) = with_things(&["p", "q"]).await;
    let select = |name: &str| {
        let mut spec = good();
        spec["parentResource"]["labelSelector"] = json!({"matchLabels": {"app": name}});
        spec
    };
    harness.declare("a", select("p"));
    harness.running("a", 1).await;
    pass().await;
    assert_eq!(take(&calls, HookKind::Sync), ["p"]);
    harness.server.forget_requests();

    harness.declare("a", select("q"));
    pass().await;
    harness
        .server
        .merge(&json!({
            "apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {"name": "p", "labels": {"app": "p", "more": "yes"}},
        }))
        .unwrap();
    pass().await;

    assert_eq!(take(&calls, HookKind::Sync), ["q"]);
    assert_eq!(harness.epoch("a"), Some(1));
    assert_eq!(reads(&harness), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn resync_period_is_swapped_without_a_sync() {
    let (harness, calls) = with_things(&["p", "q"]).await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    pass().await;
    take(&calls, HookKind::Sync);
    let mut spec = good();
    spec["resyncPeriodSeconds"] = json!(100);

    harness.declare("a", spec);
    run_until_idle().await;
    assert_eq!(take(&calls, HookKind::Sync), [""; 0]);
    sleep(Duration::from_secs(100)).await;

    assert_eq!(take(&calls, HookKind::Sync), ["p", "q"]);
    harness.declare("a", good());
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(take(&calls, HookKind::Sync), [""; 0], "the default period is a day");
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failing_parent_is_retried_by_the_resync_period_of_the_current_definition() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (harness, calls) = harness(|_, _| json!("not an object")).await;
    harness.server.apply(thing("p")).unwrap();
    for (period, expected) in [(60, 60..=61), (86_400, 3..=5), (30, 120..=121)] {
        let mut spec = good();
        spec["resyncPeriodSeconds"] = json!(period);

        harness.declare("a", spec);
        // The back-off begins anew, and has its full length after half an hour.
        sleep(HOUR).await;
        calls.lock().unwrap().clear();
        sleep(HOUR).await;

        let count = calls.lock().unwrap().len();
        assert!(expected.contains(&count), "{count} calls in an hour, with {period} s");
    }
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn strategy_is_swapped_and_applies_at_once() {
    let (harness, _) = harness(|_, request| {
        let name = request["parent"]["metadata"]["name"].clone();
        json!({"children": [{
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
            "data": {"size": request["parent"]["spec"]["size"].to_string()},
        }]})
    })
    .await;
    let sized = |size: u32| {
        let mut thing = thing("p");
        thing["spec"] = json!({ "size": size });
        thing
    };
    let child = || {
        let child = harness.server.get("v1", "ConfigMap", "default", "p").unwrap();
        child["data"]["size"].as_str().unwrap().to_owned()
    };
    let with = |method: &str| {
        let mut spec = good();
        spec["childResources"] = json!([{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": method},
        }]);
        spec
    };
    harness.server.apply(sized(1)).unwrap();
    harness.declare("a", with("OnDelete"));
    harness.running("a", 1).await;
    pass().await;
    harness.server.merge(&sized(2)).unwrap();
    pass().await;
    assert_eq!(child(), "1");
    harness.server.forget_requests();

    harness.declare("a", with("InPlace"));
    pass().await;

    assert_eq!(child(), "2");
    assert_eq!(reads(&harness), [""; 0]);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_edit_keeps_the_last_definition_that_was_swapped_in() {
    let (harness, calls) = with_things(&["p"]).await;
    let mut selecting = good();
    selecting["parentResource"]["labelSelector"] = json!({"matchLabels": {"app": "q"}});
    harness.declare("a", good());
    harness.running("a", 1).await;
    pass().await;
    harness.declare("a", selecting);
    pass().await;
    take(&calls, HookKind::Sync);

    harness.declare("a", rejected());
    pass().await;
    harness.server.apply(thing("r")).unwrap();
    harness.server.apply(thing("q")).unwrap();
    pass().await;

    assert_eq!(take(&calls, HookKind::Sync), ["q"]);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn swapped_definition_is_that_of_the_next_epoch_too() {
    let (harness, calls) = with_things(&["p"]).await;
    let mut selecting = good();
    selecting["parentResource"]["labelSelector"] = json!({"matchLabels": {"app": "q"}});
    harness.declare("a", good());
    harness.running("a", 1).await;
    pass().await;
    harness.declare("a", selecting);
    pass().await;

    harness.server.uninstall("things.example.com").unwrap();
    harness.until(&runnable("a"), |status| status.state == ControllerState::Waiting).await;
    let things = CrdBuilder::new("example.com", "Thing").cluster_scoped();
    harness.server.install(&things.build()).unwrap();
    harness.running("a", 2).await;
    take(&calls, HookKind::Sync);
    for name in ["p", "q"] {
        harness.server.apply(thing(name)).unwrap();
    }
    pass().await;

    assert_eq!(take(&calls, HookKind::Sync), ["q"]);
    harness.end().await;
}

/// Declares the controller `a` with these annotations.
fn declare_with(harness: &Harness, annotations: &Value) {
    let mut spec = good();
    spec["childResources"] = json!([
        {"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"}},
    ]);
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
        "metadata": {"name": "a", "annotations": annotations}, "spec": spec,
    });
    harness.server.apply(object).unwrap();
}

/// Returns the number of writes of ConfigMaps since the requests were forgotten; forgets them.
fn child_writes(harness: &Harness) -> usize {
    let requests = harness.server.requests();
    let is_write = |verb| Verb::MUTATING.contains(&verb);
    let count = requests
        .iter()
        .filter(|it| it.info.resource == "configmaps" && is_write(it.info.verb))
        .filter(|it| !it.info.query.contains("dryRun"))
        .count();
    harness.server.forget_requests();
    count
}

#[tokio::test(start_paused = true)]
async fn apply_strategy_is_swapped_and_fields_of_each_child_are_transferred() {
    let value = Arc::new(AtomicUsize::new(0));
    let wanted = Arc::clone(&value);
    let (harness, _) = harness(move |_, request| {
        let name = &request["parent"]["metadata"]["name"];
        let value = wanted.load(Ordering::SeqCst).to_string();
        json!({"children": [{
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"}, "data": {"value": value},
        }]})
    })
    .await;
    let names = ["p", "q"];
    for name in names {
        harness.server.apply(thing(name)).unwrap();
    }
    let children =
        || names.map(|name| harness.server.get("v1", "ConfigMap", "default", name).unwrap());
    let strategy = crate::meta::definition::apply_strategy::APPLY_STRATEGY;
    let manager = crate::meta::definition::apply_strategy::APPLY_FIELD_MANAGER;
    declare_with(&harness, &json!({}));
    harness.running("a", 1).await;
    pass().await;
    let uids = children().map(|child| child["metadata"]["uid"].clone());
    child_writes(&harness);

    for (annotations, is_annotated, applied_by) in [
        (json!({strategy: "server-side-apply"}), false, Some("metacontroller")),
        (json!({strategy: "server-side-apply", manager: "team b"}), false, Some("team b")),
        (json!({strategy: "dynamic-apply", manager: "team b"}), true, None),
        (json!({strategy: "server-side-apply", manager: "team b"}), false, Some("team b")),
    ] {
        declare_with(&harness, &annotations);
        sleep(Duration::from_secs(60)).await;

        assert_eq!(harness.epoch("a"), Some(1), "{annotations}");
        let writes = child_writes(&harness);
        assert!((2..=4).contains(&writes), "{writes} writes of two children: {annotations}");
        for child in children() {
            let metadata = &child["metadata"];
            let remembered =
                metadata["annotations"].get(crate::meta::children::last_applied::LAST_APPLIED);
            assert_eq!(remembered.is_some(), is_annotated, "{child:#}");
            let entries = metadata["managedFields"].as_array().unwrap();
            let is_by = |manager: &str| {
                let mut applies = entries.iter().filter(|entry| entry["operation"] == "Apply");
                applies.any(|entry| entry["manager"] == manager)
            };
            assert!(applied_by.is_none_or(is_by), "{child:#}");
        }
        value.fetch_add(1, Ordering::SeqCst);
        let touch = async |number: usize| {
            for name in names {
                let changed = json!({
                    "apiVersion": "example.com/v1", "kind": "Thing",
                    "metadata": {"name": name}, "spec": {"x": number},
                });
                harness.server.merge(&changed).unwrap();
            }
            sleep(Duration::from_secs(60)).await;
            child_writes(&harness)
        };
        let now = value.load(Ordering::SeqCst);
        // An apply is forced after a conflict with the former manager.
        assert!((2..=4).contains(&touch(now).await), "{annotations}");
        let text = json!(now.to_string());
        assert!(children().iter().all(|child| child["data"]["value"] == text));
        assert_eq!(touch(now + 1000).await, 0, "as desired: {annotations}");
    }
    assert_eq!(children().map(|child| child["metadata"]["uid"].clone()), uids);
    harness.end().await;
}

/// Declares edits one after the other. Each is executed in the running epoch, and nothing is listed
/// or watched again.
#[tokio::test(start_paused = true)]
async fn edit_of_anything_but_a_type_lists_nothing_again() {
    let (harness, calls) = with_things(&["p", "q"]).await;
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("a", spec.clone());
    harness.running("a", 1).await;
    pass().await;
    let watches = harness.server.open_watches();
    harness.server.forget_requests();
    let trusted = rcgen::generate_simple_self_signed(["hooks".to_owned()]).unwrap().cert.pem();
    let method = |method: &str| json!({ "method": method });
    let hook = json!({"webhook": {"url": "http://scripted/"}});

    for (pointer, value) in [
        ("/hooks/sync/webhook/timeout", json!("60s")),
        ("/hooks/sync/webhook/etag", json!({"enabled": true})),
        ("/hooks/sync/webhook/caBundle", json!({ "inline": trusted })),
        ("/hooks/sync/webhook/url", json!("https://other/")),
        ("/hooks/sync/version", json!("v2")),
        ("/hooks/finalize", hook),
        ("/hooks/finalize", Value::Null),
        ("/resyncPeriodSeconds", json!(100)),
        ("/generateSelector", json!(false)),
        ("/parentResource/labelSelector", json!({"matchLabels": {"app": "p"}})),
        ("/parentResource/ignoreStatusChanges", json!(true)),
        ("/childResources/0/ignoreStatusChanges", json!(true)),
        ("/childResources/0/updateStrategy", method("Recreate")),
        ("/childResources/0/updateStrategy", method("InPlace")),
    ] {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let object = spec.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            object.remove(key)
        } else {
            object.insert(key.to_owned(), value)
        };
        harness.declare("a", spec.clone());
        pass().await;

        let status = harness.manager.status_of(runnable("a")).unwrap();
        assert_eq!((status.epoch, status.pending.as_deref()), (1, None), "{pointer}");
        let requests = harness.server.requests();
        let reads = requests.iter().filter(|it| it.info.verb == Verb::List);
        let read: Vec<_> = reads.map(|request| request.resource()).collect();
        assert_eq!(read, [""; 0], "{pointer}");
        assert_eq!(harness.server.open_watches(), watches, "{pointer}");
    }
    take(&calls, HookKind::Sync);
    harness.end().await;
}
