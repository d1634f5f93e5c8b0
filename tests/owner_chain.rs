//! Children of the parents' own type.

use std::time::Duration;

use pilotlight::meta::MAX_OWNER_DEPTH;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::SimulatedHarness;

/// Spec of a controller of widgets whose children are widgets.
fn own_children(annotations: Value, selector: Value) -> Value {
    let widgets = json!({ "apiVersion": "harness.test/v1", "resource": "widgets" });
    let mut parents = widgets.clone();
    parents["labelSelector"] = selector;
    json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": "a", "annotations": annotations },
        "spec": {
            "generateSelector": true,
            "parentResource": parents,
            "childResources": [widgets, { "apiVersion": "v1", "resource": "configmaps" }],
            "hooks": { "sync": { "webhook": { "url": "http://function/" } } },
        },
    })
}

/// Response with one more widget for each widget, without an end, and a ConfigMap.
fn one_more(request: &Value) -> Value {
    let name = request["parent"]["metadata"]["name"].as_str().unwrap();
    let child = json!({
        "apiVersion": "harness.test/v1",
        "kind": "Widget",
        "metadata": { "name": format!("{name}-1") },
        "spec": { "size": 0, "text": "" },
    });
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("{name}-map") },
    });
    json!({ "status": {}, "children": [child, map] })
}

async fn start(annotations: Value, selector: Value) -> SimulatedHarness {
    let harness = SimulatedHarness::start().await;
    harness.hook.answers(|request| async move { Ok(one_more(&request)) });
    harness.server.apply(own_children(annotations, selector)).unwrap();
    harness
}

fn widgets(harness: &SimulatedHarness) -> usize {
    harness.list("harness.test/v1", "Widget").len()
}

#[tokio::test(start_paused = true)]
async fn chain_of_parents_of_one_type_ends_with_a_reason_and_an_annotation_allows_more() {
    let harness = start(json!({}), json!({})).await;

    harness.parent("w", 0, "");
    harness
        .until("the child is refused", |harness| !harness.events("OwnerChainTooDeep").is_empty())
        .await;
    sleep(Duration::from_secs(600)).await;

    assert_eq!(widgets(&harness), 16 + 1, "the default depth");
    assert_eq!(harness.list("v1", "ConfigMap").len(), 16 + 1, "other children are written");
    let events = harness.events("OwnerChainTooDeep");
    assert!(events.iter().all(|text| text.contains(MAX_OWNER_DEPTH)), "{events:?}");
    let reason = |harness: &SimulatedHarness| {
        let controllers = harness.list("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let conditions = controllers[0]["status"]["conditions"].as_array().cloned();
        let conditions = conditions.unwrap_or_default();
        let healthy = conditions.iter().find(|it| it["type"] == "HooksHealthy");
        healthy.map(|it| it["reason"].clone())
    };
    assert_eq!(reason(&harness), Some(json!("OwnerChainTooDeep")));

    let raised = json!({ MAX_OWNER_DEPTH: "20" });
    harness.server.apply(own_children(raised, json!({}))).unwrap();
    harness.until("the chain grows to the raised limit", |harness| widgets(harness) == 21).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(widgets(&harness), 21);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn children_of_the_parents_type_that_are_no_parents_are_created() {
    let roots = json!({ "matchLabels": { "root": "yes" } });
    let harness = start(json!({}), roots).await;

    for number in 0..30 {
        let mut root = json!({
            "apiVersion": "harness.test/v1",
            "kind": "Widget",
            "metadata": { "name": format!("w{number}"), "namespace": "default" },
            "spec": { "size": 0, "text": "" },
        });
        root["metadata"]["labels"] = json!({ "root": "yes" });
        harness.server.apply(root).unwrap();
    }
    harness.until("each parent has its child", |harness| widgets(harness) == 60).await;
    sleep(Duration::from_secs(600)).await;

    assert_eq!(widgets(&harness), 60);
    assert!(harness.events("OwnerChainTooDeep").is_empty());
    harness.end().await;
}
