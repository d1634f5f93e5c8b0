//! Objects of an informer in the order of their keys, with the built-in indexes.
//!
//! A plain data structure: the store locks it. Only whole objects are indexed by owner, so that a
//! metadata entry costs no more than itself.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    ops::Bound,
    slice,
    sync::Arc,
};

use foldhash::quality::RandomState;

use super::{
    Interest, Object, ObjectKey,
    lookups::{CountedIndex, Lookup, LookupIndexes},
    share::ObjectCount,
    sorted_objects::SortedObjects,
};
use crate::kind::GroupKind;

/// Objects by key and by their indexes.
#[derive(Default)]
pub(super) struct Objects {
    // Objects by key, each with the number of the last list that had it.
    by_key: BTreeMap<OrderedObject, ListNumber>,
    owners: HashMap<Arc<str>, SortedObjects, RandomState>,
    owner_kinds: HashMap<Arc<GroupKind>, OwnedByKind, RandomState>,
    lookups: LookupIndexes,
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

/// An object that is compared by its key, so that an element is one pointer.
struct OrderedObject(Object);

/// Part of a scan in the order of keys.
pub(super) struct ScanResult {
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
        self.owners.get(uid).map_or(&[], SortedObjects::all)
    }

    /// Returns the objects that an interest concerns, by index if one has them.
    pub(super) fn concerned_by(&self, interest: &Interest) -> Vec<Object> {
        let is_concerned = |object: &&Object| interest.concerns(object.header());
        self.candidates(interest).filter(is_concerned).cloned().collect()
    }

