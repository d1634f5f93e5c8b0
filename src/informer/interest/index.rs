//! Index of interests: routes a change to those whose interest it concerns.

use std::{collections::HashMap, hash::Hash, slice, sync::Arc};

use foldhash::quality::RandomState;

use super::{Interest, Selection};
use crate::{
    informer::{Header, ObjectKey},
    kind::GroupKind,
};

/// Maximum number of values of a label by which an interest is routed, each a place in the index. A
/// parent may have an interest with thousands of values in each of thousands of namespaces.
const VALUES_MAX: usize = 100;

/// Index of interests, each with the identity of its holder.
#[derive(Clone, Debug)]
pub(crate) struct InterestIndex<T> {
    everything: Vec<T>,
    owner_kinds: HashIndex<GroupKind, Vec<T>>,
    owner_uids: HashIndex<Arc<str>, Vec<T>>,
    named: HashIndex<ObjectKey, Vec<T>>,
    names: HashIndex<Arc<str>, Vec<T>>,
    // Interests by one positive requirement: label key, then value and namespace.
    labelled: HashIndex<Box<str>, ByValue<T>>,
    // Interests by a requirement of more than `VALUES_MAX` values: label key and namespace.
    by_label_key: HashIndex<Box<str>, Vec<(Interest, T)>>,
    // Selectors without a positive requirement, compared with each object of their namespace.
    by_namespace: HashIndex<Arc<str>, Vec<(Interest, T)>>,
    // Selectors of all namespaces without a positive requirement, compared with each object.
    unindexed: Vec<(Interest, T)>,
}

/// Map of an index, whose hasher reads a short key in one step.
type HashIndex<K, V> = HashMap<K, V, RandomState>;

type ByValue<T> = HashIndex<Box<str>, Vec<(Interest, T)>>;

