//! Parents that a related object concerns: the index that handlers of events read.

use std::collections::{BTreeMap, HashMap};

use crate::informer::{Delta, Interest, InterestIndex, Object, ObjectKey};

/// Parents whose rules name a type, with their interests in its objects.
#[derive(Debug, Default)]
pub(super) struct ConcernedParents {
    pub(super) parents: HashMap<ObjectKey, Vec<Interest>>,
    index: InterestIndex<ObjectKey>,
}

impl ConcernedParents {
    /// Parents that an object concerns before or after a change.
    pub(super) fn by_change(&self, delta: &Delta) -> Vec<ObjectKey> {
        let mut parents = [self.visit(delta.old.as_ref()), self.visit(delta.new.as_ref())].concat();
        parents.sort_unstable();
        parents.dedup();
        parents
    }

    /// Parents for which an object begins or ends to match.
    pub(super) fn by_match(&self, delta: &Delta) -> Vec<ObjectKey> {
        let mut counts: BTreeMap<ObjectKey, i64> = BTreeMap::new();
        let (old, new) = (self.visit(delta.old.as_ref()), self.visit(delta.new.as_ref()));
        new.into_iter().for_each(|key| *counts.entry(key).or_default() += 1);
        old.into_iter().for_each(|key| *counts.entry(key).or_default() -= 1);
        counts.into_iter().filter(|(_, count)| *count != 0).map(|(key, _)| key).collect()
    }

    fn visit(&self, object: Option<&Object>) -> Vec<ObjectKey> {
        let mut parents = Vec::new();
        if let Some(object) = object {
            self.index.visit(object.header(), |parent| parents.push(parent.clone()));
        }
        parents
    }

    /// Replaces the interests of a parent.
    pub(super) fn set(&mut self, parent: &ObjectKey, interests: Vec<Interest>) {
        if self.parents.get(parent) == Some(&interests) {
            return;
        }
        for interest in &interests {
            self.index.insert(interest, parent.clone());
        }
        let old = self.parents.insert(parent.clone(), interests);
        self.unindex(parent, old);
    }

    /// Removes a parent; returns whether it was there.
    pub(super) fn leave(&mut self, parent: &ObjectKey) -> bool {
        let old = self.parents.remove(parent);
        let was_there = old.is_some();
        self.unindex(parent, old);
        was_there
    }

    fn unindex(&mut self, parent: &ObjectKey, interests: Option<Vec<Interest>>) {
        for interest in interests.into_iter().flatten() {
            self.index.remove(&interest, parent);
        }
    }
}
