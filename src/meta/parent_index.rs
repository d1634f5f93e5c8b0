//! Parent index: maps a change of a child to the parents that it concerns.
//!
//! Event handlers read it without decoding an object. A parent that was never reconciled is not
//! indexed and need not be: its first sync reads every child.

use std::{collections::HashMap, sync::Arc};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};

use super::Selector;
use crate::{
    controller::Request,
    informer::{Delta, Interest, InterestIndex, Selection},
};

/// Parents of one controller, each with the children that concern it.
#[derive(Debug, Default)]
pub(crate) struct ParentIndex(Mutex<ParentInterests>);

#[derive(Debug, Default)]
struct ParentInterests {
    interests: HashMap<Request, Vec<Interest>, RandomState>,
    index: InterestIndex<Request>,
}

impl ParentIndex {
    /// Returns the children that concern a parent: its own, and the orphans that it could adopt, if
    /// it adopts those of a selector.
    pub(crate) fn interests(
        key: &Request,
        uid: &Arc<str>,
        adopts: Option<&Selector>,
    ) -> Vec<Interest> {
        let orphans = adopts.map(|selector| {
            let (namespace, selector) = (key.namespace.clone(), selector.clone());
            Interest::Orphans(Selection { namespace, selector })
        });
        [Interest::OwnerUid(uid.clone())].into_iter().chain(orphans).collect()
    }

    /// Adds a parent, or replaces its interests.
    ///
    /// Called before its children are read, so that a later change of a child finds it.
    pub(crate) fn insert(&self, key: &Request, interests: &[Interest]) {
        let mut parents = self.lock();
        if parents.interests.get(key).is_some_and(|known| known == interests) {
            return;
        }
        for interest in interests {
            parents.index.insert(interest, key.clone());
        }
        let old = parents.interests.insert(key.clone(), interests.to_vec());
        parents.unindex(key, old);
    }

    /// Removes a parent that is gone, or that the controller no longer selects.
    pub(crate) fn remove(&self, key: &Request) {
        let mut parents = self.lock();
        let old = parents.interests.remove(key);
        parents.unindex(key, old);
    }

    /// Removes all parents.
    pub(crate) fn clear(&self) {
        *self.lock() = ParentInterests::default();
    }

    /// Keys of all parents.
    pub(crate) fn keys(&self) -> Vec<Request> {
        self.lock().interests.keys().cloned().collect()
    }

