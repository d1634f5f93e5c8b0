//! Case: many served types of which few are watched.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float},
    harness::{Harness, each},
    objects::{self, Children, Declared, parent},
};

/// Limit of the wait for a hook call.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn run(arguments: &Arguments) {
    let mut harness = Harness::start(arguments, ServerKind::Simulated).await;
    let (served, watched) = (arguments.size(500, 10_000), arguments.size(20, 100));
    harness.objects.types(watched).await;
    declare(&mut harness, watched).await;
    figure::title(&format!("types: {watched} watched alone, {}", harness.server.name()));
    let mut process = harness.run(watched).await;
    let alone = harness.print_memory(&mut process).await;
    process.stop().await;

    let others = (watched..served).map(|kind| objects::other_type(kind).build());
    objects::install(&harness.server.client, others.collect()).await;
    figure::title(&format!("types: {served} served, {watched} watched, {}", harness.server.name()));
    let mut process = harness.run(watched).await;
    let rest = harness.print_memory(&mut process).await;
    let each_kib = (rest - alone) * 1024.0 / float(served - watched);
    Figure::one("memory of a type that is not watched", "KiB", each_kib);

    let start = harness.server.count_start().await;
    let before = process.cpu();
    let time = 6 * harness.rest;
    tokio::time::sleep(time).await;
    let idle = (process.cpu() - before).as_secs_f64() / time.as_secs_f64();
    Figure::one("CPU of the idle process", "millicores", idle * 1e3);
    let requests = harness.server.requests_since(start).await;
    Figure::one("requests of the idle process", "", float(requests.values().sum::<usize>()));

    let installs = arguments.size(5, 20);
    let before = process.cpu();
    for number in 0..installs {
        let other = objects::other_type(served + number).build();
        objects::install(&harness.server.client, vec![other]).await;
    }
    process.quiet().await;
    let cpu = each(process.cpu() - before, installs);
    Figure::one("CPU time for a new type that is not watched", "ms", cpu);

    let mut noticed = Figure::new("watched type installed and established → first sync", "ms");
    for number in 0..installs {
        let (kind, name) = (watched + number, parent(watched + number));
        let declared = Declared::new(&format!("late{number}"), kind, &harness.hooks);
        harness.objects.also(declared).await;
        process.quiet().await;
        harness.objects.types(kind + 1).await;
        let begin = Instant::now();
        let size = Children { count: 1, bytes: 100 };
        harness.objects.parents(kind, vec![(name.clone(), None)], size).await;
        let called = harness.hooks.call_after(&name, 0, PATIENCE).await.expect("it is synced");
        noticed.add((called - begin).as_secs_f64() * 1e3);
    }
    noticed.print();
    process.stop().await;
    harness.stop().await;
}

/// Declares a controller and a parent of each type.
async fn declare(harness: &mut Harness, count: usize) {
    for kind in 0..count {
        let size = Children { count: 1, bytes: 100 };
        harness.objects.parents(kind, vec![(parent(kind), None)], size).await;
    }
    let controllers =
        (0..count).map(|kind| Declared::new(&format!("c{kind}"), kind, &harness.hooks)).collect();
    harness.objects.controllers(controllers).await;
}
