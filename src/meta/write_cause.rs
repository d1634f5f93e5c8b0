//! Cause of a sync: own writes alone, or work.
//!
//! A sync that only own writes have caused finds the parent and its children as the last sync left
//! them. Any difference is work: another object, or a version that another client wrote. The state
//! decides rather than the events: these may be merged, or arrive before the responses of the
//! writes. Children that are being deleted do not count, since their versions still change.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use super::digest::digest;
use crate::{informer::Object, kind::TypeIdentity};

/// Cause of the writes of one sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteCause {
    /// Writes of the last sync, and nothing else.
    OwnWrites,
    /// A change by another client, a resync, or the first sync.
    ExternalChange,
}

/// Object in a version, by the hashes of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenVersion {
    uid: u64,
    version: u64,
}

impl SeenVersion {
    /// Object with this uid in this version.
    pub(crate) fn new(uid: &str, version: &str) -> Self {
        Self { uid: digest(uid), version: digest((uid, version)) }
    }

    /// Cached object of a type in its version. Without a uid, type and key stand for it; without a
    /// resourceVersion, as of many types that cannot be watched, the content does.
    pub(crate) fn of(object: &Object, identity: &TypeIdentity) -> Self {
        let header = object.header();
        let seen = Self::new(&header.uid, &header.resource_version);
        let TypeIdentity { group, plural, .. } = identity;
        let uid = match header.uid.is_empty() {
            true => digest((group, plural, object.key())),
            false => seen.uid,
        };
        let version = match header.resource_version.is_empty() {
            true => digest((uid, object.stored_json())),
            false => seen.version,
        };
        Self { uid, version }
    }

    /// Returns whether both are versions of one object.
    pub(crate) fn is_of(self, other: Self) -> bool {
        self.uid == other.uid
    }
}

/// State of a parent and its children from sync to sync.
#[derive(Debug, Default)]
pub(crate) struct SyncState {
    // Sum of the versions that the last sync left; `None` before the first one.
    left: Option<u64>,
    // Objects that the running sync has observed, and those that it has written since.
    observed: Vec<SeenVersion>,
    written: HashMap<u64, Option<u64>, RandomState>,
}

impl SyncState {
    /// Begins a sync that has observed these objects; returns its cause.
    pub(crate) fn begin(&mut self, mut observed: Vec<SeenVersion>) -> WriteCause {
        // A child may be a related object too.
        observed.sort_unstable_by_key(|seen| seen.uid);
        observed.dedup_by_key(|seen| seen.uid);
        let sum = sum(observed.iter().map(|seen| seen.version));
        let cause =
            if self.left == Some(sum) { WriteCause::OwnWrites } else { WriteCause::ExternalChange };
        // A sync that does not end leaves an unknown state.
        *self = Self { left: None, observed, written: HashMap::default() };
        cause
    }

    /// Records the version of an object after an own write.
    pub(crate) fn wrote(&mut self, seen: SeenVersion) {
        self.written.insert(seen.uid, Some(seen.version));
    }

    /// Records that an object was deleted.
    pub(crate) fn deleted(&mut self, uid: &str) {
        self.written.insert(SeenVersion::new(uid, "").uid, None);
    }

    /// Returns whether the running sync has deleted an object.
    pub(crate) fn has_deleted(&self, seen: SeenVersion) -> bool {
        matches!(self.written.get(&seen.uid), Some(None))
    }

    /// Returns whether the running sync has written an object.
    pub(crate) fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Ends the sync.
    pub(crate) fn end(&mut self) {
        let Self { observed, written, .. } = std::mem::take(self);
        let kept = observed.iter().filter(|seen| !written.contains_key(&seen.uid));
        let kept = kept.map(|seen| seen.version);
        self.left = Some(sum(kept.chain(written.values().flatten().copied())));
    }
}

/// Sum that does not depend on the order.
fn sum(versions: impl Iterator<Item = u64>) -> u64 {
    versions.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::Scope, meta::children::fixtures::served};

    fn seen(objects: &[(&str, &str)]) -> Vec<SeenVersion> {
        objects.iter().map(|(uid, version)| SeenVersion::new(uid, version)).collect()
    }

    #[test]
    fn sync_after_own_writes_alone_is_caused_by_them() {
        let mut state = SyncState::default();
        assert_eq!(state.begin(seen(&[("p", "1")])), WriteCause::ExternalChange, "the first sync");
        state.wrote(SeenVersion::new("a", "2"));
        state.wrote(SeenVersion::new("p", "3"));
        state.end();

        assert_eq!(state.begin(seen(&[("a", "2"), ("p", "3")])), WriteCause::OwnWrites);
        state.wrote(SeenVersion::new("a", "4"));
        state.deleted("a");
        state.end();

        assert_eq!(state.begin(seen(&[("p", "3")])), WriteCause::OwnWrites);
        state.end();
        assert_eq!(state.begin(seen(&[("p", "3")])), WriteCause::OwnWrites, "nothing changed");
    }

    #[test]
    fn changed_object_without_uid_and_version_is_work() {
        let usages = served("metrics.test", "usages", "Usage", Scope::Namespaced);
        let parent = || SeenVersion::new("p", "1");
        let usage = |name: &str, cpu: u64| {
            let json = serde_json::json!({
                "metadata": { "name": name, "namespace": "ns" }, "cpu": cpu,
            });
            let object = Object::from_json(json.to_string(), &usages).unwrap();
            SeenVersion::of(&object, &usages.identity)
        };
        let mut state = SyncState::default();
        state.begin(vec![parent(), usage("a", 1), usage("b", 1)]);
        state.end();

        let same = vec![usage("b", 1), parent(), usage("a", 1)];
        assert_eq!(state.begin(same), WriteCause::OwnWrites);
        state.end();
        let changed = vec![usage("b", 2), parent(), usage("a", 1)];
        assert_eq!(state.begin(changed), WriteCause::ExternalChange);
        state.end();
        let fewer = vec![parent(), usage("b", 2)];
        assert_eq!(state.begin(fewer), WriteCause::ExternalChange);
    }

    #[test]
    fn sync_after_any_other_change_is_work() {
        for changed in [
            &[("p", "2"), ("a", "1")] as &[_],
            &[("p", "1"), ("a", "2")],
            &[("p", "1")],
            &[("p", "1"), ("a", "1"), ("b", "1")],
            &[("p", "1"), ("b", "1")],
        ] {
            let mut state = SyncState::default();
            state.begin(seen(&[("p", "1"), ("a", "1")]));
            state.end();

            assert_eq!(state.begin(seen(changed)), WriteCause::ExternalChange, "{changed:?}");
        }
    }

    #[test]
    fn sync_that_did_not_end_is_followed_by_work() {
        let mut state = SyncState::default();
        state.begin(seen(&[("p", "1")]));
        state.end();
        state.begin(seen(&[("p", "1")]));

        assert_eq!(state.begin(seen(&[("p", "1")])), WriteCause::ExternalChange);
    }
}
