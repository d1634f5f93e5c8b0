//! Rolling updates on a real control plane: each child in turn, over kills at writes.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::{
        ApplyStrategy,
        api::{CompositeController, ControllerRevision},
    },
    testing::{ControlPlane, CrdBuilder, TestScope},
};
use serde_json::{Value, json};

use crate::support::{Answer, Changes, HookServer, Killed, When, counted, install_own_crds, until};

/// Label that selects the objects of a run.
const LABEL: &str = "pilotlight.test/scope";
/// Seed of the points that a run tries.
const SEED: u64 = 4;
/// Numbers of kills in each test: in rollouts, in finalizations.
const SAMPLE: (usize, usize) = (3, 2);

/// Answer with three ConfigMaps that have the text of the parent's template; with none for a parent
/// that is being deleted, which is finalized when they are gone.
fn three(request: &Value) -> Answer {
    let parent = &request["parent"];
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = &parent["spec"]["into"];
    let is_finalizing = request["finalizing"] == true;
    let groups = request["children"].as_object().into_iter().flat_map(|groups| groups.values());
    let has_children = groups.flat_map(Value::as_object).any(|group| !group.is_empty());
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
    let children: Vec<_> = (0..if is_finalizing { 0 } else { 3 }).map(child).collect();
    Answer::Json(json!({
        "status": { "seen": true }, "children": children,
        "finalized": is_finalizing && !has_children,
    }))
}

#[tokio::test]
async fn kill_at_a_write_of_a_rollout_or_a_finalization_strands_nothing() {
    kills_strand_nothing(ApplyStrategy::DynamicApply, SAMPLE).await;
}

#[tokio::test]
async fn kill_at_a_write_of_an_applied_rollout_or_finalization_strands_nothing() {
    kills_strand_nothing(ApplyStrategy::ServerSideApply, SAMPLE).await;
}

#[tokio::test]
#[ignore = "takes minutes: run it by name"]
async fn kill_at_any_write_of_a_rollout_or_a_finalization_strands_nothing() {
    for strategy in [ApplyStrategy::DynamicApply, ApplyStrategy::ServerSideApply] {
        kills_strand_nothing(strategy, (usize::MAX, usize::MAX)).await;
    }
}

/// Rolls both parents, and deletes them in mid-rollout, each time with a kill at another write.
async fn kills_strand_nothing(strategy: ApplyStrategy, most: (usize, usize)) {
    let bench = Bench::start(strategy).await;
    bench.during(None, Life::Rollout("one")).await;
    let rollout = bench.during(None, Life::Rollout("two")).await;
    let rollouts = points(rollout, most.0);
    let mut killed = 0;
    for (text, crash) in ["one", "two"].into_iter().cycle().zip(&rollouts) {
        let fired = bench.binary.faults.fired().len();
        bench.during(Some(*crash), Life::Rollout(text)).await;
        killed += bench.binary.faults.fired().len() - fired;
    }
    let finalization = bench.during(None, Life::Finalization).await;
    let finalizations = points(finalization, most.1);
    for crash in &finalizations {
        bench.during(None, Life::Rollout("one")).await;
        let fired = bench.binary.faults.fired().len();
        bench.during(Some(*crash), Life::Finalization).await;
        killed += bench.binary.faults.fired().len() - fired;
    }
    counted(format_args!(
        "kills in rollouts and finalizations with {strategy}: {killed} of {} and {} points, before \
         or after one of {rollout} and {finalization} writes",
        rollouts.len(),
        finalizations.len()
    ));
    assert!(killed > 0);
    bench.end().await;
}

/// Draws some of the points before and after each of these writes.
fn points(writes: usize, most: usize) -> Vec<(When, usize)> {
    let both = |number| [(When::Before, number), (When::After, number)];
    let mut points: Vec<_> = (1..=writes).flat_map(both).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut points);
    points.truncate(most);
    points
}

/// Life of the parents during a run of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Created if they are missing, and rolled to this text.
    Rollout(&'static str),
    /// Edited and deleted.
    Finalization,
}

/// Binary that is killed, and its two parents: a namespaced one with a generated selector whose
/// children are recreated, and a cluster-scoped one whose children are updated.
struct Bench {
    scope: TestScope,
    binary: Killed,
    parents: [Rolled; 2],
    _hook: HookServer,
}

impl Bench {
    async fn start(strategy: ApplyStrategy) -> Self {
        let plane = ControlPlane::shared();
        install_own_crds(plane).await;
        let scope = plane.scope(&format!("rollout-{strategy}")).await.unwrap();
        let hook = HookServer::start().await;
        hook.answers(three);
        let target = format!("--target-label-selector={LABEL}={}", scope.namespace);
        let apply = format!("--apply-strategy={}", strategy.name());
        let binary = Killed::new(plane, vec![target, apply]).await;
        let narrow = CrdBuilder::new(&scope.group, "Narrow");
        let wide = CrdBuilder::new(&scope.group, "Wide").cluster_scoped();
        let parents = [
            Rolled::declare(&scope, &hook, &narrow, "RollingRecreate").await,
            Rolled::declare(&scope, &hook, &wide, "RollingInPlace").await,
        ];
        Self { scope, binary, parents, _hook: hook }
    }