#[cfg(test)]
thread_local! {
    /// Number of comparisons of an interest with an object in this thread.
    pub(crate) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<T: Clone + PartialEq> InterestIndex<T> {
    /// Adds an interest of a holder. An interest added twice is removed by two removals.
    ///
    /// Returns the label by which it is routed, if it is routed by one.
    pub(crate) fn insert(&mut self, interest: &Interest, holder: T) -> Option<Box<str>> {
        match interest {
            Interest::Everything => self.everything.push(holder),
            Interest::OwnerKind(kind) => add(&mut self.owner_kinds, kind, holder),
            Interest::OwnerUid(uid) => add(&mut self.owner_uids, uid, holder),
            Interest::Named(key) => add(&mut self.named, key, holder),
            Interest::NamedAnywhere(name) => add(&mut self.names, name, holder),
            Interest::Selected(selection) | Interest::Orphans(selection) => {
                // The requirement with the fewest interests so far: a label that all selectors
                // share separates none of them.
                let requirement = selection.positive().min_by_key(|(key, values)| {
                    let routed = self.routed_count(key, values, selection.namespace.as_deref());
                    (values.len() > VALUES_MAX, routed)
                });
                let Some((key, values)) = requirement else {
                    let routed = (interest.clone(), holder);
                    match &selection.namespace {
                        Some(namespace) => add(&mut self.by_namespace, namespace, routed),
                        None => self.unindexed.push(routed),
                    }
                    return None;
                };
                if values.len() > VALUES_MAX {
                    let place = place(key, selection.namespace.as_deref());
                    add(&mut self.by_label_key, &place, (interest.clone(), holder));
                    return Some(key.into());
                }
                let by_value = self.labelled.entry(key.into()).or_default();
                for value in values {
                    let routed = (interest.clone(), holder.clone());
                    let place = place(value, selection.namespace.as_deref());
                    match by_value.get_mut(&*place) {
                        Some(all) => all.push(routed),
                        // Capacity for one interest: most places have no more.
                        None => drop(by_value.insert(place, Vec::from([routed]))),
                    }
                }
                return Some(key.into());
            }
        }
        None
    }

    /// Removes an interest of a holder; returns the label by which it was routed.
    pub(crate) fn remove(&mut self, interest: &Interest, holder: &T) -> Option<Box<str>> {
        let is_holder = |it: &T| it == holder;
        match interest {
            Interest::Everything => take(&mut self.everything, is_holder),
            Interest::OwnerKind(kind) => subtract(&mut self.owner_kinds, kind, is_holder),
            Interest::OwnerUid(uid) => subtract(&mut self.owner_uids, uid, is_holder),
            Interest::Named(key) => subtract(&mut self.named, key, is_holder),
            Interest::NamedAnywhere(name) => subtract(&mut self.names, name, is_holder),
            Interest::Selected(selection) | Interest::Orphans(selection) => {
                return self.remove_selected(interest, selection, holder);
            }
        };
        None
    }

    fn remove_selected(
        &mut self,
        interest: &Interest,
        selection: &Selection,
        holder: &T,
    ) -> Option<Box<str>> {
        let is_it = |(other, of): &(Interest, T)| of == holder && other == interest;
        for (key, values) in selection.positive() {
            if values.len() > VALUES_MAX {
                let place = place(key, selection.namespace.as_deref());
                if subtract(&mut self.by_label_key, &place, is_it) {
                    return Some(key.into());
                }
                continue;
            }
            let Some(by_value) = self.labelled.get_mut(key) else { continue };
            let mut found = false;
            for value in values {
                let place = place(value, selection.namespace.as_deref());
                found |= subtract(by_value, &place, is_it);
            }
            if by_value.is_empty() {
                self.labelled.remove(key);
            }
            if found {
                return Some(key.into());
            }
        }
        match &selection.namespace {
            Some(namespace) => subtract(&mut self.by_namespace, namespace, is_it),
            None => take(&mut self.unindexed, is_it),
        };
        None
    }

    /// Calls `visit` with the holder of each interest in an object, perhaps twice.
    pub(crate) fn visit(&self, object: &Header, mut visit: impl FnMut(&T)) {
        self.everything.iter().for_each(&mut visit);
        for owner in object.owners.iter() {
            if !self.owner_kinds.is_empty() {
                self.owner_kinds.get(&*owner.kind).into_iter().flatten().for_each(&mut visit);
            }
            if !self.owner_uids.is_empty() {
                self.owner_uids.get(&owner.uid).into_iter().flatten().for_each(&mut visit);
            }
        }
        if !self.named.is_empty() {
            self.named.get(&object.key).into_iter().flatten().for_each(&mut visit);
        }
        if !self.names.is_empty() {
            self.names.get(&object.key.name).into_iter().flatten().for_each(&mut visit);
        }
        let mut compare = |routed: slice::Iter<'_, (Interest, T)>| {
            for (interest, holder) in routed {
                if interest.concerns(object) {
                    visit(holder);
                }
            }
        };
        compare(self.unindexed.iter());
        if let Some(namespace) = &object.key.namespace
            && let Some(routed) = self.by_namespace.get(namespace)
        {
            compare(routed.iter());
        }
        // Interests of the object's namespace, and those of all namespaces.
        let namespace = object.key.namespace.as_deref();
        let namespaces = [namespace, None];
        let namespaces = &namespaces[..1 + usize::from(namespace.is_some())];
        if !self.labelled.is_empty() {
            for (key, value) in object.labels.iter() {
                let Some(by_value) = self.labelled.get(key) else { continue };
                for namespace in namespaces {
                    let routed = by_value.get(&*place(value, *namespace));
                    routed.into_iter().for_each(|routed| compare(routed.iter()));
                }
            }
        }
        if !self.by_label_key.is_empty() {
            for (key, _) in object.labels.iter() {
                for namespace in namespaces {
                    let routed = self.by_label_key.get(&*place(key, *namespace));
                    routed.into_iter().for_each(|routed| compare(routed.iter()));
                }
            }
        }
    }

    /// Returns whether an object concerns any holder.
    pub(crate) fn concerns(&self, object: &Header) -> bool {
        if !self.everything.is_empty()
            || self.named.contains_key(&object.key)
            || self.names.contains_key(&object.key.name)
        {
            return true;
        }
        let owned = object.owners.iter().any(|owner| {
            self.owner_kinds.contains_key(&*owner.kind) || self.owner_uids.contains_key(&owner.uid)
        });
        let has_selectors = !self.labelled.is_empty()
            || !self.by_label_key.is_empty()
            || !self.unindexed.is_empty()
            || !self.by_namespace.is_empty();
        if owned || !has_selectors {
            return owned;
        }
        let mut found = false;
        self.visit(object, |_| found = true);
        found
    }

    /// Returns whether every object concerns a holder.
    pub(crate) fn is_everything(&self) -> bool {
        !self.everything.is_empty()
    }

    /// Returns whether an interest names a kind of owners.
    pub(crate) fn has_kind(&self, kind: &GroupKind) -> bool {
        self.owner_kinds.contains_key(kind)
    }

    /// Returns whether no place has an interest.
    #[cfg(test)]
    pub(in crate::informer) fn is_empty(&self) -> bool {
        self.everything.is_empty()
            && self.owner_kinds.is_empty()
            && self.owner_uids.is_empty()
            && self.named.is_empty()
            && self.names.is_empty()
            && self.labelled.is_empty()
            && self.by_label_key.is_empty()
            && self.by_namespace.is_empty()
            && self.unindexed.is_empty()
    }

    /// Number of interests that are routed by these values of a label, or by their label key.
    fn routed_count(&self, key: &str, values: &[&str], namespace: Option<&str>) -> usize {
        if values.len() > VALUES_MAX {
            return self.by_label_key.get(&*place(key, namespace)).map_or(0, Vec::len);
        }
        let Some(by_value) = self.labelled.get(key) else { return 0 };
        let routed = |value: &&str| by_value.get(&*place(value, namespace)).map_or(0, Vec::len);
        values.iter().map(routed).sum()
    }
}

