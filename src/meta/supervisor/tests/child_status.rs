//! Changes of the status of children.

use super::{
    answering::{Calls, harness, pass},
    *,
};

const GADGET: &str = "Gadget";

/// Harness with a parent and its child, in whose rule these fields are added.
async fn with_child(rule: Value) -> (Harness, Calls) {
    let (harness, calls) = harness(|_, _| json!({"children": [gadget(json!({}))]})).await;
    harness.server.install(&CrdBuilder::new("example.com", GADGET).build()).unwrap();
    harness.declare("a", spec(&rule));
    harness.running("a", 1).await;
    let parent = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(parent).unwrap();
    pass().await;
    (harness, calls)
}

fn spec(rule: &Value) -> Value {
    let mut child = json!({"apiVersion": "example.com/v1", "resource": "gadgets"});
    for (field, value) in rule.as_object().unwrap() {
        child[field] = value.clone();
    }
    let mut spec = good();
    spec["childResources"] = json!([child]);
    spec
}

fn gadget(fields: Value) -> Value {
    let mut gadget = json!({
        "apiVersion": "example.com/v1", "kind": GADGET,
        "metadata": {"name": "c", "namespace": "default"},
    });
    for (field, value) in fields.as_object().unwrap() {
        gadget[field] = value.clone();
    }
    gadget
}

/// Returns the number of syncs that a change of the child causes.
async fn syncs(harness: &Harness, calls: &Calls, change: Value) -> usize {
    let before = calls.lock().unwrap().len();
    harness.server.merge(&gadget(change)).unwrap();
    pass().await;
    calls.lock().unwrap().len() - before
}

#[tokio::test(start_paused = true)]
async fn change_of_the_status_of_a_child_alone_syncs_no_parent_where_that_is_declared() {
    for (rule, by_status) in [
        (json!({}), 1),
        (json!({"ignoreStatusChanges": false}), 1),
        (json!({"ignoreStatusChanges": true}), 0),
        // A rolling update waits for the status.
        (json!({"ignoreStatusChanges": true, "updateStrategy": {"method": "RollingInPlace"}}), 1),
    ] {
        let (harness, calls) = with_child(rule.clone()).await;

        let status = json!({"status": {"ready": 1}});
        assert_eq!(syncs(&harness, &calls, status).await, by_status, "{rule}");
        let labels = json!({"metadata": {
            "name": "c", "namespace": "default", "labels": {"a": "b"},
        }});
        assert_eq!(syncs(&harness, &calls, labels).await, 1, "{rule}");
        assert!(syncs(&harness, &calls, json!({"spec": {"x": 1}})).await > 0, "{rule}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn status_of_a_child_that_was_ignored_is_sent_once_it_counts_again() {
    let (harness, calls) = with_child(json!({"ignoreStatusChanges": true})).await;
    assert_eq!(syncs(&harness, &calls, json!({"status": {"ready": 1}})).await, 0);

    harness.declare("a", spec(&json!({})));
    pass().await;

    let (_, last) = calls.lock().unwrap().last().unwrap().clone();
    let children = &last["children"]["Gadget.example.com/v1"];
    assert_eq!(children["default/c"]["status"]["ready"], 1, "{children}");
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}
