//! What every controller of one cluster shares.

use kube::Client;

use crate::{discovery::TypeRegistry, informer::InformerSet};

/// A client, what the cluster serves, and the informers over it. Cheap to clone.
///
/// controller-runtime's `Cluster` (`pkg/cluster`), without a mapper: the registry is the mapper.
#[derive(Clone)]
pub struct Cluster {
    /// Connection to the API server.
    pub client: Client,
    /// What the cluster serves.
    pub types: TypeRegistry,
    /// Shared caches.
    pub informers: InformerSet,
    /// The one namespace that namespaced types are watched in; `None` is all.
    pub namespace: Option<std::sync::Arc<str>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
