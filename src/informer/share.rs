//! Share: counts of the objects that one subscription keeps whole, maintained with each change.

use std::collections::HashMap;

use super::{
    Interest, Object,
    interest::{InterestIndex, SubscriberId},
};

/// Part of a cache that belongs to one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheShare {
    /// Number of objects that the subscription keeps whole.
    pub whole: usize,
    /// Number of objects that it has as metadata entries, which all subscriptions share.
    pub entries: usize,
    /// Estimate of the memory that the whole objects take, in bytes.
    pub accounted: usize,
}

/// Counts of subscriptions whose interests are neither everything nor one kind of owner, which
/// other indexes count.
#[derive(Default)]
pub(super) struct Shares {
    index: InterestIndex<SubscriberId>,
    counts: HashMap<SubscriberId, ObjectCount>,
    // Subscriptions that are interested in the object; kept for its capacity.
    visited: Vec<SubscriberId>,
}

/// Number of whole objects, and an estimate of their memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectCount {
    pub(super) objects: usize,
    pub(super) accounted: usize,
}

impl CacheShare {
    /// Returns the sum of two shares.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            whole: self.whole + other.whole,
            entries: self.entries + other.entries,
            accounted: self.accounted + other.accounted,
        }
    }
}

impl ObjectCount {
    pub(super) fn add(&mut self, object: &Object) {
        self.objects += 1;
        self.accounted += object.accounted();
    }

    pub(super) fn subtract(&mut self, object: &Object) {
        self.objects -= 1;
        self.accounted -= object.accounted();
    }
}

impl Shares {
    /// Adds a subscription to a store in which its interests concern these whole objects.
    pub(super) fn join<'a>(
        &mut self,
        id: SubscriberId,
        interests: &[Interest],
        concerned: impl Iterator<Item = &'a Object>,
    ) {
        let mut count = ObjectCount::default();
        concerned.for_each(|object| count.add(object));
        for interest in interests {
            self.index.insert(interest, id);
        }
        self.counts.insert(id, count);
    }

    pub(super) fn leave(&mut self, id: SubscriberId, interests: &[Interest]) {
        for interest in interests {
            self.index.remove(interest, &id);
        }
        self.counts.remove(&id);
    }

    pub(super) fn of(&self, id: SubscriberId) -> ObjectCount {
        self.counts.get(&id).copied().unwrap_or_default()
    }

    /// Counts an object that is stored from now on.
    pub(super) fn add(&mut self, object: &Object) {
        self.change(object, |count| count.add(object));
    }

    /// Stops counting an object.
    pub(super) fn subtract(&mut self, object: &Object) {
        self.change(object, |count| count.subtract(object));
    }

    /// Records that the store is empty.
    pub(super) fn clear(&mut self) {
        self.counts.values_mut().for_each(|count| *count = ObjectCount::default());
    }

    fn change(&mut self, object: &Object, change: impl Fn(&mut ObjectCount)) {
        if self.counts.is_empty() || !object.is_whole() {
            return;
        }
        let Self { index, counts, visited } = self;
        index.visit(object.header(), |id| visited.push(*id));
        visited.sort_unstable();
        visited.dedup();
        for id in visited.drain(..) {
            counts.get_mut(&id).into_iter().for_each(&change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        informer::{ObjectKey, Selection, Store, fixture::Fixture},
        kind::GroupKind,
    };

    fn interests() -> Vec<Vec<Interest>> {
        let fixture = Fixture::new("x").controller("p").object();
        let kind: GroupKind = (*fixture.header().owners[0].kind).clone();
        let selected = |text: &str| {
            Interest::Selected(Selection { namespace: None, selector: text.parse().unwrap() })
        };
        let named = Interest::Named(ObjectKey::namespaced("ns", "o1"));
        vec![
            vec![],
            vec![Interest::Everything],
            vec![Interest::OwnerKind(kind.clone())],
            vec![selected("app=x"), named.clone()],
            vec![selected("app!=x"), selected("app in (x,y)")],
            vec![named, Interest::OwnerKind(kind)],
            vec![Interest::OwnerUid("p".into())],
        ]
    }

    fn object(number: usize, random: &mut fastrand::Rng) -> Object {
        let name = format!("o{number}");
        let mut fixture = Fixture::new(&name).namespace("ns").version(random.u64(1..1000));
        if random.bool() {
            fixture = fixture.label("app", random.choice(["x", "y", "zzzz"]).unwrap());
        }
        match random.u8(0..4) {
            0 => fixture.controller("p").object(),
            1 => fixture.owner("q").object(),
            _ => fixture.object(),
        }
    }

    #[test]
    fn share_is_what_a_walk_over_the_store_finds() {
        let mut random = fastrand::Rng::with_seed(11);
        let store = Store::new();
        let mut readers = Vec::new();
        for step in 0..2_000_usize {
            if step % 300 == 0 {
                let joined = interests().into_iter().enumerate();
                readers.extend(joined.map(|(number, interests)| {
                    let id = SubscriberId((step + number) as u64);
                    (store.join(id, &interests), interests)
                }));
            }
            let number = random.usize(0..12);
            match random.u8(0..8) {
                0 => drop(store.remove(&ObjectKey::namespaced("ns", format!("o{number}")))),
                1 => store.all().get(number).into_iter().for_each(|it| store.reduce(it)),
                2 if step % 7 == 0 => store.clear(),
                _ => drop(store.put(&object(number, &mut random), 0)),
            }
            if random.u8(0..50) == 0 && !readers.is_empty() {
                readers.swap_remove(random.usize(..readers.len())).0.leave();
            }

            for (reader, interests) in &readers {
                let all = store.all();
                let concerned = all.iter().filter(|object| {
                    object.is_whole() && interests.iter().any(|it| it.concerns(object.header()))
                });
                let mut count = ObjectCount::default();
                concerned.for_each(|object| count.add(object));
                let entries = all.len() - count.objects;
                // Entries of a reader of everything are not yet whole.
                let accounted = match interests.contains(&Interest::Everything) {
                    true => all.iter().map(Object::accounted).sum(),
                    false => count.accounted,
                };
                let expected = CacheShare { whole: count.objects, entries, accounted };
                assert_eq!(reader.share(), expected, "step {step}: {interests:?}");
            }
        }
    }
}
