//! Metrics of requests to the API server, under client-go's names.

use std::{
    fmt::Write,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tower::{BoxError, Service};

use super::body::ResponseBody;
use crate::owner_gauge::{OwnerGauge, Part};

/// Buckets of the duration in seconds; client-go's.
const BUCKETS: [f64; 11] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];

/// Metrics `rest_client_requests_total`, `rest_client_request_duration_seconds` and
/// `pilotlight_connection_tasks`. Cheap to clone; clones share their counts.
#[derive(Clone, Debug)]
pub struct TransportMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
    tasks: OwnerGauge<HostLabels>,
}

impl Default for TransportMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            tasks: OwnerGauge::default(),
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
            "Time until the headers of the answer, by method and host",
            self.duration.clone(),
        );
        registry.register(
            "pilotlight_connection_tasks",
            "Live tasks that drive connections to the API server, by host",
            self.tasks.clone(),
        );
    }

    /// Gauge of the tasks of the connections to a host.
    pub(super) fn tasks(&self, host: &Arc<str>) -> Part<HostLabels> {
        self.tasks.of(HostLabels { host: host.clone() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HostLabels {
    host: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: Code,
    method: Verb,
    host: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: Verb,
    host: Arc<str>,
}

/// Status code, or `<error>` as client-go writes it if there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Code(Option<u16>);

impl EncodeLabelValue for Code {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        match self.0 {
            Some(code) => write!(encoder, "{code}"),
            None => encoder.write_str("<error>"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Verb(Method);

impl EncodeLabelValue for Verb {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0.as_str())
    }
}

/// Middleware that counts requests and their duration.
#[derive(Clone, Debug)]
pub(super) struct Metered<S> {
    inner: S,
    metrics: TransportMetrics,
    host: Arc<str>,
}

impl<S> Metered<S> {
    pub(super) fn new(inner: S, metrics: TransportMetrics, host: &str) -> Self {
        Self { inner, metrics, host: host.into() }
    }
}

impl<S, B> Service<Request<B>> for Metered<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let verb = Verb(request.method().clone());
        let (metrics, host) = (self.metrics.clone(), self.host.clone());
        let began = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = Code(answer.as_ref().ok().map(|response| response.status().as_u16()));
            metrics
                .duration
                .get_or_create(&DurationLabels { verb: verb.clone(), host: host.clone() })
                .observe(began.elapsed().as_secs_f64());
            metrics.requests.get_or_create(&RequestLabels { code, method: verb, host }).inc();
            answer
        })
    }
}
