//! What a running manager tells of itself, as JSON: `/debug/status` and `/debug/types`.

use k8s_openapi::jiff::Timestamp;
use pilotlight::{
    controller::Cluster,
    discovery::{Mode, TypeRegistry, TypeReport},
    informer::{InformerStatus, Progress},
    manager::{RunnableStatus, Snapshot},
};
use serde::{Deserialize, Serialize};

use super::watchers::Watchers;

/// Everything about the controllers of a manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusReport {
    pub(super) version: String,
    pub(super) discovery: DiscoveryRow,
    pub(super) controllers: Vec<ControllerRow>,
    pub(super) informers: Vec<InformerRow>,
}

/// How the registry of types learns of changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiscoveryRow {
    /// `Watching` or `Static`.
    pub(super) mode: String,
    /// Whether everything it asks is answered.
    pub(super) current: bool,
    /// Why not, or why it is static.
    pub(super) errors: Vec<String>,
}

/// One runnable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ControllerRow {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: Timestamp,
    pub(super) epoch: u64,
    pub(super) stuck: bool,
    pub(super) stale: bool,
    pub(super) failures: u32,
    pub(super) last_error: Option<String>,
    pub(super) pending: Option<String>,
    pub(super) last_done: Option<String>,
    pub(super) queue_depth: Option<u64>,
    pub(super) unmet: Vec<UnmetRow>,
    pub(super) forbidden: Vec<String>,
    pub(super) missing: Vec<String>,
    pub(super) watches: Vec<WatchRow>,
}

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnmetRow {
    #[serde(rename = "type")]
    pub(super) type_: Option<String>,
    pub(super) reason: String,
    pub(super) message: String,
}

/// One watched type of a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchRow {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) state: String,
    pub(super) error: Option<String>,
}

/// One shared cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InformerRow {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) namespace: Option<String>,
    pub(super) state: String,
    pub(super) objects: usize,
    pub(super) bytes: usize,
    pub(super) subscribers: usize,
}

/// One type.
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
    /// Controllers that watch it, where that is known.
    pub(super) watched_by: Option<usize>,
}

impl StatusReport {
    pub(super) fn new(cluster: &Cluster, controllers: &Snapshot) -> Self {
        let row = |status: &RunnableStatus| ControllerRow {
            queue_depth: cluster.metrics.queue_depth(&status.name),
            ..ControllerRow::from(status)
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            discovery: DiscoveryRow::new(&cluster.types),
            controllers: controllers.values().map(|status| row(status)).collect(),
            informers: cluster.informers.status().iter().map(InformerRow::from).collect(),
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
            Mode::Watching => "Watching",
            Mode::Static(why) => {
                errors.push(why.clone());
                "Static"
            }
        };
        Self { mode: mode.to_owned(), current: health.is_current(), errors }
    }
}

impl From<&RunnableStatus> for ControllerRow {
    fn from(status: &RunnableStatus) -> Self {
        Self {
            name: status.name.to_string(),
            group: format!("{:?}", status.group),
            state: status.state.word().to_owned(),
            reason: status.reason.to_string(),
            message: status.message.clone(),
            since: status.since,
            epoch: status.epoch,
            stuck: status.stuck,
            stale: status.report.stale,
            failures: status.failures,
            last_error: status.last_error().map(str::to_owned),
            pending: status.pending.clone(),
            last_done: status.last_done.as_ref().map(|done| done.reason.word().to_owned()),
            queue_depth: None,
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
            missing: status.report.missing.iter().map(ToString::to_string).collect(),
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
        }
    }
}

impl From<&InformerStatus> for InformerRow {
    fn from(status: &InformerStatus) -> Self {
        Self {
            type_: status.key.identity.to_string(),
            namespace: status.key.namespace.as_deref().map(str::to_owned),
            state: progress(&status.progress).to_owned(),
            objects: status.objects,
            bytes: status.bytes,
            subscribers: status.subscribers,
        }
    }
}

fn progress(progress: &Progress) -> &'static str {
    match progress {
        Progress::Syncing(_) => "Syncing",
        Progress::Synced => "Synced",
        Progress::Stale(_) => "Stale",
        Progress::Forbidden(_) => "Forbidden",
        Progress::ConversionFailed(_) => "ConversionFailed",
        Progress::Ended(_) => "Ended",
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
