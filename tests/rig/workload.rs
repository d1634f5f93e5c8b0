//! A reference workload: a declared controller's parents and children through a whole life.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use pilotlight::testing::{CrdBuilder, Mask, Recorder, Recording};
use serde_json::{Value, json};

use super::{Answer, until};

/// Wants `spec.size` ConfigMaps, each with the parent's text in it.
pub(crate) fn sized(request: &Value) -> Answer {
    let parent = &request["parent"];
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let size = parent["spec"]["size"].as_i64().unwrap_or_default();
    let children = (0..size).map(|number| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": format!("{name}-{number}") },
            "data": { "text": parent["spec"]["text"] },
        })
    });
    Answer::Json(json!({
        "status": { "size": size, "text": parent["spec"]["text"] },
        "children": children.collect::<Vec<_>>(),
    }))
}

/// The type of its parents, which keeps whatever a spec and a status say.
pub(crate) fn crd(group: &str) -> CrdBuilder {
    CrdBuilder::new(group, "Widget")
}

/// Asks the server itself, past all faults.
pub(crate) struct Workload {
    client: Client,
    namespace: String,
    parents: Api<DynamicObject>,
    children: Api<ConfigMap>,
    resource: ApiResource,
}

impl Workload {
    pub(crate) fn new(client: Client, namespace: &str, crd: &CrdBuilder) -> Self {
        let resource = crd.api_resource("v1");
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            parents: Api::namespaced_with(client.clone(), namespace, &resource),
            children: Api::namespaced(client, namespace),
            resource,
        }
    }

    /// A recorder of all that the workload is about.
    pub(crate) async fn recorder(&self) -> Recorder {
        let mut recorder = Recorder::new(self.client.clone())
            .alias(&self.resource.group, "GROUP")
            .alias(&self.namespace, "NAMESPACE");
        let config_maps = ApiResource::erase::<ConfigMap>(&());
        for resource in [&self.resource, &config_maps] {
            recorder.watch(resource, Some(&self.namespace)).await.unwrap();
        }
        recorder
    }

    /// Creates, grows, changes, shrinks and releases, each once the step before is done.
    pub(crate) async fn run(&self) {
        self.create("a", 2).await;
        self.create("b", 1).await;
        self.settles("a", 2, "one").await;
        self.settles("b", 1, "one").await;
        self.patch_parent("a", json!({ "size": 3 })).await;
        self.settles("a", 3, "one").await;
        self.patch_parent("b", json!({ "text": "two" })).await;
        self.settles("b", 1, "two").await;
        self.patch_parent("a", json!({ "size": 1 })).await;
        self.settles("a", 1, "one").await;
        self.release("b-0").await;
        self.patch_parent("b", json!({ "size": 0 })).await;
        self.status("b", 0, "two").await;
    }

    async fn create(&self, name: &str, size: i64) {
        let parent: DynamicObject = serde_json::from_value(json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": { "name": name },
            "spec": { "size": size, "text": "one" },
        }))
        .unwrap();
        self.parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    async fn patch_parent(&self, name: &str, spec: Value) {
        let change = Patch::Merge(json!({ "spec": spec }));
        self.parents.patch(name, &PatchParams::default(), &change).await.unwrap();
    }

    /// Takes its labels from a child, and waits until nobody owns it.
    async fn release(&self, name: &str) {
        let child = self.children.get(name).await.unwrap();
        let labels = child.metadata.labels.unwrap_or_default();
        let none: serde_json::Map<_, _> =
            labels.into_keys().map(|label| (label, Value::Null)).collect();
        let change = Patch::Merge(json!({ "metadata": { "labels": none } }));
        self.children.patch(name, &PatchParams::default(), &change).await.unwrap();
        until(&format!("{name} is released"), async || {
            let child = self.children.get(name).await.map_err(|error| error.to_string())?;
            let owners = child.metadata.owner_references.unwrap_or_default();
            if owners.is_empty() { Ok(()) } else { Err(format!("{owners:?}")) }
        })
        .await;
    }

    /// Waits until a parent has so many children with this text, and its status says so.
    async fn settles(&self, name: &str, size: i64, text: &str) {
        until(&format!("{size} children of {name} say {text}"), async || {
            let all = self.children.list(&Default::default()).await;
            let all = all.map_err(|error| error.to_string())?;
            let prefix = format!("{name}-");
            let found: Vec<_> = all
                .iter()
                .filter(|it| it.metadata.name.as_ref().is_some_and(|it| it.starts_with(&prefix)))
                .filter_map(|it| it.data.clone()?.remove("text"))
                .collect();
            let is_right = found.len() == usize::try_from(size).unwrap()
                && found.iter().all(|found| found == text);
            if is_right { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        self.status(name, size, text).await;
    }

    async fn status(&self, name: &str, size: i64, text: &str) {
        until(&format!("the status of {name} says {size} and {text}"), async || {
            let parent = self.parents.get(name).await.map_err(|error| error.to_string())?;
            let status = &parent.data["status"];
            let is_right = status["size"] == size && status["text"] == text;
            if is_right { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    }
}

/// What differs between any two runs.
pub(crate) fn mask(one: &Recording, other: &Recording) -> Mask {
    assert!(one.objects.values().any(|history| history.deletes > 0), "it deletes: {one:#?}");
    assert!(one.objects.len() >= 6, "two parents, four children: {one:#?}");
    Mask::default().learn(one, other)
}