    /// Plays a life with at most one kill. Returns the number of writes.
    async fn during(&self, crash: Option<(When, usize)>, life: Life) -> usize {
        let changes = Changes::watch(self.scope.client(), &self.scope.namespace).await;
        let mut exist = Vec::new();
        for parent in &self.parents {
            exist.push(parent.parents.get_opt(&parent.name).await.unwrap().is_some());
        }
        let playing = async {
            for (parent, exists) in self.parents.iter().zip(&exist) {
                match life {
                    Life::Rollout(text) if *exists => parent.edit(text).await,
                    Life::Rollout(text) => parent.create(text).await,
                    Life::Finalization => parent.edit_and_delete().await,
                }
            }
            for parent in &self.parents {
                match life {
                    Life::Rollout(text) => parent.settles(text).await,
                    Life::Finalization => parent.is_gone().await,
                }
            }
        };
        let mut process = self.binary.during(crash, playing).await;
        process.kill().await.unwrap();
        let changes = changes.all().await;
        if matches!(life, Life::Rollout(_)) && exist == [true; 2] {
            for parent in &self.parents {
                parent.assert_rolled_in_turn(&changes, crash);
            }
        }
        self.binary.writes().await
    }

    async fn end(self) {
        let controllers = Api::<CompositeController>::all(self.scope.client());
        for parent in &self.parents {
            let name = format!("{}-{}", self.scope.namespace, parent.name);
            controllers.delete(&name, &DeleteParams::default()).await.unwrap();
        }
    }
}

/// Parent whose children are rolled.
struct Rolled {
    namespace: String,
    name: String,
    method: &'static str,
    crd: CrdBuilder,
    client: Client,
    parents: Api<DynamicObject>,
}

impl Rolled {
    /// Declares the controller of this type.
    async fn declare(
        scope: &TestScope,
        hook: &HookServer,
        crd: &CrdBuilder,
        method: &'static str,
    ) -> Self {
        scope.install_crd(crd).await.unwrap();
        scope.wait_served(crd, "v1").await.unwrap();
        let (resource, client) = (crd.api_resource("v1"), scope.client());
        let name = resource.kind.to_lowercase();
        let webhook = json!({ "webhook": { "url": hook.url } });
        let rule = json!({
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": { "method": method },
        });
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {
                "name": format!("{}-{name}", scope.namespace),
                "labels": { LABEL: scope.namespace },
            },
            "spec": {
                "generateSelector": crd.is_namespaced(),
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
        Self { namespace, name, method, crd: crd.clone(), client, parents }
    }

    async fn create(&self, text: &str) {
        let spec = json!({
            "into": self.namespace,
            "selector": { "matchLabels": { "app": self.name } },
            "template": { "text": text },
        });
        let parent = self.crd.object(&self.name, spec);
        self.parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    async fn edit(&self, text: &str) {
        let change = Patch::Merge(json!({ "spec": { "template": { "text": text } } }));
        self.parents.patch(&self.name, &PatchParams::default(), &change).await.unwrap();
    }

    /// Deletes the parent in mid-rollout.
    async fn edit_and_delete(&self) {
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
    async fn is_gone(&self) {
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
    fn assert_rolled_in_turn(&self, changes: &[String], crash: Option<(When, usize)>) {
        let acts: &[&str] = match self.method {
            "RollingInPlace" => &["modified"],
            _ => &["deleted", "added"],
        };
        let of = |number| acts.iter().map(move |act| format!("{act} {}-{number}", self.name));
        let expected: Vec<_> = (0..3).flat_map(of).collect();
        let own: Vec<_> = changes.iter().filter(|it| it.contains(&self.name)).cloned().collect();
        assert_eq!(own, expected, "killed at {crash:?}");
    }

    async fn children(&self) -> kube::Result<Vec<ConfigMap>> {
        let config_maps = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        let labelled = ListParams::default().labels(&format!("app={}", self.name));
        Ok(config_maps.list(&labelled).await?.items)
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
        let children = self.children().await?;
        let texts = children.into_iter().filter_map(|child| child.data?.remove("text")).collect();
        let home = if self.crd.is_namespaced() { &self.namespace } else { "default" };
        let revisions = Api::<ControllerRevision>::namespaced(self.client.clone(), home);
        let revisions = revisions.list(&ListParams::default()).await?.into_iter();
        let parent = self.parents.get(&self.name).await?;
        // Not those of an earlier parent of this name, which the garbage collector deletes in time.
        let is_own = |revision: &ControllerRevision| {
            let owners = revision.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| Some(&owner.uid) == parent.metadata.uid.as_ref())
        };
        let names = revisions.filter(is_own).map(|revision| {
            revision.children.into_iter().flat_map(|children| children.names).collect()
        });
        let conditions = parent.data["status"]["conditions"].as_array().cloned();
        let updated = conditions.into_iter().flatten().find(|it| it["type"] == "Updated");
        let reason = updated.and_then(|it| it["reason"].as_str().map(str::to_owned));
        Ok((texts, names.collect(), reason.unwrap_or_default()))
    }
}
