//! Cluster: client, type registry and informers that all controllers of one cluster share.

use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::time::timeout;
use tracing::warn;

use super::{
    ControllerDefaults, foreign_cluster::ForeignCluster, metrics::ControllerMetrics, type_changes,
    unconfirmed::UnconfirmedByName,
};
use crate::{
    discovery::{Discovery, DiscoveryMode, DiscoveryOptions, TypeRegistry},
    informer::{InformerOptions, InformerSet},
    manager::{
        AddError, CheckResult, ControllerName, Epoch, Manager, ManagerHandle, MetricPart,
        Registration, RunResult, Runnable, RunnableGroup, RunnableOptions,
    },
};

/// Maximum time that other runnables wait for the first complete discovery.
const SYNC_WAIT: Duration = Duration::from_secs(5);

/// Client, type registry and informers of one cluster. Cheap to clone.
///
/// Semantics: `Cluster` of controller-runtime (`pkg/cluster`). It has no mapper; the type registry
/// serves as one.
///
/// ```no_run
/// # use pilotlight::{controller::*, kind::TypeRef, manager::*};
/// # fn example(client: kube::Client, manager: &mut Manager) -> Result<(), AddError> {
/// let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
/// runnable.add_to(manager, "cluster")?;
/// // Controllers are built with `&cluster`. Other code reads its types:
/// let is_served = cluster.types.served(&TypeRef::kind("example.com", "v1", "Widget")).is_some();
/// # drop(is_served);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Cluster {
    // Without a fence: its requests are not bound to an epoch.
    client: Client,
    /// Registry of the served types.
    pub types: TypeRegistry,
    /// Shared informers.
    pub informers: InformerSet,
    /// Single namespace in which namespaced types are watched; `None` or the empty name for all.
    pub namespace: Option<Arc<str>>,
    /// Metrics of the cluster's controllers, to be registered once.
    pub metrics: ControllerMetrics,
    pub(super) unconfirmed: UnconfirmedByName,
    pub(super) defaults: Arc<ControllerDefaults>,
}

/// Options of a cluster.
///
/// ```no_run
/// # async fn example() -> kube::Result<()> {
/// use kube::Client;
/// use pilotlight::controller::{Cluster, ClusterOptions};
///
/// let options = ClusterOptions { namespace: Some("team-a".into()), ..ClusterOptions::default() };
/// let (cluster, runnable) = Cluster::new(Client::try_default().await?, options);
/// # drop((cluster, runnable));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Single namespace in which namespaced types are watched. `None` or the empty name means all:
    /// the default.
    pub namespace: Option<Arc<str>>,
    /// Options of the discovery.
    pub discovery: DiscoveryOptions,
    /// Budgets and timings of the informers.
    pub informers: InformerOptions,
}

/// Runnable that keeps a [`Cluster`] current: runs the discovery, propagates type changes to the
/// informers, and shuts the informers down.
///
/// Reports running once the first discovery is complete, or after 5 s. So an API server that
/// answers in part only does not delay other runnables.
///
/// Add it with [`ClusterRunnable::add_to`] or [`ClusterRunnable::add_to_running`], which register its
/// metrics and its readiness, and end the manager if it fails.
///
/// The runnable of [`Cluster::new`] runs once: its end shuts the informers down, a second start
/// fails, and a manager refuses to restart it. Controllers of a cluster that was removed wait with the
/// reason `DiscoveryEnded`. The runnable of [`Cluster::of`] only propagates type changes, and may be
/// started again.
///
/// ```
/// use kube::Client;
/// use pilotlight::{
///     controller::{Cluster, ClusterOptions},
///     manager::{AddError, ManagerHandle},
/// };
///
/// /// Adds a cluster, such as that of a new tenant, to a manager that runs.
/// async fn engage(manager: &ManagerHandle, name: &str, client: Client) -> Result<Cluster, AddError> {
///     let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
///     runnable.add_to_running(manager, name).await?;
///     Ok(cluster)
/// }
/// ```
pub struct ClusterRunnable {
    cluster: Cluster,
    work: ClusterWork,
    // Metrics that are registered with those of the cluster.
    metrics: Vec<Box<RegisterFn>>,
    // Check of readiness and metrics in those of a manager, which end with the runnable.
    registered: Option<[Registration; 2]>,
}

type RegisterFn = dyn Fn(&mut Registry) + Send + Sync;

