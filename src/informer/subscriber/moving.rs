//! Moving interests of one subscriber: those of each name, of which equal ones are one.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use foldhash::quality::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use crate::informer::{
    Interest, InterestName,
    interest::{NamedInterest, NamedInterests},
};

/// Moving interests of a subscriber.
#[derive(Debug, Default)]
pub(in crate::informer) struct MovingTable {
    by_name: HashMap<Arc<InterestName>, NamedInterests, RandomState>,
    // All of them, found by their hash.
    all: HashTable<Arc<NamedInterest>>,
}

/// Effect of a move on the index of the informer.
#[derive(Debug, Default)]
pub(in crate::informer) struct InterestMove {
    /// Interests that no other name had before.
    pub(in crate::informer) begun: NamedInterests,
    /// Interests that no name has any more.
    pub(in crate::informer) ended: NamedInterests,
}

impl MovingTable {
    pub(in crate::informer) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns all interests, each once.
    pub(in crate::informer) fn all(&self) -> impl Iterator<Item = &Arc<NamedInterest>> {
        self.all.iter()
    }

    /// Returns the interests of each name.
    pub(in crate::informer) fn by_name(&self) -> Vec<(Arc<InterestName>, NamedInterests)> {
        self.by_name.iter().map(|(name, of)| (Arc::clone(name), of.clone())).collect()
    }

    /// Replaces the interests of a name. An interest that stays has the name throughout.
    pub(in crate::informer) fn set(
        &mut self,
        name: &Arc<InterestName>,
        new: Vec<Interest>,
    ) -> InterestMove {
        let mut moved = InterestMove::default();
        let known = self.by_name.get_key_value(name);
        let known_interests = known.map_or(&[][..], |(_, interests)| interests);
        if known_interests.iter().map(|known| &known.interest).eq(&new) {
            return moved;
        }
        // Known pointer, if there is one, so that all interests share it.
        let name = Arc::clone(known.map_or(name, |(known, _)| known));
        let mut interests = Vec::with_capacity(new.len());
        for interest in new {
            let named = self.named(interest, &mut moved.begun);
            named.add(&name);
            interests.push(named);
        }
        let kept: HashSet<_> = interests.iter().map(Arc::as_ptr).collect();
        let old = if interests.is_empty() {
            self.by_name.remove(&name)
        } else {
            self.by_name.insert(Arc::clone(&name), interests)
        };
        for interest in old.into_iter().flatten() {
            if !kept.contains(&Arc::as_ptr(&interest)) && interest.remove(&name) {
                self.forget(&interest);
                moved.ended.push(interest);
            }
        }
        moved
    }

    /// Returns the one of an interest, which is created and added to `begun` if it is new.
    fn named(&mut self, interest: Interest, begun: &mut NamedInterests) -> Arc<NamedInterest> {
        let Self { by_name, all } = self;
        let hash = |interest: &Interest| interest.hash(by_name.hasher());
        let is_it = |known: &Arc<NamedInterest>| known.interest == interest;
        match all.entry(hash(&interest), is_it, |known| hash(&known.interest)) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(place) => {
                let new = Arc::new(NamedInterest::new(interest));
                begun.push(Arc::clone(&new));
                Arc::clone(place.insert(new).get())
            }
        }
    }

    fn forget(&mut self, interest: &Arc<NamedInterest>) {
        let hash = interest.interest.hash(self.by_name.hasher());
        if let Ok(known) = self.all.find_entry(hash, |known| Arc::ptr_eq(known, interest)) {
            known.remove();
        }
    }
}
