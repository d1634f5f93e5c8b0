//! "Process" on the simulated server: a manager with all its tasks, and the workload's hook.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use kube::Client;
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    manager::{Election, ElectionOptions, Manager, ManagerOptions, RunnableOptions},
    meta::{ApplyStrategy, Hook, HookError, MetaOptions, SUPERVISOR, Strictness, Supervisor},
};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Answer, PATIENCE, workload};

/// Name of the lease of elected processes.
pub(crate) const LEASE_OF_REPLICAS: &str = "replicas";

/// Manager and its tasks.
pub(crate) struct Process {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Process {
    pub(crate) fn start(client: Client) -> Self {
        Self::with(client, ApplyStrategy::DynamicApply)
    }

    /// As [`Process::start`], with an apply strategy.
    pub(crate) fn with(client: Client, apply_strategy: ApplyStrategy) -> Self {
        Self::run(client, apply_strategy, |manager| manager)
    }

    /// As [`Process::start`], as the replica `identity` of those that share a lease. The lease has
    /// a client of its own.
    pub(crate) fn elected(client: Client, lease: Client, identity: &str) -> Self {
        let options = ElectionOptions {
            identity: identity.into(),
            own_thread: false,
            ..ElectionOptions::new("default", LEASE_OF_REPLICAS)
        };
        let election = Election::new(options, move || Ok(lease)).unwrap();
        Self::run(client, ApplyStrategy::DynamicApply, |manager| manager.elect(election))
    }

    fn run(
        client: Client,
        apply_strategy: ApplyStrategy,
        elect: impl FnOnce(Manager) -> Manager,
    ) -> Self {
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let mut manager = elect(Manager::new(ManagerOptions::default()));
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let options = MetaOptions {
            hooks: Some(Arc::new(|_, _| Arc::new(Sized))),
            apply_strategy,
            // The workload releases a child that its hook still wants, which server-side apply
            // would take over at once.
            strictness: Strictness { strict: true, ..Strictness::default() },
            ..MetaOptions::default()
        };
        let supervisor = Supervisor::new(&cluster, manager.handle(), options).unwrap();
        manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default()).unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stopping = stop.clone();
        tasks.spawn(async move {
            manager.run(stopping).await.unwrap();
            drop(cluster);
        });
        Self { stop, tasks }
    }

    /// Stops as on SIGTERM.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        timeout(PATIENCE, self.tasks.join_next()).await.unwrap().unwrap().unwrap();
    }

    /// Stops as on SIGKILL: no task is polled again.
    pub(crate) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Hook of the workload, in process.
struct Sized;

impl Hook for Sized {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request = serde_json::from_slice(&request).unwrap();
        let Answer::Json(answer) = workload::sized(&request) else { unreachable!("it is JSON") };
        Box::pin(async move { Ok(Bytes::from(answer.to_string())) })
    }
}
