//! A declared controller, from its object to its children and back, with a real hook.

mod children;
mod hook;
mod related;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    informer::{EndReason, InformerKey},
    manager::{ControllerState, DoneReason},
    testing::{CrdBuilder, RequestInfo, Verb},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::support::{
    Answer, Call, PATIENCE, Supervised, condition, config_map, one_config_map, status_of, type_of,
    until, until_within,
};

#[tokio::test]
async fn a_declared_controller_lives_and_dies_with_its_type() {
    let supervised = Supervised::start("story-composite").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let (widgets, story) = (type_of(&crd, "v1"), supervised.runnable("story"));

    supervised.declare("story", supervised.spec(&crd)).await;
    let waiting =
        supervised.status("story", "waits", |it| it.reason.as_deref() == Some("TypeAbsent"));
    let waiting = waiting.await;
    assert_eq!(waiting.state.as_deref(), Some("Waiting"));
    assert_eq!(condition(&waiting, "TypesReady").status, "False");
    let message = condition(&waiting, "Ready").message;
    assert!(message.contains("widgets") && message.contains("is not installed"), "{message}");
    harness.warm_up().await;
    // An Event opens the connection for writes, whose tasks must not count against the first stop.
    let tasks = harness.alive_tasks() + 2;
    let mut absence = harness.assert_absent(&crd, tasks).await;

    for round in 1..=2 {
        absence.end(harness).await;
        // Children of a removed type wait for the garbage collector, so each round uses other
        // names.
        let (gear, held) = (format!("gear-{round}"), format!("held-{round}"));
        let (let_go, waits) = watch::channel(false);
        supervised.hook.answers(move |request| {
            match request["parent"]["metadata"]["name"].as_str() {
                Some(name) if name.starts_with("held") => {
                    Answer::Hold(waits.clone(), Box::new(one_config_map(request)))
                }
                _ => one_config_map(request),
            }
        });
        supervised.install(&crd).await;
        harness.running(&story, round).await;
        let served = harness.cluster.types.served(&widgets).unwrap();
        harness.create(&crd, &gear, 7).await;
        let child = supervised.child(&gear, 7).await;
        assert_eq!(child.owner_references()[0].name, gear);
        supervised.runs("story", i64::try_from(round).unwrap()).await;
        harness.create(&crd, &held, 8).await;
        supervised.hook.called(&held, |call| call.parent() == held).await;
        let ended = harness.cluster.informers.ended(&InformerKey::new(served.identity.clone()));

        harness.scope.delete_crd(&crd).await.unwrap();

        assert_eq!(harness.done(&story, round).await, DoneReason::TypeGone);
        let calls = supervised.hook.calls().len();
        absence = harness.assert_absent(&crd, tasks).await;
        assert_eq!(timeout(Duration::from_secs(1), ended).await.unwrap(), EndReason::TypeGone);
        let_go.send_replace(true);
        let status = supervised.status("story", "waits again", |status| {
            status.state.as_deref() == Some("Waiting")
                && status.reason.as_deref() == Some("TypeAbsent")
        });
        assert_eq!(status.await.epoch, i64::try_from(round).ok());
        timeout(PATIENCE, harness.scope.wait_gone(&crd)).await.unwrap().unwrap();
        assert!(supervised.config_maps().get_opt(&held).await.unwrap().is_none());
        assert_eq!(supervised.hook.calls().len(), calls, "no hook is called after done");
        let writes = |seen: &pilotlight::testing::RequestInfo| {
            seen.resource == "configmaps"
                && !matches!(seen.verb, Verb::Get | Verb::List | Verb::Watch)
        };
        let written: Vec<_> = harness.faults.seen().into_iter().filter(writes).collect();
        assert!(written.is_empty(), "written after done: {written:#?}");
    }
    absence.end(harness).await;
    assert_eq!(harness.assert_orderly(&story), 2);
    for reason in ["Starting", "Started", "Stopping", "Stopped"] {
        let event = supervised.event(&supervised.name("story"), reason, "story").await;
        let component = event.source.and_then(|source| source.component);
        assert_eq!(component.as_deref(), Some("metacontroller"));
    }
    supervised.end().await;
}

