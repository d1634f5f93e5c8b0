//! Case: controllers whose objects do not change.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float},
    harness::Harness,
    objects::{Children, Declared, parent},
    server::without_watches,
};

const CONTROLLERS: usize = 50;
const BYTES: usize = 200;

pub(crate) async fn run(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Real).await;
    harness.objects.types(CONTROLLERS).await;
    let mut controllers = Vec::new();
    for kind in 0..CONTROLLERS {
        let size = Children { count: 1, bytes: BYTES };
        harness.objects.parents(kind, vec![(parent(kind), None)], size).await;
        controllers.push(Declared::new(&format!("idle-{kind}"), kind, &harness.hooks));
    }
    harness.objects.controllers(controllers).await;
    figure::title(&format!("idle: {CONTROLLERS} controllers, {}", harness.server.name()));
    let mut process = harness.run(CONTROLLERS).await;
    harness.written(CONTROLLERS).await;
    harness.settle(&mut process).await;
    // Connections to hooks are closed, and memory is returned, some seconds after the start.
    sleep(2 * harness.rest).await;
    let start = harness.server.count_start().await;
    let (cpu, begin) = (process.cpu(), Instant::now());
    let seconds = if arguments.quick { 10 } else { 60 };
    sleep(Duration::from_secs(seconds)).await;
    let used = (process.cpu() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    Figure::one("CPU time of an idle process, thousandths of a core", "", used * 1e3);
    let requests = harness.server.requests_since(start).await;
    Figure::one("requests sent meanwhile, without watches", "", float(without_watches(&requests)));
    if without_watches(&requests) > 0 {
        println!("    {requests:?}");
    }
    process.stop().await;
    harness.stop().await;
}
