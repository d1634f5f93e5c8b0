//! Case: memory of foreign and of own objects, after live growth and after a restart.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float},
    harness::Harness,
    hooks::CHILD,
    objects::{Children, Declared, parent},
    process::Process,
};

/// Bytes of an object's data.
const BYTES: usize = 3_000;
/// Number of children of a parent: their cost outweighs that of the parent.
const CHILDREN: usize = 40;

pub(crate) async fn run(arguments: &Arguments) {
    foreign(arguments).await;
    own(arguments).await;
}

/// Measures foreign objects, with one controller.
async fn foreign(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Simulated).await;
    let count = arguments.size(5_000, 50_000);
    declare(&mut harness, 1, 1).await;
    title(&harness, &format!("{count} foreign objects"));
    let mut process = harness.run(1).await;
    let none = rest(&harness, &mut process, "without them").await;
    harness.objects.foreign(count, BYTES).await;
    let grown = rest(&harness, &mut process, "after live growth").await;
    process.stop().await;
    let mut process = harness.run(1).await;
    let again = rest(&harness, &mut process, "after a restart").await;
    process.stop().await;
    print_each("a foreign object", count, grown - none, again - none);
    harness.stop().await;
}

/// Measures children of one controller.
async fn own(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Simulated).await;
    let parents = arguments.size(50, 500);
    let count = parents * CHILDREN;
    declare(&mut harness, 1, 1).await;
    title(&harness, &format!("{count} own objects of {parents} parents"));
    let mut process = harness.run(1).await;
    let none = rest(&harness, &mut process, "without them").await;
    let names = (1..=parents).map(|index| (parent(index), None)).collect();
    harness.objects.parents(0, names, Children { count: CHILDREN, bytes: BYTES }).await;
    harness.written(count + 1).await;
    let grown = rest(&harness, &mut process, "after live growth").await;
    process.stop().await;
    let mut process = harness.run(parents + 1).await;
    let again = rest(&harness, &mut process, "after a restart").await;
    process.stop().await;
    print_each("an own object", count, grown - none, again - none);
    let json = float(json_bytes(&harness).await) / 1024.0;
    Figure::one("JSON of an own object, without managedFields", "KiB", json);
    harness.stop().await;
}

/// Declares a controller with parents.
async fn declare(harness: &mut Harness, parents: usize, children: usize) {
    let names = (0..parents).map(|index| (parent(index), None)).collect();
    harness.objects.types(1).await;
    harness.objects.parents(0, names, Children { count: children, bytes: BYTES }).await;
    let declared = Declared::new("all", 0, &harness.hooks);
    harness.objects.controllers(vec![declared]).await;
}

async fn rest(harness: &Harness, process: &mut Process, when: &str) -> f64 {
    harness.settle(process).await;
    let rest = process.memory_at_rest(harness.rest).await;
    Figure::one(format!("anonymous memory at most, until then: {when}"), "MiB", {
        process.most_memory()
    });
    Figure::one(format!("anonymous memory at rest: {when}"), "MiB", rest)
}

fn print_each(what: &str, count: usize, grown: f64, again: f64) {
    let each = |memory: f64| memory * 1024.0 / float(count);
    Figure::one(format!("memory of {what}, after live growth"), "KiB", each(grown));
    Figure::one(format!("memory of {what}, after a restart"), "KiB", each(again));
}

fn title(harness: &Harness, what: &str) {
    figure::title(&format!("memory: {what} of {BYTES} B, {}", harness.server.name()));
}

/// Returns the bytes of one child as the process may keep it.
async fn json_bytes(harness: &Harness) -> usize {
    let params = ListParams::default().labels(CHILD).limit(2);
    let mut list = harness.objects.children().list(&params).await.unwrap();
    let mut child: ConfigMap = list.items.pop().unwrap();
    child.metadata.managed_fields = None;
    serde_json::to_vec(&child).unwrap().len()
}
