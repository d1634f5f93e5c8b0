//! Metrics of controllers and their queues, by the names that existing dashboards use.
//!
//! Series belong to a controller's name, not to an epoch. They exist from the build of the first
//! controller of that name until the last one is dropped.

mod series;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

pub(super) use self::series::{QueueMetrics, QueueWork, ReconcileResult, Series, WorkProbe};
use crate::{informer::CacheShare, manager::ControllerName};

/// Metric families of all controllers of a cluster. Cheap to clone.
///
/// Names and labels: `pkg/internal/controller/metrics` of controller-runtime, and client-go's
/// work queue metrics.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    families: Arc<ControllerFamilies>,
}

#[derive(Debug)]
struct ControllerFamilies {
    reconcile_total: Family<ResultLabels, Counter>,
    errors: Family<ControllerLabels, Counter>,
    terminal: Family<ControllerLabels, Counter>,
    panics: Family<ControllerLabels, Counter>,
    timeouts: Family<ControllerLabels, Counter>,
    time: Family<ControllerLabels, Histogram, fn() -> Histogram>,
    max_concurrent: Family<ControllerLabels, Gauge>,
    active: Family<ControllerLabels, Gauge>,
    depth: Family<DepthLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    retries: Family<QueueLabels, Counter>,
    queue_duration: Family<QueueLabels, Histogram, fn() -> Histogram>,
    work_duration: Family<QueueLabels, Histogram, fn() -> Histogram>,
    live: Mutex<HashMap<ControllerName, Weak<Series>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    controller: Arc<str>,
    result: ReconcileResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: Arc<str>,
    controller: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DepthLabels {
    name: Arc<str>,
    controller: Arc<str>,
    priority: i32,
}

impl ControllerMetrics {
    /// Registers the families. Call it once per registry: a second call exports them twice.
    pub fn register(&self, registry: &mut Registry) {
        let families = &self.families;
        let mut add = |name: &str, help: &str, family: Box<dyn RegisterIn>| {
            family.register_in(registry, name, help);
        };
        add(
            "controller_runtime_reconcile",
            "Reconciles by controller and result",
            Box::new(families.reconcile_total.clone()),
        );
        add(
            "controller_runtime_reconcile_errors",
            "Reconciles that failed",
            Box::new(families.errors.clone()),
        );
        add(
            "controller_runtime_terminal_reconcile_errors",
            "Reconciles that failed and are not retried",
            Box::new(families.terminal.clone()),
        );
        add(
            "controller_runtime_reconcile_panics",
            "Reconciles and handlers that panicked",
            Box::new(families.panics.clone()),
        );
        add(
            "controller_runtime_reconcile_timeouts",
            "Reconciles that exceeded the reconcile timeout",
            Box::new(families.timeouts.clone()),
        );
        add(
            "controller_runtime_reconcile_time_seconds",
            "Time of one reconcile",
            Box::new(families.time.clone()),
        );
        add(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciles that may run at once",
            Box::new(families.max_concurrent.clone()),
        );
        add(
            "controller_runtime_active_workers",
            "Reconciles that run now",
            Box::new(families.active.clone()),
        );
        add(
            "workqueue_depth",
            "Requests that are ready, by priority",
            Box::new(families.depth.clone()),
        );
        add("workqueue_adds", "Requests added", Box::new(families.adds.clone()));
        add("workqueue_retries", "Requests added with a delay", Box::new(families.retries.clone()));
        add(
            "workqueue_queue_duration_seconds",
            "Time that a ready request waits for a worker",
            Box::new(families.queue_duration.clone()),
        );
        add(
            "workqueue_work_duration_seconds",
            "Time that a worker processes a request",
            Box::new(families.work_duration.clone()),
        );
        registry.register_collector(Box::new(WorkCollector(Arc::clone(families))));
    }

    /// Returns the number of a controller's requests that are ready and wait for a worker; `None`
    /// if no controller has that name.
    pub fn queue_depth(&self, name: &ControllerName) -> Option<u64> {
        let series = self.families.live().get(name).and_then(Weak::upgrade)?;
        Some(u64::try_from(series.ready()).unwrap_or_default())
    }

