//! Manager under test with its declared controllers, and their hook.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use parking_lot::Mutex;
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    manager::{
        ControllerState, Manager, ManagerHandle, ManagerMetrics, ManagerOptions, RunnableOptions,
        Transition, TransitionKind,
    },
    meta::{Hook, HookError, MetaOptions, SUPERVISOR, Supervisor},
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::broadcast::{self, error::TryRecvError},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{desired::HookMode, server::NAMESPACE};

/// Longest time for a manager to stop: its shutdown timeout and a margin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Run of one manager.
pub(crate) struct ManagerRun {
    pub(crate) handle: ManagerHandle,
    pub(crate) metrics: Arc<Registry>,
    transitions: broadcast::Receiver<Transition>,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl ManagerRun {
    /// Starts a manager on the runtime `on`, to which the client must belong.
    pub(crate) fn start(client: Client, hook: &Arc<TestHook>, on: &Handle) -> anyhow::Result<Self> {
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let manager_metrics = ManagerMetrics::default();
        let mut metrics = Registry::default();
        manager_metrics.register(&mut metrics);
        cluster.metrics.register(&mut metrics);
        cluster.informers.metrics().register(&mut metrics);
        cluster.types.register_metrics(&mut metrics);
        let options = ManagerOptions { metrics: manager_metrics, ..ManagerOptions::default() };
        let mut manager = Manager::new(options);
        runnable.add_to(&mut manager, "cluster")?;
        let hook = Arc::clone(hook);
        let options = MetaOptions {
            hooks: Some(Arc::new(move |_, _| Arc::clone(&hook) as Arc<dyn Hook>)),
            ..MetaOptions::default()
        };
        let supervisor = Supervisor::new(&cluster, manager.handle(), options)?;
        manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default())?;
        let (handle, stop) = (manager.handle(), CancellationToken::new());
        let transitions = handle.transitions();
        let mut tasks = JoinSet::new();
        let stopping = stop.clone();
        tasks.spawn_on(async move { manager.run(stopping).await.context("the manager") }, on);
        Ok(Self { handle, metrics: Arc::new(metrics), transitions, stop, tasks })
    }

    /// Number of epochs begun since the last call. Those that the receiver missed because it lagged
    /// are not counted.
    pub(crate) fn epochs(&mut self) -> u64 {
        let mut epochs = 0;
        loop {
            match self.transitions.try_recv() {
                Ok(transition) => {
                    let begins = TransitionKind::Entered(ControllerState::Starting);
                    epochs += u64::from(transition.kind == begins);
                }
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return epochs,
            }
        }
    }

    /// Stops the manager and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        let ended = timeout(PATIENCE, self.tasks.join_next()).await;
        ended.context("the manager does not stop")?.context("it ran")??
    }
}

pub(crate) fn text(metrics: &Registry) -> String {
    let mut text = String::new();
    match encode(&mut text, metrics) {
        Ok(()) => text,
        Err(error) => error.to_string(),
    }
}

/// Hook that returns `spec.size` ConfigMaps, unless the mode of its type makes it fail.
#[derive(Debug)]
pub(crate) struct TestHook {
    modes: Mutex<Vec<HookMode>>,
    naming: Naming,
}

/// Names of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A parent that is created again has children of the same names.
    Reused,
    /// A parent that is created again has children of other names. While types come and go, the
    /// real garbage collector may take minutes to delete children of a parent whose type is gone,
    /// and their names stay taken meanwhile.
    PerUid,
}

impl Naming {
    /// Suffix of a child's name, after the part that depends only on the parent's name.
    pub(crate) fn suffix(self, uid: &str) -> String {
        match self {
            Self::Reused => String::new(),
            Self::PerUid => format!("-{}", uid.split('-').next().unwrap_or_default()),
        }
    }
}

impl TestHook {
    pub(crate) fn new(kinds: usize, naming: Naming) -> Arc<Self> {
        Arc::new(Self { modes: Mutex::new(vec![HookMode::Working; kinds]), naming })
    }

    pub(crate) fn set_mode(&self, kind: usize, mode: HookMode) {
        self.modes.lock()[kind] = mode;
    }

    fn mode(&self, parent: &Value) -> HookMode {
        let kind = parent["kind"].as_str().and_then(|kind| kind.strip_prefix("Kind")?.parse().ok());
        let modes = self.modes.lock();
        kind.and_then(|kind: usize| modes.get(kind).copied()).unwrap_or(HookMode::Invalid)
    }
}

impl Hook for TestHook {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap_or_default();
        async move {
            let parent = &request["parent"];
            match self.mode(parent) {
                HookMode::Working => {}
                HookMode::Unreachable => {
                    return Err(HookError::Transport("out of order".to_owned()));
                }
                HookMode::Busy => return Err(HookError::Busy(Duration::from_secs(1))),
                HookMode::Slow => sleep(Duration::from_millis(500)).await,
                HookMode::Invalid => return Ok(Bytes::from_static(b"{\"children\": 7}")),
                HookMode::Failing => {
                    return Err(HookError::Status { code: 500, body: String::new(), proxy: None });
                }
            }
            Ok(Bytes::from(wanted(parent, self.naming).to_string()))
        }
        .boxed()
    }
}

fn wanted(parent: &Value, naming: Naming) -> Value {
    let kind = parent["kind"].as_str().unwrap_or_default().to_lowercase();
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let suffix = naming.suffix(parent["metadata"]["uid"].as_str().unwrap_or_default());
    let (size, text) = (&parent["spec"]["size"], &parent["spec"]["text"]);
    let children = (0..size.as_u64().unwrap_or_default()).map(|number| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": format!("{kind}s-{name}-{number}{suffix}"),
                "namespace": NAMESPACE,
            },
            "data": { "text": text },
        })
    });
    json!({
        "status": { "size": size, "text": text },
        "children": children.collect::<Vec<_>>(),
    })
}
