//! Consumers of a broadcast: one for each source.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Consumers of a broadcast, as long as their sources exist. Cheap to clone.
#[derive(Debug)]
pub(super) struct Consumers<C>(Arc<Mutex<Vec<Weak<C>>>>);

impl<C: Default> Consumers<C> {
    /// Adds a consumer, and forgets those whose sources are dropped.
    pub(super) fn add(&self) -> Arc<C> {
        let consumer = Arc::default();
        let mut consumers = self.0.lock();
        consumers.retain(|consumer| consumer.strong_count() > 0);
        consumers.push(Arc::downgrade(&consumer));
        consumer
    }

    /// Returns the consumers whose sources exist, and forgets the others.
    pub(super) fn existing(&self) -> Vec<Arc<C>> {
        let mut existing = Vec::new();
        self.0.lock().retain(|consumer| {
            let consumer = consumer.upgrade();
            let exists = consumer.is_some();
            // Kept, since the drop of the last clone of a source may not run under the lock.
            existing.extend(consumer);
            exists
        });
        existing
    }
}

impl<C> Clone for Consumers<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> Default for Consumers<C> {
    fn default() -> Self {
        Self(Arc::default())
    }
}
