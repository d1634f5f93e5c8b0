//! Series of one hook, from its first user to its last.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};
use tokio::time::Instant;

use super::{
    CallLabels, CallOutcome, ConnectEvent, ConnectLabels, Families, HookDurationLabels,
    HookRequestLabels, HookTasks, SeriesKey, SeriesLabels,
};

/// Series of one hook.
pub(crate) struct HookSeries {
    families: Arc<Families>,
    key: SeriesKey,
    handles: Handles,
}

/// Metrics of a call, which are looked up once: a look-up hashes and copies the labels.
#[derive(Default)]
struct Handles {
    in_flight: OnceLock<Gauge>,
    duration: OnceLock<Histogram>,
    requests: Mutex<Vec<(StatusCode, Counter)>>,
    answered: OnceLock<Counter>,
    unchanged: OnceLock<Counter>,
}

/// Call in progress.
pub(crate) struct CallTimer<'a> {
    series: &'a HookSeries,
    since: Instant,
}

/// Call of a hook, counted as cancelled unless its outcome is set.
pub(crate) struct CountedCall<'a> {
    series: &'a HookSeries,
    outcome: CallOutcome,
}

impl CountedCall<'_> {
    /// Counts the call with its outcome.
    pub(crate) fn end(mut self, outcome: CallOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        let Self { series, outcome } = self;
        let counter = || series.families.calls.get_or_create_owned(&series.calls(*outcome));
        if *outcome == CallOutcome::Answered {
            series.handles.answered.get_or_init(counter).inc();
        } else {
            counter().inc();
        }
    }
}

impl HookSeries {
    /// Returns the first or a further user of the series.
    pub(super) fn new(families: Arc<Families>, key: SeriesKey) -> Self {
        families.users().entry(key.clone()).or_default().count += 1;
        Self { families, key, handles: Handles::default() }
    }

    /// Starts a call that is counted with its outcome.
    pub(crate) fn call(&self) -> CountedCall<'_> {
        CountedCall { series: self, outcome: CallOutcome::Cancelled }
    }

    /// Counts a sync that ended with the response, since nothing had changed.
    pub(crate) fn unchanged_sync(&self) {
        let counter = || self.families.unchanged.get_or_create_owned(&self.key.labels);
        self.handles.unchanged.get_or_init(counter).inc();
    }

    /// Returns another user of the series, which keeps it.
    pub(crate) fn unregistered_copy(&self) -> Self {
        Self::new(self.families.clone(), self.key.clone())
    }

    /// Sets the gauges of rollouts: the number of parents, and the time of the last progress of the
    /// one that has waited longest.
    pub(crate) fn rollouts(&self, pending: usize, since: Option<Timestamp>) {
        let labels = &self.key.labels;
        let pending = i64::try_from(pending).unwrap_or(i64::MAX);
        self.families.pending_rollouts.get_or_create(labels).set(pending);
        let since = since.map_or(0, |since| since.as_second());
        self.families.rollout_since.get_or_create(labels).set(since);
    }

    fn calls(&self, outcome: CallOutcome) -> CallLabels {
        let SeriesKey { kind, labels } = self.key.clone();
        let SeriesLabels { controller_name, controller_type, url } = labels;
        let (hook, outcome) = (kind.word(), outcome.word());
        CallLabels { controller_name, controller_type, url, hook, outcome }
    }

    /// Starts the measurement of a call.
    pub(crate) fn begin(&self) -> CallTimer<'_> {
        self.in_flight().inc();
        CallTimer { series: self, since: Instant::now() }
    }

    fn in_flight(&self) -> &Gauge {
        let SeriesKey { kind, labels } = &self.key;
        let gauge = || self.families.of(*kind).in_flight.get_or_create_owned(labels);
        self.handles.in_flight.get_or_init(gauge)
    }

    fn duration(&self) -> &Histogram {
        let durations = &self.families.of(self.key.kind).durations;
        self.handles.duration.get_or_init(|| durations.get_or_create_owned(&self.durations()))
    }

    /// Counts a response with its status.
    fn responded(&self, status: StatusCode) {
        let mut known = self.handles.requests.lock();
        if let Some((_, counter)) = known.iter().find(|(code, _)| *code == status) {
            counter.inc();
            return;
        }
        let code = status.as_str();
        let requests = &self.families.of(self.key.kind).requests;
        let counter = requests.get_or_create_owned(&self.requests(code));
        counter.inc();
        known.push((status, counter));
        drop(known);
        if let Some(users) = self.families.users().get_mut(&self.key) {
            users.codes.insert(code.to_owned());
        }
    }

    /// Returns the gauge of the tasks that drive its connections.
    pub(in crate::meta) fn tasks(&self) -> HookTasks {
        self.families.tasks.of(self.key.labels.clone())
    }

    /// Counts an event of a connection, with the time since the connection was begun.
    pub(in crate::meta) fn connecting(&self, event: ConnectEvent, since: Duration) {
        let families = self.families.of(self.key.kind);
        let family = families.connecting(event);
        family.get_or_create(&self.connect_labels(event)).observe(since.as_secs_f64());
    }

    fn connect_labels(&self, event: ConnectEvent) -> ConnectLabels {
        let SeriesLabels { controller_name, controller_type, url } = self.key.labels.clone();
        ConnectLabels { controller_name, controller_type, url, event: event.word() }
    }

    fn durations(&self) -> HookDurationLabels {
        let SeriesLabels { controller_name, controller_type, url } = self.key.labels.clone();
        HookDurationLabels { controller_name, controller_type, url, method: "post".to_owned() }
    }

    fn requests(&self, code: &str) -> HookRequestLabels {
        let SeriesLabels { controller_name, controller_type, url } = self.key.labels.clone();
        HookRequestLabels {
            controller_name,
            controller_type,
            url,
            method: "post".to_owned(),
            code: code.to_owned(),
        }
    }
}

impl CallTimer<'_> {
    /// Ends the measurement with the status of the response, if there is one.
    pub(crate) fn end(self, status: Option<StatusCode>) {
        let Some(status) = status else { return };
        self.series.duration().observe(self.since.elapsed().as_secs_f64());
        self.series.responded(status);
    }
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        // An abandoned call is counted down as well.
        self.series.in_flight().dec();
    }
}

impl Drop for HookSeries {
    fn drop(&mut self) {
        let mut users = self.families.users();
        let Some(entry) = users.get_mut(&self.key) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            let families = self.families.of(self.key.kind);
            for code in std::mem::take(&mut entry.codes) {
                families.requests.remove(&self.requests(&code));
            }
            for outcome in CallOutcome::ALL {
                self.families.calls.remove(&self.calls(outcome));
            }
            families.durations.remove(&self.durations());
            for event in ConnectEvent::ALL {
                families.connecting(event).remove(&self.connect_labels(event));
            }
            families.in_flight.remove(&self.key.labels);
            users.remove(&self.key);
            // The hooks of a controller at one URL share this series.
            if !users.keys().any(|key| key.labels == self.key.labels) {
                self.families.unchanged.remove(&self.key.labels);
                self.families.pending_rollouts.remove(&self.key.labels);
                self.families.rollout_since.remove(&self.key.labels);
            }
        }
    }
}

impl fmt::Debug for HookSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HookSeries").field(&self.key).finish()
    }
}
