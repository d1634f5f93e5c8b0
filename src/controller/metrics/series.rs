//! Series of one controller name, from the first controller of that name to the last.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
};

use super::{ControllerFamilies, ControllerLabels, DepthLabels, QueueLabels, ResultLabels};
use crate::{
    controller::inputs::statuses::InputStatuses, informer::CacheShare, manager::ControllerName,
};

/// Number of priorities from which on depths of 0 are removed. A program has few at once.
const KEPT_DEPTHS: usize = 32;

/// Result of a reconcile, a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::controller) enum ReconcileResult {
    Success,
    Error,
    /// Conflict or throttling: requeued without counting as an error.
    Requeue,
    RequeueAfter,
}

/// Series of one controller name; removed when the last handle is dropped.
#[derive(Debug)]
pub(in crate::controller) struct Series {
    pub(super) name: ControllerName,
    families: Arc<ControllerFamilies>,
    results: [Counter; 4],
    pub(in crate::controller) errors: Counter,
    pub(in crate::controller) terminal: Counter,
    pub(in crate::controller) panics: Counter,
    pub(in crate::controller) timeouts: Counter,
    pub(in crate::controller) time: Histogram,
    pub(in crate::controller) max_concurrent: Gauge,
    pub(in crate::controller) active: Gauge,
    queue: QueueSeries,
    depths: Mutex<Depths>,
    // Queues of the current epoch, and of older epochs whose queue still exists.
    probes: Mutex<Vec<Weak<dyn WorkProbe>>>,
    // Inputs of the current epoch, if any.
    inputs: Mutex<Weak<InputStatuses>>,
}

/// Numbers of ready keys by priority.
#[derive(Debug, Default)]
struct Depths {
    by_priority: BTreeMap<i32, Gauge>,
    /// Number of priorities at which the next one removes those that no ready key has.
    sweep_at: usize,
}

#[derive(Clone, Debug)]
struct QueueSeries {
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
}

/// Metrics of one queue; the default records nothing.
#[derive(Clone, Debug, Default)]
pub(in crate::controller) struct QueueMetrics(Option<Arc<Series>>);

/// Queue whose work is read at each scrape. client-go computes it twice a second instead.
pub(in crate::controller) trait WorkProbe: Send + Sync {
    fn work(&self) -> QueueWork;
}

/// Work of a queue at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::controller) struct QueueWork {
    /// Seconds spent so far on all keys in processing.
    pub(in crate::controller) unfinished: f64,
    /// Seconds spent so far on the key that is longest in processing.
    pub(in crate::controller) longest: f64,
    /// Number of delayed keys.
    pub(in crate::controller) waiting: usize,
}

