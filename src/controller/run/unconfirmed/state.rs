//! State of a written object on the server, and its comparison with a cache.

use std::sync::Arc;

use crate::{
    controller::run::input_status::Attached,
    informer::{LiveObject, Object, ObjectKey},
    kind::{VersionOrder, is_included},
};

/// State of an object on the server.
#[derive(Clone, Debug)]
pub(super) enum ObjectState {
    /// The object exists at a version. A read of it has its content, as a cache keeps it, which is
    /// compared if there is no version.
    Stored { uid: Arc<str>, version: Arc<str>, content: Option<Object> },
    /// The object has been deleted, so that it is gone or terminating.
    Deleted { uid: Arc<str> },
    /// A read at this version did not find the object.
    Absent { version: Arc<str> },
    /// The object exists, but cannot be decoded, so that no cache has its current state.
    Unreadable,
}

/// Result of a comparison of a state with a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The cache has this state or a newer one.
    Held,
    /// The cache has an older state.
    Behind,
    /// The cache has another state, and the versions cannot be compared.
    Undecided,
}

impl ObjectState {
    /// Returns the version; empty if there is none.
    pub(super) fn version(&self) -> &str {
        match self {
            Self::Stored { version, .. } | Self::Absent { version } => version,
            Self::Deleted { .. } | Self::Unreadable => "",
        }
    }

    /// Returns the state as a read found it, in place of the object that a cache had before it.
    pub(super) fn live(&self, cached: Option<Object>, order: VersionOrder) -> LiveObject {
        let (object, version) = match self {
            Self::Stored { version, content, .. } => (content.clone(), version),
            Self::Absent { version } => (None, version),
            Self::Deleted { .. } | Self::Unreadable => (None, &Arc::default()),
        };
        LiveObject { object, version: Arc::clone(version), cached, order }
    }

    /// Compares the state with a cache.
    pub(super) fn compare(&self, key: &ObjectKey, cache: &Attached) -> Comparison {
        let reached = cache.store.version();
        if is_included(self.version(), reached) {
            return Comparison::Held;
        }
        self.compare_object(cache.store.get(key).as_ref(), cache.served.version_order)
    }

    fn compare_object(&self, cached: Option<&Object>, order: VersionOrder) -> Comparison {
        match (self, cached) {
            (Self::Unreadable, _) | (Self::Deleted { .. } | Self::Absent { .. }, None) => {
                Comparison::Held
            }
            (Self::Stored { .. }, None) => Comparison::Behind,
            (Self::Deleted { uid }, Some(cached)) => {
                let cached = cached.header();
                match cached.uid != *uid || cached.deletion_timestamp.is_some() {
                    true => Comparison::Held,
                    false => Comparison::Behind,
                }
            }
            (Self::Stored { .. } | Self::Absent { .. }, Some(cached)) => {
                let cached_version = &cached.header().resource_version;
                if self.is_state_of(cached) || order.is_older(self.version(), cached_version) {
                    Comparison::Held
                } else if order.is_older(cached_version, self.version()) {
                    Comparison::Behind
                } else {
                    Comparison::Undecided
                }
            }
        }
    }

    /// Returns whether a cached object has this state.
    fn is_state_of(&self, cached: &Object) -> bool {
        let Self::Stored { uid, version, content } = self else { return false };
        let header = cached.header();
        let content = content.as_ref().filter(|_| version.is_empty());
        (uid, version) == (&header.uid, &header.resource_version)
            && content.is_none_or(|content| match cached.is_whole() {
                true => content.has_json_of(cached),
                false => content.reduced().header() == header,
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixture::widget;

    fn object(uid: &str, version: &str) -> Object {
        widget(json!({"name": "a", "uid": uid, "resourceVersion": version}))
    }

    fn stored(uid: &str, version: &str) -> ObjectState {
        ObjectState::Stored { uid: uid.into(), version: version.into(), content: None }
    }

    fn absent(version: &str) -> ObjectState {
        ObjectState::Absent { version: version.into() }
    }

    #[track_caller]
    fn check(state: ObjectState, cached: Option<Object>, expected: Comparison) {
        check_by(VersionOrder::Comparable, state, cached, expected);
    }

    #[track_caller]
    fn check_by(
        order: VersionOrder,
        state: ObjectState,
        cached: Option<Object>,
        expected: Comparison,
    ) {
        assert_eq!(state.compare_object(cached.as_ref(), order), expected, "{state:?}");
    }

    #[test]
    fn cache_holds_what_it_has_at_the_same_or_a_newer_version() {
        check(stored("a", "7"), Some(object("a", "7")), Comparison::Held);
        check(stored("a", "7"), Some(object("a", "12")), Comparison::Held);
        check(stored("a", "7"), Some(object("b", "12")), Comparison::Held);
        check(stored("a", "x"), Some(object("a", "x")), Comparison::Held);
        check(absent("10"), None, Comparison::Held);
        // Created after the read.
        check(absent("10"), Some(object("a", "11")), Comparison::Held);
        check(ObjectState::Unreadable, Some(object("a", "6")), Comparison::Held);
    }

    #[test]
    fn cache_is_behind_what_it_does_not_have() {
        check(stored("a", "7"), None, Comparison::Behind);
        check(stored("a", "7"), Some(object("a", "6")), Comparison::Behind);
        check(stored("b", "7"), Some(object("a", "6")), Comparison::Behind);
        check(absent("10"), Some(object("a", "6")), Comparison::Behind);
    }

    #[test]
    fn deleted_object_is_gone_or_terminating() {
        let deleted = || ObjectState::Deleted { uid: "a".into() };
        let terminating = json!({
            "name": "a", "uid": "a", "resourceVersion": "9",
            "deletionTimestamp": "2020-01-01T00:00:00Z",
        });
        check(deleted(), Some(object("a", "7")), Comparison::Behind);
        check(deleted(), Some(widget(terminating)), Comparison::Held);
        check(deleted(), Some(object("b", "8")), Comparison::Held);
        check(deleted(), None, Comparison::Held);
    }

    #[test]
    fn opaque_versions_are_not_compared() {
        let check = |state, cached, expected| {
            check_by(VersionOrder::Opaque, state, cached, expected);
        };
        check(stored("a", "7"), Some(object("a", "7")), Comparison::Held);
        check(stored("a", "7"), Some(object("a", "12")), Comparison::Undecided);
        check(stored("a", "7"), None, Comparison::Behind);
        check(absent("10"), Some(object("a", "11")), Comparison::Undecided);
        let bare = |labels: Value| {
            widget(json!({"name": "a", "uid": "a", "resourceVersion": "", "labels": labels}))
        };
        let (plain, labelled) = (bare(json!({})), bare(json!({"x": "y"})));
        let state = |content: &Object| ObjectState::Stored {
            uid: "a".into(),
            version: "".into(),
            content: Some(content.clone()),
        };
        check(state(&labelled), Some(plain), Comparison::Undecided);
        check(state(&labelled), Some(labelled.clone()), Comparison::Held);
    }
}
