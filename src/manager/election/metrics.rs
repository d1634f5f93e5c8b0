//! Metrics of an election.

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabel {
    /// Name of the lease.
    name: String,
}

type LeaseHistograms = Family<LeaseLabel, Histogram, fn() -> Histogram>;

/// Metrics of elections; register them once.
#[derive(Clone, Debug)]
pub struct ElectionMetrics {
    leads: Family<LeaseLabel, Gauge>,
    transitions: Family<LeaseLabel, Counter>,
    failures: Family<LeaseLabel, Counter>,
    renewals: LeaseHistograms,
}

/// Metrics of one election.
#[derive(Clone, Debug)]
pub(super) struct LeaseSeries {
    pub(super) leads: Gauge,
    pub(super) transitions: Counter,
    pub(super) failures: Counter,
    pub(super) renewals: Histogram,
}

impl Default for ElectionMetrics {
    fn default() -> Self {
        // Buckets from 1 ms to about 8 s.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 14));
        Self {
            leads: Family::default(),
            transitions: Family::default(),
            failures: Family::default(),
            renewals: Family::new_with_constructor(histogram),
        }
    }
}

impl ElectionMetrics {
    /// Registers the metrics with a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "leader_election_master_status",
            "1 if this process holds the lease, else 0; the name is that of client-go",
            self.leads.clone(),
        );
        registry.register(
            "pilotlight_leader_election_transitions",
            "Times that this process began or ceased to lead",
            self.transitions.clone(),
        );
        registry.register(
            "pilotlight_leader_election_failures",
            "Requests about the lease that failed, conflicts aside",
            self.failures.clone(),
        );
        registry.register(
            "pilotlight_leader_election_renew_duration_seconds",
            "Time from the sending of a renewal or acquisition until it was answered",
            self.renewals.clone(),
        );
    }

    pub(super) fn of(&self, name: &str) -> LeaseSeries {
        let label = LeaseLabel { name: name.to_owned() };
        LeaseSeries {
            leads: self.leads.get_or_create_owned(&label),
            transitions: self.transitions.get_or_create_owned(&label),
            failures: self.failures.get_or_create_owned(&label),
            renewals: self.renewals.get_or_create_owned(&label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_the_lease_has_the_name_and_label_of_client_go() {
        let (metrics, mut registry) = (ElectionMetrics::default(), Registry::default());
        metrics.register(&mut registry);

        metrics.of("metacontroller").leads.set(1);

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = "\nleader_election_master_status{name=\"metacontroller\"} 1\n";
        assert!(text.contains(series), "{text}");
    }
}
