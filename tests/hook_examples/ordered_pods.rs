//! `examples/ordered-pods`.

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{deleted, gone};
use crate::support::{Example, until};

const OLD: &str = "docker.io/library/nginx:1.27";
const NEW: &str = "docker.io/library/nginx:1.28";

/// Waits until exactly these pods exist, with these images.
async fn pods(api: &Api<DynamicObject>, expected: &[(&str, &str)]) {
    let of_parent = ListParams::default().labels("app=store");
    until(&format!("the pods are {expected:?}"), async || {
        let listed = api.list(&of_parent).await.map_err(|error| error.to_string())?;
        let image = |pod: &DynamicObject| pod.data["spec"]["containers"][0]["image"].clone();
        let mut found: Vec<_> = listed.iter().map(|pod| (pod.name_any(), image(pod))).collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let is_right = found.len() == expected.len()
            && found.iter().zip(expected).all(|((name, image), it)| name == it.0 && *image == it.1);
        if is_right { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// Reports a pod ready, as its kubelet would.
async fn ready(example: &Example, api: &Api<DynamicObject>, name: &str) {
    let conditions = json!([{ "type": "Ready", "status": "True" }]);
    example.set_status(api, name, json!({ "phase": "Running", "conditions": conditions })).await;
}

/// Waits until the condition `Updated` has this reason.
async fn updated(parents: &Api<DynamicObject>, reason: &str) {
    until(&format!("Updated has the reason {reason}"), async || {
        let parent = parents.get("store").await.map_err(|error| error.to_string())?;
        let conditions = parent.data["status"]["conditions"].as_array().cloned();
        let updated = conditions.into_iter().flatten().find(|it| it["type"] == "Updated");
        if updated.as_ref().is_some_and(|it| it["reason"] == reason) {
            Ok(())
        } else {
            Err(format!("{updated:?}"))
        }
    })
    .await;
}

fn spec(spec: Value) -> Patch<Value> {
    Patch::Merge(json!({ "spec": spec }))
}

#[tokio::test]
#[ignore = "needs python3, which cargo test does not; .ci/run runs it"]
async fn python_example_rolls_pods_with_volumes_in_order() {
    let example = Example::start("ordered-pods", "python3", "hook.py").await;
    let api = example.api("v1", "Pod", "default").await;
    let claims = example.api("v1", "PersistentVolumeClaim", "default").await;
    let parents = example.api("examples.pilotlight.dev/v1", "OrderedPods", "default").await;
    let by = PatchParams::default();

    example.apply("pods.yaml").await;
    pods(&api, &[("store-0", OLD)]).await;
    ready(&example, &api, "store-0").await;
    pods(&api, &[("store-0", OLD), ("store-1", OLD)]).await;
    ready(&example, &api, "store-1").await;
    pods(&api, &[("store-0", OLD), ("store-1", OLD), ("store-2", OLD)]).await;
    ready(&example, &api, "store-2").await;
    let all = json!({ "observedGeneration": 1, "replicas": 3, "readyReplicas": 3 });
    until("all pods are ready", async || {
        let parent = parents.get("store").await.map_err(|error| error.to_string())?;
        let status = &parent.data["status"];
        let is_right = all.as_object().unwrap().iter().all(|(field, it)| status[field] == *it);
        if is_right { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    let mount = api.get("store-2").await.unwrap().data["spec"]["volumes"][0].clone();
    assert_eq!(mount["persistentVolumeClaim"]["claimName"], "data-store-2");
    let volume = claims.get("data-store-2").await.unwrap().uid();

    let container = json!({
        "name": "nginx", "image": NEW,
        "volumeMounts": [{ "name": "data", "mountPath": "/usr/share/nginx/html" }],
    });
    let template = json!({ "template": { "spec": { "containers": [container] } } });
    parents.patch("store", &by, &spec(template)).await.unwrap();
    pods(&api, &[("store-0", OLD), ("store-1", OLD), ("store-2", NEW)]).await;
    updated(&parents, "RolloutWaiting").await;
    ready(&example, &api, "store-2").await;
    pods(&api, &[("store-0", OLD), ("store-1", NEW), ("store-2", NEW)]).await;
    ready(&example, &api, "store-1").await;
    pods(&api, &[("store-0", NEW), ("store-1", NEW), ("store-2", NEW)]).await;
    ready(&example, &api, "store-0").await;
    updated(&parents, "OnLatestRevision").await;
    assert_eq!(claims.get("data-store-2").await.unwrap().uid(), volume);

    parents.patch("store", &by, &spec(json!({ "replicas": 2 }))).await.unwrap();
    pods(&api, &[("store-0", NEW), ("store-1", NEW)]).await;
    let kept = claims.get("data-store-2").await.unwrap();
    assert!(kept.uid() == volume && kept.metadata.deletion_timestamp.is_none());

    let since = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    parents.delete("store", &DeleteParams::default()).await.unwrap();
    gone(&parents, "store").await;
    assert_eq!(deleted(&api, "app=store", &since, 2).await, ["store-1", "store-0"]);
}
