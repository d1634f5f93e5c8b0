//! Identity of a type registry, which stands for its cluster.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Weak,
};

use super::shared_registry::SharedRegistry;

/// Identity of a type registry. No later registry is equal to it while it exists, since it keeps the
/// memory of the registry allocated, though not its content.
#[derive(Clone)]
pub(crate) struct RegistryId(pub(super) Weak<SharedRegistry>);

impl PartialEq for RegistryId {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for RegistryId {}

impl PartialOrd for RegistryId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RegistryId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_ptr().cmp(&other.0.as_ptr())
    }
}

impl Hash for RegistryId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

impl fmt::Debug for RegistryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegistryId").field(&self.0.as_ptr()).finish()
    }
}
