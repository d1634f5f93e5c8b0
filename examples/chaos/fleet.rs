//! The manager under test with its declared controllers, and their hook.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use kube::Client;
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

use crate::{desired::Mood, server::NAMESPACE};

/// How long a manager may take to stop: its grace, and a little.
const PATIENCE: Duration = Duration::from_secs(60);

/// One manager's life.
pub(crate) struct Fleet {
    pub(crate) manager: ManagerHandle,
    pub(crate) metrics: Arc<Registry>,
    transitions: broadcast::Receiver<Transition>,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Fleet {
    /// On this runtime, to which the client belongs.
    pub(crate) fn start(client: Client, hook: &Arc<Moody>, on: &Handle) -> anyhow::Result<Self> {
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let manager_metrics = ManagerMetrics::default();
        let mut metrics = Registry::default();
        manager_metrics.register(&mut metrics);
        cluster.metrics.register(&mut metrics);
        cluster.informers.metrics().register(&mut metrics);
        cluster.types.register_metrics(&mut metrics);
        let options = ManagerOptions { metrics: manager_metrics, ..ManagerOptions::default() };
        let mut manager = Manager::new(options);
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::fail_fast())?;
        let hook = Arc::clone(hook);
        let options = MetaOptions {
            hooks: Some(Arc::new(move |_| Arc::clone(&hook) as Arc<dyn Hook>)),
            ..MetaOptions::default()
        };
        let supervisor = Supervisor::new(&cluster, manager.handle(), options)?;
        manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default())?;
        let (handle, stop) = (manager.handle(), CancellationToken::new());
        let transitions = handle.transitions();
        let mut tasks = JoinSet::new();
        let stopping = stop.clone();
        tasks.spawn_on(async move { manager.run(stopping).await.context("the manager") }, on);
        Ok(Self { manager: handle, metrics: Arc::new(metrics), transitions, stop, tasks })
    }

    /// How many epochs its runnables have begun since it was asked last, as far as nobody was too
    /// late to hear of them.
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

    /// Stops it, and waits until it has ended.
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

/// A hook that wants `spec.size` ConfigMaps, when its type's mood lets it.
#[derive(Debug)]
pub(crate) struct Moody {
    moods: Mutex<Vec<Mood>>,
    naming: Naming,
}

/// How children are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A parent that is made anew has children of the same names.
    Again,
    /// It has others. The real garbage collector may leave children of a parent whose type went for
    /// minutes while types come and go, and nobody else may take their names meanwhile.
    Anew,
}

impl Naming {
    /// Behind the name that the children of every parent of that name share.
    pub(crate) fn suffix(self, uid: &str) -> String {
        match self {
            Self::Again => String::new(),
            Self::Anew => format!("-{}", uid.split('-').next().unwrap_or_default()),
        }
    }
}

impl Moody {
    pub(crate) fn new(kinds: usize, naming: Naming) -> Arc<Self> {
        Arc::new(Self { moods: Mutex::new(vec![Mood::Fine; kinds]), naming })
    }

    pub(crate) fn feel(&self, kind: usize, mood: Mood) {
        self.moods.lock().unwrap_or_else(PoisonError::into_inner)[kind] = mood;
    }

    fn mood(&self, parent: &Value) -> Mood {
        let kind = parent["kind"].as_str().and_then(|kind| kind.strip_prefix("Kind")?.parse().ok());
        let moods = self.moods.lock().unwrap_or_else(PoisonError::into_inner);
        kind.and_then(|kind: usize| moods.get(kind).copied()).unwrap_or(Mood::Garbage)
    }
}

impl Hook for Moody {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap_or_default();
        async move {
            let parent = &request["parent"];
            match self.mood(parent) {
                Mood::Fine => {}
                Mood::Unreachable => return Err(HookError::Transport("out of order".to_owned())),
                Mood::Busy => return Err(HookError::Busy(Duration::from_secs(1))),
                Mood::Slow => sleep(Duration::from_millis(500)).await,
                Mood::Garbage => return Ok(Bytes::from_static(b"{\"children\": 7}")),
                Mood::Refusing => {
                    return Err(HookError::Status { code: 500, body: String::new() });
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
