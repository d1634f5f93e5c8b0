//! APIService header: the server behind a group version.

use std::sync::Arc;

use serde::Deserialize;

use super::{
    raw::{Conditions, Raw, RawCondition},
    watch::WatchedType,
};

/// Group that the aggregator serves itself; the only group without an APIService.
pub(super) const AGGREGATOR: &str = "apiregistration.k8s.io";

/// The header of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiServiceHeader {
    pub(super) group: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) backend: Backend,
}

/// Server behind a group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// The API server itself, since its start.
    BuiltIn,
    /// The API server, for CRDs. The CRDs are watched: they carry more, and arrive earlier.
    Crds,
    /// Another server.
    Aggregated {
        /// uid of the APIService.
        uid: Arc<str>,
        /// `namespace/name:port`. A change triggers a new discovery request.
        service: String,
        /// Condition `Available`; `None` until it is set.
        available: Option<bool>,
    },
}

impl Backend {
    /// Returns whether the types of this group version come from discovery instead of from CRDs.
    pub(super) fn is_discovered(&self) -> bool {
        !matches!(self, Self::Crds)
    }

    /// Returns whether the condition `Available` proves that requests fail.
    pub(super) fn is_down(&self) -> bool {
        matches!(self, Self::Aggregated { available: Some(false), .. })
    }
}

/// Fields that are read from an APIService's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawApiServiceSpec {
    group: String,
    version: String,
    service: Option<RawService>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RawService {
    namespace: String,
    name: String,
    port: Option<u32>,
}

/// Fields that are read from an APIService's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawApiServiceStatus {
    conditions: Conditions,
}

impl WatchedType for ApiServiceHeader {
    type Spec = RawApiServiceSpec;
    type Status = RawApiServiceStatus;

    const PATH: &'static str = "/apis/apiregistration.k8s.io/v1/apiservices";
    const RESOURCE: &'static str = "apiservices.apiregistration.k8s.io";

    fn reduced(raw: Raw<RawApiServiceSpec, RawApiServiceStatus>) -> Self {
        // Set by the API server on the APIServices that it creates: `onstart` for built-in group
        // versions, `true` for those that follow CRDs.
        const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
        let backend = match raw.spec.service {
            Some(service) => Backend::Aggregated {
                uid: raw.metadata.uid.as_str().into(),
                service: format!(
                    "{}/{}:{}",
                    service.namespace,
                    service.name,
                    service.port.unwrap_or(443)
                ),
                available: raw
                    .status
                    .as_ref()
                    .and_then(|status| status.conditions.get("Available"))
                    .map(RawCondition::is_true),
            },
            None if raw.metadata.label(AUTOMANAGED) == Some("onstart") => Backend::BuiltIn,
            None => Backend::Crds,
        };
        Self { group: raw.spec.group.into(), version: raw.spec.version.into(), backend }
    }
}
