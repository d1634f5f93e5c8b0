//! Reports of a running manager as JSON: `/debug/status` and `/debug/types`.

mod controller;

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use pilotlight::{
    controller::Cluster,
    discovery::{DiscoveryMode, TypeRegistry, TypeReport},
    informer::{InformerProgress, InformerStatus},
    manager::{ElectionStatus, Snapshot},
    meta::DeclaredController,
};
use serde::{Deserialize, Serialize};

pub(super) use self::controller::ControllerRow;
use super::{
    declared::DeclaredObject, finalizer_search::ParentWithFinalizer, rollouts::RolloutRow,
    watchers::Watchers,
};

/// Report of `pilotlight status`, from either source; fields that the source does not know are
/// null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusReport {
    pub(super) source: Source,
    /// True if every controller is ready.
    pub(super) ready: bool,
    pub(super) version: Option<String>,
    pub(super) discovery: Option<DiscoveryRow>,
    /// Present if the instance takes part in an election.
    #[serde(default)]
    pub(super) election: Option<ElectionRow>,
    pub(super) controllers: Vec<ControllerRow>,
    pub(super) informers: Option<Vec<InformerRow>>,
    /// Objects with the finalizer of a controller that does not exist, if they were searched for.
    #[serde(default)]
    pub(super) held: Option<Vec<ParentWithFinalizer>>,
    /// Rolling updates under way, if the revisions were read.
    #[serde(default)]
    pub(super) rollouts: Option<Vec<RolloutRow>>,
}

/// Source of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Source {
    /// The objects of declared controllers on the API server.
    Api,
    /// A running manager.
    Instance,
}

/// State of discovery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiscoveryRow {
    /// `Watching` or `Static`.
    pub(super) mode: String,
    /// True if all its sources answer.
    pub(super) current: bool,
    /// Errors of the sources, and the reason of the mode `Static`.
    pub(super) errors: Vec<String>,
}

/// State of the leader election.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ElectionRow {
    /// Namespace and name of the lease.
    pub(super) lease: String,
    /// Identity of the instance.
    pub(super) identity: String,
    /// Identity in the lease.
    pub(super) holder: Option<String>,
    /// True if the instance leads.
    pub(super) leads: bool,
    pub(super) transitions: i64,
    pub(super) error: Option<String>,
}

impl From<ElectionStatus> for ElectionRow {
    fn from(status: ElectionStatus) -> Self {
        let ElectionStatus { lease, identity, holder, leads, transitions, error } = status;
        let (lease, identity) = (lease.to_string(), identity.to_string());
        Self { lease, identity, holder, leads, transitions, error }
    }
}

/// Shared informer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InformerRow {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) namespace: Option<String>,
    pub(super) state: String,
    pub(super) objects: usize,
    pub(super) entries: usize,
    pub(super) accounted_bytes: usize,
    pub(super) bytes: usize,
    pub(super) subscribers: usize,
}

/// Row of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TypeRow {
    pub(super) name: String,
    pub(super) kind: Option<String>,
    pub(super) scope: Option<String>,
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) since: Timestamp,
    pub(super) served_versions: Vec<String>,
    pub(super) origin: String,
    /// Number of controllers that watch the type, if known.
    pub(super) watched_by: Option<usize>,
}

impl StatusReport {
    /// Returns the report of the runnables of a manager and of the declared controllers.
    pub(super) fn new(
        cluster: &Cluster,
        controllers: &Snapshot,
        declared: &[DeclaredController],
        election: Option<ElectionStatus>,
    ) -> Self {
        let mut rows: BTreeMap<_, _> =
            declared.iter().map(|it| (&it.name, ControllerRow::from(it))).collect();
        for status in controllers.values() {
            let row = ControllerRow {
                queue_depth: cluster.metrics.queue_depth(&status.name),
                cache: cluster.metrics.cache_share(&status.name).map(controller::CacheRow::from),
                ..ControllerRow::from(&**status)
            };
            let declared = rows.remove(&status.name);
            rows.insert(&status.name, row.declared_as(declared));
        }
        let controllers: Vec<_> = rows.into_values().collect();
        Self {
            source: Source::Instance,
            ready: controllers.iter().all(ControllerRow::is_ready),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            discovery: Some(DiscoveryRow::new(&cluster.types)),
            election: election.map(ElectionRow::from),
            controllers,
            informers: Some(cluster.informers.status().iter().map(InformerRow::from).collect()),
            held: None,
            rollouts: None,
        }
    }

