//! Test harness: one manager on the control plane or the simulated server, with a client of its own
//! user, and assertions on both.
//!
//! On the control plane, Pilotlight runs in a separate runtime, so that its task count excludes the
//! test's tasks. On the simulated server it runs in the test's runtime, whose time is paused.

mod absence;
mod alone;
#[cfg(feature = "cli")]
mod changes;
mod connection;
#[cfg(feature = "cli")]
mod constant;
mod controller_variant;
mod counts;
#[cfg(feature = "cli")]
mod declared;
#[cfg(feature = "meta")]
mod deletions;
#[cfg(feature = "cli")]
mod example;
#[cfg(feature = "cli")]
mod hook_server;
#[cfg(feature = "cli")]
mod killed;
mod life;
#[cfg(feature = "meta")]
mod logs;
mod metrics;
#[cfg(feature = "cli")]
mod process;
mod recorder;
pub(crate) mod rights;
mod server;
#[cfg(feature = "meta")]
mod simulated_harness;
#[cfg(feature = "cli")]
mod supervised;
#[cfg(feature = "cli")]
pub(crate) mod workload;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    discovery::{DiscoveryOptions, TypeState},
    informer::InformerOptions,
    kind::TypeRef,
    manager::{
        ConditionalRunnable, ControllerName, ControllerState, DoneReason, Election,
        ElectionOptions, ElectionStatus, ElectionTimes, Manager, ManagerHandle, ManagerMetrics,
        ManagerOptions, RestartBackoff, RunnableOptions, RunnableStatus, Transition,
        TransitionKind,
    },
    testing::{
        AuditEvent, ControlPlane, CrdBuilder, Faults, RequestInfo, TestScope, open_watches,
        proxy::Proxy,
    },
    transport::{Transport, TransportMetrics, TransportOptions},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::{
    runtime::{Handle, Runtime},
    sync::watch,
    task::JoinSet,
    time::{self, Instant, timeout},
};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "cli")]
pub(crate) use self::metrics::{of_type as metric_of_type, text as metrics_text};
pub(crate) use self::{
    alone::{alone, alone_where},
    controller_variant::{ControllerVariant, Embedded, Listening},
    counts::counted,
    recorder::{Act, RecordingReconciler, Seen},
    rights::Rule,
    server::{Position, Server},
};
#[cfg(feature = "cli")]
pub(crate) use self::{
    changes::Changes,
    constant::{constant, of_run},
    declared::Declared,
    deletions::Deletions,
    example::Example,
    hook_server::{Answer, Call, HookServer, config_map, one_config_map, status_of},
    killed::{KillSide, Killed, binary, start_binary},
    process::{LEASE_OF_REPLICAS, Process},
    supervised::{
        Supervised, condition, install_own_crds, install_own_crds_on, until, until_within,
    },
    workload::Workload,
};
use self::{connection::Connection, rights::Rights};
#[cfg(feature = "meta")]
pub(crate) use self::{
    logs::{Line, Logs},
    simulated_harness::{SimulatedHarness, redeclare, sized},
};

/// Deadline for every wait of a test; reached only by tests that fail.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Lease of a harness with an election.
const LEASE: &str = "lease";
/// Holder of that lease at the start.
pub(crate) const OTHER_HOLDER: &str = "another";

/// Options of a [`Harness`].
pub(crate) struct HarnessOptions {
    /// Groups of the user; all rights by default.
    pub(crate) groups: Vec<&'static str>,
    /// Rights granted at the start, in addition to those of the groups.
    pub(crate) rights: Vec<Rule>,
    pub(crate) discovery: DiscoveryOptions,
    pub(crate) informers: InformerOptions,
    pub(crate) restart_backoff: RestartBackoff,
    /// True if namespaced types are watched in the harness's namespace only.
    pub(crate) restricted: bool,
    /// True if a proxy stands between the manager and the server.
    pub(crate) proxied: bool,
    /// Time after which an idle connection to the control plane is closed.
    pub(crate) idle_timeout: Duration,
    /// Times of a leader election; none by default. Another holder has the lease at the start.
    pub(crate) election: Option<ElectionTimes>,
}

impl Default for HarnessOptions {
    fn default() -> Self {
        Self {
            groups: vec!["system:masters"],
            rights: Vec::new(),
            discovery: DiscoveryOptions::default(),
            informers: InformerOptions::default(),
            restart_backoff: RestartBackoff::default(),
            restricted: false,
            proxied: false,
            idle_timeout: TransportOptions::default().idle_timeout,
            election: None,
        }
    }
}

