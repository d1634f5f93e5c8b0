//! Objects of an informer in the order of their keys, with the built-in indexes.
//!
//! A plain data structure: the store locks it. Only whole objects are indexed by owner, so that a
//! metadata entry costs no more than itself.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    mem,
    ops::Bound,
    sync::Arc,
};

use super::{Interest, Object, ObjectKey, interest::Selection, share::ObjectCount};
use crate::kind::GroupKind;

/// Objects by key and by their indexes.
#[derive(Default)]
pub(super) struct Objects {
    // Objects by key, each with the number of the last list that had it.
    by_key: BTreeMap<OrderedObject, ListNumber>,
    owners: HashMap<Arc<str>, SortedObjects>,
    owner_kinds: HashMap<Arc<GroupKind>, OwnedByKind>,
    // Objects without a controller, by the labels that interests in orphans are routed by.
    orphans: HashMap<Box<str>, LabelIndex>,
}

/// Number of a list. Objects that a complete list lacks have the number of an earlier one.
pub(super) type ListNumber = u32;

/// Objects with an owner of one kind.
#[derive(Default)]
struct OwnedByKind {
    whole: SortedObjects,
    accounted: usize,
    entries: usize,
}

#[derive(Default)]
struct LabelIndex {
    users: usize,
    values: HashMap<Box<str>, SortedObjects>,
}

/// Objects sorted by key.
#[derive(Default)]
struct SortedObjects(Vec<Object>);

/// An object that is compared by its key, so that an element is one pointer.
struct OrderedObject(Object);

/// Part of a scan in the order of keys.
pub(super) struct Scanned {
    /// Requested objects.
    pub(super) objects: Vec<Object>,
    /// Key of the last object examined; `None` if none was.
    pub(super) last: Option<ObjectKey>,
    /// True if no object follows.
    pub(super) end: bool,
}

impl Objects {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Object> {
        self.by_key.get_key_value(key).map(|(object, _)| &object.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.by_key.keys().map(|object| &object.0)
    }

