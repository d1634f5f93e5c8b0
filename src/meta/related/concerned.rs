//! Parents that a related object concerns: the index that handlers of events read.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use crate::{
    controller::Request,
    informer::{Delta, Interest, InterestIndex, Object},
};

/// Parents whose rules name a type, with their interests in its objects.
#[derive(Debug, Default)]
pub(super) struct ConcernedParents {
    pub(super) parents: HashMap<Request, Vec<Interest>, RandomState>,
    index: InterestIndex<Request>,
}

impl ConcernedParents {
    /// Parents that an object concerns before or after a change.
    pub(super) fn by_change(&self, delta: &Delta) -> Vec<Request> {
        let mut parents = [self.visit(delta.old.as_ref()), self.visit(delta.new.as_ref())].concat();
        parents.sort_unstable();
        parents.dedup();
        parents
    }

    /// Parents of which an interest begins or ends to match an object.
    pub(super) fn by_match(&self, delta: &Delta) -> Vec<Request> {
        let meets = |interest: &Interest, object: &Option<Object>| {
            object.as_ref().is_some_and(|object| interest.concerns(object.header()))
        };
        let mut parents = self.by_change(delta);
        parents.retain(|parent| {
            let interests = self.parents.get(parent);
            let mut interests = interests.into_iter().flatten();
            interests.any(|interest| meets(interest, &delta.old) != meets(interest, &delta.new))
        });
        parents
    }

    fn visit(&self, object: Option<&Object>) -> Vec<Request> {
        let mut parents = Vec::new();
        if let Some(object) = object {
            self.index.visit(object.header(), |parent| parents.push(parent.clone()));
        }
        parents
    }

    /// Replaces the interests of a parent.
    pub(super) fn set(&mut self, parent: &Request, interests: Vec<Interest>) {
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
    pub(super) fn leave(&mut self, parent: &Request) -> bool {
        let old = self.parents.remove(parent);
        let was_there = old.is_some();
        self.unindex(parent, old);
        was_there
    }

    fn unindex(&mut self, parent: &Request, interests: Option<Vec<Interest>>) {
        for interest in interests.into_iter().flatten() {
            self.index.remove(&interest, parent);
        }
    }
}
