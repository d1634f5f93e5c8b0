//! CRD header: names, versions and readiness of its type, without schemas.

use std::{cmp::Reverse, sync::Arc};

use kube::core::Version;
use serde::{Deserialize, de::IgnoredAny};

use super::{
    InstallingReason, TypeState,
    raw::{Conditions, Raw, RawCondition},
    state::TypeJudgement,
    watch::WatchedType,
};
use crate::kind::{Scope, ServedType, Subresources, TypeIdentity, TypeName, VersionOrder};

/// Condition reason of a CRD that is not established because its conversion webhook's CA bundle is
/// invalid.
const INVALID_CA_BUNDLE: &str = "InvalidCABundle";

/// Header of a CRD: the fields that decide whether its type is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crd {
    pub(super) group: Arc<str>,
    pub(super) plural: Arc<str>,
    pub(super) uid: Arc<str>,
    /// Generation of the CRD: it changes with the schemas, which are not kept.
    pub(super) generation: i64,
    pub(super) scope: Scope,
    /// Names that the spec requests.
    pub(super) wanted: KindNames,
    /// Names that the server serves; `None` before it has accepted any.
    pub(super) accepted: Option<KindNames>,
    pub(super) versions: Vec<CrdVersion>,
    pub(super) readiness: CrdReadiness,
    /// True if the CRD has a deletion timestamp.
    pub(super) terminating: bool,
}

/// Kind and kind of lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KindNames {
    pub(super) kind: Arc<str>,
    pub(super) list_kind: Arc<str>,
}

impl KindNames {
    /// Returns the names of a type whose CRD is not known: discovery omits the list kind.
    pub(super) fn by_convention(kind: &Arc<str>) -> Self {
        Self { kind: kind.clone(), list_kind: format!("{kind}List").into() }
    }
}

/// A version of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CrdVersion {
    pub(super) name: Arc<str>,
    pub(super) served: bool,
    pub(super) subresources: Subresources,
}

/// Readiness of a CRD, derived from its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CrdReadiness {
    /// Served. `refused` explains which newer names are refused, if any.
    Established { refused: Option<String> },
    /// The server's message.
    NamesNotAccepted(String),
    /// The server's reason and message.
    NotEstablished(String),
    /// The server's message.
    InvalidCaBundle(String),
}

impl Crd {
    /// Returns the names that clients see.
    pub(super) fn names(&self) -> &KindNames {
        self.accepted.as_ref().unwrap_or(&self.wanted)
    }

    /// Returns both kinds: of the requested names and of the accepted ones.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Arc<str>> + '_ {
        std::iter::once(&self.wanted).chain(&self.accepted).map(|names| names.kind.clone())
    }

    /// Returns whether `name` in this group could mean this CRD.
    pub(super) fn has_name(&self, name: &TypeName) -> bool {
        match name {
            TypeName::Resource(plural) => **plural == *self.plural,
            TypeName::Kind(kind) => self.kinds().any(|own| **kind == *own),
        }
    }

    /// Returns whether the CRD serves exactly this name: decides between two CRDs that want one
    /// kind.
    pub(super) fn holds(&self, name: &TypeName) -> bool {
        matches!(self.readiness, CrdReadiness::Established { .. })
            && match name {
                TypeName::Resource(plural) => **plural == *self.plural,
                TypeName::Kind(kind) => **kind == *self.names().kind,
            }
    }

    /// Returns the served versions, the best one first.
    pub(super) fn served_versions(&self) -> Vec<String> {
        let mut served: Vec<String> =
            self.versions.iter().filter(|v| v.served).map(|v| v.name.to_string()).collect();
        served.sort_by_cached_key(|name| Reverse(Version::parse(name).priority()));
        served
    }

    /// Returns the names that the type is published with, under its uid or without one.
    pub(super) fn names_under(&self, uid: Option<&Arc<str>>) -> KindNames {
        let names = self.names();
        if uid.is_some() { names.clone() } else { KindNames::by_convention(&names.kind) }
    }

    /// Returns the judgement for a request by `name` at `version`. `uid` is the one that the type
    /// is published with: the CRD's, or none.
    pub(super) fn judge(
        &self,
        version: &str,
        name: &TypeName,
        uid: Option<&Arc<str>>,
    ) -> TypeJudgement {
        let refused = match &self.readiness {
            CrdReadiness::NamesNotAccepted(message) => {
                return TypeJudgement::installing(InstallingReason::NamesNotAccepted(
                    message.clone(),
                ));
            }
            CrdReadiness::NotEstablished(message) => {
                return TypeJudgement::installing(InstallingReason::NotEstablished(
                    message.clone(),
                ));
            }
            CrdReadiness::InvalidCaBundle(message) => {
                return TypeJudgement::installing(InstallingReason::InvalidCaBundle(
                    message.clone(),
                ));
            }
            CrdReadiness::Established { refused } => refused,
        };
        if !self.holds(name) {
            let message = refused.clone().unwrap_or_else(|| {
                format!("the server still serves the kind {}", self.names().kind)
            });
            return TypeJudgement::installing(InstallingReason::NamesNotAccepted(message));
        }
        let Some(version) = self.versions.iter().find(|v| v.served && *v.name == *version) else {
            let served = self.served_versions();
            return TypeJudgement::installing(InstallingReason::VersionNotServed { served });
        };
        let KindNames { kind, list_kind } = self.names_under(uid);
        let served = ServedType {
            identity: TypeIdentity {
                group: self.group.clone(),
                version: version.name.clone(),
                plural: self.plural.clone(),
                scope: self.scope,
                uid: uid.cloned(),
            },
            kind,
            list_kind,
            subresources: version.subresources,
            version_order: VersionOrder::Comparable,
            polled: false,
        };
        let state = if self.terminating { TypeState::Terminating } else { TypeState::Served };
        TypeJudgement { state, served: Some(Arc::new(served)) }
    }
}

