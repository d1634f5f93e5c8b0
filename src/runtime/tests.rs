//! Adopted controllers and shared informers of kube-rs, against a simulated API server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, Client, CustomResource, ResourceExt};
use kube_runtime::{Controller, controller::Action, watcher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{AdoptedController, adopt};
use crate::{
    controller::{Cluster, ClusterOptions},
    kind::TypeRef,
    manager::{
        ControllerState, DoneReason, Epoch, Manager, ManagerHandle, ManagerOptions,
        RunnableOptions, RunnableStatus,
    },
    testing::{
        CrdBuilder, Faults,
        simulated::{AccessRule, Delays, SimulatedOptions, SimulatedServer},
    },
};

mod adopted;
mod epochs;
mod failed_objects;
mod parts;
mod second_watch;
mod shared;

const NAME: &str = "adopted";

/// Object of the tests.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Widget", namespaced)]
struct WidgetSpec {
    size: u32,
}

/// Running cluster and manager.
struct Harness {
    server: SimulatedServer,
    faults: Faults,
    cluster: Cluster,
    manager: ManagerHandle,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Harness {
    fn new() -> Self {
        let options = SimulatedOptions { delays: Delays::none(), ..Default::default() };
        Self::of(SimulatedServer::with(options), Manager::new(ManagerOptions::default()))
    }

    fn of(server: SimulatedServer, mut manager: Manager) -> Self {
        let faults = Faults::default();
        let service = tower::ServiceBuilder::new().layer(faults.layer());
        let client = Client::new(service.service(server.service("adopted")), "default");
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let (handle, stop) = (manager.handle(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        Self { server, faults, cluster, manager: handle, stop, tasks }
    }

    async fn install(&self) {
        let crd = CrdBuilder::new("example.com", "Widget");
        self.server.install(&crd.build()).unwrap();
        self.server.wait_established(&crd.name()).await;
    }

    fn uninstall(&self) {
        self.server.uninstall("widgets.example.com").unwrap();
    }

    fn apply(&self, name: &str, spec: Value) {
        self.server.apply(widget(name, spec)).unwrap();
    }

    async fn add(&self, adopted: AdoptedController) {
        let options = RunnableOptions::default();
        self.manager.add(NAME, Arc::new(adopted), options).await.unwrap();
    }

    fn status(&self) -> Arc<RunnableStatus> {
        self.manager.status_of(NAME).unwrap()
    }

    async fn until(&self, what: impl Fn(&RunnableStatus) -> bool) -> Arc<RunnableStatus> {
        let mut watch = self.manager.watch();
        let found =
            watch.wait_for(|snapshot| snapshot.get(&NAME.into()).is_some_and(|it| what(it)));
        match timeout(Duration::from_secs(3600), found).await {
            Ok(snapshot) => Arc::clone(snapshot.unwrap().get(&NAME.into()).unwrap()),
            Err(_) => panic!("{:?}", self.status()),
        }
    }

    async fn state(&self, state: ControllerState) -> Arc<RunnableStatus> {
        self.until(|status| status.state == state).await
    }

    async fn done(&self, epoch: u64) -> DoneReason {
        let done = |status: &RunnableStatus| {
            status.last_done.as_ref().is_some_and(|done| done.epoch == epoch)
        };
        self.until(done).await.last_done.clone().unwrap().reason
    }

    fn forbid(&self, resources: &[&str]) {
        let rules = resources.iter().map(|resource| AccessRule::deny().resources([*resource]));
        self.server.set_rbac(rules);
    }

    /// Requests for widgets since the last call.
    fn requests(&self) -> usize {
        let seen = self.faults.seen();
        self.faults.forget_seen();
        seen.iter().filter(|info| info.resource == "widgets").count()
    }

    fn watches(&self) -> BTreeMap<String, usize> {
        let mut open = self.server.open_watches();
        open.retain(|resource, _| resource == "widgets.example.com");
        open
    }

    async fn shutdown(mut self) {
        self.stop.cancel();
        timeout(Duration::from_secs(60), self.tasks.join_next()).await.unwrap().unwrap().unwrap();
    }
}

async fn run_until_idle() {
    // With paused time, a sleep ends only when nothing else can run.
    sleep(Duration::from_millis(20)).await;
}

fn widget(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": { "name": name, "namespace": "default" }, "spec": spec,
    })
}

fn widgets() -> TypeRef {
    TypeRef::of::<Widget>()
}

fn controller(client: &Client) -> Controller<Widget> {
    Controller::new(Api::all(client.clone()), watcher::Config::default())
}

/// Error of a reconciler.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Context of a reconciler, built per epoch.
struct Shared {
    client: Client,
    epoch: Epoch,
    log: Log,
}

type Log = Arc<Mutex<Vec<String>>>;

fn take(log: &Log) -> Vec<String> {
    let mut taken = std::mem::take(&mut *log.lock().unwrap());
    taken.sort();
    taken
}
