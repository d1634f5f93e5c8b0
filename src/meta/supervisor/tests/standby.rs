//! A standby: declared controllers are warm before their replica leads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    manager::{Election, ElectionOptions, ElectionStatus},
    testing::{
        Verb,
        simulated::{Delays, SimulatedOptions},
    },
};

const CONTROLLERS: usize = 200;
const PARENTS: usize = 20_000;

/// Hook that counts its calls.
struct Counts(Arc<AtomicUsize>);

impl Hook for Counts {
    fn call(&self, _request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        async { Ok(Bytes::from_static(b"{}")) }.boxed()
    }
}

/// Replica of the manager, and its part in the election.
struct Replica {
    status: tokio::sync::watch::Receiver<ElectionStatus>,
    calls: Arc<AtomicUsize>,
    manager: ManagerHandle,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Replica {
    fn start(server: &SimulatedServer) -> Self {
        let client = server.client_as("replica");
        let (cluster, runnable) = Cluster::new(client.clone(), ClusterOptions::default());
        let options =
            ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
        let election = Election::new(options, || Ok(client)).unwrap();
        let status = election.status();
        let mut manager = Manager::new(ManagerOptions::default()).elect(election);
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let (handle, calls) = (manager.handle(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let hooks: HookFactory = Arc::new(move |_, _| Arc::new(Counts(Arc::clone(&counted))));
        let options = MetaOptions { hooks: Some(hooks), ..MetaOptions::default() };
        for supervisor in Supervisor::all(&cluster, &handle, options).unwrap() {
            let name = supervisor.name();
            manager.add(name, Arc::new(supervisor), RunnableOptions::default()).unwrap();
        }
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        Self { status, calls, manager: handle, stop, tasks }
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

#[tokio::test(start_paused = true)]
async fn standby_of_many_controllers_takes_over_without_a_list() {
    let options = SimulatedOptions { delays: Delays::none(), ..SimulatedOptions::default() };
    let server = SimulatedServer::with(options);
    let parents = CrdBuilder::new("standby.test", "Widget");
    for crd in crds().iter().chain([&parents.build()]) {
        server.install(crd).unwrap();
    }
    server.apply(lease("another")).unwrap();
    for number in 0..CONTROLLERS {
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": { "name": format!("c{number}") },
            "spec": {
                "generateSelector": true,
                "parentResource": {
                    "apiVersion": "standby.test/v1",
                    "resource": "widgets",
                    "labelSelector": { "matchLabels": { "of": format!("c{number}") } },
                },
                "hooks": { "sync": { "webhook": { "url": "http://hook.test" } } },
            },
        });
        server.apply(controller).unwrap();
    }
    for number in 0..PARENTS {
        let parent = json!({
            "apiVersion": "standby.test/v1",
            "kind": "Widget",
            "metadata": {
                "name": format!("p{number}"),
                "namespace": "default",
                "labels": { "of": format!("c{}", number % CONTROLLERS) },
            },
        });
        server.apply(parent).unwrap();
    }
    let mut replica = Replica::start(&server);
    replica.until_warm(CONTROLLERS).await;
    sleep(Duration::from_secs(60)).await;
    let of_replica = |server: &SimulatedServer| {
        let mut requests = server.requests();
        requests.retain(|it| it.user == "replica" && !it.is_open());
        requests
    };
    let written: Vec<_> =
        of_replica(&server).into_iter().filter(|it| is_write(it.info.verb)).collect();
    assert!(written.is_empty(), "a standby writes nothing: {written:?}");
    assert_eq!(replica.calls.load(Ordering::Relaxed), 0, "and calls no hook");
    server.forget_requests();
    let before = Instant::now();

    server.apply(lease("")).unwrap();
    replica.status.wait_for(|status| status.leads).await.unwrap();

    let calls = Arc::clone(&replica.calls);
    while calls.load(Ordering::Relaxed) < PARENTS {
        assert!(before.elapsed() < Duration::from_secs(60), "{calls:?}");
        sleep(Duration::from_millis(10)).await;
    }
    let requests = of_replica(&server);
    let lists = requests.iter().filter(|it| it.info.verb == Verb::List).count();
    assert_eq!(lists, 0, "the caches were warm");
    assert!(requests.iter().any(|it| is_write(it.info.verb)));
    replica.stop.cancel();
    replica.tasks.join_next().await.unwrap().unwrap();
}
