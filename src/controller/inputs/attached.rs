//! Cache of an input, as reconcilers read it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    controller::{CachedResource, Lister, ListerError, foreign_cluster::ForeignCluster},
    discovery::{RegistryId, TypeStatus},
    informer::{InformerKey, MovingInterests, Projection, Store},
    kind::{ServedType, TypeRef},
};

/// Cache of an input.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Attached {
    pub(in crate::controller) served: Arc<ServedType>,
    pub(in crate::controller) store: Store,
    /// Informer key, which says which objects the cache holds.
    pub(in crate::controller) key: InformerKey,
    /// Cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) foreign: Option<ForeignCluster>,
    /// Interests that the reconciler sets; `None` for a context from `Context::new`.
    pub(in crate::controller) moving: Option<MovingInterests>,
    /// Current status of the type.
    pub(in crate::controller) status: Option<watch::Receiver<TypeStatus>>,
    /// Caches of the further namespaces of the input.
    pub(in crate::controller) others: Vec<Attached>,
}

impl Attached {
    /// Returns the cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) fn cluster(&self) -> Option<RegistryId> {
        self.foreign.as_ref().map(ForeignCluster::id)
    }

    /// Returns the caches of all namespaces of the input.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// Returns the stores of all namespaces as one.
    pub(in crate::controller) fn joined(&self) -> Store {
        self.store.clone().joined(self.others.iter().map(|part| part.store.clone()))
    }

    /// Returns a typed lister of the cache.
    pub(in crate::controller) fn lister<K: CachedResource>(
        self,
        type_ref: TypeRef,
    ) -> Result<Lister<K>, ListerError> {
        match self.key.projection {
            Projection::Full => Ok(Lister::of(self.joined())),
            Projection::Metadata | Projection::Keys => Err(ListerError::Projected(type_ref)),
        }
    }

    /// Returns the type as served now. Of the same type only the subresources, the version order and
    /// the way of reading may change; a different type is ignored.
    pub(in crate::controller) fn current(&self) -> Arc<ServedType> {
        let now = self.status.as_ref().and_then(|status| status.borrow().served.clone());
        let is_same = |now: &Arc<ServedType>| {
            let ServedType { subresources, version_order, polled, .. } = *self.served;
            ServedType { subresources, version_order, polled, ..ServedType::clone(now) }
                == *self.served
        };
        now.filter(is_same).unwrap_or_else(|| Arc::clone(&self.served))
    }
}
