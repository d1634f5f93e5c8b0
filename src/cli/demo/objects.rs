//! Objects of the demo.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use pilotlight::meta::api::CompositeController;
use serde_json::{Value, json};

pub(super) const GROUP: &str = "demo.pilotlight.dev";
pub(super) const CONTROLLER: &str = "greetings";

/// Returns the controller: parents are greetings, children are ConfigMaps.
pub(super) fn composite_controller(url: &str) -> CompositeController {
    parse(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": {"name": CONTROLLER},
        "spec": {
            "generateSelector": true,
            "parentResource": {"apiVersion": format!("{GROUP}/v1"), "resource": "greetings"},
            "childResources": [{
                "apiVersion": "v1",
                "resource": "configmaps",
                "updateStrategy": {"method": "InPlace"},
            }],
            "hooks": {"sync": {"webhook": {"url": url, "timeout": "10s"}}},
        },
    }))
}

pub(super) fn crd() -> CustomResourceDefinition {
    parse(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("greetings.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "greetings", "singular": "greeting", "kind": "Greeting"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {
                            "type": "object",
                            "properties": {"who": {"type": "string"}},
                        },
                        "status": {
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": true,
                        },
                    },
                }},
            }],
        },
    }))
}

pub(super) fn greetings() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", "Greeting"), "greetings")
}

pub(super) fn greeting(name: &str) -> DynamicObject {
    DynamicObject::new(name, &greetings()).data(json!({"spec": {"who": "world"}}))
}

/// Returns the hook's response for one parent.
pub(super) fn desired(request: &Value) -> Value {
    let parent = &request["parent"];
    let who = parent["spec"]["who"].as_str().unwrap_or("you");
    json!({
        "status": {"greeted": who},
        "children": [{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": parent["metadata"]["name"],
                "namespace": parent["metadata"]["namespace"],
            },
            "data": {"greeting": format!("Hello, {who}!")},
        }],
    })
}

fn parse<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("the demo's own objects have the shape of their types")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_have_the_shape_of_their_types() {
        let controller = composite_controller("http://127.0.0.1:1/sync");

        assert_eq!(controller.spec.parent_resource.resource, "greetings");
        assert_eq!(crd().spec.group, GROUP);
    }

    #[test]
    fn a_greeting_wants_a_config_map_of_its_name() {
        let request = json!({"parent": {
            "metadata": {"name": "a", "namespace": "b"}, "spec": {"who": "world"}}});

        let desired = desired(&request);

        assert_eq!(desired["children"][0]["metadata"]["name"], "a");
        assert_eq!(desired["children"][0]["data"]["greeting"], "Hello, world!");
    }
}
