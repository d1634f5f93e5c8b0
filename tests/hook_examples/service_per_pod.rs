//! `examples/service-per-pod`, whose hooks are a program of this package.

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{Example, until};

const LABEL: &str = "examples.pilotlight.dev/pod";

fn port(port: Value) -> Patch<Value> {
    Patch::Merge(json!({ "metadata": { "annotations": { "examples.pilotlight.dev/port": port } } }))
}

#[tokio::test]
async fn rust_example_adds_a_service_to_each_pod_and_removes_it() {
    let example = Example::of_package("service-per-pod").await;
    let pods = example.api("v1", "Pod", "default").await;
    let services = example.api("v1", "Service", "default").await;

    example.apply("pod.yaml").await;
    let selector = json!({ LABEL: "web-0" });
    let service = example.has(&services, "web-0", "/spec/selector", selector).await;
    assert_eq!(service.owner_references()[0].kind, "Pod");
    let pointer = "/metadata/labels/examples.pilotlight.dev~1pod";
    example.has(&pods, "web-0", pointer, json!("web-0")).await;

    let by = PatchParams::default();
    pods.patch("web-0", &by, &port(json!("8080"))).await.unwrap();
    example.has(&services, "web-0", "/spec/ports/0/port", json!(8080)).await;

    pods.patch("web-0", &by, &port(Value::Null)).await.unwrap();
    until("the label and the finalizer are removed", async || {
        let pod = pods.get("web-0").await.map_err(|error| error.to_string())?;
        match pod.labels().contains_key(LABEL) || !pod.finalizers().is_empty() {
            true => Err(format!("{:?}", pod.metadata)),
            false => Ok(()),
        }
    })
    .await;
    assert!(services.get_opt("web-0").await.unwrap().is_none());
}
