//! Case: many controllers with children of one type, among foreign objects of that type.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{self, Figure, float, ratio},
    harness::{Harness, each},
    objects::{Children, Declared, parent},
    process::Process,
};

/// Bytes of a foreign object's data.
const BYTES: usize = 200;
/// Limit of the wait for a hook call.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of batches of changes whose CPU time is measured.
const BATCHES: usize = 8;
/// Number of concurrent foreign changes.
const CONCURRENT: usize = 8;

/// Figures that are compared.
struct Measured {
    controllers: usize,
    rest: f64,
    foreign: f64,
    own: f64,
}

pub(crate) async fn run(arguments: &Arguments) {
    let kind = arguments.server.unwrap_or(ServerKind::Real);
    let mut harness = Harness::start(arguments, ServerKind::Real).await;
    for (foreign, controllers) in sizes(arguments, kind) {
        harness.objects.foreign(foreign, BYTES).await;
        let mut alone: Option<Measured> = None;
        for count in controllers {
            let types = arguments.types.unwrap_or(count);
            let measured = measure(&mut harness, arguments, count, types, foreign).await;
            if let Some(alone) = &alone {
                compare(&measured, alone);
            }
            alone.get_or_insert(measured);
        }
    }
    harness.stop().await;
}

/// Returns numbers of foreign objects, each with numbers of controllers.
fn sizes(arguments: &Arguments, kind: ServerKind) -> Vec<(usize, Vec<usize>)> {
    let with_one = |controllers: &[usize]| {
        let others = controllers.iter().copied().filter(|count| *count != 1);
        std::iter::once(1).chain(others).collect::<Vec<_>>()
    };
    match (&*arguments.controllers, &*arguments.foreign) {
        ([], []) if arguments.quick => vec![(1_000, vec![1, 10])],
        ([], []) if kind == ServerKind::Real => {
            vec![(1_000, vec![10]), (20_000, vec![1, 200])]
        }
        ([], []) => [1_000, 10_000, 100_000].map(|it| (it, vec![1, 10, 100, 1_000])).to_vec(),
        (controllers, []) => vec![(1_000, with_one(controllers))],
        ([], foreign) => foreign.iter().map(|it| (*it, vec![1, 10])).collect(),
        (controllers, foreign) => foreign.iter().map(|it| (*it, with_one(controllers))).collect(),
    }
}

async fn measure(
    harness: &mut Harness,
    arguments: &Arguments,
    count: usize,
    types: usize,
    foreign: usize,
) -> Measured {
    declare(harness, count, types).await;
    figure::title(&format!(
        "sharing: {count} controllers of {types} types, {foreign} foreign objects, {}",
        harness.server.name()
    ));
    let mut process = harness.run(count).await;
    let rest = harness.print_memory(&mut process).await;
    let foreign = foreign_changes(harness, &mut process, arguments.size(400, 1_000)).await;
    let own = own_changes(harness, &mut process, count, arguments.size(80, 400)).await;
    under_load(harness, count, arguments.size(40, 100)).await;
    harness.settle(&mut process).await;
    Figure::one("anonymous memory at most, since it was at rest", "MiB", process.most_memory());
    Figure::one(
        "anonymous memory at rest, at last",
        "MiB",
        process.memory_at_rest(harness.rest).await,
    );
    process.stop().await;
    Measured { controllers: count, rest, foreign, own }
}

fn compare(measured: &Measured, alone: &Measured) {
    let more = float(measured.controllers - alone.controllers);
    Figure::one(
        "memory of one controller more",
        "KiB",
        (measured.rest - alone.rest) * 1024.0 / more,
    );
    ratio("CPU time for a foreign change, to one controller", measured.foreign, alone.foreign);
    ratio("CPU time for an own change, to one controller", measured.own, alone.own);
}

/// Declares controllers with one parent each, and each parent with one child.
async fn declare(harness: &mut Harness, count: usize, types: usize) {
    harness.objects.types(types).await;
    let controllers = (0..count).map(|index| Declared {
        label: (types < count).then(|| format!("c{index}")),
        ..Declared::new(&format!("c{index}"), index % types, &harness.hooks)
    });
    let controllers: Vec<_> = controllers.collect();
    for kind in 0..types {
        let parents = (kind..count).step_by(types);
        let names = parents.map(|index| (parent(index), Some(format!("c{index}")))).collect();
        harness.objects.parents(kind, names, Children { count: 1, bytes: BYTES }).await;
    }
    harness.objects.controllers(controllers).await;
}

/// Changes foreign objects in batches; returns the least CPU time for one in ms.
async fn foreign_changes(harness: &mut Harness, process: &mut Process, batch: usize) -> f64 {
    let calls = harness.hooks.calls();
    let mut cpu = Figure::new("CPU time for a foreign change", "ms");
    for _ in 0..BATCHES {
        let before = process.cpu();
        harness.objects.change_foreign(batch, CONCURRENT).await;
        process.quiet().await;
        cpu.add(each(process.cpu() - before, batch));
    }
    assert_eq!(harness.hooks.calls(), calls, "a foreign change causes no hook call");
    cpu.print()
}

/// Changes children one by one, in batches; returns the least CPU time for one in ms.
async fn own_changes(
    harness: &mut Harness,
    process: &mut Process,
    controllers: usize,
    changes: usize,
) -> f64 {
    let mut call = Figure::new("change of a child → hook call", "ms");
    let mut answer = Figure::new("change of a child → answer of the API server", "ms");
    let mut cpu = Figure::new("CPU time for a change of a child", "ms");
    let (mut warm_up, mut ignored) = (Figure::new("", ""), Figure::new("", ""));
    let batch = changes / BATCHES;
    // The connections to the hooks are open afterwards.
    for index in 0..controllers {
        own_change(harness, index, &mut warm_up, &mut ignored).await;
    }
    for number in 0..BATCHES {
        process.quiet().await;
        let before = process.cpu();
        for index in 0..batch {
            let index = (number * batch + index) % controllers;
            own_change(harness, index, &mut call, &mut answer).await;
        }
        process.quiet().await;
        cpu.add(each(process.cpu() - before, batch));
    }
    call.print();
    answer.print();
    cpu.print()
}

async fn own_change(harness: &mut Harness, index: usize, call: &mut Figure, answer: &mut Figure) {
    let parent = parent(index);
    let calls = harness.hooks.calls_of(&parent);
    let begin = Instant::now();
    harness.objects.change_child(&parent).await;
    answer.add(begin.elapsed().as_secs_f64() * 1e3);
    let called = harness.hooks.call_after(&parent, calls, PATIENCE).await;
    call.add((called.expect("the hook is called") - begin).as_secs_f64() * 1e3);
}

/// Changes children one by one while foreign objects change without a pause.
async fn under_load(harness: &mut Harness, controllers: usize, changes: usize) {
    let mut call = Figure::new("the same among foreign changes → hook call", "ms");
    let mut answer = Figure::new("the same among foreign changes → answer", "ms");
    let mut load = JoinSet::new();
    load.spawn(harness.objects.load(CONCURRENT));
    for index in 0..changes {
        own_change(harness, index % controllers, &mut call, &mut answer).await;
    }
    load.shutdown().await;
    call.print();
    answer.print();
}
