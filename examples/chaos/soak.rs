//! The life of controllers again and again, and nothing else; then nothing may have grown.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use k8s_openapi::jiff::Timestamp;
use pilotlight::testing::{LeakOracle, Measure, Trend};
use prometheus_client::registry::Registry;
use tokio::task::spawn_blocking;

use crate::{
    driver::{self, Driver},
    fleet,
};

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
/// Lifecycle events before the baseline: by then every series there can be has appeared.
const WARM_UP: usize = 300;
/// After so many events the server forgets the past.
const AGED: usize = 20;
/// How often everything is made good and measured. A slope of fewer would be uncertain.
const LOOKS: usize = 30;
/// What may rise by how much in a whole soak, by its slope: what scatters by as much as its draws
/// make it, the memory by half a KiB for each of 10 000 events, which is less than a task. Whatever
/// a life in a hundred leaves over is more.
const MOST: [(&str, f64); 7] = [
    ("tasks", 5.0),
    ("requests", 5.0),
    ("sockets", 10.0),
    ("series", 50.0),
    ("cached objects", 50.0),
    ("cached bytes", 50_000.0),
    ("resident KiB", 5120.0),
];

/// How much of it there is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soak {
    pub(crate) events: usize,
    /// Spread over so long by the clock of the wall, rather than as fast as they can be.
    pub(crate) length: Option<Duration>,
    /// The longest pause between two events that are not spread.
    pub(crate) pause: Duration,
    pub(crate) seed: u64,
    pub(crate) log: bool,
    /// For what is to come right.
    pub(crate) patience: Duration,
}

impl Soak {
    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    pub(crate) async fn run(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let mut pauses = fastrand::Rng::with_seed(self.seed);
        while driver.figures.lifecycle < WARM_UP {
            self.one(driver).await?;
            driver::breathe(&mut pauses, self.pause).await;
        }
        restore(driver, self.patience).await?;
        let oracle = oracle(driver)?;
        let baseline = oracle.baseline().await;
        println!("soaking");

        let (begin, before) = (Timestamp::now(), driver.figures.lifecycle);
        let mut looks = Looks::default();
        looks.take(0, &baseline, begin);
        loop {
            let done = driver.figures.lifecycle - before;
            if done * LOOKS >= self.events * looks.taken {
                restore(driver, self.patience).await?;
                let done = driver.figures.lifecycle - before;
                looks.take(done, &oracle.baseline().await, begin);
            }
            if done >= self.events {
                break;
            }
            self.one(driver).await?;
            match self.length {
                Some(length) => {
                    let part = (done + 1) as f64 / self.events as f64;
                    let due = length.mul_f64(part.min(1.0));
                    wait(due.saturating_sub(since(begin))).await?;
                }
                None => driver::breathe(&mut pauses, self.pause).await,
            }
        }

        let done = driver.figures.lifecycle - before;
        oracle.compare(&baseline).await.with_context(|| format!("grown in {done} events"))?;
        println!("{done} events in the life of controllers in {:?}:", since(begin));
        let now = oracle.measure();
        for (sort, _) in MOST {
            println!("  {sort}: {} before, {} after", baseline.total(sort), now.total(sort));
        }
        looks.judge(done)
    }

    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    async fn one(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let (done, deed) = (driver.figures.deeds, driver.desired.draw_lifecycle());
        if self.log {
            println!("{done} {deed:?}");
        }
        driver.carry_out(deed).await.with_context(|| format!("event {done}"))?;
        if done.is_multiple_of(AGED) {
            driver.server.age(&driver.desired.kinds).await?;
        }
        Ok(())
    }
}

fn since(begin: Timestamp) -> Duration {
    begin.duration_until(Timestamp::now()).unsigned_abs()
}

/// By the clock of the wall; a paused one stands still meanwhile.
#[expect(clippy::disallowed_methods, reason = "on a thread that is for that")]
async fn wait(long: Duration) -> anyhow::Result<()> {
    if !long.is_zero() {
        spawn_blocking(move || std::thread::sleep(long)).await?;
    }
    Ok(())
}

/// Makes everything good, so that what is there can be compared.
async fn restore(driver: &mut Driver, patience: Duration) -> anyhow::Result<()> {
    for deed in driver.desired.restoring() {
        driver.carry_out(deed).await?;
    }
    driver.server.age(&driver.desired.kinds).await?;
    driver.converge(patience).await?;
    Ok(())
}

fn oracle(driver: &Driver) -> anyhow::Result<LeakOracle> {
    let metrics = &driver.fleet.as_ref().context("no manager")?.metrics;
    let oracle = LATER
        .iter()
        .fold(LeakOracle::new(), |oracle, series| oracle.expect_more("series", *series));
    let text = Arc::clone(metrics);
    Ok(oracle
        .tasks("the manager", &driver.on)
        .requests(&driver.faults)
        .series(move || fleet::text(&text), GAUGES)
        // How many children there are is drawn, so their slope is judged alone; and connections
        // to the server are opened and closed by need.
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

/// The sum of a gauge over all its labels.
fn total(
    metrics: &Arc<Registry>,
    gauge: &'static str,
) -> impl Fn() -> BTreeMap<String, u64> + use<> {
    let metrics = Arc::clone(metrics);
    move || {
        let text = fleet::text(&metrics);
        let series = text.lines().filter_map(|line| line.rsplit_once(' '));
        let values = series.filter(|(series, _)| series.split('{').next() == Some(gauge));
        let sum = values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum::<f64>();
        BTreeMap::from([(gauge.to_owned(), sum as u64)])
    }
}

/// What there was each time when everything ran.
#[derive(Default)]
struct Looks {
    taken: usize,
    trends: BTreeMap<&'static str, Trend>,
}

impl Looks {
    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    fn take(&mut self, done: usize, measure: &Measure, begin: Timestamp) {
        self.taken += 1;
        let minutes = since(begin).as_secs_f64() / 60.0;
        let line: Vec<_> =
            MOST.iter().map(|(sort, _)| format!("{sort} {}", measure.total(sort))).collect();
        println!("{minutes:.1} min, {done} events: {}", line.join(", "));
        for (sort, _) in MOST {
            self.trends.entry(sort).or_default().add(done as f64, measure.total(sort) as f64);
        }
    }

    /// Judges each figure by its slope over the later half.
    #[expect(clippy::print_stdout, reason = "it is what the user asked for")]
    fn judge(&self, done: usize) -> anyhow::Result<()> {
        let mut rising = Vec::new();
        for (sort, most) in MOST {
            let Some(slope) = self.trends.get(sort).and_then(|it| it.later_half().slope()) else {
                bail!("too few looks to judge {sort}");
            };
            let (rise, error) = (slope.per_unit * 1000.0, slope.error * 1000.0);
            let most = most / done as f64;
            let told = format!(
                "{sort}: {rise:+.2} in 1000 events, ± {error:.2}; {:.2} are too many",
                most * 1000.0
            );
            println!("  {told}");
            if !slope.is_surely_below(most) {
                rising.push(told);
            }
        }
        if rising.is_empty() { Ok(()) } else { bail!("not flat:\n  {}", rising.join("\n  ")) }
    }
}
