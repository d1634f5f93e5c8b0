//! Lookup indexes: find the objects that moving interests concern.
//!
//! An index is built for the first interest that needs it, shared by all subscribers, and dropped
//! with the last such interest.

use std::collections::HashMap;

use super::{
    Interest, Object,
    interest::Selection,
    sorted_objects::{Buckets, SortedObjects},
};

/// Index that finds the objects of an interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// All objects, by the value of a label.
    Label(Box<str>),
    /// Objects without a controller, by the value of a label.
    OrphanLabel(Box<str>),
    /// All objects, by their name.
    Name,
}

/// Indexes with their users.
#[derive(Default)]
pub(super) struct LookupIndexes {
    labels: LabelIndexes,
    // Apart, since children that are owned would make the buckets of orphans large.
    orphans: LabelIndexes,
    names: Option<CountedIndex>,
}

/// Indexes by label key.
type LabelIndexes = HashMap<Box<str>, CountedIndex>;

/// Index with the number of its users.
#[derive(Default)]
pub(super) struct CountedIndex {
    users: usize,
    // By label value, or by name.
    buckets: Buckets,
}

impl Lookup {
    /// Returns the index that an interest needs that is routed by this label.
    pub(super) fn of(interest: &Interest, label: Option<Box<str>>) -> Option<Self> {
        match interest {
            Interest::Selected(_) => label.map(Self::Label),
            Interest::Orphans(_) => label.map(Self::OrphanLabel),
            Interest::NamedAnywhere(_) => Some(Self::Name),
            Interest::Everything
            | Interest::OwnerKind(_)
            | Interest::OwnerUid(_)
            | Interest::Named(_) => None,
        }
    }

    /// Returns the place of an object in this index.
    fn value<'a>(&self, object: &'a Object) -> Option<&'a str> {
        let header = object.header();
        match self {
            Self::Label(key) => header.labels.get(key),
            Self::OrphanLabel(key) if object.controller().is_none() => header.labels.get(key),
            Self::OrphanLabel(_) => None,
            Self::Name => Some(&header.key.name),
        }
    }
}

impl LookupIndexes {
    /// Adds a user of an index, which is built of these objects for the first one.
    pub(super) fn join<'a>(&mut self, lookup: &Lookup, objects: impl Iterator<Item = &'a Object>) {
        if let Some(index) = self.get_mut(lookup) {
            index.users += 1;
            return;
        }
        let mut index = CountedIndex { users: 1, buckets: Buckets::default() };
        for object in objects {
            lookup.value(object).into_iter().for_each(|value| index.buckets.insert(value, object));
        }
        match lookup {
            Lookup::Label(key) => drop(self.labels.insert(key.clone(), index)),
            Lookup::OrphanLabel(key) => drop(self.orphans.insert(key.clone(), index)),
            Lookup::Name => self.names = Some(index),
        }
    }

    /// Removes a user of an index; returns the index after the last one.
    pub(super) fn leave(&mut self, lookup: &Lookup) -> Option<CountedIndex> {
        let index = self.get_mut(lookup)?;
        index.users -= 1;
        if index.users > 0 {
            return None;
        }
        match lookup {
            Lookup::Label(key) => self.labels.remove(key),
            Lookup::OrphanLabel(key) => self.orphans.remove(key),
            Lookup::Name => self.names.take(),
        }
    }

    /// Returns all objects that an interest concerns, perhaps with others; `None` if no index has
    /// them.
    pub(super) fn find(&self, interest: &Interest) -> Option<Vec<&[Object]>> {
        match interest {
            Interest::Selected(selection) => smallest(&self.labels, selection),
            Interest::Orphans(selection) => smallest(&self.orphans, selection),
            Interest::NamedAnywhere(name) => {
                let bucket = self.names.as_ref()?.buckets.get(name);
                Some(bucket.map(SortedObjects::all).into_iter().collect())
            }
            Interest::Everything
            | Interest::OwnerKind(_)
            | Interest::OwnerUid(_)
            | Interest::Named(_) => None,
        }
    }

    /// Adds an object, or replaces it in the same places.
    pub(super) fn insert(&mut self, object: &Object) {
        self.change(object, |buckets, value| buckets.insert(value, object));
    }

    pub(super) fn remove(&mut self, object: &Object) {
        self.change(object, |buckets, value| buckets.remove(value, object));
    }

    fn change(&mut self, object: &Object, change: impl Fn(&mut Buckets, &str)) {
        let header = object.header();
        let orphans = Some(&mut self.orphans).filter(|_| object.controller().is_none());
        for indexes in [Some(&mut self.labels), orphans].into_iter().flatten() {
            if indexes.is_empty() {
                continue;
            }
            for (key, value) in header.labels.iter() {
                if let Some(index) = indexes.get_mut(key) {
                    change(&mut index.buckets, value);
                }
            }
        }
        self.names.iter_mut().for_each(|names| change(&mut names.buckets, &header.key.name));
    }

    fn get_mut(&mut self, lookup: &Lookup) -> Option<&mut CountedIndex> {
        match lookup {
            Lookup::Label(key) => self.labels.get_mut(key),
            Lookup::OrphanLabel(key) => self.orphans.get_mut(key),
            Lookup::Name => self.names.as_mut(),
        }
    }

    /// Number of places of objects in all indexes.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        let all = self.labels.values().chain(self.orphans.values()).chain(&self.names);
        all.flat_map(|index| index.buckets.iter()).map(|(_, bucket)| bucket.all().len()).sum()
    }
}

