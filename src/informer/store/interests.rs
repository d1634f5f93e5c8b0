//! Reads of a store by owner, and by the interests of a subscriber.

use super::Store;
use crate::informer::{Interest, Object, Selection};

impl Store {
    /// Returns the whole objects that name `uid` as their controller, by index.
    pub fn controlled_by(&self, uid: &str) -> Vec<Object> {
        let mut owned = self.owned_by(uid);
        owned.retain(|object| object.is_controlled_by(uid));
        owned
    }

    /// Returns the whole objects that name `uid` as an owner, controller or not, by index.
    pub fn owned_by(&self, uid: &str) -> Vec<Object> {
        self.of_parts(|store| {
            let state = store.read();
            let owned = state.objects.owned_by(uid).iter();
            owned.filter(|object| store.keeps(object)).cloned().collect()
        })
    }

    /// Returns the whole objects that name `uid` as their controller, and the orphans that a selection
    /// selects, which may be metadata entries. Both are of one moment: an object that gains or loses
    /// its controller meanwhile is returned once.
    pub fn claimable_by(&self, uid: &str, orphans: Option<&Selection>) -> Vec<Object> {
        let orphans = orphans.map(|selection| Interest::Orphans(selection.clone()));
        self.of_parts(|store| {
            let state = store.read();
            let is_own = |object: &Object| object.is_controlled_by(uid) && store.keeps(object);
            let owned = state.objects.owned_by(uid).iter();
            let mut found: Vec<_> = owned.filter(|object| is_own(object)).cloned().collect();
            found.extend(orphans.iter().flat_map(|it| state.objects.concerned_by(it)));
            drop(state);
            found.into_iter().map(|object| store.view(object)).collect()
        })
    }

    /// Returns the objects without a controller that a selection selects: by index, if an interest
    /// in them is set, and by a scan otherwise. They may be metadata entries.
    ///
    /// [`Store::claimable_by`] reads them together with the objects of an owner.
    pub fn orphans(&self, selection: &Selection) -> Vec<Object> {
        self.concerned_by(&Interest::Orphans(selection.clone()))
    }

    /// Returns the objects that an interest concerns, in any order: by index if the interest is a
    /// moving one of a subscriber, and by a scan otherwise. They may be metadata entries.
    pub(crate) fn concerned_by(&self, interest: &Interest) -> Vec<Object> {
        self.of_parts(|store| {
            let state = store.read();
            let found = state.objects.concerned_by(interest);
            drop(state);
            found.into_iter().map(|object| store.view(object)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::informer::{Selector, fixture::Fixture};

    #[test]
    fn object_that_gains_and_loses_its_controller_is_claimable_once_at_each_moment() {
        let store = Store::new();
        let all = Selection { namespace: Some("ns".into()), selector: Selector::default() };
        let (owned, orphan) = (
            Fixture::new("a").namespace("ns").controller("p").object(),
            Fixture::new("a").namespace("ns").object(),
        );
        drop(store.put(&owned, 0));
        let is_read = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_read.load(Ordering::Relaxed) {
                    drop(store.put(&orphan, 0));
                    drop(store.put(&owned, 0));
                }
            });
            let claimable = || store.claimable_by("p", Some(&all)).len();
            let wrong = (0..20_000).map(|_| claimable()).find(|found| *found != 1);
            is_read.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None);
        });
        assert_eq!(store.claimable_by("p", None).len(), 1);
        assert_eq!(store.claimable_by("q", None).len(), 0);
    }
}
