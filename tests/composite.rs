//! A declared controller from its object to its children and back, with a real hook.

mod children;
mod hook;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    informer::{Ended, InformerKey},
    manager::{ControllerState, DoneReason},
    testing::{CrdBuilder, RequestInfo, Verb},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::rig::{
    Answer, Call, PATIENCE, Stage, condition, config_map, one_config_map, status_of, type_of,
    until, until_within,
};

#[tokio::test]
async fn a_declared_controller_lives_and_dies_with_its_type() {
    let stage = Stage::start("story-composite").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let (widgets, story) = (type_of(&crd, "v1"), stage.runnable("story"));

    stage.declare("story", stage.spec(&crd)).await;
    let waiting = stage.status("story", "waits", |it| it.reason.as_deref() == Some("TypeAbsent"));
    let waiting = waiting.await;
    assert_eq!(waiting.state.as_deref(), Some("Waiting"));
    assert_eq!(condition(&waiting, "TypesReady").status, "False");
    let message = condition(&waiting, "Ready").message;
    assert!(message.contains("widgets") && message.contains("is not installed"), "{message}");
    rig.warm_up().await;
    // An Event has opened the connection for writes: the first stop is not to be counted by it.
    let tasks = rig.alive_tasks() + 2;
    let mut absence = rig.assert_absent(&crd, tasks).await;

    for round in 1..=2 {
        absence.end(rig).await;
        // Children of a type that is gone wait for the garbage collector: each round has its own.
        let (gear, held) = (format!("gear-{round}"), format!("held-{round}"));
        let (let_go, waits) = watch::channel(false);
        stage.hook.answers(move |request| match request["parent"]["metadata"]["name"].as_str() {
            Some(name) if name.starts_with("held") => {
                Answer::Hold(waits.clone(), Box::new(one_config_map(request)))
            }
            _ => one_config_map(request),
        });
        stage.install(&crd).await;
        rig.running(&story, round).await;
        let served = rig.cluster.types.served(&widgets).unwrap();
        rig.create(&crd, &gear, 7).await;
        let child = stage.child(&gear, 7).await;
        assert_eq!(child.owner_references()[0].name, gear);
        stage.runs("story", i64::try_from(round).unwrap()).await;
        rig.create(&crd, &held, 8).await;
        stage.hook.asked(&held, |call| call.parent() == held).await;
        let ended = rig.cluster.informers.ended(&InformerKey::new(served.identity.clone()));

        rig.scope.delete_crd(&crd).await.unwrap();

        assert_eq!(rig.done(&story, round).await, DoneReason::TypeGone);
        let calls = stage.hook.calls().len();
        absence = rig.assert_absent(&crd, tasks).await;
        assert_eq!(timeout(Duration::from_secs(1), ended).await.unwrap(), Ended::TypeGone);
        let_go.send_replace(true);
        let status = stage.status("story", "waits again", |status| {
            status.state.as_deref() == Some("Waiting")
                && status.reason.as_deref() == Some("TypeAbsent")
        });
        assert_eq!(status.await.epoch, i64::try_from(round).ok());
        timeout(PATIENCE, rig.scope.wait_gone(&crd)).await.unwrap().unwrap();
        assert!(stage.config_maps().get_opt(&held).await.unwrap().is_none());
        assert_eq!(stage.hook.calls().len(), calls, "no hook is called after done");
        let writes = |seen: &pilotlight::testing::RequestInfo| {
            seen.resource == "configmaps"
                && !matches!(seen.verb, Verb::Get | Verb::List | Verb::Watch)
        };
        let written: Vec<_> = rig.faults.seen().into_iter().filter(writes).collect();
        assert!(written.is_empty(), "written after done: {written:#?}");
    }
    absence.end(rig).await;
    assert_eq!(rig.assert_orderly(&story), 2);
    for reason in ["Starting", "Started", "Stopping", "Stopped"] {
        let event = stage.event(&stage.name("story"), reason, "story").await;
        let component = event.source.and_then(|source| source.component);
        assert_eq!(component.as_deref(), Some("metacontroller"));
    }
    stage.end().await;
}