impl HarnessOptions {
    /// Options of a user who may only watch CRDs and APIServices.
    pub(crate) fn unprivileged() -> Self {
        let crds = Rule::to_watch("apiextensions.k8s.io", "customresourcedefinitions");
        let services = Rule::to_watch("apiregistration.k8s.io", "apiservices");
        Self { rights: vec![crds, services], ..Self::powerless() }
    }

    /// As [`HarnessOptions::unprivileged`], for a user who also runs declared controllers of
    /// ConfigMaps.
    #[cfg(feature = "cli")]
    pub(crate) fn declaring() -> Self {
        let mut options = Self::unprivileged();
        options.rights.extend([
            Rule::all_of("metacontroller.k8s.io", "*"),
            Rule::all_of("", "configmaps"),
            Rule::all_of("", "events"),
        ]);
        options
    }

    /// Options of a user without rights.
    pub(crate) fn powerless() -> Self {
        Self { groups: Vec::new(), ..Self::default() }
    }
}

/// Manager with its client, its server and its records.
pub(crate) struct Harness<'plane> {
    pub(crate) server: Server<'plane>,
    pub(crate) scope: TestScope,
    pub(crate) user: String,
    /// Faults between the client and the server.
    pub(crate) faults: Faults,
    /// Faults on the wire; only if the harness is proxied.
    pub(crate) wire: Faults,
    // Injects the wire faults while the harness exists.
    _proxy: Option<Proxy>,
    /// Connections to the control plane.
    transport: Option<Transport>,
    pub(crate) cluster: Cluster,
    pub(crate) manager: ManagerHandle,
    pub(crate) metrics: Arc<Registry>,
    /// Position in the server's record before the user's first request.
    pub(crate) begin: Position,
    rights: Rights,
    election: Option<watch::Receiver<ElectionStatus>>,
    transitions: watch::Receiver<Vec<(Instant, Transition)>>,
    // Aborted with the harness.
    _tasks: JoinSet<()>,
    stop: CancellationToken,
    result: Arc<Mutex<Option<Result<(), String>>>>,
    /// Runtime that runs Pilotlight.
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Harness<'static> {
    /// Starts a harness on the shared control plane.
    pub(crate) async fn start(name: &str) -> Self {
        Self::with(name, HarnessOptions::default()).await
    }

    pub(crate) async fn with(name: &str, options: HarnessOptions) -> Self {
        Harness::on(ControlPlane::shared(), name, options).await
    }
}

impl<'plane> Harness<'plane> {
    pub(crate) async fn on(
        plane: &'plane ControlPlane,
        name: &str,
        options: HarnessOptions,
    ) -> Self {
        Self::at(Server::Real(plane), name, options).await
    }

    pub(crate) async fn at(server: Server<'plane>, name: &str, options: HarnessOptions) -> Self {
        let scope = server.scope(name).await;
        let user = format!("pilot-{}", scope.namespace);
        let begin = server.position();
        let rights = Rights::new(&server, &user, &options.groups);
        if !options.rights.is_empty() {
            rights.grant(scope.client(), "rights", &options.rights).await;
        }
        let (faults, wire) = (Faults::default(), Faults::default());
        let connection = TransportMetrics::default();
        let Connection { client, proxy, transport, runtime } =
            Connection::open(&server, (name, &user), &options, (&faults, &wire), &connection).await;
        let handle = runtime.as_ref().map_or_else(Handle::current, |own| own.handle().clone());
        let HarnessOptions { discovery, informers, .. } = options;
        let namespace = options.restricted.then(|| scope.namespace.as_str().into());
        let options_of_cluster = ClusterOptions { discovery, informers, namespace };
        let for_lease = client.clone();
        let (cluster, runnable) = Cluster::new(client, options_of_cluster);
        let manager_metrics = ManagerMetrics::default();
        let mut metrics = Registry::default();
        manager_metrics.register(&mut metrics);
        connection.register(&mut metrics);
        cluster.metrics.register(&mut metrics);
        cluster.informers.metrics().register(&mut metrics);
        cluster.types.register_metrics(&mut metrics);
        let mut manager = Manager::new(ManagerOptions {
            metrics: manager_metrics,
            restart_backoff: options.restart_backoff,
            ..ManagerOptions::default()
        });
        let mut election = None;
        if let Some(times) = options.election {
            hold_lease(&scope, OTHER_HOLDER).await;
            let lease = ElectionOptions::new(scope.namespace.as_str(), LEASE);
            let lease = ElectionOptions { times, own_thread: false, ..lease };
            let elected = Election::new(lease, move || Ok(for_lease)).unwrap();
            election = Some(elected.status());
            manager = manager.elect(elected);
        }
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let managed = manager.handle();
        let stop = CancellationToken::new();
        let result = Arc::new(Mutex::new(None));
        let mut tasks = JoinSet::new();
        let transitions = record(&managed, &mut tasks);
        let (stopping, ended) = (stop.clone(), result.clone());
        tasks.spawn_on(
            async move {
                let end = manager.run(stopping).await.map_err(|error| error.to_string());
                *ended.lock().unwrap() = Some(end);
            },
            &handle,
        );
        Self {
            server,
            scope,
            user,
            faults,
            wire,
            _proxy: proxy,
            transport,
            cluster,
            manager: managed,
            metrics: Arc::new(metrics),
            begin,
            rights,
            election,
            transitions,
            _tasks: tasks,
            stop,
            result,
            handle,
            runtime,
        }
    }

