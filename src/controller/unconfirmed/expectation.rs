//! Expectation: what the caches must hold of a written object.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::target::Target;
use crate::{
    controller::inputs::attached::Attached,
    informer::{InformerKey, Object, ObjectKey},
    kind::{VersionOrder, is_included},
};

/// Time after a write from which the server is read for a cache that lacks it, 5 s. A watch that is
/// up delivers the change much earlier. It never delivers an object that the selectors of the cache
/// exclude, or that another client has changed or deleted meanwhile.
pub(super) const READ_DELAY: Duration = Duration::from_secs(5);
/// Least time between two reads for a cache of opaque versions, 1 s: it never holds a version after
/// which another one has come.
const OPAQUE_READ_DELAY: Duration = Duration::from_secs(1);
/// Longest time between two reads, a minute. A cache may never reach what was read: an opaque
/// version may pass unseen, and a restored server has older versions.
const LONGEST_READ_DELAY: Duration = Duration::from_secs(60);

/// Expectation of a written object or collection.
#[derive(Debug)]
pub(super) struct Expectation {
    expected: Expected,
    // Time of the write.
    since: Instant,
    // Time from which the server is read.
    due: Instant,
}

#[derive(Debug)]
enum Expected {
    /// Outcome that is unknown until the server is read.
    Unknown,
    /// State in the response, for every cache.
    Written(ObjectState),
    /// State in a read of the server, for each cache that lacked the object then: a read applies the
    /// selectors of its cache.
    Read(HashMap<InformerKey, ObjectState>),
}

/// State of an object on the server.
#[derive(Clone, Debug)]
pub(super) enum ObjectState {
    /// The object exists at a version.
    Stored { uid: Arc<str>, version: Arc<str> },
    /// The object has been deleted, so that it is gone or terminating.
    Deleted { uid: Arc<str> },
    /// A read at this version did not find the object.
    Absent { version: Arc<str> },
    /// The object exists, but cannot be decoded, so that no cache has its current state.
    Unreadable,
}

impl Expectation {
    /// Creates the expectation of a write; without a state, the server has to be read.
    pub(super) fn new(state: Option<ObjectState>) -> Self {
        let since = Instant::now();
        match state {
            None => Self { expected: Expected::Unknown, since, due: since },
            Some(state) => {
                let due = since + READ_DELAY;
                Self { expected: Expected::Written(state), since, due }
            }
        }
    }

    /// Returns the expectation of what a read of the server has found. The next read is due after as
    /// long as the wait so far.
    pub(super) fn to_read(&self, lacking: &[Attached]) -> Self {
        let is_opaque = |cache: &Attached| cache.served.version_order == VersionOrder::Opaque;
        let least = if lacking.iter().any(is_opaque) { OPAQUE_READ_DELAY } else { READ_DELAY };
        let wait = self.since.elapsed().clamp(least, LONGEST_READ_DELAY);
        let expected = Expected::Read(HashMap::new());
        Self { expected, since: self.since, due: Instant::now() + wait }
    }

    /// Adds what a read has found for a cache.
    pub(super) fn expect_in(&mut self, cache: InformerKey, state: ObjectState) {
        if let Expected::Read(states) = &mut self.expected {
            states.insert(cache, state);
        } else {
            self.expected = Expected::Read(HashMap::from([(cache, state)]));
        }
    }

    /// Replaces the expectation by that of a later write of the same target.
    ///
    /// A target that has to be read stays so, and later writes do not postpone a read. Of two
    /// responses to concurrent writes, the newer version counts, which may not be the one that
    /// arrived last.
    pub(super) fn replace(&mut self, new: Self) {
        let is_kept = match (&self.expected, &new.expected) {
            (Expected::Unknown, _) => true,
            (Expected::Written(old), Expected::Written(new)) => {
                VersionOrder::Comparable.is_older(new.version(), old.version())
            }
            (Expected::Written(_) | Expected::Read(_), _) => false,
        };
        if !is_kept {
            *self = Self { since: self.since, due: self.due.min(new.due), ..new };
        }
    }

    /// Keeps the time of the next read of an earlier expectation of the same target.
    pub(super) fn keep_due(&mut self, earlier: &Self) {
        self.due = self.due.min(earlier.due);
    }

    /// Returns whether the server is to be read for the caches that lack the object. It is read at
    /// once if a cache has another opaque version than the response, which may be a newer one.
    pub(super) fn is_due(&self, key: &ObjectKey, lacking: &[Attached]) -> bool {
        let is_undecided = |cache: &Attached| {
            cache.served.version_order == VersionOrder::Opaque && cache.store.stored(key).is_some()
        };
        let is_written = matches!(self.expected, Expected::Written(ObjectState::Stored { .. }));
        self.due <= Instant::now() || is_written && lacking.iter().any(is_undecided)
    }

