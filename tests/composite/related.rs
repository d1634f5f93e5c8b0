//! Related types that come and go.

use pilotlight::{manager::ControllerState, testing::CrdBuilder};
use serde_json::{Value, json};
use tokio::sync::watch;

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
async fn related_type_comes_and_goes_while_its_controller_runs() {
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
    supervised.declare("a", spec).await;
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
