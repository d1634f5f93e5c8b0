//! The registry of types and its handle.

use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::TypeStatus;
use crate::kind::{ServedType, TypeIdentity, TypeRef};

/// How discovery is done.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryOptions {}

/// How the registry learns of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// CRDs and APIServices are watched.
    Watching,
    /// CRDs may not be watched, so discovery is polled; the reason.
    Static(String),
}

/// One row of `pilotlight types`.
#[derive(Clone, Debug)]
pub struct TypeReport {}

/// A cloneable handle on what the cluster serves.
#[derive(Clone, Debug)]
pub struct TypeRegistry {}

/// The task that keeps a [`TypeRegistry`] current.
#[derive(Debug)]
pub struct Discovery {}

impl TypeRegistry {
    /// A registry that knows nothing yet, and the task that fills it. Spawns nothing.
    pub fn new(_client: Client, _options: DiscoveryOptions) -> (Self, Discovery) {
        todo!()
    }

    /// What is known of a type now.
    pub fn get(&self, _type_ref: &TypeRef) -> TypeStatus {
        todo!()
    }

    /// The status of a type and every later change of it.
    pub fn subscribe(&self, _type_ref: &TypeRef) -> watch::Receiver<TypeStatus> {
        todo!()
    }

    /// How to talk to a type, if it is served (or terminating) now.
    pub fn served(&self, _type_ref: &TypeRef) -> Option<Arc<ServedType>> {
        todo!()
    }

    /// Says that a request to this type was answered as if it were gone, so that discovery
    /// looks again where the server does not push.
    pub fn hint(&self, _identity: &TypeIdentity) {
        todo!()
    }

    /// How the registry learns of changes.
    pub fn mode(&self) -> watch::Receiver<Mode> {
        todo!()
    }

    /// Every type that is known or asked for.
    pub fn report(&self) -> Vec<TypeReport> {
        todo!()
    }
}

impl Discovery {
    /// Keeps the registry current until `stop` is cancelled.
    pub async fn run(self, _stop: CancellationToken) {
        todo!()
    }
}
