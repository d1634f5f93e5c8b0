//! Reference workload: the parents and children of a declared controller through a whole life.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::{self, LAST_APPLIED, api::CompositeController},
    testing::{
        CrdBuilder, Mask, RecordedKey, Recorder, Recording,
        simulated::{SimulatedOptions, SimulatedServer},
    },
};
use serde_json::{Value, json};

use super::{Answer, until};

/// API group of the parents on a simulated server.
pub(crate) const GROUP: &str = "work.test";

/// Hook response with `spec.size` ConfigMaps, and if any with a Secret and a Lease, each with the
/// parent's text.
pub(crate) fn sized(request: &Value) -> Answer {
    let parent = &request["parent"];
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let size = parent["spec"]["size"].as_i64().unwrap_or_default();
    let text = &parent["spec"]["text"];
    let child = |api_version: &str, kind: &str, number: i64| {
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": { "name": format!("{name}-{number}") },
        })
    };
    let mut children: Vec<_> = (0..size).map(|number| child("v1", "ConfigMap", number)).collect();
    for config_map in &mut children {
        config_map["data"] = json!({ "text": text });
    }
    if size > 0 {
        let mut secret = child("v1", "Secret", 0);
        let bytes = text.as_str().unwrap_or_default().as_bytes().to_vec();
        secret["data"] = json!({ "text": ByteString(bytes) });
        let mut lease = child("coordination.k8s.io/v1", "Lease", 0);
        lease["spec"] = json!({ "holderIdentity": text });
        children.extend([secret, lease]);
    }
    Answer::Json(json!({ "status": { "size": size, "text": text }, "children": children }))
}

/// Spec of the controller: ConfigMaps are updated in place, Secrets are recreated, and Leases are
/// recreated only after another client deletes them.
pub(crate) fn spec(crd: &CrdBuilder, hook: &str) -> Value {
    let parent = crd.api_resource("v1");
    let child = |api_version: &str, resource: &str, method: &str| {
        json!({
            "apiVersion": api_version,
            "resource": resource,
            "updateStrategy": { "method": method },
        })
    };
    json!({
        "generateSelector": true,
        "parentResource": { "apiVersion": parent.api_version, "resource": parent.plural },
        "childResources": [
            child("v1", "configmaps", "InPlace"),
            child("v1", "secrets", "Recreate"),
            child("coordination.k8s.io/v1", "leases", "OnDelete"),
        ],
        "hooks": { "sync": { "webhook": { "url": hook } } },
    })
}

/// As [`spec`], with rolling updates of ConfigMaps in place, and of Secrets by recreation.
pub(crate) fn rolling(crd: &CrdBuilder, hook: &str) -> Value {
    let mut spec = spec(crd, hook);
    for (rule, method) in ["RollingInPlace", "RollingRecreate"].into_iter().enumerate() {
        spec["childResources"][rule]["updateStrategy"]["method"] = json!(method);
    }
    spec
}

/// CRD of the parents, whose schema preserves unknown fields of spec and status.
pub(crate) fn crd(group: &str) -> CrdBuilder {
    CrdBuilder::new(group, "Widget")
}

/// Drives the workload with direct requests to the server, which pass no faults.
pub(crate) struct Workload {
    client: Client,
    namespace: String,
    parents: Api<DynamicObject>,
    children: Api<ConfigMap>,
    secrets: Api<Secret>,
    leases: Api<Lease>,
    resource: ApiResource,
}

