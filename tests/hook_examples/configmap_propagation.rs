//! `examples/configmap-propagation`.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::{Example, until};

/// Returns a namespace with or without the label of the example.
fn namespace(name: &str, label: Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": { "motd": label } },
    }))
    .unwrap()
}

#[tokio::test]
#[ignore = "needs python3, which cargo test does not; .ci/run runs it"]
async fn python_example_copies_a_config_map_into_the_selected_namespaces() {
    let example = Example::start("configmap-propagation", "python3", "hook.py").await;
    let namespaces = example.api("v1", "Namespace", "").await;
    for (name, label) in [("blue", "yes"), ("green", "yes"), ("red", "no")] {
        namespaces.create(&PostParams::default(), &namespace(name, json!(label))).await.unwrap();
    }
    let copy = async |namespace| example.api("v1", "ConfigMap", namespace).await;
    let (blue, green, red) = (copy("blue").await, copy("green").await, copy("red").await);

    example.apply("propagation.yaml").await;
    for copies in [&blue, &green] {
        example.has(copies, "motd", "/data/text", json!("Welcome!")).await;
    }
    let type_ = ("examples.pilotlight.dev/v1", "ConfigMapPropagation");
    let propagations = example.api(type_.0, type_.1, "").await;
    let found = json!({ "observedGeneration": 1, "source": "Found", "wanted": 2, "copies": 2 });
    example.has(&propagations, "motd", "/status", found).await;
    assert!(red.get_opt("motd").await.unwrap().is_none());

    let by = PatchParams::default();
    let changed = Patch::Merge(json!({ "data": { "text": "Hello!" } }));
    let sources = copy("default").await;
    sources.patch("motd", &by, &changed).await.unwrap();
    for copies in [&blue, &green] {
        example.has(copies, "motd", "/data/text", json!("Hello!")).await;
    }

    let label = |value: &str| Patch::Merge(json!({ "metadata": { "labels": { "motd": value } } }));
    namespaces.patch("red", &by, &label("yes")).await.unwrap();
    example.has(&red, "motd", "/data/text", json!("Hello!")).await;
    namespaces.patch("red", &by, &label("no")).await.unwrap();
    until("the copy is deleted", async || match red.get_opt("motd").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    sources.delete("motd", &DeleteParams::default()).await.unwrap();
    let missing = json!({ "observedGeneration": 1, "source": "Missing", "wanted": 2, "copies": 2 });
    example.has(&propagations, "motd", "/status", missing).await;
    assert!(blue.get_opt("motd").await.unwrap().is_some());
}
