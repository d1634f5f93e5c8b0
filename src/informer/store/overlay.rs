//! Overlay: live reads that replace older cached objects for one reader of a store.
//!
//! The informer stays the only writer of the store. A live read is replaced in turn by any later
//! event of its object.

use std::{collections::BTreeMap, sync::Arc};

use super::{Store, StoreState};
use crate::{
    informer::{Object, ObjectKey},
    kind::{VersionOrder, is_included},
};

/// Live reads of objects of one store, by key. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay(Arc<BTreeMap<ObjectKey, LiveObject>>);

/// Object as a live read found it.
#[derive(Clone, Debug)]
pub(crate) struct LiveObject {
    /// Object; `None` if it did not exist.
    pub(crate) object: Option<Object>,
    /// Version of the object, or of the list that lacked it.
    pub(crate) version: Arc<str>,
    /// Cached object that the read replaces.
    pub(crate) cached: Option<Object>,
    /// Order of the versions of the type.
    pub(crate) order: VersionOrder,
}

impl Overlay {
    /// Returns whether there are no live reads.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a live read.
    pub(crate) fn insert(&mut self, key: ObjectKey, live: LiveObject) {
        Arc::make_mut(&mut self.0).insert(key, live);
    }
}

impl LiveObject {
    /// Returns whether the read is newer than the cached object of a store that includes every
    /// change up to the version `reached`.
    fn is_newer(&self, cached: Option<&Object>, reached: u64) -> bool {
        if is_included(&self.version, reached) {
            return false;
        }
        match (cached, &self.cached) {
            (None, None) => true,
            (Some(cached), Some(then)) if cached.is_same_version(then) => true,
            // An event that the informer received since.
            (Some(cached), _) => {
                self.order.is_older(&cached.header().resource_version, &self.version)
            }
            // The deletion of an older object; a later one has a version up to `reached`.
            (None, Some(_)) => reached > 0 && self.order == VersionOrder::Comparable,
        }
    }
}

impl Store {
    /// Returns a reader of the same objects, in which live reads replace older objects.
    #[must_use]
    pub(crate) fn overlaid_by(&self, overlay: &Overlay) -> Self {
        Self { overlay: overlay.clone(), ..self.clone() }
    }

    /// Returns the current object of a name.
    pub(super) fn current(&self, state: &StoreState, key: &ObjectKey) -> Option<Object> {
        let cached = state.objects.get(key);
        match self.overlay.0.get(key).filter(|live| live.is_newer(cached, self.version())) {
            Some(live) => live.object.clone(),
            None => cached.cloned(),
        }
    }

