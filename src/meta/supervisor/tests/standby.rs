//! A standby: declared controllers are warm before their replica leads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    manager::{Election, ElectionOptions, ElectionStatus, RuntimeClock},
    testing::{
        Verb,
        simulated::{Delays, SimulatedOptions, SimulatedRequest},
    },
};

/// Time to become warm, and to stand by.
const WARM_UP: Duration = Duration::from_secs(60);
/// Finalizer of the controller `b`.
const FINALIZER: &str = "metacontroller.io/compositecontroller-b";

/// Hook that counts its calls.
struct Counts(Arc<AtomicUsize>);

impl Hook for Counts {
    fn call(&self, _request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        async { Ok(Bytes::from_static(b"{}")) }.boxed()
    }
}

/// Hook that counts its calls, and returns one child of the name of the parent.
struct WantsChild(Arc<AtomicUsize>);

impl Hook for WantsChild {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let request: Value = serde_json::from_slice(&request).unwrap();
        let metadata = json!({"name": request["parent"]["metadata"]["name"]});
        let child = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        let response = json!({"children": [child]}).to_string();
        async move { Ok(Bytes::from(response)) }.boxed()
    }
}

/// Hook that does not respond; counts its calls under way.
struct Hangs(Arc<AtomicUsize>);

/// Call under way.
struct CallUnderWay(Arc<AtomicUsize>);

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hook for Hangs {
    fn call(&self, _request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let call = CallUnderWay(Arc::clone(&self.0));
        async move {
            let _call = call;
            std::future::pending().await
        }
        .boxed()
    }
}

/// Replica of the manager, and its part in the election.
struct Replica {
    status: tokio::sync::watch::Receiver<ElectionStatus>,
    declared: DeclaredControllers,
    calls: Arc<AtomicUsize>,
    manager: ManagerHandle,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Replica {
    fn start(server: &SimulatedServer) -> Self {
        Self::with(server, |calls| Arc::new(Counts(calls)))
    }

    fn with(
        server: &SimulatedServer,
        hook: impl Fn(Arc<AtomicUsize>) -> Arc<dyn Hook> + Send + Sync + 'static,
    ) -> Self {
        Self::of_user(server, "replica", hook)
    }

    fn of_user(
        server: &SimulatedServer,
        user: &str,
        hook: impl Fn(Arc<AtomicUsize>) -> Arc<dyn Hook> + Send + Sync + 'static,
    ) -> Self {
        let client = server.client_as(user);
        let (cluster, runnable) = Cluster::new(client.clone(), ClusterOptions::default());
        let options =
            ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
        let election = Election::new(options, || Ok(client)).unwrap();
        // Paused, as the rest of the test.
        let election = election.by(Arc::new(RuntimeClock::new()));
        let status = election.status();
        let mut manager = Manager::new(ManagerOptions::default()).elect(election);
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let (handle, calls) = (manager.handle(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let hooks: HookFactory = Arc::new(move |_, _| hook(Arc::clone(&counted)));
        let options = MetaOptions { hooks: Some(hooks), ..MetaOptions::default() };
        let supervisors = Supervisor::all(&cluster, &handle, options).unwrap();
        let declared = supervisors.iter().map(Supervisor::declared);
        let declared = declared.reduce(DeclaredControllers::and).unwrap();
        for supervisor in supervisors {
            let name = supervisor.name();
            manager.add(name, Arc::new(supervisor), RunnableOptions::default()).unwrap();
        }
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        Self { status, declared, calls, manager: handle, stop, tasks }
    }

    /// Names of the declared controllers that it knows.
    fn names(&self) -> Vec<String> {
        let all = self.declared.list().into_iter();
        let name = |it: DeclaredController| {
            ControllerKind::of_runnable(it.name.as_str()).unwrap().1.to_owned()
        };
        all.map(name).collect()
    }

    async fn end(&mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap();
    }

    /// Waits until this many declared controllers stand by.
    async fn until_warm(&self, count: usize) {
        let mut snapshots = self.manager.watch();
        let warm = |snapshot: &Arc<Snapshot>| {
            snapshot.values().filter(|it| it.reason == "Standby").count() >= count
        };
        timeout(Duration::from_secs(3600), snapshots.wait_for(warm)).await.unwrap().unwrap();
    }
}

/// Lease of another holder, in which a standby may not lead for an hour.
fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "lease", "namespace": "default" },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 100_000,
            "leaseTransitions": 1,
        },
    })
}

fn is_write(verb: Verb) -> bool {
    [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection].contains(&verb)
}