impl<T> Default for InterestIndex<T> {
    fn default() -> Self {
        Self {
            everything: Vec::new(),
            owner_kinds: HashIndex::default(),
            owner_uids: HashIndex::default(),
            named: HashIndex::default(),
            names: HashIndex::default(),
            labelled: HashIndex::default(),
            by_label_key: HashIndex::default(),
            by_namespace: HashIndex::default(),
            unindexed: Vec::new(),
        }
    }
}

/// Returns the place of interests in one label, by its value or its key, in one namespace or in all.
/// A namespace has no slash.
fn place(label: &str, namespace: Option<&str>) -> Box<str> {
    [label, "/", namespace.unwrap_or_default()].concat().into()
}

fn add<K: Clone + Eq + Hash, T>(index: &mut HashIndex<K, Vec<T>>, key: &K, holder: T) {
    match index.get_mut(key) {
        Some(holders) => holders.push(holder),
        // Capacity for one holder: most keys have no more.
        None => drop(index.insert(key.clone(), Vec::from([holder]))),
    }
}

/// Removes one holder of a key; returns whether it was there.
fn subtract<K: Eq + Hash, T>(
    index: &mut HashIndex<K, Vec<T>>,
    key: &K,
    is_it: impl Fn(&T) -> bool,
) -> bool {
    let Some(holders) = index.get_mut(key) else { return false };
    let was_there = take(holders, is_it);
    if holders.is_empty() {
        index.remove(key);
    }
    was_there
}