    /// Returns a CRD in this harness's group.
    pub(crate) fn widgets(&self) -> CrdBuilder {
        CrdBuilder::new(&self.scope.group, "Widget")
    }

    /// Creates an object with this `spec.size` and returns its uid.
    pub(crate) async fn create(&self, crd: &CrdBuilder, name: &str, size: i64) -> String {
        let object = crd.object(name, json!({ "size": size }));
        let api = self.scope.api(crd, "v1");
        let created = api.create(&PostParams::default(), &object).await.unwrap();
        created.metadata.uid.unwrap()
    }

    pub(crate) async fn add(&self, name: &str, runnable: Arc<dyn ConditionalRunnable>) {
        self.manager.add(name, runnable, RunnableOptions::default()).await.unwrap();
    }

    /// Stops the manager and returns its result.
    pub(crate) async fn end(self) -> Result<(), String> {
        self.stopped().await
    }

    /// As [`Harness::end`], but keeps the harness.
    pub(crate) async fn stopped(&self) -> Result<(), String> {
        self.stop.cancel();
        let result = self.result.clone();
        eventually("the manager ends", || {
            result.lock().unwrap().is_some().then_some(()).ok_or_else(String::new)
        })
        .await;
        self.result.lock().unwrap().take().unwrap()
    }

    // --- the manager

    pub(crate) fn status(&self, name: &str) -> Arc<RunnableStatus> {
        self.manager.status_of(name).unwrap_or_else(|| panic!("no runnable is named {name}"))
    }

    /// Waits until the status of a runnable satisfies `wanted`.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&RunnableStatus) -> bool,
    ) -> Arc<RunnableStatus> {
        let mut snapshots = self.manager.watch();
        let name = ControllerName::from(name);
        let seen = async {
            loop {
                let status = snapshots.borrow_and_update().get(&name).cloned();
                if let Some(status) = status.filter(|status| wanted(status)) {
                    return status;
                }
                snapshots.changed().await.expect("the manager runs");
            }
        };
        timeout(PATIENCE, seen).await.unwrap_or_else(|_| {
            panic!("{name}: {what}: not in time, but {:#?}", self.status(name.as_str()))
        })
    }

    pub(crate) async fn state(&self, name: &str, state: ControllerState) -> Arc<RunnableStatus> {
        self.until(name, state.word(), |status| status.state == state).await
    }

    pub(crate) async fn running(&self, name: &str, epoch: u64) -> Arc<RunnableStatus> {
        let running = |status: &RunnableStatus| {
            status.state == ControllerState::Running && status.epoch == epoch
        };
        self.until(name, &format!("running epoch {epoch}"), running).await
    }

    /// Waits until a runnable is removed.
    #[cfg(feature = "cli")]
    pub(crate) async fn until_removed(&self, name: &str) {
        let mut snapshots = self.manager.watch();
        let name = ControllerName::from(name);
        let gone = snapshots.wait_for(|snapshot| snapshot.get(&name).is_none());
        let late = timeout(PATIENCE, gone).await.is_err();
        assert!(!late, "{name} is not removed in time");
    }

    /// Waits until an epoch is done and returns the reason.
    pub(crate) async fn done(&self, name: &str, epoch: u64) -> DoneReason {
        let mut transitions = self.transitions.clone();
        let found = transitions.wait_for(|all| reason(all, name, epoch).is_some());
        let all = timeout(PATIENCE, found).await.unwrap_or_else(|_| {
            panic!("{name}: epoch {epoch} is not done in time: {:#?}", self.status(name))
        });
        reason(&all.unwrap(), name, epoch).unwrap()
    }

    /// Waits until this replica leads.
    #[cfg(feature = "cli")]
    pub(crate) async fn leading(&self) {
        let mut election = self.election.clone().expect("the harness has an election");
        let leads = timeout(PATIENCE, election.wait_for(|status| status.leads)).await;
        assert!(leads.is_ok(), "it does not lead in time: {:?}", self.election);
    }

    // --- discovery

    pub(crate) async fn type_state(
        &self,
        type_ref: &TypeRef,
        what: &str,
        wanted: impl Fn(&TypeState) -> bool,
    ) {
        let mut status = self.cluster.types.subscribe(type_ref);
        let found = status.wait_for(|status| wanted(&status.state));
        let late = timeout(PATIENCE, found).await.is_err();
        assert!(
            !late,
            "{type_ref} {what}: not in time, but {:?}",
            self.cluster.types.get(type_ref)
        );
    }

    // --- the server

    /// Returns the control plane of the harness.
    pub(crate) fn plane(&self) -> &'plane ControlPlane {
        self.server.plane()
    }

    /// Requests of the user since `position`, as the server recorded them.
    pub(crate) async fn events(&self, position: Position) -> Vec<AuditEvent> {
        let mut events = self.server.events(position).await;
        events.retain(|event| event.user == self.user);
        events
    }

    /// Requests of the user for one type since `position`.
    pub(crate) async fn requests(&self, crd: &CrdBuilder, position: Position) -> Vec<AuditEvent> {
        let resource = crd.api_resource("v1");
        let mut events = self.events(position).await;
        events.retain(|event| event.is_about(&resource.group, &resource.plural));
        events
    }

    /// Number of the user's open watches of a type at the server.
    pub(crate) async fn open_watches(&self, crd: &CrdBuilder) -> usize {
        open_watches(&self.requests(crd, self.begin).await).len()
    }

    pub(crate) fn position(&self) -> Position {
        self.server.position()
    }

    /// Number of live tasks in the runtime that runs Pilotlight.
    pub(crate) fn alive_tasks(&self) -> usize {
        self.handle.metrics().num_alive_tasks()
    }

    /// Number of connections to the control plane.
    fn connections(&self) -> usize {
        self.transport.as_ref().map_or(0, Transport::connections)
    }

    /// Calls a function that spawns tasks of Pilotlight, in Pilotlight's runtime.
    pub(crate) fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let _runtime = self.handle.enter();
        call()
    }
}

