//! Foreign cluster: one other than the controller's.

use kube::Client;

use crate::discovery::{RegistryId, TypeRegistry};

/// Cluster other than the controller's, whose objects an input watches or a reconciler writes.
#[derive(Clone)]
pub(in crate::controller) struct ForeignCluster {
    pub(in crate::controller) types: TypeRegistry,
    /// Client without a fence.
    pub(in crate::controller) unfenced: Client,
}

impl ForeignCluster {
    /// Returns the identity by which caches and writes of the cluster belong together.
    pub(in crate::controller) fn id(&self) -> RegistryId {
        self.types.id()
    }
}

impl std::fmt::Debug for ForeignCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ForeignCluster").field(&self.id()).finish()
    }
}