    /// Returns the whole objects that interests concern, each once.
    pub(super) fn whole_of<'a>(
        &'a self,
        interests: &'a [Interest],
    ) -> impl Iterator<Item = &'a Object> {
        interests.iter().enumerate().flat_map(move |(at, interest)| {
            let earlier = &interests[..at];
            let candidates: Box<dyn Iterator<Item = &'a Object> + 'a> = match interest {
                Interest::OwnerKind(kind) => Box::new(self.owned_by_kind(kind, None)),
                Interest::OwnerUid(uid) => Box::new(self.owned_by(uid).iter()),
                Interest::Everything
                | Interest::Selected(_)
                | Interest::Orphans(_)
                | Interest::Named(_)
                | Interest::NamedAnywhere(_) => self.candidates(interest),
            };
            candidates.filter(move |object| {
                let concerns = |it: &Interest| it.concerns(object.header());
                object.is_whole() && concerns(interest) && !earlier.iter().any(concerns)
            })
        })
    }

    /// Returns all objects that an interest concerns, perhaps with others.
    fn candidates<'a>(
        &'a self,
        interest: &'a Interest,
    ) -> Box<dyn Iterator<Item = &'a Object> + 'a> {
        if let Some(found) = self.lookups.find(interest) {
            return Box::new(found.into_iter().flatten());
        }
        match interest {
            Interest::Named(key) => Box::new(self.get(key).into_iter()),
            Interest::Selected(selection) | Interest::Orphans(selection) => {
                match &selection.namespace {
                    Some(namespace) => Box::new(self.in_namespace(namespace)),
                    None => Box::new(self.iter()),
                }
            }
            Interest::Everything
            | Interest::OwnerKind(_)
            | Interest::OwnerUid(_)
            | Interest::NamedAnywhere(_) => Box::new(self.iter()),
        }
    }

    /// Returns the whole objects with an owner of a kind, after a key.
    fn owned_by_kind(&self, kind: &GroupKind, key: Option<&ObjectKey>) -> slice::Iter<'_, Object> {
        self.owner_kinds.get(kind).map_or_else(|| [].iter(), |owned| owned.whole.after(key))
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
    ) -> ScanResult {
        let concerns = |object: &&Object| interests.iter().any(|it| it.concerns(object.header()));
        let part = match interests.iter().map(owner_kind).collect::<Option<Vec<_>>>() {
            // An index of whole objects: an interest in a kind keeps its objects whole.
            Some(kinds) => {
                let next = |&kind| self.owned_by_kind(kind, key).take(examine + 1);
                let mut part: Vec<_> = kinds.iter().flat_map(next).collect();
                if kinds.len() > 1 {
                    part.sort_unstable_by_key(|object| object.key());
                    part.dedup_by_key(|object| object.key());
                }
                part
            }
            None => {
                let from = key.map_or(Bound::Unbounded, Bound::Excluded);
                let rest = self.by_key.range::<ObjectKey, _>((from, Bound::Unbounded));
                rest.take(examine + 1).map(|(object, _)| &object.0).collect()
            }
        };
        let end = part.len() <= examine;
        let part = &part[..part.len().min(examine)];
        ScanResult {
            objects: part.iter().copied().filter(concerns).cloned().collect(),
            last: part.last().map(|object| object.key().clone()),
            end,
        }
    }

    /// Returns the count of the whole objects with an owner of a kind.
    pub(super) fn count_of(&self, kind: &GroupKind) -> ObjectCount {
        let count = |owned: &OwnedByKind| ObjectCount {
            objects: owned.whole.all().len(),
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
            Interest::Everything
            | Interest::OwnerUid(_)
            | Interest::NamedAnywhere(_)
            | Interest::Named(_)
            | Interest::Selected(_)
            | Interest::Orphans(_) => {
                let mut entries = self.candidates(interest).filter(|object| !object.is_whole());
                entries.any(|object| interest.concerns(object.header()))
            }
        }
    }

    /// Adds a user of a lookup index, which is built for the first one.
    pub(super) fn join_lookup(&mut self, lookup: &Lookup) {
        let Self { by_key, lookups, .. } = self;
        lookups.join(lookup, by_key.keys().map(|object| &object.0));
    }

    /// Removes a user of a lookup index; returns the index after the last one. It is not to be
    /// dropped under a lock.
    pub(super) fn leave_lookup(&mut self, lookup: &Lookup) -> Option<CountedIndex> {
        self.lookups.leave(lookup)
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
        self.lookups.insert(object);
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
        self.lookups.insert(object);
    }

    fn unindex(&mut self, object: &Object) {
        for owner in object.header().owners.iter() {
            if let Some(owned) = self.owner_kinds.get_mut(&owner.kind) {
                if object.is_whole() {
                    owned.remove(object.key());
                } else {
                    owned.entries -= 1;
                }
                if owned.entries == 0 && owned.whole.all().is_empty() {
                    self.owner_kinds.remove(&owner.kind);
                }
            }
            if let Some(bucket) = self.owners.get_mut(&owner.uid) {
                bucket.remove(object.key());
                if bucket.all().is_empty() {
                    self.owners.remove(&owner.uid);
                }
            }
        }
        self.lookups.remove(object);
    }

    #[cfg(test)]
    pub(super) fn has_indexes(&self) -> bool {
        !self.owners.is_empty() || !self.owner_kinds.is_empty() || self.lookup_places() > 0
    }

    /// Number of places of objects in the lookup indexes.
    #[cfg(test)]
    pub(super) fn lookup_places(&self) -> usize {
        self.lookups.places()
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

fn owner_kind(interest: &Interest) -> Option<&GroupKind> {
    match interest {
        Interest::OwnerKind(kind) => Some(kind),
        Interest::Everything
        | Interest::OwnerUid(_)
        | Interest::Selected(_)
        | Interest::Orphans(_)
        | Interest::Named(_)
        | Interest::NamedAnywhere(_) => None,
    }
}

/// Returns whether the indexes have both versions of an object in the same places.
fn has_same_places(old: &Object, new: &Object) -> bool {
    let (before, after) = (old.header(), new.header());
    old.is_whole() == new.is_whole()
        && before.owners == after.owners
        && before.labels == after.labels
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::informer::{COMPARED, Selection, fixture::Fixture};

    /// A thousand foreign objects, six of owners of two kinds, and one of an owner of each.
    fn objects() -> Objects {
        let mut objects = Objects::default();
        for number in 0..1_000 {
            let name = format!("foreign-{number}");
            objects.put(&Fixture::new(&name).namespace("far").object(), 0);
        }
        let owner =
            |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "p", "uid": kind});
        let mut owned = |name: &str, kinds: &[&str]| {
            let owners = kinds.iter().map(|kind| owner(kind)).collect();
            let fixture = Fixture::new(name).namespace("ns");
            objects.put(&fixture.set("ownerReferences", owners).object(), 0);
        };
        for number in 0..6 {
            owned(&format!("o{number}"), &[["A", "B"][number % 2]]);
        }
        owned("o6", &["A", "B"]);
        objects
    }

    fn kinds() -> Vec<Interest> {
        let kind = |kind: &str| GroupKind { group: String::new(), kind: kind.to_owned() };
        ["A", "B"].map(|it| Interest::OwnerKind(kind(it))).to_vec()
    }

    #[test]
    fn scan_for_two_kinds_of_owners_examines_their_objects_only() {
        let objects = objects();
        for examine in [1, 2, 3, 100] {
            COMPARED.set(0);
            let (mut names, mut key) = (Vec::new(), None);
            loop {
                let scanned = objects.after(key.as_ref(), &kinds(), examine);
                assert!(scanned.objects.len() <= examine);
                names.extend(scanned.objects.iter().map(|object| object.key().name.to_string()));
                if scanned.end {
                    break;
                }
                key = scanned.last;
            }

            assert_eq!(names, ["o0", "o1", "o2", "o3", "o4", "o5", "o6"]);
            assert!(COMPARED.get() <= 14, "{} comparisons", COMPARED.get());
        }
    }

    #[test]
    fn subscriber_that_joins_is_compared_with_objects_of_its_kinds_names_and_namespaces_only() {
        let objects = objects();
        let selection = Selection { namespace: Some("ns".into()), selector: "!x".parse().unwrap() };
        let named = Interest::Named(ObjectKey::namespaced("ns", "o3"));
        let interests = [kinds(), vec![named, Interest::Selected(selection)]].concat();

        COMPARED.set(0);
        assert_eq!(objects.whole_of(&interests).count(), 7, "each object once");
        assert!(!interests.iter().any(|interest| objects.has_entries_of(interest)));
        assert!(COMPARED.get() < 50, "{} comparisons", COMPARED.get());
    }
}
