//! A manager with everything that the binary runs in it.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use kube::Config;
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    discovery::DiscoveryOptions,
    manager::{Manager, ManagerHandle, ManagerMetrics, ManagerOptions, RunnableOptions},
    transport::{Transport, TransportMetrics, TransportOptions},
};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{
    address::BindAddress,
    admin::{Admin, Listeners, Shown},
    flag,
};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Manager")]
pub(super) struct ManagerArgs {
    /// Run with the objects of one namespace alone: namespaced types are watched nowhere else. All
    /// namespaces by default.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Parents of one controller that are synced at the same time.
    #[arg(long, value_name = "NUMBER", default_value = "5")]
    workers: NonZeroUsize,
    /// How often the API server is asked what it serves where CRDs may not be watched; where they
    /// may, changes are pushed and this has no effect. A duration such as 30s or 5m.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = flag::duration)]
    discovery_interval: Duration,
    /// How long controllers may take to drain when the process is asked to stop. A duration such
    /// as 30s; what still runs then is named and left behind, and the exit code is 1.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = flag::duration)]
    graceful_shutdown_timeout: Duration,
}

/// Where the manager's own servers listen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Manager")]
pub(super) struct ServerArgs {
    /// Where /metrics, /debug/status and /debug/types are served, without authentication: :PORT,
    /// HOST:PORT, or 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":9999")]
    pub(super) metrics_address: BindAddress,
    /// Where /healthz, /livez and /readyz are answered: :PORT, HOST:PORT, or 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub(super) health_probe_bind_address: BindAddress,
}

/// A manager that has not run yet, and handles on what is in it.
#[derive(Debug)]
pub(super) struct Instance {
    manager: Manager,
    transport: Transport,
    pub(super) cluster: Cluster,
    pub(super) handle: ManagerHandle,
    pub(super) metrics_address: Option<SocketAddr>,
    pub(super) probe_address: Option<SocketAddr>,
}

impl Instance {
    /// Listens, and puts everything together. Must be called on a tokio runtime; sends nothing.
    pub(super) fn new(
        config: Config,
        manager: &ManagerArgs,
        servers: &ServerArgs,
    ) -> anyhow::Result<Self> {
        let listeners =
            Listeners::bind(&servers.health_probe_bind_address, &servers.metrics_address)?;
        let metrics_address = listeners.metrics_address();
        let probe_address = listeners.probe_address();

        let requests = TransportMetrics::default();
        let options = TransportOptions { metrics: requests.clone(), ..TransportOptions::default() };
        let transport = Transport::new(config, options)?;
        let options = ClusterOptions {
            namespace: manager.namespace.as_deref().map(Arc::from),
            discovery: DiscoveryOptions {
                static_interval: manager.discovery_interval,
                ..DiscoveryOptions::default()
            },
            ..ClusterOptions::default()
        };
        let (cluster, cluster_runnable) = Cluster::new(transport.client()?, options);

        let lifecycle = ManagerMetrics::default();
        let mut metrics = Registry::default();
        requests.register(&mut metrics);
        lifecycle.register(&mut metrics);
        cluster.types.register_metrics(&mut metrics);

        let mut owner = Manager::new(ManagerOptions {
            graceful_shutdown_timeout: Some(manager.graceful_shutdown_timeout),
            metrics: lifecycle,
            ..ManagerOptions::default()
        });
        let handle = owner.handle();
        let shown =
            Shown::new(handle.clone(), cluster.types.clone(), cluster.informers.clone(), metrics);
        // Without its servers or its view of the cluster this process is of no use.
        let fail_fast = RunnableOptions::fail_fast;
        owner.add_runnable("admin", Arc::new(Admin::new(listeners, shown)), fail_fast())?;
        owner.add_runnable("cluster", Arc::new(cluster_runnable), fail_fast())?;
        Ok(Self { manager: owner, transport, cluster, handle, metrics_address, probe_address })
    }

    /// Runs until `stop` is cancelled and everything has ended.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let result = self.manager.run(stop).await;
        self.transport.close().await;
        result.context("the manager ended")
    }
}
