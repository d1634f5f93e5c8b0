//! Bench: reaction of controllers to the lifecycle of their types, on a real control plane.
//!
//! `cargo bench --bench lifecycle [-- --installs 100]` prints the distribution of each figure,
//! measured against a plain watcher of kube in the same run. Compare ratios within one run;
//! absolute times depend on the machine.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and fails loudly")]

#[path = "lifecycle/controller_variant.rs"]
mod controller_variant;
#[path = "lifecycle/figures.rs"]
mod figures;
#[path = "lifecycle/support.rs"]
mod support;

use std::time::Duration;

use controller_variant::ControllerVariant;
use figures::Figure;
use kube::api::{DeleteParams, PostParams};
use pilotlight::testing::{ControlPlane, ControlPlaneOptions, CrdBuilder, PrintProgress};
use support::Harness;
use tokio::time::{Instant, timeout};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() {
    let installs = installs();
    let options =
        ControlPlaneOptions { progress: std::sync::Arc::new(PrintProgress), ..Default::default() };
    let plane = ControlPlane::start(options).await.unwrap();
    println!("\n{:<58} {:>4} {:>9} {:>9} {:>9} {:>9}", "", "n", "p50", "p90", "p99", "max");
    for variant in [ControllerVariant::Embedded, ControllerVariant::Composite] {
        let mut harness = Harness::start(&plane, variant).await;
        life_of_a_crd(&mut harness, installs).await;
        reaction_to_objects(&mut harness, installs).await;
        served_again(&mut harness, 20).await;
        harness.stop().await;
    }
    plane.stop().await;
}

fn installs() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--installs");
    arguments.nth(1).map_or(100, |number| number.parse().expect("--installs takes a number"))
}

/// Installs and deletes a CRD repeatedly. Measures the time until its type is listed, until the
/// controller runs, and until the controller is done.
async fn life_of_a_crd(harness: &mut Harness, installs: usize) {
    let mut asked = Figure::new(harness, "Established seen by a plain watcher → list asked for");
    let mut running = Figure::new(harness, "Established seen by a plain watcher → running");
    let mut done = Figure::new(harness, "removal seen by a plain watcher → done");
    for _ in 0..installs {
        let crd = harness.crd();
        harness.requests.forget();
        harness.scope.install_crd(&crd).await.unwrap();
        let established = timeout(PATIENCE, harness.established()).await.unwrap();
        asked.add(established, timeout(PATIENCE, harness.requests.first_list()).await.unwrap());
        running.add(established, timeout(PATIENCE, harness.running()).await.unwrap());

        harness.scope.delete_crd(&crd).await.unwrap();
        let removed = timeout(PATIENCE, harness.removed()).await.unwrap();
        done.add(removed, timeout(PATIENCE, harness.done()).await.unwrap());
    }
    asked.print();
    running.print();
    done.print();
}

/// Creates objects one by one. Measures the time from the plain watcher's event to the reaction.
async fn reaction_to_objects(harness: &mut Harness, objects: usize) {
    let name = harness.variant.reaction();
    let mut reaction = Figure::new(harness, &format!("object seen by a plain watcher → {name}"));
    let crd = harness.install().await;
    let api = harness.scope.api(&crd, "v1");
    let mut plain = harness.plain_watch(&crd).await;
    for index in 0..objects {
        let object = crd.object(&format!("reacts-{index}"), serde_json::json!({}));
        harness.recorder.forget();
        let name = object.metadata.name.clone().unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        let seen = timeout(PATIENCE, plain.seen(&name)).await.unwrap();
        reaction.add(seen, timeout(PATIENCE, harness.recorder.first(&name)).await.unwrap());
    }
    for index in 0..objects {
        api.delete(&format!("reacts-{index}"), &DeleteParams::default()).await.unwrap();
    }
    reaction.print();
    harness.uninstall(&crd).await;
}

/// Serves a version again over 20 stored parents. Measures the time until all of them have been
/// reconciled, and until a plain watcher has seen them.
async fn served_again(harness: &mut Harness, rounds: usize) {
    let name = harness.variant.reaction();
    let mut synced = Figure::new(harness, &format!("served again over 20 parents → every {name}"));
    let mut plain = Figure::new(harness, "served again over 20 parents → a plain watcher has them");
    let crd: CrdBuilder = harness.install().await;
    let api = harness.scope.api(&crd, "v1");
    let names: Vec<String> = (0..20).map(|index| format!("stored-{index}")).collect();
    for name in &names {
        api.create(&PostParams::default(), &crd.object(name, serde_json::json!({}))).await.unwrap();
    }
    for name in &names {
        timeout(PATIENCE, harness.recorder.first(name)).await.unwrap();
    }
    for _ in 0..rounds {
        harness.scope.set_served(&crd, "v1", false).await.unwrap();
        timeout(PATIENCE, harness.done()).await.unwrap();
        harness.recorder.forget();
        let begin = Instant::now();
        let watcher = harness.plain_list(&crd, names.len());
        harness.scope.set_served(&crd, "v1", true).await.unwrap();
        for name in &names {
            timeout(PATIENCE, harness.recorder.first(name)).await.unwrap();
        }
        synced.add(begin, harness.recorder.last());
        plain.add(begin, timeout(PATIENCE, watcher).await.unwrap());
    }
    synced.print();
    plain.print();
    for name in &names {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
    harness.uninstall(&crd).await;
}
