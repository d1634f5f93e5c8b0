//! Revisions that a tenant forges on a real API server with RBAC.

use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::api::ControllerRevision,
    testing::{ControlPlane, CrdBuilder, TestScope},
};
use serde_json::{Value, json};

use crate::support::{Answer, Rule, Supervised, rights, until};

/// Answer with two ConfigMaps that have the text of the parent's template. Text `later` makes them
/// wait for each other: a check of the rollout is never met.
fn config_maps(request: &Value) -> Answer {
    let parent = &request["parent"];
    let Some(text) = parent["spec"]["template"]["text"].as_str() else {
        return Answer::Status(500, Vec::new());
    };
    let child = |number: u64| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("gear-{number}") },
            "data": { "text": text },
        })
    };
    let is_finalizing = request["finalizing"] == true;
    let children: Vec<_> = if is_finalizing { Vec::new() } else { (0..2).map(child).collect() };
    Answer::Json(json!({ "children": children, "finalized": is_finalizing }))
}

/// Controller that rolls ConfigMaps, a parent, and a tenant of another namespace.
struct Attack {
    supervised: Supervised<'static>,
    crd: CrdBuilder,
    tenant: Client,
    scope: TestScope,
    uid: String,
}

impl Attack {
    async fn start(name: &str) -> Self {
        let plane = ControlPlane::shared();
        let supervised = Supervised::start(name).await;
        supervised.hook.answers(config_maps);
        let crd = supervised.harness.widgets();
        supervised.install(&crd).await;
        let mut spec = supervised.spec(&crd);
        spec["parentResource"]["revisionHistory"] = json!({ "fieldPaths": ["spec.template"] });
        let checks = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        spec["childResources"][0]["updateStrategy"] =
            json!({ "method": "RollingInPlace", "statusChecks": checks });
        spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
        supervised.declare("a", spec).await;
        supervised.runs("a", 1).await;
        let parent = crd.object("gear", json!({ "template": { "text": "one" } }));
        let parents = supervised.harness.scope.api(&crd, "v1");
        let parent = parents.create(&PostParams::default(), &parent).await.unwrap();
        // Sorts before the namespace of the parent, and may be edited by its tenant alone.
        let scope = plane.scope(&format!("aaa-{name}")).await.unwrap();
        let user = format!("tenant-{name}");
        let tenant = plane.client_as(&user, &[]).unwrap();
        let edit = Rule::of("metacontroller.k8s.io", "controllerrevisions", &["create"]);
        rights::grant(scope.client(), &user, "forge", &[edit]).await;
        let uid = parent.metadata.uid.unwrap();
        let attack = Self { supervised, crd, tenant, scope, uid };
        attack.texts(["one", "one"]).await;
        attack
    }

    /// Creates a revision as the tenant, with this owner.
    async fn forge(&self, name: &str, owner: Value, content: Value) {
        let mut object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "ControllerRevision",
            "metadata": { "name": name, "ownerReferences": [owner] },
        });
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        let revision: ControllerRevision = serde_json::from_value(object).unwrap();
        let revisions =
            Api::<ControllerRevision>::namespaced(self.tenant.clone(), &self.scope.namespace);
        revisions.create(&PostParams::default(), &revision).await.unwrap();
    }

    /// Waits for the Event that a revision of the tenant's namespace is ignored, for that reason.
    async fn ignored(&self, name: &str) {
        let named = format!("ControllerRevision {}/{name} is ignored", self.scope.namespace);
        let event = self.supervised.event("gear", "RevisionIgnored", &named).await;
        let own = &self.supervised.harness.scope.namespace;
        let why = format!("the revisions of this parent are in the namespace {own}");
        let message = event.message.unwrap();
        assert!(message.contains(&why), "{message}");
    }

    fn stranger(&self) -> Value {
        json!({
            "apiVersion": "nope/v1", "kind": "Nope", "name": "x", "uid": self.uid,
            "controller": true,
        })
    }

    async fn edit(&self, spec: Value) {
        let change = Patch::Merge(json!({ "spec": spec }));
        let parents = self.supervised.harness.scope.api(&self.crd, "v1");
        parents.patch("gear", &PatchParams::default(), &change).await.unwrap();
    }

    async fn found(&self) -> Vec<String> {
        let children = self.supervised.config_maps();
        let mut texts = Vec::new();
        for name in ["gear-0", "gear-1"] {
            let child = children.get_opt(name).await.unwrap();
            texts.extend(child.and_then(|it| it.data?.remove("text")));
        }
        texts
    }

    async fn texts(&self, expected: [&str; 2]) {
        until(&format!("the children say {expected:?}"), async || {
            let texts = self.found().await;
            if texts == expected { Ok(()) } else { Err(format!("{texts:?}")) }
        })
        .await;
    }

    async fn deleted(&self) {
        let parents = self.supervised.harness.scope.api(&self.crd, "v1");
        parents.delete("gear", &kube::api::DeleteParams::default()).await.unwrap();
        until("the parent is finalized", async || match parents.get_opt("gear").await.unwrap() {
            None => Ok(()),
            Some(parent) => Err(format!("{:?}", parent.metadata)),
        })
        .await;
    }
}

#[tokio::test]
async fn revision_that_a_tenant_forged_freezes_no_parent() {
    let attack = Attack::start("forged-freeze").await;
    let of_no_child = |patch: Value| {
        json!({
            "parentPatch": patch,
            "children": [{ "apiGroup": "", "kind": "Pod", "names": ["nope"] }],
        })
    };

    attack.forge("frozen", attack.stranger(), of_no_child(json!({ "spec": "x" }))).await;
    let failing = of_no_child(json!({ "spec": { "template": 7 } }));
    attack.forge("failing", attack.stranger(), failing).await;
    attack.edit(json!({ "size": 1 })).await;

    attack.ignored("frozen").await;
    attack.ignored("failing").await;
    attack.deleted().await;
    attack.supervised.end().await;
}

#[tokio::test]
async fn revision_that_a_tenant_forged_updates_no_child() {
    let attack = Attack::start("forged-update").await;
    attack.edit(json!({ "template": { "text": "two" } })).await;
    attack.texts(["two", "one"]).await;
    let evil = json!({
        "parentPatch": { "spec": { "template": { "text": "evil" } } },
        "children": [{ "apiGroup": "", "kind": "ConfigMap", "names": ["gear-1"] }],
    });

    attack.forge("evil", attack.stranger(), evil).await;
    attack.edit(json!({ "size": 1 })).await;

    attack.ignored("evil").await;
    assert_eq!(attack.found().await, ["two", "one"]);
    attack.deleted().await;
    attack.supervised.end().await;
}
