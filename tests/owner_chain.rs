//! Children of the parents' own type.

use std::time::Duration;

use pilotlight::meta::MAX_OWNER_DEPTH;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::Bench;

/// Spec of a controller of widgets whose children are widgets.
fn own_children(annotations: Value, selector: Value) -> Value {
    let widgets = json!({ "apiVersion": "bench.test/v1", "resource": "widgets" });
    let mut parents = widgets.clone();
    parents["labelSelector"] = selector;
    json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": "a", "annotations": annotations },
        "spec": {
            "generateSelector": true,
            "parentResource": parents,
            "childResources": [widgets],
            "hooks": { "sync": { "webhook": { "url": "http://function/" } } },
        },
    })
}

/// Response with one more widget for each widget, without an end.
fn one_more(request: &Value) -> Value {
    let name = request["parent"]["metadata"]["name"].as_str().unwrap();
    let child = json!({
        "apiVersion": "bench.test/v1",
        "kind": "Widget",
        "metadata": { "name": format!("{name}-1") },
        "spec": { "size": 0, "text": "" },
    });
    json!({ "status": {}, "children": [child] })
}

async fn start(annotations: Value, selector: Value) -> Bench {
    let bench = Bench::start().await;
    bench.hook.answers(|request| async move { Ok(one_more(&request)) });
    bench.server.apply(own_children(annotations, selector)).unwrap();
    bench
}

fn widgets(bench: &Bench) -> usize {
    bench.list("bench.test/v1", "Widget").len()
}

#[tokio::test(start_paused = true)]
async fn chain_of_parents_of_one_type_ends_with_a_reason_and_an_annotation_allows_more() {
    let bench = start(json!({}), json!({})).await;

    bench.parent("w", 0, "");
    bench
        .until("the child is refused", |bench| !bench.events("OwnerChainTooDeep").is_empty())
        .await;
    sleep(Duration::from_secs(600)).await;

    assert_eq!(widgets(&bench), 16 + 1, "the default depth");
    let events = bench.events("OwnerChainTooDeep");
    assert!(events.iter().all(|text| text.contains(MAX_OWNER_DEPTH)), "{events:?}");
    let reason = |bench: &Bench| {
        let controllers = bench.list("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let conditions = controllers[0]["status"]["conditions"].as_array().cloned();
        let conditions = conditions.unwrap_or_default();
        let healthy = conditions.iter().find(|it| it["type"] == "HooksHealthy");
        healthy.map(|it| it["reason"].clone())
    };
    assert_eq!(reason(&bench), Some(json!("OwnerChainTooDeep")));

    let raised = json!({ MAX_OWNER_DEPTH: "20" });
    bench.server.apply(own_children(raised, json!({}))).unwrap();
    bench.until("the chain grows to the raised limit", |bench| widgets(bench) == 21).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(widgets(&bench), 21);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn children_of_the_parents_type_that_are_no_parents_are_created() {
    let roots = json!({ "matchLabels": { "root": "yes" } });
    let bench = start(json!({}), roots).await;

    for number in 0..30 {
        let mut root = json!({
            "apiVersion": "bench.test/v1",
            "kind": "Widget",
            "metadata": { "name": format!("w{number}"), "namespace": "default" },
            "spec": { "size": 0, "text": "" },
        });
        root["metadata"]["labels"] = json!({ "root": "yes" });
        bench.server.apply(root).unwrap();
    }
    bench.until("each parent has its child", |bench| widgets(bench) == 60).await;
    sleep(Duration::from_secs(600)).await;

    assert_eq!(widgets(&bench), 60);
    assert!(bench.events("OwnerChainTooDeep").is_empty());
    bench.end().await;
}