impl Series {
    pub(super) fn new(name: &ControllerName, families: Arc<ControllerFamilies>) -> Self {
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
            depths: Mutex::default(),
            probes: Mutex::default(),
            inputs: Mutex::default(),
            families,
        }
    }

    pub(in crate::controller) fn reconciled(&self, result: ReconcileResult) {
        self.results[result as usize].inc();
    }

    /// Returns the metrics for the queue of an epoch.
    pub(in crate::controller) fn queue(self: &Arc<Self>) -> QueueMetrics {
        QueueMetrics(Some(Arc::clone(self)))
    }

    pub(in crate::controller) fn watch_work(&self, probe: Weak<dyn WorkProbe>) {
        let mut probes = self.probes.lock();
        probes.retain(|probe| probe.strong_count() > 0);
        probes.push(probe);
    }

    /// Returns the work of all queues: several if a queue outlives its epoch.
    pub(super) fn work(&self) -> QueueWork {
        let probes = self.probes.lock().clone();
        let queues = probes.iter().filter_map(Weak::upgrade).map(|queue| queue.work());
        queues.fold(QueueWork::default(), |all, one| QueueWork {
            unfinished: all.unfinished + one.unfinished,
            longest: all.longest.max(one.longest),
            waiting: all.waiting + one.waiting,
        })
    }

    /// Sets the inputs of the current epoch, whose caches are counted.
    pub(in crate::controller) fn watch_inputs(&self, inputs: Weak<InputStatuses>) {
        *self.inputs.lock() = inputs;
    }

    /// Returns the share of the controller in its caches; none between two epochs.
    pub(super) fn share(&self) -> CacheShare {
        let inputs = self.inputs.lock().upgrade();
        inputs.map(|inputs| inputs.share()).unwrap_or_default()
    }

    /// Returns the number of ready keys, of all priorities.
    pub(super) fn ready(&self) -> i64 {
        self.depths.lock().by_priority.values().map(Gauge::get).sum()
    }

    /// Changes the depth of a priority by this number. Under the lock, so that no depth is removed
    /// meanwhile.
    fn change_depth(&self, priority: i32, by: i64) {
        let mut depths = self.depths.lock();
        if let Some(gauge) = depths.by_priority.get(&priority) {
            gauge.inc_by(by);
            return;
        }
        self.sweep(&mut depths);
        let gauge = self.families.depth.get_or_create_owned(&self.depth_labels(priority));
        gauge.inc_by(by);
        depths.by_priority.insert(priority, gauge);
    }

    /// Removes the depths that are 0 if there may be many: a program may have any number of
    /// priorities, one after the other.
    fn sweep(&self, depths: &mut Depths) {
        let Depths { by_priority, sweep_at } = depths;
        if by_priority.len() < (*sweep_at).max(KEPT_DEPTHS) {
            return;
        }
        by_priority.retain(|priority, gauge| {
            let is_used = gauge.get() != 0;
            if !is_used {
                self.families.depth.remove(&self.depth_labels(*priority));
            }
            is_used
        });
        // Each removal is paid by an insertion.
        *sweep_at = 2 * by_priority.len();
    }

    fn depth_labels(&self, priority: i32) -> DepthLabels {
        let name: Arc<str> = self.name.as_str().into();
        DepthLabels { controller: Arc::clone(&name), name, priority }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let families = &self.families;
        let Depths { by_priority, .. } = std::mem::take(self.depths.get_mut());
        let mut live = families.live();
        if let Some(successor) = live.get(&self.name).and_then(Weak::upgrade) {
            // A controller of this name was built in between and uses the same series.
            for priority in by_priority.into_keys() {
                // Creates the entry of the successor, which removes the series.
                successor.change_depth(priority, 0);
            }
            // Unlocked before `successor` is dropped: dropping the last handle takes the lock.
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
        for priority in by_priority.into_keys() {
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
    /// Returns whether the queue has metrics.
    pub(in crate::controller) fn are_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Counts a key that became ready.
    pub(in crate::controller) fn added(&self) {
        if let Some(series) = &self.0 {
            series.queue.adds.inc();
        }
    }

    /// Counts a key that was added with a delay.
    pub(in crate::controller) fn retried(&self) {
        if let Some(series) = &self.0 {
            series.queue.retries.inc();
        }
    }

    /// Counts a ready key at this priority.
    pub(in crate::controller) fn entered(&self, priority: i32) {
        if let Some(series) = &self.0 {
            series.change_depth(priority, 1);
        }
    }

    /// Stops counting a ready key at this priority.
    pub(in crate::controller) fn left(&self, priority: i32) {
        if let Some(series) = &self.0 {
            series.change_depth(priority, -1);
        }
    }

    pub(in crate::controller) fn queued_for(&self, time: Duration) {
        if let Some(series) = &self.0 {
            series.queue.queue_duration.observe(time.as_secs_f64());
        }
    }

    pub(in crate::controller) fn worked_for(&self, time: Duration) {
        if let Some(series) = &self.0 {
            series.queue.work_duration.observe(time.as_secs_f64());
        }
    }
}

impl ReconcileResult {
    const ALL: [Self; 4] = [Self::Success, Self::Error, Self::Requeue, Self::RequeueAfter];
}

impl EncodeLabelValue for ReconcileResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        let value = match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        };
        EncodeLabelValue::encode(&value, encoder)
    }
}
