//! Server-side apply of children, and the change between the apply strategies.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::{APPLY_FIELD_MANAGER, APPLY_STRATEGY, LAST_APPLIED},
    testing::CrdBuilder,
};
use serde_json::{Value, json};

use crate::support::{Answer, Position, Supervised, condition, until};

/// Controllers by the letter of their strategy.
const DYNAMIC: &str = "dynamic-apply";
const SERVER: &str = "server-side-apply";

fn strategy(strategy: &str) -> Value {
    json!({ APPLY_STRATEGY: strategy })
}

/// Spec of a controller of widgets with children of these types.
fn spec(supervised: &Supervised<'_>, crd: &CrdBuilder, children: &[(&str, &str, &str)]) -> Value {
    let mut spec = supervised.spec(crd);
    spec["resyncPeriodSeconds"] = json!(1);
    let rule = |(api_version, resource, method): &(&str, &str, &str)| {
        json!({
            "apiVersion": api_version, "resource": resource, "updateStrategy": { "method": method },
        })
    };
    spec["childResources"] = children.iter().map(rule).collect();
    spec
}

fn deployment(name: &str, size: &Value) -> Value {
    let labels = json!({ "app": name });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "labels": { "size": size.to_string() } },
        "spec": {
            "replicas": size, "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{
                    "name": "main", "image": "main:1",
                    "ports": [{ "containerPort": 80 }, { "containerPort": 81 }],
                    "resources": { "limits": { "cpu": "500m" } },
                }] },
            },
        },
    })
}

/// Answers with a ConfigMap and a Deployment of the parent's size.
fn answers_with_two(supervised: &Supervised<'_>) {
    supervised.hook.answers(|request| {
        let (name, size) =
            (&request["parent"]["metadata"]["name"], &request["parent"]["spec"]["size"]);
        let mut data = json!({ "size": size.to_string() });
        match size.as_i64() {
            Some(1) => data["first"] = json!("yes"),
            Some(2) => data["second"] = json!("yes"),
            _ => {}
        }
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data,
        });
        Answer::Json(json!({ "children": [map, deployment(name.as_str().unwrap(), size)] }))
    });
}

fn deployments(supervised: &Supervised<'_>) -> Api<DynamicObject> {
    let scope = &supervised.harness.scope;
    let resource = ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&());
    Api::namespaced_with(scope.client(), &scope.namespace, &resource)
}

/// Object without the fields in which the strategies differ, and those of each object.
fn compared_fields(object: impl serde::Serialize) -> Value {
    let mut object = serde_json::to_value(object).unwrap();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"] {
        metadata.remove(field);
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    object
}

/// Waits until the hook was called twice more for a parent.
async fn synced(supervised: &Supervised<'_>, parent: &str) {
    let before = supervised.hook.count(parent);
    supervised.hook.called_again(parent, before + 2).await;
}

const TWO: [(&str, &str, &str); 2] =
    [("v1", "configmaps", "InPlace"), ("apps/v1", "deployments", "InPlace")];

/// Waits until both children of `gear` have this size.
async fn sized(supervised: &Supervised<'_>, size: i64) {
    supervised.child("gear", size).await;
    let api = deployments(supervised);
    until("the deployment has its size", async || {
        let found = api.get("gear").await.map_err(|error| error.to_string())?;
        let json = serde_json::to_value(&found).unwrap();
        if json["spec"]["replicas"] == size { Ok(()) } else { Err(format!("{json:#}")) }
    })
    .await;
}

/// Largest number of writes of one type of children since a position.
async fn most_writes(supervised: &Supervised<'_>, position: Position) -> usize {
    let events = supervised.harness.events(position).await;
    let is_child = |resource: &str| matches!(resource, "configmaps" | "deployments");
    let is_write = |verb: &str| matches!(verb, "patch" | "update" | "create" | "delete");
    let writes = events.iter().filter(|event| is_child(&event.resource) && is_write(&event.verb));
    let writes = writes.filter(|event| !event.uri.contains("dryRun"));
    let of = |resource| writes.clone().filter(|event| event.resource == resource).count();
    of("configmaps").max(of("deployments"))
}

/// Returns whether a ConfigMap has data without this key.
fn lacks(map: Option<&ConfigMap>, key: &str) -> bool {
    map.and_then(|map| map.data.as_ref()).is_some_and(|data| !data.contains_key(key))
}

