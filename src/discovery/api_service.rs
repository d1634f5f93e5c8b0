//! What an APIService says of a group version: who serves it.

use std::sync::Arc;

use serde::Deserialize;

use super::{
    raw::{Condition, Conditions, Raw},
    watch::Watched,
};

/// The group that the aggregator serves by itself: of this one alone there is no APIService.
pub(super) const AGGREGATOR: &str = "apiregistration.k8s.io";

/// The header of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiService {
    pub(super) group: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) backend: Backend,
}

/// Who serves a group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// The API server itself, since its start.
    BuiltIn,
    /// The API server, on behalf of CRDs: these say more, and say it sooner.
    Crds,
    /// Another server.
    Aggregated {
        /// uid of the APIService.
        uid: Arc<str>,
        /// `namespace/name:port`: another backend is asked again.
        service: String,
        /// Its condition `Available`, once there is one.
        available: Option<bool>,
    },
}

impl Backend {
    /// Whether discovery, not CRDs, says what it serves.
    pub(super) fn is_discovered(&self) -> bool {
        !matches!(self, Self::Crds)
    }

    /// Whether it is proven that no request reaches it.
    pub(super) fn is_down(&self) -> bool {
        matches!(self, Self::Aggregated { available: Some(false), .. })
    }
}

/// What is read of an APIService's specification.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawSpec {
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

/// What is read of an APIService's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawStatus {
    conditions: Conditions,
}

impl Watched for ApiService {
    type Spec = RawSpec;
    type Status = RawStatus;

    const PATH: &'static str = "/apis/apiregistration.k8s.io/v1/apiservices";
    const RESOURCE: &'static str = "apiservices.apiregistration.k8s.io";

    fn slim(raw: Raw<RawSpec, RawStatus>) -> Self {
        // Set by the API server on those that it makes: `onstart` for what it is built with,
        // `true` for what follows the CRDs.
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
                    .map(Condition::is_true),
            },
            None if raw.metadata.label(AUTOMANAGED) == Some("onstart") => Backend::BuiltIn,
            None => Backend::Crds,
        };
        Self { group: raw.spec.group.into(), version: raw.spec.version.into(), backend }
    }
}
