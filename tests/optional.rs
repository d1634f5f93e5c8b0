//! An optional child type whose objects are not known is not shown as one without objects.

use kube::api::PostParams;
use pilotlight::testing::{ControlPlane, CrdBuilder};
use serde_json::{Value, json};

use crate::rig::{RigOptions, Rule, Stage, install_own_crds};

#[tokio::test]
async fn a_hook_is_not_told_that_children_are_gone_that_may_not_be_listed() {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let stage = Stage::with(plane, "optional-forbidden", RigOptions::declaring()).await;
    let rig = &stage.rig;
    let group = &rig.scope.group;
    let (widgets, gadgets) = (rig.widgets(), CrdBuilder::new(group, "Gadget"));
    let rules = [Rule::all_of(group, "widgets"), Rule::all_of(group, "widgets/status")];
    rig.grant("widgets", &rules).await;
    stage.install(&widgets).await;
    stage.install(&gadgets).await;
    let uid = rig.create(&widgets, "gear", 1).await.to_string();
    let mut child = gadgets.object("gear", json!({}));
    child.metadata.labels = Some([("controller-uid".to_owned(), uid.clone())].into());
    let owner = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget", "name": "gear", "uid": uid,
        "controller": true,
    });
    child.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    rig.scope.api(&gadgets, "v1").create(&PostParams::default(), &child).await.unwrap();
    let mut spec = stage.spec(&widgets);
    let rule =
        json!({"apiVersion": format!("{group}/v1"), "resource": "gadgets", "optional": true});
    spec["childResources"].as_array_mut().unwrap().push(rule);
    let key = format!("Gadget.{group}/v1");

    stage.declare("a", spec).await;
    let call = stage.hook.asked("about the gear", |call| call.parent() == "gear").await;
    assert_eq!(call.body["children"][&key], Value::Null, "{:#}", call.body["children"]);

    rig.grant("gadgets", &[Rule::all_of(group, "gadgets")]).await;
    let told = |call: &crate::rig::Call| call.body["children"][&key]["gear"].is_object();
    stage.hook.asked("with its gadget", told).await;
    stage.end().await;
}
