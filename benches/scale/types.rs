//! Case: many served types of which few are watched.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float},
    objects::{self, Children, Declared, parent},
    scene::{Scene, each},
};

/// Limit of the wait for a hook call.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn run(arguments: &Arguments) {
    let mut scene = Scene::start(arguments, ServerKind::Simulated).await;
    let (served, watched) = (arguments.size(500, 10_000), arguments.size(20, 100));
    scene.objects.types(watched).await;
    declare(&mut scene, watched).await;
    figure::scene(&format!("types: {watched} watched alone, {}", scene.server.name()));
    let mut process = scene.run(watched).await;
    let alone = scene.print_memory(&mut process).await;
    process.stop().await;

    let others = (watched..served).map(|kind| objects::other_type(kind).build());
    objects::install(&scene.server.client, others.collect()).await;
    figure::scene(&format!("types: {served} served, {watched} watched, {}", scene.server.name()));
    let mut process = scene.run(watched).await;
    let rest = scene.print_memory(&mut process).await;
    let each_kib = (rest - alone) * 1024.0 / float(served - watched);
    Figure::one("memory of a type that is not watched", "KiB", each_kib);

    let start = scene.server.count_start().await;
    let before = process.cpu();
    let time = 6 * scene.rest;
    tokio::time::sleep(time).await;
    let idle = (process.cpu() - before).as_secs_f64() / time.as_secs_f64();
    Figure::one("CPU of the idle process", "millicores", idle * 1e3);
    let requests = scene.server.requests_since(start).await;
    Figure::one("requests of the idle process", "", float(requests.values().sum::<usize>()));

    let installs = arguments.size(5, 20);
    let before = process.cpu();
    for number in 0..installs {
        let other = objects::other_type(served + number).build();
        objects::install(&scene.server.client, vec![other]).await;
    }
    process.quiet().await;
    let cpu = each(process.cpu() - before, installs);
    Figure::one("CPU time for a new type that is not watched", "ms", cpu);

    let mut noticed = Figure::new("watched type installed and established → first sync", "ms");
    for number in 0..installs {
        let (kind, name) = (watched + number, parent(watched + number));
        let declared = Declared::new(&format!("late{number}"), kind, &scene.hooks);
        scene.objects.also(declared).await;
        process.quiet().await;
        scene.objects.types(kind + 1).await;
        let begin = Instant::now();
        let size = Children { count: 1, bytes: 100 };
        scene.objects.parents(kind, vec![(name.clone(), None)], size).await;
        let called = scene.hooks.call_after(&name, 0, PATIENCE).await.expect("it is synced");
        noticed.add((called - begin).as_secs_f64() * 1e3);
    }
    noticed.print();
    process.stop().await;
    scene.stop().await;
}

/// Declares a controller and a parent of each type.
async fn declare(scene: &mut Scene, count: usize) {
    for kind in 0..count {
        let size = Children { count: 1, bytes: 100 };
        scene.objects.parents(kind, vec![(parent(kind), None)], size).await;
    }
    let controllers =
        (0..count).map(|kind| Declared::new(&format!("c{kind}"), kind, &scene.hooks)).collect();
    scene.objects.controllers(controllers).await;
}
