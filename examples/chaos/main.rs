//! A random mix of everything, by seed, over many controllers and parents; then peace, and what
//! there is must be what was said last.
//!
//! ```console
//! $ cargo run --release --example chaos -- --minutes 30 --seed 7
//! $ cargo run --release --example chaos -- --server simulated --minutes 30
//! $ cargo run --release --example chaos -- --server simulated --events 10000   # a soak
//! ```
//!
//! Objects are created, changed and deleted, types go, return with another scope and lose a
//! version, rights are taken, watches cut, histories lost, answers late or wrong, hooks out of
//! order, specifications edited, the manager is started anew. The same seed is the same sequence of
//! these; on the simulated server, whose minutes are those of a paused clock, also the same times.
//! Nothing leaves loopback.

mod fleet;
mod judge;
mod server;
mod stage;
mod world;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use k8s_openapi::jiff::Timestamp;
use pilotlight::testing::LeakOracle;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::Instant,
};

use crate::{server::Server, stage::Stage, world::World};

/// Series that show how many things there are, rather than what happened. How many children there
/// are is drawn.
const GAUGES: &[&str] = &["workqueue_depth", "pilotlight_informer_watches"];
/// Series of what has not happened yet to everybody when a soak begins.
const LATER: [&str; 4] = [
    "pilotlight_discovery_watch_failures_total",
    "pilotlight_controller_stop_duration_seconds",
    "pilotlight_informer_restarts_total",
    "pilotlight_controller_restarts_total",
];
/// Lifecycle events before a soak's baseline: by then every series there can be has appeared.
const WARM_UP: usize = 300;
/// After so many events of a soak the simulated server forgets the past, as the real one does in
/// time.
const COMPACTED: usize = 20;
const SAMPLES: u32 = 20;

#[derive(Clone, Debug, Parser)]
#[command(about = "A random mix of everything, and then the truth")]
struct Args {
    /// For how long; of the simulated server, in its own time.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Ends after so many deeds: the number that a failed run has printed.
    #[arg(long)]
    deeds: Option<usize>,
    /// A soak instead: so many events in the life of controllers, then nothing may have grown.
    #[arg(long)]
    events: Option<usize>,
    /// What happens; drawn at random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// How many types and controllers.
    #[arg(long, default_value_t = 50)]
    controllers: usize,
    /// Of each, at most.
    #[arg(long, default_value_t = 200)]
    parents: usize,
    /// The longest pause between two deeds, in milliseconds.
    #[arg(long, default_value_t = 100)]
    pause: u64,
    /// Where all this happens.
    #[arg(long, value_enum, default_value_t = Where::Real)]
    server: Where,
    /// Prints each deed.
    #[arg(long)]
    log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// In process, with a paused clock.
    Simulated,
    /// etcd and kube-apiserver on loopback.
    Real,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "it is what the user asked for")]
fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(0..1_000_000));
    println!("seed {seed}");
    fastrand::seed(seed);
    match run(&args, seed) {
        Ok(()) => {
            println!("seed {seed}: all is as it was said to be");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("seed {seed}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, seed: u64) -> anyhow::Result<()> {
    match args.server {
        Where::Simulated => {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build()?;
            let on = runtime.handle().clone();
            runtime.block_on(async { play(args, seed, Server::simulated(seed).await?, on).await })
        }
        Where::Real => {
            let runtime = Runtime::new()?;
            // The manager's tasks are counted apart from ours.
            let apart = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let on = apart.handle().clone();
            let end = runtime
                .block_on(async { play(args, seed, Box::pin(Server::real()).await?, on).await });
            apart.shutdown_background();
            end
        }
    }
}

#[expect(clippy::print_stdout, reason = "it is what the user asked for")]
async fn play(args: &Args, seed: u64, server: Server, on: Handle) -> anyhow::Result<()> {
    let fill = if args.events.is_some() { 2 } else { args.parents / 4 };
    let world = World::new(seed, args.controllers, args.parents, fill.min(args.parents));
    let mut stage = Stage::new(server, world, on.clone()).await?;
    let patience = match args.server {
        // Its clock costs nothing, and a back-off may be long.
        Where::Simulated => Duration::from_secs(3600),
        Where::Real => Duration::from_secs(300),
    };
    let leaks = LeakOracle::new().tasks("the manager", &on).requests(&stage.faults);
    let nobody = leaks.baseline().await;
    let mut samples = Samples::new(on);

    stage.start()?;
    for deed in stage.world.beginning() {
        stage.carry_out(deed).await?;
    }
    println!("begun: settled after {:?}", stage.converge(patience).await?);
    samples.take(&mut stage);
    match args.events {
        Some(events) => soak(args, seed, &mut stage, &mut samples, events, patience).await?,
        None => chaos(args, seed, &mut stage, &mut samples, patience).await?,
    }

    stage.stop().await?;
    leaks.compare(&nobody).await.context("left over by managers that have ended")?;
    samples.take(&mut stage);
    samples.print_slope();
    let Stage { server, world, faults, figures, .. } = stage;
    println!("{figures:?}, {} faults", faults.fired().len());
    let writes = server.writes.so_far();
    let deletes = judge::excused(&world, &writes.deletes)?;
    println!("{} children created, {deletes} deleted, each for a reason", writes.creates);
    server.stop().await;
    Ok(())
}

/// Everything at once, for a while.
#[expect(clippy::print_stdout, reason = "it is what the user asked for")]
async fn chaos(
    args: &Args,
    seed: u64,
    stage: &mut Stage,
    samples: &mut Samples,
    patience: Duration,
) -> anyhow::Result<()> {
    let mut pauses = fastrand::Rng::with_seed(seed);
    let length = Duration::try_from_secs_f64(args.minutes * 60.0).context("--minutes")?;
    let begin = Instant::now();
    let mut next = begin + length / SAMPLES;
    let mut done = 0;
    while args.deeds.map_or_else(|| begin.elapsed() < length, |deeds| done < deeds) {
        let deed = stage.world.draw();
        if args.log {
            println!("{done} {:?} {deed:?}", begin.elapsed());
        }
        stage.carry_out(deed).await.with_context(|| format!("deed {done}"))?;
        done += 1;
        if Instant::now() >= next {
            samples.take(stage);
            next += length / SAMPLES;
        }
        stage::breathe(&mut pauses, Duration::from_millis(args.pause)).await;
    }
    println!("{done} deeds; peace");
    stage.make_peace().await?;
    let took = stage.converge(patience).await.with_context(|| format!("after {done} deeds"))?;
    println!("settled after {took:?}");
    samples.take(stage);
    Ok(())
}

/// The life of controllers, again and again, and nothing else.
#[expect(clippy::print_stdout, reason = "it is what the user asked for")]
async fn soak(
    args: &Args,
    seed: u64,
    stage: &mut Stage,
    samples: &mut Samples,
    events: usize,
    patience: Duration,
) -> anyhow::Result<()> {
    let mut pauses = fastrand::Rng::with_seed(seed);
    let mut baseline = None;
    for done in 0..WARM_UP + events {
        if done == WARM_UP {
            baseline = Some(baseline_of(stage, patience).await?);
            samples.take(stage);
            println!("soaking");
        }
        let deed = stage.world.draw_lifecycle();
        if args.log {
            println!("{done} {deed:?}");
        }
        stage.carry_out(deed).await.with_context(|| format!("event {done}"))?;
        if done % COMPACTED == 0 {
            stage.server.age().await?;
        }
        if done % (events / 10).max(1) == 0 {
            samples.take(stage);
        }
        stage::breathe(&mut pauses, Duration::from_millis(args.pause)).await;
    }
    let Some((oracle, baseline)) = baseline else { return Ok(()) };
    restore(stage, patience).await?;
    oracle.compare(&baseline).await.with_context(|| format!("grown in {events} events"))?;
    println!("{events} events in the life of controllers, and nothing has grown:");
    let now = oracle.measure();
    for sort in ["tasks", "requests", "series", "resident KiB"] {
        println!("  {sort}: {} before, {} after", baseline.total(sort), now.total(sort));
    }
    samples.take(stage);
    Ok(())
}

async fn restore(stage: &mut Stage, patience: Duration) -> anyhow::Result<()> {
    for deed in stage.world.restoring() {
        stage.carry_out(deed).await?;
    }
    stage.converge(patience).await?;
    Ok(())
}

/// What there is when everything runs.
async fn baseline_of(
    stage: &mut Stage,
    patience: Duration,
) -> anyhow::Result<(LeakOracle, pilotlight::testing::Measure)> {
    restore(stage, patience).await?;
    let metrics = stage.fleet.as_ref().context("no manager")?.metrics.clone();
    let oracle = LATER
        .iter()
        .fold(LeakOracle::new(), |oracle, series| oracle.expect_more("series", *series));
    let oracle = oracle
        .tasks("the manager", &stage.on)
        .requests(&stage.faults)
        .series(move || fleet::text(&metrics), GAUGES)
        .memory();
    let baseline = oracle.baseline().await;
    Ok((oracle, baseline))
}

/// What the process has needed, and when.
struct Samples {
    on: Handle,
    system: LeakOracle,
    begin: Timestamp,
    /// Wall-clock minutes and KiB.
    resident: Vec<(f64, f64)>,
}

impl Samples {
    fn new(on: Handle) -> Self {
        let system = LeakOracle::new().sockets().memory();
        Self { on, system, begin: Timestamp::now(), resident: Vec::new() }
    }

    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    fn take(&mut self, stage: &mut Stage) {
        stage.count();
        let minutes = (Timestamp::now().as_second() - self.begin.as_second()) as f64 / 60.0;
        let measure = self.system.measure();
        let resident = measure.total("resident KiB");
        self.resident.push((minutes, resident as f64));
        let figures = stage.figures;
        let parents: usize = stage.world.kinds.iter().map(|kind| kind.parents.len()).sum();
        let line: BTreeMap<_, u64> = BTreeMap::from([
            ("deeds", figures.deeds as u64),
            ("epochs", figures.epochs),
            ("faults", stage.faults.fired().len() as u64),
            ("lifecycle", figures.lifecycle as u64),
            ("parents", parents as u64),
            ("requests", figures.requests as u64),
            ("resident KiB", resident),
            ("sockets", measure.total("sockets")),
            ("tasks", self.on.metrics().num_alive_tasks() as u64),
        ]);
        println!("{minutes:.1} min: {line:?}");
    }

    /// The least squares of the second half: by then allocators and caches are as large as they get.
    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    fn print_slope(&self) {
        let half = &self.resident[self.resident.len() / 2..];
        if let ([first, ..], [.., last]) = (half, half)
            && last.0 - first.0 < 1.0
        {
            // Too short to tell a slope from a step.
            return;
        }
        let count = half.len() as f64;
        let (x, y) = half.iter().fold((0.0, 0.0), |(x, y), it| (x + it.0, y + it.1));
        let (x, y) = (x / count, y / count);
        let (up, across) = half.iter().fold((0.0, 0.0), |(up, across), it| {
            (up + (it.0 - x) * (it.1 - y), across + (it.0 - x).powi(2))
        });
        if across > 0.0 {
            println!("resident memory: {:+.0} KiB a minute in the second half", up / across);
        }
    }
}