    /// Returns the report of declared controllers, from their objects.
    pub(super) fn of_objects(objects: &[DeclaredObject]) -> Self {
        let controllers: Vec<_> = objects.iter().map(ControllerRow::of_object).collect();
        Self {
            source: Source::Api,
            ready: controllers.iter().all(ControllerRow::is_ready),
            version: None,
            discovery: None,
            election: None,
            controllers,
            informers: None,
            held: None,
            rollouts: None,
        }
    }
}

impl DiscoveryRow {
    pub(super) fn new(types: &TypeRegistry) -> Self {
        let health = types.health();
        let sources = [
            ("watching CRDs", &health.crds),
            ("watching APIServices", &health.api_services),
            ("requesting discovery", &health.discovery),
        ];
        let mut errors: Vec<_> = sources
            .into_iter()
            .filter_map(|(what, source)| Some(format!("{what}: {}", source.error.as_ref()?)))
            .collect();
        let mode = match &*types.mode().borrow() {
            DiscoveryMode::NotStarted => "NotStarted",
            DiscoveryMode::Watching => "Watching",
            DiscoveryMode::Static(why) => {
                errors.push(why.clone());
                "Static"
            }
            DiscoveryMode::Ended => "Ended",
        };
        Self { mode: mode.to_owned(), current: health.is_current(), errors }
    }
}

impl From<&InformerStatus> for InformerRow {
    fn from(status: &InformerStatus) -> Self {
        Self {
            type_: status.key.identity.to_string(),
            namespace: status.key.namespace.as_deref().map(str::to_owned),
            state: progress(&status.progress).to_owned(),
            objects: status.objects,
            entries: status.entries,
            accounted_bytes: status.accounted,
            bytes: status.bytes,
            subscribers: status.subscribers,
        }
    }
}

fn progress(progress: &InformerProgress) -> &'static str {
    match progress {
        InformerProgress::Syncing(_) => "Syncing",
        InformerProgress::Synced => "Synced",
        InformerProgress::Polled => "Polled",
        InformerProgress::Stale(_) => "Stale",
        InformerProgress::Forbidden(_) => "Forbidden",
        InformerProgress::ConversionFailed(_) => "ConversionFailed",
        InformerProgress::Ended(_) => "Ended",
    }
}

impl TypeRow {
    pub(super) fn new(report: &TypeReport, watchers: Option<&Watchers>) -> Self {
        Self {
            name: report.name.clone(),
            kind: report.kind.clone(),
            scope: report.scope.map(|scope| format!("{scope:?}")),
            state: report.state.word().to_owned(),
            reason: report.reason.clone(),
            since: report.since,
            served_versions: report.served_versions.clone(),
            origin: format!("{:?}", report.origin),
            watched_by: watchers.map(|watchers| watchers.count(report)),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilotlight::{
        manager::{ControllerState, Reason, RunnableGroup, RunnableStatus},
        meta::ControllerKind,
    };

    use super::*;

    fn run(reason: Reason) -> ControllerRow {
        let mut status = RunnableStatus::new("a".into(), RunnableGroup::LeaderElection);
        (status.state, status.reason) = (ControllerState::Starting, reason);
        ControllerRow::from(&status)
    }

    /// Row of the object, with a condition `Ready` that is false for this reason.
    fn declared(reason: &str) -> ControllerRow {
        let status = serde_json::json!({
            "observedGeneration": 2, "state": "Starting", "reason": reason,
            "conditions": [{"type": "Ready", "status": "False", "reason": reason,
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        });
        ControllerRow::from(&DeclaredController {
            kind: ControllerKind::Composite,
            name: "a".into(),
            parents: Vec::new(),
            generation: 2,
            status: serde_json::from_value(status).unwrap(),
        })
    }

    #[test]
    fn synced_controller_of_a_standby_is_ready() {
        assert!(run(Reason::Standby).is_ready());
        assert!(run(Reason::Standby).declared_as(Some(declared("Standby"))).is_ready());
    }

    #[test]
    fn controller_of_a_standby_that_syncs_or_is_rejected_is_not_ready() {
        assert!(!run(Reason::SourcesSyncing).is_ready());
        let syncing = run(Reason::SourcesSyncing).declared_as(Some(declared("SourcesSyncing")));
        assert!(!syncing.is_ready());
        assert!(!run(Reason::Standby).declared_as(Some(declared("SpecInvalid"))).is_ready());
    }
}