/// Requests of the replica that have ended.
fn requests(server: &SimulatedServer) -> Vec<SimulatedRequest> {
    let mut requests = server.requests();
    requests.retain(|it| it.user == "replica" && !it.is_open());
    requests
}

fn writes(server: &SimulatedServer) -> Vec<SimulatedRequest> {
    requests(server).into_iter().filter(|it| is_write(it.info.verb)).collect()
}

/// Server on which another replica leads.
fn led_server() -> SimulatedServer {
    let options = SimulatedOptions { delays: Delays::none(), ..SimulatedOptions::default() };
    let server = SimulatedServer::with(options);
    let parents = CrdBuilder::new("standby.test", "Widget");
    for crd in crds().iter().chain([&parents.build()]) {
        server.install(crd).unwrap();
    }
    server.apply(lease("another")).unwrap();
    server
}

fn controller(name: &str, finalizes: bool) -> Value {
    let hook = json!({ "webhook": { "url": "http://hook.test" } });
    let mut hooks = json!({ "sync": hook });
    if finalizes {
        hooks["finalize"] = hook;
    }
    json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": name },
        "spec": {
            "generateSelector": true,
            "parentResource": {
                "apiVersion": "standby.test/v1",
                "resource": "widgets",
                "labelSelector": { "matchLabels": { "of": name } },
            },
            "hooks": hooks,
        },
    })
}

fn parent(name: &str, controller: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "standby.test/v1",
        "kind": "Widget",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": { "of": controller },
            "finalizers": finalizers,
        },
    })
}

/// Kinds of the parents of a large standby.
const KINDS: [&str; 4] = ["Widget", "Gadget", "Rocket", "Socket"];

/// Controller of one of the kinds, whose children are updated one at a time.
fn rolling(number: usize) -> Value {
    let mut object = controller(&format!("c{number}"), false);
    let resource = format!("{}s", KINDS[number % KINDS.len()].to_lowercase());
    object["spec"]["parentResource"]["resource"] = json!(resource);
    object["spec"]["childResources"] = json!([{
        "apiVersion": "v1", "resource": "configmaps",
        "updateStrategy": {"method": "RollingInPlace"},
    }]);
    object
}

/// Server with this many controllers and, of all of them together, parents that a former leader has
/// synced: each has a child and a revision.
async fn synced_server(controllers: usize, parents: usize) -> SimulatedServer {
    let server = led_server();
    for kind in &KINDS[1..] {
        server.install(&CrdBuilder::new("standby.test", *kind).build()).unwrap();
    }
    for number in 0..controllers {
        server.apply(rolling(number)).unwrap();
    }
    for number in 0..parents {
        let of = number % controllers;
        let mut parent = parent(&format!("p{number}"), &format!("c{of}"), &[]);
        parent["kind"] = json!(KINDS[of % KINDS.len()]);
        server.apply(parent).unwrap();
    }
    server.apply(lease("")).unwrap();
    let mut former = Replica::of_user(&server, "former", |calls| Arc::new(WantsChild(calls)));
    let begin = Instant::now();
    let count = |kind: (&str, &str)| server.list(kind.0, kind.1).unwrap_or_default().len();
    while count(("v1", "ConfigMap")) < parents {
        assert!(begin.elapsed() < 60 * WARM_UP, "{}", count(("v1", "ConfigMap")));
        sleep(Duration::from_secs(1)).await;
    }
    sleep(WARM_UP).await;
    former.end().await;
    assert_eq!(count(("metacontroller.k8s.io/v1alpha1", "ControllerRevision")), parents);
    server.apply(lease("another")).unwrap();
    server
}

