//! Parts of a store: one for each namespace of an input of several namespaces.

use std::{iter, sync::Arc};

use super::Store;
use crate::informer::Object;

impl Store {
    /// Returns a reader of this store and of others, whose objects differ.
    #[must_use]
    pub(crate) fn joined(self, others: impl IntoIterator<Item = Self>) -> Self {
        let others: Arc<[Self]> = others.into_iter().collect();
        if others.is_empty() { self } else { Self { others: Some(others), ..self } }
    }

    /// Returns this store and those that it is joined with.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(self.others.iter().flat_map(|others| others.iter()))
    }

    /// Returns the objects that `read` finds in each part, in the order of their keys if there are
    /// several.
    pub(super) fn of_parts(&self, mut read: impl FnMut(&Self) -> Vec<Object>) -> Vec<Object> {
        let mut found = read(self);
        if let Some(others) = &self.others {
            found.extend(others.iter().flat_map(read));
            found.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        }
        found
    }
}
