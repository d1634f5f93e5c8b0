//! Metrics of the manager. Series belong to a runnable's name and are removed with it.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::{ControllerName, ControllerState, Epoch};
use crate::owner_gauge::{CountGuard, OwnerGauge, TasksGuard};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabel {
    controller: String,
}

/// Labels of a gauge: a runnable and a kind of task or timer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OwnedLabels {
    controller: String,
    kind: &'static str,
}

/// Counts of the tasks of one epoch.
pub(super) type EpochTasks = (CountGuard<OwnedLabels>, [TasksGuard<OwnedLabels>; 3]);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerStateLabels {
    controller: String,
    state: &'static str,
}

type Histograms = Family<NameLabel, Histogram, fn() -> Histogram>;

/// Metrics of one manager; register them once.
#[derive(Clone, Debug)]
pub struct ManagerMetrics {
    state: Family<ControllerStateLabels, Gauge>,
    epoch: Family<NameLabel, Gauge>,
    failures: Family<NameLabel, Counter>,
    panics: Family<NameLabel, Counter>,
    start: Histograms,
    stop: Histograms,
    tasks: OwnerGauge<OwnedLabels>,
    timers: OwnerGauge<OwnedLabels>,
}

impl Default for ManagerMetrics {
    fn default() -> Self {
        // Buckets from 1 ms to about 65 s.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        Self {
            state: Family::default(),
            epoch: Family::default(),
            failures: Family::default(),
            panics: Family::default(),
            start: Family::new_with_constructor(histogram),
            stop: Family::new_with_constructor(histogram),
            tasks: OwnerGauge::default(),
            timers: OwnerGauge::default(),
        }
    }
}

impl ManagerMetrics {
    /// Registers the metrics with a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pilotlight_controller_state",
            "1 for the state that a controller is in",
            self.state.clone(),
        );
        registry.register(
            "pilotlight_controller_epoch",
            "The current or last epoch of a controller",
            self.epoch.clone(),
        );
        registry.register(
            "pilotlight_controller_run_failures",
            "Runs that ended with an error or a panic",
            self.failures.clone(),
        );
        registry.register(
            "pilotlight_controller_task_panics",
            "Tasks of epochs that panicked",
            self.panics.clone(),
        );
        registry.register(
            "pilotlight_controller_start_duration_seconds",
            "Time from the start of an epoch until it runs",
            self.start.clone(),
        );
        registry.register(
            "pilotlight_controller_stop_duration_seconds",
            "Time from the request to stop an epoch until it is done",
            self.stop.clone(),
        );
        registry.register(
            "pilotlight_controller_tasks",
            "Live tasks: the task that drives a run (run) or prepares one (preparation), the \
             run's own tasks (epoch) and those of its clients (client)",
            self.tasks.clone(),
        );
        registry.register(
            "pilotlight_controller_timers",
            "Timers set: end of a back-off (wake), end of the grace of a stop (grace), report of \
             a stop that takes too long (overdue), retry of a preparation (retry)",
            self.timers.clone(),
        );
    }

    /// Counts a run and its tasks until the returned value is dropped at the end of the run. Tasks
    /// that outlive it stay counted.
    pub(super) fn run(&self, epoch: &Epoch) -> EpochTasks {
        let of = |kind| self.tasks.of(Self::owned(epoch.controller(), kind));
        let spawned = of("epoch").follow(epoch.tasks().tracker());
        let tracked = of("epoch").follow(epoch.tracker());
        let clients = of("client").follow(epoch.fence().clients());
        (of("run").count(), [spawned, tracked, clients])
    }

    /// Counts the task of a preparation until the returned value is dropped.
    pub(super) fn preparation(&self, name: &ControllerName) -> CountGuard<OwnedLabels> {
        self.tasks.of(Self::owned(name, "preparation")).count()
    }

    /// Counts a timer until the returned value is dropped.
    pub(super) fn timer(
        &self,
        name: &ControllerName,
        kind: &'static str,
    ) -> CountGuard<OwnedLabels> {
        self.timers.of(Self::owned(name, kind)).count()
    }

    pub(super) fn entered(
        &self,
        name: &ControllerName,
        from: ControllerState,
        to: ControllerState,
    ) {
        if from != to {
            self.state.remove(&Self::state(name, from));
        }
        self.state.get_or_create(&Self::state(name, to)).set(1);
    }

    pub(super) fn epoch(&self, name: &ControllerName, epoch: u64) {
        self.epoch.get_or_create(&Self::name(name)).set(i64::try_from(epoch).unwrap_or(i64::MAX));
    }

    pub(super) fn failed(&self, name: &ControllerName) {
        self.failures.get_or_create(&Self::name(name)).inc();
    }

    /// Counter of the tasks that panic.
    pub(super) fn panics(&self, name: &ControllerName) -> Counter {
        self.panics.get_or_create(&Self::name(name)).clone()
    }

    pub(super) fn started(&self, name: &ControllerName, seconds: f64) {
        self.start.get_or_create(&Self::name(name)).observe(seconds);
    }

    pub(super) fn stopped(&self, name: &ControllerName, seconds: f64) {
        self.stop.get_or_create(&Self::name(name)).observe(seconds);
    }

    pub(super) fn removed(&self, name: &ControllerName) {
        for state in ControllerState::ALL {
            self.state.remove(&Self::state(name, state));
        }
        self.epoch.remove(&Self::name(name));
        self.failures.remove(&Self::name(name));
        self.panics.remove(&Self::name(name));
        self.start.remove(&Self::name(name));
        self.stop.remove(&Self::name(name));
    }

    fn name(name: &ControllerName) -> NameLabel {
        NameLabel { controller: name.as_str().to_owned() }
    }

    fn owned(name: &ControllerName, kind: &'static str) -> OwnedLabels {
        OwnedLabels { controller: name.as_str().to_owned(), kind }
    }

    fn state(name: &ControllerName, state: ControllerState) -> ControllerStateLabels {
        ControllerStateLabels { controller: name.as_str().to_owned(), state: state.word() }
    }
}
