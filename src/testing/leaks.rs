//! What is left over: the leak oracle.
//!
//! It takes the measure of a process before something happens, and says afterwards what has grown,
//! by how much and whose it is. Wherever it can it asks somebody else than the code under test: the
//! runtime counts the tasks, the system the sockets, the server's audit log the watches. What these
//! cannot name is told from metrics: whose the tasks are, and what waits for a time.

mod measure;
mod system;
mod trend;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Formatter},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{self, Instant},
};

use self::measure::series;
pub use self::{
    measure::{Grown, Growth, Measure},
    trend::{Slope, Trend},
};
use super::{AuditLog, AuditMark, Faults, open_watches};
use crate::duration::after;

/// Between two looks: what ends a task or closes a socket tells nobody.
const LOOK: Duration = Duration::from_millis(5);
/// So many looks that show the same, and nothing is going on.
const CALM: usize = 20;
/// Something is always going on: what is least counts.
const NEVER_CALM: Duration = Duration::from_secs(2);

/// Counts things of one sort, each by its owner.
///
/// Whatever a process or a server can count may be one: a closure, for one.
pub trait Probe: Send + Sync {
    /// How many there are now; an owner without any may be missing.
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

/// Where metrics are exposed, and which of them count with their value.
struct Series {
    text: Box<dyn Fn() -> String + Send + Sync>,
    gauges: &'static [&'static str],
}