#[tokio::test]
async fn a_declared_controller_runs_until_finalizers_are_gone() {
    let supervised = Supervised::start("composite-finalizer").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let finisher = supervised.runnable("finisher");
    supervised.declare("finisher", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.running(&finisher, 1).await;
    let api = harness.scope.api(&crd, "v1");
    let mut held = crd.object("held", json!({ "size": 1 }));
    held.metadata.finalizers = Some(vec!["pilotlight.test/hold".to_owned()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    supervised.child("held", 1).await;

    harness.scope.delete_crd(&crd).await.unwrap();
    let going = |call: &Call| call.body["parent"]["metadata"]["deletionTimestamp"].is_string();
    supervised.hook.called("about the parent in deletion", going).await;
    let resize = Patch::Merge(json!({ "spec": { "size": 2 } }));
    api.patch("held", &PatchParams::default(), &resize).await.unwrap();
    let changed = |call: &Call| call.body["parent"]["spec"]["size"] == 2;
    supervised.hook.called("about a change while the type terminates", changed).await;
    assert_eq!(harness.status(&finisher).state, ControllerState::Running);
    supervised.child("held", 1).await;

    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch("held", &PatchParams::default(), &release).await.unwrap();

    assert_eq!(harness.done(&finisher, 1).await, DoneReason::TypeGone);
    harness.scope.wait_gone(&crd).await.unwrap();
    assert_eq!(harness.assert_orderly(&finisher), 1);
    supervised.end().await;
}

#[tokio::test]
async fn a_list_of_controllers_has_their_states() {
    let supervised = Supervised::start("columns").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.status("a", "waits", |it| it.reason.as_deref() == Some("TypeAbsent")).await;
    assert_eq!(
        row(&supervised, "a").await[..6],
        [
            json!(supervised.name("a")),
            json!("False"),
            json!("Waiting"),
            json!("TypeAbsent"),
            json!("Unknown"),
            json!("widgets")
        ]
    );

    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;
    supervised.runs("a", 1).await;
    let status = supervised.status("a", "its hook answers", |status| {
        condition(status, "HooksHealthy").status == "True"
    });
    let status = status.await;

    assert_eq!(
        row(&supervised, "a").await[..6],
        [
            json!(supervised.name("a")),
            json!("True"),
            json!("Running"),
            json!("Running"),
            json!("True"),
            json!("widgets")
        ]
    );
    for type_ in ["Ready", "TypesReady", "Running", "HooksHealthy"] {
        assert_eq!(condition(&status, type_).status, "True", "{status:#?}");
    }
    let mut watched: Vec<_> =
        status.watches.iter().map(|it| (it.resource.as_str(), it.state.as_str())).collect();
    watched.sort_unstable();
    assert_eq!(watched.iter().map(|it| it.0).collect::<Vec<_>>(), ["configmaps", "widgets"]);
    assert_eq!(status.observed_generation, Some(1));
    supervised.end().await;
}

#[tokio::test]
async fn the_pause_annotation_stops_a_controller_until_it_is_removed() {
    let (supervised, crd) = Supervised::at_work("pause").await;
    let harness = &supervised.harness;

    let annotate =
        |value: Value| json!({ "metadata": { "annotations": { "pilotlight.dev/paused": value } } });
    supervised.edit("a", annotate(json!("true"))).await;
    let paused = supervised.status("a", "pauses", |it| it.state.as_deref() == Some("Paused")).await;
    assert_eq!(condition(&paused, "Running").status, "False");
    assert!(harness.manager.status_of(supervised.runnable("a").as_str()).is_none());
    let before = supervised.hook.count("gear");
    supervised.resize(&crd, "gear", 2).await;
    assert!(supervised.config_maps().get_opt("gear").await.unwrap().is_some(), "children stay");

    supervised.edit("a", annotate(Value::Null)).await;
    supervised.child("gear", 2).await;
    assert!(supervised.hook.count("gear") > before);
    supervised.status("a", "runs", |it| it.state.as_deref() == Some("Running")).await;
    supervised.end().await;
}

#[tokio::test]
async fn an_optional_type_is_installed_and_removed_without_a_restart() {
    let supervised = Supervised::start("optional").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let gadgets = CrdBuilder::new(&harness.scope.group, "Gadget");
    let group = harness.scope.group.clone();
    supervised.hook.answers(move |request| {
        let gadget = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "Gadget",
            "metadata": { "name": request["parent"]["metadata"]["name"] },
        });
        let children = [config_map(request), gadget];
        Answer::Json(json!({ "status": status_of(request), "children": children }))
    });
    let mut spec = supervised.spec(&crd);
    let optional = json!({
        "apiVersion": format!("{}/v1", harness.scope.group), "resource": "gadgets", "optional": true,
    });
    spec["childResources"].as_array_mut().unwrap().push(optional);
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    supervised.child("gear", 1).await;
    let missing = supervised.status("a", "runs without the optional type", |status| {
        condition(status, "TypesReady").reason == "OptionalTypesMissing"
    });
    let missing = missing.await;
    assert!(condition(&missing, "TypesReady").message.contains("gadgets"), "{missing:#?}");
    assert_eq!(missing.state.as_deref(), Some("Running"));

    for _ in 0..2 {
        supervised.install(&gadgets).await;
        let api = harness.scope.api(&gadgets, "v1");
        until("the optional child is created", async || {
            api.get("gear").await.map_err(|error| error.to_string())
        })
        .await;
        supervised
            .status("a", "has all its types", |status| {
                condition(status, "TypesReady").reason == "TypesServed"
            })
            .await;

        harness.scope.delete_crd(&gadgets).await.unwrap();
        timeout(PATIENCE, harness.scope.wait_gone(&gadgets)).await.unwrap().unwrap();
        supervised
            .status("a", "lacks the optional type", |status| {
                condition(status, "TypesReady").reason == "OptionalTypesMissing"
            })
            .await;
    }
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    let status = harness.status(&supervised.runnable("a"));
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    supervised.end().await;
}

#[tokio::test]
async fn deleted_controller_stops_and_keeps_its_children() {
    let (supervised, crd) = Supervised::at_work("deleted").await;
    let harness = &supervised.harness;
    let child = supervised.child("gear", 1).await;

    let name = supervised.name("a");
    supervised.controllers().delete(&name, &DeleteParams::default()).await.unwrap();

    assert_eq!(harness.done(&supervised.runnable("a"), 1).await, DoneReason::Cancelled);
    supervised.event(&name, "Stopped", "Stopped").await;
    let before = supervised.hook.calls().len();
    supervised.resize(&crd, "gear", 2).await;
    let open = harness.faults.open();
    assert!(supervised.config_maps().get("gear").await.unwrap().uid() == child.uid(), "{open:?}");
    assert_eq!(supervised.hook.calls().len(), before);
    supervised.end().await;
}

#[tokio::test]
async fn controller_that_leaves_the_target_selector_stops_at_once() {
    let supervised = Supervised::start("target").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    supervised.runs("a", 1).await;

    let label =
        |value: Value| json!({ "metadata": { "labels": { "pilotlight.test/scope": value } } });
    supervised.edit("a", label(Value::Null)).await;
    assert_eq!(harness.done(&supervised.runnable("a"), 1).await, DoneReason::Cancelled);

    supervised.edit("a", label(json!(harness.scope.namespace))).await;
    harness.state(&supervised.runnable("a"), ControllerState::Running).await;
    supervised.end().await;
}

/// Cells of a controller's row, as kubectl requests them.
async fn row(supervised: &Supervised<'_>, last: &str) -> Vec<Value> {
    let name = supervised.name(last);
    let path = format!("/apis/metacontroller.k8s.io/v1alpha1/compositecontrollers/{name}");
    let request = http::Request::get(path)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = supervised.harness.scope.client().request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    let names: Vec<_> = columns.map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Ready", "State", "Reason", "Hooks", "Parent", "Age"]);
    table["rows"][0]["cells"].as_array().unwrap().clone()
}
