//! Parts of a response that the server refuses leave the others.

use super::{
    decorator,
    finalize::events,
    responding_hook::{faulty_with, pass},
    *,
};
use crate::testing::{Action, Reply, Rule, Verb};

fn decorated(_kind: HookKind, _request: &Value) -> Value {
    let attachment = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "attached", "namespace": "default"},
    });
    json!({
        "labels": {"new": "1"}, "annotations": {"a": "b"}, "status": {"phase": "x"},
        "attachments": [attachment],
    })
}

fn invalid() -> Action {
    Action::Reply(Reply::status(
        422,
        "Invalid",
        "Thing \"p\" is invalid: status.phase: Required value",
    ))
}

async fn decorate(harness: &Harness, kind: &str, plural: &str) -> Value {
    let hook = json!({"webhook": {"url": "http://scripted/"}});
    let spec = json!({
        "resources": [{"apiVersion": "example.com/v1", "resource": plural}],
        "attachments": [{"apiVersion": "v1", "resource": "configmaps"}],
        "hooks": {"sync": hook},
    });
    decorator::declare(harness, "a", spec);
    decorator::running(harness, "a").await;
    let object = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "p"}});
    harness.server.apply(object).unwrap();
    pass().await;
    harness.server.get("example.com/v1", kind, "", "p").unwrap()
}

#[tokio::test(start_paused = true)]
async fn status_that_is_refused_leaves_labels_annotations_and_attachments() {
    let (harness, faults) = faulty_with(decorated).await;
    let plain = CrdBuilder::new("example.com", "Plain").cluster_scoped().without_status();
    harness.server.install(&plain.build()).unwrap();
    faults.add(Rule::new(invalid()).resource("example.com", "things").subresource("status"));
    let found = decorate(&harness, "Thing", "things").await;

    assert_eq!(found["metadata"]["labels"], json!({"new": "1"}));
    assert_eq!(found["metadata"]["annotations"], json!({"a": "b"}));
    assert!(harness.server.get("v1", "ConfigMap", "default", "attached").is_ok());
    assert_eq!(events(&harness, "SyncError"), ["p"], "one Event names the status");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_that_is_refused_without_a_subresource_leaves_labels() {
    let (harness, faults) = faulty_with(decorated).await;
    let plain = CrdBuilder::new("example.com", "Plain").cluster_scoped().without_status();
    harness.server.install(&plain.build()).unwrap();
    faults.add(Rule::new(invalid()).verb(Verb::Update).resource("example.com", "plains"));
    let found = decorate(&harness, "Plain", "plains").await;

    assert_eq!(found["metadata"]["labels"], json!({"new": "1"}));
    assert_eq!(found["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(events(&harness, "SyncError"), ["p"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn label_that_is_refused_leaves_annotations_and_status() {
    let (harness, _) = faulty_with(|_, _| {
        json!({
            "labels": {"new": "not a label value!"}, "annotations": {"a": "b"},
            "status": {"phase": "x"}, "attachments": [],
        })
    })
    .await;
    let found = decorate(&harness, "Thing", "things").await;

    assert_eq!(found["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(found["status"], json!({"phase": "x"}));
    assert_eq!(found["metadata"]["labels"], Value::Null);
    assert_eq!(events(&harness, "SyncError"), ["p"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn revision_that_is_refused_leaves_the_status() {
    let (harness, faults) =
        faulty_with(|_, _| json!({"children": [], "status": {"seen": true}})).await;
    let refused = Action::Reply(Reply::status(403, "Forbidden", "revisions are forbidden"));
    let revisions = Rule::new(refused).verb(Verb::Create);
    faults.add(revisions.resource("metacontroller.k8s.io", "controllerrevisions"));
    let mut spec = good();
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "configmaps",
        "updateStrategy": {"method": "RollingInPlace"},
    }]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    let parent =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"}});
    harness.server.apply(parent).unwrap();
    pass().await;

    let found = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
    assert_eq!(found["status"]["seen"], true, "{found:#}");
    assert_eq!(events(&harness, "SyncError"), ["p"]);
    harness.end().await;
}
