//! Equal informer keys share one watch, and joining or leaving it costs other subscribers nothing.

use pilotlight::{
    informer::{EndReason, InformerKey, InformerProgress},
    manager::ControllerState,
    testing::{AuditStage, open_watches},
};
use tokio::time::timeout;

#[cfg(feature = "cli")]
use crate::support::Declared;
use crate::support::{
    ControllerVariant, Embedded, Harness, Listening, PATIENCE, RecordingReconciler, Seen, type_of,
};

#[tokio::test]
async fn embedded_controllers_share_one_watch() {
    share_one_watch("sharing-embedded", Embedded, Embedded).await;
}

#[tokio::test]
async fn a_runnable_and_a_controller_share_one_watch() {
    share_one_watch("sharing-mixed", Listening, Embedded).await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn declared_controllers_share_one_watch() {
    let declared = Declared::default();
    share_one_watch("sharing-declared", declared.clone(), declared).await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn a_declared_and_an_embedded_controller_share_one_watch() {
    share_one_watch("sharing-beside", Declared::default(), Embedded).await;
}

async fn share_one_watch(
    name: &str,
    first: impl ControllerVariant,
    second: impl ControllerVariant,
) {
    let harness = Harness::start(name).await;
    let crd = harness.widgets();
    let widgets = type_of(&crd, "v1");
    let (ones, others) =
        (RecordingReconciler::new(widgets.clone()), RecordingReconciler::new(widgets.clone()));
    let one = &first.add(&harness, "one", &ones).await;
    let other = &second.add(&harness, "other", &others).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running(one, 1).await;
    harness.running(other, 1).await;
    harness.create(&crd, "shared", 1).await;
    let seen = ones.saw("shared", 1).await;
    assert_eq!(seen.uid, others.saw("shared", 1).await.uid);
    let served = harness.cluster.types.served(&widgets).unwrap();
    let mut informers = harness.cluster.informers.status();
    informers.retain(|it| it.key.identity == served.identity);
    let subscribers: Vec<_> = informers.iter().map(|it| it.subscribers).collect();
    assert_eq!(subscribers, [2], "{informers:#?}");
    // Status writes of a declared controller are no reads.
    let readings = async || {
        let mut requests = harness.requests(&crd, harness.begin).await;
        requests.retain(|event| event.verb == "list" || event.verb == "watch");
        requests
    };
    let requests = readings().await;
    assert_eq!(open_watches(&requests).len(), 1, "{requests:#?}");
    let before = requests.len();

    // Objects change while one subscriber leaves and another one joins.
    let mut late = String::new();
    for round in 0..20 {
        harness.create(&crd, &format!("gapless-{round}"), 1).await;
        if round == 5 {
            first.remove(&harness, "one").await;
        }
        if round == 12 {
            late = first.add(&harness, "late", &ones).await;
        }
    }

    for round in 0..20 {
        others.saw(&format!("gapless-{round}"), 1).await;
    }
    harness.running(&late, 1).await;
    let by_late = async |name: &str| {
        let by_late = |seen: &Seen| seen.controller == late && seen.name == name;
        ones.until("every object, in the late controller", by_late).await
    };
    by_late("shared").await;
    for round in 0..20 {
        by_late(&format!("gapless-{round}")).await;
    }
    let requests = readings().await;
    assert_eq!(requests.len(), before, "a new list or watch: {requests:#?}");
    assert_eq!(open_watches(&requests).len(), 1);
    let lists = requests.iter().filter(|event| {
        event.verb == "list"
            && event.stage == AuditStage::ResponseComplete
            && event.code == Some(200)
    });
    assert_eq!(lists.count(), 1, "{requests:#?}");
    assert_eq!(harness.status(other).state, ControllerState::Running);
    assert_eq!(harness.assert_orderly(other), 0);
    harness.end().await.unwrap();
}

#[tokio::test]
async fn subscriber_without_a_controller_is_notified_that_the_type_is_gone() {
    let harness = Harness::start("sharing-end").await;
    let crd = harness.widgets();
    let widgets = type_of(&crd, "v1");
    harness.scope.install_crd(&crd).await.unwrap();
    harness.type_state(&widgets, "is served", |state| state.word() == "Served").await;
    let served = harness.cluster.types.served(&widgets).unwrap();
    let key = InformerKey::new(served.identity.clone());
    // An informer belongs to the runtime of its first subscriber.
    let mut subscription = harness.enter(|| harness.cluster.informers.subscribe(&served, key));
    let mut progress = subscription.progress();
    timeout(PATIENCE, progress.wait_for(|it| *it == InformerProgress::Synced))
        .await
        .unwrap()
        .unwrap();

    harness.scope.delete_crd(&crd).await.unwrap();

    let ended = timeout(PATIENCE, subscription.next()).await.unwrap();
    assert_eq!(ended.unwrap_err(), EndReason::TypeGone);
    assert!(harness.cluster.informers.status().is_empty());
    harness.end().await.unwrap();
}
