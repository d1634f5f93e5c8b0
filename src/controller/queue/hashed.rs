//! Key of a work queue with its hash, which is computed before the queue is locked.

use std::hash::{BuildHasher, Hash};

/// Key, or a reference to it, with its hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed<T> {
    pub(super) hash: u64,
    pub(super) key: T,
}

impl<T: Hash> Hashed<T> {
    pub(super) fn new(hasher: &impl BuildHasher, key: T) -> Self {
        Self { hash: hasher.hash_one(&key), key }
    }
}

impl<K> Hashed<K> {
    pub(super) fn as_ref(&self) -> Hashed<&K> {
        Hashed { hash: self.hash, key: &self.key }
    }
}
