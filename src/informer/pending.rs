//! Pending changes of one subscriber: at most one entry per object.
//!
//! Pure; the subscription locks it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
};

use foldhash::quality::RandomState;

use super::{
    Change, Object, ObjectKey,
    interest::{NamedInterests, dedup},
};

/// Maximum number of unseen deletions: objects that were created and deleted between two pops. A
/// subscriber that only reads the store may never pop.
const GONE_MAX: usize = 10_000;

/// Changes waiting for one subscriber, merged by object. The order is that of each object's first
/// change since the subscriber last popped it.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    // Changes by arrival.
    changes: BTreeMap<u64, PendingChange>,
    // Arrivals of deleted objects whose creation was not popped.
    gone: BTreeSet<u64>,
    arrivals: HashMap<ObjectKey, u64, RandomState>,
    next_arrival: u64,
    initial: usize,
}

#[derive(Debug)]
struct PendingChange {
    change: Change,
    /// True if `old` was created and deleted without being popped.
    unseen: bool,
}

impl PendingChanges {
    /// Adds a change, whose `old` is the store's object before the change.
    ///
    /// Without an entry, the subscriber has seen the object of the store, and `old` is kept. An
    /// existing entry keeps its own `old`, and has the names of all its changes. An object that was
    /// created and deleted between two pops stays as a deletion: a client that created or read it
    /// needs the deletion. Only the last [`GONE_MAX`] of these are kept.
    pub(super) fn push(&mut self, change: Change) {
        if let Some(&arrival) = self.arrivals.get(&change.key) {
            self.merge(arrival, change);
            return;
        }
        if change.old.is_none() && change.new.is_none() {
            return;
        }
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        self.initial += usize::from(change.initial);
        self.arrivals.insert(change.key.clone(), arrival);
        self.changes.insert(arrival, PendingChange { change, unseen: false });
    }

    /// Adds a resync of an object of the store: an update without a difference. Without effect on
    /// an object whose change is pending.
    pub(super) fn push_resync(&mut self, object: Object, interests: NamedInterests) {
        let key = object.key().clone();
        if !self.arrivals.contains_key(&key) {
            let (old, new) = (Some(object.clone()), Some(object));
            self.push(Change { key, old, new, initial: false, interests });
        }
    }

    /// Adds the deletion of an object that has no entry and that the subscriber has not seen.
    pub(super) fn push_unseen(&mut self, deletion: Change) {
        let deletion = Change { initial: false, ..deletion };
        if !self.arrivals.contains_key(&deletion.key) {
            self.push(Change { old: None, new: deletion.old.clone(), ..deletion.clone() });
        }
        self.push(deletion);
    }

    fn merge(&mut self, arrival: u64, later: Change) {
        let Some(PendingChange { change, unseen }) = self.changes.get_mut(&arrival) else { return };
        let Change { old, new, interests, .. } = later;
        change.interests.extend(interests);
        dedup(&mut change.interests);
        match &new {
            None if *unseen || change.old.is_none() => {
                *unseen = true;
                // After a second deletion, `old` is the object's state before that deletion.
                change.old = old.or_else(|| change.old.take());
                self.initial -= usize::from(mem::take(&mut change.initial));
                self.gone.insert(arrival);
            }
            Some(back) if *unseen => {
                self.gone.remove(&arrival);
                let is_same = |old: &mut Object| old.header().uid == back.header().uid;
                // Same uid: the object left the watched set and returned. It is new to the
                // subscriber.
                *unseen = change.old.take_if(is_same).is_none();
            }
            Some(_) | None => {}
        }
        change.new = new;
        if self.gone.len() > GONE_MAX
            && let Some(waiting) = self.gone.pop_first().and_then(|it| self.changes.remove(&it))
        {
            self.arrivals.remove(&waiting.change.key);
        }
    }

    /// Removes the oldest change; the subscriber has now seen it.
    pub(super) fn pop(&mut self) -> Option<Change> {
        let (arrival, PendingChange { change, .. }) = self.changes.pop_first()?;
        self.gone.remove(&arrival);
        self.arrivals.remove(&change.key);
        self.initial -= usize::from(change.initial);
        if self.changes.is_empty() {
            // Frees the capacity that a burst used, and the last node of the map.
            self.arrivals = HashMap::default();
            self.changes = BTreeMap::new();
        }
        Some(change)
    }

