//! Example `multi`: two clusters, with a required, an optional and two plain inputs.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    api::{ObjectMeta, Patch, PatchParams},
    runtime::{conditions::is_crd_established, wait::Condition},
};
use pilotlight::testing::{ControlPlaneOptions, CrdBuilder};

use super::*;

/// Waits until a ConfigMap of both clusters has this greeting.
async fn both_greet(clusters: &[Api<ConfigMap>; 2], greeting: &str) {
    for config_maps in clusters {
        let greets = |config_map: Option<&ConfigMap>| {
            let data = config_map.and_then(|config_map| config_map.data.as_ref());
            data.is_some_and(|data| data.values().eq([greeting]))
        };
        until(config_maps, "a", greeting, greets).await;
    }
}

#[tokio::test]
async fn controller_of_two_clusters_follows_its_inputs_in_both() {
    build();
    // The types are those of another plane than the one that the other tests share.
    let own = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let (client, other) = (own.client().unwrap(), ControlPlane::shared());
    let scope = other.scope("multi").await.unwrap();
    let namespace = ObjectMeta { name: Some(scope.namespace.clone()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata: namespace, ..Namespace::default() };
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let greetings =
        [&client, &scope.client()].map(|it| Api::namespaced(it.clone(), &scope.namespace));
    let widgets = api(&client, "Widget", "widgets", &scope.namespace);
    let translations = api(&client, "Translation", "translations", &scope.namespace);
    let other = [other.kubeconfig().as_os_str()];
    let mut multi = Example::with("multi", own.kubeconfig(), &other, "");
    multi.says(&["running", "controller=other"]).await;

    // The required type is served; the optional one is not.
    let crd = crd_of("embed");
    install(&client, &crd).await;
    multi.says(&["running", "controller=greetings", "epoch=1"]).await;
    create(&widgets, "Widget", "a", json!({"greeting": "Hello"})).await;
    both_greet(&greetings, "Hello").await;

    // A change of the copy is repaired.
    let patch = Patch::Merge(json!({"data": {"greeting": "changed"}}));
    greetings[1].patch("a", &PatchParams::default(), &patch).await.unwrap();
    both_greet(&greetings, "Hello").await;

    // The optional type comes and goes without another epoch.
    let optional = CrdBuilder::new("example.com", "Translation").version("v1").build();
    install(&client, &optional).await;
    let established = is_crd_established();
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    until(&crds, &optional.name_any(), "established", |it| established.matches_object(it)).await;
    create(&translations, "Translation", "a", json!({"text": "Hallo"})).await;
    both_greet(&greetings, "Hallo").await;
    remove(&client, &optional).await;
    until(&crds, &optional.name_any(), "gone", |it| it.is_none()).await;
    let patch = Patch::Merge(json!({"spec": {"greeting": "Hello again"}}));
    widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    both_greet(&greetings, "Hello again").await;

    // A deletion reaches the other cluster, too.
    drop(widgets.delete("a", &DeleteParams::default()).await.unwrap());
    until(&greetings[1], "a", "gone", |it| it.is_none()).await;

    // The loss of the required type ends the epoch.
    remove(&client, &crd).await;
    multi.says(&["done", "controller=greetings", "epoch=1", "TypeGone"]).await;
    install(&client, &crd).await;
    multi.says(&["running", "controller=greetings", "epoch=2"]).await;
    multi.end_by("-TERM").await;
    own.stop().await;
}
