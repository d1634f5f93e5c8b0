//! Edits of a running declared controller: an edit of its types replaces the old spec with one
//! restart and without another list, any other valid one is executed in the running epoch, and an
//! invalid one leaves the old spec running.

use pilotlight::{
    manager::{ControllerState, DoneReason},
    testing::{CrdBuilder, Verb},
};
use serde_json::{Value, json};

use crate::support::{Answer, Call, Supervised, condition, config_map, status_of};

#[tokio::test]
async fn edit_of_a_type_is_one_restart_and_any_other_one_none_both_without_a_relist() {
    let (supervised, crd) = Supervised::at_work("edit-valid").await;
    let harness = &supervised.harness;
    let position = harness.position();
    harness.faults.forget_seen();

    let before = supervised.hook.count("gear");
    let in_place = json!({ "spec": {
        "hooks": { "sync": { "webhook": { "responseUnMarshallMode": "strict" } } },
    } });
    supervised.edit("a", in_place).await;
    supervised.hook.called_again("gear", before).await;
    supervised.runs("a", 1).await;
    assert!(harness.faults.seen().iter().all(|it| it.resource != "configmaps"));

    // The first rolling method brings the input of revisions, and the last one ends it.
    for method in ["RollingInPlace", "InPlace"] {
        let before = supervised.hook.count("gear");
        let mut children = supervised.spec(&crd)["childResources"].clone();
        children[0]["updateStrategy"] = json!({ "method": method });
        supervised.edit("a", json!({ "spec": { "childResources": children } })).await;
        supervised.hook.called_again("gear", before).await;
        supervised.runs("a", 1).await;
    }

    let before = supervised.hook.count("gear");
    let mut children = supervised.spec(&crd)["childResources"].clone();
    children[0]["optional"] = json!(true);
    let generation = supervised.edit("a", json!({ "spec": { "childResources": children } })).await;

    assert_eq!(harness.done(&supervised.runnable("a"), 1).await, DoneReason::Superseded);
    harness.running(&supervised.runnable("a"), 2).await;
    supervised.hook.called_again("gear", before).await;
    supervised.runs("a", 2).await;
    let status =
        supervised.status("a", "is answered", |it| it.observed_generation == Some(generation));
    assert_eq!(condition(&status.await, "Ready").status, "True");
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    let read: Vec<_> = harness
        .requests(&crd, position)
        .await
        .into_iter()
        .filter(|event| matches!(event.verb.as_str(), "list" | "watch"))
        .collect();
    assert!(read.is_empty(), "parents are read again: {read:#?}");
    let mut lists = harness.faults.seen();
    lists.retain(|it| it.resource == "configmaps" && matches!(it.verb, Verb::List | Verb::Watch));
    assert!(lists.is_empty(), "children are read again: {lists:#?}");

    // A change of metadata is not an edit.
    let touch = json!({ "metadata": { "annotations": { "touched": "yes" } } });
    supervised.edit("a", touch).await;
    supervised.edit("a", json!({ "spec": { "hooks": { "sync": { "version": "v1" } } } })).await;
    supervised.resize(&crd, "gear", 3).await;
    supervised.child("gear", 3).await;
    assert_eq!(harness.status(&supervised.runnable("a")).epoch, 2);
    assert_eq!(harness.assert_orderly(&supervised.runnable("a")), 1);
    supervised.end().await;
}

#[tokio::test]
async fn an_invalid_edit_keeps_the_old_controller_running() {
    let (supervised, crd) = Supervised::at_work("edit-invalid").await;
    let harness = &supervised.harness;
    let name = supervised.name("a");

    let wrong: [(Value, &str, &str); 2] = [
        (
            json!({ "hooks": { "sync": { "webhook": { "url": "ftp://nowhere" } } } }),
            "SpecInvalid",
            "spec.hooks.sync.webhook.url",
        ),
        (
            json!({ "parentResource": { "labelSelector": {
                "matchExpressions": [{ "key": "a", "operator": "Near", "values": ["b"] }],
            } } }),
            "SpecInvalid",
            "spec.parentResource.labelSelector.matchExpressions[0].operator",
        ),
    ];
    let good = supervised.spec(&crd);
    for (size, (change, reason, field)) in (2..).zip(wrong) {
        let generation = supervised.edit("a", json!({ "spec": change })).await;

        let status = supervised.status("a", field, |status| {
            status.observed_generation == Some(generation)
                && condition(status, "Ready").message.contains(field)
        });
        let status = status.await;
        assert_eq!(condition(&status, "Ready").reason, reason);
        assert_eq!(condition(&status, "Ready").status, "False");
        assert_eq!(condition(&status, "Running").status, "True");
        assert_eq!(status.state.as_deref(), Some("Running"));
        assert_eq!(status.reason.as_deref(), Some(reason), "the printer column shows the reason");
        let event = supervised.event(&name, "CreateError", field).await;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        supervised.resize(&crd, "gear", size).await;
        supervised.child("gear", size).await;
        assert_eq!(harness.status(&supervised.runnable("a")).epoch, 1);

        // The error is reverted, so that the spec equals the running one.
        let mut undo = good.clone();
        undo["parentResource"]["labelSelector"] = Value::Null;
        supervised.edit("a", json!({ "spec": undo })).await;
        supervised.runs("a", 1).await;
    }

    supervised.hook.answers(|request| {
        let mut child = config_map(request);
        child["data"]["fixed"] = json!("yes");
        Answer::Json(json!({ "status": status_of(request), "children": [child] }))
    });
    let mut other = good.clone();
    other["hooks"]["sync"]["webhook"]["responseUnMarshallMode"] = json!("strict");
    supervised.edit("a", json!({ "spec": other })).await;
    supervised.runs("a", 1).await;
    supervised
        .config_map("gear", "belongs to the new parent", |child| {
            child.and_then(|child| child.data.as_ref()?.get("fixed")).is_some()
        })
        .await;
    supervised.end().await;
}

