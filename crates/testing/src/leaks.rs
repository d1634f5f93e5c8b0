//! Leak oracle: finds tasks, requests, watches and other resources that outlive their owner.
//!
//! The oracle measures a process before an operation, and reports afterwards which counts have
//! grown, by how much and their owner. Where possible the source is independent of the code under
//! test: the runtime counts tasks, the system sockets, the server's audit log watches. Metrics
//! provide the rest: the owners of tasks, and the number of pending timers.

mod measure;
mod system;
mod trend;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Formatter},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{self, Instant},
};

use self::measure::series;
pub use self::{
    measure::{GrownCount, Growth, Measure},
    trend::{Slope, Trend},
};
use super::{AuditLog, AuditPosition, Faults, open_watches};

/// Interval between two measurements, since the end of a task or socket notifies no one.
const INTERVAL: Duration = Duration::from_millis(5);
/// Number of equal measurements after which a process counts as idle.
const IDLE_MEASUREMENTS: usize = 20;
/// Limit for a process that never becomes idle; then the least of each count is used.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Count of one kind of resource, by owner.
///
/// Any count of a process or a server can be a probe, for example a closure.
pub trait Probe: Send + Sync {
    /// Returns the current counts; an owner without any may be missing.
    fn measure(&self) -> BTreeMap<String, u64>;
}

impl<F> Probe for F
where
    F: Fn() -> BTreeMap<String, u64> + Send + Sync,
{
    fn measure(&self) -> BTreeMap<String, u64> {
        self()
    }
}

/// Exposition of metrics, and the gauges that count with their value.
struct GaugeSeries {
    text: Box<dyn Fn() -> String + Send + Sync>,
    gauges: &'static [&'static str],
}

/// Oracle that finds resources which outlive their owner.
///
/// ```
/// # use std::time::Duration;
/// # use pilotlight_testing::LeakOracle;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let oracle = LeakOracle::new().tasks("this test", &tokio::runtime::Handle::current());
/// let baseline = oracle.baseline().await;
///
/// let mut tasks = tokio::task::JoinSet::new();
/// tasks.spawn(std::future::pending::<()>());
///
/// let impatient = oracle.patience(Duration::from_millis(10));
/// let grown = impatient.compare(&baseline).await.unwrap_err();
/// assert!(grown.to_string().contains("tasks of this test: 1, 0 before"));
/// drop(tasks);
/// impatient.assert_baseline(&baseline).await;
/// # }
/// ```
pub struct LeakOracle {
    probes: Vec<(String, Box<dyn Probe>)>,
    /// Kinds that are reported, and never count as a leak.
    reports: Vec<(String, Box<dyn Probe>)>,
    series: Vec<GaugeSeries>,
    /// Kind and prefix of the owner.
    expected: Vec<(String, String)>,
    patience: Duration,
}

impl Debug for LeakOracle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sorts: Vec<_> = self.probes.iter().map(|(sort, _)| sort.as_str()).collect();
        f.debug_struct("LeakOracle").field("sorts", &sorts).finish_non_exhaustive()
    }
}

impl Default for LeakOracle {
    fn default() -> Self {
        Self {
            probes: Vec::new(),
            reports: Vec::new(),
            series: Vec::new(),
            expected: Vec::new(),
            patience: Duration::from_secs(60),
        }
    }
}

impl LeakOracle {
    /// Creates an oracle without probes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time within which resources must be released; 60 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Adds a probe for a kind of resource.
    #[must_use]
    pub fn probe(mut self, sort: impl Into<String>, probe: impl Probe + 'static) -> Self {
        self.probes.push((sort.into(), Box::new(probe)));
        self
    }

    /// Adds a probe that is reported when another count has grown, and that never counts as a leak.
    #[must_use]
    pub fn report(mut self, sort: impl Into<String>, probe: impl Probe + 'static) -> Self {
        self.reports.push((sort.into(), Box::new(probe)));
        self
    }

    /// Allows counts of this kind to grow for owners with this prefix.
    #[must_use]
    pub fn expect_more(mut self, sort: impl Into<String>, owner: impl Into<String>) -> Self {
        self.expected.push((sort.into(), owner.into()));
        self
    }

    /// Counts the live tasks of this runtime: `tasks`.
    #[must_use]
    pub fn tasks(self, owner: impl Into<String>, runtime: &Handle) -> Self {
        let (owner, metrics) = (owner.into(), runtime.metrics());
        self.probe("tasks", move || one(&owner, metrics.num_alive_tasks()))
    }