#[tokio::test]
async fn a_declared_controller_runs_until_finalizers_are_gone() {
    let stage = Stage::start("composite-finalizer").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let finisher = stage.runnable("finisher");
    stage.declare("finisher", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.running(&finisher, 1).await;
    let api = rig.scope.api(&crd, "v1");
    let mut held = crd.object("held", json!({ "size": 1 }));
    held.metadata.finalizers = Some(vec!["pilotlight.test/hold".to_owned()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    stage.child("held", 1).await;

    rig.scope.delete_crd(&crd).await.unwrap();
    let going = |call: &Call| call.body["parent"]["metadata"]["deletionTimestamp"].is_string();
    stage.hook.asked("about the one that goes", going).await;
    let resize = Patch::Merge(json!({ "spec": { "size": 2 } }));
    api.patch("held", &PatchParams::default(), &resize).await.unwrap();
    let changed = |call: &Call| call.body["parent"]["spec"]["size"] == 2;
    stage.hook.asked("about a change while the type terminates", changed).await;
    assert_eq!(rig.status(&finisher).state, ControllerState::Running);
    stage.child("held", 1).await;

    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch("held", &PatchParams::default(), &release).await.unwrap();

    assert_eq!(rig.done(&finisher, 1).await, DoneReason::TypeGone);
    rig.scope.wait_gone(&crd).await.unwrap();
    assert_eq!(rig.assert_orderly(&finisher), 1);
    stage.end().await;
}

#[tokio::test]
async fn a_list_of_controllers_shows_how_they_are() {
    let stage = Stage::start("columns").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.declare("a", stage.spec(&crd)).await;
    stage.status("a", "waits", |it| it.reason.as_deref() == Some("TypeAbsent")).await;
    assert_eq!(
        row(&stage, "a").await[..6],
        [
            json!(stage.name("a")),
            json!("False"),
            json!("Waiting"),
            json!("TypeAbsent"),
            json!("Unknown"),
            json!("widgets")
        ]
    );

    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;
    stage.runs("a", 1).await;
    let status = stage.status("a", "its hook answers", |status| {
        condition(status, "HooksHealthy").status == "True"
    });
    let status = status.await;

    assert_eq!(
        row(&stage, "a").await[..6],
        [
            json!(stage.name("a")),
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
    stage.end().await;
}

#[tokio::test]
async fn the_pause_annotation_stops_a_controller_until_it_goes() {
    let (stage, crd) = Stage::at_work("pause").await;
    let rig = &stage.rig;

    let annotate =
        |value: Value| json!({ "metadata": { "annotations": { "pilotlight.dev/paused": value } } });
    stage.edit("a", annotate(json!("true"))).await;
    let paused = stage.status("a", "pauses", |it| it.state.as_deref() == Some("Paused")).await;
    assert_eq!(condition(&paused, "Running").status, "False");
    assert!(rig.manager.status_of(stage.runnable("a").as_str()).is_none());
    let before = stage.hook.count("gear");
    stage.resize(&crd, "gear", 2).await;
    assert!(stage.config_maps().get_opt("gear").await.unwrap().is_some(), "children stay");

    stage.edit("a", annotate(Value::Null)).await;
    stage.child("gear", 2).await;
    assert!(stage.hook.count("gear") > before);
    stage.status("a", "runs", |it| it.state.as_deref() == Some("Running")).await;
    stage.end().await;
}

#[tokio::test]
async fn an_optional_type_comes_and_goes_without_a_restart() {
    let stage = Stage::start("optional").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let gadgets = CrdBuilder::new(&rig.scope.group, "Gadget");
    let group = rig.scope.group.clone();
    stage.hook.answers(move |request| {
        let gadget = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "Gadget",
            "metadata": { "name": request["parent"]["metadata"]["name"] },
        });
        let children = [config_map(request), gadget];
        Answer::Json(json!({ "status": status_of(request), "children": children }))
    });
    let mut spec = stage.spec(&crd);
    let optional = json!({
        "apiVersion": format!("{}/v1", rig.scope.group), "resource": "gadgets", "optional": true,
    });
    spec["childResources"].as_array_mut().unwrap().push(optional);
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;

    stage.child("gear", 1).await;
    let missing = stage.status("a", "runs without it", |status| {
        condition(status, "TypesReady").reason == "OptionalTypesMissing"
    });
    let missing = missing.await;
    assert!(condition(&missing, "TypesReady").message.contains("gadgets"), "{missing:#?}");
    assert_eq!(missing.state.as_deref(), Some("Running"));

    for _ in 0..2 {
        stage.install(&gadgets).await;
        let api = rig.scope.api(&gadgets, "v1");
        until("the optional child is created", async || {
            api.get("gear").await.map_err(|error| error.to_string())
        })
        .await;
        stage
            .status("a", "all is there", |status| {
                condition(status, "TypesReady").reason == "TypesServed"
            })
            .await;

        rig.scope.delete_crd(&gadgets).await.unwrap();
        timeout(PATIENCE, rig.scope.wait_gone(&gadgets)).await.unwrap().unwrap();
        stage
            .status("a", "it is missed", |status| {
                condition(status, "TypesReady").reason == "OptionalTypesMissing"
            })
            .await;
    }
    stage.resize(&crd, "gear", 2).await;
    stage.child("gear", 2).await;
    let status = rig.status(&stage.runnable("a"));
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    stage.end().await;
}

#[tokio::test]
async fn a_controller_that_is_deleted_stops_and_leaves_children_alone() {
    let (stage, crd) = Stage::at_work("deleted").await;
    let rig = &stage.rig;
    let child = stage.child("gear", 1).await;

    let name = stage.name("a");
    stage.controllers().delete(&name, &DeleteParams::default()).await.unwrap();

    assert_eq!(rig.done(&stage.runnable("a"), 1).await, DoneReason::Cancelled);
    stage.event(&name, "Stopped", "Stopped").await;
    let before = stage.hook.calls().len();
    stage.resize(&crd, "gear", 2).await;
    let open = rig.faults.open();
    assert!(stage.config_maps().get("gear").await.unwrap().uid() == child.uid(), "{open:?}");
    assert_eq!(stage.hook.calls().len(), before);
    stage.end().await;
}

#[tokio::test]
async fn a_controller_that_is_no_target_any_more_stops_at_once() {
    let stage = Stage::start("target").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;
    stage.runs("a", 1).await;

    let label =
        |value: Value| json!({ "metadata": { "labels": { "pilotlight.test/scope": value } } });
    stage.edit("a", label(Value::Null)).await;
    assert_eq!(rig.done(&stage.runnable("a"), 1).await, DoneReason::Cancelled);

    stage.edit("a", label(json!(rig.scope.namespace))).await;
    rig.state(&stage.runnable("a"), ControllerState::Running).await;
    stage.end().await;
}

/// The cells of a controller's row, as kubectl asks for them.
async fn row(stage: &Stage<'_>, last: &str) -> Vec<Value> {
    let name = stage.name(last);
    let path = format!("/apis/metacontroller.k8s.io/v1alpha1/compositecontrollers/{name}");
    let request = http::Request::get(path)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = stage.rig.scope.client().request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    let names: Vec<_> = columns.map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Ready", "State", "Reason", "Hooks", "Parent", "Age"]);
    table["rows"][0]["cells"].as_array().unwrap().clone()
}
