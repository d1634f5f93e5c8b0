//! Pilotlight's own CRDs: missing at the start, deleted under running controllers, and back.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    runtime::wait::{await_condition, conditions},
};
use pilotlight::{
    manager::{ControllerState, DoneReason},
    meta::SUPERVISOR,
    testing::{ControlPlane, ControlPlaneOptions, CrdBuilder},
};
use serde_json::json;
use tokio::time::timeout;

use crate::rig::{PATIENCE, Stage, condition, install_own_crds};

const OWN: &str = "compositecontrollers.metacontroller.k8s.io";

#[tokio::test]
async fn declared_controllers_outlive_their_own_crd() {
    // A control plane of its own, since all others need the CRD.
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let stage = Stage::on(&plane, "own-crds").await;
    let rig = &stage.rig;
    let (crd, gadgets) = (rig.widgets(), CrdBuilder::new(&rig.scope.group, "Gadget"));
    let own = Api::<CustomResourceDefinition>::all(rig.scope.client());

    let waiting = rig.until(SUPERVISOR, "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("compositecontrollers"), "{}", waiting.message);

    install_own_crds(&plane).await;
    rig.state(SUPERVISOR, ControllerState::Running).await;
    let names = ["same", "edited", "gone"];
    for last in names {
        let mut spec = stage.spec(if last == "same" { &crd } else { &gadgets });
        spec["hooks"]["sync"]["webhook"]["timeout"] = json!("9s");
        spec["parentResource"]["labelSelector"] = match last {
            "same" => json!(null),
            _ => json!({ "matchLabels": { "of": last } }),
        };
        stage.declare(last, spec).await;
    }
    stage.install(&crd).await;
    stage.install(&gadgets).await;
    rig.create(&crd, "gear", 1).await;
    stage.child("gear", 1).await;
    for last in names {
        rig.running(&stage.runnable(last), 1).await;
    }
    let mut kept = stage.controllers().get(&stage.name("same")).await.unwrap();
    let mut edited = stage.controllers().get(&stage.name("edited")).await.unwrap();

    own.delete(OWN, &DeleteParams::default()).await.unwrap();
    rig.until(SUPERVISOR, "waits again", |it| it.reason == "TypeAbsent").await;
    let uid = |crd: Option<&CustomResourceDefinition>| crd.is_none();
    timeout(PATIENCE, await_condition(own.clone(), OWN, uid)).await.unwrap().unwrap();
    stage.resize(&crd, "gear", 2).await;
    stage.child("gear", 2).await;
    for last in names {
        let status = rig.status(&stage.runnable(last));
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1), "{last}");
    }

    install_own_crds(&plane).await;
    rig.state(SUPERVISOR, ControllerState::Running).await;
    for object in [&mut kept, &mut edited] {
        object.metadata.uid = None;
        object.metadata.resource_version = None;
        object.metadata.managed_fields = None;
        object.data.as_object_mut().unwrap().remove("status");
    }
    edited.data["spec"]["hooks"]["sync"]["webhook"]["timeout"] = json!("8s");
    for object in [&kept, &edited] {
        stage.controllers().create(&PostParams::default(), object).await.unwrap();
    }

    // The equal one goes on, the edited one is replaced, and the lost one is given time.
    stage.runs("same", 1).await;
    stage.runs("edited", 2).await;
    assert_eq!(rig.done(&stage.runnable("edited"), 1).await, DoneReason::Superseded);
    assert_eq!(rig.status(&stage.runnable("same")).epoch, 1);
    assert_eq!(rig.status(&stage.runnable("gone")).state, ControllerState::Running);
    stage.resize(&crd, "gear", 3).await;
    stage.child("gear", 3).await;

    // Where the object really is deleted, its controller stops.
    stage.controllers().delete(&stage.name("same"), &DeleteParams::default()).await.unwrap();
    assert_eq!(rig.done(&stage.runnable("same"), 1).await, DoneReason::Cancelled);
    let status = stage.status("edited", "is told", |it| condition(it, "Running").status == "True");
    assert_eq!(status.await.epoch, Some(2));
    let established = await_condition(own, OWN, conditions::is_crd_established());
    timeout(PATIENCE, established).await.unwrap().unwrap();
    stage.end().await;
    plane.stop().await;
}