impl Drop for Harness<'_> {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Writes this holder into the lease of a harness; "" frees it. Another holder keeps it for an hour.
pub(crate) async fn hold_lease(scope: &TestScope, holder: &str) {
    let leases = Api::<Lease>::namespaced(scope.client(), &scope.namespace);
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": 3600, "leaseTransitions": 1,
    });
    let change = Patch::Merge(json!({ "spec": spec }));
    match leases.patch(LEASE, &PatchParams::default(), &change).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = json!({ "metadata": { "name": LEASE }, "spec": spec });
            let lease = serde_json::from_value(lease).unwrap();
            leases.create(&PostParams::default(), &lease).await.unwrap();
        }
        Err(error) => panic!("writing the lease: {error}"),
    }
}

/// Returns a predicate for requests for the objects of this CRD.
pub(crate) fn about(crd: &CrdBuilder) -> impl Fn(&RequestInfo) -> bool + use<> {
    let resource = crd.api_resource("v1");
    move |info| info.group == resource.group && info.resource == resource.plural
}

/// Returns the type of a CRD at a version, by plural name.
pub(crate) fn type_of(crd: &CrdBuilder, version: &str) -> TypeRef {
    let resource = crd.api_resource(version);
    TypeRef::resource(resource.group, resource.version, resource.plural)
}

/// Polls until `look` succeeds, for state without a notification.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(problem) => assert!(Instant::now() < deadline, "{what}: not in time: {problem}"),
        }
        time::sleep(Duration::from_millis(5)).await;
    }
}

fn record(
    manager: &ManagerHandle,
    tasks: &mut JoinSet<()>,
) -> watch::Receiver<Vec<(Instant, Transition)>> {
    let (all, seen) = watch::channel(Vec::new());
    let mut transitions = manager.transitions();
    tasks.spawn(async move {
        // The loop ends with the manager. A receiver that lags by over a thousand transitions ends
        // it too, and the test then fails because a step is missing.
        while let Ok(transition) = transitions.recv().await {
            all.send_modify(|all| all.push((Instant::now(), transition)));
        }
        std::future::pending::<()>().await;
    });
    seen
}

fn reason(all: &[(Instant, Transition)], name: &str, epoch: u64) -> Option<DoneReason> {
    all.iter().find_map(|(_, step)| match &step.kind {
        TransitionKind::Done(reason) if step.name.as_str() == name && step.epoch == epoch => {
            Some(reason.clone())
        }
        TransitionKind::Done(_) | TransitionKind::Entered(_) | TransitionKind::Removed => None,
    })
}
