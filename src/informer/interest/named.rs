//! Named interest: a moving interest of one subscriber, with the names that declare it.
//!
//! A change holds a pointer to each named interest that it concerns, however many names that has.
//! The names are read when the subscriber takes the change, outside the lock of the informer.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use super::{Interest, InterestName};

/// Maximum number of names that are read under one lock: a parent that moves its interests waits
/// for that lock, and the informer for the parent. Few in tests, which have few names.
const READ_MAX: usize = if cfg!(test) { 2 } else { 256 };

/// Interest of one subscriber that at least one name declares.
#[derive(Debug)]
pub(crate) struct NamedInterest {
    pub(in crate::informer) interest: Interest,
    names: Mutex<Names>,
}

/// Named interests that a change concerns, each once.
pub(crate) type NamedInterests = Vec<Arc<NamedInterest>>;

/// Names of one interest. Most interests, such as that in the children of a parent, have one.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "a set is larger than one name")]
enum Names {
    None,
    One(Arc<InterestName>),
    Many(Box<BTreeSet<Arc<InterestName>>>),
}

impl NamedInterest {
    /// Creates an interest that no name declares yet.
    pub(in crate::informer) fn new(interest: Interest) -> Self {
        Self { interest, names: Mutex::new(Names::None) }
    }

    /// Adds a name, unless the interest has it.
    pub(in crate::informer) fn add(&self, name: &Arc<InterestName>) {
        let mut names = self.lock();
        match &mut *names {
            Names::None => *names = Names::One(Arc::clone(name)),
            Names::One(known) if known == name => {}
            Names::One(known) => {
                let both = [Arc::clone(known), Arc::clone(name)];
                *names = Names::Many(Box::new(BTreeSet::from(both)));
            }
            Names::Many(known) => drop(known.insert(Arc::clone(name))),
        }
    }

    /// Removes a name; returns whether it was the last one.
    pub(in crate::informer) fn remove(&self, name: &Arc<InterestName>) -> bool {
        let mut names = self.lock();
        let is_last = match &mut *names {
            Names::None => false,
            Names::One(known) => known == name,
            Names::Many(known) => known.remove(name) && known.is_empty(),
        };
        if is_last {
            *names = Names::None;
        }
        is_last
    }

    /// Appends the names in their order. A name that is added or removed meanwhile may be missing.
    fn read(&self, found: &mut Vec<Arc<InterestName>>) {
        let mut last: Option<Arc<InterestName>> = None;
        loop {
            let before = found.len();
            match &*self.lock() {
                Names::None => {}
                Names::One(name) => found.push(Arc::clone(name)),
                Names::Many(names) => {
                    let after = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                    let names = names.range::<InterestName, _>((after, Bound::Unbounded));
                    found.extend(names.take(READ_MAX).cloned());
                }
            }
            if found.len() - before < READ_MAX {
                return;
            }
            last = found.last().cloned();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        #[cfg(test)]
        crate::informer::schedule::before(&self.names);
        self.names.lock()
    }
}

/// Returns the names of these interests now, each once, in their order.
///
/// A name that has moved to another interest since the change is not needed: the change was in the
/// store before the move, and the name reads the store after it.
pub(in crate::informer) fn names(interests: &[Arc<NamedInterest>]) -> Vec<Arc<InterestName>> {
    let mut names = Vec::new();
    interests.iter().for_each(|interest| interest.read(&mut names));
    // Stable, since sorted parts are merged in one pass.
    names.sort();
    names.dedup();
    names
}

/// Removes repeated pointers to interests.
pub(in crate::informer) fn dedup(interests: &mut NamedInterests) {
    interests.sort_unstable_by_key(Arc::as_ptr);
    interests.dedup_by_key(|interest| Arc::as_ptr(interest));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::ObjectKey;

    fn name(number: usize) -> Arc<InterestName> {
        Arc::new(ObjectKey::cluster(format!("p{number}")).into())
    }

    #[test]
    fn names_of_several_interests_are_read_in_parts_each_once() {
        let [one, other] = [Interest::Everything, Interest::OwnerUid("u".into())]
            .map(|interest| Arc::new(NamedInterest::new(interest)));
        for number in [3, 1, 4, 0, 2, 1] {
            one.add(&name(number));
        }
        other.add(&name(2));
        other.add(&name(5));

        let all = names(&[Arc::clone(&one), other]);
        assert_eq!(all, [0, 1, 2, 3, 4, 5].map(name));
        let ends: Vec<_> = (0..6).map(|number| one.remove(&name(number))).collect();
        assert_eq!(ends, [false, false, false, false, true, false]);
        assert_eq!(names(&[one]), []);
    }
}
