//! Controllers of several users at once, on real threads.

use std::collections::BTreeMap;

use super::*;
use crate::{
    informer::InformerOptions,
    manager::{metrics_text, prometheus_client::registry::Registry},
    testing::LeakOracle,
};

const USERS: usize = 4;
const CONTROLLERS: usize = 250;

/// Adds controllers, gives them an input, awaits and watches them, and removes them.
async fn use_controllers(
    cluster: Cluster,
    manager: ManagerHandle,
    log: Log,
    user: usize,
    count: usize,
) {
    for number in 0..count {
        let name = format!("user-{user}-{number}");
        let reconciler = LoggingReconciler { log: Arc::clone(&log) };
        let described = Controller::builder(name.as_str()).for_type(widgets()).conditional();
        let controller = described.build(&cluster, reconciler).unwrap();
        let inputs = controller.inputs();
        controller.add_to_running(&manager).await.unwrap();
        let watched = |input: Builder| input.watches_type(parts(), Handler::Object).optional();
        match number % 4 {
            0 => {}
            1 => inputs.add("parts", watched).unwrap().started().await.unwrap(),
            2 => {
                inputs.add("parts", watched).unwrap().started().await.unwrap();
                inputs.replace("parts", watched).unwrap().started().await.unwrap();
                assert!(inputs.remove("parts").await);
            }
            _ => {
                let mut snapshots = manager.watch();
                let key = name.as_str().into();
                let runs = |all: &Arc<Snapshot>| {
                    all.get(&key).is_some_and(|it| it.state == ControllerState::Running)
                };
                drop(snapshots.wait_for(runs).await.unwrap());
                manager.restart(name.as_str()).await.unwrap();
            }
        }
        manager.remove(name.as_str()).await;
        assert!(manager.status_of(name.as_str()).is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_that_several_users_add_and_remove_at_once_leave_nothing() {
    let server = Server::new();
    for kind in ["Widget", "Part"] {
        server.install(crd(kind), &["v1"]);
    }
    server.apply(widget("a", "a"));
    let informers = InformerOptions { linger: Duration::ZERO, ..InformerOptions::default() };
    let options = ClusterOptions { informers, ..ClusterOptions::default() };
    let (cluster, runnable) = Cluster::new(server.client(), options);
    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster").unwrap();
    let (handle, stop, log) = (manager.handle(), CancellationToken::new(), Log::default());
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { manager.run(stopped).await.unwrap() });
    cluster.types.synced().await;
    let leaks = {
        let (informers, status, of) = (cluster.informers.clone(), handle.clone(), handle.clone());
        let counts = move || {
            let counts =
                [("informers", informers.status().len()), ("runnables", status.status().len())];
            BTreeMap::from(counts.map(|(what, count)| (what.to_owned(), count as u64)))
        };
        let scrape = move || {
            let mut registry = Registry::default();
            of.register_metrics(&mut registry);
            metrics_text(&registry).unwrap()
        };
        LeakOracle::new()
            .tasks("Pilotlight", &tokio::runtime::Handle::current())
            .requests(server.faults())
            .probe("counts", counts)
            .series(scrape, &["workqueue_depth", "pilotlight_informer_watches"])
    };
    // Some series exist once an informer has run.
    use_controllers(cluster.clone(), handle.clone(), Arc::clone(&log), USERS, 2).await;
    let before = leaks.baseline().await;

    let mut users = JoinSet::new();
    for user in 0..USERS {
        let (cluster, handle, log) = (cluster.clone(), handle.clone(), Arc::clone(&log));
        users.spawn(use_controllers(cluster, handle, log, user, CONTROLLERS));
    }
    users.join_all().await;

    assert!(!log.lock().unwrap().is_empty(), "controllers have reconciled");
    leaks.assert_baseline(&before).await;
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}
