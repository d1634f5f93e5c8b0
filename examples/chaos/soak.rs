//! Soak: only lifecycle steps, after which no figure may have grown.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use k8s_openapi::jiff::Timestamp;
use pilotlight::testing::{LeakOracle, Measure, Trend};
use prometheus_client::registry::Registry;
use tokio::task::spawn_blocking;

use crate::{
    driver::{self, Driver},
    manager,
};

/// Gauges whose values, not only their series, must return to the baseline. Excludes the number of
/// children, which is random.
const GAUGES: &[&str] = &["workqueue_depth", "pilotlight_informer_watches"];
/// Series that may not exist yet for every controller when a soak begins.
const LATE_SERIES: [&str; 4] = [
    "pilotlight_discovery_watch_failures_total",
    "pilotlight_controller_stop_duration_seconds",
    "pilotlight_informer_restarts_total",
    "pilotlight_controller_restarts_total",
];
/// Lifecycle steps before the baseline; by then every series has appeared.
const WARM_UP: usize = 300;
/// Lifecycle steps between two calls of `Server::age`.
const AGE_INTERVAL: usize = 20;
/// Number of measurements, each after the state is restored. With fewer, the slope would be
/// uncertain.
const MEASUREMENTS: usize = 30;
/// Largest rise of each figure in a whole soak, by its slope. Figures that vary with the random
/// steps may rise by as much as they vary. Memory may rise by half a KiB for each of 10 000 steps,
/// which is less than a task. A leak in one of a hundred lifecycles is above these limits.
const MAX_RISE: [(&str, f64); 7] = [
    ("tasks", 5.0),
    ("requests", 5.0),
    ("sockets", 10.0),
    ("series", 50.0),
    ("cached objects", 50.0),
    ("cached bytes", 50_000.0),
    ("resident KiB", 5120.0),
];

/// Length and pace of a soak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soak {
    pub(crate) events: usize,
    /// Wall-clock time over which the steps are spread; `None` runs them as fast as possible.
    pub(crate) length: Option<Duration>,
    /// Longest pause between two steps that are not spread.
    pub(crate) pause: Duration,
    pub(crate) seed: u64,
    pub(crate) log: bool,
    /// Longest wait for convergence.
    pub(crate) patience: Duration,
}

impl Soak {
    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    pub(crate) async fn run(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let mut pauses = fastrand::Rng::with_seed(self.seed);
        while driver.figures.lifecycle < WARM_UP {
            self.run_step(driver).await?;
            driver::random_pause(&mut pauses, self.pause).await;
        }
        restore(driver, self.patience).await?;
        let oracle = oracle(driver)?;
        let baseline = oracle.baseline().await;
        println!("soaking");

        let (begin, before) = (Timestamp::now(), driver.figures.lifecycle);
        let mut measurements = Measurements::default();
        measurements.take(0, &baseline, begin);
        loop {
            let done = driver.figures.lifecycle - before;
            if done * MEASUREMENTS >= self.events * measurements.taken {
                restore(driver, self.patience).await?;
                let done = driver.figures.lifecycle - before;
                measurements.take(done, &oracle.baseline().await, begin);
            }
            if done >= self.events {
                break;
            }
            self.run_step(driver).await?;
            match self.length {
                Some(length) => {
                    let part = (done + 1) as f64 / self.events as f64;
                    let due = length.mul_f64(part.min(1.0));
                    wait(due.saturating_sub(since(begin))).await?;
                }
                None => driver::random_pause(&mut pauses, self.pause).await,
            }
        }

        let done = driver.figures.lifecycle - before;
        oracle.compare(&baseline).await.with_context(|| format!("grown in {done} events"))?;
        println!("{done} events in the life of controllers in {:?}:", since(begin));
        let now = oracle.measure();
        for (sort, _) in MAX_RISE {
            println!("  {sort}: {} before, {} after", baseline.total(sort), now.total(sort));
        }
        measurements.check(done)
    }

    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    async fn run_step(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let (done, step) = (driver.figures.steps, driver.desired.draw_lifecycle());
        if self.log {
            println!("{done} {step:?}");
        }
        driver.carry_out(step).await.with_context(|| format!("event {done}"))?;
        if done.is_multiple_of(AGE_INTERVAL) {
            driver.server.age(&driver.desired.kinds).await?;
        }
        Ok(())
    }
}

