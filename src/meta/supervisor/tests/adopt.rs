//! Adoption of orphans that are kept as metadata entries.

use super::{
    responding_hook::{Calls, harness, harness_of_options, pass},
    *,
};
use crate::{
    meta::children::adoption::Adoption,
    testing::{Verb, simulated::AccessRule},
};

fn thing(name: &str, round: usize) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": name, "labels": {"round": round.to_string()}},
    })
}

/// Response with the children that exist.
fn same(_: HookKind, request: &Value) -> Value {
    let children = request["children"]["ConfigMap.v1"].as_object().unwrap().values();
    let child = |child: &Value| {
        let (name, namespace) = (&child["metadata"]["name"], &child["metadata"]["namespace"]);
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
        })
    };
    json!({"children": children.map(child).collect::<Vec<_>>()})
}

/// Removes the recorded calls. Returns the parent of each, with the number of its children.
fn take(calls: &Calls) -> Vec<(String, usize)> {
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    let of_call = |(_, request): &(HookKind, Value)| {
        let parent = request["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        (parent, request["children"]["ConfigMap.v1"].as_object().unwrap().len())
    };
    let mut calls: Vec<_> = calls.iter().map(of_call).collect();
    calls.dedup();
    calls
}

/// Number of reads of the orphan.
fn reads(harness: &Harness) -> usize {
    let requests = harness.server.requests();
    let infos = requests.iter().map(|request| &request.info);
    infos.filter(|info| info.verb == Verb::Get && info.name == "orphan").count()
}

#[tokio::test(start_paused = true)]
async fn live_read_of_an_orphan_that_fails_is_retried_for_its_parent_alone_without_a_call_of_a_hook()
 {
    let (harness, calls) = harness(same).await;
    for name in ["p", "q"] {
        harness.server.apply(thing(name, 1)).unwrap();
    }
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    pass().await;
    take(&calls);
    let parent = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
    let uid = &parent["metadata"]["uid"];
    let denied = AccessRule::deny().verbs(["get"]).resources(["configmaps"]);
    harness.server.set_rbac([denied]);

    let orphan = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "orphan", "namespace": "default", "labels": {"controller-uid": uid}},
        "data": {"a": "b"},
    });
    harness.server.apply(orphan).unwrap();
    pass().await;
    assert!(reads(&harness) > 1, "{} reads", reads(&harness));
    assert_eq!(take(&calls), [], "no hook is called without the content of a child");
    harness.server.apply(thing("q", 2)).unwrap();
    pass().await;
    assert_eq!(take(&calls), [("q".to_owned(), 0)], "the other parent is not delayed");

    harness.server.set_rbac([]);
    sleep(Duration::from_secs(600)).await;
    let calls = take(&calls);
    assert_eq!(calls.first(), Some(&("p".to_owned(), 1)), "{calls:?}");
    let adopted = harness.server.get("v1", "ConfigMap", "default", "orphan").unwrap();
    assert_eq!(adopted["metadata"]["ownerReferences"][0]["uid"], *uid);
    assert_eq!(adopted["data"], json!({"a": "b"}));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn selector_that_requires_no_label_adopts_and_deletes_nothing() {
    let (harness, calls) = harness(|_, _| json!({"children": [made()]})).await;
    let foreign = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "foreign", "namespace": "default"},
    });
    let foreign = harness.server.apply(foreign).unwrap();
    let mut spec = good();
    spec["generateSelector"] = json!(false);
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("a", spec);
    harness.running("a", 1).await;

    let mut parent = thing("p", 1);
    parent["spec"] = json!({"selector": {"matchExpressions": [
        {"key": "nope", "operator": "DoesNotExist"},
    ]}});
    harness.server.apply(parent).unwrap();
    for round in 2..6 {
        let label = json!({
            "apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {"name": "p", "labels": {"round": round.to_string()}},
        });
        harness.server.merge(&label).unwrap();
        pass().await;
    }

    let now = harness.server.get("v1", "ConfigMap", "default", "foreign");
    assert_eq!(now.unwrap()["metadata"], foreign["metadata"]);
    assert_eq!(take(&calls).last(), Some(&("p".to_owned(), 1)), "its own child stays its child");
    let events = harness.server.list("v1", "Event").unwrap();
    let warnings = events.iter().filter(|event| event["reason"] == "SelectorTooBroad");
    let warnings: Vec<_> = warnings.map(|event| (&event["type"], &event["count"])).collect();
    assert_eq!(warnings, [(&json!("Warning"), &json!(1))]);
    harness.end().await;
}

