//! An optional child type with unknown objects is not presented as one without objects.

use kube::api::PostParams;
use pilotlight::testing::{ControlPlane, CrdBuilder};
use serde_json::json;

use crate::support::{HarnessOptions, Rule, Supervised, install_own_crds};

#[tokio::test]
async fn hook_request_has_no_key_for_children_that_cannot_be_listed() {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let supervised =
        Supervised::with(plane, "optional-forbidden", HarnessOptions::declaring()).await;
    let harness = &supervised.harness;
    let group = &harness.scope.group;
    let (widgets, gadgets) = (harness.widgets(), CrdBuilder::new(group, "Gadget"));
    let rules = [Rule::all_of(group, "widgets"), Rule::all_of(group, "widgets/status")];
    harness.grant("widgets", &rules).await;
    supervised.install(&widgets).await;
    supervised.install(&gadgets).await;
    let uid = harness.create(&widgets, "gear", 1).await.to_string();
    let mut child = gadgets.object("gear", json!({}));
    child.metadata.labels = Some([("controller-uid".to_owned(), uid.clone())].into());
    let owner = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget", "name": "gear", "uid": uid,
        "controller": true,
    });
    child.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    harness.scope.api(&gadgets, "v1").create(&PostParams::default(), &child).await.unwrap();
    let mut spec = supervised.spec(&widgets);
    let rule =
        json!({"apiVersion": format!("{group}/v1"), "resource": "gadgets", "optional": true});
    spec["childResources"].as_array_mut().unwrap().push(rule);
    let key = format!("Gadget.{group}/v1");

    supervised.declare("a", spec).await;
    let call = supervised.hook.called("about the gear", |call| call.parent() == "gear").await;
    assert!(call.body["children"].get(&key).is_none(), "{:#}", call.body["children"]);

    harness.grant("gadgets", &[Rule::all_of(group, "gadgets")]).await;
    let has_gear = |call: &crate::support::Call| call.body["children"][&key]["gear"].is_object();
    supervised.hook.called("with its gadget", has_gear).await;
    supervised.end().await;
}
