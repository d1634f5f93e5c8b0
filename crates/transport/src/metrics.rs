//! Metrics of requests to the API server, under client-go's names.

use std::{fmt::Write, sync::Arc, time::Duration};

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Buckets of the duration in seconds; client-go's.
const BUCKETS: [f64; 11] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];

/// Metrics `rest_client_requests_total`, `rest_client_request_duration_seconds` and
/// `pilotlight_connection_tasks`. Cheap to clone; clones share their counts.
#[derive(Clone, Debug)]
pub struct TransportMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
    tasks: Family<HostLabels, Gauge>,
}

impl Default for TransportMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            tasks: Family::default(),
        }
    }
}

impl TransportMetrics {
    /// Registers the metrics with a registry. (The registry appends `_total` and `_seconds`.)
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Requests to the API server, by status code, method and host",
            self.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Time until the headers of the response, by method and host",
            self.duration.clone(),
        );
        registry.register(
            "pilotlight_connection_tasks",
            "Live tasks that drive connections to the API server, by host",
            self.tasks.clone(),
        );
    }

    /// Counts a request that took so long, with the status of its response, if any.
    pub(super) fn observe(
        &self,
        method: Method,
        host: Arc<str>,
        status: Option<StatusCode>,
        took: Duration,
    ) {
        let verb = VerbLabel(method);
        self.duration
            .get_or_create(&DurationLabels { verb: verb.clone(), host: host.clone() })
            .observe(took.as_secs_f64());
        let code = CodeLabel(status.map(|status| status.as_u16()));
        self.requests.get_or_create(&RequestLabels { code, method: verb, host }).inc();
    }

    /// Gauge of the tasks of the connections to a host.
    pub(super) fn tasks(&self, host: &Arc<str>) -> TaskGauge {
        TaskGauge(self.tasks.get_or_create_owned(&HostLabels { host: host.clone() }))
    }
}

/// Gauge of the live tasks of one host. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct TaskGauge(Gauge);

impl TaskGauge {
    /// Counts one more until the guard is dropped: after the end of the task, an abort or a panic.
    pub(super) fn count(&self) -> TaskGuard {
        self.0.inc();
        TaskGuard(self.0.clone())
    }
}

/// Guard that counts as one until dropped.
#[derive(Debug)]
pub(super) struct TaskGuard(Gauge);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HostLabels {
    host: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: CodeLabel,
    method: VerbLabel,
    host: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: VerbLabel,
    host: Arc<str>,
}

/// Status code, or `<error>` as client-go writes it if there was no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CodeLabel(Option<u16>);

impl EncodeLabelValue for CodeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        match self.0 {
            Some(code) => write!(encoder, "{code}"),
            None => encoder.write_str("<error>"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VerbLabel(Method);

impl EncodeLabelValue for VerbLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0.as_str())
    }
}
