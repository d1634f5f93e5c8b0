//! Reports of a running manager as JSON: `/debug/status` and `/debug/types`.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use pilotlight::{
    controller::Cluster,
    discovery::{DiscoveryMode, TypeRegistry, TypeReport},
    informer::{CacheShare, InformerProgress, InformerStatus},
    manager::{ControllerState, ElectionStatus, Reason, RunnableStatus, Snapshot},
    meta::{
        DeclaredController,
        api::{ControllerStatus, StatusCondition},
    },
};
use serde::{Deserialize, Serialize};

use super::{
    declared::DeclaredObject, finalizer_search::ParentWithFinalizer, rollouts::RolloutRow,
    watchers::Watchers,
};

/// State of a controller whose object has no status.
const UNSEEN: &str = "Unseen";

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

/// Row of one runnable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ControllerRow {
    /// Name in the manager.
    pub(super) name: String,
    /// Parent types of a declared controller.
    pub(super) parent: Option<String>,
    /// `True`, `False`, or `Unknown` where no status was written.
    pub(super) ready: String,
    pub(super) group: Option<String>,
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: Option<Timestamp>,
    pub(super) epoch: Option<u64>,
    /// True if the status describes an older specification.
    pub(super) outdated: bool,
    pub(super) stuck: bool,
    pub(super) stale: bool,
    /// True if no sync has succeeded for a minute.
    pub(super) failing: bool,
    pub(super) failures: Option<u32>,
    pub(super) last_error: Option<String>,
    pub(super) pending: Option<String>,
    pub(super) last_done: Option<String>,
    pub(super) queue_depth: Option<u64>,
    pub(super) cache: Option<CacheRow>,
    pub(super) unmet: Vec<UnmetRow>,
    pub(super) forbidden: Vec<String>,
    pub(super) missing: Option<Vec<String>>,
    pub(super) watches: Vec<WatchRow>,
    /// Conditions of a declared controller's object.
    pub(super) conditions: Option<Vec<StatusCondition>>,
}

/// Unmet condition of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnmetRow {
    #[serde(rename = "type")]
    pub(super) type_: Option<String>,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Watched type of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchRow {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) state: String,
    pub(super) error: Option<String>,
}

/// Share of a controller in the caches of its types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CacheRow {
    pub(super) whole: usize,
    pub(super) entries: usize,
    pub(super) accounted_bytes: usize,
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
                cache: cluster.metrics.cache_share(&status.name).map(CacheRow::from),
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
            ("asking discovery", &health.discovery),
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
        };
        Self { mode: mode.to_owned(), current: health.is_current(), errors }
    }
}

impl From<&DeclaredController> for ControllerRow {
    fn from(declared: &DeclaredController) -> Self {
        let DeclaredController { kind: _, name, parents, generation, status } = declared;
        Self::of_declared(name.to_string(), parents, Some(*generation), status.clone())
    }
}

impl From<&RunnableStatus> for ControllerRow {
    fn from(status: &RunnableStatus) -> Self {
        Self {
            name: status.name.to_string(),
            parent: None,
            ready: if is_ready(status) { "True" } else { "False" }.to_owned(),
            group: Some(format!("{:?}", status.group)),
            state: status.state.word().to_owned(),
            reason: status.reason.to_string(),
            message: status.message.clone(),
            since: Some(status.since),
            epoch: Some(status.epoch),
            outdated: false,
            stuck: status.stuck,
            stale: status.report.stale,
            failing: status.report.failing,
            failures: Some(status.failures),
            last_error: status.last_error().map(str::to_owned),
            pending: status.pending.clone(),
            last_done: status.last_done.as_ref().map(|done| done.reason.word().to_owned()),
            queue_depth: None,
            cache: None,
            unmet: status
                .unmet
                .iter()
                .map(|unmet| UnmetRow {
                    type_: unmet.type_ref.as_ref().map(ToString::to_string),
                    reason: unmet.reason.to_string(),
                    message: unmet.message.clone(),
                })
                .collect(),
            forbidden: status.report.forbidden.clone(),
            missing: Some(status.report.missing.iter().map(ToString::to_string).collect()),
            watches: status
                .report
                .watches
                .iter()
                .map(|watch| WatchRow {
                    type_: watch.type_ref.to_string(),
                    state: watch.state.word().to_owned(),
                    error: watch.error.clone(),
                })
                .collect(),
            conditions: None,
        }
    }
}

/// Returns whether a runnable is ready, by the rules of the condition `Ready` of a declared
/// controller. A synced runnable of a replica that does not lead is ready, too.
fn is_ready(status: &RunnableStatus) -> bool {
    let report = &status.report;
    (status.state == ControllerState::Running || status.reason == Reason::Standby)
        && !status.stuck
        && status.pending.is_none()
        && report.forbidden.is_empty()
        && !report.failing
}

