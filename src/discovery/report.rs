//! Reports of the registry: one per type, and the health of its sources.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::TypePhase;
use crate::kind::Scope;

/// Origin of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Origin {
    /// A CRD.
    Crd,
    /// The API server itself.
    BuiltIn,
    /// A server behind an APIService.
    Aggregated,
    /// Listed by discovery; its CRD or APIService may not be read.
    Discovery,
    /// No origin: the type is only requested.
    Nowhere,
}

/// Row of `pilotlight types`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeReport {
    /// `widgets.example.com`; a type that is only requested is named with its version or kind.
    pub name: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, if it is known.
    pub kind: Option<String>,
    /// `Cluster` or `Namespaced`, if it is known.
    pub scope: Option<Scope>,
    /// State of the type, without details.
    pub state: TypePhase,
    /// Sentence that explains why it is not served.
    pub reason: Option<String>,
    /// Time since which the state holds.
    pub since: Timestamp,
    /// Versions that are served, the best one first.
    pub served_versions: Vec<String>,
    /// Origin of the type.
    pub origin: Origin,
    /// uid of its CRD or APIService.
    pub uid: Option<String>,
    /// Number of conditions, lookups and informers that watch this type.
    pub subscribers: usize,
}

/// Health of the registry's sources.
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

/// Health of a source. While it is stale, its last state stands and stops no controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceHealth {
    /// Time since which the source is stale; `None` if it is current.
    pub stale_since: Option<Timestamp>,
    /// The last error.
    pub error: Option<String>,
}

impl DiscoveryHealth {
    /// Creates the health of sources that have not been read.
    pub(super) fn new(now: Timestamp) -> Self {
        let source = SourceHealth { stale_since: Some(now), error: None };
        Self { crds: source.clone(), api_services: source.clone(), discovery: source }
    }

    /// Returns whether discovery has answered, and each other source has answered or failed.
    pub(super) fn has_read_all(&self) -> bool {
        let tried = |source: &SourceHealth| source.stale_since.is_none() || source.error.is_some();
        self.discovery.stale_since.is_none() && tried(&self.crds) && tried(&self.api_services)
    }

    /// Returns whether all sources are current.
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