impl Workload {
    pub(crate) fn new(client: Client, namespace: &str, crd: &CrdBuilder) -> Self {
        let resource = crd.api_resource("v1");
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            parents: Api::namespaced_with(client.clone(), namespace, &resource),
            children: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            leases: Api::namespaced(client, namespace),
            resource,
        }
    }

    /// Prepares a new simulated server, with the controller declared but not yet run.
    pub(crate) async fn simulated(seed: u64) -> (SimulatedServer, Self) {
        Self::simulated_as(seed, spec).await
    }

    /// As [`Workload::simulated`], with this spec of the controller.
    pub(crate) async fn simulated_as(
        seed: u64,
        spec: fn(&CrdBuilder, &str) -> Value,
    ) -> (SimulatedServer, Self) {
        let server = SimulatedServer::with(SimulatedOptions { seed, ..Default::default() });
        let crd = crd(GROUP);
        for crd in meta::crds().iter().chain([&crd.build()]) {
            server.install(crd).unwrap();
            server.wait_established(crd.metadata.name.as_ref().unwrap()).await;
        }
        let controllers = Api::<CompositeController>::all(server.client());
        let controller = serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": { "name": "work" },
            "spec": spec(&crd, "http://absent.invalid"),
        }))
        .unwrap();
        controllers.create(&Default::default(), &controller).await.unwrap();
        let work = Self::new(server.client(), "default", &crd);
        (server, work)
    }

    /// Returns a recorder for all objects of the workload.
    pub(crate) async fn recorder(&self) -> Recorder {
        let mut recorder = Recorder::new(self.client.clone())
            .alias(&self.resource.group, "GROUP")
            .alias(&self.namespace, "NAMESPACE");
        let children = [
            ApiResource::erase::<ConfigMap>(&()),
            ApiResource::erase::<Secret>(&()),
            ApiResource::erase::<Lease>(&()),
        ];
        for resource in children.iter().chain([&self.resource]) {
            recorder.watch(resource, Some(&self.namespace)).await.unwrap();
        }
        recorder
    }

    /// Creates, grows, changes, shrinks, releases and adopts; each step waits until the previous
    /// one is done.
    pub(crate) async fn run(&self) {
        self.create("a", 2).await;
        self.create("b", 1).await;
        self.settles("a", 2, "one").await;
        self.settles("b", 1, "one").await;
        self.patch_parent("a", json!({ "size": 3 })).await;
        self.settles("a", 3, "one").await;
        self.patch_parent("b", json!({ "text": "two" })).await;
        self.settles("b", 1, "two").await;
        self.lease_says("b-0", "one").await;
        self.leases.delete("b-0", &Default::default()).await.unwrap();
        self.lease_says("b-0", "two").await;
        self.patch_parent("a", json!({ "size": 1 })).await;
        self.settles("a", 1, "one").await;
        let labels = self.release("b-0").await;
        self.label("b-0", &labels).await;
        self.owners("b-0", 1).await;
        self.settles("b", 1, "two").await;
        self.release("b-0").await;
        self.patch_parent("b", json!({ "size": 0 })).await;
        self.status("b", 0, "two").await;
        self.gone("the other children of b", async || {
            let secret = self.secrets.get_opt("b-0").await?.is_some();
            Ok(secret || self.leases.get_opt("b-0").await?.is_some())
        })
        .await;
    }

    /// Changes the text of three children, which a controller with rolling updates updates in turn.
    pub(crate) async fn roll(&self) {
        self.patch_parent("a", json!({ "size": 3 })).await;
        self.settles("a", 3, "one").await;
        self.patch_parent("a", json!({ "text": "two" })).await;
        self.settles("a", 3, "two").await;
    }

    /// Deletes a parent and waits until the garbage collector has deleted its children.
    pub(crate) async fn delete(&self, name: &str) {
        self.parents.delete(name, &DeleteParams::background()).await.unwrap();
        self.is_gone(name).await;
    }

    /// Waits until a parent and its children are gone.
    pub(crate) async fn is_gone(&self, name: &str) {
        let child = format!("{name}-0");
        self.gone(&format!("everything of {name}"), async || {
            let parent = self.parents.get_opt(name).await?.is_some();
            let config_map = self.children.get_opt(&child).await?.is_some();
            let secret = self.secrets.get_opt(&child).await?.is_some();
            let lease = self.leases.get_opt(&child).await?.is_some();
            Ok(parent || config_map || secret || lease)
        })
        .await;
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

    /// Removes the labels of a child, waits until it has no owner, and returns the labels.
    async fn release(&self, name: &str) -> BTreeMap<String, Option<String>> {
        let child = self.children.get(name).await.unwrap();
        let labels = child.metadata.labels.unwrap_or_default();
        let none = labels.keys().map(|label| (label.clone(), None)).collect();
        self.label(name, &none).await;
        self.owners(name, 0).await;
        labels.into_iter().map(|(label, value)| (label, Some(value))).collect()
    }

    async fn label(&self, name: &str, labels: &BTreeMap<String, Option<String>>) {
        let change = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        self.children.patch(name, &PatchParams::default(), &change).await.unwrap();
    }

    async fn owners(&self, name: &str, number: usize) {
        until(&format!("{name} has {number} owners"), async || {
            let child = self.children.get(name).await.map_err(|error| error.to_string())?;
            let owners = child.metadata.owner_references.unwrap_or_default();
            if owners.len() == number { Ok(()) } else { Err(format!("{owners:?}")) }
        })
        .await;
    }

    async fn lease_says(&self, name: &str, text: &str) {
        until(&format!("the lease {name} says {text}"), async || {
            let lease = self.leases.get(name).await.map_err(|error| error.to_string())?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            if holder.as_deref() == Some(text) { Ok(()) } else { Err(format!("{holder:?}")) }
        })
        .await;
    }

    async fn gone(&self, what: &str, is_there: impl AsyncFn() -> kube::Result<bool>) {
        until(&format!("{what} is gone"), async || match is_there().await {
            Ok(false) => Ok(()),
            Ok(true) => Err("the object exists".to_owned()),
            Err(error) => Err(error.to_string()),
        })
        .await;
    }

    /// Waits until a parent has `size` children with this text and its status reports both.
    async fn settles(&self, name: &str, size: i64, text: &str) {
        until(&format!("{size} children of {name} say {text}"), async || {
            let all = self.children.list(&Default::default()).await;
            let all = all.map_err(|error| error.to_string())?;
            let prefix = format!("{name}-");
            let mut found: Vec<_> = all
                .into_iter()
                .filter(|it| it.metadata.name.as_ref().is_some_and(|it| it.starts_with(&prefix)))
                .filter_map(|it| it.data?.remove("text"))
                .collect();
            let is_right = found.len() == usize::try_from(size).unwrap();
            let secret = self.secrets.get(&format!("{name}-0")).await;
            let secret = secret.map_err(|error| error.to_string())?;
            let bytes = secret.data.unwrap_or_default().remove("text").unwrap_or_default();
            found.push(String::from_utf8(bytes.0).unwrap());
            self.leases.get(&format!("{name}-0")).await.map_err(|error| error.to_string())?;
            let is_right = is_right && found.iter().all(|found| found == text);
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

/// Returns a mask of the differences between any two runs: the uid of the parent, in the label that
/// selects its children and in their last-applied annotation.
pub(crate) fn mask(one: &Recording, other: &Recording) -> Mask {
    assert!(
        one.objects.values().any(|history| history.deletes > 0),
        "the workload deletes nothing: {one:#?}"
    );
    assert!(one.objects.len() >= 10, "two parents, eight children: {one:#?}");
    for recording in [one, other] {
        for (child, end) in ends_of_children(recording) {
            let Some(applied) = end["metadata"]["annotations"][LAST_APPLIED].as_str() else {
                let mut entries = end["metadata"]["managedFields"].as_array().into_iter().flatten();
                let is_applied = entries.any(|entry| entry["operation"] == "Apply");
                assert!(is_applied, "nothing was applied to {child}: {end}");
                continue;
            };
            let applied: Value = serde_json::from_str(applied).unwrap();
            for said in ["/data/text", "/spec/holderIdentity"] {
                assert_eq!(applied.pointer(said), end.pointer(said), "of {child}: {end}");
            }
        }
    }
    let mask = Mask::default().learn(one, other);
    let uid = "metadata/labels/controller-uid";
    let applied = LAST_APPLIED.replace('/', "~1");
    let with_uids = |mask: Mask| {
        mask.hide(format!("/{uid}")).hide(format!("/metadata/annotations/{applied}/{uid}"))
    };
    let expected = with_uids(Mask::default());
    assert_eq!(with_uids(mask.clone()), expected, "only the expected values are random");
    mask
}

/// Children that exist at the end, with their last state.
fn ends_of_children(recording: &Recording) -> impl Iterator<Item = (&RecordedKey, &Value)> {
    let ends = recording.objects.iter().filter_map(|(key, it)| Some((key, it.end.as_ref()?)));
    ends.filter(|(key, _)| !key.of_type.starts_with("widgets"))
}
