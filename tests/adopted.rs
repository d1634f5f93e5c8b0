//! Controller of kube-rs that is adopted: its type comes and goes twice, and nothing is left.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use pilotlight::{
    manager::{ControllerState, DoneReason},
    runtime::{
        adopt,
        kube_runtime::{Controller, controller::Action, watcher},
    },
    testing::Verb,
};
use serde_json::json;

use crate::support::{Harness, PATIENCE, eventually, type_of};

/// Context of the reconciler, built per epoch.
struct Shared {
    client: Client,
    namespace: String,
    resource: kube::api::ApiResource,
    epoch: u64,
}

/// Labels each widget with the epoch, and reconciles it again and again.
async fn label(widget: Arc<DynamicObject>, shared: Arc<Shared>) -> Result<Action, kube::Error> {
    let Shared { client, namespace, resource, epoch } = &*shared;
    let widgets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "epoch": epoch.to_string() } } }));
    drop(widgets.patch(&widget.name_any(), &PatchParams::default(), &patch).await?);
    Ok(Action::requeue(Duration::from_millis(20)))
}

fn again(_: Arc<DynamicObject>, _: &kube::Error, _: Arc<Shared>) -> Action {
    Action::requeue(Duration::from_millis(20))
}

#[tokio::test]
async fn an_adopted_controller_lives_and_dies_with_its_type_on_the_control_plane() {
    let harness = Harness::start("adopted").await;
    let (crd, namespace) = (harness.widgets(), harness.scope.namespace.clone());
    let resource = crd.api_resource("v1");
    let adopted = adopt(&harness.cluster, [type_of(&crd, "v1")], move |client, epoch| {
        let widgets = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let watched = watcher::Config::default();
        let controller = Controller::new_with(widgets, watched, resource.clone());
        let (namespace, resource) = (namespace.clone(), resource.clone());
        let shared = Shared { client, namespace, resource, epoch: epoch.number() };
        (controller, label, again, Arc::new(shared))
    });
    harness.add("adopted", Arc::new(adopted)).await;
    let waiting = harness.until("adopted", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    harness.warm_up().await;
    let leaks = harness.leaks();
    let baseline = leaks.baseline().await;
    let tasks = usize::try_from(baseline.total("tasks")).unwrap();
    let mut absence = harness.assert_absent(&crd, tasks).await;

    for round in 1..=2 {
        absence.end(&harness).await;
        harness.scope.install_crd(&crd).await.unwrap();
        harness.running("adopted", round).await;
        drop(harness.create(&crd, "gear", 1).await);
        let labelled = || {
            let seen = harness.faults.seen();
            let patches = seen.iter().filter(|it| it.verb == Verb::Patch);
            let patches = patches.filter(|it| it.path.ends_with("/gear")).count();
            if patches > 5 { Ok(()) } else { Err(format!("{patches} patches")) }
        };
        eventually("the widget is labelled again and again", labelled).await;

        harness.scope.delete_crd(&crd).await.unwrap();

        assert_eq!(harness.done("adopted", round).await, DoneReason::TypeGone);
        absence = harness.assert_absent(&crd, tasks).await;
        tokio::time::timeout(PATIENCE, harness.scope.wait_gone(&crd)).await.unwrap().unwrap();
    }
    absence.end(&harness).await;
    assert_eq!(harness.assert_orderly("adopted"), 2);
    let leaks = leaks.expect_more("series", "").expect_more("connections", "");
    leaks.assert_baseline(&baseline).await;
    harness.end().await.unwrap();
}
