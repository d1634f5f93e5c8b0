//! Server of a replica that stands by in an election.

use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use super::*;
use crate::{
    controller::{Cluster, ClusterOptions},
    manager::{ControllerState, Election, ElectionOptions, Epoch, RuntimeClock},
    testing::simulated::{Delays, SimulatedOptions, SimulatedServer},
};

/// Lease that a replica holds for an hour; the empty holder frees it.
fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "lease", "namespace": "default" },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 3600 },
    })
}

#[tokio::test(start_paused = true)]
async fn closure_waits_on_a_standby_while_its_cluster_and_its_server_run() {
    let options = SimulatedOptions { delays: Delays::none(), ..SimulatedOptions::default() };
    let simulated = SimulatedServer::with(options);
    simulated.apply(lease("another")).unwrap();
    let options = ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
    let client = simulated.client();
    let election = Election::new(options, move || Ok(client)).unwrap();
    // Paused, as the rest of the test.
    let election = election.by(Arc::new(RuntimeClock::new()));
    let mut manager = Manager::new(ManagerOptions::default()).elect(election);
    let (_cluster, runnable) = Cluster::new(simulated.client(), ClusterOptions::default());
    runnable.add_to(&mut manager, "cluster").unwrap();
    bind(Router::new()).0.add_to(&mut manager, "server").unwrap();
    let closure = |epoch: Epoch| async move {
        epoch.stopping().await;
        Ok(())
    };
    manager.add_runnable("closure", Arc::new(closure), RunnableOptions::default()).unwrap();
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let mut runs = JoinSet::new();
    let stopped = stop.clone();
    runs.spawn(async move { manager.run(stopped).await });
    sleep(Duration::from_secs(600)).await;

    for name in ["cluster", "server"] {
        let status = handle.status_of(name).unwrap();
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1), "{name}");
    }
    let closure = handle.status_of("closure").unwrap();
    assert!(closure.reason == "Standby" && closure.epoch == 0, "{closure:?}");

    simulated.apply(lease("")).unwrap();
    sleep(Duration::from_secs(60)).await;
    let closure = handle.status_of("closure").unwrap();
    assert_eq!((closure.state, closure.epoch), (ControllerState::Running, 1));
    stop.cancel();
    runs.join_next().await.unwrap().unwrap().unwrap();
}