#[tokio::test]
async fn edit_that_needs_a_missing_type_takes_over_when_the_type_is_installed() {
    let (supervised, crd) = Supervised::at_work("edit-pending").await;
    let harness = &supervised.harness;
    let gadgets = CrdBuilder::new(&harness.scope.group, "Gadget");

    let mut spec = supervised.spec(&crd);
    let more =
        json!({ "apiVersion": format!("{}/v1", harness.scope.group), "resource": "gadgets" });
    spec["childResources"].as_array_mut().unwrap().push(more);
    let generation = supervised.edit("a", json!({ "spec": spec })).await;

    let pending = supervised.status("a", "is pending", |status| {
        status.observed_generation == Some(generation)
            && condition(status, "Ready").reason == "SpecPending"
    });
    let pending = pending.await;
    let ready = condition(&pending, "Ready");
    assert_eq!(ready.status, "False");
    assert!(ready.message.contains("gadgets"), "{}", ready.message);
    assert_eq!(condition(&pending, "Running").status, "True");
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    assert_eq!(harness.status(&supervised.runnable("a")).epoch, 1);

    supervised.install(&gadgets).await;
    assert_eq!(harness.done(&supervised.runnable("a"), 1).await, DoneReason::Superseded);
    supervised.runs("a", 2).await;
    let has_both_types =
        |call: &Call| call.body["children"].as_object().is_some_and(|groups| groups.len() == 2);
    supervised.hook.called("with both child types", has_both_types).await;
    supervised.end().await;
}

#[tokio::test]
async fn an_edit_to_a_missing_parent_type_takes_over_when_that_is_installed() {
    let (supervised, crd) = Supervised::at_work("edit-parent").await;
    let harness = &supervised.harness;
    let gadgets = CrdBuilder::new(&harness.scope.group, "Gadget");

    let generation = supervised.edit("a", json!({ "spec": supervised.spec(&gadgets) })).await;

    let pending = supervised.status("a", "is pending", |status| {
        status.observed_generation == Some(generation)
            && condition(status, "Ready").reason == "SpecPending"
    });
    let pending = condition(&pending.await, "Ready");
    assert!(pending.message.contains("gadgets"), "{}", pending.message);
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    assert_eq!(harness.status(&supervised.runnable("a")).epoch, 1, "the old epoch continues");

    supervised.install(&gadgets).await;
    harness.create(&gadgets, "cog", 5).await;
    assert_eq!(harness.done(&supervised.runnable("a"), 1).await, DoneReason::Superseded);
    supervised.runs("a", 2).await;
    supervised.child("cog", 5).await;
    let calls = supervised.hook.count("gear");
    supervised.resize(&crd, "gear", 3).await;
    supervised.resize(&gadgets, "cog", 6).await;
    supervised.child("cog", 6).await;
    assert_eq!(supervised.hook.count("gear"), calls, "no controller syncs the old parents");
    assert_eq!(harness.assert_orderly(&supervised.runnable("a")), 1);
    supervised.end().await;
}

#[tokio::test]
async fn a_pending_edit_can_be_reverted() {
    let (supervised, crd) = Supervised::at_work("edit-back").await;
    let harness = &supervised.harness;

    let away = json!({ "spec": { "parentResource": { "resource": "nothings" } } });
    supervised.edit("a", away).await;
    supervised.status("a", "is pending", |it| condition(it, "Ready").reason == "SpecPending").await;
    let back = json!({ "spec": { "parentResource": { "resource": "widgets" } } });
    let generation = supervised.edit("a", back).await;

    let ready = supervised.status("a", "is ready again", |status| {
        status.observed_generation == Some(generation)
            && condition(status, "Ready").status == "True"
    });
    ready.await;
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    let status = harness.status(&supervised.runnable("a"));
    assert_eq!(status.state, ControllerState::Running);
    assert_eq!((status.pending.as_deref(), status.epoch), (None, 1), "nothing is restarted");
    supervised.end().await;
}
