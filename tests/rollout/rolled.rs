//! Parent whose ConfigMaps are rolled on a real control plane.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::api::{CompositeController, ControllerRevision},
    testing::{CrdBuilder, TestScope},
};
use serde_json::{Value, json};

use crate::support::{HookServer, PATIENCE, until, until_within};

/// Label that selects the objects of a run.
pub(super) const LABEL: &str = "pilotlight.test/scope";

/// Parent whose children are rolled.
pub(super) struct Rolled {
    namespace: String,
    pub(super) name: String,
    rolling: Rolling,
    /// Number of children.
    count: usize,
    crd: CrdBuilder,
    client: Client,
    pub(super) parents: Api<DynamicObject>,
}

/// Update method and selector of a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rolling {
    method: &'static str,
    generate_selector: bool,
}

impl Rolling {
    pub(super) fn new(method: &'static str, generate_selector: bool) -> Self {
        Self { method, generate_selector }
    }
}

impl Rolled {
    /// Declares the controller of this type.
    pub(super) async fn declare(
        scope: &TestScope,
        hook: &HookServer,
        crd: &CrdBuilder,
        rolling: Rolling,
    ) -> Self {
        scope.install_crd(crd).await.unwrap();
        scope.wait_served(crd, "v1").await.unwrap();
        let (resource, client) = (crd.api_resource("v1"), scope.client());
        let name = resource.kind.to_lowercase();
        let webhook = json!({ "webhook": { "url": hook.url } });
        let rule = json!({
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": { "method": rolling.method },
        });
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {
                "name": format!("{}-{name}", scope.namespace),
                "labels": { LABEL: scope.namespace },
            },
            "spec": {
                "generateSelector": rolling.generate_selector,
                "parentResource": {
                    "apiVersion": resource.api_version, "resource": resource.plural,
                    "revisionHistory": { "fieldPaths": ["spec.template"] },
                },
                "childResources": [rule],
                "hooks": { "sync": webhook, "finalize": webhook },
            },
        });
        let controllers = Api::<CompositeController>::all(client.clone());
        let controller = serde_json::from_value(controller).unwrap();
        controllers.create(&PostParams::default(), &controller).await.unwrap();
        let parents = match crd.is_namespaced() {
            true => Api::namespaced_with(client.clone(), &scope.namespace, &resource),
            false => Api::all_with(client.clone(), &resource),
        };
        let namespace = scope.namespace.clone();
        Self { namespace, name, rolling, count: 3, crd: crd.clone(), client, parents }
    }

    pub(super) async fn create(&self, text: &str) {
        let spec = json!({
            "into": self.namespace,
            "count": self.count,
            "selector": { "matchLabels": { "app": self.name } },
            "template": { "text": text },
        });
        let parent = self.crd.object(&self.name, spec);
        self.parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    pub(super) async fn edit(&self, text: &str) {
        let change = Patch::Merge(json!({ "spec": { "template": { "text": text } } }));
        self.parents.patch(&self.name, &PatchParams::default(), &change).await.unwrap();
    }

    /// Changes the number of children.
    pub(super) async fn scale(&mut self, count: usize) {
        self.count = count;
        let change = Patch::Merge(json!({ "spec": { "count": count } }));
        self.parents.patch(&self.name, &PatchParams::default(), &change).await.unwrap();
    }

    /// Deletes the parent in mid-rollout.
    pub(super) async fn edit_and_delete(&self) {
        self.edit("last").await;
        until("the rollout has begun", async || {
            let (texts, ..) = self.found().await.map_err(|error| error.to_string())?;
            // The rollout may have ended between two reads.
            let has_begun = texts.iter().any(|text| text == "last");
            if has_begun { Ok(()) } else { Err(format!("{texts:?}")) }
        })
        .await;
        self.parents.delete(&self.name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits until the parent and its children are gone.
    pub(super) async fn is_gone(&self) {
        until(&format!("{} is gone", self.name), async || {
            let parent = self.parents.get_opt(&self.name).await;
            let parent = parent.map_err(|error| error.to_string())?;
            let children = self.children().await.map_err(|error| error.to_string())?;
            match (parent, children.len()) {
                (None, 0) => Ok(()),
                (parent, children) => Err(format!("{children} children of {parent:?}")),
            }
        })
        .await;
    }

    /// Asserts that each child was rolled once, in the order of the response.
    #[track_caller]
    pub(super) fn assert_rolled_in_turn(&self, changes: &[String], when: &str) {
        let acts: &[&str] = match self.rolling.method {
            "RollingInPlace" => &["modified"],
            _ => &["deleted", "added"],
        };
        let of = |number| acts.iter().map(move |act| format!("{act} {}-{number}", self.name));
        let expected: Vec<_> = (0..self.count).flat_map(of).collect();
        let name = format!(" {}-", self.name);
        let own: Vec<_> = changes.iter().filter(|it| it.contains(&name)).cloned().collect();
        assert_eq!(own, expected, "{when}: {} {:?}", self.name, self.rolling);
    }

    async fn children(&self) -> kube::Result<Vec<ConfigMap>> {
        let config_maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        let labelled = ListParams::default().labels(&format!("app={}", self.name));
        Ok(config_maps.list(&labelled).await?.items)
    }

    /// Waits until all children have this text, and one revision with all of them is left.
    pub(super) async fn settles(&self, text: &str) {
        // Fifty children are many requests, one after the other.
        let patience = PATIENCE * (1 + u32::try_from(self.count).unwrap() / 10);
        until_within(patience, &format!("the children of {} say {text}", self.name), async || {
            let found = self.found().await.map_err(|error| error.to_string())?;
            let (texts, revisions, reason) = &found;
            let is_right = *texts == vec![text; self.count]
                && reason == "OnLatestRevision"
                && matches!(&revisions[..], [names] if names.len() == self.count);
            if is_right { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    /// Asserts that a settled rollout writes nothing more: two touches of the parent are synced, so that
    /// the sync of the first one has ended, and leave children, revisions and status as they were.
    pub(super) async fn assert_quiet(&self, hook: &HookServer) {
        let before = self.stored().await.unwrap();
        for _ in 0..2 {
            let touch = format!("{:x}", fastrand::u64(..));
            let change = json!({ "metadata": { "annotations": { "touched": touch } } });
            let (by, change) = (PatchParams::default(), Patch::Merge(change));
            self.parents.patch(&self.name, &by, &change).await.unwrap();
            let what = format!("{} is synced again", self.name);
            hook.called(&what, |call| {
                call.parent() == self.name
                    && call.body["parent"]["metadata"]["annotations"]["touched"] == touch
            })
            .await;
        }
        assert_eq!(self.stored().await.unwrap(), before, "{} {:?}", self.name, self.rolling);
    }

    /// Versions of the children and of the parent's revisions, and its status.
    async fn stored(&self) -> kube::Result<(Vec<Option<String>>, Value)> {
        let parent = self.parents.get(&self.name).await?;
        let children = self.children().await?.into_iter().map(|child| child.metadata);
        let revisions =
            self.revisions(&parent).await?.into_iter().map(|revision| revision.metadata);
        let versions = children.chain(revisions).map(|metadata| metadata.resource_version);
        Ok((versions.collect(), parent.data["status"].clone()))
    }

    /// Revisions of the parent, not those of an earlier parent of its name, which the garbage
    /// collector deletes in time.
    async fn revisions(&self, parent: &DynamicObject) -> kube::Result<Vec<ControllerRevision>> {
        let home = if self.crd.is_namespaced() { &self.namespace } else { "default" };
        let revisions = Api::<ControllerRevision>::namespaced(self.client.clone(), home);
        let is_own = |revision: &ControllerRevision| {
            let owners = revision.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| Some(&owner.uid) == parent.metadata.uid.as_ref())
        };
        let revisions = revisions.list(&ListParams::default()).await?;
        Ok(revisions.into_iter().filter(is_own).collect())
    }

    /// Texts of the children, names of each revision's children, and reason of the condition.
    async fn found(&self) -> kube::Result<(Vec<String>, Vec<Vec<String>>, String)> {
        let children = self.children().await?;
        let texts = children.into_iter().filter_map(|child| child.data?.remove("text")).collect();
        let parent = self.parents.get(&self.name).await?;
        let names = self.revisions(&parent).await?.into_iter().map(|revision| {
            revision.children.into_iter().flat_map(|children| children.names).collect()
        });
        let conditions = parent.data["status"]["conditions"].as_array().cloned();
        let updated = conditions.into_iter().flatten().find(|it| it["type"] == "Updated");
        let reason = updated.and_then(|it| it["reason"].as_str().map(str::to_owned));
        Ok((texts, names.collect(), reason.unwrap_or_default()))
    }
}
