//! Row of one controller, from its state in the manager or the status of its object.

use k8s_openapi::jiff::Timestamp;
use pilotlight::{
    informer::CacheShare,
    manager::{ControllerState, Reason, RunnableStatus},
    meta::{
        DeclaredController,
        api::{ControllerStatus, StatusCondition},
    },
};
use serde::{Deserialize, Serialize};

use crate::cli::declared::DeclaredObject;

/// State of a controller whose object has no status.
const UNSEEN: &str = "Unseen";

/// Row of one runnable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct ControllerRow {
    /// Name in the manager.
    pub(in crate::cli) name: String,
    /// Parent types of a declared controller.
    pub(in crate::cli) parent: Option<String>,
    /// `True`, `False`, or `Unknown` where no status was written.
    pub(in crate::cli) ready: String,
    pub(in crate::cli) group: Option<String>,
    pub(in crate::cli) state: String,
    pub(in crate::cli) reason: String,
    pub(in crate::cli) message: String,
    pub(in crate::cli) since: Option<Timestamp>,
    pub(in crate::cli) epoch: Option<u64>,
    /// True if the status describes an older specification.
    pub(in crate::cli) outdated: bool,
    pub(in crate::cli) stuck: bool,
    pub(in crate::cli) stale: bool,
    /// True if no sync has succeeded for a minute.
    pub(in crate::cli) failing: bool,
    pub(in crate::cli) failures: Option<u32>,
    pub(in crate::cli) last_error: Option<String>,
    pub(in crate::cli) pending: Option<String>,
    pub(in crate::cli) last_done: Option<String>,
    pub(in crate::cli) queue_depth: Option<u64>,
    pub(in crate::cli) cache: Option<CacheRow>,
    pub(in crate::cli) unmet: Vec<UnmetRow>,
    pub(in crate::cli) forbidden: Vec<String>,
    pub(in crate::cli) missing: Option<Vec<String>>,
    pub(in crate::cli) watches: Vec<WatchRow>,
    /// Conditions of a declared controller's object.
    pub(in crate::cli) conditions: Option<Vec<StatusCondition>>,
}

/// Unmet condition of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct UnmetRow {
    #[serde(rename = "type")]
    pub(in crate::cli) type_: Option<String>,
    pub(in crate::cli) reason: String,
    pub(in crate::cli) message: String,
}

/// Watched type of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct WatchRow {
    #[serde(rename = "type")]
    pub(in crate::cli) type_: String,
    pub(in crate::cli) state: String,
    pub(in crate::cli) error: Option<String>,
}

/// Share of a controller in the caches of its types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct CacheRow {
    pub(in crate::cli) whole: usize,
    pub(in crate::cli) entries: usize,
    pub(in crate::cli) accounted_bytes: usize,
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
    pub(in crate::cli) fn is_ready(&self) -> bool {
        self.ready == "True" && !self.outdated
    }

    /// Returns whether the object has no status: no manager wrote one, or its CRD keeps none.
    pub(in crate::cli) fn is_unseen(&self) -> bool {
        self.state == UNSEEN
    }

    pub(super) fn of_object(controller: &DeclaredObject) -> Self {
        let DeclaredObject { kind, name, generation, parents, status, .. } = controller;
        let name = kind.runnable_name(name).to_string();
        Self::of_declared(name, parents, *generation, status.clone())
    }

    /// Returns the row of a runnable; that of a declared controller has the verdict in the status
    /// of its object.
    pub(super) fn declared_as(self, declared: Option<Self>) -> Self {
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

    pub(super) fn of_declared(
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
