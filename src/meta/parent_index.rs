//! Parent index: maps a change of a child to the parents that it concerns.
//!
//! Event handlers read it without decoding an object. A parent that was never reconciled is not
//! indexed and need not be: its first sync reads every child.

use std::{collections::HashMap, sync::Arc};

use super::{Selector, claim::UID_LABEL};
use crate::informer::{Delta, Object, ObjectKey};
use parking_lot::{Mutex, MutexGuard};

/// Parents of one controller, by key and by uid.
#[derive(Debug, Default)]
pub(crate) struct ParentIndex(Mutex<Parents>);

#[derive(Debug, Default)]
struct Parents {
    by_key: HashMap<ObjectKey, IndexedParent>,
    by_uid: HashMap<Arc<str>, ObjectKey>,
}

#[derive(Debug)]
struct IndexedParent {
    uid: Arc<str>,
    selector: Selector,
}

impl ParentIndex {
    /// Adds a parent, or replaces its uid and selector.
    ///
    /// Called before its children are read, so that a later change of a child finds it.
    pub(crate) fn insert(&self, key: &ObjectKey, uid: &Arc<str>, selector: &Selector) {
        let mut parents = self.lock();
        match parents.by_key.get_mut(key) {
            Some(entry) if entry.uid == *uid => {
                if entry.selector != *selector {
                    entry.selector = selector.clone();
                }
                return;
            }
            Some(entry) => {
                let old = entry.uid.clone();
                parents.by_uid.remove(&old);
            }
            None => {}
        }
        let entry = IndexedParent { uid: uid.clone(), selector: selector.clone() };
        parents.by_uid.insert(uid.clone(), key.clone());
        parents.by_key.insert(key.clone(), entry);
    }

    /// Removes a parent that is gone, or that the controller no longer selects.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        let mut parents = self.lock();
        if let Some(entry) = parents.by_key.remove(key) {
            parents.by_uid.remove(&entry.uid);
        }
    }

    /// Removes all parents.
    pub(crate) fn clear(&self) {
        *self.lock() = Parents::default();
    }

    /// Keys of all parents.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.lock().by_key.keys().cloned().collect()
    }

    /// Parents that a change of a child concerns: its owner before and after the change; for an
    /// orphan, the parents that could adopt it.
    pub(crate) fn concerned(&self, delta: &Delta) -> Vec<ObjectKey> {
        let parents = self.lock();
        let mut keys = Vec::new();
        for object in [&delta.old, &delta.new].into_iter().flatten() {
            match object.controller() {
                Some(owner) => keys.extend(parents.by_uid.get(&owner.uid).cloned()),
                None if delta.new.is_some() => parents.adopters(object, &mut keys),
                None => {}
            }
        }
        keys.dedup();
        keys
    }

    fn lock(&self) -> MutexGuard<'_, Parents> {
        self.0.lock()
    }
}

impl Parents {
    fn adopters(&self, orphan: &Object, keys: &mut Vec<ObjectKey>) {
        let header = orphan.header();
        if header.deletion_timestamp.is_some() {
            return;
        }
        let could_adopt = |key: &ObjectKey, entry: &IndexedParent| {
            (key.namespace.is_none() || key.namespace == header.key.namespace)
                && entry.selector.matches(&header.labels)
        };
        // The label of a generated selector names the one parent that it belongs to.
        let named = header.labels.get(UID_LABEL).and_then(|uid| self.by_uid.get_key_value(uid));
        if let Some((_, key)) = named
            && self.by_key.get(key).is_some_and(|entry| could_adopt(key, entry))
        {
            keys.push(key.clone());
            return;
        }
        let adopters = self.by_key.iter().filter(|(key, entry)| could_adopt(key, entry));
        keys.extend(adopters.map(|(key, _)| key.clone()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::children::fixtures::served, *};
    use crate::kind::Scope;

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
        let delta = Delta { key, old, new, initial: false };
        index.concerned(&delta).iter().map(ToString::to_string).collect()
    }

    fn index() -> ParentIndex {
        let index = ParentIndex::default();
        let parent = |namespace: &str, name: &str, selector: Selector| {
            index.insert(&ObjectKey::namespaced(namespace, name), &name.into(), &selector);
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
        let of_nobody = object(json!({}), Some("stranger"));
        assert!(concerned(&index(), None, Some(of_nobody)).is_empty());
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
        let (index, key) = (index(), ObjectKey::namespaced("ns", "a"));

        index.insert(&key, &"new".into(), &Selector::label("app", "x"));

        assert!(concerned(&index, None, Some(object(json!({}), Some("a")))).is_empty());
        assert_eq!(concerned(&index, None, Some(object(json!({}), Some("new")))), ["ns/a"]);
    }

    #[test]
    fn removed_parent_is_not_found() {
        let index = index();

        index.remove(&ObjectKey::namespaced("ns", "b"));

        assert_eq!(index.keys().len(), 2);
        assert!(concerned(&index, None, Some(object(json!({}), Some("b")))).is_empty());
    }
}
