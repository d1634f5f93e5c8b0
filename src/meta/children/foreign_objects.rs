//! Foreign objects: orphans that a live read has shown not to be a parent's, and revisions that are
//! reported as ignored.
//!
//! Metadata entries lack annotations, so that each sync would read the orphan again, and report
//! the revision again.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::informer::Header;

/// Maximum number of objects that are remembered.
const MAX_OBJECTS: usize = 10_000;

/// Versions of objects that are not a parent's.
#[derive(Debug, Default)]
pub(crate) struct ForeignObjects(Mutex<HashMap<ForeignObject, ForeignReason>>);

/// Reason why an orphan is not a parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignReason {
    /// Metadata name another owner, or another controller.
    NotOurs,
    /// Evidence is missing that a controller has written it as a child.
    Unproven,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ForeignObject {
    parent_uid: String,
    uid: String,
    version: String,
}

impl ForeignObjects {
    /// Returns why this version of an object is known not to be a parent's.
    pub(crate) fn get(&self, parent_uid: &str, object: &Header) -> Option<ForeignReason> {
        let objects = self.0.lock();
        if objects.is_empty() {
            return None;
        }
        objects.get(&ForeignObject::new(parent_uid, object)).copied()
    }

    /// Adds an object, by the version that is cached: a live read has shown that it is not a
    /// parent's. An object without a version is not added, since it may change unnoticed.
    pub(crate) fn insert(&self, parent_uid: &str, cached: &Header, reason: ForeignReason) {
        if cached.resource_version.is_empty() {
            return;
        }
        let mut objects = self.0.lock();
        // Any one: if all were forgotten, the next sync would read all of them again.
        if objects.len() >= MAX_OBJECTS
            && let Some(forgotten) = objects.keys().next().cloned()
        {
            objects.remove(&forgotten);
        }
        objects.insert(ForeignObject::new(parent_uid, cached), reason);
    }

    pub(crate) fn clear(&self) {
        *self.0.lock() = HashMap::new();
    }
}

impl ForeignObject {
    fn new(parent_uid: &str, object: &Header) -> Self {
        Self {
            parent_uid: parent_uid.to_owned(),
            uid: object.uid.to_string(),
            version: object.resource_version.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::informer::fixture::Fixture;

    #[test]
    fn another_version_of_a_foreign_object_is_read_again() {
        let objects = ForeignObjects::default();
        let object = |version: u64| Fixture::new("a").version(version).object();

        objects.insert("parent", object(1).header(), ForeignReason::Unproven);

        let known = objects.get("parent", object(1).header());
        assert_eq!(known, Some(ForeignReason::Unproven));
        assert_eq!(objects.get("parent", object(2).header()), None);
        assert_eq!(objects.get("other", object(1).header()), None);
        objects.clear();
        assert_eq!(objects.get("parent", object(1).header()), None);
        let unversioned = Fixture::new("a").set("resourceVersion", json!("")).object();
        objects.insert("parent", unversioned.header(), ForeignReason::NotOurs);
        assert_eq!(objects.get("parent", unversioned.header()), None, "it may have changed");
    }

    #[test]
    fn one_object_more_than_the_limit_forgets_one() {
        let objects = ForeignObjects::default();
        let object = |version: usize| Fixture::new("a").version(version as u64).object();
        let insert = |version| {
            objects.insert("parent", object(version).header(), ForeignReason::Unproven);
        };

        (0..=MAX_OBJECTS).for_each(insert);

        let known = |version: &usize| objects.get("parent", object(*version).header()).is_some();
        assert_eq!((0..=MAX_OBJECTS).filter(known).count(), MAX_OBJECTS);
    }
}
