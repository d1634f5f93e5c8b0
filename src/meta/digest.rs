//! Digests of values: short numbers that are compared instead of the values.
//!
//! Detects accidental changes only; it is not cryptographic. Equal in each process of one build.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns the digest of a value.
pub(crate) fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