fn made() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "made", "namespace": "default"},
    })
}

#[tokio::test(start_paused = true)]
async fn orphan_without_evidence_is_not_adopted_and_reported_once() {
    for is_wanted in [false, true] {
        let options = MetaOptions { adoption: Adoption::Proven, ..MetaOptions::default() };
        let (harness, calls) = harness_of_options(options, move |kind, request| {
            let wanted = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "orphan", "namespace": "default"},
            });
            if is_wanted { json!({"children": [wanted]}) } else { same(kind, request) }
        })
        .await;
        harness.server.apply(thing("p", 1)).unwrap();
        let mut spec = good();
        spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
        let parent = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
        let orphan = |annotations: Value| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": "orphan", "namespace": "default", "annotations": annotations,
                    "labels": {"controller-uid": parent["metadata"]["uid"]},
                },
                "data": {"a": "b"},
            })
        };
        let before = harness.server.apply(orphan(json!({}))).unwrap();
        harness.declare("a", spec);
        harness.running("a", 1).await;
        for round in 2..6 {
            harness.server.apply(thing("p", round)).unwrap();
            pass().await;
        }

        let now = harness.server.get("v1", "ConfigMap", "default", "orphan").unwrap();
        assert_eq!(now, before, "wanted: {is_wanted}");
        assert!(take(&calls).iter().all(|call| *call == ("p".to_owned(), 0)));
        let events = harness.server.list("v1", "Event").unwrap();
        let reports = events.iter().filter(|event| event["reason"] == "SyncError");
        let reports: Vec<_> =
            reports.map(|it| (it["message"].as_str().unwrap(), &it["count"])).collect();
        let [(message, count)] = reports[..] else { panic!("{reports:?}") };
        assert!(message.contains("pilotlight.dev/adopt=true"), "{message}");
        assert_eq!(*count, json!(1), "{message}");
        let controllers = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let contested = || {
            let object = harness.server.get(controllers.0, controllers.1, "", "a").unwrap();
            let conditions = object["status"]["conditions"].as_array().unwrap().clone();
            conditions.into_iter().find(|it| it["type"] == "Contested").unwrap()
        };
        assert_eq!(contested()["message"], "1 contested: ConfigMap default/orphan for p");

        harness.server.apply(orphan(json!({"pilotlight.dev/adopt": "true"}))).unwrap();
        sleep(Duration::from_secs(600)).await;
        let adopted = harness.server.get("v1", "ConfigMap", "default", "orphan").unwrap();
        assert_eq!(adopted["metadata"]["ownerReferences"][0]["name"], "p");
        assert_eq!(contested()["status"], "False", "wanted: {is_wanted}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn orphaned_attachment_of_a_decorator_is_read_once_and_not_adopted() {
    let (harness, calls) = harness(same).await;
    harness.server.apply(thing("p", 1)).unwrap();
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    pass().await;
    let parent = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
    let labels = json!({"controller-uid": parent["metadata"]["uid"]});
    let orphan = |annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "orphan", "namespace": "default", "labels": labels,
                "annotations": annotations,
            },
        })
    };
    let attached = json!({"metacontroller.k8s.io/decorator-controller": "d"});
    harness.server.apply(orphan(attached)).unwrap();

    for round in 2..6 {
        harness.server.apply(thing("p", round)).unwrap();
        pass().await;
    }
    assert_eq!(reads(&harness), 1, "its metadata entry lacks the annotation");
    assert!(take(&calls).iter().all(|call| *call == ("p".to_owned(), 0)));

    // The annotation is removed.
    harness.server.apply(orphan(json!({}))).unwrap();
    pass().await;
    assert_eq!(take(&calls).last(), Some(&("p".to_owned(), 1)));
    harness.end().await;
}
