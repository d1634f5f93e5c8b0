//! Metrics of discovery.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Counters and gauges; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    pub(super) types: Family<TypeStateLabel, Gauge>,
    pub(super) watch_failures: Family<ResourceLabel, Counter>,
    pub(super) requests: Family<OutcomeLabel, Counter>,
    pub(super) updates: Counter,
}

/// State of a type, as a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TypeStateLabel {
    pub(super) state: &'static str,
}

/// Watched resource, as a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResourceLabel {
    pub(super) resource: &'static str,
}

/// Outcome of a discovery request, as a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabel {
    pub(super) outcome: RequestOutcome,
}

/// Outcome of a discovery request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values, which are snake_case")]
pub(super) enum RequestOutcome {
    complete,
    partial,
    failed,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("pilotlight_types", "Known API types, by state", self.types.clone());
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
            "Evaluations of the known types; a burst of changes counts once",
            self.updates.clone(),
        );
    }
}
