//! Rolling updates on a real control plane: each child in turn, and killed in between.

use std::{path::Path, process::Stdio, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::api::{CompositeController, ControllerRevision},
    testing::{ControlPlane, ControlPlaneOptions, CrdBuilder},
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::support::{Answer, HookServer, install_own_crds, until};

/// Answer with three ConfigMaps that have the text of the parent's template.
fn three(request: &Value) -> Answer {
    let parent = &request["parent"];
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = &parent["spec"]["into"];
    let child = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": format!("{name}-{number}"), "namespace": namespace,
                "labels": { "app": name },
            },
            "data": { "text": parent["spec"]["template"]["text"] },
        })
    };
    let children: Vec<_> = (0..3).map(child).collect();
    Answer::Json(json!({ "status": { "seen": true }, "children": children }))
}

#[tokio::test]
async fn three_children_of_each_kind_of_parent_are_rolled_over_kills() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    install_own_crds(&plane).await;
    let scope = plane.scope("rollout").await.unwrap();
    let hook = HookServer::start().await;
    hook.answers(three);
    let wide = CrdBuilder::new(&scope.group, "Wide").cluster_scoped();
    let narrow = CrdBuilder::new(&scope.group, "Narrow");
    let mut rolled = Vec::new();
    for (crd, generates, method) in
        [(&narrow, true, "RollingRecreate"), (&wide, false, "RollingInPlace")]
    {
        scope.install_crd(crd).await.unwrap();
        scope.wait_served(crd, "v1").await.unwrap();
        let rule = json!({
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": { "method": method },
        });
        let parent = crd.api_resource("v1");
        let spec = json!({
            "generateSelector": generates,
            "parentResource": {
                "apiVersion": parent.api_version, "resource": parent.plural,
                "revisionHistory": { "fieldPaths": ["spec.template"] },
            },
            "childResources": [rule],
            "hooks": { "sync": { "webhook": { "url": hook.url } } },
        });
        rolled.push(Rolled::declare(scope.client(), &scope.namespace, crd, spec).await);
    }

    let mut process = start(plane.kubeconfig());
    for parent in &rolled {
        parent.settles("one").await;
        parent.edit("two").await;
    }
    for pause in [150, 300, 50] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        process.kill().await.unwrap();
        process = start(plane.kubeconfig());
    }
    for parent in &rolled {
        parent.settles("two").await;
        parent.edit("one").await;
    }
    for parent in &rolled {
        parent.settles("one").await;
    }
    process.kill().await.unwrap();
    plane.stop().await;
}

/// Parent whose children are rolled.
struct Rolled {
    namespace: String,
    name: String,
    is_cluster_scoped: bool,
    client: Client,
    parents: Api<DynamicObject>,
}

impl Rolled {
    /// Declares a controller with this specification, and creates a parent.
    async fn declare(client: Client, namespace: &str, crd: &CrdBuilder, spec: Value) -> Self {
        let resource = crd.api_resource("v1");
        let is_cluster_scoped = resource.kind == "Wide";
        let name = resource.kind.to_lowercase();
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": { "name": name }, "spec": spec,
        });
        let controllers = Api::<CompositeController>::all(client.clone());
        let controller = serde_json::from_value(controller).unwrap();
        controllers.create(&PostParams::default(), &controller).await.unwrap();
        let parents = match is_cluster_scoped {
            true => Api::all_with(client.clone(), &resource),
            false => Api::namespaced_with(client.clone(), namespace, &resource),
        };
        let parent = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": { "name": name },
            "spec": {
                "into": namespace,
                "selector": { "matchLabels": { "app": name } },
                "template": { "text": "one" },
            },
        });
        let parent = serde_json::from_value(parent).unwrap();
        parents.create(&PostParams::default(), &parent).await.unwrap();
        let namespace = namespace.to_owned();
        Self { namespace, name, is_cluster_scoped, client, parents }
    }

    async fn edit(&self, text: &str) {
        let change = Patch::Merge(json!({ "spec": { "template": { "text": text } } }));
        self.parents.patch(&self.name, &PatchParams::default(), &change).await.unwrap();
    }

    /// Waits until all children have this text, and one revision with all of them is left.
    async fn settles(&self, text: &str) {
        until(&format!("the children of {} say {text}", self.name), async || {
            let found = self.found().await.map_err(|error| error.to_string())?;
            let (texts, revisions, reason) = &found;
            let is_right = *texts == [text; 3]
                && reason == "OnLatestRevision"
                && matches!(&revisions[..], [names] if names.len() == 3);
            if is_right { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    /// Texts of the children, names of each revision's children, and reason of the condition.
    async fn found(&self) -> kube::Result<(Vec<String>, Vec<Vec<String>>, String)> {
        let config_maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        let labelled = ListParams::default().labels(&format!("app={}", self.name));
        let children = config_maps.list(&labelled).await?;
        let texts = children.into_iter().filter_map(|child| child.data?.remove("text")).collect();
        let home = if self.is_cluster_scoped { "default" } else { &self.namespace };
        let revisions = Api::<ControllerRevision>::namespaced(self.client.clone(), home);
        let revisions = revisions.list(&ListParams::default()).await?.into_iter();
        let is_own = |revision: &ControllerRevision| {
            let owners = revision.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| owner.name == self.name)
        };
        let names = revisions.filter(is_own).map(|revision| {
            revision.children.into_iter().flat_map(|children| children.names).collect()
        });
        let parent = self.parents.get(&self.name).await?;
        let conditions = parent.data["status"]["conditions"].as_array().cloned();
        let updated = conditions.into_iter().flatten().find(|it| it["type"] == "Updated");
        let reason = updated.and_then(|it| it["reason"].as_str().map(str::to_owned));
        Ok((texts, names.collect(), reason.unwrap_or_default()))
    }
}

fn start(kubeconfig: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pilotlight"))
        .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
