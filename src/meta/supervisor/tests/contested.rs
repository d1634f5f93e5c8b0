//! Object that parents of two types want.

use super::{
    responding_hook::{faulty_with, harness, pass},
    *,
};
use crate::{
    meta::definition::apply_strategy::ApplyStrategy,
    testing::{Action, Reply, Rule, Verb},
};

/// Response with one ConfigMap for all parents.
fn shared(request: &Value) -> Value {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "shared", "namespace": "default"},
    });
    let is_composite = request["controller"]["kind"] == "CompositeController";
    json!({if is_composite { "children" } else { "attachments" }: [map]})
}

/// Declares a composite of things, or a decorator of gadgets.
fn declare(harness: &Harness, kind: &str, strategy: ApplyStrategy) {
    let rules = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    let hooks = json!({"sync": {"webhook": {"url": "http://scripted/"}}});
    let resource = |name: &str| json!({"apiVersion": "example.com/v1", "resource": name});
    let spec = match kind {
        "CompositeController" => json!({
            "generateSelector": true, "parentResource": resource("things"),
            "childResources": rules, "hooks": hooks,
        }),
        _ => json!({"resources": [resource("gadgets")], "attachments": rules, "hooks": hooks}),
    };
    let annotations =
        json!({crate::meta::definition::apply_strategy::APPLY_STRATEGY: strategy.name()});
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind,
        "metadata": {"name": "a", "annotations": annotations}, "spec": spec,
    });
    harness.server.apply(object).unwrap();
}

/// Returns the messages about an object.
fn messages(harness: &Harness, kind: &str, namespace: &str) -> Vec<String> {
    let events = harness.server.list("v1", "Event").unwrap();
    let about = events.iter().filter(|event| {
        let subject = &event["involvedObject"];
        subject["kind"] == kind && subject["namespace"].as_str().unwrap_or_default() == namespace
    });
    about.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

/// Returns the controlling owner of the contested object.
fn owner(harness: &Harness) -> Value {
    let map = harness.server.get("v1", "ConfigMap", "default", "shared").unwrap();
    map["metadata"]["ownerReferences"][0]["kind"].clone()
}

/// Returns status and message of the condition `Contested` of a controller.
fn contested(harness: &Harness, kind: &str) -> Option<(String, String)> {
    let object = harness.server.get("metacontroller.k8s.io/v1alpha1", kind, "", "a").unwrap();
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|it| it["type"] == "Contested")?;
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    Some((text("status"), text("message")))
}

async fn check(first: &str, second: &str, strategy: ApplyStrategy) {
    let (harness, _) = harness(|_, request| shared(request)).await;
    harness.server.install(&CrdBuilder::new("example.com", "Gadget").build()).unwrap();
    pass().await;
    for (kind, namespace) in [("Thing", None), ("Gadget", Some("default"))] {
        let mut object = json!({
            "apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "p"},
        });
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        harness.server.apply(object).unwrap();
    }

    declare(&harness, first, strategy);
    pass().await;
    assert_eq!(messages(&harness, "Thing", "").len() + messages(&harness, "Gadget", "").len(), 0);
    let first_owner = owner(&harness);
    declare(&harness, second, strategy);
    sleep(Duration::from_secs(3600)).await;

    for (kind, namespace, other) in [("Thing", "", "Gadget p"), ("Gadget", "default", "Thing p")] {
        let messages = messages(&harness, kind, namespace);
        assert_eq!(messages.len(), 1, "once about {kind}: {messages:?}");
        let is_named = |part| messages[0].contains(part);
        assert!(is_named("ConfigMap default/shared") && is_named(other), "{messages:?}");
    }
    assert_eq!(owner(&harness), first_owner);
    assert_eq!(contested(&harness, first), None, "it owns the object");
    let wanted = if second == "CompositeController" { "p" } else { "default/p" };
    let message = format!("1 contested: ConfigMap default/shared for {wanted}");
    assert_eq!(contested(&harness, second), Some(("True".to_owned(), message)));
    let (kind, namespace) = match first {
        "CompositeController" => ("Thing", ""),
        _ => ("Gadget", "default"),
    };
    harness.server.remove("example.com/v1", kind, namespace, "p").unwrap();
    pass().await;
    // The garbage collector may have been first.
    drop(harness.server.remove("v1", "ConfigMap", "default", "shared"));
    sleep(Duration::from_secs(3600)).await;

    assert_eq!(contested(&harness, second), Some(("False".to_owned(), String::new())));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_parents_of_two_types_want_is_reported_once_to_each() {
    for strategy in ApplyStrategy::ALL {
        check("CompositeController", "DecoratorController", strategy).await;
        check("DecoratorController", "CompositeController", strategy).await;
    }
}

#[tokio::test(start_paused = true)]
async fn owner_that_no_declared_controller_manages_is_left_alone() {
    let (harness, _) = harness(|_, request| shared(request)).await;
    let thing = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(thing).unwrap();
    let foreign = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    let foreign = harness.server.apply(foreign).unwrap();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "shared", "namespace": "default", "ownerReferences": [{
            "apiVersion": "v1", "kind": "Namespace", "name": "n",
            "uid": foreign["metadata"]["uid"],
            "controller": true,
        }]},
    });
    harness.server.apply(map).unwrap();

    declare(&harness, "CompositeController", ApplyStrategy::DynamicApply);
    sleep(Duration::from_secs(3600)).await;

    assert_eq!(messages(&harness, "Thing", "").len(), 1);
    assert!(messages(&harness, "Thing", "")[0].contains("belongs to Namespace n"));
    assert_eq!(messages(&harness, "Namespace", ""), [""; 0]);
    harness.end().await;
}

