//! Case: controllers whose objects do not change.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float},
    objects::{Children, Declared, parent},
    scene::Scene,
    server::without_watches,
};

const CONTROLLERS: usize = 50;
const BYTES: usize = 200;

pub(crate) async fn run(arguments: &Arguments) {
    let mut scene = Scene::start(arguments, ServerKind::Real).await;
    scene.objects.types(CONTROLLERS).await;
    let mut controllers = Vec::new();
    for kind in 0..CONTROLLERS {
        let size = Children { count: 1, bytes: BYTES };
        scene.objects.parents(kind, vec![(parent(kind), None)], size).await;
        controllers.push(Declared::new(&format!("idle-{kind}"), kind, &scene.hooks));
    }
    scene.objects.controllers(controllers).await;
    figure::scene(&format!("idle: {CONTROLLERS} controllers, {}", scene.server.name()));
    let mut process = scene.run(CONTROLLERS).await;
    scene.written(CONTROLLERS).await;
    scene.settle(&mut process).await;
    // Connections to hooks are closed, and memory is returned, some seconds after the start.
    sleep(2 * scene.rest).await;
    let start = scene.server.count_start().await;
    let (cpu, begin) = (process.cpu(), Instant::now());
    let seconds = if arguments.quick { 10 } else { 60 };
    sleep(Duration::from_secs(seconds)).await;
    let used = (process.cpu() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    Figure::one("CPU time of an idle process, thousandths of a core", "", used * 1e3);
    let requests = scene.server.requests_since(start).await;
    Figure::one("requests sent meanwhile, without watches", "", float(without_watches(&requests)));
    if without_watches(&requests) > 0 {
        println!("    {requests:?}");
    }
    process.stop().await;
    scene.stop().await;
}
