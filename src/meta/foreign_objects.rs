//! Foreign objects: orphans that a live read has shown not to be a parent's, and revisions that are
//! reported as ignored.
//!
//! Metadata entries lack annotations, so that each sync would read the orphan again, and report
//! the revision again.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::informer::Header;

/// Maximum number of objects that are remembered.
const MAX_OBJECTS: usize = 10_000;

/// Versions of objects that are not a parent's.
#[derive(Debug, Default)]
pub(crate) struct ForeignObjects(Mutex<HashSet<ForeignObject>>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct ForeignObject {
    parent_uid: String,
    uid: String,
    version: String,
}

impl ForeignObjects {
    /// Returns whether this version of an object is known not to be a parent's.
    pub(crate) fn contains(&self, parent_uid: &str, object: &Header) -> bool {
        let objects = self.0.lock();
        !objects.is_empty() && objects.contains(&ForeignObject::new(parent_uid, object))
    }

    /// Adds an object, by the version that is cached: a live read has shown that it is not a
    /// parent's. An object without a version is not added, since it may change unnoticed.
    pub(crate) fn insert(&self, parent_uid: &str, cached: &Header) {
        if cached.resource_version.is_empty() {
            return;
        }
        let mut objects = self.0.lock();
        if objects.len() >= MAX_OBJECTS {
            objects.clear();
        }
        objects.insert(ForeignObject::new(parent_uid, cached));
    }

    pub(crate) fn clear(&self) {
        *self.0.lock() = HashSet::new();
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

        objects.insert("parent", object(1).header());

        assert!(objects.contains("parent", object(1).header()));
        assert!(!objects.contains("parent", object(2).header()));
        assert!(!objects.contains("other", object(1).header()));
        objects.clear();
        assert!(!objects.contains("parent", object(1).header()));
        let unversioned = Fixture::new("a").set("resourceVersion", json!("")).object();
        objects.insert("parent", unversioned.header());
        assert!(!objects.contains("parent", unversioned.header()), "it may have changed");
    }
}
