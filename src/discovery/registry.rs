//! Type registry: the handle, and the state that it shares with the discovery task.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};

use super::{
    Discovery, DiscoveryHealth, Origin, TypeReport, TypeState, TypeStatus,
    catalog::{Catalog, Touched},
    metrics::Metrics,
    subscriptions::{Subscriptions, blank},
    type_statuses::TypeStatuses,
};
use crate::kind::{GroupResource, ServedType, TypeIdentity, TypeName, TypeRef};

/// Intervals and deadline of discovery.
#[derive(Clone, Debug)]
pub struct DiscoveryOptions {
    /// Longest interval between discovery requests, plus or minus a tenth, in case an event was
    /// missed. Clamped to 100 ms to one year. Default: 10 minutes.
    pub backstop: Duration,
    /// The same while CRDs may not be watched. A type is absent then when two complete answers, at
    /// least this interval (less a tenth) and 5 s apart, omit it. Clamped to 100 ms to one year.
    /// Default: 30 seconds.
    ///
    /// `Duration::MAX` in effect turns polling off: discovery is read after changes of APIServices
    /// and for types that a request did not find. These answers show new types; the absence of a
    /// type takes two answers almost a year apart.
    pub static_interval: Duration,
    /// Deadline of a discovery request. Default: 10 seconds.
    pub request_deadline: Duration,
}

impl Default for DiscoveryOptions {
    fn default() -> Self {
        Self {
            backstop: Duration::from_secs(600),
            static_interval: Duration::from_secs(30),
            request_deadline: Duration::from_secs(10),
        }
    }
}

/// Mode in which the registry learns of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryMode {
    /// CRDs and APIServices are watched.
    Watching,
    /// CRDs may not be watched, so discovery is polled. Holds the reason.
    Static(String),
}

/// Cloneable handle to the types that the cluster serves.
#[derive(Clone)]
pub struct TypeRegistry {
    shared: Arc<SharedRegistry>,
}

/// State shared by the handle and the task. No lock is held across an await.
pub(super) struct SharedRegistry {
    known: RwLock<Known>,
    pub(super) mode: watch::Sender<DiscoveryMode>,
    changes: watch::Sender<()>,
    /// True once every source has answered or failed.
    synced: watch::Sender<bool>,
    pub(super) hints: Notify,
    pub(super) metrics: Metrics,
}

/// The catalog, its derived state, and the subscriptions.
pub(super) struct Known {
    pub(super) catalog: Catalog,
    pub(super) health: DiscoveryHealth,
    statuses: TypeStatuses,
    subscriptions: Subscriptions,
    created: Timestamp,
}

impl TypeRegistry {
    /// Creates an empty registry and the task that fills it. Spawns nothing.
    pub fn new(client: Client, options: DiscoveryOptions) -> (Self, Discovery) {
        let now = Timestamp::now();
        let shared = Arc::new(SharedRegistry {
            known: RwLock::new(Known {
                catalog: Catalog::default(),
                health: DiscoveryHealth::new(now),
                statuses: TypeStatuses::default(),
                subscriptions: Subscriptions::default(),
                created: now,
            }),
            mode: watch::Sender::new(DiscoveryMode::Watching),
            changes: watch::Sender::default(),
            synced: watch::Sender::default(),
            hints: Notify::new(),
            metrics: Metrics::default(),
        });
        (Self { shared: shared.clone() }, Discovery::new(client, options, shared))
    }

    /// Returns the current status of a type.
    pub fn get(&self, type_ref: &TypeRef) -> TypeStatus {
        self.shared.read().get(type_ref)
    }

    /// Subscribes to a type: its current status and every later change.
    ///
    /// Changes in quick succession may be merged. A type that was deleted and created again differs
    /// in the identity of `served`.
    pub fn subscribe(&self, type_ref: &TypeRef) -> watch::Receiver<TypeStatus> {
        let mut known = self.shared.write();
        let first = known.get(type_ref);
        known.subscriptions.subscribe(type_ref, || first)
    }

    /// Returns how to request a type that is served or terminating, now or when last proven.
    pub fn served(&self, type_ref: &TypeRef) -> Option<Arc<ServedType>> {
        self.get(type_ref).served
    }

    /// Returns the generation of a type's CRD, which changes with its schemas; `None` if it is not
    /// known.
    #[cfg(any(test, feature = "meta"))]
    pub(crate) fn crd_generation(&self, group: &str, plural: &str) -> Option<i64> {
        self.shared.read().catalog.crd_generation(group, plural)
    }

    /// Reports that a request to this type was answered as if the type were gone. If the type comes
    /// from discovery, discovery is requested again.
    pub fn hint(&self, identity: &TypeIdentity) {
        if self.shared.read().catalog.is_discovered(identity) {
            self.shared.hints.notify_one();
        }
    }

