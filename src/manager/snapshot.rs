//! Status of every runnable at one moment.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Index,
    sync::Arc,
};

use super::{ControllerName, RunnableStatus};

/// Status of every runnable by name at one moment.
///
/// The manager publishes one snapshot for each batch of ready events. So a burst of changes costs
/// one copy of the map, not one copy for each change.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(BTreeMap<ControllerName, Arc<RunnableStatus>>);

impl Snapshot {
    /// Returns the status of one runnable.
    pub fn get(&self, name: &ControllerName) -> Option<&Arc<RunnableStatus>> {
        self.0.get(name)
    }

    /// Number of runnables.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no runnables.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over all runnables in order of names.
    pub fn iter(&self) -> btree_map::Iter<'_, ControllerName, Arc<RunnableStatus>> {
        self.0.iter()
    }

    /// Iterates over all names in order.
    pub fn keys(&self) -> impl Iterator<Item = &ControllerName> {
        self.0.keys()
    }

    /// Iterates over all statuses in order of names.
    pub fn values(&self) -> impl Iterator<Item = &Arc<RunnableStatus>> {
        self.0.values()
    }

    /// Returns the statuses that are new or different since an earlier snapshot of the same
    /// manager, in order of names. Removed runnables are not included.
    pub(crate) fn changed_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = &'a Arc<RunnableStatus>> {
        let is_same = |name, now| before.get(name).is_some_and(|old| Arc::ptr_eq(old, now));
        self.iter().filter(move |(name, now)| !is_same(name, now)).map(|(_, now)| now)
    }

    pub(super) fn insert(&mut self, status: Arc<RunnableStatus>) {
        self.0.insert(status.name.clone(), status);
    }

    pub(super) fn remove(&mut self, name: &ControllerName) {
        self.0.remove(name);
    }
}

impl<'a> IntoIterator for &'a Snapshot {
    type Item = (&'a ControllerName, &'a Arc<RunnableStatus>);
    type IntoIter = btree_map::Iter<'a, ControllerName, Arc<RunnableStatus>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Arc<RunnableStatus>> for Snapshot {
    fn from_iter<T: IntoIterator<Item = Arc<RunnableStatus>>>(statuses: T) -> Self {
        Self(statuses.into_iter().map(|status| (status.name.clone(), status)).collect())
    }
}

impl Index<&ControllerName> for Snapshot {
    type Output = Arc<RunnableStatus>;

    /// # Panics
    ///
    /// When there is no runnable of that name.
    fn index(&self, name: &ControllerName) -> &Arc<RunnableStatus> {
        &self.0[name]
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::manager::RunnableGroup;

    fn status(name: &str) -> Arc<RunnableStatus> {
        Arc::new(RunnableStatus {
            since: Timestamp::UNIX_EPOCH,
            ..RunnableStatus::new(name.into(), RunnableGroup::Others)
        })
    }

    #[test]
    fn changes_between_snapshots_are_the_new_and_the_different_statuses() {
        let before: Snapshot = ["same", "changed", "removed"].map(status).into_iter().collect();
        let mut now = before.clone();

        now.insert(status("changed"));
        now.insert(status("new"));
        now.remove(&"removed".into());

        let changed: Vec<_> = now.changed_since(&before).map(|it| it.name.as_str()).collect();
        assert_eq!(changed, ["changed", "new"]);
        assert_eq!(before.len(), 3, "an earlier snapshot keeps its statuses");
    }
}