fn since(begin: Timestamp) -> Duration {
    begin.duration_until(Timestamp::now()).unsigned_abs()
}

/// Waits by the wall clock; a paused clock stands still meanwhile.
#[expect(clippy::disallowed_methods, reason = "on a blocking thread")]
async fn wait(long: Duration) -> anyhow::Result<()> {
    if !long.is_zero() {
        spawn_blocking(move || std::thread::sleep(long)).await?;
    }
    Ok(())
}

/// Restores everything that is missing, so that the state can be compared with the baseline.
async fn restore(driver: &mut Driver, patience: Duration) -> anyhow::Result<()> {
    for step in driver.desired.restoring_steps() {
        driver.carry_out(step).await?;
    }
    driver.server.age(&driver.desired.kinds).await?;
    driver.converge(patience).await?;
    Ok(())
}

fn oracle(driver: &Driver) -> anyhow::Result<LeakOracle> {
    let metrics = &driver.manager.as_ref().context("no manager")?.metrics;
    let oracle = LATE_SERIES
        .iter()
        .fold(LeakOracle::new(), |oracle, series| oracle.expect_more("series", *series));
    let text = Arc::clone(metrics);
    Ok(oracle
        .tasks("the manager", &driver.on)
        .requests(&driver.faults)
        .series(move || manager::text(&text), GAUGES)
        // Reported only: the number of children is random, so only their slope is checked, and
        // connections to the server are opened and closed on demand.
        .report("cached objects", total(metrics, "pilotlight_informer_objects"))
        .report("cached bytes", total(metrics, "pilotlight_informer_cached_bytes"))
        .report("sockets", {
            let sockets = LeakOracle::new().sockets();
            move || {
                BTreeMap::from([("this process".to_owned(), sockets.measure().total("sockets"))])
            }
        })
        .memory())
}

/// Sum of a gauge over all its labels.
fn total(
    metrics: &Arc<Registry>,
    gauge: &'static str,
) -> impl Fn() -> BTreeMap<String, u64> + use<> {
    let metrics = Arc::clone(metrics);
    move || {
        let text = manager::text(&metrics);
        let series = text.lines().filter_map(|line| line.rsplit_once(' '));
        let values = series.filter(|(series, _)| series.split('{').next() == Some(gauge));
        let sum = values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum::<f64>();
        BTreeMap::from([(gauge.to_owned(), sum as u64)])
    }
}

/// Measurements so far, each taken while everything ran.
#[derive(Default)]
struct Measurements {
    taken: usize,
    trends: BTreeMap<&'static str, Trend>,
}

impl Measurements {
    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    fn take(&mut self, done: usize, measure: &Measure, begin: Timestamp) {
        self.taken += 1;
        let minutes = since(begin).as_secs_f64() / 60.0;
        let line: Vec<_> =
            MAX_RISE.iter().map(|(sort, _)| format!("{sort} {}", measure.total(sort))).collect();
        println!("{minutes:.1} min, {done} events: {}", line.join(", "));
        for (sort, _) in MAX_RISE {
            self.trends.entry(sort).or_default().add(done as f64, measure.total(sort) as f64);
        }
    }

    /// Checks the slope of each figure over the later half.
    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    fn check(&self, done: usize) -> anyhow::Result<()> {
        let mut rising = Vec::new();
        for (sort, limit) in MAX_RISE {
            let Some(slope) = self.trends.get(sort).and_then(|it| it.later_half().slope()) else {
                bail!("too few measurements to check {sort}");
            };
            let (rise, error) = (slope.per_unit * 1000.0, slope.error * 1000.0);
            let limit = limit / done as f64;
            let line = format!(
                "{sort}: {rise:+.2} in 1000 events, ± {error:.2}; limit {:.2}",
                limit * 1000.0
            );
            println!("  {line}");
            if !slope.is_surely_below(limit) {
                rising.push(line);
            }
        }
        if rising.is_empty() { Ok(()) } else { bail!("not flat:\n  {}", rising.join("\n  ")) }
    }
}
