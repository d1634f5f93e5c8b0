//! Table of the effects of edits.

use serde_json::{Value, json};

use super::*;
use crate::meta::api::controller_kind::ControllerKind;

const DUE: EditEffect = EditEffect::Swap(NextSyncs::WhenDue);
const SPREAD: EditEffect = EditEffect::Swap(NextSyncs::Spread);
const AT_ONCE: EditEffect = EditEffect::Swap(NextSyncs::AtOnce);

fn composite() -> Value {
    json!({
        "metadata": {"name": "things"},
        "spec": {
            "parentResource": {
                "apiVersion": "example.com/v1", "resource": "things",
                "labelSelector": {"matchLabels": {"app": "x"}},
            },
            "childResources": [
                {"apiVersion": "v1", "resource": "configmaps"},
                {"apiVersion": "v1", "resource": "secrets", "optional": true},
            ],
            "resyncPeriodSeconds": 60,
            "generateSelector": true,
            "hooks": {
                "sync": {"webhook": {"url": "http://hook.default/sync"}},
                "finalize": {"webhook": {"url": "http://hook.default/finalize"}},
            },
        },
    })
}

fn decorator() -> Value {
    json!({
        "metadata": {"name": "things"},
        "spec": {
            "resources": [
                {"apiVersion": "example.com/v1", "resource": "things"},
                {"apiVersion": "v1", "resource": "pods"},
            ],
            "attachments": [{"apiVersion": "v1", "resource": "configmaps"}],
            "hooks": {"sync": {"webhook": {"url": "http://hook.default/sync"}}},
        },
    })
}

fn parse(kind: ControllerKind, object: &Value) -> Definition {
    Definition::parse(kind, object.to_string().as_bytes()).unwrap()
}

#[track_caller]
fn check(kind: ControllerKind, pointer: &str, value: Value, expected: EditEffect) {
    let object = match kind {
        ControllerKind::Composite => composite(),
        ControllerKind::Decorator => decorator(),
    };
    let mut edited = object.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = edited.pointer_mut(parent).unwrap();
    if let Value::Array(items) = parent {
        match key.parse::<usize>() {
            Ok(index) => items[index] = value,
            Err(_) => items.push(value),
        }
    } else {
        parent[key] = value;
    }
    let (old, new) = (parse(kind, &object), parse(kind, &edited));

    assert_eq!(edit_effect(&old, &new), expected, "{pointer}");
    assert_eq!(edit_effect(&new, &old), expected, "{pointer} undone");
}

#[test]
fn each_field_of_a_composite_controller_has_its_effect() {
    let check = |pointer, value, expected| {
        check(ControllerKind::Composite, pointer, value, expected);
    };
    let hook = || json!({"webhook": {"url": "http://hook.default/more"}});
    check("/metadata/labels", json!({"a": "b"}), EditEffect::Keep);
    check("/spec/hooks/sync/version", json!("v1"), EditEffect::Keep);
    check("/spec/parentResource/apiVersion", json!("example.com/v2"), EditEffect::NewEpoch);
    check("/spec/parentResource/resource", json!("others"), EditEffect::NewEpoch);
    check("/spec/parentResource/labelSelector", json!({}), AT_ONCE);
    check("/spec/parentResource/ignoreStatusChanges", json!(true), AT_ONCE);
    check("/spec/parentResource/revisionHistory", json!({"fieldPaths": ["spec.a"]}), SPREAD);
    check("/spec/childResources/0/apiVersion", json!("v2"), EditEffect::NewEpoch);
    check("/spec/childResources/0/resource", json!("pods"), EditEffect::NewEpoch);
    check("/spec/childResources/0/optional", json!(true), EditEffect::NewEpoch);
    check("/spec/childResources/0/ignoreStatusChanges", json!(true), AT_ONCE);
    check(
        "/spec/childResources/-",
        json!({"apiVersion": "v1", "resource": "pods"}),
        EditEffect::NewEpoch,
    );
    check("/spec/childResources/1/updateStrategy", json!({"method": "InPlace"}), AT_ONCE);
    let rolling = json!({"method": "RollingInPlace"});
    check("/spec/childResources/1/updateStrategy", rolling, AT_ONCE);
    check("/spec/generateSelector", json!(false), AT_ONCE);
    check("/spec/resyncPeriodSeconds", json!(61), DUE);
    check("/metadata/annotations", json!({"pilotlight.dev/workers": "7"}), DUE);
    check("/metadata/annotations", json!({"pilotlight.dev/max-owner-depth": "7"}), SPREAD);
    let optional = json!({"pilotlight.dev/optional-related": "example.com/gadgets"});
    check("/metadata/annotations", optional, AT_ONCE);
    let applied = json!({"pilotlight.dev/apply-strategy": "server-side-apply"});
    check("/metadata/annotations", applied, AT_ONCE);
    check("/metadata/annotations", json!({"pilotlight.dev/apply-field-manager": "b"}), AT_ONCE);
    check("/spec/hooks/customize", hook(), AT_ONCE);
    check("/spec/hooks/finalize", Value::Null, AT_ONCE);
    check("/spec/hooks/sync", Value::Null, AT_ONCE);
    check("/spec/hooks/preUpdateChild", hook(), SPREAD);
    check("/spec/hooks/finalize/webhook/url", json!("http://hook.default/other"), AT_ONCE);
    check("/spec/hooks/sync/version", json!("v2"), AT_ONCE);
    check("/spec/hooks/sync/webhook/responseUnMarshallMode", json!("strict"), AT_ONCE);
    check("/spec/hooks/sync/webhook/timeout", json!("3s"), DUE);
    check("/spec/hooks/sync/webhook/etag", json!({"enabled": true}), DUE);
    let token = json!({"secretRef": {"name": "a", "namespace": "b", "key": "c"}});
    check("/spec/hooks/sync/webhook/authorization", token.clone(), DUE);
    let config = json!([{"host": "hook.default", "authorization": token}]);
    check("/spec/endpointConfigs", config, DUE);
}

