//! What people are shown of the registry.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::TypePhase;
use crate::kind::Scope;

/// Where a type comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Origin {
    /// A CRD.
    Crd,
    /// The API server itself.
    BuiltIn,
    /// A server behind an APIService.
    Aggregated,
    /// Discovery lists it; what serves it may not be read.
    Discovery,
    /// Nobody: it is only asked for.
    Nowhere,
}

/// One row of `pilotlight types`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeReport {
    /// `widgets.example.com`; with a version or by kind if it is only asked for so.
    pub name: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, if it is known.
    pub kind: Option<String>,
    /// `Cluster` or `Namespaced`, if it is known.
    pub scope: Option<Scope>,
    /// Where it is in its life.
    pub state: TypePhase,
    /// Why it is not served: one sentence.
    pub reason: Option<String>,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Versions that are served, the best one first.
    pub served_versions: Vec<String>,
    /// Where it comes from.
    pub origin: Origin,
    /// uid of its CRD or APIService.
    pub uid: Option<String>,
    /// Number of conditions, lookups and informers that watch this row.
    pub subscribers: usize,
}

/// Whether what the registry learns is current.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHealth {
    /// The watch of CRDs.
    pub crds: SourceHealth,
    /// The watch of APIServices.
    pub api_services: SourceHealth,
    /// The requests to discovery.
    pub discovery: SourceHealth,
}

/// Whether one source is current. While it is not, its last state stands: nothing stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceHealth {
    /// Since when it is not current; none if it is.
    pub stale_since: Option<Timestamp>,
    /// The last error.
    pub error: Option<String>,
}

impl DiscoveryHealth {
    /// Nothing was read yet.
    pub(super) fn new(now: Timestamp) -> Self {
        let source = SourceHealth { stale_since: Some(now), error: None };
        Self { crds: source.clone(), api_services: source.clone(), discovery: source }
    }

    /// Whether discovery has answered and every other source has, or has failed to.
    pub(super) fn has_read_all(&self) -> bool {
        let heard = |source: &SourceHealth| source.stale_since.is_none() || source.error.is_some();
        self.discovery.stale_since.is_none() && heard(&self.crds) && heard(&self.api_services)
    }

    /// Whether all sources are current.
    pub fn is_current(&self) -> bool {
        [&self.crds, &self.api_services, &self.discovery].iter().all(|s| s.stale_since.is_none())
    }
}

impl SourceHealth {
    pub(super) fn current(&mut self) {
        *self = Self { stale_since: None, error: None };
    }

    pub(super) fn failed(&mut self, error: String, now: Timestamp) {
        self.stale_since.get_or_insert(now);
        self.error = Some(error);
    }
}