/// Returns the objects of a selection from the index that has the fewest.
fn smallest<'a>(indexes: &'a LabelIndexes, selection: &Selection) -> Option<Vec<&'a [Object]>> {
    let namespace = selection.namespace.as_ref();
    let parts = selection.positive().filter_map(|(key, values)| {
        let index = indexes.get(key)?;
        let buckets: Vec<_> = if values.len() <= index.buckets.iter().len() {
            values.into_iter().filter_map(|value| index.buckets.get(value)).collect()
        } else {
            // The values are sorted.
            let has = |value: &str| values.binary_search(&value).is_ok();
            let buckets = index.buckets.iter();
            buckets.filter(|(value, _)| has(value)).map(|(_, bucket)| bucket).collect()
        };
        Some(buckets.into_iter().map(|bucket| bucket.within(namespace)).collect::<Vec<_>>())
    });
    parts.min_by_key(|parts| parts.iter().map(|it| it.len()).sum::<usize>())
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::informer::{
        COMPARED, InformerKey, Interests, Linger, ObjectKey, Store,
        fixture::{Fixture, widgets},
        shared_informer::SharedInformer,
    };

    fn object(number: usize) -> Fixture {
        let namespace = format!("ns-{}", number % 7);
        let app = format!("a{}", number % 10);
        Fixture::new(&format!("o{number}")).namespace(&namespace).label("app", &app)
    }

    /// Number of objects that an interest concerns, and of those examined.
    fn found(store: &Store, interest: &Interest) -> [usize; 2] {
        COMPARED.set(0);
        [store.concerned_by(interest).len(), COMPARED.get()]
    }

    #[test]
    fn subscribers_of_one_type_share_each_lookup_index_until_the_last_one_leaves() {
        let key = InformerKey::new(widgets().identity);
        let informer = SharedInformer::new(key, "Widget".into(), Duration::ZERO);
        for number in 0..500 {
            informer.put(&object(number).object());
            informer.put(&object(500 + number).controller("p").object());
        }
        let store = &informer.store;
        let selection = || Selection { namespace: None, selector: "app=a3".parse().unwrap() };
        let [selected, orphans] = [Interest::Selected(selection()), Interest::Orphans(selection())];
        let named = Interest::NamedAnywhere("o7".into());
        let name = Arc::new(ObjectKey::cluster("parent").into());

        let joined: Vec<_> = (0..200)
            .map(|_| {
                let interests =
                    Interests { deliver: Vec::new(), whole: vec![Interest::Everything] };
                let joined = informer.join(interests).unwrap();
                let all = vec![selected.clone(), orphans.clone(), named.clone()];
                informer.set_interests(joined.id, &name, all);
                joined
            })
            .collect();
        assert_eq!(store.lookup_places(), 1_000 + 500 + 1_000);
        assert_eq!(found(store, &selected), [100, 100]);
        assert_eq!(found(store, &orphans), [50, 50], "owned objects are not examined");
        assert_eq!(found(store, &named), [1, 1]);

        informer.put(&object(7).label("app", "a3").version(2).object());
        informer.remove(object(3).object().key());
        assert_eq!(found(store, &selected), [100, 100]);
        assert_eq!(found(store, &orphans), [50, 50]);
        informer.remove(object(7).object().key());
        assert_eq!(found(store, &named), [0, 0]);

        for joined in joined {
            assert!(store.lookup_places() > 0);
            informer.leave(joined.id, Linger::None);
        }
        assert_eq!(store.lookup_places(), 0);
        assert_eq!(found(store, &selected)[0], 99, "by a scan");
    }
}
