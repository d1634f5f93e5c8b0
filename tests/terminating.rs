//! Terminating is not gone: a controller outlives the deletion of its type's CRD until finalizers
//! have finished.

use kube::api::{Patch, PatchParams, PostParams};
use pilotlight::{
    discovery::TypeState,
    manager::{ControllerState, DoneReason},
};
use serde_json::json;

use crate::support::{
    Act, ControllerVariant, Embedded, Harness, Listening, RecordingReconciler, type_of,
};

#[tokio::test]
async fn an_embedded_controller_runs_until_finalizers_are_gone() {
    runs_until_finalizers_are_gone("terminating-embedded", Embedded).await;
}

#[tokio::test]
async fn a_conditional_runnable_runs_until_finalizers_are_gone() {
    runs_until_finalizers_are_gone("terminating-runnable", Listening).await;
}

async fn runs_until_finalizers_are_gone(name: &str, variant: impl ControllerVariant) {
    let harness = Harness::start(name).await;
    let crd = harness.widgets();
    let widgets = type_of(&crd, "v1");
    let recorder = RecordingReconciler::new(widgets.clone());
    variant.add(&harness, "finisher", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running("finisher", 1).await;
    let api = harness.scope.api(&crd, "v1");
    let mut held = crd.object("held", json!({ "size": 1 }));
    held.metadata.finalizers = Some(vec!["pilotlight.test/hold".to_owned()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    recorder.saw("held", 1).await;
    recorder.clear();

    harness.scope.delete_crd(&crd).await.unwrap();
    let terminating = |state: &TypeState| *state == TypeState::Terminating;
    harness.type_state(&widgets, "terminates", terminating).await;
    // The server deletes every object; this one stays, with a deletion timestamp.
    recorder.saw("held", 1).await;
    assert_eq!(harness.status("finisher").state, ControllerState::Running);
    // A change is still seen, so the watch is open.
    recorder.clear();
    let resize = Patch::Merge(json!({ "spec": { "size": 2 } }));
    api.patch("held", &PatchParams::default(), &resize).await.unwrap();
    recorder.until("a change while terminating", |seen| seen.size == Some(2)).await;
    assert_eq!(harness.status("finisher").state, ControllerState::Running);

    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch("held", &PatchParams::default(), &release).await.unwrap();

    recorder.until("the deletion", |seen| seen.name == "held" && seen.uid.is_none()).await;
    assert_eq!(harness.done("finisher", 1).await, DoneReason::TypeGone);
    harness.scope.wait_gone(&crd).await.unwrap();
    assert_eq!(harness.assert_orderly("finisher"), 1);
    harness.end().await.unwrap();
}

#[tokio::test]
async fn a_reconciler_finishes_its_finalizer_while_the_type_terminates() {
    let harness = Harness::start("terminating-finalizer").await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    recorder.act("held", Act::Release);
    Embedded.add(&harness, "finisher", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    let mut held = crd.object("held", json!({}));
    held.metadata.finalizers = Some(vec!["pilotlight.test/hold".to_owned()]);
    harness.scope.wait_established(&crd).await.unwrap();
    harness.scope.api(&crd, "v1").create(&PostParams::default(), &held).await.unwrap();
    recorder.saw("held", 1).await;

    harness.scope.delete_crd(&crd).await.unwrap();

    assert_eq!(harness.done("finisher", 1).await, DoneReason::TypeGone);
    harness.scope.wait_gone(&crd).await.unwrap();
    harness.end().await.unwrap();
}
