//! Adoption of orphans: the author of a parent cannot have objects of others deleted.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use pilotlight::{
    meta::{Adoption, MetaOptions, api::ControllerStatus},
    testing::{ControlPlane, CrdBuilder},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::{Answer, Supervised, condition, install_own_crds};

/// Time in which a controller that adopts and deletes has done both.
const SETTLED: Duration = Duration::from_secs(3);

/// Creates a ConfigMap without an owner, written by this field manager.
async fn orphan(supervised: &Supervised<'_>, name: &str, manager: &str, metadata: Value) {
    let mut map = json!({"metadata": metadata, "data": {"of": "others"}});
    map["metadata"]["name"] = json!(name);
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    let by = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    supervised.config_maps().create(&by, &map).await.unwrap();
}

/// Creates a parent of this selector.
async fn parent(
    supervised: &Supervised<'_>,
    crd: &CrdBuilder,
    name: &str,
    selector: Value,
) -> String {
    let object = crd.object(name, json!({"size": 1, "selector": selector}));
    let api = supervised.harness.scope.api(crd, "v1");
    api.create(&PostParams::default(), &object).await.unwrap().metadata.uid.unwrap()
}

/// Declares a controller whose children are selected by their parents, and whose hook wants none.
async fn declare(supervised: &Supervised<'_>) -> CrdBuilder {
    supervised.hook.answers(|_| Answer::Json(json!({"status": {}, "children": []})));
    let crd = supervised.harness.widgets();
    let mut spec = supervised.spec(&crd);
    spec["generateSelector"] = json!(false);
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    supervised.runs("a", 1).await;
    crd
}

/// Returns the uid of the ConfigMap's owner, if both exist.
async fn owner(supervised: &Supervised<'_>, name: &str) -> Option<String> {
    let map = supervised.config_maps().get(name).await.unwrap();
    assert!(map.metadata.deletion_timestamp.is_none(), "{name} is being deleted");
    Some(map.metadata.owner_references?.first()?.uid.clone())
}

#[tokio::test]
async fn selector_that_requires_no_label_deletes_no_object_of_others() {
    let supervised = Supervised::start("adopt-broad").await;
    orphan(&supervised, "plain", "kubectl", json!({})).await;
    orphan(&supervised, "labelled", "kubectl", json!({"labels": {"app": "db"}})).await;
    let crd = declare(&supervised).await;

    for (name, expression) in [
        ("absent", json!({"key": "nope", "operator": "DoesNotExist"})),
        ("other", json!({"key": "app", "operator": "NotIn", "values": ["nope"]})),
    ] {
        parent(&supervised, &crd, name, json!({"matchExpressions": [expression]})).await;
        supervised.event(name, "SelectorTooBroad", "requires no label").await;
    }
    sleep(SETTLED).await;

    for name in ["plain", "labelled"] {
        let exists = |found: Option<&ConfigMap>| found.is_some();
        supervised.config_map(name, "exists", exists).await;
        assert_eq!(owner(&supervised, name).await, None);
    }
    supervised.end().await;
}

#[tokio::test]
async fn matching_orphan_is_adopted_with_evidence_alone() {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let options = MetaOptions { adoption: Adoption::Proven, ..MetaOptions::default() };
    let supervised = Supervised::with_options(plane, "adopt-proven", options).await;
    let labels = || json!({"app": "db"});
    let last_applied = "metacontroller.k8s.io/last-applied-configuration";
    for (name, manager, annotations) in [
        ("foreign", "kubectl", json!({})),
        ("annotated", "kubectl", json!({"pilotlight.dev/adopt": "true"})),
        ("applied", "kubectl", json!({last_applied: "{}"})),
        ("written", "metacontroller", json!({})),
    ] {
        let metadata = json!({"labels": labels(), "annotations": annotations});
        orphan(&supervised, name, manager, metadata).await;
    }
    let crd = declare(&supervised).await;
    // A decoration is no evidence: the manager has written labels of it.
    let label = Patch::Merge(json!({"metadata": {"labels": {"decorated": "true"}}}));
    let by = PatchParams { field_manager: Some("metacontroller".to_owned()), ..Default::default() };
    supervised.config_maps().patch("foreign", &by, &label).await.unwrap();

    parent(&supervised, &crd, "gear", json!({"matchLabels": labels()})).await;

    // An adopted object that the hook does not want is deleted.
    for name in ["annotated", "applied", "written"] {
        supervised.config_map(name, "is deleted", |found| found.is_none()).await;
    }
    supervised.event("gear", "SyncError", "pilotlight.dev/adopt=true").await;
    let is_named =
        |status: &ControllerStatus| condition(status, "Contested").message.contains("/foreign for");
    supervised.status("a", "names the orphan", is_named).await;
    sleep(SETTLED).await;
    assert_eq!(owner(&supervised, "foreign").await, None);

    let adopt =
        Patch::Merge(json!({"metadata": {"annotations": {"pilotlight.dev/adopt": "true"}}}));
    let by = PatchParams::default();
    supervised.config_maps().patch("foreign", &by, &adopt).await.unwrap();
    supervised.config_map("foreign", "is deleted", |found| found.is_none()).await;
    let is_over = |status: &ControllerStatus| condition(status, "Contested").status == "False";
    supervised.status("a", "contests nothing", is_over).await;
    supervised.end().await;
}
