//! Metrics of controllers and their queues, by the names that dashboards know.
//!
//! Series belong to a controller's name, not to an epoch: they are there from the moment that a
//! controller of this name is built, and go with the last one.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::manager::ControllerName;

/// The metric families of all controllers of a cluster. Cheap to clone.
///
/// Names and labels: `pkg/internal/controller/metrics` of controller-runtime, and client-go's
/// work queue metrics.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    families: Arc<Families>,
}

#[derive(Debug)]
struct Families {
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

/// How a reconcile ended, as the label says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReconcileResult {
    Success,
    Error,
    /// A conflict: again, but nothing is wrong.
    Requeue,
    RequeueAfter,
}

/// The series of one controller name. When the last one is dropped they are gone.
#[derive(Debug)]
pub(super) struct Series {
    name: ControllerName,
    families: Arc<Families>,
    results: [Counter; 4],
    pub(super) errors: Counter,
    pub(super) terminal: Counter,
    pub(super) panics: Counter,
    pub(super) timeouts: Counter,
    pub(super) time: Histogram,
    pub(super) max_concurrent: Gauge,
    pub(super) active: Gauge,
    queue: QueueSeries,
    depth: Mutex<Vec<(i32, Gauge)>>,
    probe: Mutex<Option<Weak<dyn WorkProbe>>>,
}

#[derive(Clone, Debug)]
struct QueueSeries {
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
}

/// Where one queue reports to; the default reports nowhere.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueMetrics(Option<Arc<Series>>);

/// A queue that is asked for its unfinished work when somebody scrapes, rather than telling it
/// twice a second to nobody.
pub(super) trait WorkProbe: Send + Sync {
    /// Seconds spent so far on what is worked on now: in sum, and the longest.
    fn unfinished(&self) -> (f64, f64);
}

impl ControllerMetrics {
    /// Registers the families. Once per registry: a family registered twice is exported twice.
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
            "Reconciles that failed and are not repeated",
            Box::new(families.terminal.clone()),
        );
        add(
            "controller_runtime_reconcile_panics",
            "Reconciles and handlers that panicked",
            Box::new(families.panics.clone()),
        );
        add(
            "controller_runtime_reconcile_timeouts",
            "Reconciles that outlasted the reconcile timeout",
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
            "Time that a worker has a request in its hands",
            Box::new(families.work_duration.clone()),
        );
        registry.register_collector(Box::new(Unfinished(Arc::clone(families))));
    }

    /// How many requests of a controller are ready and wait for a worker; none when no controller
    /// has that name.
    pub fn queue_depth(&self, name: &ControllerName) -> Option<u64> {
        let series = self.families.live().get(name).and_then(Weak::upgrade)?;
        let depth = series.depth.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = depth.iter().map(|(_, gauge)| gauge.get()).sum::<i64>();
        Some(u64::try_from(ready).unwrap_or_default())
    }

    /// The series of a controller name, shared by all controllers of this name.
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

impl Default for Families {
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

impl Families {
    fn live(&self) -> MutexGuard<'_, HashMap<ControllerName, Weak<Series>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Series {
    fn new(name: &ControllerName, families: Arc<Families>) -> Self {
        let controller = ControllerLabels { controller: name.as_str().into() };
        let queue = QueueLabels {
            name: Arc::clone(&controller.controller),
            controller: Arc::clone(&controller.controller),
        };
        Self {
            name: name.clone(),
            results: ReconcileResult::ALL.map(|result| {
                families.reconcile_total.get_or_create_owned(&ResultLabels {
                    controller: Arc::clone(&controller.controller),
                    result,
                })
            }),
            errors: families.errors.get_or_create_owned(&controller),
            terminal: families.terminal.get_or_create_owned(&controller),
            panics: families.panics.get_or_create_owned(&controller),
            timeouts: families.timeouts.get_or_create_owned(&controller),
            time: families.time.get_or_create_owned(&controller),
            max_concurrent: families.max_concurrent.get_or_create_owned(&controller),
            active: families.active.get_or_create_owned(&controller),
            queue: QueueSeries {
                adds: families.adds.get_or_create_owned(&queue),
                retries: families.retries.get_or_create_owned(&queue),
                queue_duration: families.queue_duration.get_or_create_owned(&queue),
                work_duration: families.work_duration.get_or_create_owned(&queue),
            },
            depth: Mutex::default(),
            probe: Mutex::default(),
            families,
        }
    }

    pub(super) fn reconciled(&self, result: ReconcileResult) {
        self.results[result as usize].inc();
    }

    /// Where the queue of the current epoch reports to.
    pub(super) fn queue(self: &Arc<Self>) -> QueueMetrics {
        QueueMetrics(Some(Arc::clone(self)))
    }

    pub(super) fn watch_work(&self, probe: Weak<dyn WorkProbe>) {
        *self.probe.lock().unwrap_or_else(PoisonError::into_inner) = Some(probe);
    }

