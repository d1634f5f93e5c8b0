//! Requests and responses of a decorator's hooks, from the real API server, for each version and
//! scope of the decorated object.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use pilotlight::testing::CrdBuilder;
use serde_json::{Value, json};

use crate::support::{Answer, Call, Supervised, until};

/// Replaces what differs from run to run.
fn masked(body: &Value, supervised: &Supervised<'_>) -> Value {
    let scope = &supervised.harness.scope;
    let text = body.to_string();
    let text = text.replace(&supervised.hook.url, "URL").replace(&scope.group, "GROUP");
    let mut body = serde_json::from_str(&text.replace(&scope.namespace, "NS")).unwrap();
    mask(&mut body);
    body
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match name.as_str() {
                    "uid" | "resourceVersion" | "creationTimestamp" | "deletionTimestamp" => {
                        assert!(field.is_string(), "{name}: {field}");
                        *field = json!(name.to_uppercase());
                    }
                    _ => mask(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Hook version and scope of the decorated object.
#[derive(Clone, Copy)]
struct Variant {
    version: &'static str,
    is_namespaced: bool,
}

impl Variant {
    /// Key of a namespaced object in a request.
    fn key(self, name: &str) -> String {
        match self.version == "v1" && self.is_namespaced {
            true => name.to_owned(),
            false => format!("NS/{name}"),
        }
    }

    /// Attachments of the specification. A cluster-scoped object has one of its scope, too.
    fn rules(self) -> Value {
        let in_place = json!({"method": "InPlace"});
        let maps =
            json!({"apiVersion": "v1", "resource": "configmaps", "updateStrategy": in_place});
        let roles =
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "resource": "clusterroles"});
        if self.is_namespaced { json!([maps]) } else { json!([maps, roles]) }
    }

    /// Observed attachments in a request.
    fn attachments(self, there: bool) -> Value {
        let mut all = json!({"ConfigMap.v1": {}});
        if !self.is_namespaced {
            all[ROLES] = json!({});
        }
        if there {
            all["ConfigMap.v1"][self.key("gear")] = self.config_map();
            if !self.is_namespaced {
                all[ROLES]["NS-gear"] = self.cluster_role();
            }
        }
        all
    }
}

const ROLES: &str = "ClusterRole.rbac.authorization.k8s.io/v1";

fn answer(request: &Value, namespace: &str) -> Answer {
    if request.get("object").is_none() {
        let rule = json!({"apiVersion": "v1", "resource": "configmaps", "namespace": namespace, "names": ["settings"]});
        return Answer::Json(json!({"relatedResources": [rule]}));
    }
    let groups = request["attachments"].as_object().unwrap().values();
    let left: usize = groups.map(|group| group.as_object().unwrap().len()).sum();
    if request["finalizing"].as_bool().unwrap() {
        return Answer::Json(json!({"attachments": [], "finalized": left == 0}));
    }
    let is_namespaced = request["object"]["metadata"]["namespace"].is_string();
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gear"},
        "data": {"size": "<1>"},
    });
    let mut attachments = Vec::new();
    if !is_namespaced {
        map["metadata"]["namespace"] = json!(namespace);
        attachments.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": format!("{namespace}-gear")},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }));
    }
    attachments.push(map);
    Answer::Json(json!({
        "labels": {"size": "1", "none": null},
        "annotations": {"note": "any text"},
        "status": {"ready": true},
        "attachments": attachments,
        "resyncAfterSeconds": 3600,
    }))
}

/// The controller as its hooks receive it, with the defaults of the server.
fn controller(variant: Variant) -> Value {
    let version = variant.version;
    let hook = || {
        // The server fills in the version that the specification leaves out.
        json!({"version": version, "webhook": {"url": "URL"}})
    };
    json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "DecoratorController",
        "metadata": {
            "creationTimestamp": "CREATIONTIMESTAMP", "generation": 1,
            "labels": {"pilotlight.test/scope": "NS"}, "name": format!("NS-{version}"),
            "resourceVersion": "RESOURCEVERSION", "uid": "UID",
        },
        "spec": {
            "attachments": variant.rules(),
            "hooks": {"customize": hook(), "finalize": hook(), "sync": hook()},
            "resources": [{"apiVersion": "GROUP/v1", "resource": "widgets"}],
        },
        "status": {},
    })
}

/// The decorated object, before or after its decoration.
fn object(variant: Variant, decorated: bool) -> Value {
    let version = variant.version;
    let mut object = json!({
        "apiVersion": "GROUP/v1", "kind": "Widget",
        "metadata": {
            "creationTimestamp": "CREATIONTIMESTAMP",
            "finalizers": [format!("metacontroller.io/decoratorcontroller-NS-{version}")],
            "generation": 1, "name": "gear", "namespace": "NS",
            "resourceVersion": "RESOURCEVERSION", "uid": "UID",
        },
        "spec": {"size": 1},
    });
    if !variant.is_namespaced {
        object["metadata"].as_object_mut().unwrap().remove("namespace");
    }
    if decorated {
        object["metadata"]["labels"] = json!({"size": "1"});
        object["metadata"]["annotations"] = json!({"note": "any text"});
        object["status"] = json!({"ready": true});
    }
    object
}