/// Operations with which Pilotlight owns fields of an object.
fn operations(object: &kube::core::ObjectMeta) -> Vec<String> {
    let entries = object.managed_fields.iter().flatten();
    let ours = entries.filter(|entry| entry.manager.as_deref() == Some("metacontroller"));
    ours.map(|entry| entry.operation.clone().unwrap()).collect()
}

#[tokio::test]
async fn both_strategies_leave_equal_objects_and_each_is_handed_the_fields_of_the_other() {
    let supervised = Supervised::start("ssa-switch").await;
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    answers_with_two(&supervised);
    let spec = spec(&supervised, &crd, &TWO);
    supervised.declare_with("CompositeController", "a", spec, strategy(DYNAMIC)).await;
    supervised.harness.create(&crd, "gear", 1).await;
    sized(&supervised, 1).await;
    let (maps, sets) = (supervised.config_maps(), deployments(&supervised));
    let written = [
        compared_fields(maps.get("gear").await.unwrap()),
        compared_fields(sets.get("gear").await.unwrap()),
    ];
    let uids = [maps.get("gear").await.unwrap().uid(), sets.get("gear").await.unwrap().uid()];

    for (round, to) in [SERVER, DYNAMIC, SERVER].into_iter().enumerate() {
        let position = supervised.harness.position();
        supervised.edit("a", json!({ "metadata": { "annotations": strategy(to) } })).await;
        until("the fields of both children are transferred", async || {
            let (map, set) = (maps.get("gear").await.unwrap(), sets.get("gear").await.unwrap());
            let annotated = [
                map.annotations().contains_key(LAST_APPLIED),
                set.annotations().contains_key(LAST_APPLIED),
            ];
            match annotated == [to == DYNAMIC; 2] {
                true => Ok(()),
                false => Err(format!("{round}: {annotated:?}")),
            }
        })
        .await;
        synced(&supervised, "gear").await;
        synced(&supervised, "gear").await;
        let (map, set) = (maps.get("gear").await.unwrap(), sets.get("gear").await.unwrap());
        let operation = if to == SERVER { "Apply" } else { "Update" };
        assert_eq!(operations(&map.metadata), [operation], "{round}");
        assert_eq!(operations(&set.metadata), [operation], "{round}");
        let writes = most_writes(&supervised, position).await;
        assert!(writes <= 2, "{writes} writes of one child to {to}");
        assert_eq!([map.uid(), set.uid()], uids, "none was created again");
        if round == 0 {
            assert_eq!([compared_fields(map), compared_fields(set)], written);
        }
    }

    // Fields that dynamic apply has written are removed by server-side apply.
    supervised.resize(&crd, "gear", 2).await;
    sized(&supervised, 2).await;
    supervised.config_map("gear", "has lost a field", |map| lacks(map, "first")).await;
    let applied = [
        compared_fields(maps.get("gear").await.unwrap()),
        compared_fields(sets.get("gear").await.unwrap()),
    ];
    supervised.edit("a", json!({ "metadata": { "annotations": strategy(DYNAMIC) } })).await;
    until("the annotation is back", async || {
        let set = sets.get("gear").await.unwrap();
        let back = set.annotations().contains_key(LAST_APPLIED);
        if back { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    supervised.harness.create(&crd, "twin", 2).await;
    supervised.child("twin", 2).await;
    let renamed = |object: Value| -> Value {
        serde_json::from_str(&object.to_string().replace("twin", "gear")).unwrap()
    };
    let mut twin = renamed(compared_fields(maps.get("twin").await.unwrap()));
    let mut gear = applied[0].clone();
    for object in [&mut twin, &mut gear] {
        for field in ["ownerReferences", "labels"] {
            object["metadata"][field].take();
        }
    }
    assert_eq!(twin, gear);

    // And the other way round.
    supervised.resize(&crd, "gear", 3).await;
    sized(&supervised, 3).await;
    supervised.config_map("gear", "has lost a field", |map| lacks(map, "second")).await;
    supervised.end().await;
}

#[tokio::test]
async fn drift_of_fields_and_metadata_is_repaired_and_an_unchanged_child_keeps_its_version() {
    let supervised = Supervised::start("ssa-drift").await;
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    answers_with_two(&supervised);
    let spec = spec(&supervised, &crd, &TWO);
    supervised.declare_with("CompositeController", "a", spec, strategy(SERVER)).await;
    supervised.harness.create(&crd, "gear", 1).await;
    sized(&supervised, 1).await;
    let (maps, sets) = (supervised.config_maps(), deployments(&supervised));
    let by = PatchParams { field_manager: Some("rival".to_owned()), ..PatchParams::default() };

    let drift = json!({ "metadata": { "labels": { "size": "drift" } }, "spec": { "replicas": 9 } });
    sets.patch("gear", &by, &Patch::Merge(drift)).await.unwrap();
    let drift = json!({ "data": { "size": "drift", "foreign": "kept" } });
    maps.patch("gear", &by, &Patch::Merge(drift)).await.unwrap();

    sized(&supervised, 1).await;
    until("the label is repaired", async || {
        let label = sets.get("gear").await.unwrap().labels()["size"].clone();
        if label == "1" { Ok(()) } else { Err(label) }
    })
    .await;
    let map = maps.get("gear").await.unwrap();
    assert_eq!(map.data.unwrap()["foreign"], "kept");
    let event = supervised.event("gear", "FieldsTakenOver", ".data.size of \"rival\"").await;
    assert!(event.message.unwrap().contains("ConfigMap"));
    // Metadata alone, whose drift leaves the generation as it is.
    let drift = json!({ "metadata": { "labels": { "size": "again" } } });
    sets.patch("gear", &by, &Patch::Merge(drift)).await.unwrap();
    until("the label is repaired alone", async || {
        let label = sets.get("gear").await.unwrap().labels()["size"].clone();
        if label == "1" { Ok(()) } else { Err(label) }
    })
    .await;

    synced(&supervised, "gear").await;
    let versions = async || {
        let (map, set) = (maps.get("gear").await.unwrap(), sets.get("gear").await.unwrap());
        [map.resource_version(), set.resource_version()]
    };
    let (before, position) = (versions().await, supervised.harness.position());
    let status = json!({ "status": { "observedGeneration": 1, "replicas": 1 } });
    sets.patch_status("gear", &by, &Patch::Merge(status)).await.unwrap();
    synced(&supervised, "gear").await;
    synced(&supervised, "gear").await;
    let events = supervised.harness.events(position).await;
    let requests: Vec<_> = events
        .iter()
        .filter(|event| matches!(&*event.resource, "configmaps" | "deployments"))
        .filter(|event| matches!(&*event.verb, "patch" | "update" | "get"))
        .collect();
    assert!(requests.iter().all(|event| event.subresource == "status" || event.verb == "get"));
    let after = versions().await;
    assert_eq!(after[0], before[0]);
    supervised.end().await;
}

#[tokio::test]
async fn child_of_a_kind_with_immutable_fields_is_recreated_once_it_differs() {
    let supervised = Supervised::start("ssa-recreate").await;
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    supervised.hook.answers(|request| {
        let (name, size) =
            (&request["parent"]["metadata"]["name"], &request["parent"]["spec"]["size"]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "main:1", "command": ["sleep", size.to_string()],
                    "resources": { "limits": { "cpu": 0.5 } },
                }],
            },
        });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            "data": { "size": size.to_string() },
        });
        Answer::Json(json!({ "children": [pod, map] }))
    });
    let rules = [("v1", "pods", "Recreate"), ("v1", "configmaps", "Recreate")];
    let spec = spec(&supervised, &crd, &rules);
    supervised.declare_with("CompositeController", "a", spec, strategy(DYNAMIC)).await;
    let scope = &supervised.harness.scope;
    let account = json!({ "metadata": { "name": "default" } });
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(
        scope.client(),
        &scope.namespace,
    );
    accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await.ok();
    supervised.harness.create(&crd, "gear", 1).await;
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(scope.client(), &scope.namespace);
    let command = async |size: &str| {
        until("the pod has its command", async || {
            let pod = pods.get("gear").await.map_err(|error| error.to_string())?;
            let command = pod.spec.as_ref().unwrap().containers[0].command.clone().unwrap();
            if command[1] == size { Ok(pod) } else { Err(format!("{command:?}")) }
        })
        .await
    };
    let first = command("1").await;
    supervised.child("gear", 1).await;

    // A change of the strategy recreates nothing.
    for to in [SERVER, DYNAMIC, SERVER] {
        supervised.edit("a", json!({ "metadata": { "annotations": strategy(to) } })).await;
        until("the fields of the pod are transferred", async || {
            let pod = pods.get("gear").await.map_err(|error| error.to_string())?;
            let is_on = pod.annotations().contains_key(LAST_APPLIED);
            if is_on == (to == DYNAMIC) { Ok(()) } else { Err(to.to_owned()) }
        })
        .await;
        synced(&supervised, "gear").await;
        assert_eq!(pods.get("gear").await.unwrap().uid(), first.uid());
    }

    supervised.resize(&crd, "gear", 2).await;
    let second = command("2").await;
    supervised.child("gear", 2).await;
    assert_ne!(second.uid(), first.uid());
    let map = supervised.config_maps().get("gear").await.unwrap();
    synced(&supervised, "gear").await;
    assert_eq!(pods.get("gear").await.unwrap().uid(), second.uid());
    assert_eq!(supervised.config_maps().get("gear").await.unwrap().uid(), map.uid());
    supervised.end().await;
}