    fn unfinished(&self) -> (f64, f64) {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        probe.and_then(|probe| probe.upgrade()).map_or((0.0, 0.0), |queue| queue.unfinished())
    }

    fn depth(&self, priority: i32) -> Gauge {
        let mut depth = self.depth.lock().unwrap_or_else(PoisonError::into_inner);
        match depth.iter().find(|(known, _)| *known == priority) {
            Some((_, gauge)) => gauge.clone(),
            None => {
                let labels = self.depth_labels(priority);
                let gauge = self.families.depth.get_or_create_owned(&labels);
                depth.push((priority, gauge.clone()));
                gauge
            }
        }
    }

    fn depth_labels(&self, priority: i32) -> DepthLabels {
        let name: Arc<str> = self.name.as_str().into();
        DepthLabels { controller: Arc::clone(&name), name, priority }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let families = &self.families;
        let depth = std::mem::take(self.depth.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut live = families.live();
        if let Some(successor) = live.get(&self.name).and_then(Weak::upgrade) {
            // A controller of this name that was built just now goes on with the same series.
            let mut known = successor.depth.lock().unwrap_or_else(PoisonError::into_inner);
            for (priority, gauge) in depth {
                if known.iter().all(|(other, _)| *other != priority) {
                    known.push((priority, gauge));
                }
            }
            drop(known);
            // Dropping the last one takes the same lock.
            drop(live);
            return;
        }
        live.remove(&self.name);
        let name: Arc<str> = self.name.as_str().into();
        for result in ReconcileResult::ALL {
            families
                .reconcile_total
                .remove(&ResultLabels { controller: Arc::clone(&name), result });
        }
        for (priority, _) in depth {
            families.depth.remove(&self.depth_labels(priority));
        }
        let controller = ControllerLabels { controller: Arc::clone(&name) };
        for family in [&families.errors, &families.terminal, &families.panics, &families.timeouts] {
            family.remove(&controller);
        }
        families.time.remove(&controller);
        families.max_concurrent.remove(&controller);
        families.active.remove(&controller);
        let queue = QueueLabels { controller: Arc::clone(&name), name };
        families.adds.remove(&queue);
        families.retries.remove(&queue);
        families.queue_duration.remove(&queue);
        families.work_duration.remove(&queue);
        drop(live);
    }
}

impl QueueMetrics {
    /// A key became ready.
    pub(super) fn added(&self) {
        if let Some(series) = &self.0 {
            series.queue.adds.inc();
        }
    }

    /// A key was added with a delay.
    pub(super) fn retried(&self) {
        if let Some(series) = &self.0 {
            series.queue.retries.inc();
        }
    }

    /// A ready key is at this priority now.
    pub(super) fn entered(&self, priority: i32) {
        if let Some(series) = &self.0 {
            series.depth(priority).inc();
        }
    }

    /// A ready key is no more at this priority.
    pub(super) fn left(&self, priority: i32) {
        if let Some(series) = &self.0 {
            series.depth(priority).dec();
        }
    }

    pub(super) fn queued_for(&self, time: Duration) {
        if let Some(series) = &self.0 {
            series.queue.queue_duration.observe(time.as_secs_f64());
        }
    }

    pub(super) fn worked_for(&self, time: Duration) {
        if let Some(series) = &self.0 {
            series.queue.work_duration.observe(time.as_secs_f64());
        }
    }
}

impl ReconcileResult {
    const ALL: [Self; 4] = [Self::Success, Self::Error, Self::Requeue, Self::RequeueAfter];
}

impl EncodeLabelValue for ReconcileResult {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let value = match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        };
        EncodeLabelValue::encode(&value, encoder)
    }
}

/// Encodes the gauges that are worked out when somebody looks.
#[derive(Debug)]
struct Unfinished(Arc<Families>);

impl Collector for Unfinished {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Collected before any is dropped: dropping the last one takes the same lock.
        let mut live: Vec<_> = self.0.live().values().filter_map(Weak::upgrade).collect();
        live.sort_by(|one, other| one.name.cmp(&other.name));
        let rows: Vec<_> =
            live.iter().map(|series| (series.name.clone(), series.unfinished())).collect();
        for (name, help, longest) in [
            (
                "workqueue_unfinished_work_seconds",
                "Time spent so far on all requests that are worked on now",
                false,
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "Time spent so far on the request that is worked on longest",
                true,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (controller, (sum, max)) in &rows {
                let labels = QueueLabels {
                    name: controller.as_str().into(),
                    controller: controller.as_str().into(),
                };
                let gauge = ConstGauge::new(if longest { *max } else { *sum });
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Lets families of several types go through one list.
trait RegisterIn {
    fn register_in(self: Box<Self>, registry: &mut Registry, name: &str, help: &str);
}

impl<M: prometheus_client::registry::Metric> RegisterIn for M {
    fn register_in(self: Box<Self>, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, *self);
    }
}

fn reconcile_time() -> Histogram {
    // controller-runtime's, so that its dashboards fit.
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8,
        0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0,
        15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
    ])
}

fn queue_time() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}
