//! Moving interests of the subscribers of a shared informer.

use super::{InformerContents, SharedInformer};
use crate::informer::{
    Interest, ObjectKey,
    interest::SubscriberId,
    lookups::{CountedIndex, Lookup},
};

impl SharedInformer {
    /// Replaces the interests of one name; the new ones are added before the old ones are removed.
    pub(in crate::informer) fn set_interests(
        &self,
        id: SubscriberId,
        (position, key): (usize, &ObjectKey),
        new: Vec<Interest>,
    ) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(subscriber) = state.subscribers.get_mut(&id) else { return };
        let name = (position, key.clone());
        if subscriber.moving.get(&name).map_or(&[][..], Vec::as_slice) == new {
            return;
        }
        for interest in &new {
            if let Some(lookup) = Lookup::of(interest, state.index.insert(interest, id)) {
                self.store.join_lookup(&lookup);
            }
        }
        let old = match new.is_empty() {
            true => subscriber.moving.remove(&name),
            false => subscriber.moving.insert(name, new),
        };
        let old = old.iter().flatten();
        let freed: Vec<_> =
            old.filter_map(|interest| self.remove_interest(state, interest, id)).collect();
        drop(guard);
        // Not under the lock: an index may be large.
        drop(freed);
    }

    /// Returns the moving interests of a subscriber, by name.
    pub(in crate::informer) fn moving_interests(
        &self,
        id: SubscriberId,
    ) -> Vec<((usize, ObjectKey), Vec<Interest>)> {
        let state = self.lock();
        let moving = state.subscribers.get(&id).map(|subscriber| &subscriber.moving);
        moving.into_iter().flatten().map(|(name, of)| (name.clone(), of.clone())).collect()
    }

    /// Removes a moving interest; returns an index without users, which is not to be dropped under
    /// a lock.
    pub(super) fn remove_interest(
        &self,
        state: &mut InformerContents,
        interest: &Interest,
        id: SubscriberId,
    ) -> Option<CountedIndex> {
        let lookup = Lookup::of(interest, state.index.remove(interest, &id))?;
        self.store.leave_lookup(&lookup)
    }
}
