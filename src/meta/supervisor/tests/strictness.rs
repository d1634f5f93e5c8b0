//! Strictness of declared controllers, and bounds that options lift.

use super::{
    finalize::{WIDGET, finalizing},
    responding_hook::{harness, harness_with, pass},
    *,
};
use crate::meta::definition::strictness::Strictness;

fn thing(change: u32) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "p", "managedFields": [{"manager": "m", "operation": "Update"}]},
        "spec": {"change": change},
    })
}

fn child(value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "default"}, "data": {"value": value},
    })
}

fn spec() -> Value {
    let mut spec = good();
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
    }]);
    spec
}

/// Messages of the Events with this reason.
fn messages(harness: &Harness, reason: &str) -> Vec<String> {
    let events = harness.server.list("v1", "Event").unwrap_or_default();
    let events = events.iter().filter(|event| event["reason"] == reason);
    events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

fn value(harness: &Harness) -> Option<Value> {
    let child = harness.server.get("v1", "ConfigMap", "default", "c").ok()?;
    Some(child["data"]["value"].clone())
}

#[tokio::test(start_paused = true)]
async fn last_of_repeated_children_counts_unless_the_process_is_strict() {
    for strict in [false, true] {
        let strictness = Strictness { strict, ..Strictness::default() };
        let twice = |_, _: &Value| json!({"children": [child("first"), child("last")]});
        let (harness, _) = harness_with(strictness, twice).await;
        harness.declare("a", spec());
        harness.server.apply(thing(1)).unwrap();
        pass().await;

        assert_eq!(value(&harness), (!strict).then(|| json!("last")));
        let refused = messages(&harness, "SyncError");
        assert_eq!(refused.iter().any(|text| text.contains("--strict")), strict, "{refused:?}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_child_whose_last_form_is_unusable_stays_as_it_is() {
    let respond = |_, request: &Value| {
        let size = &request["parent"]["spec"]["change"];
        let children = match size.as_u64() {
            Some(1) => json!([child("1")]),
            _ => json!([child("2"), wrong(|it| it["metadata"]["labels"] = json!({"a": 1}))]),
        };
        json!({"children": children})
    };
    let (harness, _) = harness(respond).await;
    harness.declare("a", spec());
    harness.server.apply(thing(1)).unwrap();
    pass().await;
    assert_eq!(value(&harness), Some(json!("1")));

    harness.server.apply(thing(2)).unwrap();
    pass().await;

    assert_eq!(value(&harness), Some(json!("1")), "an earlier form does not count");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn unusable_child_of_another_type_stops_no_child_of_its_name() {
    let others = [
        wrong(|it| it["apiVersion"] = json!("other.example.com/v1")),
        wrong(|it| it["metadata"]["namespace"] = Value::Null),
    ];
    for other in others {
        let respond = move |_, request: &Value| {
            let size = &request["parent"]["spec"]["change"];
            json!({"children": [child(&size.to_string()), other]})
        };
        let (harness, _) = harness(respond).await;
        harness.declare("a", spec());
        for size in 1..=2 {
            harness.server.apply(thing(size)).unwrap();
            pass().await;

            assert_eq!(value(&harness), Some(json!(size.to_string())));
        }
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_child_that_differs_is_reported_once() {
    let twice = |_, request: &Value| {
        let size = request["parent"]["spec"]["change"].to_string();
        json!({"children": [child(&size), child("last"), child("last")]})
    };
    let (harness, calls) = harness(twice).await;
    harness.declare("a", spec());
    for change in 1..4 {
        harness.server.apply(thing(change)).unwrap();
        pass().await;
    }

    assert!(calls.lock().unwrap().len() > 3);
    let reported = harness.server.list("v1", "Event").unwrap();
    let reported: Vec<_> =
        reported.iter().filter(|event| event["reason"] == "RepeatedChild").collect();
    let [event] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!((&event["type"], &event["count"]), (&json!("Warning"), &json!(1)));
    assert!(event["message"].as_str().unwrap().starts_with("ConfigMap default/c is several times"));
    assert_eq!(messages(&harness, "SyncError"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn equal_children_that_are_repeated_are_not_reported() {
    let twice = |_, _: &Value| json!({"children": [child("1"), child("1")]});
    let (harness, _) = harness(twice).await;
    harness.declare("a", spec());
    harness.server.apply(thing(1)).unwrap();
    pass().await;

    assert_eq!(value(&harness), Some(json!("1")));
    assert_eq!(messages(&harness, "RepeatedChild"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn response_null_has_no_children_unless_the_process_is_strict() {
    for strict in [false, true] {
        let strictness = Strictness { strict, ..Strictness::default() };
        let null_later = |_, request: &Value| match request["parent"]["spec"]["change"].as_u64() {
            Some(1) => json!({"children": [child("1")]}),
            _ => Value::Null,
        };
        let (harness, _) = harness_with(strictness, null_later).await;
        harness.declare("a", spec());
        harness.server.apply(thing(1)).unwrap();
        pass().await;
        harness.server.apply(thing(2)).unwrap();
        pass().await;

        assert_eq!(value(&harness), strict.then(|| json!("1")));
        harness.end().await;
    }
}

/// Child that is wrong by this change.
fn wrong(change: impl FnOnce(&mut Value)) -> Value {
    let mut wrong = child("wrong");
    change(&mut wrong);
    wrong
}

#[tokio::test(start_paused = true)]
async fn unusable_child_is_neither_changed_nor_deleted_and_delays_no_other() {
    let unusable = [
        Value::Null,
        wrong(|it| it["metadata"]["labels"] = json!({"a": 1})),
        wrong(|it| it["apiVersion"] = json!("v2")),
        wrong(|it| it["kind"] = Value::Null),
        wrong(|it| it["metadata"]["ownerReferences"] = json!(7)),
        wrong(|it| it["data"]["value"] = json!("x".repeat(4 << 20))),
    ];
    for unusable in unusable {
        let is_named = unusable.is_object();
        let respond = move |_, request: &Value| {
            let size = &request["parent"]["spec"]["change"];
            let named = |name: &str| {
                let mut named = child(&size.to_string());
                named["metadata"]["name"] = json!(name);
                named
            };
            let children = match size.as_u64() {
                Some(1) => json!([child("1"), named("gone")]),
                _ => json!([named("other"), unusable]),
            };
            json!({"children": children, "status": {"size": size}})
        };
        let (harness, _) = harness(respond).await;
        harness.declare("a", spec());
        harness.server.apply(thing(1)).unwrap();
        pass().await;
        assert_eq!(value(&harness), Some(json!("1")));
        harness.server.apply(thing(2)).unwrap();
        pass().await;

        let data = |name: &str| {
            let found = harness.server.get("v1", "ConfigMap", "default", name).ok()?;
            Some(found["data"]["value"].clone())
        };
        assert_eq!(data("c"), Some(json!("1")));
        assert_eq!(data("other"), Some(json!("2")), "the others are written");
        // A child that is not named is deleted, unless the unusable one may be any.
        assert_eq!(data("gone"), (!is_named).then(|| json!("1")));
        let parent = harness.server.get(WIDGET.0, WIDGET.1, "", "p").unwrap();
        assert_eq!(parent["status"]["size"], 2);
        let reported = messages(&harness, "SyncError");
        let [text] = &reported[..] else { panic!("{reported:?}") };
        assert!(text.contains("hook response is partly unusable: children[1]"), "{text}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn status_that_cannot_be_stored_delays_no_child_and_is_reported() {
    let respond =
        |_, _: &Value| json!({"children": [child("1")], "status": {"long": "x".repeat(2 << 20)}});
    let (harness, _) = harness(respond).await;
    harness.declare("a", spec());
    harness.server.apply(thing(1)).unwrap();
    pass().await;

    assert_eq!(value(&harness), Some(json!("1")));
    let reported = messages(&harness, "SyncError");
    assert!(reported[0].contains("status has "), "{reported:?}");
    let parent = harness.server.get(WIDGET.0, WIDGET.1, "", "p").unwrap();
    assert_eq!(parent.get("status"), None);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalization_ends_though_a_child_is_listed_twice_and_another_is_unusable() {
    let calls = std::sync::atomic::AtomicU32::new(0);
    let respond = move |kind, request: &Value| {
        let mut namespace = child("1");
        namespace["kind"] = json!("Namespace");
        if kind == HookKind::Sync {
            return json!({"children": [child("1"), namespace]});
        }
        let observed = request["children"]["ConfigMap.v1"].as_object().unwrap().values().next();
        let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match observed {
            Some(observed) if call < 4 => json!({"children": [child("1"), observed, namespace]}),
            Some(_) => json!({"children": [namespace]}),
            None => json!({"children": [namespace], "finalized": true}),
        }
    };
    let (harness, calls) = harness(respond).await;
    harness.declare("a", finalizing());
    harness.server.apply(super::finalize::thing(json!({"app": "x"}))).unwrap();
    pass().await;
    assert_eq!(value(&harness), Some(json!("1")));

    harness.server.remove(WIDGET.0, WIDGET.1, "", "p").unwrap();
    // Each failed sync before has doubled the back-off.
    sleep(Duration::from_secs(600)).await;

    let finalizes = calls.lock().unwrap().iter().filter(|it| it.0 == HookKind::Finalize).count();
    assert!(finalizes > 4, "{finalizes}");
    assert_eq!(value(&harness), None);
    assert!(harness.server.get(WIDGET.0, WIDGET.1, "", "p").is_err());
    let reported = messages(&harness, "SyncError");
    let remedy = "finalize: hook response is partly unusable: children[2]";
    assert!(reported.iter().any(|text| text.contains(remedy)), "{reported:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rollout_passes_an_unusable_child_and_waits_for_it() {
    let respond = |_, request: &Value| {
        let change = &request["parent"]["spec"]["change"];
        let named = |name: &str| {
            let mut named = child(&change.to_string());
            named["metadata"]["name"] = json!(name);
            if name == "c1" && change == 2 {
                named["metadata"]["labels"] = json!({"a": 1});
            }
            named
        };
        let children = ["c0", "c1", "c2"].map(named);
        json!({"children": children, "status": {}})
    };
    let (harness, _) = harness(respond).await;
    let mut rolling = spec();
    rolling["childResources"][0]["updateStrategy"]["method"] = json!("RollingInPlace");
    harness.declare("a", rolling);
    let values = || {
        ["c0", "c1", "c2"].map(|name| {
            let found = harness.server.get("v1", "ConfigMap", "default", name).ok();
            found.map(|it| it["data"]["value"].as_str().unwrap().to_owned()).unwrap_or_default()
        })
    };
    harness.server.apply(thing(1)).unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(values(), ["1", "1", "1"]);

    harness.server.apply(thing(2)).unwrap();
    sleep(Duration::from_secs(600)).await;

    assert_eq!(values(), ["2", "1", "2"]);
    let parent = harness.server.get(WIDGET.0, WIDGET.1, "", "p").unwrap();
    assert_eq!(parent["status"]["conditions"][0]["status"], "False", "{:#}", parent["status"]);

    harness.server.apply(thing(3)).unwrap();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(values(), ["3", "3", "3"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn hook_receives_managed_fields_if_that_is_enabled() {
    for managed_fields in [false, true] {
        let strictness = Strictness { managed_fields, ..Strictness::default() };
        let one = |_, _: &Value| json!({"children": [child("1")]});
        let (harness, calls) = harness_with(strictness, one).await;
        let managed = json!([{"manager": "m", "operation": "Update"}]);
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "a", "managedFields": managed}, "spec": spec(),
        });
        harness.server.apply(controller).unwrap();
        harness.server.apply(thing(1)).unwrap();
        pass().await;
        harness.server.apply(thing(2)).unwrap();
        pass().await;

        let calls = std::mem::take(&mut *calls.lock().unwrap());
        let request = &calls.last().unwrap().1;
        let child = &request["children"]["ConfigMap.v1"]["default/c"];
        let objects = [&request["controller"], &request["parent"], child];
        for object in objects {
            let found = object["metadata"].get("managedFields").is_some();
            assert_eq!(found, managed_fields, "{request:#}");
        }
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn endless_writes_are_not_limited_if_that_is_enabled() {
    for unlimited_writes in [false, true] {
        let strictness = Strictness { unlimited_writes, ..Strictness::default() };
        let count = std::sync::atomic::AtomicU32::new(0);
        let other = move |_, _: &Value| {
            let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // Ends by itself, since without a limit no time passes between the writes.
            json!({"children": [child(&count.min(500).to_string())]})
        };
        let (harness, _) = harness_with(strictness, other).await;
        harness.declare("a", spec());
        harness.server.apply(thing(1)).unwrap();
        pass().await;

        let written = value(&harness).unwrap();
        assert_eq!(written == json!("500"), unlimited_writes, "{written}");
        harness.end().await;
    }
}