    /// Subscribes to changes of any type; for subscribers that follow many types.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Waits for the first sync: discovery has answered completely once, and CRDs and APIServices
    /// were read or have failed. A type that is still unknown then may stay so for long. Cancel
    /// safe.
    pub async fn synced(&self) {
        // `shared` holds the sender, so the channel cannot close.
        drop(self.shared.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// Waits until all types are known: CRDs and APIServices were read, or may not be, so that
    /// discovery covers them. In the latter case this takes seconds: a server that is starting also
    /// refuses at first. Cancel safe.
    pub async fn complete(&self) {
        let mut changes = self.changes();
        // `shared` holds the sender, so the channel cannot close.
        while !self.shared.read().catalog.is_complete() && changes.changed().await.is_ok() {}
    }

    /// Subscribes to the mode in which the registry learns of changes.
    pub fn mode(&self) -> watch::Receiver<DiscoveryMode> {
        self.shared.mode.subscribe()
    }

    /// Returns the health of each source. While a source is lost, its last state stands.
    pub fn health(&self) -> DiscoveryHealth {
        self.shared.read().health.clone()
    }

    /// Returns all types that are known or requested, ordered by name.
    pub fn report(&self) -> Vec<TypeReport> {
        let mut known = self.shared.write();
        known.subscriptions.sweep();
        known.report()
    }

    #[cfg(test)]
    pub(super) fn subscriptions(&self) -> usize {
        self.shared.read().subscriptions.iter().count()
    }

    /// Registers the metrics of discovery.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }
}

impl fmt::Debug for TypeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeRegistry").field("mode", &*self.shared.mode.borrow()).finish()
    }
}

impl SharedRegistry {
    /// Ignores poisoning: a reader changes nothing, and after a writer's panic the next event
    /// judges the touched types again.
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    /// Publishes to the subscribers of touched types.
    pub(super) fn publish(&self, touched: &Touched) {
        if !touched.is_empty() {
            self.metrics.updates.inc();
            self.write().publish(touched, &self.metrics);
            self.changes.send_replace(());
        }
        if !*self.synced.borrow() && self.read().health.has_read_all() {
            self.synced.send_replace(true);
        }
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write()
    }
}

impl Known {
    fn publish(&mut self, touched: &Touched, metrics: &Metrics) {
        let now = Timestamp::now();
        self.statuses.update(touched, &self.catalog, metrics, now);
        self.subscriptions
            .publish(touched, now, |type_ref, bound| self.catalog.status_after(type_ref, bound));
    }

    fn get(&self, type_ref: &TypeRef) -> TypeStatus {
        if let Some(status) = self.subscriptions.get(type_ref) {
            return status;
        }
        let judgement = self.catalog.status(type_ref);
        // No subscription to this name, but its status may be known.
        let name = judgement
            .served
            .as_ref()
            .map(|served| served.identity.group_resource())
            .or_else(|| match &type_ref.name {
                TypeName::Resource(plural) => {
                    Some(GroupResource { group: type_ref.group.clone(), resource: plural.clone() })
                }
                TypeName::Kind(_) => None,
            });
        let before = name.and_then(|name| self.statuses.get(&name)).cloned();
        before.unwrap_or_else(|| blank(self.created)).succeed(judgement, self.created)
    }

    fn report(&self) -> Vec<TypeReport> {
        let mut asked: HashMap<GroupResource, usize> = HashMap::new();
        let mut reports = Vec::new();
        for (type_ref, status, subscribers) in self.subscriptions.iter() {
            let known = match (&status.served, &type_ref.name) {
                (Some(served), _) => Some(served.identity.group_resource()),
                (None, TypeName::Resource(plural)) => {
                    Some(GroupResource { group: type_ref.group.clone(), resource: plural.clone() })
                }
                (None, TypeName::Kind(_)) => None,
            };
            // A request for one version can have another state than the type at its best version.
            let agrees = |name: &GroupResource| {
                self.statuses
                    .get(name)
                    .is_some_and(|best| best.state.phase() == status.state.phase())
            };
            match known.filter(agrees) {
                Some(name) => *asked.entry(name).or_default() += subscribers,
                None => reports.push(TypeReport {
                    name: type_ref.to_string(),
                    group: type_ref.group.clone(),
                    kind: match &type_ref.name {
                        TypeName::Kind(kind) => Some(kind.clone()),
                        TypeName::Resource(_) => None,
                    },
                    scope: None,
                    state: status.state.phase(),
                    reason: reason(&status.state),
                    since: status.since,
                    served_versions: Vec::new(),
                    origin: Origin::Nowhere,
                    uid: None,
                    subscribers,
                }),
            }
        }
        reports.extend(self.statuses.iter().map(|(name, status)| {
            let described = self.catalog.describe(name);
            let identity = status.served.as_ref().map(|served| &served.identity);
            TypeReport {
                name: name.to_string(),
                group: name.group.clone(),
                kind: described.as_ref().map(|(kind, _)| kind.to_string()),
                scope: described.map(|(_, scope)| scope),
                state: status.state.phase(),
                reason: reason(&status.state),
                since: status.since,
                served_versions: self.catalog.served_versions(name),
                origin: self.catalog.origin(name),
                uid: identity.and_then(|identity| self.catalog.uid(identity)).map(String::from),
                subscribers: asked.get(name).copied().unwrap_or(0),
            }
        }));
        reports.sort_by(|a, b| (&a.group, &a.name).cmp(&(&b.group, &b.name)));
        reports
    }
}

/// Returns a sentence that explains a state other than served or absent.
fn reason(state: &TypeState) -> Option<String> {
    match state {
        TypeState::Installing(reason) => Some(reason.to_string()),
        TypeState::NotWatchable => Some("the server offers no list and watch for it".into()),
        TypeState::Terminating => Some("its CRD is being deleted; finalizers must finish".into()),
        TypeState::Unknown(None) => Some("nothing was read about it yet".into()),
        TypeState::Unknown(Some(last)) => {
            Some(format!("discovery has no current answer; it was {} before", last.word()))
        }
        TypeState::Absent | TypeState::Served => None,
    }
}
