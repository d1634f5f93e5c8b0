//! Combinations of rolling updates: methods, scopes of the parents, selectors and apply strategies.

use futures::future::join_all;
use kube::{Api, api::DeleteParams};
use pilotlight::{
    meta::{ApplyStrategy, api::CompositeController},
    testing::{ControlPlane, CrdBuilder, TestScope},
};

use super::{
    config_maps,
    rolled::{LABEL, Rolled, Rolling},
};
use crate::support::{Changes, HookServer, Killed, install_own_crds};

#[tokio::test]
async fn each_combination_rolls_3_and_some_roll_50_children_in_turn() {
    roll_each_combination(ApplyStrategy::DynamicApply, Large::Half(0)).await;
}

#[tokio::test]
async fn each_combination_rolls_3_and_some_roll_50_applied_children_in_turn() {
    roll_each_combination(ApplyStrategy::ServerSideApply, Large::Half(1)).await;
}

#[tokio::test]
#[ignore = "takes a minute for each strategy: run it by name"]
async fn each_combination_rolls_50_children_in_turn() {
    for strategy in [ApplyStrategy::DynamicApply, ApplyStrategy::ServerSideApply] {
        roll_each_combination(strategy, Large::All).await;
    }
}

/// Combinations with fifty children.
#[derive(Clone, Copy)]
enum Large {
    All,
    /// Combinations in which the number of chosen options is even, or odd. Both strategies together have
    /// each pair of options.
    Half(usize),
}

/// Rolls three children of eight parents at once, and then fifty of the large ones. Asserts that each
/// child was written once, in the order of the response, and nothing after the last one.
async fn roll_each_combination(strategy: ApplyStrategy, large: Large) {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let scope = plane.scope("rolling").await.unwrap();
    let hook = HookServer::start().await;
    hook.answers(config_maps);
    let target = format!("--target-label-selector={LABEL}={}", scope.namespace);
    let apply = format!("--apply-strategy={}", strategy.name());
    let binary = Killed::new(plane, vec![target, apply]).await;
    let (mut parents, mut others) = (Vec::new(), Vec::new());
    for (recreate, generate_selector, namespaced) in options() {
        let (method, word) = match recreate {
            true => ("RollingRecreate", "Recreate"),
            false => ("RollingInPlace", "InPlace"),
        };
        let selector = if generate_selector { "Own" } else { "" };
        let scope_word = if namespaced { "Narrow" } else { "Wide" };
        let crd = CrdBuilder::new(&scope.group, format!("{selector}{word}{scope_word}"));
        let crd = if namespaced { crd } else { crd.cluster_scoped() };
        let rolling = Rolling::new(method, generate_selector);
        let parent = Rolled::declare(&scope, &hook, &crd, rolling).await;
        let chosen = [recreate, generate_selector, namespaced].into_iter().filter(|it| *it).count();
        match large {
            Large::Half(half) if chosen % 2 != half => others.push(parent),
            Large::Half(_) | Large::All => parents.push(parent),
        }
    }

    let count_of_large = parents.len();
    let rolled = async {
        let mut all: Vec<_> = parents.iter_mut().chain(&mut others).collect();
        join_all(all.iter().map(|parent| parent.create("one"))).await;
        join_all(all.iter().map(|parent| parent.settles("one"))).await;
        roll(&scope, &hook, &all, "two").await;
        all.truncate(count_of_large);
        join_all(all.iter_mut().map(|parent| parent.scale(50))).await;
        join_all(all.iter().map(|parent| parent.settles("two"))).await;
        roll(&scope, &hook, &all, "three").await;
    };
    let mut process = binary.during(None, Box::pin(rolled)).await;
    process.kill().await.unwrap();

    let controllers = Api::<CompositeController>::all(scope.client());
    for parent in parents.iter().chain(&others) {
        let name = format!("{}-{}", scope.namespace, parent.name);
        controllers.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

/// Edits all parents at once. Asserts the order of the changes, and that nothing is written afterwards.
async fn roll(scope: &TestScope, hook: &HookServer, parents: &[&mut Rolled], text: &str) {
    let changes = Changes::watch(scope.client(), &scope.namespace).await;
    join_all(parents.iter().map(|parent| parent.edit(text))).await;
    join_all(parents.iter().map(|parent| parent.settles(text))).await;
    join_all(parents.iter().map(|parent| parent.assert_quiet(hook))).await;
    let changes = changes.all().await;
    for parent in parents {
        parent.assert_rolled_in_turn(&changes, &format!("rolled to {text}"));
    }
}

/// Returns each combination: whether children are recreated, whether the selector is generated, and
/// whether the parent is namespaced.
fn options() -> impl Iterator<Item = (bool, bool, bool)> {
    (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0))
}