    /// Replaces cached objects by newer live reads that belong to the same selection.
    pub(super) fn updated(
        &self,
        state: &StoreState,
        mut found: Vec<Object>,
        belongs: impl Fn(&Object) -> bool,
    ) -> Vec<Object> {
        if self.overlay.is_empty() {
            return found;
        }
        let reached = self.version();
        let is_newer = |(key, live): &(&ObjectKey, &LiveObject)| {
            live.is_newer(state.objects.get(key), reached)
        };
        let newer: BTreeMap<_, _> = self.overlay.0.iter().filter(is_newer).collect();
        found.retain(|object| !newer.contains_key(object.key()));
        let live = newer.values().filter_map(|live| live.object.as_ref());
        found.extend(live.filter(|object| belongs(object)).cloned());
        found.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::informer::{Index, Interest, Selection, Selector, fixture::widgets};

    fn object(name: &str, version: &str, metadata: Value) -> Object {
        let mut object = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": version},
        });
        for (field, value) in metadata.as_object().unwrap() {
            object["metadata"][field] = value.clone();
        }
        Object::from_json(object.to_string(), &widgets()).unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("ns", name)
    }

    fn live(object: Option<Object>, version: &str, cached: Option<Object>) -> LiveObject {
        LiveObject { object, version: version.into(), cached, order: VersionOrder::Comparable }
    }

    fn of(owner: &str) -> Value {
        let owner = json!({
            "apiVersion": "v1", "kind": "Owner", "name": owner, "uid": owner, "controller": true,
        });
        json!({"labels": {"a": "b"}, "ownerReferences": [owner]})
    }

    fn names(objects: &[Object]) -> Vec<String> {
        let versioned = |it: &Object| format!("{}@{}", it.key().name, it.header().resource_version);
        objects.iter().map(versioned).collect()
    }

    #[test]
    fn every_read_has_the_live_objects() {
        let whole = [Interest::Everything];
        let store = Store::new().join(crate::informer::interest::SubscriberId(1), &whole);
        store.add_index(Index::new("a", |object| {
            object.header().labels.get("a").map(str::to_owned).into_iter().collect()
        }));
        for cached in [object("gone", "1", of("p")), object("old", "2", of("p"))] {
            store.put(&cached, 0);
        }
        store.put(&object("orphan", "3", json!({"labels": {"a": "b"}})), 0);
        let mut overlay = Overlay::default();
        overlay.insert(key("gone"), live(None, "9", store.get(&key("gone"))));
        overlay.insert(
            key("old"),
            live(Some(object("old", "7", of("q"))), "7", store.get(&key("old"))),
        );
        overlay.insert(key("new"), live(Some(object("new", "8", of("p"))), "8", None));
        overlay.insert(
            key("orphan"),
            live(Some(object("orphan", "9", of("p"))), "9", store.get(&key("orphan"))),
        );
        let live = store.overlaid_by(&overlay);

        assert!(live.get(&key("gone")).is_none());
        assert_eq!(names(&live.get(&key("old")).into_iter().collect::<Vec<_>>()), ["old@7"]);
        let all = ["new@8", "old@7", "orphan@9"];
        assert_eq!(names(&live.list().unwrap()), all);
        assert_eq!((live.len(), store.len()), (3, 3));
        assert_eq!(names(&live.in_namespace("ns").unwrap()), all);
        assert_eq!(live.in_namespace("other").unwrap().len(), 0);
        assert_eq!(names(&live.by_index("a", "b").unwrap()), all);
        assert_eq!(names(&live.controlled_by("p")), ["new@8", "orphan@9"]);
        assert_eq!(names(&live.owned_by("q")), ["old@7"]);
        let selection = Selection { namespace: None, selector: Selector::label("a", "b") };
        assert_eq!(names(&live.orphans(&selection)), [""; 0]);
        assert_eq!(names(&live.claimable_by("p", Some(&selection))), ["new@8", "orphan@9"]);
        assert_eq!(names(&store.orphans(&selection)), ["orphan@3"], "the store is as before");
        assert_eq!(names(&store.list().unwrap()), ["gone@1", "old@2", "orphan@3"]);
    }

    #[test]
    fn later_events_replace_live_reads() {
        let cached = |version: &str| Some(object("a", version, json!({})));
        let read = live(cached("7"), "7", cached("2"));

        assert!(read.is_newer(cached("2").as_ref(), 0), "no event since");
        assert!(read.is_newer(cached("5").as_ref(), 0), "an earlier event");
        assert!(!read.is_newer(cached("7").as_ref(), 0));
        assert!(!read.is_newer(cached("8").as_ref(), 0));
        assert!(!read.is_newer(None, 0), "deleted since");
        assert!(!read.is_newer(None, 8), "deleted since");
        assert!(read.is_newer(None, 5), "an older object was deleted");
        assert!(!read.is_newer(cached("2").as_ref(), 7), "all changes up to it are known");
        let opaque = LiveObject { order: VersionOrder::Opaque, ..read };
        assert!(opaque.is_newer(cached("2").as_ref(), 0));
        assert!(!opaque.is_newer(cached("5").as_ref(), 0), "any event is a later one");
        assert!(!opaque.is_newer(None, 5), "a deletion too");
        let absent = live(None, "9", None);
        assert!(absent.is_newer(None, 0));
        assert!(!absent.is_newer(cached("11").as_ref(), 0), "created since");
    }
}
