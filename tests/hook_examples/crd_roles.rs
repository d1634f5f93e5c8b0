//! `examples/crd-roles`.

use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;

use crate::support::{Example, until};

#[tokio::test]
#[ignore = "needs python3, which cargo test does not; .ci/run runs it"]
async fn python_example_adds_roles_to_a_crd() {
    const NAME: &str = "gears.examples.pilotlight.dev";
    let example = Example::start("crd-roles", "python3", "hook.py").await;
    let roles = example.api("rbac.authorization.k8s.io/v1", "ClusterRole", "").await;
    let crds = example.api("apiextensions.k8s.io/v1", "CustomResourceDefinition", "").await;

    example.apply("crd.yaml").await;

    let verbs = json!(["get", "list", "watch"]);
    let view = example.has(&roles, &format!("{NAME}-view"), "/rules/0/verbs", verbs.clone()).await;
    assert_eq!(view.owner_references()[0].name, NAME);
    let of_decorator = "metacontroller.k8s.io/decorator-controller";
    assert_eq!(view.annotations()[of_decorator], "crd-roles");
    let names = json!(format!("{NAME}-view,{NAME}-edit"));
    let pointer = "/metadata/annotations/examples.pilotlight.dev~1role-names";
    example.has(&crds, NAME, pointer, names).await;

    roles.delete(&format!("{NAME}-view"), &DeleteParams::default()).await.unwrap();
    until("the role is created again", async || {
        match roles.get_opt(&format!("{NAME}-view")).await {
            Ok(Some(role)) if role.uid() != view.uid() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
