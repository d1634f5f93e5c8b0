//! A random mix of everything, by seed, over many controllers and parents; then peace, and what
//! there is must be what was said last.
//!
//! ```console
//! $ cargo run --release --example chaos -- --minutes 30 --seed 7
//! $ cargo run --release --example chaos -- --server simulated --minutes 30
//! $ cargo run --release --example chaos -- --server simulated --events 10000 --minutes 30 \
//!       --controllers 10 --parents 5
//! ```
//!
//! Objects are created, changed and deleted, types go, return with another scope and lose a
//! version, rights are taken, watches cut, histories lost, answers late or wrong, hooks out of
//! order, specifications edited, the manager is started anew. The same seed is the same sequence of
//! these; on the simulated server, whose minutes are those of a paused clock, also the same times.
//! With `--events` it is a soak: the life of controllers and nothing else, spread over the minutes of
//! the wall if there are any; again and again everything is made good and measured, and whatever
//! rises from look to look is a leak. `RUST_LOG` says what the managers log, to stderr. Nothing
//! leaves loopback.

mod desired;
mod driver;
mod fleet;
mod judge;
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
#[command(about = "A random mix of everything, and then the truth")]
struct Args {
    /// For how long; of the simulated server, in its own time. One minute by default. Of a soak, in
    /// the time of the wall wherever it is; as fast as it can be by default.
    #[arg(long)]
    minutes: Option<f64>,
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
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into());
    let filter = filter.from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
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
    let desired = Desired::new(seed, args.controllers, args.parents, fill.min(args.parents));
    let mut driver = Driver::new(server, desired, on.clone()).await?;
    let patience = match args.server {
        // Its clock costs nothing, and a back-off may be long.
        Where::Simulated => Duration::from_secs(3600),
        Where::Real => Duration::from_secs(300),
    };
    let leaks = LeakOracle::new().tasks("the manager", &on).requests(&driver.faults);
    let nobody = leaks.baseline().await;
    let mut samples = Samples::new(on);

    driver.start()?;
    for deed in driver.desired.beginning() {
        driver.carry_out(deed).await?;
    }
    println!("begun: settled after {:?}", driver.converge(patience).await?);
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
    leaks.compare(&nobody).await.context("left over by managers that have ended")?;
    samples.take(&mut driver);
    samples.print_slope();
    let Driver { server, desired, faults, figures, .. } = driver;
    println!("{figures:?}, {} faults", faults.fired().len());
    let writes = server.writes.so_far();
    let deletes = judge::excused(&desired, &writes.deletes)?;
    println!("{} children created, {deletes} deleted, each for a reason", writes.creates);
    server.stop().await;
    Ok(())
}

fn length(minutes: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(minutes * 60.0).context("--minutes")
}

/// Everything at once, for a while.
#[expect(clippy::print_stdout, reason = "it is what the user asked for")]
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
    while args.deeds.map_or_else(|| begin.elapsed() < length, |deeds| done < deeds) {
        let deed = driver.desired.draw();
        if args.log {
            println!("{done} {:?} {deed:?}", begin.elapsed());
        }
        driver.carry_out(deed).await.with_context(|| format!("deed {done}"))?;
        done += 1;
        if Instant::now() >= next {
            samples.take(driver);
            next += length / SAMPLES;
        }
        driver::breathe(&mut pauses, Duration::from_millis(args.pause)).await;
    }
    println!("{done} deeds; peace");
    driver.make_peace().await?;
    let took = driver.converge(patience).await.with_context(|| format!("after {done} deeds"))?;
    println!("settled after {took:?}");
    samples.take(driver);
    Ok(())
}

/// What the process has needed, and when.
struct Samples {
    on: Handle,
    system: LeakOracle,
    begin: Timestamp,
    /// KiB over wall-clock minutes.
    resident: Trend,
}

impl Samples {
    fn new(on: Handle) -> Self {
        let system = LeakOracle::new().sockets().memory();
        Self { on, system, begin: Timestamp::now(), resident: Trend::default() }
    }

    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    fn take(&mut self, driver: &mut Driver) {
        driver.count();
        let minutes = (Timestamp::now().as_second() - self.begin.as_second()) as f64 / 60.0;
        let measure = self.system.measure();
        let resident = measure.total("resident KiB");
        self.resident.add(minutes, resident as f64);
        let figures = driver.figures;
        let parents: usize = driver.desired.kinds.iter().map(|kind| kind.parents.len()).sum();
        let line: BTreeMap<_, u64> = BTreeMap::from([
            ("deeds", figures.deeds as u64),
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

    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    fn print_slope(&self) {
        if let Some(slope) = self.resident.later_half().slope()
            // Too short to tell a slope from a step.
            && self.begin.duration_until(Timestamp::now()).as_secs() >= 120
        {
            let (rise, error) = (slope.per_unit, slope.error);
            println!("resident memory: {rise:+.0} KiB a minute in the second half, ± {error:.0}");
        }
    }
}
