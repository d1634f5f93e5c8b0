//! Optional types of children, as hooks see them.

use super::{
    responding_hook::{harness, pass},
    *,
};

#[tokio::test(start_paused = true)]
async fn optional_type_that_is_missing_has_an_empty_key_once_its_kind_is_known() {
    let (harness, calls) = harness(|_, _| json!({"children": []})).await;
    let mut spec = good();
    spec["childResources"] = json!([
        {"apiVersion": "v1", "resource": "configmaps"},
        {"apiVersion": "example.com/v1", "resource": "gadgets", "optional": true},
    ]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    let gadgets = CrdBuilder::new("example.com", "Gadget");
    let children = async |change: u32| {
        let thing = json!({
            "apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {"name": "p"}, "spec": {"change": change},
        });
        harness.server.apply(thing).unwrap();
        pass().await;
        calls.lock().unwrap().last().unwrap().1["children"].clone()
    };
    let both = json!({"ConfigMap.v1": {}, "Gadget.example.com/v1": {}});

    assert_eq!(children(1).await, json!({"ConfigMap.v1": {}}), "its kind is not known");
    harness.server.install(&gadgets.build()).unwrap();
    pass().await;
    assert_eq!(children(2).await, both);
    harness.server.uninstall(&gadgets.name()).unwrap();
    pass().await;
    assert_eq!(children(3).await, both, "its kind is known");

    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}
