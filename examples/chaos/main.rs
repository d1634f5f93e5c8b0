//! Chaos: random steps from a seed against many controllers and parents. Then all faults end, and
//! the actual state must converge to the desired one.
//!
//! ```console
//! $ cargo run --release --example chaos -- --minutes 30 --seed 7
//! $ cargo run --release --example chaos -- --server simulated --minutes 30
//! $ cargo run --release --example chaos -- --server simulated --events 10000 --minutes 30 \
//!       --controllers 10 --parents 5
//! ```
//!
//! Objects are created, changed and deleted; types are deleted and return with another scope or
//! without a version; rights are revoked, watches cut, histories lost; responses are late or wrong,
//! hooks fail, specifications change, and the manager restarts. The same seed gives the same
//! sequence of steps. On the simulated server, whose minutes are those of a paused clock, it also
//! gives the same times. With `--events` the run is a soak: only lifecycle steps, spread over the
//! given minutes of wall-clock time, if any. The state is repeatedly restored and measured,
//! and a figure that keeps rising is a leak. `RUST_LOG` sets the log level of the managers, which
//! log to stderr. All connections stay on loopback.

mod check;
mod desired;
mod driver;
mod manager;
mod server;
mod soak;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use k8s_openapi::jiff::Timestamp;
use pilotlight::testing::{LeakOracle, Trend};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::Instant,
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::{desired::Desired, driver::Driver, server::Server, soak::Soak};

const SAMPLES: u32 = 20;

#[derive(Clone, Debug, Parser)]
#[command(about = "Random steps against many controllers, then a check of the final state")]
struct Args {
    /// Length of the run in minutes, by the server's own clock if it is simulated; 1 by default. Of
    /// a soak, in wall-clock time; by default it runs as fast as possible.
    #[arg(long)]
    minutes: Option<f64>,
    /// Number of steps after which the run ends, as printed by a failed run.
    #[arg(long)]
    steps: Option<usize>,
    /// Runs a soak of this many lifecycle steps, after which no figure may have grown.
    #[arg(long)]
    events: Option<usize>,
    /// Seed of the random steps; random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of types, each with a controller.
    #[arg(long, default_value_t = 50)]
    controllers: usize,
    /// Upper bound on the parents of each type.
    #[arg(long, default_value_t = 200)]
    parents: usize,
    /// Longest pause between two steps, in milliseconds.
    #[arg(long, default_value_t = 100)]
    pause: u64,
    /// Server to run against.
    #[arg(long, value_enum, default_value_t = ServerKind::Real)]
    server: ServerKind,
    /// Prints each step.
    #[arg(long)]
    log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServerKind {
    /// Simulated server in this process, with a paused clock.
    Simulated,
    /// etcd and kube-apiserver on loopback.
    Real,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "output of a command-line program")]
fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into());
    let filter = filter.from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(0..1_000_000));
    println!("seed {seed}");
    fastrand::seed(seed);
    match run(&args, seed) {
        Ok(()) => {
            println!("seed {seed}: everything is as desired");
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
        ServerKind::Simulated => {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build()?;
            let on = runtime.handle().clone();
            runtime.block_on(async { play(args, seed, Server::simulated(seed).await?, on).await })
        }
        ServerKind::Real => {
            let runtime = Runtime::new()?;
            // Separate runtime, so that the manager's tasks are counted apart from ours.
            let apart = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let on = apart.handle().clone();
            let end = runtime
                .block_on(async { play(args, seed, Box::pin(Server::real()).await?, on).await });
            apart.shutdown_background();
            end
        }
    }
}

