//! Cluster of parts that the caller runs.

use tokio::time::timeout;

use super::*;
use crate::{
    discovery::{DiscoveryOptions, TypeRegistry},
    informer::{Ended, InformerKey, InformerOptions, InformerSet},
};

#[tokio::test(start_paused = true)]
async fn informers_of_a_cluster_of_parts_end_with_their_types() {
    let server = Server::new();
    let (types, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let informers = InformerSet::new(server.client(), InformerOptions::default());
    let (cluster, runnable) = Cluster::of(server.client(), types, informers, None);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { discovery.run(stopped).await });

    // The runnable does not stop the parts, so that it can be started again.
    for number in [1, 2] {
        let epoch = Epoch::new("cluster", number, Duration::ZERO);
        let run = tasks.spawn(runnable.start(epoch.clone()).map(|end| end.unwrap()));
        server.install(crd("Widget"), &["v1"]);
        settle().await;
        let served = cluster.types.served(&widgets()).unwrap();
        // A subscription outside of any controller's epoch.
        let key = InformerKey::new(served.identity.clone());
        let subscription = cluster.informers.subscribe(&served, key);
        subscription.drained().await;
        assert_eq!(server.watches(WIDGETS), 1);

        server.uninstall("widgets");
        let ended = timeout(Duration::from_secs(3600), subscription.ended()).await;

        assert_eq!(ended, Ok(Ended::TypeGone));
        assert_eq!(server.watches(WIDGETS), 0);
        epoch.stop(StopReason::Cancelled);
        settle().await;
        assert!(run.is_finished());
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn cluster_is_running_once_discovery_has_answered() {
    let harness = Harness::new();

    let mut watch = harness.manager.watch();
    let runs = |snapshot: &Arc<Snapshot>| {
        snapshot.get(&"cluster".into()).is_some_and(|it| it.state == ControllerState::Running)
    };
    drop(watch.wait_for(runs).await.unwrap());

    let health = harness.cluster.types.health();
    assert!(health.is_current(), "{health:?}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_with_partial_discovery_delays_other_runnables_by_five_seconds() {
    let harness = Harness::new();
    harness.server.forbid("/apis");
    harness.install("Widget");
    let began = Instant::now();

    harness.add(builder().for_type(widgets()).conditional()).await;
    let before = harness.status();
    assert_eq!((before.state, before.reason.as_str()), (ControllerState::Waiting, "NotStarted"));
    harness.state(ControllerState::Running).await;

    assert!((5..6).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(harness.cluster.types.health().discovery.error.is_some());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn start_that_does_not_finish_says_why_once_the_sync_timeout_is_over() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.forbid("widgets.example.com");
    harness.add(builder().for_type(widgets()).conditional()).await;
    let soon = harness.until(|status| status.reason == "Forbidden").await;
    assert!(soon.report.late.is_empty());

    let late = harness.until(|status| status.reason == "SyncTimeout").await;
    assert_eq!((late.state, late.epoch), (ControllerState::Starting, 1));
    assert!(late.message.contains("cannot list resource"), "{}", late.message);
    assert_eq!(late.report.late.len(), 1);

    harness.server.allow("widgets.example.com");
    let running = harness.state(ControllerState::Running).await;
    assert_eq!((running.epoch, running.report.late.len()), (1, 0));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_of_a_cluster_that_nobody_runs_says_what_to_do() {
    let server = Server::new();
    let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let mut manager = Manager::new(ManagerOptions::default());
    let described = || builder().for_type(widgets()).conditional();
    let reconcile = |_: Request, _: Context| async { Ok(Outcome::Done) };
    described().build(&cluster, reconcile).unwrap().add_to(&mut manager).unwrap();
    let again = described().build(&cluster, reconcile).unwrap().add_to(&mut manager);
    assert!(again.unwrap_err().to_string().contains(NAME), "a name is taken once");
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { manager.run(stopped).await.unwrap() });
    settle().await;

    let status = handle.status_of(NAME).unwrap();
    assert_eq!(status.state, ControllerState::Waiting);
    let message = &status.message;
    assert!(message.contains("add the runnable of its cluster to a manager"), "{message}");

    let cluster = Arc::new(runnable);
    handle.add_runnable("cluster", cluster, RunnableOptions::fail_fast()).await.unwrap();
    settle().await;
    let status = handle.status_of(NAME).unwrap();
    assert_eq!(status.reason, "TypeAbsent", "{}", status.message);
    assert!(!status.message.contains("add the runnable"), "{}", status.message);
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}