impl Variant {
    /// Metadata of an attachment as the server has it.
    fn metadata(self, name: &str, desired: String) -> Value {
        json!({
            "annotations": {
                "metacontroller.k8s.io/decorator-controller": format!("NS-{}", self.version),
                "metacontroller.k8s.io/last-applied-configuration": desired,
            },
            "creationTimestamp": "CREATIONTIMESTAMP", "name": name,
            "ownerReferences": [{
                "apiVersion": "GROUP/v1", "blockOwnerDeletion": true, "controller": true,
                "kind": "Widget", "name": "gear", "uid": "UID",
            }],
            "resourceVersion": "RESOURCEVERSION", "uid": "UID",
        })
    }

    fn config_map(self) -> Value {
        let desired = format!(
            concat!(
                r#"{{"apiVersion":"v1","data":{{"size":"\u003c1\u003e"}},"kind":"ConfigMap","#,
                r#""metadata":{{"annotations":{{"metacontroller.k8s.io/decorator-controller":"NS-{}"}},"#,
                r#""name":"gear","namespace":"NS"}}}}"#
            ),
            self.version
        );
        let mut metadata = self.metadata("gear", desired);
        metadata["namespace"] = json!("NS");
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"size": "<1>"}, "metadata": metadata,
        })
    }

    fn cluster_role(self) -> Value {
        let desired = format!(
            concat!(
                r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","#,
                r#""metadata":{{"annotations":{{"metacontroller.k8s.io/decorator-controller":"NS-{}"}},"#,
                r#""name":"NS-gear"}},"rules":[{{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}}]}}"#
            ),
            self.version
        );
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": self.metadata("NS-gear", desired),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        })
    }
}

fn settings() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "value"},
        "metadata": {
            "creationTimestamp": "CREATIONTIMESTAMP", "name": "settings", "namespace": "NS",
            "resourceVersion": "RESOURCEVERSION", "uid": "UID",
        },
    })
}

async fn requests_are_those_of_metacontroller(variant: Variant) {
    let Variant { version, is_namespaced } = variant;
    let name = if is_namespaced { "decorator" } else { "decorator-cluster" };
    let supervised = Supervised::decorating(&format!("{name}-{version}")).await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let crd = if is_namespaced { crd } else { CrdBuilder::cluster_scoped(crd) };
    let namespace = harness.scope.namespace.clone();
    supervised.hook.answers(move |request| answer(request, &namespace));
    supervised.install(&crd).await;
    let metadata = ObjectMeta { name: Some("settings".to_owned()), ..ObjectMeta::default() };
    let data = Some([("key".to_owned(), "value".to_owned())].into());
    let related = ConfigMap { metadata, data, ..ConfigMap::default() };
    supervised.config_maps().create(&PostParams::default(), &related).await.unwrap();
    let resource = crd.api_resource("v1");
    let mut hook = json!({"webhook": {"url": supervised.hook.url}});
    if version != "v1" {
        hook["version"] = json!(version);
    }
    let spec = json!({
        "resources": [{"apiVersion": resource.api_version, "resource": resource.plural}],
        "attachments": variant.rules(),
        "hooks": {"sync": hook, "finalize": hook, "customize": hook},
        // Empty list, which the encoder of Go leaves out.
        "endpointConfigs": [],
    });
    supervised.declare_decorator(version, spec).await;
    harness.create(&crd, "gear", 1).await;

    let called = async |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        let of = |call: &Call| wanted(&masked(&call.body, &supervised));
        masked(&supervised.hook.called(what, of).await.body, &supervised)
    };
    let customize = called("to customize", &|body| body.get("object").is_none()).await;
    assert_eq!(
        customize,
        json!({"controller": controller(variant), "parent": object(variant, false)})
    );
    let is_sync = |body: &Value| body.get("object").is_some() && body["finalizing"] == false;
    let request = |object: Value, attached: bool, finalizing: bool| {
        json!({
            "controller": controller(variant), "object": object,
            "attachments": variant.attachments(attached),
            "related": {"ConfigMap.v1": {variant.key("settings"): settings()}},
            "finalizing": finalizing,
        })
    };
    let first = called("at first", &is_sync).await;
    assert_eq!(first, request(object(variant, false), false, false));
    let decorated = request(object(variant, true), true, false);
    assert_eq!(called("when decorated", &|body| *body == decorated).await, decorated);

    let parents = harness.scope.api(&crd, "v1");
    parents.delete("gear", &DeleteParams::default()).await.unwrap();
    let finalize = called("to finalize", &|body| body["finalizing"] == true).await;
    let mut terminating = object(variant, true);
    terminating["metadata"]["deletionTimestamp"] = json!("DELETIONTIMESTAMP");
    terminating["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    terminating["metadata"]["generation"] = json!(2);
    assert_eq!(finalize, request(terminating, true, true));
    until("the object is finalized", async || {
        match parents.get_opt("gear").await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(left) => Err(format!("{left:?}")),
        }
    })
    .await;
    assert!(supervised.config_maps().get_opt("gear").await.unwrap().is_none());
    supervised.end().await;
}

#[tokio::test]
async fn requests_of_version_1_about_a_namespaced_object() {
    requests_are_those_of_metacontroller(Variant { version: "v1", is_namespaced: true }).await;
}

#[tokio::test]
async fn requests_of_version_1_about_a_cluster_scoped_object() {
    requests_are_those_of_metacontroller(Variant { version: "v1", is_namespaced: false }).await;
}

#[tokio::test]
async fn requests_of_version_2_about_a_namespaced_object() {
    requests_are_those_of_metacontroller(Variant { version: "v2", is_namespaced: true }).await;
}

#[tokio::test]
async fn requests_of_version_2_about_a_cluster_scoped_object() {
    requests_are_those_of_metacontroller(Variant { version: "v2", is_namespaced: false }).await;
}
