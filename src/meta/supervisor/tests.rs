//! Declared controllers of a manager, against a simulated API server, in paused time.

mod adopt;
mod built_in;
mod child_status;
mod contested;
mod customize;
mod decorator;
mod denied;
mod events;
mod finalize;
mod freed;
mod generated_names;
mod logged;
mod metrics;
mod narrow_rights;
mod optional;
mod panics;
mod pruned;
mod refused_parts;
mod replaced_parent;
mod reports;
mod responding_hook;
mod rollout;
mod service_hook;
mod slots;
mod standby;
mod strictness;
mod swap;

use std::{
    sync::{Mutex, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{reconciler::MISSING_GRACE, *};
use crate::{
    controller::ClusterOptions,
    manager::{
        ControllerState, DoneReason, Manager, ManagerOptions, RunnableOptions, RunnableStatus,
        Snapshot, TransitionKind,
    },
    meta::{
        api::crds::crds,
        hooks::{Hook, error::HookError, rule::HookKind},
    },
    testing::{CrdBuilder, simulated::SimulatedServer},
};

/// Resync period of controllers without their own.
const RESYNC: Duration = Duration::from_secs(24 * 3600);

/// Hook that returns no children.
struct Content;

impl Hook for Content {
    fn call(&self, _request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        async { Ok(Bytes::from_static(b"{}")) }.boxed()
    }
}

/// A manager with a supervisor.
struct Harness {
    server: SimulatedServer,
    manager: ManagerHandle,
    declared: DeclaredControllers,
    // In the order in which they were made.
    hooks: Arc<Mutex<Vec<Weak<Content>>>>,
    // Resync periods of their controllers.
    periods: Arc<Mutex<Vec<Option<Duration>>>>,
    // Registry of the controllers' series.
    metrics: Registry,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Harness {
    async fn start() -> Self {
        Self::start_with(RESYNC).await
    }

    async fn start_with(resync: Duration) -> Self {
        let hooks = Arc::<Mutex<Vec<Weak<Content>>>>::default();
        let made = Arc::clone(&hooks);
        let periods = Arc::<Mutex<Vec<Option<Duration>>>>::default();
        let noted = Arc::clone(&periods);
        let factory: HookFactory = Arc::new(move |definition, _| {
            noted.lock().unwrap().push(definition.resync_period);
            let hook = Arc::new(Content);
            made.lock().unwrap().push(Arc::downgrade(&hook));
            hook
        });
        Self { hooks, periods, ..Self::with(factory, resync).await }
    }

    /// Harness whose hooks this factory makes.
    async fn with(hooks: HookFactory, resync: Duration) -> Self {
        let (server, hooks) = (SimulatedServer::new(), Some(hooks));
        let options = MetaOptions { resync_period: Some(resync), hooks, ..MetaOptions::default() };
        let client = server.client();
        Self::over(server, client, options).await
    }

    /// Harness that reaches a server through this client.
    async fn over(server: SimulatedServer, client: kube::Client, options: MetaOptions) -> Self {
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let mut metrics = Registry::default();
        cluster.metrics.register(&mut metrics);
        options.metrics.register(&mut metrics);
        let mut manager = Manager::new(ManagerOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let handle = manager.handle();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        let supervisors = Supervisor::all(&cluster, &handle, options).unwrap();
        let declared = supervisors.iter().map(Supervisor::declared);
        let declared = declared.reduce(DeclaredControllers::and).unwrap();
        for supervisor in supervisors {
            let name = supervisor.name();
            handle.add(name, Arc::new(supervisor), RunnableOptions::default()).await.unwrap();
        }
        let (hooks, periods) = (Arc::default(), Arc::default());
        let manager = handle;
        let harness = Self { server, manager, declared, hooks, periods, metrics, stop, tasks };
        harness.install_own();
        let things = CrdBuilder::new("example.com", "Thing").cluster_scoped();
        harness.server.install(&things.build()).unwrap();
        harness.until(SUPERVISOR, |status| status.state == ControllerState::Running).await;
        harness
    }

    fn install_own(&self) {
        for crd in crds() {
            self.server.install(&crd).unwrap();
        }
    }

    fn declare(&self, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": name}, "spec": spec,
        });
        self.server.apply(object).unwrap();
    }

    /// Waits for a snapshot of the manager; costs no time, since time is paused.
    async fn until_all(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) {
        let mut watch = self.manager.watch();
        let found = watch.wait_for(|snapshot| wanted(snapshot));
        let late = timeout(Duration::from_secs(3600), found).await.is_err();
        assert!(!late, "{what}: {:#?}", self.manager.status());
    }

    async fn until(&self, name: &str, wanted: impl Fn(&RunnableStatus) -> bool) {
        let key = name.into();
        let wanted = |all: &Snapshot| all.get(&key).is_some_and(|status| wanted(status));
        self.until_all(name, wanted).await;
    }

    async fn running(&self, name: &str, epoch: u64) {
        let running = |status: &RunnableStatus| {
            status.state == ControllerState::Running && status.epoch == epoch
        };
        self.until(&runnable(name), running).await;
    }

    fn epoch(&self, name: &str) -> Option<u64> {
        self.manager.status_of(runnable(name)).map(|status| status.epoch)
    }

    /// Deletes the CRD of CompositeControllers and installs it again, without its objects.
    async fn lose_own(&self) {
        for crd in crds() {
            self.server.uninstall(&crd.metadata.name.unwrap()).unwrap();
        }
        self.until(SUPERVISOR, |status| status.state == ControllerState::Waiting).await;
        self.install_own();
        self.until(SUPERVISOR, |status| status.state == ControllerState::Running).await;
    }

    /// Number of requests that write a status.
    fn statuses_offered(&self) -> usize {
        let requests = self.server.requests();
        requests.iter().filter(|request| request.info.subresource == "status").count()
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap();
    }
}

/// Name of the runnable of a CompositeController.
fn runnable(name: &str) -> String {
    ControllerKind::Composite.runnable_name(name).to_string()
}

fn good() -> Value {
    json!({
        "generateSelector": true,
        "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
        "hooks": {"sync": {"webhook": {"url": "http://scripted/"}}},
    })
}

fn rejected() -> Value {
    let mut spec = good();
    spec["hooks"]["sync"]["webhook"]["url"] = json!("ftp://nowhere");
    spec
}

async fn run_until_idle() {
    // With paused time, a sleep ends only when nothing else can run.
    sleep(Duration::from_millis(20)).await;
}

#[tokio::test(start_paused = true)]
async fn controller_that_is_missing_after_its_crd_returned_is_removed_after_a_minute() {
    let harness = Harness::start().await;
    harness.declare("back", good());
    harness.declare("lost", good());
    harness.running("back", 1).await;
    harness.running("lost", 1).await;
    let mut transitions = harness.manager.transitions();

    harness.lose_own().await;
    let since = Instant::now();
    harness.declare("back", good());

    sleep(MISSING_GRACE - Duration::from_secs(1)).await;
    assert_eq!(harness.epoch("lost"), Some(1), "it may still be restored");
    harness.until_all("it is removed", |all| all.get(&runnable("lost").into()).is_none()).await;
    let waited = since.elapsed();
    assert!(waited < MISSING_GRACE + Duration::from_secs(5), "{waited:?}");
    run_until_idle().await;
    assert_eq!(harness.epoch("back"), Some(1), "an equal one continues");
    let done = std::iter::from_fn(|| transitions.try_recv().ok())
        .filter(|step| ControllerKind::of_runnable(step.name.as_str()).is_some())
        .filter_map(|step| match step.kind {
            TransitionKind::Done(reason) => Some((step.name, reason)),
            TransitionKind::Entered(_) | TransitionKind::Removed => None,
        });
    assert_eq!(done.collect::<Vec<_>>(), [(runnable("lost").into(), DoneReason::Cancelled)]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_edit_keeps_the_old_run_and_a_rejected_new_object_ends_it() {
    let harness = Harness::start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;

    harness.declare("a", rejected());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.epoch("a"), Some(1), "an edit");

    harness.declare("a", good());
    run_until_idle().await;
    harness.lose_own().await;
    assert_eq!(harness.epoch("a"), Some(1), "its object is missing");
    harness.declare("a", rejected());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.epoch("a"), None, "what the deleted one declared is over");

    harness.declare("a", good());
    harness.running("a", 2).await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn controller_that_other_code_removed_is_added_again_at_once() {
    let harness = Harness::start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;

    harness.manager.remove(runnable("a")).await;

    let since = Instant::now();
    harness.running("a", 2).await;
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_without_a_resync_period_have_the_default_one() {
    let harness = Harness::start().await;
    let mut own = good();
    own["resyncPeriodSeconds"] = json!(7);

    harness.declare("a", good());
    harness.running("a", 1).await;
    harness.declare("b", own);
    harness.running("b", 1).await;

    assert_eq!(*harness.periods.lock().unwrap(), [Some(RESYNC), Some(Duration::from_secs(7))]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_that_took_over_leaves_nothing_of_the_previous_run() {
    let harness = Harness::start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    let mut edited = good();
    edited["resyncPeriodSeconds"] = json!(3600);

    harness.declare("a", edited);
    run_until_idle().await;

    assert_eq!(harness.epoch("a"), Some(1), "changed in place");
    let hooks = harness.hooks.lock().unwrap().clone();
    let alive: Vec<_> = hooks.iter().map(|hook| hook.upgrade().is_some()).collect();
    assert_eq!(alive, [false, true]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn manager_that_ends_leaves_no_declared_controller() {
    let harness = Harness::start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    let hooks = Arc::clone(&harness.hooks);

    harness.end().await;

    let hooks = hooks.lock().unwrap();
    let alive: Vec<_> = hooks.iter().map(|hook| hook.upgrade().is_some()).collect();
    assert_eq!(alive, [false], "neither it nor, with it, the cluster and its client");
}

#[tokio::test(start_paused = true)]
async fn status_that_the_server_did_not_store_is_written_again_after_a_minute() {
    let harness = Harness::start().await;
    // As in Metacontroller's own CRD, the schema has no place for the status.
    for mut crd in crds() {
        for version in &mut crd.spec.versions {
            let schema = version.schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
            schema.properties.as_mut().unwrap().insert(
                "status".to_owned(),
                JSONSchemaProps { type_: Some("object".to_owned()), ..JSONSchemaProps::default() },
            );
        }
        harness.server.install(&crd).unwrap();
    }
    harness.declare("a", good());
    harness.running("a", 1).await;
    sleep(Duration::from_secs(10)).await;
    let offered = harness.statuses_offered();

    sleep(Duration::from_secs(45)).await;
    assert_eq!(harness.statuses_offered(), offered, "not all the time");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(harness.statuses_offered(), offered + 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_edit_cancels_an_earlier_pending_one() {
    let harness = Harness::start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    let mut waits = good();
    waits["childResources"] = json!([{"apiVersion": "example.com/v1", "resource": "parts"}]);
    harness.declare("a", waits);
    harness.until(&runnable("a"), |status| status.pending.is_some()).await;

    harness.declare("a", rejected());
    sleep(Duration::from_secs(5)).await;
    harness.server.install(&CrdBuilder::new("example.com", "Part").build()).unwrap();
    sleep(Duration::from_secs(5)).await;

    // The run is neither the replaced one nor the declared one.
    assert_eq!(harness.epoch("a"), Some(1), "the old one keeps running");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn list_has_the_same_statuses_as_the_objects() {
    let harness = Harness::start().await;
    harness.declare("runs", good());
    harness.declare("rejected", rejected());
    harness.declare("pending", good());
    harness
        .server
        .apply(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
            "metadata": {"name": "paused", "annotations": {PAUSED: "true"}}, "spec": good(),
        }))
        .unwrap();
    harness.running("pending", 1).await;
    let mut waits = good();
    waits["childResources"] = json!([{"apiVersion": "example.com/v1", "resource": "parts"}]);
    harness.declare("pending", waits);
    sleep(Duration::from_secs(10)).await;

    let listed = harness.declared.list();

    let reasons = ["Paused", "SpecPending", "SpecInvalid", "Running"];
    assert_eq!(listed.len(), reasons.len());
    for (declared, reason) in listed.into_iter().zip(reasons) {
        let (_, name) = ControllerKind::of_runnable(declared.name.as_str()).unwrap();
        let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let object = harness.server.get(kind.0, kind.1, "", name).unwrap();
        assert_eq!(json!(declared.status), object["status"], "{name}");
        assert_eq!(declared.status.reason.as_deref(), Some(reason), "{name}");
        assert_eq!(declared.generation, object["metadata"]["generation"], "{name}");
        let parent = ("things".to_owned(), "example.com/v1".to_owned());
        assert_eq!(declared.parents, [parent]);
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn endless_resync_period_is_none() {
    let harness = Harness::start_with(Duration::MAX).await;

    harness.declare("a", good());
    harness.running("a", 1).await;
    harness
        .server
        .apply(json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"},
        }))
        .unwrap();
    sleep(Duration::from_secs(3600)).await;

    assert_eq!(harness.epoch("a"), Some(1), "it runs");
    let status = harness.manager.status_of(runnable("a")).unwrap();
    assert_eq!((status.failures, status.last_error()), (0, None));
    harness.end().await;
}
