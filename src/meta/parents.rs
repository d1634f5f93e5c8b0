//! Per-parent state of a controller, each part with its own lock.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    controller::Request,
    meta::{
        parent::{health::HookHealth, sync_state::SyncStates},
        related::RelatedObjects,
        resource::patches::Patches,
        rollout::{PendingRollouts, RevisionInput},
    },
};

/// Parents of one controller.
#[derive(Debug)]
pub(crate) struct Parents {
    /// Objects that the customize hook relates to parents.
    pub(crate) related: Arc<RelatedObjects>,
    /// Failures of the hook.
    pub(crate) hook: Arc<HookHealth>,
    /// State that the last sync of each parent has left.
    pub(crate) states: SyncStates,
    /// Rollouts that are under way.
    pub(crate) rollouts: PendingRollouts,
    /// Patches of objects, and the types that may not be patched.
    pub(crate) patches: Patches,
    /// Input of their revisions.
    pub(crate) revisions: RevisionInput,
    /// Time from which the periods of resyncs are counted.
    pub(crate) begin: Instant,
}

impl Parents {
    /// Returns an empty state. `health_changed` is called after each change of the hook's health.
    pub(crate) fn new(health_changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            related: Arc::default(),
            hook: Arc::new(HookHealth::new(health_changed)),
            states: SyncStates::default(),
            rollouts: PendingRollouts::default(),
            patches: Patches::default(),
            revisions: RevisionInput::default(),
            begin: Instant::now(),
        }
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &Request) {
        self.states.forget(key);
        self.rollouts.remove(key);
        self.hook.forget(key);
    }

    /// Forgets all parents at the end of an epoch.
    pub(crate) fn clear(&self) {
        self.related.clear();
        self.states.clear();
        self.rollouts.clear();
        self.patches.clear();
        self.revisions.clear();
        self.hook.clear();
    }
}
