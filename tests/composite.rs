//! A declared controller from its object to its children and back, with a real hook.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    informer::{Ended, InformerKey},
    manager::{ControllerState, DoneReason},
    testing::{CrdBuilder, Verb},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

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
async fn children_follow_their_parent_and_go_with_it() {
    let stage = Stage::start("children").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let child = |kind: &str, request: &Value, field: &str, value: Value| {
        let mut child = config_map(request);
        child["kind"] = json!(kind);
        child.as_object_mut().unwrap().remove("data");
        child[field] = value;
        child
    };
    stage.hook.answers(move |request| {
        let size = request["parent"]["spec"]["size"].as_i64().unwrap();
        // "MQ==" is "1".
        let secret = if size == 1 { "MQ==" } else { "Mg==" };
        let mut account =
            child("ServiceAccount", request, "automountServiceAccountToken", json!(false));
        account["metadata"]["annotations"] = json!({ "size": size.to_string() });
        let mut children =
            vec![child("Secret", request, "data", json!({ "size": secret })), account];
        if size < 3 {
            children.push(config_map(request));
        }
        Answer::Json(json!({ "status": status_of(request), "children": children }))
    });
    let mut spec = stage.spec(&crd);
    let more = [
        json!({ "apiVersion": "v1", "resource": "secrets", "updateStrategy": { "method": "Recreate" } }),
        json!({ "apiVersion": "v1", "resource": "serviceaccounts" }),
    ];
    spec["childResources"].as_array_mut().unwrap().extend(more);
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    let uid = rig.create(&crd, "gear", 1).await;
    let client = || rig.scope.client();
    let namespace = &rig.scope.namespace;
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client(), namespace);
    let accounts =
        Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client(), namespace);

    let created = stage.child("gear", 1).await;
    let owner = &created.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Widget", uid.as_str()));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    let secret = until("the secret", async || secrets.get("gear").await.map_err(|e| e.to_string()));
    let secret = secret.await;
    let account =
        until("the account", async || accounts.get("gear").await.map_err(|e| e.to_string())).await;
    let by_hand = json!({ "data": { "by": "hand" } });
    let maps = stage.config_maps();
    maps.patch("gear", &PatchParams::default(), &Patch::Merge(by_hand)).await.unwrap();

    stage.resize(&crd, "gear", 2).await;
    let updated = stage.child("gear", 2).await;
    assert_eq!(updated.uid(), created.uid(), "in place");
    assert_eq!(updated.data.unwrap()["by"], "hand", "what others wrote stays");
    until("the secret is another one", async || {
        let found = secrets.get("gear").await.map_err(|error| error.to_string())?;
        if found.uid() == secret.uid() { Err("the same".to_owned()) } else { Ok(()) }
    })
    .await;
    let parents = rig.scope.api(&crd, "v1");
    until("the status follows", async || {
        let status = parents.get("gear").await.unwrap().data["status"].clone();
        let wanted = json!({ "size": 2, "observedGeneration": 2 });
        if status == wanted { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    assert_eq!(accounts.get("gear").await.unwrap().uid(), account.uid());
    assert_eq!(accounts.get("gear").await.unwrap().annotations()["size"], "1", "on delete alone");

    accounts.delete("gear", &DeleteParams::default()).await.unwrap();
    until("the account is made anew", async || match accounts.get("gear").await {
        Ok(account) if account.annotations()["size"] == "2" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    stage.resize(&crd, "gear", 3).await;
    stage.config_map("gear", "is wanted no more", |child| child.is_none()).await;
    assert!(secrets.get_opt("gear").await.unwrap().is_some());

    parents.delete("gear", &DeleteParams::default()).await.unwrap();
    // The garbage collector learns of new types every 30 s, and begins anew when one of those that
    // other tests install and delete goes meanwhile.
    until_within(Duration::from_secs(300), "its children go with it", async || {
        match (secrets.get_opt("gear").await, accounts.get_opt("gear").await) {
            (Ok(None), Ok(None)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    stage.end().await;
}

#[tokio::test]
async fn a_child_in_a_namespace_that_is_not_watched_is_refused() {
    let stage = Stage::restricted("restricted").await;
    let rig = &stage.rig;
    let crd = rig.widgets().cluster_scoped();
    let own = rig.scope.namespace.clone();
    stage.hook.answers(move |request| {
        let mut child = config_map(request);
        let far = request["parent"]["spec"]["size"] == 1;
        child["metadata"]["namespace"] = json!(if far { "default" } else { &own });
        Answer::Json(json!({ "status": {}, "children": [child] }))
    });
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;
    // Named so that no other test meets it in the namespace of all.
    let gear = stage.name("gear");
    rig.create(&crd, &gear, 1).await;

    stage.event(&gear, "SyncError", "children[0].metadata.namespace").await;
    let elsewhere = Api::<ConfigMap>::namespaced(rig.scope.client(), "default");
    assert!(elsewhere.get_opt(&gear).await.unwrap().is_none(), "it is not created even once");

    stage.resize(&crd, &gear, 2).await;
    stage.child(&gear, 2).await;
    stage.end().await;
}

#[tokio::test]
async fn a_child_that_is_recreated_keeps_the_port_that_it_holds() {
    let stage = Stage::start("recreate").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|request| {
        let size = &request["parent"]["spec"]["size"];
        // Of the range that the server gives to nobody who asks for none.
        let port = json!({ "port": 80, "nodePort": 30017 });
        let spec = json!({
            "type": "NodePort", "selector": { "size": size.to_string() }, "ports": [port],
        });
        let mut service = config_map(request);
        service["kind"] = json!("Service");
        service.as_object_mut().unwrap().remove("data");
        service["spec"] = spec;
        Answer::Json(json!({ "status": {}, "children": [service] }))
    });
    let mut spec = stage.spec(&crd);
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "services", "updateStrategy": { "method": "Recreate" },
    }]);
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;
    let services = Api::<Service>::namespaced(rig.scope.client(), &rig.scope.namespace);
    let of_size = async |size: &str| {
        until("the service", async || {
            let service = services.get("gear").await.map_err(|error| error.to_string())?;
            let spec = service.spec.clone().unwrap();
            match spec.selector.unwrap()["size"] == size {
                true => Ok(service.uid()),
                false => Err(format!("{service:?}")),
            }
        })
        .await
    };
    let first = of_size("1").await;

    stage.resize(&crd, "gear", 2).await;

    // A dry run finds the port taken, by the very one that goes.
    assert_ne!(of_size("2").await, first);
    stage.end().await;
}

#[tokio::test]
async fn orphans_that_match_are_adopted_and_children_that_do_not_are_released() {
    let stage = Stage::start("claims").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|request| {
        let mut child = config_map(request);
        child["metadata"]["labels"] = json!({ "app": "gear" });
        Answer::Json(json!({ "status": status_of(request), "children": [child] }))
    });
    let orphan: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": "gear", "labels": { "app": "gear" } },
        "data": { "by": "hand" },
    }))
    .unwrap();
    let maps = stage.config_maps();
    let orphan = maps.create(&PostParams::default(), &orphan).await.unwrap();
    let mut spec = stage.spec(&crd);
    spec["generateSelector"] = json!(false);
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    let parents = rig.scope.api(&crd, "v1");
    let spec = json!({ "size": 4, "selector": { "matchLabels": { "app": "gear" } } });
    parents.create(&PostParams::default(), &crd.object("gear", spec)).await.unwrap();

    let adopted = stage.child("gear", 4).await;
    assert_eq!(adopted.uid(), orphan.uid());
    assert_eq!(adopted.owner_references()[0].name, "gear");
    assert_eq!(adopted.data.unwrap()["by"], "hand");

    let change = json!({ "metadata": { "labels": { "app": "other" } } });
    maps.patch("gear", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let free = |child: Option<&ConfigMap>| child.is_some_and(|it| it.owner_references().is_empty());
    let released = stage.config_map("gear", "is released", free).await.unwrap();
    assert_eq!(released.uid(), orphan.uid());
    let told = stage.event("gear", "SyncError", "belongs to nobody").await;
    assert_eq!(told.source.unwrap().component.as_deref(), Some("metacontroller"));
    assert_eq!(maps.get("gear").await.unwrap().uid(), orphan.uid(), "it is left alone");
    stage.end().await;
}

#[tokio::test]
async fn a_hook_is_asked_as_metacontroller_asks() {
    let stage = Stage::start("requests").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.declare("one", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;

    let first = stage.hook.asked("at first", |call| call.parent() == "gear").await;
    let has_child = |call: &Call| call.body["children"]["ConfigMap.v1"] != json!({});
    let second = stage.hook.asked("with its child", has_child).await;

    assert_eq!(first.headers["content-type"], "application/json");
    let body = &first.body;
    let mut fields: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["children", "controller", "finalizing", "parent", "related"]);
    assert_eq!(body["children"], json!({ "ConfigMap.v1": {} }));
    assert_eq!((&body["related"], &body["finalizing"]), (&json!({}), &json!(false)));
    assert_eq!(body["controller"]["apiVersion"], "metacontroller.k8s.io/v1alpha1");
    assert_eq!(body["controller"]["kind"], "CompositeController");
    assert_eq!(body["controller"]["metadata"]["name"], stage.name("one"));
    assert_eq!(
        body["controller"]["spec"]["hooks"]["sync"]["version"], "v1",
        "as the server has it"
    );
    assert_eq!(body["parent"]["apiVersion"], json!(format!("{}/v1", rig.scope.group)));
    assert_eq!(body["parent"]["kind"], "Widget");
    let child = &second.body["children"]["ConfigMap.v1"]["gear"];
    assert_eq!((&child["kind"], &child["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let last = child["metadata"]["annotations"]["metacontroller.k8s.io/last-applied-configuration"]
        .as_str()
        .unwrap();
    assert!(last.contains(r#""data":{"size":"1"}"#), "{last}");

    let change = json!({ "spec": { "hooks": { "sync": { "version": "v2" } } } });
    stage.edit("one", change).await;
    let key = format!("{}/gear", rig.scope.namespace);
    let uniform = |call: &Call| call.body["children"]["ConfigMap.v1"][&key].is_object();
    stage.hook.asked("with the keys of version 2", uniform).await;
    stage.end().await;
}

#[tokio::test]
async fn parents_are_synced_again_when_they_or_their_hook_want_it() {
    let stage = Stage::start("resync").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|request| {
        let again = match request["parent"]["metadata"]["name"].as_str() {
            Some("soon") => 0.05,
            _ => 0.0,
        };
        Answer::Json(json!({ "status": {}, "children": [], "resyncAfterSeconds": again }))
    });
    stage.declare("asked", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.create(&crd, "soon", 1).await;
    rig.create(&crd, "never", 1).await;
    stage.hook.asked("never", |call| call.parent() == "never").await;
    let before = stage.hook.count("soon");
    for more in 0..10 {
        stage.hook.asked_again("soon", before + more).await;
    }
    // Its own status may bring it back once.
    assert!(stage.hook.count("never") <= 2, "{}", stage.hook.count("never"));

    stage.edit("asked", json!({ "spec": { "resyncPeriodSeconds": 1 } })).await;
    let before = stage.hook.count("never");
    for more in 0..4 {
        stage.hook.asked_again("never", before + more).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn a_busy_hook_is_left_alone_for_as_long_as_it_asks() {
    let stage = Stage::start("busy").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|_| Answer::Status(429, vec![("Retry-After", "1".to_owned())]));
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;
    stage.hook.asked_again("gear", 0).await;
    stage.hook.asked_again("gear", 1).await;
    stage.hook.answers(one_config_map);
    stage.child("gear", 1).await;

    let calls = stage.hook.calls();
    let apart = calls[1].at - calls[0].at;
    assert!(apart >= Duration::from_secs(1), "{apart:?}");
    let about = stage.rig.scope.client();
    let events = Api::<k8s_openapi::api::core::v1::Event>::namespaced(about, &rig.scope.namespace);
    let events = events.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(events.items.is_empty(), "{:#?}", events.items);
    stage.end().await;
}

#[tokio::test]
async fn a_hook_that_hangs_holds_up_its_own_parents_alone() {
    let stage = Stage::start("hanging").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let (_hold, held) = watch::channel(false);
    let stuck = stage.name("stuck");
    stage.hook.answers(move |request| {
        if request["controller"]["metadata"]["name"] == *stuck {
            Answer::Hold(held.clone(), Box::new(one_config_map(request)))
        } else {
            one_config_map(request)
        }
    });
    let gadgets = CrdBuilder::new(&rig.scope.group, "Gadget");
    let mut spec = stage.spec(&gadgets);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("300ms");
    stage.declare("stuck", spec).await;
    for one in 0..5 {
        let mut spec = stage.spec(&crd);
        let label = json!({ "matchLabels": { "run-by": one.to_string() } });
        spec["parentResource"]["labelSelector"] = label;
        stage.declare(&format!("fine-{one}"), spec).await;
    }
    stage.install(&gadgets).await;
    stage.install(&crd).await;
    for one in 0..10 {
        rig.create(&gadgets, &format!("stuck-{one}"), 1).await;
    }
    stage.hook.asked("a stuck one", |call| call.parent().starts_with("stuck")).await;

    let parents = rig.scope.api(&crd, "v1");
    for one in 0..20 {
        let mut parent = crd.object(&format!("fine-{one}"), json!({ "size": one }));
        let label = [("run-by".to_owned(), (one % 5).to_string())];
        parent.metadata.labels = Some(label.into());
        parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    for one in 0..20 {
        stage.child(&format!("fine-{one}"), one).await;
        assert_eq!(stage.hook.count(&format!("fine-{one}")).min(1), 1);
    }
    let unhealthy = stage.status("stuck", "its hook is unhealthy", |status| {
        condition(status, "HooksHealthy").reason == "HookTimeout"
    });
    let unhealthy = condition(&unhealthy.await, "HooksHealthy");
    assert_eq!(unhealthy.status, "False");
    assert!(unhealthy.message.contains("stuck-"), "{}", unhealthy.message);
    stage
        .status("fine-0", "its hook is healthy", |status| {
            condition(status, "HooksHealthy").status == "True"
        })
        .await;
    stage.event("stuck-0", "SyncError", "300").await;
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
        row(&stage, "a").await[..5],
        [
            json!(stage.name("a")),
            json!("False"),
            json!("Waiting"),
            json!("TypeAbsent"),
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
        row(&stage, "a").await[..5],
        [
            json!(stage.name("a")),
            json!("True"),
            json!("Running"),
            json!("Running"),
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
    assert_eq!(names, ["Name", "Ready", "State", "Reason", "Parent", "Age"]);
    table["rows"][0]["cells"].as_array().unwrap().clone()
}
