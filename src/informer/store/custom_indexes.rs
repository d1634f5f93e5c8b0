//! Custom indexes: those of a store's subscribers, by value.

use std::{collections::BTreeMap, mem, sync::Arc};

use crate::informer::{
    Index, Object,
    interest::{InterestIndex, SubscriberId},
    sorted_objects::Buckets,
};

/// Indexes of the subscribers that have any.
#[derive(Default)]
pub(super) struct CustomIndexes {
    subscribers: BTreeMap<SubscriberId, SubscriberIndexes>,
}

/// Indexes of one subscriber, over the objects that it keeps whole.
pub(super) struct SubscriberIndexes {
    whole: Arc<InterestIndex<()>>,
    indexes: Vec<(Index, Buckets)>,
}

impl CustomIndexes {
    /// Adds an index over the current `objects` and those that follow. No effect if the subscriber
    /// has an index of that name.
    pub(super) fn add<'a>(
        &mut self,
        id: SubscriberId,
        whole: &Arc<InterestIndex<()>>,
        index: Index,
        objects: impl Iterator<Item = &'a Object>,
    ) {
        let own = self
            .subscribers
            .entry(id)
            .or_insert_with(|| SubscriberIndexes { whole: whole.clone(), indexes: Vec::new() });
        if own.indexes.iter().any(|(known, _)| *known == index) {
            return;
        }
        let mut buckets = Buckets::default();
        for object in objects.filter(|object| own.indexes_object(object)) {
            for value in index.values(object) {
                buckets.insert(&value, object);
            }
        }
        own.indexes.push((index, buckets));
    }

    /// Returns an index of a subscriber, with its objects.
    pub(super) fn get(&self, id: SubscriberId, name: &str) -> Option<&Buckets> {
        let mut indexes = self.subscribers.get(&id)?.indexes.iter();
        indexes.find(|(index, _)| index.name() == name).map(|(_, buckets)| buckets)
    }

    /// Removes the indexes of a subscriber. They are not to be dropped under the store's lock.
    pub(super) fn remove_subscriber(&mut self, id: SubscriberId) -> Option<SubscriberIndexes> {
        self.subscribers.remove(&id)
    }

    pub(super) fn insert(&mut self, object: &Object) {
        self.change(object, |buckets, value| buckets.insert(value, object));
    }

    pub(super) fn remove(&mut self, object: &Object) {
        self.change(object, |buckets, value| buckets.remove(value, object));
    }

    /// Removes all objects, but no index. They are not to be dropped under the store's lock.
    pub(super) fn clear(&mut self) -> Vec<Buckets> {
        let all = self.subscribers.values_mut().flat_map(|own| &mut own.indexes);
        all.map(|(_, buckets)| mem::take(buckets)).collect()
    }

    /// Calls `change` for each value of an object in each index that has it.
    fn change(&mut self, object: &Object, change: impl Fn(&mut Buckets, &str)) {
        for own in self.subscribers.values_mut() {
            if own.indexes_object(object) {
                for (index, buckets) in &mut own.indexes {
                    index.values(object).iter().for_each(|value| change(buckets, value));
                }
            }
        }
    }
}

impl SubscriberIndexes {
    fn indexes_object(&self, object: &Object) -> bool {
        object.is_whole() && self.whole.concerns(object.header())
    }
}
