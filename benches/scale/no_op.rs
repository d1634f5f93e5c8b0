//! Case: syncs that change nothing.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float, ratio},
    harness::{Harness, each},
    objects::{Children, Declared, parent},
    server::without_watches,
};

/// Number of children of a parent.
const CHILDREN: usize = 3;
/// Bytes of a foreign object's data.
const BYTES: usize = 200;
/// Number of windows in which syncs are counted.
const WINDOWS: usize = 5;

pub(crate) async fn run(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Simulated).await;
    let among = arguments.size(2_000, 20_000);
    for (parents, resync_seconds) in sizes(arguments) {
        let before = measure(&mut harness, arguments.bytes, parents, resync_seconds, 0).await;
        if parents == arguments.size(200, 1_000) {
            harness.objects.foreign(among, BYTES).await;
            let measured =
                measure(&mut harness, arguments.bytes, parents, resync_seconds, among).await;
            harness.objects.no_foreign().await;
            // Again, since the load of the machine changes.
            let after = measure(&mut harness, arguments.bytes, parents, resync_seconds, 0).await;
            let alone = f64::min(before, after);
            ratio("CPU time of a no-op sync, to no foreign objects", measured, alone);
        }
    }
    harness.stop().await;
}

/// Returns numbers of parents, each with the resync period that a slow machine can hold.
fn sizes(arguments: &Arguments) -> Vec<(usize, u32)> {
    if arguments.quick { vec![(200, 1)] } else { vec![(1_000, 5), (10_000, 30)] }
}

/// Returns the least CPU time of a thousand no-op syncs in ms.
async fn measure(
    harness: &mut Harness,
    bytes: usize,
    parents: usize,
    resync_seconds: u32,
    foreign: usize,
) -> f64 {
    let names = (0..parents).map(|index| (parent(index), None)).collect();
    harness.objects.types(1).await;
    harness.objects.parents(0, names, Children { count: CHILDREN, bytes }).await;
    // Another name for each size, since the period differs.
    let name = format!("every-{resync_seconds}");
    let resync_seconds = Some(resync_seconds);
    let declared = Declared { resync_seconds, ..Declared::new(&name, 0, &harness.hooks) };
    harness.objects.controllers(vec![declared.clone()]).await;
    figure::title(&format!(
        "no-op syncs: {parents} parents × {CHILDREN} children of {bytes} B, {foreign} foreign objects, \
         {}",
        harness.server.name()
    ));
    // Another process creates the children: syncs whose times are spread by the writes cost more
    // than those that follow each other.
    let creator = harness.process();
    harness.written(parents * CHILDREN).await;
    creator.stop().await;
    let process = harness.run(parents).await;
    // Writes that the other process did not end cause further syncs.
    let period = Duration::from_secs(declared.resync_seconds.unwrap_or_default().into());
    sleep(2 * period).await;

    let start = harness.server.count_start().await;
    let mut cpu = Figure::new("CPU time of 1,000 no-op syncs", "ms");
    let mut rate = Figure::new("no-op syncs in a second", "");
    let window = period.max(harness.rest);
    for _ in 0..WINDOWS {
        let (calls, before, begin) = (harness.hooks.calls(), process.cpu(), Instant::now());
        sleep(window).await;
        let (calls, used) = (harness.hooks.calls() - calls, process.cpu() - before);
        cpu.add(each(used, calls) * 1e3);
        rate.add(float(calls) / begin.elapsed().as_secs_f64());
    }
    let requests = harness.server.requests_since(start).await;
    let cpu = cpu.print();
    rate.print();
    Figure::one("requests sent meanwhile, without watches", "", float(without_watches(&requests)));
    if without_watches(&requests) > 0 {
        println!("    {requests:?}");
    }
    Figure::one("anonymous memory at most", "MiB", process.most_memory());
    process.stop().await;
    cpu
}
