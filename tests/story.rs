//! A controller starts, stops and starts again with its type, and leaves nothing in between.

use std::time::Duration;

use pilotlight::{
    informer::{EndReason, InformerKey},
    manager::{ControllerState, DoneReason},
};
use tokio::time::timeout;

use crate::support::{
    ControllerVariant, Embedded, Harness, Listening, PATIENCE, RecordingReconciler, type_of,
};

#[tokio::test]
async fn an_embedded_controller_lives_and_dies_with_its_type() {
    lives_and_dies_with_its_type("story-embedded", Embedded).await;
}

#[tokio::test]
async fn a_conditional_runnable_lives_and_dies_with_its_type() {
    lives_and_dies_with_its_type("story-runnable", Listening).await;
}

async fn lives_and_dies_with_its_type(name: &str, variant: impl ControllerVariant) {
    let harness = Harness::start(name).await;
    let crd = harness.widgets();
    let widgets = type_of(&crd, "v1");
    let recorder = RecordingReconciler::new(widgets.clone());

    variant.add(&harness, "story", &recorder).await;
    let waiting =
        harness.until("story", "waits for its type", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert_eq!(waiting.unmet[0].type_ref.as_ref(), Some(&widgets));
    assert!(waiting.message.contains("is not installed"), "{}", waiting.message);
    harness.warm_up().await;
    let leaks = harness.leaks();
    let baseline = leaks.baseline().await;
    let tasks = usize::try_from(baseline.total("tasks")).unwrap();
    let mut absence = harness.assert_absent(&crd, tasks).await;
    assert!(
        harness.requests(&crd, harness.begin).await.is_empty(),
        "no request for an absent type"
    );

    for round in 1..=2 {
        absence.end(&harness).await;
        harness.scope.install_crd(&crd).await.unwrap();
        harness.running("story", round).await;
        let served = harness.cluster.types.served(&widgets).unwrap();
        let size = i64::try_from(round).unwrap();
        let uid = harness.create(&crd, "gear", size).await;
        let seen = recorder.saw("gear", round).await;
        harness.every_task_has_a_name(&leaks, &baseline).await;
        assert_eq!((seen.uid, seen.size), (Some(uid), Some(size)));
        let stored = recorder.store(round).unwrap();
        assert!(stored.len() == 1 && stored.bytes() > 0);
        let ended = harness.cluster.informers.ended(&InformerKey::new(served.identity.clone()));

        harness.scope.delete_crd(&crd).await.unwrap();

        assert_eq!(harness.done("story", round).await, DoneReason::TypeGone);
        absence = harness.assert_absent(&crd, tasks).await;
        assert_eq!((stored.len(), stored.bytes()), (0, 0), "the cache is emptied");
        assert_eq!(timeout(Duration::from_secs(1), ended).await.unwrap(), EndReason::TypeGone);
        let waiting = harness.until("story", "waits again", |it| it.reason == "TypeAbsent").await;
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, round));
        timeout(PATIENCE, harness.scope.wait_gone(&crd)).await.unwrap().unwrap();
    }
    absence.end(&harness).await;
    assert_eq!(harness.assert_orderly("story"), 2);
    // The first life creates what is created once: series of the controller, connections.
    let leaks = leaks.expect_more("series", "").expect_more("connections", "");
    leaks.assert_baseline(&baseline).await;
    harness.end().await.unwrap();
}
