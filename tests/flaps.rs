//! A type that is installed and removed a hundred times leaves the right state and nothing else.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pilotlight::{
    manager::{ControllerState, DoneReason},
    testing::CrdBuilder,
};
use serde_json::json;
use tokio::time::{self, Duration, Instant};

#[cfg(feature = "cli")]
use crate::support::Declared;
use crate::support::{
    ControllerVariant, Embedded, Harness, Listening, RecordingReconciler, alone, type_of,
};

const PACED: u64 = 50;
const FAST: u64 = 50;
/// Freed memory that the allocator may keep, in KiB.
const NOISE_KIB: u64 = 8 << 10;
/// Time after which the deletion of a CRD counts as overlooked. The server sometimes overlooks the
/// deletion of a CRD that it has just created, until its next resync (5 min) or until the CRD
/// changes.
const FORGOTTEN: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_hundred_flaps_leave_an_embedded_controller_as_it_was() {
    let flaps = Box::pin(a_hundred_flaps_leave_nothing("flaps-embedded", Embedded));
    alone("flaps::a_hundred_flaps_leave_an_embedded_controller_as_it_was", flaps).await;
}

#[tokio::test]
async fn a_hundred_flaps_leave_a_conditional_runnable_as_it_was() {
    let flaps = Box::pin(a_hundred_flaps_leave_nothing("flaps-runnable", Listening));
    alone("flaps::a_hundred_flaps_leave_a_conditional_runnable_as_it_was", flaps).await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn a_hundred_flaps_leave_a_declared_controller_as_it_was() {
    let flaps = Box::pin(a_hundred_flaps_leave_nothing("flaps-declared", Declared::default()));
    alone("flaps::a_hundred_flaps_leave_a_declared_controller_as_it_was", flaps).await;
}

#[expect(clippy::print_stdout, reason = "the figure tells more than a passed test")]
async fn a_hundred_flaps_leave_nothing(name: &str, variant: impl ControllerVariant) {
    let harness = Harness::start(name).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    let flapping = &variant.add(&harness, "flapping", &recorder).await;
    harness.warm_up().await;
    // A complete life with an object, so that one-time allocations precede the baseline.
    install_as_soon_as_possible(&harness, &crd).await;
    harness.running(flapping, 1).await;
    harness.create(&crd, "first", 1).await;
    recorder.saw("first", 1).await;
    harness.scope.delete_crd(&crd).await.unwrap();
    harness.done(flapping, 1).await;
    let leaks = variant.leaks(&harness).sockets();
    let baseline = leaks.baseline().await;
    let tasks = usize::try_from(baseline.total("tasks")).unwrap();

    for epoch in 2..=PACED {
        paced(&harness, &crd, flapping, epoch).await;
    }
    assert_eq!(harness.assert_orderly(flapping), PACED, "each paced flap is one epoch");
    harness.assert_absent(&crd, tasks).await.end(&harness).await;
    let half = leaks.measure();
    for _ in 0..FAST {
        install_as_soon_as_possible(&harness, &crd).await;
        harness.scope.delete_crd(&crd).await.unwrap();
    }

    // The last change decides the state.
    install_as_soon_as_possible(&harness, &crd).await;
    harness.scope.wait_established(&crd).await.unwrap();
    let last = harness.create(&crd, "last", 1).await;
    recorder.until("the last object", |seen| seen.uid.as_ref() == Some(&last)).await;
    let epoch = harness.state(flapping, ControllerState::Running).await.epoch;
    assert!((PACED + 1..=PACED + FAST + 1).contains(&epoch), "epoch {epoch}");
    harness.scope.delete_crd(&crd).await.unwrap();
    harness.done(flapping, epoch).await;
    harness.assert_absent(&crd, tasks).await.end(&harness).await;
    assert_eq!(harness.assert_orderly(flapping), epoch);
    leaks.assert_baseline(&baseline).await;
    let resident = [&baseline, &half, &leaks.measure()].map(|it| it.total("resident KiB"));
    let [begin, half, end] = resident;
    println!("KiB resident: {resident:?}");
    assert!(end.saturating_sub(half) < NOISE_KIB, "KiB resident: {resident:?}");
    assert!(end.saturating_sub(begin) < 2 * NOISE_KIB, "KiB resident: {resident:?}");
    harness.end().await.unwrap();
}

/// Installs and removes the type, waiting until this epoch runs and is done.
async fn paced(harness: &Harness<'_>, crd: &CrdBuilder, flapping: &str, epoch: u64) {
    install_as_soon_as_possible(harness, crd).await;
    harness.running(flapping, epoch).await;
    harness.scope.delete_crd(crd).await.unwrap();
    assert_eq!(harness.done(flapping, epoch).await, DoneReason::TypeGone);
    harness.until(flapping, "waits", |it| it.reason == "TypeAbsent").await;
}

/// Installs a CRD with retries, because the server refuses it while the previous one is being
/// deleted.
pub(crate) async fn install_as_soon_as_possible(harness: &Harness<'_>, crd: &CrdBuilder) {
    let mut forgotten = Instant::now() + FORGOTTEN;
    while harness.scope.install_crd(crd).await.is_err() {
        time::sleep(Duration::from_millis(2)).await;
        if Instant::now() > forgotten {
            let crds = Api::<CustomResourceDefinition>::all(harness.scope.client());
            let touch =
                Patch::Merge(json!({ "metadata": { "annotations": { "touched": "yes" } } }));
            // The CRD may be gone by now.
            crds.patch(&crd.name(), &PatchParams::default(), &touch).await.ok();
            forgotten = Instant::now() + FORGOTTEN;
        }
    }
}