#[test]
fn edit_of_a_rolling_update_is_executed_in_place() {
    let rolling = |method: &str, field: &str| {
        let mut object = composite();
        object["spec"]["childResources"][0]["updateStrategy"] = json!({"method": method});
        object["spec"]["parentResource"]["revisionHistory"] = json!({"fieldPaths": [field]});
        parse(ControllerKind::Composite, &object)
    };
    let old = rolling("RollingRecreate", "spec.a");

    assert_eq!(edit_effect(&old, &rolling("RollingInPlace", "spec.a")), AT_ONCE);
    assert_eq!(edit_effect(&old, &rolling("RollingRecreate", "spec.b")), AT_ONCE);
    assert_eq!(edit_effect(&old, &old), EditEffect::Keep);
}

#[test]
fn each_field_of_a_decorator_controller_has_its_effect() {
    let check = |pointer, value, expected| {
        check(ControllerKind::Decorator, pointer, value, expected);
    };
    let pods = json!({"apiVersion": "v1", "resource": "pods"});
    check(
        "/spec/resources/-",
        json!({"apiVersion": "v1", "resource": "nodes"}),
        EditEffect::NewEpoch,
    );
    check("/spec/resources/0", pods, EditEffect::NewEpoch);
    let selector = json!({"matchAnnotations": {"a": "b"}});
    check("/spec/resources/1/annotationSelector", selector, AT_ONCE);
    check("/spec/resources/1/labelSelector", json!({"matchLabels": {"a": "b"}}), AT_ONCE);
    check("/spec/resources/0/ignoreStatusChanges", json!(true), AT_ONCE);
    check("/spec/attachments/0/resource", json!("secrets"), EditEffect::NewEpoch);
    check("/spec/attachments/0/updateStrategy", json!({"method": "Recreate"}), AT_ONCE);
    check("/spec/resyncPeriodSeconds", json!(9), DUE);
}

#[test]
fn another_controller_has_another_epoch() {
    let parsed = || parse(ControllerKind::Composite, &composite());
    for edited in [
        Definition { name: "other".to_owned(), ..parsed() },
        Definition { kind: ControllerKind::Decorator, ..parsed() },
    ] {
        assert_eq!(edit_effect(&parsed(), &edited), EditEffect::NewEpoch);
    }
}

#[test]
fn largest_effect_of_an_edit_counts() {
    let mut edited = composite();
    edited["spec"]["resyncPeriodSeconds"] = json!(61);
    edited["spec"]["generateSelector"] = json!(false);
    let old = parse(ControllerKind::Composite, &composite());
    assert_eq!(edit_effect(&old, &parse(ControllerKind::Composite, &edited)), AT_ONCE);

    edited["spec"]["childResources"] = json!([]);
    assert_eq!(edit_effect(&old, &parse(ControllerKind::Composite, &edited)), EditEffect::NewEpoch);
}

#[test]
fn defaults_of_the_server_are_no_edit() {
    let one = json!({
        "parentResource": {"apiVersion": "v1", "resource": "things"},
        "hooks": {"sync": {"webhook": {"url": "http://x"}}}
    });
    let mut other = one.clone();
    other["hooks"]["sync"]["version"] = json!("v1");

    let accepted = |spec: &Value| Bytes::from(json!({ "spec": spec }).to_string());

    assert!(same_spec(ControllerKind::Composite, &accepted(&one), &accepted(&other)));

    other["resyncPeriodSeconds"] = json!(5);
    assert!(!same_spec(ControllerKind::Composite, &accepted(&one), &accepted(&other)));
}
