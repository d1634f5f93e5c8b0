//! Metrics of a manager and its parts, which are added and removed while it runs.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tracing::warn;

use super::registration::Registration;
use crate::guard::{self, GuardedDrop};

/// Function that registers the metrics of a part.
type RegisterFn = Arc<GuardedDrop<Box<dyn Fn(&mut Registry) + Send + Sync>>>;

/// Metrics of the parts of a manager, in the order in which they were added. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct MetricParts(Arc<Mutex<PartsInOrder>>);

#[derive(Default)]
struct PartsInOrder {
    parts: Vec<(MetricPart, RegisterFn)>,
    /// True if there were several clusters when the manager began to run. Labels stay when one is
    /// removed.
    are_labelled: Option<bool>,
}

/// Part of a manager with metrics of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricPart {
    /// The manager, or its election.
    Own,
    /// Hooks of declared controllers: those of the supervisor that was built last.
    Hooks,
    /// Metrics that the program has added by this name.
    Named(String),
    /// Cluster that was added before the manager ran: labelled with its name if there were several.
    Cluster(String),
    /// Cluster that was added later: always labelled, so that no series changes with it.
    LateCluster(String),
}

impl MetricPart {
    /// Returns whether the part replaces one that is equal.
    fn is_single(&self) -> bool {
        match self {
            Self::Named(_) => true,
            Self::Hooks => true,
            Self::Own | Self::Cluster(_) | Self::LateCluster(_) => false,
        }
    }
}

impl MetricParts {
    /// Adds the metrics of a part.
    pub(super) fn add(
        &self,
        part: MetricPart,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) {
        self.push(part, Arc::new(GuardedDrop::new(Box::new(register))));
    }

    /// Adds the metrics of a part, until the registration is dropped.
    pub(super) fn register_part(
        &self,
        part: MetricPart,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) -> Registration {
        let register: RegisterFn = Arc::new(GuardedDrop::new(Box::new(register)));
        self.push(part, Arc::clone(&register));
        let parts = self.clone();
        Registration::new(move || parts.remove(|_, other| Arc::ptr_eq(other, &register)))
    }

    /// Removes the metrics that the program has added by a name.
    pub(super) fn remove_named(&self, name: &str) {
        self.remove(|part, _| matches!(part, MetricPart::Named(other) if other == name));
    }

    /// Decides whether the clusters of now are labelled, as the manager begins to run.
    pub(super) fn label_clusters(&self) {
        let mut state = self.0.lock();
        state.are_labelled = Some(state.has_several_clusters());
    }

    fn push(&self, part: MetricPart, register: RegisterFn) {
        let mut state = self.0.lock();
        let replaced = match part.is_single() {
            true => state.take(|other, _| *other == part),
            false => None,
        };
        state.parts.push((part, register));
        // The code of the replaced part is dropped outside of the lock.
        drop(state);
        drop(replaced);
    }

    fn remove(&self, is_removed: impl Fn(&MetricPart, &RegisterFn) -> bool) {
        let removed = self.0.lock().take(is_removed);
        // The code of the part is dropped outside of the lock.
        drop(removed);
    }

    /// Registers the metrics of all parts. A part that panics is left out.
    pub(super) fn register(&self, registry: &mut Registry) {
        // The code of the parts runs outside of the lock.
        let state = self.0.lock();
        let are_labelled = state.are_labelled.unwrap_or_else(|| state.has_several_clusters());
        let parts = state.parts.clone();
        drop(state);
        for (part, register) in parts {
            let label = match &part {
                MetricPart::Cluster(name) if are_labelled => Some(name),
                MetricPart::LateCluster(name) => Some(name),
                MetricPart::Own | MetricPart::Named(_) | MetricPart::Cluster(_) => None,
                MetricPart::Hooks => None,
            };
            let registered = guard::run(|| match label {
                Some(name) => {
                    let label = ("cluster".into(), name.clone().into());
                    register(registry.sub_registry_with_label(label));
                }
                None => register(registry),
            });
            if let Err(error) = registered {
                warn!(?part, error, "the registration of metrics panicked");
            }
        }
    }
}

impl PartsInOrder {
    /// Removes the first such part, and returns it.
    fn take(
        &mut self,
        is_taken: impl Fn(&MetricPart, &RegisterFn) -> bool,
    ) -> Option<(MetricPart, RegisterFn)> {
        let place = self.parts.iter().position(|(part, register)| is_taken(part, register));
        place.map(|place| self.parts.remove(place))
    }

    fn has_several_clusters(&self) -> bool {
        let is_cluster = |(part, _): &&_| matches!(part, MetricPart::Cluster(_));
        self.parts.iter().filter(is_cluster).count() > 1
    }
}

impl std::fmt::Debug for MetricParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.lock().parts.iter().map(|(part, _)| part)).finish()
    }
}
