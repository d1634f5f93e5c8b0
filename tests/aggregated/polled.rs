//! A type that its server lists and does not watch, as related type of a declared controller.

use std::time::Duration;

use pilotlight::{
    discovery::TypeState,
    informer::{InformerOptions, InformerProgress},
    kind::TypeRef,
    testing::{ControlPlane, ControlPlaneOptions},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Backend, Discovery, install};
use crate::support::{Answer, HarnessOptions, Supervised, install_own_crds};

const INTERVAL: Duration = Duration::from_secs(2);

/// Rule for the gauges of a label, or a ConfigMap with the size of the related gauge.
fn answer(request: &Value, group: &str) -> Value {
    if request.get("children").is_none() {
        let labels = json!({"matchLabels": {"of": "boiler"}});
        let rule = json!({
            "apiVersion": format!("{group}/v1"), "resource": "gauges", "labelSelector": labels,
            "namespace": "default",
        });
        return json!({"relatedResources": [rule]});
    }
    let gauges = &request["related"][format!("Gauge.{group}/v1")];
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": request["parent"]["metadata"]["name"]},
        "data": {"size": gauges["default/pressure"]["spec"]["size"].to_string()},
    });
    json!({"status": {}, "children": [child]})
}

#[tokio::test]
async fn related_objects_without_watch_reach_the_hook_within_the_interval() {
    // An APIService that is left after a failure stops the deletion of all namespaces.
    let plane = ControlPlane::start(ControlPlaneOptions {
        controller_manager: false,
        ..ControlPlaneOptions::default()
    });
    let plane = &plane.await.unwrap();
    install_own_crds(plane).await;
    let informers = InformerOptions { poll_interval: INTERVAL, ..InformerOptions::default() };
    let options = HarnessOptions { informers, ..HarnessOptions::default() };
    let supervised = Supervised::with(plane, "polled", options).await;
    let harness = &supervised.harness;
    // The API server routes a group version to one server: that of the CRD is another one.
    let group = format!("gauges.{}", harness.scope.group);
    let gauges = TypeRef::resource(&group, "v1", "gauges");
    let certificate = harness.plane().serving_certificate().unwrap();
    let backend = Backend::start(certificate, &group, Discovery::ListOnly).await;
    backend.set_size(1);
    install(harness, &group, &backend).await;
    harness.type_state(&gauges, "is polled", |it| *it == TypeState::Polled).await;
    let of = group.clone();
    supervised.hook.answers(move |request| Answer::Json(answer(request, &of)));
    let widgets = harness.widgets();
    supervised.install(&widgets).await;
    let mut spec = supervised.spec(&widgets);
    spec["hooks"]["sync"]["version"] = json!("v2");
    spec["hooks"]["customize"] = spec["hooks"]["sync"].clone();

    supervised.declare("a", spec).await;
    harness.create(&widgets, "w", 0).await;
    supervised.child("w", 1).await;

    for size in 2..=3 {
        let before = Instant::now();
        backend.set_size(size);
        supervised.child("w", size).await;
        assert!(before.elapsed() < INTERVAL * 5, "{:?}", before.elapsed());
    }
    // The change of the child may cause one more call.
    let calls = || supervised.hook.count("w");
    let mut before = calls();
    sleep(INTERVAL * 2).await;
    if calls() != before {
        before = calls();
        sleep(INTERVAL * 2).await;
    }
    assert_eq!(calls(), before, "nothing has changed");
    let polled = harness
        .cluster
        .informers
        .status()
        .into_iter()
        .find(|informer| *informer.key.identity.plural == *"gauges");
    let polled = polled.unwrap();
    assert_eq!((polled.progress, polled.objects), (InformerProgress::Polled, 1));
    supervised.end().await;
}
