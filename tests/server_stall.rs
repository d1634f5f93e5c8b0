//! An API server whose process is stopped for a while and then continues: it keeps its connections
//! and answers nothing.

use std::time::Duration;

use kube::api::PostParams;
use pilotlight::{
    informer::InformerProgress,
    manager::ControllerState,
    testing::{Binary, ControlPlane, ControlPlaneOptions, CrdBuilder},
};
use serde_json::json;
use tokio::{
    process::Command,
    time::{self, Instant},
};

use crate::support::{
    ControllerVariant, Embedded, Harness, HarnessOptions, RecordingReconciler, type_of,
};

/// Longer than the detection of a dead connection (PING after 30 s, 10 s for its response) and the
/// timeout of the new connection (5 s); shorter than the silence that a watch may have.
const STALL: Duration = Duration::from_secs(65);

/// Deadline for recovery: retries are at most half a minute apart.
const FOUND_AGAIN: Duration = Duration::from_secs(40);

#[tokio::test]
async fn a_stalled_api_server_stops_nothing() {
    // A separate control plane, because all other tests need theirs.
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let harness = Harness::on(&plane, "server-stall", HarnessOptions::default()).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    Embedded.add(&harness, "patient", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running("patient", 1).await;
    harness.create(&crd, "before", 1).await;
    recorder.saw("before", 1).await;
    let (_, server) =
        plane.processes().into_iter().find(|(binary, _)| *binary == Binary::KubeApiserver).unwrap();

    signal(server, "STOP").await;
    let create = async {
        created(&harness, &crd, "meanwhile").await;
        Instant::now()
    };
    let stands = async {
        time::sleep(STALL).await;
        assert_eq!(harness.status("patient").state, ControllerState::Running);
        let informer = &harness.cluster.informers.status()[0];
        assert_eq!(informer.objects, 1, "the cache is unchanged");
        assert!(
            matches!(informer.progress, InformerProgress::Stale(_)),
            "the informer is stale: {informer:?}"
        );
        assert!(harness.status("patient").report.stale, "the controller is flagged stale too");
        signal(server, "CONT").await;
        Instant::now()
    };
    let (there, goes_on) = tokio::join!(create, stands);

    recorder.saw("meanwhile", 1).await;
    let since = there.max(goes_on);
    assert!(since.elapsed() < FOUND_AGAIN, "{:?}", since.elapsed());
    created(&harness, &crd, "after").await;
    recorder.saw("after", 1).await;
    let status = harness.status("patient");
    assert_eq!((status.state, status.epoch, status.failures), (ControllerState::Running, 1, 0));
    assert_eq!(harness.assert_orderly("patient"), 0);
    harness.end().await.unwrap();
    plane.stop().await;
}

/// Creates an object of size 1, with retries: time also passes for the stopped server, which may
/// refuse a request that it has just begun.
async fn created(harness: &Harness<'_>, crd: &CrdBuilder, name: &str) {
    let (api, object) = (harness.scope.api(crd, "v1"), crd.object(name, json!({ "size": 1 })));
    let begin = Instant::now();
    loop {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => return,
            Err(error) => assert!(begin.elapsed() < STALL + FOUND_AGAIN, "{error}"),
        }
        time::sleep(Duration::from_millis(500)).await;
    }
}

async fn signal(process: u32, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &process.to_string()]).status();
    assert!(sent.await.unwrap().success(), "{signal} to {process}");
}
