//! Requests and responses of a decorator's hooks, from the real API server.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
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

fn answer(request: &Value) -> Answer {
    if request.get("object").is_none() {
        let namespace = &request["parent"]["metadata"]["namespace"];
        let rule = json!({"apiVersion": "v1", "resource": "configmaps", "namespace": namespace, "names": ["settings"]});
        return Answer::Json(json!({"relatedResources": [rule]}));
    }
    let left = request["attachments"]["ConfigMap.v1"].as_object().unwrap().len();
    Answer::Json(match request["finalizing"].as_bool().unwrap() {
        true => json!({"attachments": [], "finalized": left == 0}),
        false => json!({
            "labels": {"size": "1", "none": null},
            "annotations": {"note": "any text"},
            "status": {"ready": true},
            "attachments": [{
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gear"},
                "data": {"size": "<1>"},
            }],
            "resyncAfterSeconds": 3600,
        }),
    })
}

/// The controller as its hooks receive it, with the defaults of the server.
fn controller(version: &str) -> Value {
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
            "attachments": [{
                "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
            }],
            "hooks": {"customize": hook(), "finalize": hook(), "sync": hook()},
            "resources": [{"apiVersion": "GROUP/v1", "resource": "widgets"}],
        },
        "status": {},
    })
}

/// The decorated object, before or after its decoration.
fn object(version: &str, decorated: bool) -> Value {
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
    if decorated {
        object["metadata"]["labels"] = json!({"size": "1"});
        object["metadata"]["annotations"] = json!({"note": "any text"});
        object["status"] = json!({"ready": true});
    }
    object
}

/// The attachment as the server has it.
fn attachment(version: &str) -> Value {
    let desired = format!(
        concat!(
            r#"{{"apiVersion":"v1","data":{{"size":"\u003c1\u003e"}},"kind":"ConfigMap","#,
            r#""metadata":{{"annotations":{{"metacontroller.k8s.io/decorator-controller":"NS-{}"}},"#,
            r#""name":"gear","namespace":"NS"}}}}"#
        ),
        version
    );
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"size": "<1>"},
        "metadata": {
            "annotations": {
                "metacontroller.k8s.io/decorator-controller": format!("NS-{version}"),
                "metacontroller.k8s.io/last-applied-configuration": desired,
            },
            "creationTimestamp": "CREATIONTIMESTAMP", "name": "gear", "namespace": "NS",
            "ownerReferences": [{
                "apiVersion": "GROUP/v1", "blockOwnerDeletion": true, "controller": true,
                "kind": "Widget", "name": "gear", "uid": "UID",
            }],
            "resourceVersion": "RESOURCEVERSION", "uid": "UID",
        },
    })
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

async fn requests_are_those_of_metacontroller(version: &str) {
    let supervised = Supervised::decorating(&format!("decorator-{version}")).await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(answer);
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
        "attachments": [{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
        }],
        "hooks": {"sync": hook, "finalize": hook, "customize": hook},
    });
    supervised.declare_decorator(version, spec).await;
    harness.create(&crd, "gear", 1).await;

    let key = |name: &str| match version {
        "v1" => name.to_owned(),
        _ => format!("NS/{name}"),
    };
    let asked = async |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        let of = |call: &Call| wanted(&masked(&call.body, &supervised));
        masked(&supervised.hook.asked(what, of).await.body, &supervised)
    };
    let customize = asked("to customize", &|body| body.get("object").is_none()).await;
    assert_eq!(
        customize,
        json!({"controller": controller(version), "parent": object(version, false)})
    );
    let is_sync = |body: &Value| body.get("object").is_some() && body["finalizing"] == false;
    let request = |object: Value, attachments: Value, finalizing: bool| {
        json!({
            "controller": controller(version), "object": object,
            "attachments": {"ConfigMap.v1": attachments},
            "related": {"ConfigMap.v1": {key("settings"): settings()}},
            "finalizing": finalizing,
        })
    };
    let first = asked("at first", &is_sync).await;
    assert_eq!(first, request(object(version, false), json!({}), false));
    let all = json!({key("gear"): attachment(version)});
    let decorated = request(object(version, true), all.clone(), false);
    assert_eq!(asked("when decorated", &|body| *body == decorated).await, decorated);

    let parents = harness.scope.api(&crd, "v1");
    parents.delete("gear", &DeleteParams::default()).await.unwrap();
    let finalize = asked("to finalize", &|body| body["finalizing"] == true).await;
    let mut terminating = object(version, true);
    terminating["metadata"]["deletionTimestamp"] = json!("DELETIONTIMESTAMP");
    terminating["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    terminating["metadata"]["generation"] = json!(2);
    assert_eq!(finalize, request(terminating, all, true));
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
async fn requests_of_version_1_are_those_of_metacontroller() {
    requests_are_those_of_metacontroller("v1").await;
}

#[tokio::test]
async fn requests_of_version_2_are_those_of_metacontroller() {
    requests_are_those_of_metacontroller("v2").await;
}
