//! Metrics of a manager and its parts, which are added and removed while it runs.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;

/// Function that registers the metrics of a part.
type RegisterFn = dyn Fn(&mut Registry) + Send + Sync;

/// Metrics of the parts of a manager, in the order in which they were added. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct MetricParts(Arc<Mutex<Vec<MetricPart>>>);

#[derive(Clone)]
struct MetricPart {
    name: String,
    kind: MetricPartKind,
    register: Arc<RegisterFn>,
}

/// Kind of a part, which decides about its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricPartKind {
    /// No cluster: its metrics have no label of their own.
    Other,
    /// Cluster that was added before the manager ran: labelled if there are several of them.
    Cluster,
    /// Cluster that was added later: always labelled, so that no series changes with it.
    LateCluster,
}

impl MetricParts {
    /// Adds the metrics of a part, in place of those of the same name.
    pub(super) fn add(
        &self,
        name: String,
        kind: MetricPartKind,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) {
        let part = MetricPart { name, kind, register: Arc::new(register) };
        let mut parts = self.0.lock();
        let place = parts.iter_mut().find(|it| it.name == part.name);
        // The replaced part is dropped outside of the lock.
        let replaced = match place {
            Some(place) => Some(std::mem::replace(place, part)),
            None => {
                parts.push(part);
                None
            }
        };
        drop(parts);
        drop(replaced);
    }

    /// Removes the metrics of a part.
    pub(super) fn remove(&self, name: &str) {
        let mut parts = self.0.lock();
        let place = parts.iter().position(|part| part.name == name);
        let removed = place.map(|place| parts.remove(place));
        drop(parts);
        drop(removed);
    }

    /// Registers the metrics of all parts.
    pub(super) fn register(&self, registry: &mut Registry) {
        // User code runs outside of the lock.
        let parts = self.0.lock().clone();
        let clusters = parts.iter().filter(|part| part.kind == MetricPartKind::Cluster).count();
        for MetricPart { name, kind, register } in parts {
            let is_labelled = match kind {
                MetricPartKind::Other => false,
                MetricPartKind::Cluster => clusters > 1,
                MetricPartKind::LateCluster => true,
            };
            match is_labelled {
                true => register(registry.sub_registry_with_label(("cluster".into(), name.into()))),
                false => register(registry),
            }
        }
    }
}

impl std::fmt::Debug for MetricParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|part| &part.name)).finish()
    }
}