/// Work of a cluster's runnable.
#[derive(Debug)]
enum ClusterWork {
    /// Discovery, propagation and shutdown. The first start takes the discovery.
    All(Mutex<Option<Discovery>>),
    /// Propagation of type changes only: registry and informers belong to the caller.
    Propagate,
}

/// Shuts the informers down when the run panics or is dropped.
struct ShutdownGuard(InformerSet);

/// The runnable of a cluster was started twice. Build a new cluster: its type registry cannot be
/// filled again.
#[derive(Debug, thiserror::Error)]
#[error("the cluster has run before; build a new one")]
struct RunBefore;

impl Cluster {
    /// Returns a cluster, and the runnable that must run with it. Spawns nothing.
    pub fn new(client: Client, options: ClusterOptions) -> (Self, ClusterRunnable) {
        let ClusterOptions { namespace, discovery, mut informers } = options;
        let (types, discovery) = TypeRegistry::new(client.clone(), discovery);
        let (registry, on_missing) = (types.clone(), informers.on_missing.take());
        informers.on_missing = Some(Arc::new(move |identity| {
            registry.hint(identity);
            if let Some(on_missing) = &on_missing {
                on_missing(identity);
            }
        }));
        let informers = InformerSet::new(client.clone(), informers);
        Self::with_work(
            ClusterWork::All(Mutex::new(Some(discovery))),
            client,
            types,
            informers,
            namespace,
        )
    }

    /// Returns a cluster of parts that the caller runs, and the runnable that must run with it. The
    /// runnable propagates removed types from the registry to the informers; without it no informer
    /// ends with its type.
    ///
    /// [`InformerOptions::on_missing`] should call [`TypeRegistry::hint`], as in [`Cluster::new`],
    /// so that a 404 from the server leads to a new discovery.
    pub fn of(
        client: Client,
        types: TypeRegistry,
        informers: InformerSet,
        namespace: Option<Arc<str>>,
    ) -> (Self, ClusterRunnable) {
        Self::with_work(ClusterWork::Propagate, client, types, informers, namespace)
    }

    /// Returns this cluster with defaults for the controllers that are built with it. Declared
    /// controllers have defaults of their own.
    #[must_use]
    pub fn with_defaults(mut self, defaults: ControllerDefaults) -> Self {
        self.defaults = Arc::new(defaults);
        self
    }

    /// Returns the client of the API server, without a fence.
    ///
    /// For use outside of an epoch: tests, tools, and runnables that put it behind a fence with
    /// [`Epoch::client`]. Its requests are neither stopped with a controller nor counted. In a
    /// reconciler use [`Context::client`](super::Context::client).
    pub fn unfenced_client(&self) -> &Client {
        &self.client
    }

    /// Registers the metrics of the cluster: of its discovery, informers and controllers.
    ///
    /// [`Manager::register_metrics`] does so for each cluster that was added to the manager.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.types.register_metrics(registry);
        self.informers.metrics().register(registry);
        self.metrics.register(registry);
    }

    /// Returns a check of readiness: it fails until the types of the cluster are known. Later
    /// failures of the discovery leave the known types in place.
    ///
    /// [`ClusterRunnable::add_to`] adds it to the manager, as `discovery/` with the name of the
    /// cluster.
    pub fn readiness_check(&self) -> impl Fn() -> CheckResult + Send + Sync + 'static {
        let (types, known) = (self.types.clone(), AtomicBool::new(false));
        move || {
            if types.health().discovery.stale_since.is_none() {
                known.store(true, Ordering::Relaxed);
            }
            match &*types.mode().borrow() {
                _ if !known.load(Ordering::Relaxed) => {
                    CheckResult::Failed("no response about the server's types yet".into())
                }
                DiscoveryMode::NotStarted => CheckResult::Degraded("does not run".into()),
                DiscoveryMode::Ended => CheckResult::Degraded("has ended".into()),
                DiscoveryMode::Static(_) => CheckResult::Degraded("is polled".into()),
                DiscoveryMode::Watching => CheckResult::Passed("".into()),
            }
        }
    }

    fn with_work(
        work: ClusterWork,
        client: Client,
        types: TypeRegistry,
        informers: InformerSet,
        namespace: Option<Arc<str>>,
    ) -> (Self, ClusterRunnable) {
        let metrics = ControllerMetrics::default();
        let unconfirmed = UnconfirmedByName::default();
        let defaults = Arc::default();
        let cluster = Self { client, types, informers, namespace, metrics, unconfirmed, defaults };
        let runnable = ClusterRunnable {
            cluster: cluster.clone(),
            work,
            metrics: Vec::new(),
            registered: None,
        };
        (cluster, runnable)
    }
}

