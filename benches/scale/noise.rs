//! Noise: text of objects that cannot be compressed, so that memory is not measured too small.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns a text of so many letters and digits; the same one for the same name.
pub(crate) fn noise(bytes: usize, name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let mut random = fastrand::Rng::with_seed(hasher.finish());
    (0..bytes).map(|_| random.alphanumeric()).collect()
}
