//! A manager with an embedded controller on the simulated server, under paused time.

use std::{collections::BTreeMap, sync::Arc};

use pilotlight::{
    controller::{Cluster, ClusterOptions, Controller},
    manager::{
        ControllerName, ControllerState, DoneReason, Manager, ManagerHandle, ManagerOptions,
        RunnableOptions, RunnableStatus,
    },
    testing::{CrdBuilder, simulated::SimulatedServer},
};
use serde_json::json;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, RecordingReconciler, type_of};

async fn until(
    manager: &ManagerHandle,
    what: &str,
    wanted: impl Fn(&RunnableStatus) -> bool,
) -> Arc<RunnableStatus> {
    let mut snapshots = manager.watch();
    let name = ControllerName::from("story");
    let seen = async {
        loop {
            let status = snapshots.borrow_and_update().get(&name).cloned();
            if let Some(status) = status.filter(|status| wanted(status)) {
                return status;
            }
            snapshots.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}

/// Open watches when no other type is required: those of CRDs and APIServices.
fn watching_types() -> BTreeMap<String, usize> {
    let types =
        ["apiservices.apiregistration.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"];
    types.map(|name| (name.to_owned(), 1)).into()
}

#[tokio::test(start_paused = true)]
async fn a_controller_lives_and_dies_with_its_type_on_the_simulated_server() {
    let server = SimulatedServer::new();
    let crd = CrdBuilder::new("story.test", "Widget");
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let controller = Controller::builder("story")
        .for_type(recorder.type_ref().clone())
        .conditional()
        .build(&cluster, recorder.clone())
        .unwrap();
    let mut manager = Manager::new(ManagerOptions::default());
    manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
    manager.add("story", Arc::new(controller), RunnableOptions::default()).unwrap();
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    let stopping = stop.clone();
    tasks.spawn(async move { manager.run(stopping).await.unwrap() });

    for round in 1..=2 {
        let waiting = until(&handle, "waits", |it| {
            it.state == ControllerState::Waiting && it.reason == "TypeAbsent"
        });
        waiting.await;
        assert_eq!(server.open_watches(), watching_types(), "nothing of the type");
        server.install(&crd.build()).unwrap();
        let running =
            until(&handle, "runs", |it| it.state == ControllerState::Running && it.epoch == round);
        running.await;
        let gear = json!({
            "apiVersion": "story.test/v1", "kind": "Widget", "metadata": { "name": "gear" },
            "spec": { "size": round } });
        let created = server.apply(gear).unwrap();
        let seen = recorder.saw("gear", round).await;
        assert_eq!(seen.uid.as_deref(), created["metadata"]["uid"].as_str());
        // The informer lists first, and then watches.
        let watched =
            |server: &SimulatedServer| server.open_watches().get("widgets.story.test") == Some(&1);
        timeout(PATIENCE, server.wait_until(watched)).await.unwrap();

        server.uninstall(&crd.name()).unwrap();

        let done = until(&handle, "is done", |it| {
            it.last_done.as_ref().is_some_and(|done| done.epoch == round)
        });
        assert_eq!(done.await.last_done.as_ref().unwrap().reason, DoneReason::TypeGone);
        assert_eq!(server.open_watches(), watching_types(), "nothing is open at done");
    }
    stop.cancel();
    timeout(PATIENCE, tasks.join_next()).await.unwrap().unwrap().unwrap();
    drop(cluster);
    timeout(PATIENCE, server.wait_until(|server| server.open_watches().is_empty())).await.unwrap();
}
