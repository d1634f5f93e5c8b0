//! `examples/blue-green`.

use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{Example, until};

/// Reports this number of pods, all of them available, as the controller of ReplicaSets would.
async fn report(example: &Example, sets: &Api<DynamicObject>, name: &str, pods: u32) {
    let set = example.has(sets, name, "/spec/replicas", json!(pods)).await;
    let status = json!({
        "observedGeneration": set.metadata.generation,
        "replicas": pods,
        "readyReplicas": pods,
        "availableReplicas": pods,
    });
    example.set_status(sets, name, status).await;
}

fn image(image: &str) -> Patch<Value> {
    let container = json!({ "name": "nginx", "image": image });
    Patch::Merge(json!({ "spec": { "template": { "spec": { "containers": [container] } } } }))
}

#[tokio::test]
#[ignore = "needs node, which cargo test does not; .ci/run runs it"]
async fn node_example_switches_to_available_pods_of_the_new_template() {
    const IMAGE: &str = "/spec/template/spec/containers/0/image";
    let example = Example::start("blue-green", "node", "hook.js").await;
    let kind = "BlueGreenDeployment";
    let deployments = example.api("examples.pilotlight.dev/v1", kind, "default").await;
    let sets = example.api("apps/v1", "ReplicaSet", "default").await;
    let services = example.api("v1", "Service", "default").await;

    example.apply("deployment.yaml").await;
    report(&example, &sets, "web-blue", 3).await;
    example.has(&services, "web", "/spec/selector/color", json!("blue")).await;
    let ready = json!({
        "observedGeneration": 1, "active": "blue", "readyReplicas": 3, "switching": false,
    });
    example.has(&deployments, "web", "/status", ready).await;

    let by = PatchParams::default();
    deployments.patch("web", &by, &image("docker.io/library/nginx:1.28")).await.unwrap();
    let new = json!("docker.io/library/nginx:1.28");
    example.has(&sets, "web-green", IMAGE, new).await;
    example.has(&deployments, "web", "/status/switching", json!(true)).await;
    let old = json!("docker.io/library/nginx:1.27");
    example.has(&sets, "web-blue", IMAGE, old.clone()).await;
    example.has(&services, "web", "/spec/selector/color", json!("blue")).await;

    report(&example, &sets, "web-green", 3).await;
    example.has(&services, "web", "/spec/selector/color", json!("green")).await;
    report(&example, &sets, "web-blue", 0).await;
    example.has(&deployments, "web", "/status/active", json!("green")).await;

    // Back again: the pods of the old ReplicaSet are gone, so that it may have another template.
    deployments.patch("web", &by, &image("docker.io/library/nginx:1.29")).await.unwrap();
    example.has(&sets, "web-blue", IMAGE, json!("docker.io/library/nginx:1.29")).await;
    report(&example, &sets, "web-blue", 3).await;
    example.has(&services, "web", "/spec/selector/color", json!("blue")).await;
    report(&example, &sets, "web-green", 0).await;

    // With server-side apply, as the README shows it.
    let controllers =
        example.api("metacontroller.k8s.io/v1alpha1", "CompositeController", "").await;
    let annotations = json!({ "pilotlight.dev/apply-strategy": "server-side-apply" });
    let annotated = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let before = services.get("web").await.unwrap();
    controllers.patch("blue-green", &by, &annotated).await.unwrap();
    for (api, name) in [(&services, "web"), (&sets, "web-blue")] {
        until("the child is applied", async || {
            let child = api.get(name).await.map_err(|error| error.to_string())?;
            let operations: Vec<_> = child
                .metadata
                .managed_fields
                .iter()
                .flatten()
                .filter(|entry| entry.manager.as_deref() == Some("metacontroller"))
                .map(|entry| entry.operation.clone().unwrap())
                .collect();
            if operations == ["Apply"] { Ok(()) } else { Err(format!("{operations:?}")) }
        })
        .await;
    }
    deployments.patch("web", &by, &image("docker.io/library/nginx:1.30")).await.unwrap();
    example.has(&sets, "web-green", IMAGE, json!("docker.io/library/nginx:1.30")).await;
    report(&example, &sets, "web-green", 3).await;
    let after = example.has(&services, "web", "/spec/selector/color", json!("green")).await;
    assert_eq!(after.metadata.uid, before.metadata.uid);
    report(&example, &sets, "web-blue", 0).await;
}
