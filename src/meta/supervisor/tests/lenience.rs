//! Behaviour of Metacontroller that options enable.

use super::{
    responding_hook::{harness_with, pass},
    *,
};
use crate::meta::Lenience;

fn thing(change: u32) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "p", "managedFields": [{"manager": "m", "operation": "Update"}]},
        "spec": {"change": change},
    })
}

fn child(value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "default"}, "data": {"value": value},
    })
}

fn spec() -> Value {
    let mut spec = good();
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
    }]);
    spec
}

fn value(harness: &Harness) -> Option<Value> {
    let child = harness.server.get("v1", "ConfigMap", "default", "c").ok()?;
    Some(child["data"]["value"].clone())
}

#[tokio::test(start_paused = true)]
async fn last_of_repeated_children_counts_if_that_is_enabled() {
    for repeated_children in [false, true] {
        let lenience = Lenience { repeated_children, ..Lenience::default() };
        let twice = |_, _: &Value| json!({"children": [child("first"), child("last")]});
        let (harness, _) = harness_with(lenience, twice).await;
        harness.declare("a", spec());
        harness.server.apply(thing(1)).unwrap();
        pass().await;

        assert_eq!(value(&harness), repeated_children.then(|| json!("last")));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn hook_receives_managed_fields_if_that_is_enabled() {
    for managed_fields in [false, true] {
        let lenience = Lenience { managed_fields, ..Lenience::default() };
        let one = |_, _: &Value| json!({"children": [child("1")]});
        let (harness, calls) = harness_with(lenience, one).await;
        let managed = json!([{"manager": "m", "operation": "Update"}]);
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "a", "managedFields": managed}, "spec": spec(),
        });
        harness.server.apply(controller).unwrap();
        harness.server.apply(thing(1)).unwrap();
        pass().await;
        harness.server.apply(thing(2)).unwrap();
        pass().await;

        let calls = std::mem::take(&mut *calls.lock().unwrap());
        let request = &calls.last().unwrap().1;
        let child = &request["children"]["ConfigMap.v1"]["default/c"];
        let objects = [&request["controller"], &request["parent"], child];
        for object in objects {
            let found = object["metadata"].get("managedFields").is_some();
            assert_eq!(found, managed_fields, "{request:#}");
        }
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn endless_writes_are_not_limited_if_that_is_enabled() {
    for unlimited_writes in [false, true] {
        let lenience = Lenience { unlimited_writes, ..Lenience::default() };
        let count = std::sync::atomic::AtomicU32::new(0);
        let other = move |_, _: &Value| {
            let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // Ends by itself, since without a limit no time passes between the writes.
            json!({"children": [child(&count.min(100).to_string())]})
        };
        let (harness, _) = harness_with(lenience, other).await;
        harness.declare("a", spec());
        harness.server.apply(thing(1)).unwrap();
        pass().await;

        let written = value(&harness).unwrap();
        assert_eq!(written == json!("100"), unlimited_writes, "{written}");
        harness.end().await;
    }
}
