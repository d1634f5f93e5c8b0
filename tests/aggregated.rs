//! A type of an aggregated API server: its APIService is created and deleted, and its server fails.

mod backend;
mod polled;

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::Service, kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use pilotlight::{
    discovery::TypeState,
    kind::TypeRef,
    manager::{ControllerState, DoneReason},
};
use serde_json::json;

pub(crate) use self::backend::{Backend, Discovery, Health};
use crate::support::{Act, ControllerVariant, Embedded, Harness, RecordingReconciler};

#[tokio::test]
async fn aggregated_type_is_installed_becomes_unknown_and_is_removed() {
    // In parallel, because the API server checks a backend only every 30 seconds.
    tokio::join!(
        comes_fails_and_goes("aggregated", Discovery::Aggregated),
        comes_fails_and_goes("aggregated-legacy", Discovery::Legacy),
    );
}

async fn comes_fails_and_goes(name: &str, discovery: Discovery) {
    let harness = Harness::start(name).await;
    let group = harness.scope.group.clone();
    let gauges = TypeRef::resource(&group, "v1", "gauges");
    let recorder = RecordingReconciler::new(gauges.clone());
    recorder.act("pressure", Act::Again(Duration::from_millis(100)));
    Embedded.add(&harness, "gauges", &recorder).await;
    harness.until("gauges", "waits", |it| it.reason == "TypeAbsent").await;
    let certificate = harness.plane().serving_certificate().unwrap();
    let backend = Backend::start(certificate, &group, discovery).await;

    for epoch in 1..=2 {
        install(&harness, &group, &backend).await;
        harness.running("gauges", epoch).await;
        let seen = recorder.saw("pressure", epoch).await;
        assert_eq!(seen.uid.as_deref(), Some("one"));
        harness.type_state(&gauges, "is served", |it| *it == TypeState::Served).await;

        if epoch == 1 {
            fails_and_recovers(&harness, &gauges, &recorder, &backend).await;
        }

        let services = Api::<APIService>::all(harness.scope.client());
        services.delete(&format!("v1.{group}"), &DeleteParams::default()).await.unwrap();
        harness.type_state(&gauges, "is absent", |it| *it == TypeState::Absent).await;
        assert_eq!(harness.done("gauges", epoch).await, DoneReason::TypeGone);
    }
    assert_eq!(harness.assert_orderly("gauges"), 2);
    harness.end().await.unwrap();
}

/// Asserts that the controller keeps its cache, flagged stale, while the server fails, and recovers
/// with it.
async fn fails_and_recovers(
    harness: &Harness<'_>,
    gauges: &TypeRef,
    recorder: &RecordingReconciler,
    backend: &Backend,
) {
    backend.set_health(Health::Ill);
    let unknown = |state: &TypeState| matches!(state, TypeState::Unknown(Some(last)) if **last == TypeState::Served);
    harness.type_state(gauges, "is unknown while its server fails", unknown).await;
    let status = harness.until("gauges", "is stale", |it| it.report.stale).await;
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    recorder.clear();
    let stale = recorder.until("a stale reconcile", |seen| seen.stale).await;
    assert_eq!(stale.uid.as_deref(), Some("one"), "the cache is kept");

    backend.set_health(Health::Well);
    harness.type_state(gauges, "is served again", |it| *it == TypeState::Served).await;
    harness.until("gauges", "is current again", |it| it.reason == "Running").await;
    assert_eq!(harness.status("gauges").epoch, 1);
}

/// Registers an APIService for `gauges` of this group.
pub(crate) async fn install(harness: &Harness<'_>, group: &str, backend: &Backend) {
    let namespace = &harness.scope.namespace;
    let service = serde_json::from_value(json!({
        "metadata": { "name": "gauges" },
        "spec": { "type": "ExternalName", "externalName": "localhost" },
    }));
    let services = Api::<Service>::namespaced(harness.scope.client(), namespace);
    if services.get_opt("gauges").await.unwrap().is_none() {
        services.create(&PostParams::default(), &service.unwrap()).await.unwrap();
    }
    let api_service = serde_json::from_value(json!({
        "metadata": { "name": format!("v1.{group}") },
        "spec": {
            "group": group, "version": "v1",
            "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": { "namespace": namespace, "name": "gauges", "port": backend.address.port() },
        },
    }));
    let api_services = Api::<APIService>::all(harness.scope.client());
    api_services.create(&PostParams::default(), &api_service.unwrap()).await.unwrap();
}
