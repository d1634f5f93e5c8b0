//! Related types that come and go.

use std::time::Duration;

use pilotlight::{manager::ControllerState, testing::CrdBuilder};
use serde_json::{Value, json};
use tokio::{sync::watch, time};

use crate::support::{Answer, Supervised};

/// Rule for the related type, or a ConfigMap with the sum of the sizes of parent and gadgets.
fn answer(request: &Value, gadgets: &CrdBuilder) -> Value {
    if request.get("children").is_none() {
        let resource = gadgets.api_resource("v1");
        let rule = json!({"apiVersion": resource.api_version, "resource": resource.plural});
        return json!({"relatedResources": [rule]});
    }
    let groups = request["related"].as_object().into_iter().flat_map(|groups| groups.values());
    let related = groups.flat_map(|group| group.as_object().unwrap().values());
    let size = |object: &Value| object["spec"]["size"].as_i64().unwrap();
    let sum: i64 = size(&request["parent"]) + related.map(size).sum::<i64>();
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": request["parent"]["metadata"]["name"]},
        "data": {"size": sum.to_string()},
    });
    json!({"status": {}, "children": [child]})
}

#[tokio::test]
async fn optional_related_type_comes_and_goes_while_its_controller_runs() {
    let supervised = Supervised::start("related-types").await;
    let harness = &supervised.harness;
    let (widgets, gadgets) = (harness.widgets(), CrdBuilder::new(&harness.scope.group, "Gadget"));
    let runnable = supervised.runnable("a");
    let answers = |held: Option<watch::Receiver<bool>>| {
        let gadgets = gadgets.clone();
        supervised.hook.answers(move |request| {
            let answer = Answer::Json(answer(request, &gadgets));
            let is_held =
                request.get("children").is_some() && request["parent"]["spec"]["size"] == 1;
            match &held {
                Some(waits) if is_held => Answer::Hold(waits.clone(), Box::new(answer)),
                _ => answer,
            }
        });
    };
    answers(None);
    let mut spec = supervised.spec(&widgets);
    spec["hooks"]["sync"]["version"] = json!("v2");
    spec["hooks"]["customize"] = spec["hooks"]["sync"].clone();
    let optional = format!("{}/{}", harness.scope.group, gadgets.api_resource("v1").plural);
    let annotations = json!({"pilotlight.dev/optional-related": optional});
    supervised.declare_with("CompositeController", "a", spec, annotations).await;
    supervised.install(&widgets).await;
    supervised.runs("a", 1).await;
    harness.create(&widgets, "w", 0).await;
    supervised.child("w", 0).await;
    harness.warm_up().await;
    let tasks = harness.alive_tasks() + 2;
    let mut absence = harness.assert_absent(&gadgets, tasks).await;

    for round in 1..=2 {
        absence.end(harness).await;
        supervised.install(&gadgets).await;
        harness.create(&gadgets, "g", 100 * round).await;
        supervised.child("w", 100 * round).await;
        supervised.resize(&gadgets, "g", 100 * round + 1).await;
        supervised.child("w", 100 * round + 1).await;

        let (released, waits) = watch::channel(false);
        answers(Some(waits));
        let held = format!("held-{round}");
        harness.create(&widgets, &held, 1).await;
        supervised
            .hook
            .called("about the parent that is held", |call| {
                call.parent() == held && call.body.get("children").is_some()
            })
            .await;

        harness.remove_type(&gadgets).await;
        absence = harness.assert_absent(&gadgets, tasks).await;

        // Parents are synced without the related objects, and without an event of their own.
        supervised.child("w", 0).await;
        released.send_replace(true);
        answers(None);
        supervised.resize(&widgets, &held, 2).await;
        supervised.child(&held, 2).await;
        let status = harness.status(&runnable);
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    }

    absence.end(harness).await;
    assert_eq!(harness.assert_orderly(&runnable), 0, "the epoch is still the first");
    supervised.end().await;
}

/// Rule for the related type, or a ConfigMap for each gadget.
fn propagation(request: &Value, gadgets: &CrdBuilder) -> Value {
    if request.get("children").is_none() {
        return answer(request, gadgets);
    }
    let groups = request["related"].as_object().into_iter().flat_map(|groups| groups.values());
    let related = groups.flat_map(|group| group.as_object().unwrap().values());
    let child = |gadget: &Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": gadget["metadata"]["name"]},
            "data": {"size": request["parent"]["spec"]["size"].to_string()},
        })
    };
    json!({"status": {}, "children": related.map(child).collect::<Vec<_>>()})
}

#[tokio::test]
async fn children_outlive_the_served_version_of_a_required_related_type() {
    let supervised = Supervised::start("related-required").await;
    let harness = &supervised.harness;
    let widgets = harness.widgets();
    let gadgets = CrdBuilder::new(&harness.scope.group, "Gadget").version("v1").version("v2");
    let made = gadgets.clone();
    supervised.hook.answers(move |request| Answer::Json(propagation(request, &made)));
    let mut spec = supervised.spec(&widgets);
    spec["hooks"]["sync"]["version"] = json!("v2");
    spec["hooks"]["customize"] = spec["hooks"]["sync"].clone();
    supervised.declare("a", spec).await;
    supervised.install(&widgets).await;
    supervised.runs("a", 1).await;
    harness.create(&widgets, "w", 1).await;
    supervised.event("w", "SyncError", "does not serve it").await;
    supervised.install(&gadgets).await;
    harness.create(&gadgets, "g", 1).await;
    let child = supervised.child("g", 1).await;

    harness.scope.set_served(&gadgets, "v1", false).await.unwrap();
    supervised.event("w", "SyncError", "served are v2").await;
    supervised.resize(&widgets, "w", 2).await;
    time::sleep(Duration::from_secs(2)).await;
    let kept = supervised.child("g", 1).await;
    assert_eq!(kept.metadata.uid, child.metadata.uid);
    assert_eq!(kept.metadata.deletion_timestamp, None);

    harness.scope.set_served(&gadgets, "v1", true).await.unwrap();
    let updated = supervised.child("g", 2).await;
    assert_eq!(updated.metadata.uid, child.metadata.uid);
    supervised.end().await;
}