    /// Returns the objects of a namespace, in the order of their names.
    pub(super) fn in_namespace<'a>(
        &'a self,
        namespace: &'a Arc<str>,
    ) -> impl Iterator<Item = &'a Object> {
        let first = ObjectKey { namespace: Some(namespace.clone()), name: "".into() };
        let rest = self.by_key.range::<ObjectKey, _>((Bound::Included(&first), Bound::Unbounded));
        rest.map(|(object, _)| &object.0)
            .take_while(move |object| object.key().namespace.as_ref() == Some(namespace))
    }

    /// Returns the whole objects with the owner of a uid.
    pub(super) fn owned_by(&self, uid: &str) -> &[Object] {
        self.owners.get(uid).map_or(&[], |bucket| &bucket.0)
    }

    /// Returns the objects without a controller that a selection selects: by the smallest index of
    /// its labels, or by a scan if none of them is indexed.
    pub(super) fn orphans(&self, selection: &Selection) -> Vec<Object> {
        let interest = Interest::Orphans(selection.clone());
        let is_selected = |object: &&Object| interest.concerns(object.header());
        let indexed = selection.positive().filter_map(|(key, values)| {
            let index = self.orphans.get(key)?;
            Some(values.into_iter().filter_map(|value| index.values.get(value)).collect::<Vec<_>>())
        });
        let namespace = selection.namespace.as_ref();
        let parts = indexed.map(|buckets| {
            buckets.into_iter().map(|bucket| bucket.within(namespace)).collect::<Vec<_>>()
        });
        let smallest = parts.min_by_key(|parts| parts.iter().map(|it| it.len()).sum::<usize>());
        match (smallest, &selection.namespace) {
            (Some(parts), _) => parts.into_iter().flatten().filter(is_selected).cloned().collect(),
            (None, Some(namespace)) => {
                self.in_namespace(namespace).filter(is_selected).cloned().collect()
            }
            (None, None) => self.iter().filter(is_selected).cloned().collect(),
        }
    }

    /// Adds or replaces an object; returns the old one.
    pub(super) fn put(&mut self, object: &Object, list: ListNumber) -> Option<Object> {
        // Removed first: the map would keep the old key, which is the old object.
        let old = self.by_key.remove_entry(object.key()).map(|(old, _)| old.0);
        match &old {
            Some(old) if has_same_places(old, object) => self.replace(object),
            Some(old) => {
                self.unindex(old);
                self.index(object);
            }
            None => self.index(object),
        }
        self.by_key.insert(OrderedObject(object.clone()), list);
        old
    }

    pub(super) fn list(&self, key: &ObjectKey) -> Option<ListNumber> {
        self.by_key.get(key).copied()
    }

    /// Records that a list has an object, which is unchanged.
    pub(super) fn touch(&mut self, key: &ObjectKey, list: ListNumber) {
        if let Some(seen) = self.by_key.get_mut(key) {
            *seen = list;
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Object> {
        let old = self.by_key.remove_entry(key).map(|(old, _)| old.0)?;
        self.unindex(&old);
        Some(old)
    }

    /// Returns the keys of the objects that were last seen in another list.
    pub(super) fn not_in(&self, list: ListNumber) -> Vec<ObjectKey> {
        let other = self.by_key.iter().filter(|(_, seen)| **seen != list);
        other.map(|(object, _)| object.0.key().clone()).collect()
    }

    /// Returns the objects after a key that an interest concerns, of at most `examine` objects.
    pub(super) fn after(
        &self,
        key: Option<&ObjectKey>,
        interests: &[Interest],
        examine: usize,
    ) -> Scanned {
        let concerns = |object: &&Object| interests.iter().any(|it| it.concerns(object.header()));
        let part = match interests {
            [] => Vec::new(),
            // Whole, since the subscriber keeps them so.
            [Interest::OwnerKind(kind)] => {
                let all = self.owner_kinds.get(kind).map_or(&[][..], |owned| &owned.whole.0);
                let from = key.map_or(0, |key| all.partition_point(|it| it.key() <= key));
                all[from..].iter().take(examine + 1).collect()
            }
            _ => {
                let from = key.map_or(Bound::Unbounded, Bound::Excluded);
                let rest = self.by_key.range::<ObjectKey, _>((from, Bound::Unbounded));
                rest.take(examine + 1).map(|(object, _)| &object.0).collect::<Vec<_>>()
            }
        };
        let end = part.len() <= examine;
        let part = &part[..part.len().min(examine)];
        Scanned {
            objects: part.iter().copied().filter(concerns).cloned().collect(),
            last: part.last().map(|object| object.key().clone()),
            end,
        }
    }

    /// Returns the count of the whole objects with an owner of a kind.
    pub(super) fn count_of(&self, kind: &GroupKind) -> ObjectCount {
        let count = |owned: &OwnedByKind| ObjectCount {
            objects: owned.whole.0.len(),
            accounted: owned.accounted,
        };
        self.owner_kinds.get(kind).map(count).unwrap_or_default()
    }

    /// Returns whether an interest concerns a metadata entry.
    pub(super) fn has_entries_of(&self, interest: &Interest) -> bool {
        match interest {
            Interest::OwnerKind(kind) => {
                self.owner_kinds.get(kind).is_some_and(|owned| owned.entries > 0)
            }
            Interest::Named(key) => self.get(key).is_some_and(|object| !object.is_whole()),
            Interest::Everything
            | Interest::OwnerUid(_)
            | Interest::NamedAnywhere(_)
            | Interest::Selected(_)
            | Interest::Orphans(_) => {
                let mut entries = self.iter().filter(|object| !object.is_whole());
                entries.any(|object| interest.concerns(object.header()))
            }
        }
    }

    /// Indexes the objects without a controller by a label, until the last user is gone.
    pub(super) fn index_label(&mut self, key: &str) {
        if let Some(index) = self.orphans.get_mut(key) {
            index.users += 1;
            return;
        }
        let mut index = LabelIndex { users: 1, values: HashMap::new() };
        for object in self.by_key.keys().map(|object| &object.0) {
            if object.controller().is_none()
                && let Some(value) = object.header().labels.get(key)
            {
                index.insert(value, object);
            }
        }
        self.orphans.insert(key.into(), index);
    }

    pub(super) fn unindex_label(&mut self, key: &str) {
        if let Some(index) = self.orphans.get_mut(key) {
            index.users -= 1;
            if index.users == 0 {
                self.orphans.remove(key);
            }
        }
    }

    fn index(&mut self, object: &Object) {
        for owner in object.header().owners.iter() {
            let owned = self.owner_kinds.entry(owner.kind.clone()).or_default();
            if object.is_whole() {
                owned.insert(object);
                self.owners.entry(owner.uid.clone()).or_default().insert(object);
            } else {
                owned.entries += 1;
            }
        }
        self.index_labels(object);
    }

    /// Replaces the object of the same places in the indexes.
    fn replace(&mut self, object: &Object) {
        for owner in object.header().owners.iter().filter(|_| object.is_whole()) {
            if let Some(owned) = self.owner_kinds.get_mut(&owner.kind) {
                owned.insert(object);
            }
            if let Some(bucket) = self.owners.get_mut(&owner.uid) {
                bucket.insert(object);
            }
        }
        self.index_labels(object);
    }

    fn index_labels(&mut self, object: &Object) {
        if !self.orphans.is_empty() && object.controller().is_none() {
            for (key, value) in object.header().labels.iter() {
                if let Some(index) = self.orphans.get_mut(key) {
                    index.insert(value, object);
                }
            }
        }
    }

    fn unindex(&mut self, object: &Object) {
        for owner in object.header().owners.iter() {
            if let Some(owned) = self.owner_kinds.get_mut(&owner.kind) {
                if object.is_whole() {
                    owned.remove(object.key());
                } else {
                    owned.entries -= 1;
                }
                if owned.entries == 0 && owned.whole.0.is_empty() {
                    self.owner_kinds.remove(&owner.kind);
                }
            }
            if let Some(bucket) = self.owners.get_mut(&owner.uid) {
                bucket.remove(object.key());
                if bucket.0.is_empty() {
                    self.owners.remove(&owner.uid);
                }
            }
        }
        if !self.orphans.is_empty() && object.controller().is_none() {
            for (key, value) in object.header().labels.iter() {
                if let Some(index) = self.orphans.get_mut(key) {
                    index.remove(value, object);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn has_indexes(&self) -> bool {
        !self.owners.is_empty()
            || !self.owner_kinds.is_empty()
            || self.orphans.values().any(|index| !index.values.is_empty())
    }
}

impl OwnedByKind {
    fn insert(&mut self, object: &Object) {
        let old = self.whole.insert(object);
        self.accounted += object.accounted();
        self.accounted -= old.as_ref().map_or(0, Object::accounted);
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.accounted -= self.whole.remove(key).as_ref().map_or(0, Object::accounted);
    }
}

impl LabelIndex {
    fn insert(&mut self, value: &str, object: &Object) {
        match self.values.get_mut(value) {
            Some(bucket) => drop(bucket.insert(object)),
            None => {
                drop(self.values.insert(value.into(), SortedObjects(Vec::from([object.clone()]))))
            }
        }
    }

    fn remove(&mut self, value: &str, object: &Object) {
        if let Some(bucket) = self.values.get_mut(value) {
            bucket.remove(object.key());
            if bucket.0.is_empty() {
                self.values.remove(value);
            }
        }
    }
}

/// Returns whether the indexes have both versions of an object in the same places.
fn has_same_places(old: &Object, new: &Object) -> bool {
    let (before, after) = (old.header(), new.header());
    old.is_whole() == new.is_whole()
        && before.owners == after.owners
        && before.labels == after.labels
}

impl SortedObjects {
    /// Returns the objects of a namespace; all, without one.
    fn within(&self, namespace: Option<&Arc<str>>) -> &[Object] {
        let Some(namespace) = namespace else { return &self.0 };
        let namespace_of = |object: &Object| object.key().namespace.clone();
        let wanted = Some(namespace.clone());
        let from = self.0.partition_point(|object| namespace_of(object) < wanted);
        let until = self.0.partition_point(|object| namespace_of(object) <= wanted);
        &self.0[from..until]
    }

    /// Adds or replaces an object; returns the old one.
    fn insert(&mut self, object: &Object) -> Option<Object> {
        // Lists arrive in the order of keys.
        if self.0.last().is_none_or(|last| last.key() < object.key()) {
            self.0.push(object.clone());
            return None;
        }
        match self.find(object.key()) {
            Ok(at) => Some(mem::replace(&mut self.0[at], object.clone())),
            Err(at) => {
                self.0.insert(at, object.clone());
                None
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Object> {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at))
    }

    fn find(&self, key: &ObjectKey) -> Result<usize, usize> {
        self.0.binary_search_by(|object| object.key().cmp(key))
    }
}

impl Borrow<ObjectKey> for OrderedObject {
    fn borrow(&self) -> &ObjectKey {
        self.0.key()
    }
}

impl PartialEq for OrderedObject {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for OrderedObject {}

impl PartialOrd for OrderedObject {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedObject {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}