    /// Returns the number of initial changes that have not been popped.
    pub(super) fn initial(&self) -> usize {
        self.initial
    }

    /// Returns the number of changed objects.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the number of pointers to interests in all changes.
    #[cfg(test)]
    pub(super) fn pointers(&self) -> usize {
        self.changes.values().map(|waiting| waiting.change.interests.len()).sum()
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

    fn seen(delta: Option<Change>) -> (String, Option<u64>, Option<u64>) {
        let delta = delta.unwrap();
        (delta.key.to_string(), version(delta.old.as_ref()), version(delta.new.as_ref()))
    }

    fn object(name: &str, version: u64) -> Object {
        Fixture::new(name).version(version).object()
    }

    fn delta(key: ObjectKey, old: Option<Object>, new: Option<Object>) -> Change {
        Change { key, old, new, initial: false, interests: Vec::new() }
    }

    fn change(pending: &mut PendingChanges, name: &str, old: Option<u64>, new: Option<u64>) {
        let key = ObjectKey::cluster(name);
        let old = old.map(|version| object(name, version));
        let new = new.map(|version| object(name, version));
        pending.push(delta(key, old, new));
    }

    #[test]
    fn changes_of_one_object_become_one() {
        let mut pending = PendingChanges::default();

        change(&mut pending, "a", Some(1), Some(2));
        change(&mut pending, "b", None, Some(3));
        change(&mut pending, "a", Some(2), Some(4));

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), Some(4)));
        assert_eq!(seen(pending.pop()), ("b".into(), None, Some(3)));
        assert!(pending.pop().is_none());
    }

    #[test]
    fn an_object_that_came_and_went_is_gone_as_it_was_last() {
        let mut pending = PendingChanges::default();

        change(&mut pending, "a", None, Some(1));
        change(&mut pending, "a", Some(1), Some(2));
        change(&mut pending, "a", Some(2), None);

        assert_eq!(seen(pending.pop()), ("a".into(), Some(2), None));
        assert_eq!((pending.len(), pending.arrivals.len()), (0, 0));
    }

    #[test]
    fn an_object_that_came_and_went_and_another_that_came_are_both_shown() {
        let mut pending = PendingChanges::default();

        change(&mut pending, "a", None, Some(1));
        change(&mut pending, "a", Some(1), None);
        let second = Fixture::new("a").uid("second").version(2).object();
        pending.push(delta(ObjectKey::cluster("a"), None, Some(second)));

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), Some(2)));
    }

    #[test]
    fn an_object_that_left_and_returned_before_it_was_seen_is_new() {
        let mut pending = PendingChanges::default();

        // As with a label selector, where the object stays the same one.
        change(&mut pending, "a", None, Some(1));
        change(&mut pending, "a", Some(1), None);
        change(&mut pending, "a", None, Some(1));

        let delta = pending.pop().unwrap();
        // Otherwise, `old` and `new` would be equal, and the object would never be reported.
        assert!(delta.old.is_none() && version(delta.new.as_ref()) == Some(1));
    }

    #[test]
    fn last_of_two_objects_that_were_created_and_deleted_unseen_is_a_deletion() {
        let mut pending = PendingChanges::default();
        let second = |version| Fixture::new("a").uid("second").version(version).object();
        let key = || ObjectKey::cluster("a");

        change(&mut pending, "a", None, Some(1));
        change(&mut pending, "a", Some(1), None);
        pending.push(delta(key(), None, Some(second(2))));
        pending.push(delta(key(), Some(second(2)), None));

        assert_eq!(seen(pending.pop()), ("a".into(), Some(2), None));
    }

    #[test]
    fn a_subscriber_that_never_looks_is_kept_no_endless_list_of_what_has_gone() {
        let mut pending = PendingChanges::default();
        change(&mut pending, "there", None, Some(1));

        for number in 0..GONE_MAX + 5 {
            let name = number.to_string();
            change(&mut pending, &name, None, Some(1));
            change(&mut pending, &name, Some(1), None);
        }

        assert_eq!((pending.len(), pending.arrivals.len()), (GONE_MAX + 1, GONE_MAX + 1));
        assert_eq!(seen(pending.pop()), ("there".into(), None, Some(1)));
        assert_eq!(seen(pending.pop()), ("5".into(), Some(1), None), "the last deletions are kept");
        while pending.pop().is_some() {}
        assert!(pending.gone.is_empty());
    }

    #[test]
    fn resync_is_an_update_without_a_difference_and_merges_with_changes() {
        let mut pending = PendingChanges::default();

        change(&mut pending, "created", None, Some(1));
        for name in ["created", "same", "changed", "deleted"] {
            pending.push_resync(object(name, 1), Vec::new());
        }
        change(&mut pending, "changed", Some(1), Some(2));
        change(&mut pending, "deleted", Some(1), None);

        assert_eq!(seen(pending.pop()), ("created".into(), None, Some(1)));
        assert_eq!(seen(pending.pop()), ("same".into(), Some(1), Some(1)));
        assert_eq!(seen(pending.pop()), ("changed".into(), Some(1), Some(2)));
        assert_eq!(seen(pending.pop()), ("deleted".into(), Some(1), None));
        assert!(pending.pop().is_none());
    }

    #[test]
    fn an_object_that_went_and_came_shows_both() {
        let mut pending = PendingChanges::default();

        change(&mut pending, "a", Some(1), None);
        change(&mut pending, "a", None, Some(2));

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), Some(2)));
    }

    #[test]
    fn an_object_that_went_came_and_went_is_gone() {
        let mut pending = PendingChanges::default();

        change(&mut pending, "a", Some(1), None);
        change(&mut pending, "a", None, Some(2));
        change(&mut pending, "a", Some(2), None);

        assert_eq!(seen(pending.pop()), ("a".into(), Some(1), None));
    }

    #[test]
    fn initial_changes_are_counted_until_popped_or_gone() {
        let mut pending = PendingChanges::default();
        for name in ["a", "b"] {
            let created = delta(ObjectKey::cluster(name), None, Some(object(name, 1)));
            pending.push(Change { initial: true, ..created });
        }
        change(&mut pending, "c", None, Some(2));

        change(&mut pending, "b", Some(1), None);
        assert_eq!(pending.initial(), 1);

        assert!(pending.pop().unwrap().initial);
        assert_eq!(pending.initial(), 0);
        let (gone, came) = (pending.pop().unwrap(), pending.pop().unwrap());
        assert!(gone.new.is_none() && !gone.initial && !came.initial);
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
        /// A copy built from the deltas alone equals the store once nothing is pending. The old
        /// object of each delta is the version that the subscriber had, or a version that it never
        /// saw. Each object deleted since the last pop, and not created again, is reported.
        #[test]
        fn folding_the_changes_gives_the_store(steps in prop::collection::vec(step(), 0..200)) {
            let mut store: BTreeMap<String, Object> = BTreeMap::new();
            let mut view: BTreeMap<String, Object> = BTreeMap::new();
            let mut gone = BTreeSet::new();
            let mut pending = PendingChanges::default();
            let mut versions = 0..;
            let mut look = |pending: &mut PendingChanges, gone: &mut BTreeSet<String>| {
                let Some(delta) = pending.pop() else { return false };
                let name = delta.key.to_string();
                let (had, old) = (version(view.get(&name)), version(delta.old.as_ref()));
                let is_gone = delta.new.is_none();
                assert!(had == old || is_gone && had.is_none() && gone.contains(&name));
                assert!(old.is_some() || delta.new.is_some());
                assert!(!gone.remove(&name) || old.is_some() || !is_gone);
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
                        pending.push(delta(new.key().clone(), old, Some(new)));
                    }
                    Step::Remove(name) => {
                        let name = name.to_string();
                        let old = store.remove(&name);
                        gone.extend(old.is_some().then(|| name.clone()));
                        pending.push(delta(ObjectKey::cluster(name), old, None));
                    }
                    Step::Look => {
                        look(&mut pending, &mut gone);
                    }
                }
                prop_assert!(pending.len() <= 4);
            }
            while look(&mut pending, &mut gone) {}

            let versions = |objects: &BTreeMap<String, Object>| {
                objects.values().map(|object| version(Some(object))).collect::<Vec<_>>()
            };
            prop_assert_eq!(versions(&view), versions(&store));
            prop_assert_eq!(pending.initial(), 0);
            prop_assert!(gone.is_empty());
        }
    }
}
