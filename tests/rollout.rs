//! Rolling updates on a real control plane: each child in turn, over kills at writes.

mod combinations;
mod rolled;

use kube::{Api, api::DeleteParams};
use pilotlight::{
    meta::{ApplyStrategy, api::CompositeController},
    testing::{ControlPlane, CrdBuilder, TestScope},
};
use serde_json::{Value, json};

use self::rolled::{LABEL, Rolled, Rolling};
use crate::support::{Answer, Changes, HookServer, KillSide, Killed, counted, install_own_crds};

/// Seed of the points that a run tries.
const SEED: u64 = 4;
/// Numbers of kills in each test: in rollouts, in finalizations.
const SAMPLE: (usize, usize) = (3, 2);

/// Answer with as many ConfigMaps as the parent says, with the text of its template; with none for a
/// parent that is being deleted, which is finalized when they are gone.
fn config_maps(request: &Value) -> Answer {
    let parent = &request["parent"];
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = &parent["spec"]["into"];
    let is_finalizing = request["finalizing"] == true;
    let groups = request["children"].as_object().into_iter().flat_map(|groups| groups.values());
    let has_children = groups.flat_map(Value::as_object).any(|group| !group.is_empty());
    let child = |number: u64| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": format!("{name}-{number}"), "namespace": namespace,
                "labels": { "app": name },
            },
            "data": { "text": parent["spec"]["template"]["text"] },
        })
    };
    let count = parent["spec"]["count"].as_u64().unwrap_or_default();
    let children: Vec<_> = (0..if is_finalizing { 0 } else { count }).map(child).collect();
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
    let harness = RolloutHarness::start(strategy).await;
    harness.during(None, Life::Rollout("one")).await;
    let rollout = harness.during(None, Life::Rollout("two")).await;
    let rollouts = points(rollout, most.0);
    let mut killed = 0;
    for (text, crash) in ["one", "two"].into_iter().cycle().zip(&rollouts) {
        let fired = harness.binary.faults.fired().len();
        harness.during(Some(*crash), Life::Rollout(text)).await;
        killed += harness.binary.faults.fired().len() - fired;
    }
    let finalization = harness.during(None, Life::Finalization).await;
    let finalizations = points(finalization, most.1);
    for crash in &finalizations {
        harness.during(None, Life::Rollout("one")).await;
        let fired = harness.binary.faults.fired().len();
        harness.during(Some(*crash), Life::Finalization).await;
        killed += harness.binary.faults.fired().len() - fired;
    }
    counted(format_args!(
        "kills in rollouts and finalizations with {strategy}: {killed} of {} and {} points, before \
         or after one of {rollout} and {finalization} writes",
        rollouts.len(),
        finalizations.len()
    ));
    assert!(killed > 0);
    harness.end().await;
}

/// Draws some of the points before and after each of these writes.
fn points(writes: usize, most: usize) -> Vec<(KillSide, usize)> {
    let both = |number| [(KillSide::Before, number), (KillSide::After, number)];
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
struct RolloutHarness {
    scope: TestScope,
    binary: Killed,
    parents: [Rolled; 2],
    _hook: HookServer,
}

impl RolloutHarness {
    async fn start(strategy: ApplyStrategy) -> Self {
        let plane = ControlPlane::shared();
        install_own_crds(plane).await;
        let scope = plane.scope(&format!("rollout-{strategy}")).await.unwrap();
        let hook = HookServer::start().await;
        hook.answers(config_maps);
        let target = format!("--target-label-selector={LABEL}={}", scope.namespace);
        let apply = format!("--apply-strategy={}", strategy.name());
        let binary = Killed::new(plane, vec![target, apply]).await;
        let narrow = CrdBuilder::new(&scope.group, "Narrow");
        let wide = CrdBuilder::new(&scope.group, "Wide").cluster_scoped();
        let parents = [
            Rolled::declare(&scope, &hook, &narrow, Rolling::new("RollingRecreate", true)).await,
            Rolled::declare(&scope, &hook, &wide, Rolling::new("RollingInPlace", false)).await,
        ];
        Self { scope, binary, parents, _hook: hook }
    }

    /// Plays a life with at most one kill. Returns the number of writes.
    async fn during(&self, crash: Option<(KillSide, usize)>, life: Life) -> usize {
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
                parent.assert_rolled_in_turn(&changes, &format!("killed at {crash:?}"));
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