    /// Parents that a change of a child concerns: its owners before and after the change; for an
    /// orphan, the parents that could adopt it.
    pub(crate) fn concerned(&self, delta: &Delta) -> Vec<Request> {
        let parents = self.lock();
        let mut keys = Vec::new();
        for object in [&delta.old, &delta.new].into_iter().flatten() {
            let header = object.header();
            let is_orphan = object.controller().is_none();
            // An orphan that is deleted, or being deleted, cannot be adopted.
            let adoptable = delta.new.is_some() && header.deletion_timestamp.is_none();
            parents.index.visit(header, |key| {
                let owned = || {
                    let uid = parents.interests.get(key).and_then(|interests| interests.first());
                    uid.is_some_and(|owned| owned.concerns(header))
                };
                if !is_orphan || adoptable || owned() {
                    keys.push(key.clone());
                }
            });
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn lock(&self) -> MutexGuard<'_, ParentInterests> {
        self.0.lock()
    }
}

impl ParentInterests {
    fn unindex(&mut self, key: &Request, interests: Option<Vec<Interest>>) {
        for interest in interests.iter().flatten() {
            self.index.remove(interest, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{children::fixtures::served, ownership::UID_LABEL},
        *,
    };
    use crate::{
        informer::{COMPARED, Object, ObjectKey},
        kind::Scope,
    };

    fn object(labels: Value, owner: Option<&str>) -> Object {
        let owners: Vec<Value> = owner
            .map(|uid| {
                json!({
                    "apiVersion": "example.com/v1", "kind": "Thing", "name": "p", "uid": uid,
                    "controller": true
                })
            })
            .into_iter()
            .collect();
        let json = json!({
            "metadata": {
                "name": "c", "namespace": "ns", "uid": "c", "labels": labels,
                "ownerReferences": owners
            }
        });
        let served = served("", "configmaps", "ConfigMap", Scope::Namespaced);
        Object::from_json(json.to_string(), &served).unwrap()
    }

    fn concerned(index: &ParentIndex, old: Option<Object>, new: Option<Object>) -> Vec<String> {
        let key = ObjectKey::namespaced("ns", "c");
        let delta = Delta { key, old, new, initial: false, interests: Vec::new() };
        index.concerned(&delta).iter().map(ToString::to_string).collect()
    }

    fn insert(index: &ParentIndex, key: &Request, uid: &str, selector: &Selector) {
        index.insert(key, &ParentIndex::interests(key, &uid.into(), Some(selector)));
    }

    fn index() -> ParentIndex {
        let index = ParentIndex::default();
        let parent = |namespace: &str, name: &str, selector: Selector| {
            insert(&index, &Request::namespaced(namespace, name), name, &selector);
        };
        parent("ns", "a", Selector::label("app", "x"));
        parent("ns", "b", Selector::label(UID_LABEL, "b"));
        parent("far", "c", Selector::label("app", "x"));
        index
    }

    #[test]
    fn a_child_concerns_its_owner_before_and_after() {
        let (of_a, of_b) = (object(json!({}), Some("a")), object(json!({}), Some("b")));

        assert_eq!(concerned(&index(), None, Some(of_a.clone())), ["ns/a"]);
        assert_eq!(concerned(&index(), Some(of_a.clone()), Some(of_b)), ["ns/a", "ns/b"]);
        assert_eq!(concerned(&index(), Some(of_a), None), ["ns/a"]);
        let of_a_stranger = object(json!({}), Some("stranger"));
        assert!(concerned(&index(), None, Some(of_a_stranger)).is_empty());
    }

    #[test]
    fn an_orphan_concerns_the_parents_that_could_adopt_it() {
        let orphan = |labels: Value| Some(object(labels, None));

        assert_eq!(concerned(&index(), None, orphan(json!({"app": "x"}))), ["ns/a"]);
        assert_eq!(concerned(&index(), None, orphan(json!({"controller-uid": "b"}))), ["ns/b"]);
        assert!(concerned(&index(), None, orphan(json!({}))).is_empty());
        assert!(concerned(&index(), orphan(json!({"app": "x"})), None).is_empty());
    }

    #[test]
    fn a_parent_of_the_same_name_replaces_the_one_before() {
        let (index, key) = (index(), Request::namespaced("ns", "a"));

        insert(&index, &key, "new", &Selector::label("app", "x"));

        assert!(concerned(&index, None, Some(object(json!({}), Some("a")))).is_empty());
        assert_eq!(concerned(&index, None, Some(object(json!({}), Some("new")))), ["ns/a"]);
    }

    #[test]
    fn parents_of_two_types_with_one_name_are_distinct() {
        let (index, other) = (index(), Request { primary: 1, ..Request::namespaced("ns", "a") });
        index.insert(&other, &ParentIndex::interests(&other, &"z".into(), None));
        let concerned = |owner: &str| {
            let new = Some(object(json!({"app": "x"}), Some(owner)));
            let key = ObjectKey::namespaced("ns", "c");
            index.concerned(&Delta { key, old: None, new, initial: false, interests: Vec::new() })
        };

        assert_eq!(concerned("a"), [Request::namespaced("ns", "a")]);
        assert_eq!(concerned("z"), std::slice::from_ref(&other), "it adopts no orphan");
        index.remove(&Request::namespaced("ns", "a"));
        assert_eq!(concerned("z"), std::slice::from_ref(&other));
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "the ratio is shown where the test is run by hand")]
    fn cost_of_an_event_of_an_orphan_or_a_child_does_not_depend_on_the_number_of_parents() {
        let compared = |parents: usize, owner: Option<&str>| {
            let index = ParentIndex::default();
            for number in 0..parents {
                let (name, key) = (format!("p{number}"), Request::namespaced("ns", "p"));
                let key = Request { key: ObjectKey::namespaced("ns", &*name), ..key };
                insert(&index, &key, &name, &Selector::label("parent", &name));
            }
            COMPARED.set(0);
            let changed = object(json!({"parent": "p3", "app": "x"}), owner);
            let found = concerned(&index, Some(changed.clone()), Some(changed));
            assert_eq!(found, ["ns/p3"]);
            COMPARED.get()
        };

        for owner in [None, Some("p3")] {
            let [few, many] = [10, 10_000].map(|parents| compared(parents, owner));
            eprintln!("comparisons at 10 and 10,000 parents: {few} and {many}, owner {owner:?}");
            assert_eq!(few, many);
        }
    }

    #[test]
    fn removed_parent_is_not_found() {
        let index = index();

        index.remove(&Request::namespaced("ns", "b"));

        assert_eq!(index.keys().len(), 2);
        assert!(concerned(&index, None, Some(object(json!({}), Some("b")))).is_empty());
    }
}
