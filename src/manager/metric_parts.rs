//! Metrics of a manager and its parts, which are added and removed while it runs.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tracing::warn;

use crate::guard::{self, GuardedDrop};

/// Function that registers the metrics of a part.
type RegisterFn = dyn Fn(&mut Registry) + Send + Sync;

/// Metrics of the parts of a manager, in the order in which they were added. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct MetricParts(Arc<Mutex<PartsInOrder>>);

#[derive(Default)]
struct PartsInOrder {
    parts: Vec<MetricPart>,
    /// True once two clusters were added before the manager ran. Labels stay when one is removed.
    has_several_clusters: bool,
}

#[derive(Clone)]
struct MetricPart {
    owner: MetricOwner,
    name: String,
    register: GuardedDrop<Arc<RegisterFn>>,
}

/// Owner of a part; names of different owners do not collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricOwner {
    /// The manager itself.
    Manager,
    /// The program, or a supervisor of it.
    Program,
    /// Cluster that was added before the manager ran: labelled if there were several of them.
    Cluster,
    /// Cluster that was added later: always labelled, so that no series changes with it.
    LateCluster,
}

impl MetricParts {
    /// Adds the metrics of a part, in place of those of the same owner and name.
    pub(super) fn add(
        &self,
        owner: MetricOwner,
        name: String,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) {
        let register = GuardedDrop::new(Arc::new(register) as Arc<RegisterFn>);
        let part = MetricPart { owner, name, register };
        let mut state = self.0.lock();
        let is_early = |part: &MetricPart| part.owner == MetricOwner::Cluster;
        let has_early = state.parts.iter().any(is_early);
        state.has_several_clusters |= has_early && is_early(&part);
        let same = |it: &&mut MetricPart| it.owner == owner && it.name == part.name;
        // The replaced part is dropped outside of the lock.
        let replaced = match state.parts.iter_mut().find(same) {
            Some(place) => Some(mem::replace(place, part)),
            None => {
                state.parts.push(part);
                None
            }
        };
        drop(state);
        drop(replaced);
    }

    /// Removes the metrics of a part.
    pub(super) fn remove(&self, owner: MetricOwner, name: &str) {
        let mut state = self.0.lock();
        let place = state.parts.iter().position(|it| it.owner == owner && it.name == name);
        let removed = place.map(|place| state.parts.remove(place));
        drop(state);
        drop(removed);
    }

    /// Registers the metrics of all parts. A part that panics is left out.
    pub(super) fn register(&self, registry: &mut Registry) {
        // The code of the parts runs outside of the lock.
        let state = self.0.lock();
        let (parts, has_several) = (state.parts.clone(), state.has_several_clusters);
        drop(state);
        for MetricPart { owner, name, register } in parts {
            let is_labelled = match owner {
                MetricOwner::Manager | MetricOwner::Program => false,
                MetricOwner::Cluster => has_several,
                MetricOwner::LateCluster => true,
            };
            let label = || ("cluster".into(), name.clone().into());
            let registered = guard::run(|| match is_labelled {
                true => (**register)(registry.sub_registry_with_label(label())),
                false => (**register)(registry),
            });
            if let Err(error) = registered {
                warn!(name, error, "the registration of metrics panicked");
            }
        }
    }
}

impl std::fmt::Debug for MetricParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.lock().parts.iter().map(|part| &part.name)).finish()
    }
}