#[expect(clippy::print_stdout, reason = "output of a command-line program")]
async fn play(args: &Args, seed: u64, server: Server, on: Handle) -> anyhow::Result<()> {
    let initial = if args.events.is_some() { 2 } else { args.parents / 4 };
    let desired = Desired::new(seed, args.controllers, args.parents, initial.min(args.parents));
    let mut driver = Driver::new(server, desired, on.clone()).await?;
    let patience = match args.server {
        // Paused time costs nothing, and a back-off may be long.
        ServerKind::Simulated => Duration::from_secs(3600),
        ServerKind::Real => Duration::from_secs(300),
    };
    let leaks = LeakOracle::new().tasks("the manager", &on).requests(&driver.faults);
    let baseline = leaks.baseline().await;
    let mut samples = Samples::new(on);

    driver.start()?;
    for step in driver.desired.initial_steps() {
        driver.carry_out(step).await?;
    }
    println!("started: converged after {:?}", driver.converge(patience).await?);
    samples.take(&mut driver);
    match args.events {
        Some(events) => {
            let soak = Soak {
                events,
                length: args.minutes.map(length).transpose()?,
                pause: Duration::from_millis(args.pause),
                seed,
                log: args.log,
                patience,
            };
            soak.run(&mut driver).await?;
        }
        None => chaos(args, seed, &mut driver, &mut samples, patience).await?,
    }

    driver.stop().await?;
    leaks.compare(&baseline).await.context("left over by managers that have ended")?;
    samples.take(&mut driver);
    samples.print_slope();
    let Driver { server, desired, faults, figures, .. } = driver;
    println!("{figures:?}, {} faults", faults.fired().len());
    let writes = server.writes.so_far();
    let deletes = check::deletes(&desired, &writes.deletes)?;
    println!("{} children created, {deletes} deleted, each for a reason", writes.creates);
    server.stop().await;
    Ok(())
}

fn length(minutes: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(minutes * 60.0).context("--minutes")
}

/// Runs random steps of all kinds for a while.
#[expect(clippy::print_stdout, reason = "output of a command-line program")]
async fn chaos(
    args: &Args,
    seed: u64,
    driver: &mut Driver,
    samples: &mut Samples,
    patience: Duration,
) -> anyhow::Result<()> {
    let mut pauses = fastrand::Rng::with_seed(seed);
    let length = length(args.minutes.unwrap_or(1.0))?;
    let begin = Instant::now();
    let mut next = begin + length / SAMPLES;
    let mut done = 0;
    while args.steps.map_or_else(|| begin.elapsed() < length, |steps| done < steps) {
        let step = driver.desired.draw();
        if args.log {
            println!("{done} {:?} {step:?}", begin.elapsed());
        }
        driver.carry_out(step).await.with_context(|| format!("step {done}"))?;
        done += 1;
        if Instant::now() >= next {
            samples.take(driver);
            next += length / SAMPLES;
        }
        driver::random_pause(&mut pauses, Duration::from_millis(args.pause)).await;
    }
    println!("{done} steps; ending faults");
    driver.end_faults().await?;
    let took = driver.converge(patience).await.with_context(|| format!("after {done} steps"))?;
    println!("converged after {took:?}");
    samples.take(driver);
    Ok(())
}

/// Resource usage of the process over time.
struct Samples {
    on: Handle,
    system: LeakOracle,
    begin: Timestamp,
    /// Resident KiB over wall-clock minutes.
    resident: Trend,
}

impl Samples {
    fn new(on: Handle) -> Self {
        let system = LeakOracle::new().sockets().memory();
        Self { on, system, begin: Timestamp::now(), resident: Trend::default() }
    }

    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    fn take(&mut self, driver: &mut Driver) {
        driver.count();
        let minutes = (Timestamp::now().as_second() - self.begin.as_second()) as f64 / 60.0;
        let measure = self.system.measure();
        let resident = measure.total("resident KiB");
        self.resident.add(minutes, resident as f64);
        let figures = driver.figures;
        let parents: usize = driver.desired.kinds.iter().map(|kind| kind.parents.len()).sum();
        let line: BTreeMap<_, u64> = BTreeMap::from([
            ("steps", figures.steps as u64),
            ("epochs", figures.epochs),
            ("faults", driver.faults.fired().len() as u64),
            ("lifecycle", figures.lifecycle as u64),
            ("parents", parents as u64),
            ("requests", figures.requests as u64),
            ("resident KiB", resident),
            ("sockets", measure.total("sockets")),
            ("tasks", self.on.metrics().num_alive_tasks() as u64),
        ]);
        println!("{minutes:.1} min: {line:?}");
    }

    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    fn print_slope(&self) {
        if let Some(slope) = self.resident.later_half().slope()
            // A shorter run cannot distinguish a slope from a step.
            && self.begin.duration_until(Timestamp::now()).as_secs() >= 120
        {
            let (rise, error) = (slope.per_unit, slope.error);
            println!("resident memory: {rise:+.0} KiB a minute in the second half, ± {error:.0}");
        }
    }
}
