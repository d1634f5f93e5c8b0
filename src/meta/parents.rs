//! Per-parent state of a controller, each part with its own lock.

use std::sync::Arc;

use super::{HookHealth, ParentIndex, ParentWrites, related::Related};
use crate::informer::ObjectKey;

/// Parents of one controller.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    /// Maps a child to its parents.
    pub(crate) index: ParentIndex,
    /// Objects that the customize hook relates to parents.
    pub(crate) related: Arc<Related>,
    /// Failures of the hook.
    pub(crate) hook: HookHealth,
    /// Write limits, and the last status.
    pub(crate) writes: ParentWrites,
}

impl Parents {
    /// Returns an empty state. `health_changed` is called after each change of the hook's health.
    pub(crate) fn new(health_changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self { hook: HookHealth::new(health_changed), ..Self::default() }
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.index.remove(key);
        self.writes.forget(key);
        self.hook.forget(key);
    }

    /// Forgets all parents at the end of an epoch.
    pub(crate) fn clear(&self) {
        self.index.clear();
        self.related.clear();
        self.writes.clear();
        self.hook.clear();
    }
}