/// Removes one element; returns whether it was there.
fn take<T>(list: &mut Vec<T>, is_it: impl Fn(&T) -> bool) -> bool {
    let found = list.iter().position(is_it);
    found.map(|at| list.swap_remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use kube::core::Expression;
    use proptest::{prelude::*, sample::select};

    use super::*;
    use crate::informer::{Object, Selector, fixture::Fixture};

    fn interest() -> impl Strategy<Value = Interest> {
        let name = || select(vec!["a", "b", "c"]);
        let many = (0..=VALUES_MAX).map(|number| format!(",v{number}")).collect::<String>();
        let selector = select(vec![
            format!("app in (x{many})"),
            format!("app in (x,y{many}),tier=t"),
            format!("app in (x{many}),tier in (t{many})"),
        ]);
        let few = select(vec![
            "app=x",
            "app=y,tier=t",
            "app in (x,y)",
            "tier=t",
            "app!=x",
            "!tier",
            "app",
            "",
        ]);
        let selector = prop_oneof![1 => selector, 4 => few.prop_map(str::to_owned)];
        let selection = (prop::option::of(select(vec!["n", "m"])), selector).prop_map(
            |(namespace, selector)| Selection {
                namespace: namespace.map(Arc::from),
                selector: selector.parse().unwrap(),
            },
        );
        prop_oneof![
            Just(Interest::Everything),
            select(vec!["Owner", "Other"]).prop_map(|kind| Interest::OwnerKind(GroupKind {
                group: String::new(),
                kind: kind.to_owned(),
            })),
            name().prop_map(|uid| Interest::OwnerUid(uid.into())),
            selection.clone().prop_map(Interest::Selected),
            selection.prop_map(Interest::Orphans),
            name().prop_map(|name| Interest::Named(ObjectKey::namespaced("n", name))),
            name().prop_map(|name| Interest::NamedAnywhere(name.into())),
        ]
    }

    fn object() -> impl Strategy<Value = Object> {
        let of = |values: Vec<&'static str>| prop::option::of(select(values));
        let owner = prop::option::of((select(vec!["a", "b"]), any::<bool>()));
        (select(vec!["a", "b"]), select(vec!["n", "m"]), of(vec!["x", "y"]), of(vec!["t"]), owner)
            .prop_map(|(name, namespace, app, tier, owner)| {
                let mut fixture = Fixture::new(name).namespace(namespace);
                for (key, value) in [("app", app), ("tier", tier)] {
                    if let Some(value) = value {
                        fixture = fixture.label(key, value);
                    }
                }
                match owner {
                    Some((uid, true)) => fixture.controller(uid).object(),
                    Some((uid, false)) => fixture.owner(uid).object(),
                    None => fixture.object(),
                }
            })
    }

    proptest! {
        #[test]
        fn a_change_visits_exactly_those_whose_interest_it_concerns(
            held in prop::collection::vec((interest(), 0..4_u8, any::<bool>()), 0..12),
            objects in prop::collection::vec(object(), 1..8),
        ) {
            let mut index = InterestIndex::default();
            for (interest, holder, _) in &held {
                index.insert(interest, *holder);
            }
            for (interest, holder, leaves) in &held {
                if *leaves {
                    index.remove(interest, holder);
                }
            }

            let kept: Vec<_> = held.iter().filter(|(_, _, leaves)| !leaves).collect();
            for object in &objects {
                let header = object.header();
                let mut visited = Vec::new();
                index.visit(header, |holder| visited.push(*holder));
                visited.sort_unstable();
                visited.dedup();
                let mut expected: Vec<_> = kept
                    .iter()
                    .filter(|(interest, _, _)| interest.concerns(header))
                    .map(|(_, holder, _)| *holder)
                    .collect();
                expected.sort_unstable();
                expected.dedup();
                prop_assert_eq!(&visited, &expected);
                prop_assert_eq!(index.concerns(header), !expected.is_empty());
            }
            for (interest, holder, leaves) in &held {
                if !leaves {
                    index.remove(interest, holder);
                }
            }
            prop_assert!(index.is_empty());
        }
    }

    #[test]
    fn selectors_without_a_label_are_compared_with_objects_of_their_namespace_only() {
        let mut index = InterestIndex::default();
        for parent in 0..100 {
            let namespace = Some(format!("ns-{parent}").into());
            let selection = Selection { namespace, selector: Selector::default() };
            index.insert(&Interest::Selected(selection), parent);
        }

        assert!(index.unindexed.is_empty());
        assert_eq!(index.by_namespace["ns-7"].len(), 1);
    }

    #[test]
    fn selectors_that_share_a_label_are_routed_by_another() {
        let mut index = InterestIndex::default();
        for parent in 0..100 {
            let selector: Selector = format!("app=x,parent=p{parent}").parse().unwrap();
            let selection = Selection { namespace: None, selector };
            index.insert(&Interest::Orphans(selection), parent);
        }

        // The first interest came before any other and is routed by the shared label.
        assert_eq!(index.routed_count("app", &["x"], None), 1);
    }

    #[test]
    fn selector_of_ten_thousand_values_takes_one_place_and_shares_them() {
        let values = (0..10_000).map(|number| format!("v{number}")).collect();
        let selector = Selector::new(vec![Expression::In("app".into(), values)]);
        let interest = |namespace: usize| {
            let namespace = Some(format!("ns-{namespace}").into());
            Interest::Orphans(Selection { namespace, selector: selector.clone() })
        };
        let mut index = InterestIndex::default();
        for namespace in 0..100 {
            let label = index.insert(&interest(namespace), namespace);
            assert_eq!(label.as_deref(), Some("app"));
        }

        let held = |of: &Interest| {
            let Interest::Orphans(selection) = of else { panic!("{of:?}") };
            selection.selector.expressions().as_ptr()
        };
        assert_eq!((index.labelled.len(), index.by_label_key.len()), (0, 100));
        let places = index.by_label_key.values().flatten();
        assert!(places.clone().all(|(it, _)| held(it) == selector.expressions().as_ptr()));
        let object = Fixture::new("a").namespace("ns-7").label("app", "v9").object();
        let mut visited = Vec::new();
        COMPARED.set(0);
        index.visit(object.header(), |holder| visited.push(*holder));
        assert_eq!((visited, COMPARED.get()), (vec![7], 1));
        for namespace in 0..100 {
            assert_eq!(index.remove(&interest(namespace), &namespace).as_deref(), Some("app"));
        }
        assert!(index.by_label_key.is_empty());
    }
}
