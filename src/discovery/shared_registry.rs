//! State that the type registry and the discovery task share.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{Notify, watch};

use super::{
    DiscoveryHealth, DiscoveryMode, Origin, TypeReport, TypeState, TypeStatus,
    catalog::{Catalog, ChangedTypes},
    metrics::Metrics,
    subscriptions::{Subscriptions, blank},
    type_statuses::TypeStatuses,
};
use crate::kind::{GroupResource, TypeName, TypeRef};

/// State shared by the handle and the task. No lock is held across an await.
pub(super) struct SharedRegistry {
    pub(super) known: RwLock<RegistryState>,
    pub(super) mode: watch::Sender<DiscoveryMode>,
    pub(super) changes: watch::Sender<()>,
    /// True once every source has answered or failed.
    pub(super) synced: watch::Sender<bool>,
    pub(super) hints: Notify,
    pub(super) metrics: Metrics,
}

/// The catalog, its derived state, and the subscriptions.
pub(super) struct RegistryState {
    pub(super) catalog: Catalog,
    pub(super) health: DiscoveryHealth,
    statuses: TypeStatuses,
    pub(super) subscriptions: Subscriptions,
    created: Timestamp,
}

impl SharedRegistry {
    pub(super) fn new() -> Self {
        let now = Timestamp::now();
        Self {
            known: RwLock::new(RegistryState {
                catalog: Catalog::default(),
                health: DiscoveryHealth::new(now),
                statuses: TypeStatuses::default(),
                subscriptions: Subscriptions::default(),
                created: now,
            }),
            mode: watch::Sender::new(DiscoveryMode::NotStarted),
            changes: watch::Sender::default(),
            synced: watch::Sender::default(),
            hints: Notify::new(),
            metrics: Metrics::default(),
        }
    }

    /// Locks for reading. After a panic of a writer, the next event judges the touched types again.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, RegistryState> {
        self.known.read()
    }

    /// Publishes to the subscribers of touched types.
    pub(super) fn publish(&self, touched: &ChangedTypes) {
        if !touched.is_empty() {
            self.metrics.updates.inc();
            self.write().publish(touched, &self.metrics);
            self.changes.send_replace(());
        }
        if !*self.synced.borrow() && self.read().health.has_read_all() {
            self.synced.send_replace(true);
        }
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, RegistryState> {
        self.known.write()
    }
}

impl RegistryState {
    fn publish(&mut self, touched: &ChangedTypes, metrics: &Metrics) {
        let now = Timestamp::now();
        self.statuses.update(touched, &self.catalog, metrics, now);
        self.subscriptions
            .publish(touched, now, |type_ref, bound| self.catalog.status_after(type_ref, bound));
    }

    pub(super) fn get(&self, type_ref: &TypeRef) -> TypeStatus {
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
        before.unwrap_or_else(|| blank(self.created)).after_judgement(judgement, self.created)
    }

    pub(super) fn report(&self) -> Vec<TypeReport> {
        let mut subscribed: HashMap<GroupResource, usize> = HashMap::new();
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
                Some(name) => *subscribed.entry(name).or_default() += subscribers,
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
                subscribers: subscribed.get(name).copied().unwrap_or(0),
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
        TypeState::NotWatchable => Some("the server offers no list for it".into()),
        TypeState::Polled => {
            Some("the server offers no watch for it, so that it is listed in an interval".into())
        }
        TypeState::Terminating => Some("its CRD is being deleted; finalizers must finish".into()),
        TypeState::Unknown(None) => Some("nothing was read about it yet".into()),
        TypeState::Unknown(Some(last)) => {
            Some(format!("discovery has no current response; it was {} before", last.word()))
        }
        TypeState::Absent | TypeState::Served => None,
    }
}