    /// Counts the open requests, watches included, by verb and type: `requests`.
    #[must_use]
    pub fn requests(self, faults: &Faults) -> Self {
        let faults = faults.clone();
        self.probe("requests", move || {
            count(faults.open().into_iter().map(|open| {
                let info = open.info;
                let what = match info.resource.is_empty() {
                    true => info.path,
                    false => of_type(&info.resource, &info.group),
                };
                format!("{:?} {what}", info.verb).to_lowercase()
            }))
        })
    }

    /// Counts the watches of this user that the API server has open since `position`, by type, from
    /// its audit log: `watches`.
    #[must_use]
    pub fn watches(
        self,
        audit: &AuditLog,
        user: impl Into<String>,
        position: AuditPosition,
    ) -> Self {
        let (audit, user) = (audit.clone(), user.into());
        // Reading the log is slow, and it only grows.
        let last = Mutex::new(None::<(AuditPosition, BTreeMap<String, u64>)>);
        self.probe("watches", move || {
            let mut last = last.lock();
            let Ok(end) = audit.position() else {
                return one("an audit log that cannot be read", 1);
            };
            if let Some((known, open)) = last.as_ref()
                && *known == end
            {
                return open.clone();
            }
            let Ok(events) = audit.since(position) else {
                return one("an audit log that cannot be read", 1);
            };
            let open = open_watches(&events).into_iter().filter(|event| event.user == user);
            let open = count(open.map(|event| of_type(&event.resource, &event.group)));
            *last = Some((end, open.clone()));
            open
        })
    }

    /// Counts the series of metrics, by name and labels, from their exposition as text: `series`.
    /// The gauges named here count with their value, and so show queue items or bytes.
    ///
    /// Pilotlight's gauges of tasks become `named tasks`, and those of pending timers become
    /// `timers`. A task that [`LeakOracle::tasks`] counts and these do not was not spawned by
    /// Pilotlight.
    #[must_use]
    pub fn series(
        mut self,
        text: impl Fn() -> String + Send + Sync + 'static,
        gauges: &'static [&'static str],
    ) -> Self {
        self.series.push(GaugeSeries { text: Box::new(text), gauges });
        self
    }

    /// Counts the sockets of this process: `sockets`. Other tests in the process have some too.
    ///
    /// Linux only; 0 elsewhere.
    #[must_use]
    pub fn sockets(self) -> Self {
        self.probe("sockets", || one("this process", system::sockets()))
    }

    /// Reports the resident memory of this process in KiB. It never counts as a leak, since an
    /// allocator keeps freed memory. Linux only; 0 elsewhere.
    #[must_use]
    pub fn memory(self) -> Self {
        self.report("resident KiB", || one("this process", system::resident_kib()))
    }

    /// Returns the current counts.
    pub fn measure(&self) -> Measure {
        let all = self.probes.iter().chain(&self.reports);
        let all = all.map(|(sort, probe)| (sort.clone(), probe.measure()));
        let series = self.series.iter().flat_map(|it| series(&(it.text)(), it.gauges));
        Measure::of(all.chain(series))
    }

    /// Returns the counts of an idle process, once they do not change for a while. For a process
    /// that is never idle, the least of each count within 2 s.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn baseline(&self) -> Measure {
        let deadline = Instant::now() + IDLE_TIMEOUT;
        let mut now = self.measure();
        let mut least = now.clone();
        let mut unchanged = 0;
        while Instant::now() < deadline {
            time::sleep(INTERVAL).await;
            let next = self.measure();
            let is_same = next.is_as(&now, |sort| !self.is_report(sort));
            unchanged = if is_same { unchanged + 1 } else { 0 };
            least = least.least(&next);
            now = next;
            if unchanged == IDLE_MEASUREMENTS {
                return now;
            }
        }
        least
    }

    /// Waits until no count is above the baseline; repeats the measurement until the time limit.
    ///
    /// # Errors
    ///
    /// The counts that are still above the baseline, with their owners.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn compare(&self, baseline: &Measure) -> Result<(), Growth> {
        // A patience beyond the range of the clock has no deadline.
        let deadline = Instant::now().checked_add(self.patience);
        loop {
            let now = self.measure();
            let mut growth = now.grown_since(baseline);
            let is_expected = |grown: &GrownCount| {
                let mut expected = self.expected.iter();
                expected.any(|(sort, owner)| {
                    *sort == grown.sort && grown.owner.starts_with(owner.as_str())
                })
            };
            growth.0.retain(|grown| !is_expected(grown));
            if growth.0.iter().all(|grown| self.is_report(&grown.sort)) {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(growth);
            }
            time::sleep(INTERVAL).await;
        }
    }

    fn is_report(&self, sort: &str) -> bool {
        self.reports.iter().any(|(report, _)| report == sort)
    }

    /// Asserts that no count is above the baseline, after resources were released.
    ///
    /// # Panics
    ///
    /// If a count is still above the baseline. The message names kind, owner and both counts.
    pub async fn assert_baseline(&self, baseline: &Measure) {
        if let Err(growth) = self.compare(baseline).await {
            panic!("not back at the baseline after {:?}:\n{growth}", self.patience);
        }
    }
}