#[tokio::test]
async fn object_without_an_owner_is_taken_over_and_attachments_have_their_own_manager() {
    let supervised = Supervised::decorating("ssa-decorator").await;
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    supervised.hook.answers(|request| {
        let size = &request["object"]["spec"]["size"];
        let map = |name: &str| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
                "data": { "size": size.to_string() },
            })
        };
        Answer::Json(json!({ "attachments": [map("gear"), map("foreign")] }))
    });
    let foreign = json!({ "metadata": { "name": "foreign" }, "data": { "size": "theirs" } });
    let foreign: ConfigMap = serde_json::from_value(foreign).unwrap();
    supervised.config_maps().create(&PostParams::default(), &foreign).await.unwrap();
    let parent = crd.api_resource("v1");
    let spec = json!({
        "resources": [{ "apiVersion": parent.api_version, "resource": parent.plural }],
        "attachments": [{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": { "method": "InPlace" },
        }],
        "hooks": { "sync": { "webhook": { "url": supervised.hook.url } } },
    });
    let annotations = json!({ APPLY_STRATEGY: SERVER, APPLY_FIELD_MANAGER: "team a/widgets" });
    supervised.declare_with("DecoratorController", "d", spec, annotations).await;
    supervised.harness.create(&crd, "gear", 1).await;

    let child = supervised.child("gear", 1).await;
    let taken = supervised.child("foreign", 1).await;
    supervised.event("gear", "FieldsTakenOver", ".data.size").await;

    let managers: Vec<_> = child.metadata.managed_fields.iter().flatten().collect();
    assert_eq!(managers.len(), 1);
    assert_eq!(managers[0].manager.as_deref(), Some("team a/widgets"));
    assert_eq!(managers[0].operation.as_deref(), Some("Apply"));
    assert!(!child.annotations().contains_key(LAST_APPLIED));
    assert_eq!(taken.metadata.owner_references.unwrap()[0].name, "gear");
    supervised.end().await;
}