/// Checks the takeover of a standby that has this many declared controllers, and parents of all of
/// them together.
async fn check_takeover(controllers: usize, parents: usize) {
    let server = synced_server(controllers, parents).await;
    let mut replica = Replica::with(&server, |calls| Arc::new(WantsChild(calls)));
    replica.until_warm(controllers).await;
    sleep(WARM_UP).await;
    assert!(writes(&server).is_empty(), "a standby writes nothing: {:?}", writes(&server));
    assert_eq!(replica.calls.load(Ordering::Relaxed), 0, "and calls no hook");
    server.forget_requests();
    let known = server.requests().iter().map(|it| it.at).max();

    let before = Instant::now();
    server.apply(lease("")).unwrap();
    replica.status.wait_for(|status| status.leads).await.unwrap();
    let led = before.elapsed();
    assert!(led < Duration::from_millis(100), "{led:?}");
    let calls = Arc::clone(&replica.calls);
    while calls.load(Ordering::Relaxed) < parents {
        assert!(before.elapsed() < WARM_UP, "{calls:?}");
        sleep(Duration::from_millis(10)).await;
    }
    sleep(WARM_UP).await;

    // A watch may begin with a list.
    let mut reads = server.requests();
    reads.retain(|it| {
        let is_read = matches!(it.info.verb, Verb::List | Verb::Watch);
        it.user == "replica" && is_read && Some(it.at) > known
    });
    let reads: Vec<_> = reads.into_iter().map(|it| (it.info.verb, it.info.resource)).collect();
    assert!(reads.is_empty(), "the caches were warm: {reads:?}");
    let written = writes(&server);
    let is_synced = |it: &&SimulatedRequest| {
        ["configmaps", "controllerrevisions"].contains(&&*it.info.resource)
    };
    assert_eq!(written.iter().find(is_synced), None, "all of them were up to date");
    replica.end().await;
}

/// A tenth of the large standby in the number of controllers, and a twentieth in that of parents: the
/// large one takes minutes in a debug build.
#[tokio::test(start_paused = true)]
async fn standby_of_many_controllers_takes_over_without_a_list() {
    check_takeover(20, 1000).await;
}

#[ignore = "takes minutes in a debug build: run it by name, with --release"]
#[tokio::test(start_paused = true)]
async fn standby_of_200_controllers_over_20_000_objects_takes_over_without_a_list() {
    check_takeover(200, 20_000).await;
}

#[tokio::test(start_paused = true)]
async fn hook_call_of_a_leader_is_dropped_when_its_lease_is_lost() {
    let server = led_server();
    server.apply(lease("")).unwrap();
    server.apply(controller("a", false)).unwrap();
    server.apply(parent("p", "a", &[])).unwrap();
    let mut replica = Replica::with(&server, |calls| Arc::new(Hangs(calls)));
    replica.status.wait_for(|status| status.leads).await.unwrap();
    let calls = Arc::clone(&replica.calls);
    let under_way = async |count: usize| {
        while calls.load(Ordering::Relaxed) != count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    under_way(1).await;
    server.forget_requests();
    let before = Instant::now();

    server.apply(lease("another")).unwrap();
    timeout(WARM_UP, under_way(0)).await.unwrap();

    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    assert!(!replica.status.borrow().leads);
    assert!(writes(&server).is_empty(), "{:?}", writes(&server));
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn standby_forgets_a_deleted_controller_without_a_write() {
    let server = led_server();
    server.apply(controller("a", false)).unwrap();
    server.apply(controller("b", true)).unwrap();
    server.apply(parent("p", "b", &[FINALIZER])).unwrap();
    let mut replica = Replica::start(&server);
    replica.until_warm(2).await;
    assert_eq!(replica.names(), ["a", "b"]);

    for name in ["a", "b"] {
        let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        server.remove(kind.0, kind.1, "", name).unwrap();
    }
    sleep(WARM_UP).await;
    assert_eq!(replica.names(), ["b"], "a parent of b has its finalizer");
    // As the leader does.
    server.apply(parent("p", "b", &[])).unwrap();
    sleep(WARM_UP).await;

    assert!(replica.names().is_empty(), "{:?}", replica.names());
    assert!(writes(&server).is_empty(), "{:?}", writes(&server));
    server.apply(lease("")).unwrap();
    replica.status.wait_for(|status| status.leads).await.unwrap();
    sleep(WARM_UP).await;
    assert!(server.list("v1", "Event").unwrap().is_empty(), "the leader has reported the stop");
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn standby_that_takes_over_frees_the_parents_of_a_deleted_controller() {
    let server = led_server();
    server.apply(controller("b", true)).unwrap();
    server.apply(parent("p", "b", &[FINALIZER])).unwrap();
    let mut replica = Replica::start(&server);
    replica.until_warm(1).await;
    server.remove("metacontroller.k8s.io/v1alpha1", "CompositeController", "", "b").unwrap();
    sleep(WARM_UP).await;

    // The leader has ended before it has freed the parent.
    server.apply(lease("")).unwrap();
    replica.status.wait_for(|status| status.leads).await.unwrap();
    sleep(WARM_UP).await;

    let parent = server.get("standby.test/v1", "Widget", "default", "p").unwrap();
    assert_eq!(parent["metadata"].get("finalizers").unwrap_or(&json!([])), &json!([]));
    assert!(replica.names().is_empty());
    replica.end().await;
}
