//! Moving interests of the subscribers of a shared informer.

use std::sync::Arc;

use super::{InformerContents, SharedInformer};
use crate::informer::{
    Interest, InterestName,
    interest::{InterestHolder, NamedInterest, NamedInterests, SubscriberId},
    lookups::{CountedIndex, Lookup},
};

impl SharedInformer {
    /// Replaces the interests of one name; the new ones are added before the old ones are removed.
    pub(in crate::informer) fn set_interests(
        &self,
        id: SubscriberId,
        name: &Arc<InterestName>,
        new: Vec<Interest>,
    ) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(subscriber) = state.subscribers.get_mut(&id) else { return };
        let moved = subscriber.moving.set(name, new);
        for interest in moved.begun {
            let holder = InterestHolder { subscriber: id, named: Some(Arc::clone(&interest)) };
            let label = state.index.insert(&interest.interest, holder);
            if let Some(lookup) = Lookup::of(&interest.interest, label) {
                self.store.join_lookup(&lookup);
            }
        }
        let ended = moved.ended.iter();
        let freed: Vec<_> =
            ended.filter_map(|interest| self.remove_interest(state, id, interest)).collect();
        drop(guard);
        // Not under the lock: an index may be large.
        drop(freed);
    }

    /// Returns the moving interests of a subscriber, by name.
    pub(in crate::informer) fn moving_interests(
        &self,
        id: SubscriberId,
    ) -> Vec<(Arc<InterestName>, NamedInterests)> {
        let state = self.lock();
        let subscriber = state.subscribers.get(&id);
        subscriber.map(|subscriber| subscriber.moving.by_name()).unwrap_or_default()
    }

    /// Removes a moving interest of a subscriber; returns an index without users, which is not to
    /// be dropped under a lock.
    pub(super) fn remove_interest(
        &self,
        state: &mut InformerContents,
        id: SubscriberId,
        interest: &Arc<NamedInterest>,
    ) -> Option<CountedIndex> {
        let holder = InterestHolder { subscriber: id, named: Some(Arc::clone(interest)) };
        let label = state.index.remove(&interest.interest, &holder);
        self.store.leave_lookup(&Lookup::of(&interest.interest, label)?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::informer::{
        COMPARED, InformerKey, Interests, Object, ObjectKey, Selection,
        fixture::{Fixture, widgets},
        shared_informer::JoinedSubscription,
    };

    /// Informer with a complete list, whose subscribers set moving interests.
    struct Harness {
        informer: SharedInformer,
    }

    impl Harness {
        fn new() -> Self {
            let key = InformerKey::new(widgets().identity);
            let informer = SharedInformer::new(key, "Widget".into(), Duration::ZERO);
            informer.complete(informer.begin_list());
            Self { informer }
        }

        fn join(&self) -> JoinedSubscription {
            self.informer.join(Interests { deliver: Vec::new(), whole: Vec::new() }).unwrap()
        }

        fn set(&self, joined: &JoinedSubscription, name: &str, interests: Vec<Interest>) {
            let name = Arc::new(ObjectKey::cluster(name).into());
            self.informer.set_interests(joined.id, &name, interests);
        }

        fn put(&self, object: &Fixture) {
            self.informer.put(&object.object());
        }
    }

    /// Names of the next change, in their order; `None` if none is pending.
    fn names(joined: &JoinedSubscription) -> Option<String> {
        let delta = joined.mailbox.take()?.unwrap().into_delta();
        let mut names: Vec<_> = delta.interests.iter().map(|name| name.key.to_string()).collect();
        names.sort_unstable();
        Some(names.join(" "))
    }

    fn selection(namespace: Option<&str>, selector: &str) -> Selection {
        let (namespace, selector) = (namespace.map(Arc::from), selector.parse().unwrap());
        Selection { namespace, selector }
    }

    fn selected(namespace: Option<&str>, selector: &str) -> Interest {
        Interest::Selected(selection(namespace, selector))
    }

    fn owned(uid: &str) -> Interest {
        Interest::OwnerUid(uid.into())
    }

    fn child(version: u64) -> Fixture {
        Fixture::new("child").namespace("ns").version(version)
    }

    #[test]
    fn child_names_its_owner_before_and_after_a_change() {
        let harness = Harness::new();
        let joined = harness.join();
        for name in ["a", "b"] {
            harness.set(&joined, name, vec![owned(name)]);
        }

        harness.put(&child(1).controller("a"));
        assert_eq!(names(&joined).as_deref(), Some("a"));
        harness.put(&child(2).controller("b"));
        assert_eq!(names(&joined).as_deref(), Some("a b"));
        harness.put(&child(3).controller("stranger"));
        assert_eq!(names(&joined).as_deref(), Some("b"));
        harness.put(&child(4).controller("other"));
        assert_eq!(names(&joined), None);
    }

    #[test]
    fn orphan_names_the_parents_whose_selector_matches() {
        let harness = Harness::new();
        let joined = harness.join();
        for (name, namespace) in [("near", "ns"), ("far", "far")] {
            let orphans = Interest::Orphans(selection(Some(namespace), "app=x"));
            harness.set(&joined, name, vec![owned(name), orphans]);
        }

        harness.put(&child(1).label("app", "x"));
        assert_eq!(names(&joined).as_deref(), Some("near"));
        harness.put(&child(2).label("app", "x").controller("far"));
        assert_eq!(names(&joined).as_deref(), Some("far near"), "adopted by another one");
    }

    #[test]
    fn related_object_names_its_parents_before_and_after_a_change() {
        let harness = Harness::new();
        let joined = harness.join();
        harness.set(&joined, "labels", vec![selected(None, "app=x")]);
        harness.set(&joined, "own", vec![selected(Some("ns"), ""), selected(None, "app=x")]);
        harness.set(&joined, "named", vec![Interest::Named(ObjectKey::namespaced("far", "a"))]);
        harness.set(&joined, "anywhere", vec![Interest::NamedAnywhere("a".into())]);
        let related =
            |name: &str, version: u64| Fixture::new(name).namespace("far").version(version);

        harness.put(&Fixture::new("b").namespace("ns").label("app", "x"));
        assert_eq!(names(&joined).as_deref(), Some("labels own"), "each once");
        harness.put(&related("a", 1));
        assert_eq!(names(&joined).as_deref(), Some("anywhere named"));
        harness.put(&related("c", 2).label("app", "x"));
        assert_eq!(names(&joined).as_deref(), Some("labels own"));
        harness.put(&related("c", 3).label("app", "y"));
        assert_eq!(names(&joined).as_deref(), Some("labels own"), "it matched before");
        harness.informer.remove(&ObjectKey::namespaced("far", "a"));
        assert_eq!(names(&joined).as_deref(), Some("anywhere named"));
    }

    #[test]
    fn merged_changes_have_the_names_of_all() {
        let harness = Harness::new();
        let joined = harness.join();
        for name in ["a", "b", "c"] {
            harness.set(&joined, name, vec![owned(name)]);
        }

        for (version, owner) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
            harness.put(&child(version).controller(owner));
        }

        assert_eq!(names(&joined).as_deref(), Some("a b c"));
        assert_eq!(names(&joined), None);
    }

    #[test]
    fn replaced_and_removed_interests_name_no_later_change() {
        let harness = Harness::new();
        let joined = harness.join();
        harness.set(&joined, "a", vec![owned("first")]);
        harness.set(&joined, "a", vec![owned("second")]);

        harness.put(&child(1).controller("first"));
        assert_eq!(names(&joined), None);
        harness.put(&child(2).controller("second"));
        assert_eq!(names(&joined).as_deref(), Some("a"));

        harness.set(&joined, "a", Vec::new());
        harness.put(&child(3).controller("second"));
        assert_eq!(names(&joined), None);
    }

    #[test]
    fn parents_of_one_interest_join_and_leave_it_one_by_one() {
        let harness = Harness::new();
        let joined = harness.join();
        for name in ["a", "b", "c"] {
            harness.set(&joined, name, vec![owned("p"), selected(None, "app=x")]);
        }
        harness.put(&child(1).controller("p"));

        harness.set(&joined, "a", vec![owned("other")]);
        harness.set(&joined, "b", Vec::new());
        harness.set(&joined, "late", vec![owned("p")]);
        assert_eq!(names(&joined).as_deref(), Some("c late"), "as they are when it is taken");
        harness.put(&child(2).controller("p"));
        assert_eq!(names(&joined).as_deref(), Some("c late"));

        for name in ["a", "c", "late"] {
            harness.set(&joined, name, Vec::new());
        }
        assert!(harness.informer.lock().index.is_empty());
        assert_eq!(harness.informer.store.lookup_places(), 0);
    }

    #[test]
    fn names_of_two_types_with_one_key_are_distinct() {
        let harness = Harness::new();
        let joined = harness.join();
        let name = |position| InterestName { position, key: ObjectKey::namespaced("ns", "p") };
        for position in [0, 1] {
            let uid = owned(&position.to_string());
            harness.informer.set_interests(joined.id, &Arc::new(name(position)), vec![uid]);
        }

        harness.put(&child(1).controller("1"));

        let delta = joined.mailbox.take().unwrap().unwrap().into_delta();
        assert_eq!(delta.interests, [Arc::new(name(1))]);
    }

    #[test]
    fn subscriber_receives_only_its_own_names() {
        let harness = Harness::new();
        let [one, other] = [harness.join(), harness.join()];
        harness.set(&one, "of one", vec![owned("p")]);
        harness.set(&other, "of the other", vec![owned("p")]);

        harness.put(&child(1).controller("p"));

        assert_eq!(names(&one).as_deref(), Some("of one"));
        assert_eq!(names(&other).as_deref(), Some("of the other"));
    }

    #[test]
    fn scan_names_the_moving_interests_of_existing_objects() {
        let harness = Harness::new();
        harness.put(&child(1).controller("p"));
        let everything = Interests { deliver: vec![Interest::Everything], whole: Vec::new() };
        let joined = harness.informer.join(everything).unwrap();

        harness.set(&joined, "p", vec![owned("p")]);
        while harness.informer.scan(joined.id) {}

        assert_eq!(names(&joined).as_deref(), Some("p"));
    }

    /// Number of comparisons of interests with an object for its creation.
    fn comparisons(parents: usize, object: &Object, expected: &str) -> usize {
        let harness = Harness::new();
        let joined = harness.join();
        for number in 0..parents {
            let namespace = format!("ns-{number}");
            let interests = vec![
                owned(&format!("p{number}")),
                Interest::Orphans(selection(None, &format!("app=x,parent=p{number}"))),
                selected(None, &format!("tier=t,related=p{number}")),
                selected(Some(&namespace), ""),
                Interest::Named(ObjectKey::namespaced(&*namespace, "config")),
                Interest::NamedAnywhere(format!("name-{number}").into()),
            ];
            harness.set(&joined, &format!("p{number}"), interests);
        }
        COMPARED.set(0);
        harness.informer.put(object);
        assert_eq!(names(&joined).as_deref(), Some(expected));
        COMPARED.get()
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "the ratio is shown where the test is run by hand")]
    fn cost_of_a_change_does_not_depend_on_the_number_of_parents() {
        let config = Fixture::new("config").namespace("ns-7");
        for (object, expected) in [
            (child(1).controller("p3"), "p3"),
            (child(1).label("parent", "p3").label("app", "x"), "p3"),
            (config.label("tier", "t").label("related", "p3"), "p3 p7"),
        ] {
            let object = object.object();
            let [few, many] = [10, 10_000].map(|parents| comparisons(parents, &object, expected));
            eprintln!("comparisons at 10 and 10,000 parents: {few} and {many}, {expected}");
            assert_eq!(few, many);
        }
    }

    /// Number of comparisons of interests with an object, which concerns one interest of all parents.
    fn shared_comparisons(parents: usize) -> usize {
        let harness = Harness::new();
        let joined = harness.join();
        for number in 0..parents {
            harness.set(&joined, &format!("p{number}"), vec![selected(None, "app=x")]);
        }
        COMPARED.set(0);
        harness.put(&child(1).label("app", "x"));
        let compared = COMPARED.get();
        assert_eq!(joined.mailbox.pointers(), 1);
        assert_eq!(names(&joined).unwrap().split(' ').count(), parents);
        compared
    }

    #[test]
    fn cost_of_a_change_is_the_same_for_any_parents_of_an_interest() {
        assert_eq!([1, 10_000].map(shared_comparisons), [1, 1]);
    }

    #[test]
    fn thousand_pending_objects_of_thousand_parents_hold_a_pointer_each() {
        let harness = Harness::new();
        let joined = harness.join();
        for number in 0..1_000 {
            harness.set(&joined, &format!("p{number}"), vec![owned("p")]);
        }
        for number in 0..1_000 {
            harness.put(&Fixture::new(&format!("o{number}")).version(1).controller("p"));
            harness.put(&Fixture::new(&format!("o{number}")).version(2).controller("p"));
        }

        assert_eq!(joined.mailbox.pointers(), 1_000);
        assert_eq!(names(&joined).unwrap().split(' ').count(), 1_000);
    }

    #[test]
    fn change_ahead_of_a_scan_names_the_owner_before_it() {
        let harness = Harness::new();
        harness.put(&child(1).controller("a"));
        let everything = Interests { deliver: vec![Interest::Everything], whole: Vec::new() };
        let joined = harness.informer.join(everything).unwrap();
        for name in ["a", "b"] {
            harness.set(&joined, name, vec![owned(name)]);
        }

        harness.put(&child(2).controller("b"));
        harness.put(&child(3).controller("stranger"));
        while harness.informer.scan(joined.id) {}

        assert_eq!(names(&joined).as_deref(), Some("a b"));
        assert_eq!(names(&joined), None);
    }
}
