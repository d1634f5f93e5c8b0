//! The set of informers: at most one for each key.

use std::{future::Future, time::Duration};

use kube::Client;

use super::{Ended, InformerKey, Progress, Subscription};
use crate::kind::{ServedType, TypeIdentity};

/// Budgets and times of a set's informers.
#[derive(Clone, Debug)]
pub struct InformerOptions {
    /// How long an informer outlives its last subscriber; 10 s.
    pub linger: Duration,
}

/// One informer of a set, for status and metrics.
#[derive(Clone, Debug)]
pub struct InformerStatus {
    /// Which one.
    pub key: InformerKey,
    /// How its watch is doing.
    pub progress: Progress,
    /// Objects held.
    pub objects: usize,
    /// JSON bytes held.
    pub bytes: usize,
    /// Subscribers.
    pub subscribers: usize,
}

/// A cloneable handle on the informers of one client.
#[derive(Clone, Debug)]
pub struct InformerSet {}

impl InformerSet {
    /// An empty set; spawns nothing.
    pub fn new(_client: Client, _options: InformerOptions) -> Self {
        todo!()
    }

    /// Joins the informer of `key`, and starts it if there is none.
    ///
    /// The subscriber first receives every object there is, then every later change.
    pub fn subscribe(&self, _served: &ServedType, _key: InformerKey) -> Subscription {
        todo!()
    }

    /// Resolves when the informer of this key has ended, with the reason; at once when there is
    /// none. The proposal's informer stop signal.
    pub fn ended(&self, _key: &InformerKey) -> impl Future<Output = Ended> + Send + 'static {
        async { todo!() }
    }

    /// Says that a type is proven gone: its informers end, whoever still listens.
    pub fn type_gone(&self, _identity: &TypeIdentity) {
        todo!()
    }

    /// Every informer.
    pub fn status(&self) -> Vec<InformerStatus> {
        todo!()
    }

    /// Ends every informer and waits for them.
    pub async fn shutdown(&self) {
        todo!()
    }
}

impl Default for InformerOptions {
    fn default() -> Self {
        Self { linger: Duration::from_secs(10) }
    }
}
