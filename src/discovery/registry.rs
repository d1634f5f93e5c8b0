//! The registry of types and its handle.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};

use super::{
    Discovery, DiscoveryHealth, Origin, TypeReport, TypeState, TypeStatus,
    catalog::{Catalog, Touched},
    ledger::Ledger,
    metrics::Metrics,
    subscriptions::{Subscriptions, blank},
};
use crate::kind::{GroupResource, ServedType, TypeIdentity, TypeName, TypeRef};

/// How discovery is done.
#[derive(Clone, Debug)]
pub struct DiscoveryOptions {
    /// Discovery is asked at least this often, give or take a tenth, in case that an event was
    /// missed. Less than 100 ms counts as 100 ms, more than a year as a year. Default: 10 minutes.
    pub backstop: Duration,
    /// The same while CRDs may not be watched. A type is absent then when two complete answers
    /// that are this far apart, and at least 5 s, are without it. Less than 100 ms counts as
    /// 100 ms, more than a year as a year. Default: 30 seconds.
    ///
    /// `Duration::MAX` in effect turns polling off: discovery is asked after changes of APIServices
    /// and for types that a request did not find. These answers show new types; the absence of a
    /// type takes two answers almost a year apart.
    pub static_interval: Duration,
    /// How long a request to discovery may take. Default: 10 seconds.
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

/// How the registry learns of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryMode {
    /// CRDs and APIServices are watched.
    Watching,
    /// CRDs may not be watched, so discovery is polled; the reason.
    Static(String),
}

/// A cloneable handle on what the cluster serves.
#[derive(Clone)]
pub struct TypeRegistry {
    shared: Arc<Shared>,
}

/// What the handle and the task share. No lock is held across an await.
pub(super) struct Shared {
    known: RwLock<Known>,
    pub(super) mode: watch::Sender<DiscoveryMode>,
    changes: watch::Sender<()>,
    /// Every source has been heard of.
    synced: watch::Sender<bool>,
    pub(super) hints: Notify,
    pub(super) metrics: Metrics,
}

/// All that is known, and who wants to know.
pub(super) struct Known {
    pub(super) catalog: Catalog,
    pub(super) health: DiscoveryHealth,
    ledger: Ledger,
    subscriptions: Subscriptions,
    created: Timestamp,
}

impl TypeRegistry {
    /// A registry that knows nothing yet, and the task that fills it. Spawns nothing.
    pub fn new(client: Client, options: DiscoveryOptions) -> (Self, Discovery) {
        let now = Timestamp::now();
        let shared = Arc::new(Shared {
            known: RwLock::new(Known {
                catalog: Catalog::default(),
                health: DiscoveryHealth::new(now),
                ledger: Ledger::default(),
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

    /// What is known of a type now.
    pub fn get(&self, type_ref: &TypeRef) -> TypeStatus {
        self.shared.read().get(type_ref)
    }

    /// The status of a type and every later change of it.
    ///
    /// Quick changes may be seen as one; a type that was deleted and created again differs in
    /// the identity of `served`.
    pub fn subscribe(&self, type_ref: &TypeRef) -> watch::Receiver<TypeStatus> {
        let mut known = self.shared.write();
        let first = known.get(type_ref);
        known.subscriptions.subscribe(type_ref, || first)
    }

    /// How to talk to a type, if it is served (or terminating) now, or was when it was last
    /// proven.
    pub fn served(&self, type_ref: &TypeRef) -> Option<Arc<ServedType>> {
        self.get(type_ref).served
    }

    /// Says that a request to this type was answered as if it were gone, so that discovery
    /// looks again where the server does not push.
    pub fn hint(&self, identity: &TypeIdentity) {
        if self.shared.read().catalog.is_discovered(identity) {
            self.shared.hints.notify_one();
        }
    }

    /// Marked as changed whenever anything is known better, of whatever type: for whoever follows
    /// many.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Resolves when discovery has answered completely for the first time, and CRDs and
    /// APIServices were read or could not be: what is not known by then may take long. Cancel safe.
    pub async fn synced(&self) {
        // The sender is in what this holds.
        drop(self.shared.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// Resolves when it is known of every type what it is: CRDs and APIServices were read, or
    /// discovery speaks for them because they may not be. The latter takes seconds, until it is
    /// sure that a server which starts is not all that refuses. Cancel safe.
    pub async fn complete(&self) {
        let mut changes = self.changes();
        // The sender is in what this holds.
        while !self.shared.read().catalog.is_complete() && changes.changed().await.is_ok() {}
    }

    /// How the registry learns of changes.
    pub fn mode(&self) -> watch::Receiver<DiscoveryMode> {
        self.shared.mode.subscribe()
    }

    /// Whether what is known is current. While a source is lost, its last state stands.
    pub fn health(&self) -> DiscoveryHealth {
        self.shared.read().health.clone()
    }

    /// Every type that is known or asked for, in order of names.
    pub fn report(&self) -> Vec<TypeReport> {
        let mut known = self.shared.write();
        known.subscriptions.sweep();
        known.report()
    }

    #[cfg(test)]
    pub(super) fn subscriptions(&self) -> usize {
        self.shared.read().subscriptions.iter().count()
    }

    /// Adds the metrics of discovery.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }
}

impl fmt::Debug for TypeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeRegistry").field("mode", &*self.shared.mode.borrow()).finish()
    }
}

impl Shared {
    /// A reader cannot leave anything half done, and a writer that panicked left what it had:
    /// the next event judges it again.
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those whose type changed.
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
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn publish(&mut self, touched: &Touched, metrics: &Metrics) {
        let now = Timestamp::now();
        self.ledger.update(touched, &self.catalog, metrics, now);
        self.subscriptions
            .publish(touched, now, |type_ref, bound| self.catalog.status_after(type_ref, bound));
    }

    fn get(&self, type_ref: &TypeRef) -> TypeStatus {
        if let Some(status) = self.subscriptions.get(type_ref) {
            return status;
        }
        let judgement = self.catalog.status(type_ref);
        // Nobody watched this name until now; its type, perhaps.
        let row = judgement.served.as_ref().map(|served| served.identity.group_resource()).or_else(
            || match &type_ref.name {
                TypeName::Resource(plural) => {
                    Some(GroupResource { group: type_ref.group.clone(), resource: plural.clone() })
                }
                TypeName::Kind(_) => None,
            },
        );
        let before = row.and_then(|row| self.ledger.get(&row)).cloned();
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
            // Somebody who asks for a version may be told something else than what the row says.
            let told = |name: &GroupResource| {
                self.ledger.get(name).is_some_and(|row| row.state.phase() == status.state.phase())
            };
            match known.filter(told) {
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
        reports.extend(self.ledger.iter().map(|(name, status)| {
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

/// One sentence on a state that is not simply served or absent.
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