fn one(owner: &str, number: impl TryInto<u64>) -> BTreeMap<String, u64> {
    BTreeMap::from([(owner.to_owned(), number.try_into().unwrap_or(u64::MAX))])
}

fn count(owners: impl Iterator<Item = String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for owner in owners {
        *counts.entry(owner).or_default() += 1;
    }
    counts
}

fn of_type(resource: &str, group: &str) -> String {
    match group {
        "" => resource.to_owned(),
        group => format!("{resource}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    fn counted(number: &Arc<AtomicU64>) -> impl Fn() -> BTreeMap<String, u64> + use<> {
        let number = Arc::clone(number);
        move || one("owner", number.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn a_grown_count_is_reported_with_its_owner() {
        let number = Arc::new(AtomicU64::new(2));
        let oracle = LeakOracle::new().probe("things", counted(&number)).memory();
        let baseline = oracle.baseline().await;
        oracle.assert_baseline(&baseline).await;

        number.store(3, Ordering::SeqCst);

        let grown = oracle.compare(&baseline).await.unwrap_err().to_string();
        assert!(grown.contains("things of owner: 3, 2 before"), "{grown}");
        let lenient = oracle.expect_more("things", "own");
        lenient.assert_baseline(&baseline).await;
    }

    #[tokio::test(start_paused = true)]
    async fn baseline_is_measured_once_all_counts_are_unchanged() {
        let number = Arc::new(AtomicU64::new(0));
        let oracle = LeakOracle::new().probe("things", counted(&number));
        let rise = async {
            time::sleep(INTERVAL * 3).await;
            number.store(4, Ordering::SeqCst);
        };

        let (baseline, ()) = tokio::join!(oracle.baseline(), rise);

        assert_eq!(baseline.count("things", "owner"), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_minimum_counts_in_a_process_that_is_never_idle() {
        let looks = AtomicU64::new(0);
        let probe = move || one("owner", 3 + looks.fetch_add(1, Ordering::SeqCst) % 2);

        let baseline = LeakOracle::new().probe("things", probe).baseline().await;

        assert_eq!(baseline.count("things", "owner"), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resource_that_is_released_in_time_is_not_a_leak() {
        let number = Arc::new(AtomicU64::new(0));
        let oracle = LeakOracle::new().probe("things", counted(&number));
        let baseline = oracle.baseline().await;
        number.store(1, Ordering::SeqCst);

        let end = async {
            time::sleep(Duration::from_secs(59)).await;
            number.store(0, Ordering::SeqCst);
        };

        tokio::join!(oracle.assert_baseline(&baseline), end);
    }

    #[tokio::test]
    async fn requests_are_counted_by_verb_and_type() {
        use crate::{Action, Rule};
        use http_body_util::Full;
        use kube::client::Body;
        use std::pin::pin;
        use tower::{Layer, Service};
        let faults = Faults::default();
        faults.add(Rule::new(Action::Hang));
        let oracle = LeakOracle::new().requests(&faults).patience(Duration::ZERO);
        let baseline = oracle.baseline().await;

        let server = tower::service_fn(async |_| {
            let body = Full::new(bytes::Bytes::new());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        let watch = http::Request::get("/apis/x.test/v1/widgets?watch=1").body(Body::empty());
        let mut watch = pin!(faults.layer().layer(server).call(watch.unwrap()));
        assert!(futures::poll!(&mut watch).is_pending());

        let grown = oracle.compare(&baseline).await.unwrap_err().to_string();
        assert!(grown.contains("requests of watch widgets.x.test: 1, 0 before"), "{grown}");
    }
}
