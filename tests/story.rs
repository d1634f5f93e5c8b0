//! A controller starts, stops and starts again with its type, and nothing of it is left between.

use std::time::Duration;

use pilotlight::{
    informer::{Ended, InformerKey},
    manager::{ControllerState, DoneReason},
};
use tokio::time::timeout;

use crate::rig::{Carrier, Embedded, Listening, PATIENCE, Recorder, Rig, type_of};

#[tokio::test]
async fn an_embedded_controller_lives_and_dies_with_its_type() {
    lives_and_dies_with_its_type("story-embedded", Embedded).await;
}

#[tokio::test]
async fn a_conditional_runnable_lives_and_dies_with_its_type() {
    lives_and_dies_with_its_type("story-runnable", Listening).await;
}

async fn lives_and_dies_with_its_type(name: &str, carrier: impl Carrier) {
    let rig = Rig::start(name).await;
    let crd = rig.widgets();
    let widgets = type_of(&crd, "v1");
    let recorder = Recorder::new(widgets.clone());

    carrier.add(&rig, "story", &recorder).await;
    let waiting = rig.until("story", "waits for its type", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert_eq!(waiting.unmet[0].type_ref.as_ref(), Some(&widgets));
    assert!(waiting.message.contains("is not installed"), "{}", waiting.message);
    rig.warm_up().await;
    let leaks = rig.leaks();
    let baseline = leaks.baseline().await;
    let tasks = usize::try_from(baseline.total("tasks")).unwrap();
    let mut absence = rig.assert_absent(&crd, tasks).await;
    assert!(rig.requests(&crd, rig.begin).await.is_empty(), "what is absent is not asked for");

    for round in 1..=2 {
        absence.end(&rig).await;
        rig.scope.install_crd(&crd).await.unwrap();
        rig.running("story", round).await;
        let served = rig.cluster.types.served(&widgets).unwrap();
        let size = i64::try_from(round).unwrap();
        let uid = rig.create(&crd, "gear", size).await;
        let seen = recorder.saw("gear", round).await;
        rig.every_task_has_a_name(&leaks, &baseline).await;
        assert_eq!((seen.uid, seen.size), (Some(uid), Some(size)));
        let stored = recorder.store(round).unwrap();
        assert!(stored.len() == 1 && stored.bytes() > 0);
        let ended = rig.cluster.informers.ended(&InformerKey::new(served.identity.clone()));

        rig.scope.delete_crd(&crd).await.unwrap();

        assert_eq!(rig.done("story", round).await, DoneReason::TypeGone);
        absence = rig.assert_absent(&crd, tasks).await;
        assert_eq!((stored.len(), stored.bytes()), (0, 0), "the cache is emptied");
        assert_eq!(timeout(Duration::from_secs(1), ended).await.unwrap(), Ended::TypeGone);
        let waiting = rig.until("story", "waits again", |it| it.reason == "TypeAbsent").await;
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, round));
        timeout(PATIENCE, rig.scope.wait_gone(&crd)).await.unwrap().unwrap();
    }
    absence.end(&rig).await;
    assert_eq!(rig.assert_orderly("story"), 2);
    // The first life made what is made once: series of the controller, connections.
    let leaks = leaks.expect_more("series", "").expect_more("connections", "");
    leaks.assert_baseline(&baseline).await;
    rig.end().await.unwrap();
}