/// Fields that are read from a CRD's spec; schemas are skipped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawCrdSpec {
    group: String,
    names: RawNames,
    scope: String,
    versions: Vec<RawVersion>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawNames {
    plural: String,
    kind: String,
    list_kind: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RawVersion {
    name: String,
    served: bool,
    subresources: Option<RawSubresources>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RawSubresources {
    status: Option<IgnoredAny>,
    scale: Option<IgnoredAny>,
}

/// Fields that are read from a CRD's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawCrdStatus {
    accepted_names: Option<RawNames>,
    conditions: Conditions,
}

impl RawNames {
    /// Returns `None` for empty kinds, which the server writes before it has accepted any names.
    fn names(&self) -> Option<KindNames> {
        if self.kind.is_empty() {
            return None;
        }
        let list_kind = if self.list_kind.is_empty() {
            format!("{}List", self.kind).into()
        } else {
            self.list_kind.as_str().into()
        };
        Some(KindNames { kind: self.kind.as_str().into(), list_kind })
    }
}

impl WatchedType for Crd {
    type Spec = RawCrdSpec;
    type Status = RawCrdStatus;

    const PATH: &'static str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const RESOURCE: &'static str = "customresourcedefinitions.apiextensions.k8s.io";

    fn reduced(raw: Raw<RawCrdSpec, RawCrdStatus>) -> Self {
        let status = raw.status.unwrap_or_default();
        let names_accepted = status.conditions.get("NamesAccepted");
        let refused = names_accepted.filter(|it| it.is_false()).map(RawCondition::explanation);
        let readiness = match (status.conditions.get("Established"), refused) {
            (Some(condition), refused) if condition.is_true() => {
                CrdReadiness::Established { refused }
            }
            (_, Some(message)) => CrdReadiness::NamesNotAccepted(message),
            (Some(condition), None) if condition.reason() == INVALID_CA_BUNDLE => {
                CrdReadiness::InvalidCaBundle(condition.explanation())
            }
            (Some(condition), None) => CrdReadiness::NotEstablished(condition.reason_and_why()),
            (None, None) => {
                CrdReadiness::NotEstablished("the server has not processed the CRD yet".into())
            }
        };
        let versions = raw
            .spec
            .versions
            .into_iter()
            .map(|version| {
                let subresources = version.subresources.unwrap_or_default();
                CrdVersion {
                    name: version.name.into(),
                    served: version.served,
                    subresources: Subresources {
                        status: subresources.status.is_some(),
                        scale: subresources.scale.is_some(),
                    },
                }
            })
            .collect();
        let empty = || KindNames { kind: "".into(), list_kind: "".into() };
        Self {
            group: raw.spec.group.into(),
            wanted: raw.spec.names.names().unwrap_or_else(empty),
            accepted: status.accepted_names.and_then(|names| names.names()),
            plural: raw.spec.names.plural.into(),
            uid: raw.metadata.uid.into(),
            generation: raw.metadata.generation,
            scope: if raw.spec.scope == "Namespaced" { Scope::Namespaced } else { Scope::Cluster },
            versions,
            readiness,
            terminating: raw.metadata.deletion_timestamp.is_some(),
        }
    }
}