/// Finds what is left over of what has ended.
///
/// ```
/// # use std::time::Duration;
/// # use pilotlight::testing::LeakOracle;
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
    /// Sorts that are told and never complained of.
    reports: Vec<(String, Box<dyn Probe>)>,
    series: Vec<Series>,
    /// Sort and beginning of the owner.
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
    /// An oracle that looks at nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long what has ended may take to be gone; 60 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Looks at things of this sort.
    #[must_use]
    pub fn probe(mut self, sort: impl Into<String>, probe: impl Probe + 'static) -> Self {
        self.probes.push((sort.into(), Box::new(probe)));
        self
    }

    /// Tells of things of this sort when something else has grown, and never complains of them.
    #[must_use]
    pub fn report(mut self, sort: impl Into<String>, probe: impl Probe + 'static) -> Self {
        self.reports.push((sort.into(), Box::new(probe)));
        self
    }

    /// Lets things of this sort grow whose owner begins so.
    #[must_use]
    pub fn expect_more(mut self, sort: impl Into<String>, owner: impl Into<String>) -> Self {
        self.expected.push((sort.into(), owner.into()));
        self
    }

    /// The tasks that are alive in this runtime: `tasks`.
    #[must_use]
    pub fn tasks(self, owner: impl Into<String>, runtime: &Handle) -> Self {
        let (owner, metrics) = (owner.into(), runtime.metrics());
        self.probe("tasks", move || one(&owner, metrics.num_alive_tasks()))
    }

    /// The requests that are under way, watches included, by verb and type: `requests`.
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

    /// The watches of this user that the API server has open since `mark`, by type, as its audit
    /// log has them: `watches`.
    #[must_use]
    pub fn watches(self, audit: &AuditLog, user: impl Into<String>, mark: AuditMark) -> Self {
        let (audit, user) = (audit.clone(), user.into());
        // Reading it is dear, and it only grows.
        let last = Mutex::new(None::<(AuditMark, BTreeMap<String, u64>)>);
        self.probe("watches", move || {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let Ok(end) = audit.mark() else { return one("an audit log that cannot be read", 1) };
            if let Some((known, open)) = last.as_ref()
                && *known == end
            {
                return open.clone();
            }
            let Ok(events) = audit.since(mark) else {
                return one("an audit log that cannot be read", 1);
            };
            let open = open_watches(&events).into_iter().filter(|event| event.user == user);
            let open = count(open.map(|event| of_type(&event.resource, &event.group)));
            *last = Some((end, open.clone()));
            open
        })
    }

    /// The series of metrics, by name and labels, from their exposition as text: `series`. Those of
    /// the gauges named here count with their value, and so show queue items or bytes.
    ///
    /// The gauges by which Pilotlight tells of its tasks are `named tasks`, and those of what waits
    /// for a time are `timers`. A task that [`LeakOracle::tasks`] counts and these do not is none
    /// that Pilotlight has spawned.
    #[must_use]
    pub fn series(
        mut self,
        text: impl Fn() -> String + Send + Sync + 'static,
        gauges: &'static [&'static str],
    ) -> Self {
        self.series.push(Series { text: Box::new(text), gauges });
        self
    }

    /// The sockets of this process: `sockets`. Other tests in the process have some, too.
    ///
    /// Linux only; elsewhere there are none.
    #[must_use]
    pub fn sockets(self) -> Self {
        self.probe("sockets", || one("this process", system::sockets()))
    }

    /// The resident memory of this process in KiB, which is told and never complained of: an
    /// allocator keeps what it was given. Linux only; elsewhere there is none.
    #[must_use]
    pub fn memory(self) -> Self {
        self.report("resident KiB", || one("this process", system::resident_kib()))
    }

    /// What there is now.
    pub fn measure(&self) -> Measure {
        let all = self.probes.iter().chain(&self.reports);
        let all = all.map(|(sort, probe)| (sort.clone(), probe.measure()));
        let series = self.series.iter().flat_map(|it| series(&(it.text)(), it.gauges));
        Measure::of(all.chain(series))
    }

    /// What there is when nothing is going on: what does not change for a while. Where something is
    /// always going on, the least of what is seen for 2 s.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn baseline(&self) -> Measure {
        let deadline = Instant::now() + NEVER_CALM;
        let mut now = self.measure();
        let mut least = now.clone();
        let mut calm = 0;
        while Instant::now() < deadline {
            time::sleep(LOOK).await;
            let next = self.measure();
            let is_same = next.is_as(&now, |sort| !self.is_report(sort));
            calm = if is_same { calm + 1 } else { 0 };
            least = least.least(&next);
            now = next;
            if calm == CALM {
                return now;
            }
        }
        least
    }

    /// Waits until nothing is more than it was; looks again and again for as long as there is
    /// patience.
    ///
    /// # Errors
    ///
    /// What is still more than it was, and whose it is.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn compare(&self, baseline: &Measure) -> Result<(), Growth> {
        let deadline = after(Instant::now(), self.patience);
        loop {
            let now = self.measure();
            let mut growth = now.grown_since(baseline);
            let is_expected = |grown: &Grown| {
                let mut expected = self.expected.iter();
                expected.any(|(sort, owner)| {
                    *sort == grown.sort && grown.owner.starts_with(owner.as_str())
                })
            };
            growth.0.retain(|grown| !is_expected(grown));
            if growth.0.iter().all(|grown| self.is_report(&grown.sort)) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(growth);
            }
            time::sleep(LOOK).await;
        }
    }

    fn is_report(&self, sort: &str) -> bool {
        self.reports.iter().any(|(report, _)| report == sort)
    }

    /// Asserts that nothing is more than it was, once what has ended is gone.
    ///
    /// # Panics
    ///
    /// When something still is: with what, by how much, and whose it is.
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
        move || one("somebody", number.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_grown_is_named_with_its_owner() {
        let number = Arc::new(AtomicU64::new(2));
        let oracle = LeakOracle::new().probe("things", counted(&number)).memory();
        let baseline = oracle.baseline().await;
        oracle.assert_baseline(&baseline).await;

        number.store(3, Ordering::SeqCst);

        let grown = oracle.compare(&baseline).await.unwrap_err().to_string();
        assert!(grown.contains("things of somebody: 3, 2 before"), "{grown}");
        let lenient = oracle.expect_more("things", "some");
        lenient.assert_baseline(&baseline).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_baseline_is_what_stays_once_all_is_calm() {
        let number = Arc::new(AtomicU64::new(0));
        let oracle = LeakOracle::new().probe("things", counted(&number));
        let rise = async {
            time::sleep(LOOK * 3).await;
            number.store(4, Ordering::SeqCst);
        };

        let (baseline, ()) = tokio::join!(oracle.baseline(), rise);

        assert_eq!(baseline.count("things", "somebody"), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn where_it_is_never_calm_the_least_counts() {
        let looks = AtomicU64::new(0);
        let probe = move || one("somebody", 3 + looks.fetch_add(1, Ordering::SeqCst) % 2);

        let baseline = LeakOracle::new().probe("things", probe).baseline().await;

        assert_eq!(baseline.count("things", "somebody"), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_in_time_is_not_left_over() {
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
    async fn requests_are_told_by_verb_and_type() {
        use crate::testing::{Action, Rule};
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
