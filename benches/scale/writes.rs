//! Case: writes of many children, at default flags.

use tokio::time::Instant;

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float},
    harness::{Harness, each},
    objects::{Children, Declared, parent},
    process::Process,
    server::CountStart,
};

/// Number of children of a parent.
const CHILDREN: usize = 3;
const CONTROLLER: &str = "all";

/// Rewrites all children by another revision of the hook.
pub(crate) async fn rewrites(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Real).await;
    let parents = arguments.size(100, 1_000);
    declare(&mut harness, parents, arguments.bytes).await;
    figure::title(&format!(
        "writes: {} children of {parents} parents rewritten, {}",
        parents * CHILDREN,
        harness.server.name()
    ));
    let mut process = harness.run(parents).await;
    harness.written(parents * CHILDREN).await;
    harness.settle(&mut process).await;
    let mut waits = Figure::new("all rewrites: another hook → all children written", "s");
    let mut costs = Figure::new("all rewrites: CPU time for 1,000 writes", "ms");
    for revision in (1..=arguments.rewrites).map(|number| number.to_string()) {
        let calls = harness.hooks.calls();
        let start = harness.server.count_start().await;
        let (begin, cpu) = (Instant::now(), process.cpu());
        let written = harness.revision(&revision, parents * CHILDREN);
        let url = harness.hooks.url(&revision);
        tokio::join!(written, harness.objects.set_hook(CONTROLLER, &url));
        let wait = begin.elapsed().as_secs_f64();
        waits.add(Figure::one("another hook → all children written", "s", wait));
        harness.settle(&mut process).await;
        let cpu = process.cpu() - cpu;
        costs.add(print(&harness, &process, parents, cpu, start).await);
        print_calls(harness.hooks.calls() - calls, parents);
    }
    waits.print();
    costs.print();
    process.stop().await;
    harness.stop().await;
}

/// Creates the children of all parents after a start.
pub(crate) async fn first_sync(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Real).await;
    let parents = arguments.size(500, 10_000);
    declare(&mut harness, parents, arguments.bytes).await;
    figure::title(&format!(
        "first sync: {parents} parents × {CHILDREN} children, {}",
        harness.server.name()
    ));
    let start = harness.server.count_start().await;
    let begin = Instant::now();
    let mut process = harness.run(parents).await;
    harness.written(parents * CHILDREN).await;
    Figure::one("start of the process → all children", "s", begin.elapsed().as_secs_f64());
    harness.settle(&mut process).await;
    let cpu = process.cpu();
    print(&harness, &process, parents, cpu, start).await;
    print_calls(harness.hooks.calls(), parents);
    process.stop().await;
    harness.stop().await;
}

async fn declare(harness: &mut Harness, parents: usize, bytes: usize) {
    let names = (0..parents).map(|index| (parent(index), None)).collect();
    harness.objects.types(1).await;
    harness.objects.parents(0, names, Children { count: CHILDREN, bytes }).await;
    let declared = Declared::new(CONTROLLER, 0, &harness.hooks);
    harness.objects.controllers(vec![declared]).await;
}

fn print_calls(calls: u64, parents: usize) {
    Figure::one("hook calls for a parent", "", float(calls) / float(parents));
}

/// Prints the figures of writes; returns the CPU time for 1,000, in ms.
async fn print(
    harness: &Harness,
    process: &Process,
    parents: usize,
    cpu: std::time::Duration,
    start: CountStart,
) -> f64 {
    let requests = harness.server.requests_since(start).await;
    let is_write = |named: &str| {
        ["create ", "update ", "patch ", "delete "].iter().any(|verb| named.starts_with(verb))
    };
    let writes: usize =
        requests.iter().filter(|(named, _)| is_write(named)).map(|(_, count)| count).sum();
    let all: usize = requests.values().sum();
    let cost = Figure::one("CPU time for 1,000 writes", "ms", each(cpu, writes) * 1e3);
    Figure::one("requests for a parent", "", float(all) / float(parents));
    Figure::one("anonymous memory at most", "MiB", process.most_memory());
    println!("    {requests:?}");
    cost
}