#[tokio::test]
async fn bad_value_of_an_apply_annotation_is_a_condition_that_names_it() {
    let supervised = Supervised::start("ssa-annotation").await;
    let crd = supervised.harness.widgets();
    let spec = supervised.spec(&crd);
    supervised.declare_with("CompositeController", "a", spec, strategy("apply")).await;

    let rejected = |reason: &str| reason == "SpecInvalid";
    let status = supervised
        .status("a", "is rejected", |status| rejected(&condition(status, "Ready").reason))
        .await;

    let ready = condition(&status, "Ready");
    let named = format!("metadata.annotations[{APPLY_STRATEGY}]: \"apply\": give dynamic-apply");
    assert!(ready.message.contains(&named), "{}", ready.message);
    supervised.end().await;
}

#[tokio::test]
async fn server_refuses_an_apply_with_the_uid_of_another_or_a_deleted_object() {
    let supervised = Supervised::start("ssa-uid").await;
    let maps = supervised.config_maps();
    let map = json!({ "metadata": { "name": "a" }, "data": { "k": "v" } });
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    let uid = maps.create(&PostParams::default(), &map).await.unwrap().uid().unwrap();
    let applied = async |uid: &str| {
        let wanted = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a", "uid": uid }, "data": { "k": "w" },
        });
        let by = PatchParams::apply("metacontroller").force();
        match maps.patch("a", &by, &Patch::Apply(&wanted)).await {
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        }
    };

    assert_eq!(applied("00000000-0000-4000-8000-000000000000").await, 422);
    assert_eq!(applied(&uid).await, 200);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    supervised.config_map("a", "is gone", |map| map.is_none()).await;
    assert_eq!(applied(&uid).await, 409);
    assert!(maps.get_opt("a").await.unwrap().is_none(), "it is not created again");
    supervised.end().await;
}
