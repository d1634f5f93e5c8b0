//! What every controller of one cluster shares.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use tokio::time::timeout;

use super::{metrics::ControllerMetrics, run::carried_over::CarriedOverByName, type_changes};
use crate::{
    discovery::{Discovery, DiscoveryOptions, TypeRegistry},
    informer::{InformerOptions, InformerSet},
    manager::{Epoch, RunResult, Runnable, RunnableGroup},
};

/// So long are others held up by a cluster that does not say what it serves.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client, what the cluster serves, and the informers over it. Cheap to clone.
///
/// controller-runtime's `Cluster` (`pkg/cluster`), without a mapper: the registry is the mapper.
#[derive(Clone)]
#[non_exhaustive]
pub struct Cluster {
    // Without a fence: what it sends outlives every epoch.
    client: Client,
    /// What the cluster serves.
    pub types: TypeRegistry,
    /// Shared caches.
    pub informers: InformerSet,
    /// The one namespace that namespaced types are watched in; `None` is all.
    pub namespace: Option<Arc<str>>,
    /// Metrics of its controllers, to be registered once.
    pub metrics: ControllerMetrics,
    pub(super) carried_over: CarriedOverByName,
}

/// How a cluster is looked at.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// The one namespace that namespaced types are watched in; all by default.
    pub namespace: Option<Arc<str>>,
    /// How types are discovered.
    pub discovery: DiscoveryOptions,
    /// Budgets and times of the informers.
    pub informers: InformerOptions,
}

/// Keeps a [`Cluster`] current: discovery, what becomes of the informers' types, and the end of
/// the informers.
///
/// It is running once discovery has answered completely for the first time, or after 5 s, so that
/// nobody is held up by a cluster that is half dead. That of [`Cluster::new`] runs once: whatever
/// ends it ends the informers, and a second start fails. So add it with
/// [`RunnableOptions::fail_fast`](crate::manager::RunnableOptions::fail_fast), which ends the
/// manager with it. That of [`Cluster::of`] ends nothing, and may be started again.
#[derive(Debug)]
pub struct ClusterRunnable {
    types: TypeRegistry,
    keeps: Keeps,
    informers: InformerSet,
}

/// What a cluster's runnable keeps running.
#[derive(Debug)]
enum Keeps {
    /// Everything. Taken by the first start.
    All(Mutex<Option<Discovery>>),
    /// Only what is told from the registry to the informers: these are somebody else's.
    Messenger,
}

/// Ends the informers when the run panics or is dropped.
struct Ending(InformerSet);

/// A cluster's registry cannot be filled twice. Build the cluster anew.
#[derive(Debug, thiserror::Error)]
#[error("the cluster has run before; build a new one")]
struct RunBefore;

impl Cluster {
    /// A cluster, and what has to run for it to be of use. Spawns nothing.
    pub fn new(client: Client, options: ClusterOptions) -> (Self, ClusterRunnable) {
        let ClusterOptions { namespace, discovery, mut informers } = options;
        let (types, discovery) = TypeRegistry::new(client.clone(), discovery);
        let (hinted, also) = (types.clone(), informers.on_missing.take());
        informers.on_missing = Some(Arc::new(move |identity| {
            hinted.hint(identity);
            if let Some(also) = &also {
                also(identity);
            }
        }));
        let informers = InformerSet::new(client.clone(), informers);
        Self::keeping(Keeps::All(Mutex::new(Some(discovery))), client, types, informers, namespace)
    }

    /// A cluster of parts that somebody else runs, and what has to run beside them: informers end
    /// by themselves only when the registry's proof that their type is gone is told to them.
    ///
    /// What the server answers 404 for is worth a look:
    /// [`InformerOptions::on_missing`] should lead to [`TypeRegistry::hint`], as in
    /// [`Cluster::new`].
    pub fn of(
        client: Client,
        types: TypeRegistry,
        informers: InformerSet,
        namespace: Option<Arc<str>>,
    ) -> (Self, ClusterRunnable) {
        Self::keeping(Keeps::Messenger, client, types, informers, namespace)
    }

    /// Connection to the API server, without a fence.
    ///
    /// For what belongs to no epoch: tests, tools, and runnables that put it behind a fence with
    /// [`Epoch::client`]. What it sends is not stopped with a controller, and is not counted. In a
    /// reconciler use [`Context::client`](super::Context::client).
    pub fn unfenced_client(&self) -> &Client {
        &self.client
    }

    fn keeping(
        keeps: Keeps,
        client: Client,
        types: TypeRegistry,
        informers: InformerSet,
        namespace: Option<Arc<str>>,
    ) -> (Self, ClusterRunnable) {
        let runnable =
            ClusterRunnable { types: types.clone(), keeps, informers: informers.clone() };
        let (metrics, carried_over) = (ControllerMetrics::default(), CarriedOverByName::default());
        (Self { client, types, informers, namespace, metrics, carried_over }, runnable)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // One look is enough to end them; their tasks are the set's.
        self.0.shutdown().now_or_never().unwrap_or_default();
    }
}

impl Runnable for ClusterRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let (types, informers) = (self.types.clone(), self.informers.clone());
        let discovery = match &self.keeps {
            Keeps::All(discovery) => {
                discovery.lock().unwrap_or_else(PoisonError::into_inner).take()
            }
            Keeps::Messenger => {
                return async move {
                    tokio::select! {
                        _ = epoch.stopping() => {}
                        () = type_changes::propagate(types, informers) => {}
                    }
                    Ok(())
                }
                .boxed();
            }
        };
        async move {
            let discovery = discovery.ok_or(RunBefore)?;
            let ending = Ending(informers.clone());
            let known = types.clone();
            let report = async {
                // What is late goes on being asked for; until then its types are unknown.
                timeout(PATIENCE, known.synced()).await.unwrap_or_default();
                epoch.running();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = discovery.run(epoch.token()) => {}
                () = type_changes::propagate(types, informers.clone()) => {}
                () = report => {}
            }
            informers.shutdown().await;
            drop(ending);
            Ok(())
        }
        .boxed()
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Caches
    }

    fn reports_running(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