    /// Returns the share of a controller in its caches; `None` if no controller has that name.
    pub fn cache_share(&self, name: &ControllerName) -> Option<CacheShare> {
        let series = self.families.live().get(name).and_then(Weak::upgrade)?;
        Some(series.share())
    }

    /// Returns the series of a controller name, which all controllers of this name share.
    pub(super) fn series(&self, name: &ControllerName) -> Arc<Series> {
        let mut live = self.families.live();
        if let Some(series) = live.get(name).and_then(Weak::upgrade) {
            return series;
        }
        let series = Arc::new(Series::new(name, Arc::clone(&self.families)));
        live.insert(name.clone(), Arc::downgrade(&series));
        series
    }
}

impl Default for ControllerFamilies {
    fn default() -> Self {
        Self {
            reconcile_total: Family::default(),
            errors: Family::default(),
            terminal: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            time: Family::new_with_constructor(reconcile_time),
            max_concurrent: Family::default(),
            active: Family::default(),
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queue_duration: Family::new_with_constructor(queue_time),
            work_duration: Family::new_with_constructor(queue_time),
            live: Mutex::default(),
        }
    }
}

impl ControllerFamilies {
    fn live(&self) -> MutexGuard<'_, HashMap<ControllerName, Weak<Series>>> {
        self.live.lock()
    }
}

/// Collector of the gauges that are computed at each scrape.
#[derive(Debug)]
struct WorkCollector(Arc<ControllerFamilies>);

/// Gauge with name, help, and value of the work.
type WorkGauge = (&'static str, &'static str, fn(&QueueWork) -> f64);

const WORK: [WorkGauge; 3] = [
    (
        "workqueue_unfinished_work_seconds",
        "Time spent so far on all requests in processing",
        |work| work.unfinished,
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "Time spent so far on the request that is longest in processing",
        |work| work.longest,
    ),
    (
        "pilotlight_queue_waiting",
        "Delayed requests: to be requeued after a time, or retried after a failure",
        |work| work.waiting as f64,
    ),
];

/// Gauge with name, help, and value of the share.
type ShareGauge = (&'static str, &'static str, fn(&CacheShare) -> usize);

const SHARES: [ShareGauge; 3] = [
    (
        "pilotlight_controller_cached_objects",
        "Objects cached whole for a controller; one that several controllers need counts for each",
        |share| share.whole,
    ),
    (
        "pilotlight_controller_cached_entries",
        "Metadata entries in the caches of a controller, which all controllers share",
        |share| share.entries,
    ),
    (
        "pilotlight_controller_accounted_bytes",
        "Estimated bytes of memory that the objects cached whole for a controller take",
        |share| share.accounted,
    ),
];

impl Collector for WorkCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Collected outside of the lock: dropping the last handle of a series takes it.
        let mut live: Vec<_> = self.0.live().values().filter_map(Weak::upgrade).collect();
        live.sort_by(|one, other| one.name.cmp(&other.name));
        let rows: Vec<_> = live.iter().map(|series| (series.name.clone(), series.work())).collect();
        for (name, help, value) in WORK {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (controller, work) in &rows {
                let labels = QueueLabels {
                    name: controller.as_str().into(),
                    controller: controller.as_str().into(),
                };
                ConstGauge::new(value(work)).encode(family.encode_family(&labels)?)?;
            }
        }
        let rows: Vec<_> = live.iter().map(|series| (&series.name, series.share())).collect();
        for (name, help, value) in SHARES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (controller, share) in &rows {
                let labels = ControllerLabels { controller: controller.as_str().into() };
                let value = i64::try_from(value(share)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Registration of a family of any metric type.
trait RegisterIn {
    fn register_in(self: Box<Self>, registry: &mut Registry, name: &str, help: &str);
}

impl<M: prometheus_client::registry::Metric> RegisterIn for M {
    fn register_in(self: Box<Self>, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, *self);
    }
}

fn reconcile_time() -> Histogram {
    // Buckets of controller-runtime, so that its dashboards fit.
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8,
        0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0,
        15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
    ])
}

fn queue_time() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}