impl ClusterRunnable {
    /// Registers more metrics with those of the cluster, such as those of its connection:
    ///
    /// ```no_run
    /// # #[cfg(feature = "tls")]
    /// # fn example(config: kube::Config, manager: &mut pilotlight::manager::Manager) -> Result<(), Box<dyn std::error::Error>> {
    /// # use pilotlight::{controller::*, manager::*, transport::{self, TransportOptions}};
    /// let options = TransportOptions::default();
    /// let requests = options.metrics.clone();
    /// let client = transport::client(config, options)?;
    /// let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
    /// runnable.with_metrics(move |all| requests.register(all)).add_to(manager, "cluster")?;
    /// // Later, the one call of ManagerHandle::register_metrics registers all of them.
    /// # drop(cluster);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_metrics(
        mut self,
        register: impl Fn(&mut Registry) + Send + Sync + 'static,
    ) -> Self {
        self.metrics.push(Box::new(register));
        self
    }

    /// Adds the cluster to a manager that does not run yet, with its metrics and its readiness: the
    /// manager ends if it fails. `name` tells several clusters apart.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_to(
        mut self,
        manager: &mut Manager,
        name: impl Into<ControllerName>,
    ) -> Result<(), AddError> {
        let name = name.into();
        self.register(&manager.handle(), &name, MetricPart::Cluster(name.to_string()));
        manager.add_runnable(name, Arc::new(self), RunnableOptions::fail_fast())
    }

    /// Adds the cluster by a handle of a manager that may run already, with its metrics and its
    /// readiness: the manager ends if it fails. Its metrics have the label `cluster`, and are removed
    /// with it.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, it may or may not have been added.
    pub async fn add_to_running(
        mut self,
        manager: &ManagerHandle,
        name: impl Into<ControllerName>,
    ) -> Result<(), AddError> {
        let name = name.into();
        self.register(manager, &name, MetricPart::LateCluster(name.to_string()));
        manager.add_runnable(name, Arc::new(self), RunnableOptions::fail_fast()).await
    }

    /// Registers the check of readiness and the metrics with a manager. They end with this runnable,
    /// at once if the manager refuses it.
    fn register(&mut self, manager: &ManagerHandle, name: &ControllerName, part: MetricPart) {
        let check = self.cluster.readiness_check();
        let check = manager.readiness().register(format!("discovery/{name}"), check);
        let (cluster, metrics) = (self.cluster.clone(), mem::take(&mut self.metrics));
        let metrics = manager.register_part(part, move |registry| {
            cluster.register_metrics(registry);
            metrics.iter().for_each(|register| register(registry));
        });
        self.registered = Some([check, metrics]);
    }
}

impl fmt::Debug for ClusterRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterRunnable").field("work", &self.work).finish_non_exhaustive()
    }
}

impl Drop for ClusterRunnable {
    fn drop(&mut self) {
        if let ClusterWork::All(discovery) = &self.work
            && discovery.lock().is_some()
        {
            warn!("a cluster has never run, so that its controllers wait: add it to a manager");
        }
    }
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        // A single poll stops the informers; the set owns their tasks.
        self.0.shutdown().now_or_never().unwrap_or_default();
    }
}

impl Runnable for ClusterRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let Cluster { types, informers, .. } = self.cluster.clone();
        if self.registered.is_none() {
            let runnable = epoch.controller();
            warn!(%runnable, "metrics and readiness of a cluster are missing: add it with add_to");
        }
        let discovery = match &self.work {
            ClusterWork::All(discovery) => discovery.lock().take(),
            ClusterWork::Propagate => {
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
            let guard = ShutdownGuard(informers.clone());
            let known = types.clone();
            let report = async {
                // Discovery continues after the timeout; types not discovered yet are unknown.
                timeout(SYNC_WAIT, known.synced()).await.unwrap_or_default();
                epoch.running();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = discovery.run(epoch.token()) => {}
                () = type_changes::propagate(types, informers.clone()) => {}
                () = report => {}
            }
            informers.shutdown().await;
            drop(guard);
            Ok(())
        }
        .boxed()
    }

    fn runs_once(&self) -> bool {
        matches!(self.work, ClusterWork::All(_))
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Caches
    }

    fn reports_running(&self) -> bool {
        true
    }
}

impl From<&Cluster> for ForeignCluster {
    fn from(cluster: &Cluster) -> Self {
        Self { types: cluster.types.clone(), unfenced: cluster.client.clone() }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
