//! Versions of objects that are known to be as desired, so that they need no request.

use std::collections::HashMap;

use super::{
    checked_set::DesiredObject, digest::FieldDigest, live_object::LiveObject,
    object_name::ObjectName, set_owner::SetId,
};

/// Sets whose versions are kept. The set that was applied least recently is dropped first: the owner
/// of a set may be deleted without a clear.
const SETS_MAX: usize = 10_000;

/// Version of an object that had the fields of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenVersion {
    intent: FieldDigest,
    uid: String,
    resource_version: String,
}

impl WrittenVersion {
    /// Returns the version of an object that has these fields; `None` if its server names none.
    pub(super) fn of(desired: &DesiredObject, live: &LiveObject) -> Option<Self> {
        Some(Self {
            intent: desired.digest,
            uid: live.metadata.uid.clone()?,
            resource_version: live.metadata.resource_version.clone()?,
        })
    }
}

/// Versions of the objects of one set.
pub(super) type SetVersions = HashMap<ObjectName, WrittenVersion>;

/// Versions of the objects of all sets of an applier.
#[derive(Debug, Default)]
pub(super) struct WrittenVersions {
    sets: HashMap<SetId, (u64, SetVersions)>,
    /// Number of the last apply.
    last: u64,
}

impl WrittenVersions {
    /// Returns the versions of a set.
    pub(super) fn of(&self, set: &SetId) -> SetVersions {
        self.sets.get(set).map(|(_, versions)| versions.clone()).unwrap_or_default()
    }

    /// Replaces the versions of a set.
    pub(super) fn put(&mut self, set: SetId, versions: SetVersions) {
        self.last += 1;
        if versions.is_empty() {
            self.sets.remove(&set);
            return;
        }
        self.sets.insert(set, (self.last, versions));
        if self.sets.len() > SETS_MAX {
            let oldest = self.sets.iter().min_by_key(|(_, (at, _))| *at);
            let oldest = oldest.map(|(set, _)| set.clone());
            oldest.and_then(|set| self.sets.remove(&set));
        }
    }
}
