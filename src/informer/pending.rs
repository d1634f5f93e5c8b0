//! What one subscriber has not seen yet: at most one entry for each object.
//!
//! Pure; the subscription locks it.

use std::collections::{BTreeMap, HashMap};

use super::{Delta, Object, ObjectKey};

/// Changes waiting for one subscriber, merged by object, in the order in which objects first
/// changed since the subscriber last looked at them.
#[derive(Debug, Default)]
pub(super) struct Pending {
    // By arrival. An object that came and went again leaves no trace in either map.
    deltas: BTreeMap<u64, Delta>,
    arrivals: HashMap<ObjectKey, u64>,
    next_arrival: u64,
    initial: usize,
}

impl Pending {
    /// Adds a change: `old` is what the store held before it.
    ///
    /// A subscriber without an entry for an object has seen what the store held, so that `old` is
    /// what it saw; one with an entry keeps the entry's.
    pub(super) fn push(
        &mut self,
        key: &ObjectKey,
        old: Option<Object>,
        new: Option<Object>,
        initial: bool,
    ) {
        if let Some(&arrival) = self.arrivals.get(key) {
            let merged = self.deltas.get_mut(&arrival).map(|delta| {
                delta.new = new;
                delta.old.is_none() && delta.new.is_none()
            });
            if merged == Some(true) {
                // It came and went between two looks.
                self.arrivals.remove(key);
                self.forget(arrival);
            }
            return;
        }
        if old.is_none() && new.is_none() {
            return;
        }
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        self.initial += usize::from(initial);
        self.arrivals.insert(key.clone(), arrival);
        self.deltas.insert(arrival, Delta { key: key.clone(), old, new, initial });
    }

    /// The oldest change; the subscriber has now seen it.
    pub(super) fn pop(&mut self) -> Option<Delta> {
        let (_, delta) = self.deltas.pop_first()?;
        self.arrivals.remove(&delta.key);
        self.initial -= usize::from(delta.initial);
        if self.deltas.is_empty() {
            // A burst leaves no capacity behind.
            self.arrivals = HashMap::new();
        }
        Some(delta)
    }

    /// How many initial changes have not been popped.
    pub(super) fn initial(&self) -> usize {
        self.initial
    }

    /// How many objects have changed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.deltas.len()
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn forget(&mut self, arrival: u64) {
        if let Some(delta) = self.deltas.remove(&arrival) {
            self.initial -= usize::from(delta.initial);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::informer::fixture::Fixture;

    fn version(object: Option<&Object>) -> Option<u64> {
        object.map(|object| object.header().resource_version.parse().unwrap())
    }

    fn seen(delta: Option<Delta>) -> (String, Option<u64>, Option<u64>) {
        let delta = delta.unwrap();
        (delta.key.to_string(), version(delta.old.as_ref()), version(delta.new.as_ref()))
    }

    fn object(name: &str, version: u64) -> Object {
        Fixture::new(name).version(version).object()
    }

    fn change(pending: &mut Pending, name: &str, old: Option<u64>, new: Option<u64>) {
        let key = ObjectKey::cluster(name);
        let old = old.map(|version| object(name, version));
        let new = new.map(|version| object(name, version));
        pending.push(&key, old, new, false);
    }

    #[test]
    fn changes_of_one_object_become_one() {
        let mut pending = Pending::default();

        change(&mut pending, "a", Some(1), Some(2));
        change(&mut pending, "b", None, Some(3));
        change(&mut pending, "a", Some(2), Some(4));

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), Some(4)));
        assert_eq!(seen(pending.pop()), ("b".into(), None, Some(3)));
        assert!(pending.pop().is_none());
    }

    #[test]
    fn an_object_that_came_and_went_is_never_seen() {
        let mut pending = Pending::default();

        change(&mut pending, "a", None, Some(1));
        change(&mut pending, "a", Some(1), None);

        assert!(pending.pop().is_none());
        assert_eq!((pending.len(), pending.arrivals.len()), (0, 0));
    }

    #[test]
    fn an_object_that_went_and_came_shows_both() {
        let mut pending = Pending::default();

        change(&mut pending, "a", Some(1), None);
        change(&mut pending, "a", None, Some(2));

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), Some(2)));
    }

    #[test]
    fn an_object_that_went_came_and_went_is_gone() {
        let mut pending = Pending::default();

        change(&mut pending, "a", Some(1), None);
        change(&mut pending, "a", None, Some(2));
        change(&mut pending, "a", Some(2), None);

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), None));
    }

    #[test]
    fn initial_changes_are_counted_until_popped_or_forgotten() {
        let mut pending = Pending::default();
        for name in ["a", "b"] {
            pending.push(&ObjectKey::cluster(name), None, Some(object(name, 1)), true);
        }
        change(&mut pending, "c", None, Some(2));

        change(&mut pending, "b", Some(1), None);
        assert_eq!(pending.initial(), 1);

        assert!(pending.pop().unwrap().initial);
        assert_eq!(pending.initial(), 0);
        assert!(!pending.pop().unwrap().initial);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8),
        Remove(u8),
        Look,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4_u8).prop_map(Step::Put),
            (0..4_u8).prop_map(Step::Remove),
            Just(Step::Look)
        ]
    }

    proptest! {
        /// The subscriber's own copy, made of nothing but its deltas, is the store's content as
        /// soon as nothing is pending, and every delta's old is what the subscriber had.
        #[test]
        fn folding_the_changes_gives_the_store(steps in prop::collection::vec(step(), 0..200)) {
            let mut store: BTreeMap<String, Object> = BTreeMap::new();
            let mut view: BTreeMap<String, Object> = BTreeMap::new();
            let mut pending = Pending::default();
            let mut versions = 0..;
            let look = |pending: &mut Pending, view: &mut BTreeMap<String, Object>| {
                let Some(delta) = pending.pop() else { return false };
                let name = delta.key.to_string();
                assert_eq!(version(view.get(&name)), version(delta.old.as_ref()));
                assert!(delta.old.is_some() || delta.new.is_some());
                match delta.new {
                    Some(new) => view.insert(name, new),
                    None => view.remove(&name),
                };
                true
            };

            for step in steps {
                match step {
                    Step::Put(name) => {
                        let name = name.to_string();
                        let new = object(&name, versions.next().unwrap());
                        let old = store.insert(name, new.clone());
                        pending.push(new.key(), old, Some(new.clone()), false);
                    }
                    Step::Remove(name) => {
                        let name = name.to_string();
                        let old = store.remove(&name);
                        pending.push(&ObjectKey::cluster(name), old, None, false);
                    }
                    Step::Look => {
                        look(&mut pending, &mut view);
                    }
                }
                prop_assert!(pending.len() <= 4);
            }
            while look(&mut pending, &mut view) {}

            let versions = |objects: &BTreeMap<String, Object>| {
                objects.values().map(|object| version(Some(object))).collect::<Vec<_>>()
            };
            prop_assert_eq!(versions(&view), versions(&store));
            prop_assert_eq!(pending.initial(), 0);
        }
    }
}
