//! Sorted objects: a bucket of an index, in the order of keys, and the buckets by value.

use std::{collections::HashMap, mem, slice, sync::Arc};

use super::{Object, ObjectKey};

/// Objects sorted by key. A sorted list has the least memory for each object; an insertion between
/// others moves a pointer for each of those that follow.
#[derive(Default)]
pub(super) struct SortedObjects(Vec<Object>);

/// Objects of an index by value.
#[derive(Default)]
pub(super) struct Buckets(HashMap<Box<str>, SortedObjects>);

impl Buckets {
    pub(super) fn get(&self, value: &str) -> Option<&SortedObjects> {
        self.0.get(value)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &SortedObjects)> {
        self.0.iter().map(|(value, bucket)| (&**value, bucket))
    }

    /// Adds or replaces an object under a value.
    pub(super) fn insert(&mut self, value: &str, object: &Object) {
        match self.0.get_mut(value) {
            Some(bucket) => drop(bucket.insert(object)),
            None => drop(self.0.insert(value.into(), SortedObjects::of(object.clone()))),
        }
    }

    pub(super) fn remove(&mut self, value: &str, object: &Object) {
        if let Some(bucket) = self.0.get_mut(value) {
            bucket.remove(object.key());
            if bucket.all().is_empty() {
                self.0.remove(value);
            }
        }
    }
}

impl SortedObjects {
    pub(super) fn of(object: Object) -> Self {
        // Capacity for one object: most buckets have no more.
        Self(Vec::from([object]))
    }

    pub(super) fn all(&self) -> &[Object] {
        &self.0
    }

    /// Returns the objects of a namespace; all, without one.
    pub(super) fn within(&self, namespace: Option<&Arc<str>>) -> &[Object] {
        if namespace.is_none() {
            return &self.0;
        }
        let from = self.0.partition_point(|object| object.key().namespace.as_ref() < namespace);
        let until = self.0.partition_point(|object| object.key().namespace.as_ref() <= namespace);
        &self.0[from..until]
    }

    /// Returns the objects after a key.
    pub(super) fn after(&self, key: Option<&ObjectKey>) -> slice::Iter<'_, Object> {
        let from = key.map_or(0, |key| self.0.partition_point(|object| object.key() <= key));
        self.0[from..].iter()
    }

    /// Adds or replaces an object; returns the old one.
    pub(super) fn insert(&mut self, object: &Object) -> Option<Object> {
        // Lists arrive in the order of keys.
        if self.0.last().is_none_or(|last| last.key() < object.key()) {
            self.0.push(object.clone());
            return None;
        }
        match self.find(object.key()) {
            Ok(at) => Some(mem::replace(&mut self.0[at], object.clone())),
            Err(at) => {
                self.0.insert(at, object.clone());
                None
            }
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Object> {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at))
    }

    fn find(&self, key: &ObjectKey) -> Result<usize, usize> {
        self.0.binary_search_by(|object| object.key().cmp(key))
    }
}