impl ControllerRow {
    /// Returns whether the controller is ready with its current specification.
    pub(super) fn is_ready(&self) -> bool {
        self.ready == "True" && !self.outdated
    }

    /// Returns whether the object has no status: no manager wrote one, or its CRD keeps none.
    pub(super) fn is_unseen(&self) -> bool {
        self.state == UNSEEN
    }

    fn of_object(controller: &DeclaredObject) -> Self {
        let DeclaredObject { kind, name, generation, parents, status } = controller;
        let name = kind.runnable_name(name).to_string();
        Self::of_declared(name, parents, *generation, status.clone())
    }

    /// Returns the row of a runnable; that of a declared controller has the verdict in the status
    /// of its object.
    fn declared_as(self, declared: Option<Self>) -> Self {
        let Some(declared) = declared else { return self };
        // The leader writes the status; a replica that stands by judges its own run.
        let stands_by = declared.reason == Reason::Standby.as_str();
        Self {
            ready: if stands_by { self.ready } else { declared.ready },
            group: self.group,
            since: self.since,
            stuck: self.stuck,
            stale: self.stale,
            failures: self.failures,
            last_error: self.last_error.or(declared.last_error),
            last_done: self.last_done,
            queue_depth: self.queue_depth,
            cache: self.cache,
            unmet: self.unmet,
            missing: self.missing,
            watches: self.watches,
            ..declared
        }
    }

    fn of_declared(
        name: String,
        parents: &[(String, String)],
        generation: Option<i64>,
        status: ControllerStatus,
    ) -> Self {
        let condition =
            |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
        let parents: Vec<_> =
            parents.iter().map(|(resource, version)| format!("{resource} {version}")).collect();
        let newest = status.conditions.iter().map(|condition| condition.last_transition_time).max();
        let ready = condition("Ready");
        let reason = status.reason.clone().unwrap_or_default();
        let message = ready.map(|ready| ready.message.clone()).unwrap_or_default();
        // Healthy conditions have no message to show.
        let complaint = ["Ready", "TypesReady", "Running", "HooksHealthy"]
            .into_iter()
            .filter_map(condition)
            .find(|condition| condition.status != "True" && !condition.message.is_empty());
        // A running controller may have an error: its own, or that of single objects.
        let complaint = complaint
            .or_else(|| condition("Running").filter(|running| !running.message.is_empty()));
        let is_running = condition("Running").is_some_and(|running| running.status == "True");
        let hooks_fail = condition("HooksHealthy").is_some_and(|hooks| {
            hooks.status == "False" && ready.is_some_and(|ready| ready.reason == hooks.reason)
        });
        let unmet = condition("TypesReady")
            .filter(|types| types.status != "True" && !types.message.is_empty());
        let in_state =
            |state: &'static str| status.watches.iter().filter(move |it| it.state == state);
        Self {
            name,
            parent: (!parents.is_empty()).then(|| parents.join(", ")),
            ready: ready.map_or("Unknown", |ready| &ready.status).to_owned(),
            group: None,
            state: status.state.clone().unwrap_or_else(|| UNSEEN.to_owned()),
            since: condition("Running").map(|running| running.last_transition_time).or(newest),
            epoch: status.epoch.and_then(|epoch| u64::try_from(epoch).ok()),
            // An object without a status is not outdated.
            outdated: status.state.is_some() && status.observed_generation != generation,
            stuck: reason == "Stuck",
            stale: in_state("Stale").next().is_some(),
            failing: is_running && (hooks_fail || reason == "SyncsFailing"),
            failures: None,
            last_error: complaint.map(|condition| condition.message.clone()),
            pending: (reason == "SpecPending").then(|| message.clone()),
            last_done: None,
            queue_depth: None,
            cache: None,
            unmet: unmet
                .map(|types| UnmetRow {
                    type_: None,
                    reason: types.reason.clone(),
                    message: types.message.clone(),
                })
                .into_iter()
                .collect(),
            forbidden: in_state("Forbidden").map(|watch| watch.message.clone()).collect(),
            missing: None,
            watches: status
                .watches
                .iter()
                .map(|watch| WatchRow {
                    type_: format!("{} {}", watch.resource, watch.api_version),
                    state: watch.state.clone(),
                    error: Some(watch.message.clone()).filter(|message| !message.is_empty()),
                })
                .collect(),
            reason,
            message,
            conditions: Some(status.conditions.clone()),
        }
    }
}

impl From<CacheShare> for CacheRow {
    fn from(share: CacheShare) -> Self {
        let CacheShare { whole, entries, accounted } = share;
        Self { whole, entries, accounted_bytes: accounted }
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
    use pilotlight::{manager::RunnableGroup, meta::ControllerKind};

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
