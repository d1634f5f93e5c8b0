//! Lists of unusual kinds on a real API server: a controller follows its parents and the ConfigMaps
//! that they own, with and without a warm-up.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilotlight::{controller::Controller, manager::ElectionTimes};
use serde_json::json;

use crate::support::{Harness, HarnessOptions, RecordingReconciler, hold_lease, type_of};

/// Name of the controller and of its parent.
const NAME: &str = "gear";

#[tokio::test]
async fn controller_that_warms_up_follows_parents_of_an_unusual_list_kind_and_their_objects() {
    follows_parents_and_their_objects("list-kind-warm", true).await;
}

#[tokio::test]
async fn controller_without_a_warm_up_follows_parents_of_an_unusual_list_kind_and_their_objects() {
    follows_parents_and_their_objects("list-kind-cold", false).await;
}

async fn follows_parents_and_their_objects(name: &str, warms_up: bool) {
    let election = Some(ElectionTimes::default());
    let harness = Harness::with(name, HarnessOptions { election, ..Default::default() }).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    let controller = Controller::builder(NAME)
        .for_type(recorder.type_ref().clone())
        .conditional()
        .owns::<ConfigMap>()
        .namespace(harness.scope.namespace.as_str())
        .warm_up(warms_up)
        .build(&harness.cluster, recorder.clone())
        .unwrap();
    harness.add(NAME, Arc::new(controller)).await;
    let mut unusual = crd.build();
    unusual.spec.names.list_kind = Some("WidgetArray".to_owned());
    let crds = Api::<CustomResourceDefinition>::all(harness.scope.client());
    crds.create(&PostParams::default(), &unusual).await.unwrap();
    harness.scope.wait_served(&crd, "v1").await.unwrap();
    let warmed = u64::from(warms_up);
    let stands_by =
        |it: &pilotlight::manager::RunnableStatus| it.reason == "Standby" && it.epoch == warmed;
    harness.until(NAME, "stands by", stands_by).await;
    assert_eq!(harness.requests(&crd, harness.begin).await.is_empty(), !warms_up);

    hold_lease(&harness.scope, "").await;
    harness.running(NAME, 1).await;
    let served = harness.cluster.types.served(recorder.type_ref()).unwrap();
    assert_eq!(&*served.list_kind, "WidgetArray");
    let uid = harness.create(&crd, NAME, 1).await;
    assert_eq!(recorder.saw(NAME, 1).await.size, Some(1));
    let parents = harness.scope.api(&crd, "v1");
    let resize = Patch::Merge(json!({ "spec": { "size": 2 } }));
    parents.patch(NAME, &PatchParams::default(), &resize).await.unwrap();
    recorder.until("the second size", |seen| seen.size == Some(2)).await;

    // By the client of the scope, which is another one.
    let children = Api::<ConfigMap>::namespaced(harness.scope.client(), &harness.scope.namespace);
    let child = json!({
        "metadata": {
            "name": "child",
            "ownerReferences": [{
                "apiVersion": format!("{}/v1", harness.scope.group), "kind": "Widget",
                "name": NAME, "uid": uid, "controller": true,
            }],
        },
    });
    recorder.clear();
    let child = serde_json::from_value(child).unwrap();
    children.create(&PostParams::default(), &child).await.unwrap();
    recorder.saw(NAME, 1).await;
    recorder.clear();
    let change = Patch::Merge(json!({ "data": { "size": "2" } }));
    children.patch("child", &PatchParams::default(), &change).await.unwrap();
    recorder.saw(NAME, 1).await;
    recorder.clear();
    children.delete("child", &DeleteParams::default()).await.unwrap();
    recorder.saw(NAME, 1).await;
    parents.delete(NAME, &DeleteParams::default()).await.unwrap();
    recorder.until("the deletion", |seen| seen.name == NAME && seen.uid.is_none()).await;

    assert_eq!(harness.status(NAME).epoch, 1);
    harness.end().await.unwrap();
}