/// Decorated object in this phase.
fn gadget(phase: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Gadget",
        "metadata": {"name": "p", "namespace": "default", "labels": {"phase": phase}},
    })
}

#[tokio::test(start_paused = true)]
async fn contested_attachment_stays_reported_while_deletions_are_throttled() {
    let (harness, faults) = faulty_with(|_, request| {
        let map = |name: &str| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "default"},
            })
        };
        let is_first = request["object"]["metadata"]["labels"]["phase"] == "first";
        let wanted = if is_first { vec![map("shared"), map("old")] } else { vec![map("shared")] };
        json!({"attachments": wanted})
    })
    .await;
    harness.server.install(&CrdBuilder::new("example.com", "Gadget").build()).unwrap();
    let foreign = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    let foreign = harness.server.apply(foreign).unwrap();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "shared", "namespace": "default", "ownerReferences": [{
            "apiVersion": "v1", "kind": "Namespace", "name": "n",
            "uid": foreign["metadata"]["uid"],
            "controller": true,
        }]},
    });
    harness.server.apply(map).unwrap();
    pass().await;
    harness.server.apply(gadget("first")).unwrap();
    declare(&harness, "DecoratorController", ApplyStrategy::DynamicApply);
    sleep(Duration::from_secs(60)).await;
    let message = "1 contested: ConfigMap default/shared for default/p".to_owned();
    let reported = Some(("True".to_owned(), message));
    assert_eq!(contested(&harness, "DecoratorController"), reported);

    let throttled = Reply::status(429, "TooManyRequests", "later").retry_after(20);
    let rule = Rule::new(Action::Reply(throttled)).verb(Verb::Delete).resource("", "configmaps");
    let rule = faults.add(rule);
    harness.server.merge(&gadget("second")).unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(faults.hits(rule) > 0, "the deletion is throttled");
    assert_eq!(contested(&harness, "DecoratorController"), reported);

    faults.remove(rule);
    sleep(Duration::from_secs(600)).await;
    assert!(harness.server.get("v1", "ConfigMap", "default", "old").is_err(), "it is deleted");
    assert_eq!(contested(&harness, "DecoratorController"), reported);
    let events = harness.server.list("v1", "Event").unwrap();
    let about = events.iter().filter(|event| event["involvedObject"]["kind"] == "Gadget");
    let counts: Vec<_> = about.map(|event| event["count"].as_u64().unwrap_or(1)).collect();
    assert_eq!(counts, [1], "{events:#?}");
    harness.end().await;
}
