//! Changes of the status of children and attachments, and own writes of the status of a parent.

use super::{
    responding_hook::{Calls, harness, pass},
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

#[tokio::test(start_paused = true)]
async fn own_write_of_a_status_syncs_its_parent_again_unless_status_changes_are_ignored() {
    for (is_ignored, synced) in [(false, 2), (true, 1)] {
        let (harness, calls) = harness(|_, _| json!({"status": {"seen": true}})).await;
        let mut spec = good();
        spec["parentResource"]["ignoreStatusChanges"] = json!(is_ignored);
        harness.declare("a", spec);
        harness.running("a", 1).await;

        let parent = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
        });
        harness.server.apply(parent).unwrap();
        pass().await;

        let written = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
        assert_eq!(written["status"]["seen"], true);
        assert_eq!(calls.lock().unwrap().len(), synced, "ignored: {is_ignored}");
        harness.end().await;
    }
}

/// Declares a decorator, in whose rule of attachments these fields are added.
fn decorate(harness: &Harness, rule: &Value) {
    let mut decorator = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "DecoratorController",
        "metadata": {"name": "a"},
        "spec": {
            "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
            "hooks": {"sync": {"webhook": {"url": "http://scripted/"}}},
        },
    });
    decorator["spec"]["attachments"] = spec(rule)["childResources"].take();
    harness.server.apply(decorator).unwrap();
}

#[tokio::test(start_paused = true)]
async fn status_of_an_attachment_syncs_no_object_where_that_is_declared_and_an_edit_takes_effect() {
    let (harness, calls) = harness(|_, _| json!({"attachments": [gadget(json!({}))]})).await;
    harness.server.install(&CrdBuilder::new("example.com", GADGET).build()).unwrap();
    let object = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(object).unwrap();
    let runnable = ControllerKind::Decorator.runnable_name("a");
    let mut ready = 0;

    for (rule, by_status) in [
        (json!({}), 1),
        (json!({"ignoreStatusChanges": true}), 0),
        (json!({"ignoreStatusChanges": false}), 1),
        // Rolling methods of attachments do not roll.
        (json!({"ignoreStatusChanges": true, "updateStrategy": {"method": "RollingInPlace"}}), 0),
    ] {
        decorate(&harness, &rule);
        harness.until(runnable.as_str(), |it| it.state == ControllerState::Running).await;
        pass().await;

        ready += 1;
        let status = json!({"status": {"ready": ready}});
        assert_eq!(syncs(&harness, &calls, status).await, by_status, "{rule}");
        let edit = json!({"spec": {"x": ready}});
        assert!(syncs(&harness, &calls, edit).await > 0, "{rule}");
        let (_, last) = calls.lock().unwrap().last().unwrap().clone();
        let attachments = &last["attachments"]["Gadget.example.com/v1"];
        assert_eq!(attachments["default/c"]["status"]["ready"], ready, "{attachments}");
    }
    let epoch = harness.manager.status_of(runnable.as_str()).map(|status| status.epoch);
    assert_eq!(epoch, Some(1), "each edit takes effect in place");
    harness.end().await;
}
