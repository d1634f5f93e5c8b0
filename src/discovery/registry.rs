//! Type registry: handle to the types that the cluster serves.

use std::{fmt, sync::Arc};

use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::{
    Discovery, DiscoveryHealth, DiscoveryMode, DiscoveryOptions, RegistryId, TypeReport,
    TypeStatus, shared_registry::SharedRegistry,
};
use crate::kind::{ServedType, TypeIdentity, TypeRef};

/// Cloneable handle to the types that the cluster serves.
///
/// ```no_run
/// # use pilotlight::{controller::Cluster, discovery::TypeState, kind::TypeRef};
/// # async fn example(cluster: Cluster) {
/// let widgets = TypeRef::kind("example.com", "v1", "Widget");
/// let mut status = cluster.types.subscribe(&widgets);
/// loop {
///     match &status.borrow_and_update().state {
///         TypeState::Served => println!("widgets can be watched"),
///         TypeState::Absent => println!("widgets are not installed"),
///         other => println!("widgets are {other:?}"),
///     }
///     if status.changed().await.is_err() {
///         return;
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct TypeRegistry {
    shared: Arc<SharedRegistry>,
}

impl TypeRegistry {
    /// Creates an empty registry and the task that fills it. Spawns nothing.
    pub fn new(client: Client, options: DiscoveryOptions) -> (Self, Discovery) {
        let shared = Arc::new(SharedRegistry::new());
        (Self { shared: shared.clone() }, Discovery::new(client, options, shared))
    }

    /// Returns the current status of a type.
    pub fn get(&self, type_ref: &TypeRef) -> TypeStatus {
        self.shared.read().get(type_ref)
    }

    /// Subscribes to a type: its current status and every later change.
    ///
    /// Changes in quick succession may be merged. A type that was deleted and created again differs
    /// in the identity of `served`.
    pub fn subscribe(&self, type_ref: &TypeRef) -> watch::Receiver<TypeStatus> {
        let mut known = self.shared.write();
        let first = known.get(type_ref);
        known.subscriptions.subscribe(type_ref, || first)
    }

    /// Returns how to request a type that is served or terminating, now or when last proven.
    pub fn served(&self, type_ref: &TypeRef) -> Option<Arc<ServedType>> {
        self.get(type_ref).served
    }

    /// Returns the generation of a type's CRD, which changes with its schemas; `None` if it is not
    /// known.
    pub(crate) fn crd_generation(&self, group: &str, plural: &str) -> Option<i64> {
        self.shared.read().catalog.crd_generation(group, plural)
    }

    /// Returns whether the kind of a type was served in another scope since the registry was created,
    /// at any version.
    pub(crate) fn has_other_scope(&self, served: &ServedType) -> bool {
        self.shared.read().catalog.has_other_scope(served)
    }

    /// Reports that a request to this type was answered as if the type were gone. If the type comes
    /// from discovery, discovery is requested again.
    pub fn hint(&self, identity: &TypeIdentity) {
        if self.shared.read().catalog.is_discovered(identity) {
            self.shared.hints.notify_one();
        }
    }

    /// Subscribes to changes of any type; for subscribers that follow many types.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Waits for the first sync: discovery has answered completely once, and CRDs and APIServices
    /// were read or have failed. A type that is still unknown then may stay so for long. Cancel
    /// safe.
    pub async fn synced(&self) {
        // `shared` holds the sender, so the channel cannot close.
        drop(self.shared.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// Waits until all types are known: CRDs and APIServices were read, or may not be, so that
    /// discovery covers them. In the latter case this takes seconds: a server that is starting also
    /// refuses at first. Cancel safe.
    pub async fn complete(&self) {
        let mut changes = self.changes();
        // `shared` holds the sender, so the channel cannot close.
        while !self.shared.read().catalog.is_complete() && changes.changed().await.is_ok() {}
    }

    /// Subscribes to the way in which changes reach the registry.
    pub fn mode(&self) -> watch::Receiver<DiscoveryMode> {
        self.shared.mode.subscribe()
    }

    /// Returns the health of each source. While a source is lost, its last state stands.
    pub fn health(&self) -> DiscoveryHealth {
        self.shared.read().health.clone()
    }

    /// Returns all types that are known or requested, ordered by name.
    pub fn report(&self) -> Vec<TypeReport> {
        let mut known = self.shared.write();
        known.subscriptions.sweep();
        known.report()
    }

    /// Returns the identity of the registry, which does not keep it alive.
    pub(crate) fn id(&self) -> RegistryId {
        RegistryId(Arc::downgrade(&self.shared))
    }

    /// Returns whether both are handles to one registry: that of one cluster.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the number of names that are subscribed to.
    #[cfg(test)]
    pub(crate) fn subscriptions(&self) -> usize {
        self.shared.read().subscriptions.iter().count()
    }

    /// Registers the metrics of discovery.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }
}

impl fmt::Debug for TypeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypeRegistry").field("mode", &*self.shared.mode.borrow()).finish()
    }
}
