//! Digests of values: short numbers that are compared instead of the values.
//!
//! Detects accidental changes only; it is not cryptographic. Equal in each process of one build.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;

/// Returns the digest of a value.
pub(crate) fn digest(value: impl Hash) -> u64 {
    FixedState::with_seed(0).hash_one(value)
}