    /// Returns whether a cache holds the object. A collection has no state, and is read.
    pub(super) fn is_held(&self, target: &Target, cache: &Attached) -> bool {
        let state = match &self.expected {
            Expected::Unknown => return false,
            Expected::Written(state) => state,
            Expected::Read(states) => match states.get(&cache.key) {
                Some(state) => state,
                None => return true,
            },
        };
        target.key().is_some_and(|key| state.is_held(&key, cache))
    }

    /// Version in the response to the write.
    #[cfg(test)]
    pub(super) fn written_version(&self) -> Option<&str> {
        match &self.expected {
            Expected::Written(state) => Some(state.version()),
            Expected::Unknown | Expected::Read(_) => None,
        }
    }
}

impl ObjectState {
    /// Returns the version; empty if there is none.
    fn version(&self) -> &str {
        match self {
            Self::Stored { version, .. } | Self::Absent { version } => version,
            Self::Deleted { .. } | Self::Unreadable => "",
        }
    }

    /// Returns whether a cache has this state or a newer one.
    pub(super) fn is_held(&self, key: &ObjectKey, cache: &Attached) -> bool {
        is_included(self.version(), cache.store.version())
            || self.is_held_as(cache.store.stored(key).as_ref(), cache.served.version_order)
    }

    /// Returns whether a cached object shows this state or a newer one. Opaque versions are equal or
    /// different, so that the cache has to reach the very state.
    fn is_held_as(&self, cached: Option<&Object>, order: VersionOrder) -> bool {
        let cached = cached.map(Object::header);
        match (self, cached) {
            (Self::Unreadable, _) | (Self::Deleted { .. } | Self::Absent { .. }, None) => true,
            (Self::Stored { .. }, None) => false,
            (Self::Deleted { uid }, Some(cached)) => {
                cached.uid != *uid || cached.deletion_timestamp.is_some()
            }
            (Self::Stored { uid, version }, Some(cached)) => {
                (uid, version) == (&cached.uid, &cached.resource_version)
                    || order.is_older(version, &cached.resource_version)
            }
            (Self::Absent { version }, Some(cached)) => {
                order.is_older(version, &cached.resource_version)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::fixture::widget;

    fn object(uid: &str, version: &str) -> Object {
        widget(json!({"name": "a", "uid": uid, "resourceVersion": version}))
    }

    fn stored(uid: &str, version: &str) -> ObjectState {
        ObjectState::Stored { uid: uid.into(), version: version.into() }
    }

    fn absent(version: &str) -> ObjectState {
        ObjectState::Absent { version: version.into() }
    }

    #[track_caller]
    fn check(state: ObjectState, cached: Option<Object>, expected: bool) {
        let is_held = state.is_held_as(cached.as_ref(), VersionOrder::Comparable);
        assert_eq!(is_held, expected, "{state:?}");
    }

    #[track_caller]
    fn check_opaque(state: ObjectState, cached: Option<Object>, expected: bool) {
        let is_held = state.is_held_as(cached.as_ref(), VersionOrder::Opaque);
        assert_eq!(is_held, expected, "{state:?}");
    }

    #[test]
    fn cache_holds_what_it_has_at_the_same_or_a_newer_version() {
        check(stored("a", "7"), Some(object("a", "7")), true);
        check(stored("a", "7"), Some(object("a", "12")), true);
        check(stored("a", "7"), Some(object("b", "12")), true);
        check(stored("a", "x"), Some(object("a", "x")), true);
        check(absent("10"), None, true);
        // Created after the read.
        check(absent("10"), Some(object("a", "11")), true);
        check(ObjectState::Unreadable, Some(object("a", "6")), true);
    }

    #[test]
    fn cache_is_behind_what_it_does_not_have() {
        check(stored("a", "7"), None, false);
        check(stored("a", "7"), Some(object("a", "6")), false);
        check(stored("b", "7"), Some(object("a", "6")), false);
        check(absent("10"), Some(object("a", "6")), false);
    }

    #[test]
    fn deleted_object_is_gone_or_terminating() {
        let deleted = || ObjectState::Deleted { uid: "a".into() };
        let terminating = json!({
            "name": "a", "uid": "a", "resourceVersion": "9",
            "deletionTimestamp": "2020-01-01T00:00:00Z",
        });
        check(deleted(), Some(object("a", "7")), false);
        check(deleted(), Some(widget(terminating)), true);
        check(deleted(), Some(object("b", "8")), true);
        check(deleted(), None, true);
    }

    #[test]
    fn opaque_versions_are_not_compared() {
        check_opaque(stored("a", "7"), Some(object("a", "7")), true);
        check_opaque(stored("a", "7"), Some(object("a", "12")), false);
        check_opaque(stored("a", "7"), None, false);
        check_opaque(absent("10"), Some(object("a", "11")), false);
        check_opaque(absent("10"), None, true);
        // Without versions, an object of the same uid is the same.
        check_opaque(stored("a", ""), Some(object("a", "")), true);
        check_opaque(stored("a", ""), Some(object("b", "")), false);
    }
}
