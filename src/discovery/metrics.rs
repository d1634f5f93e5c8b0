//! Metrics of discovery.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Counters and gauges; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    pub(super) types: Family<State, Gauge>,
    pub(super) watch_failures: Family<Resource, Counter>,
    pub(super) requests: Family<Request, Counter>,
    pub(super) updates: Counter,
}

/// State of a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct State {
    pub(super) state: &'static str,
}

/// Watched resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Resource {
    pub(super) resource: &'static str,
}

/// A discovery request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Request {
    pub(super) outcome: Outcome,
}

/// Outcome of a discovery request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values, which are snake_case")]
pub(super) enum Outcome {
    complete,
    partial,
    failed,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "pilotlight_types",
            "API types that are known or asked for, by state",
            self.types.clone(),
        );
        registry.register(
            "pilotlight_discovery_watch_failures",
            "Failures of the watches of CRDs and APIServices, each followed by a restart",
            self.watch_failures.clone(),
        );
        registry.register(
            "pilotlight_discovery_requests",
            "Requests to discovery, by outcome",
            self.requests.clone(),
        );
        registry.register(
            "pilotlight_discovery_updates",
            "How often types were judged anew; a burst of changes counts once",
            self.updates.clone(),
        );
    }
}
