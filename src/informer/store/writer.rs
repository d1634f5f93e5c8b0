//! Write access of the informer to its store, and the end of a subscription.

use std::{mem, sync::atomic::Ordering};

use super::{CountedObjects, Store};
use crate::informer::{
    Object, ObjectKey,
    lookups::{CountedIndex, Lookup},
    objects::ListNumber,
};

impl Store {
    /// Drops the subscriber's indexes.
    pub(in crate::informer) fn leave(&self) {
        let left = self.reader.as_ref().and_then(|reader| {
            let mut state = self.write();
            reader.left.store(true, Ordering::Relaxed);
            if let CountedObjects::Of(interests) = &reader.counted {
                state.shares.leave(reader.id, interests);
            }
            state.indexes.remove_subscriber(reader.id)
        });
        // Not under the lock: dropping a user's function may call this store.
        drop(left);
    }

    /// Adds or replaces an object; returns the old one.
    pub(in crate::informer) fn put(&self, object: &Object, list: ListNumber) -> Option<Object> {
        let mut state = self.write();
        let old = state.objects.put(object, list);
        if let Some(old) = &old {
            state.indexes.remove(old);
            state.shares.subtract(old);
            self.discount(old);
        }
        state.indexes.insert(object);
        state.shares.add(object);
        drop(state);
        self.shared.len.fetch_add(1, Ordering::Relaxed);
        self.shared.entries.fetch_add(usize::from(!object.is_whole()), Ordering::Relaxed);
        self.shared.bytes.fetch_add(object.stored_json().len(), Ordering::Relaxed);
        self.shared.accounted.fetch_add(object.accounted(), Ordering::Relaxed);
        old
    }

    /// Replaces a whole object by its metadata entry.
    pub(in crate::informer) fn reduce(&self, object: &Object) {
        let list = self.read().objects.list(object.key());
        let Some(list) = list else { return };
        self.put(&object.reduced(), list);
    }

    pub(in crate::informer) fn touch(&self, key: &ObjectKey, list: ListNumber) {
        self.write().objects.touch(key, list);
    }

    pub(in crate::informer) fn remove(&self, key: &ObjectKey) -> Option<Object> {
        let mut state = self.write();
        let old = state.objects.remove(key)?;
        state.indexes.remove(&old);
        state.shares.subtract(&old);
        self.discount(&old);
        Some(old)
    }

    /// Adds a user of a lookup index, which is built for the first one.
    pub(in crate::informer) fn join_lookup(&self, lookup: &Lookup) {
        self.write().objects.join_lookup(lookup);
    }

    /// Removes a user of a lookup index; returns the index after the last one. It is not to be
    /// dropped under a lock.
    pub(in crate::informer) fn leave_lookup(&self, lookup: &Lookup) -> Option<CountedIndex> {
        self.write().objects.leave_lookup(lookup)
    }

    /// Drops all objects and the maps' memory, after the end of the informer.
    pub(in crate::informer) fn clear(&self) {
        let freed = {
            let mut state = self.write();
            self.shared.gone.store(true, Ordering::Relaxed);
            state.shares.clear();
            self.shared.len.store(0, Ordering::Relaxed);
            self.shared.entries.store(0, Ordering::Relaxed);
            self.shared.bytes.store(0, Ordering::Relaxed);
            self.shared.accounted.store(0, Ordering::Relaxed);
            self.set_version(0);
            (mem::take(&mut state.objects), state.indexes.clear())
        };
        // Freed outside the lock: a large store takes long.
        drop(freed);
    }

    fn discount(&self, old: &Object) {
        self.shared.len.fetch_sub(1, Ordering::Relaxed);
        self.shared.entries.fetch_sub(usize::from(!old.is_whole()), Ordering::Relaxed);
        self.shared.bytes.fetch_sub(old.stored_json().len(), Ordering::Relaxed);
        self.shared.accounted.fetch_sub(old.accounted(), Ordering::Relaxed);
    }
}
