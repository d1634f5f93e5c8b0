//! Ends of epochs: after done, no task of the epoch sends a request.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, WatchParams},
};
use pilotlight::{
    discovery::TypeState,
    manager::{
        ConditionalRunnable, ControllerState, DoneReason, Epoch, Readiness, RestartPolicy,
        RunResult, Runnable, RunnableOptions, always,
    },
};
use serde_json::json;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{Harness, PATIENCE, about, eventually, type_of};

/// Run with detached tasks: they write without a pause, hold a watch open, and ignore every stop.
struct Detached {
    client: Client,
    namespace: String,
    resource: kube::api::ApiResource,
    tasks: Mutex<JoinSet<()>>,
    counts: Arc<Counts>,
    end: Arc<Notify>,
}

#[derive(Default)]
struct Counts {
    written: AtomicUsize,
    refused: AtomicUsize,
    events: AtomicUsize,
    cut: AtomicUsize,
}

impl Runnable for Detached {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let client = epoch.client(&self.client);
        let api: Api<DynamicObject> = Api::namespaced_with(client, &self.namespace, &self.resource);
        let (watched, counts) = (api.clone(), Arc::clone(&self.counts));
        let mut tasks = self.tasks.lock().unwrap();
        tasks.spawn(async move {
            for size in 0.. {
                let patch = Patch::Merge(json!({ "spec": { "size": size } }));
                match api.patch("gear", &PatchParams::default(), &patch).await {
                    Ok(_) => counts.written.fetch_add(1, Ordering::SeqCst),
                    Err(_) => {
                        sleep(Duration::from_millis(1)).await;
                        counts.refused.fetch_add(1, Ordering::SeqCst)
                    }
                };
            }
        });
        let counts = Arc::clone(&self.counts);
        tasks.spawn(async move {
            let mut watch = watched.watch(&WatchParams::default(), "0").await.unwrap().boxed();
            while let Some(Ok(_)) = watch.next().await {
                counts.events.fetch_add(1, Ordering::SeqCst);
            }
            counts.cut.fetch_add(1, Ordering::SeqCst);
        });
        let end = Arc::clone(&self.end);
        Box::pin(async move {
            end.notified().await;
            Ok(())
        })
    }
}

impl ConditionalRunnable for Detached {
    fn ready(&self) -> Readiness {
        always()
    }
}

#[tokio::test]
async fn nothing_of_a_detached_task_reaches_the_server_after_done() {
    let harness = Harness::start("epochs-detached").await;
    let crd = harness.widgets();
    harness.scope.install_crd(&crd).await.unwrap();
    harness
        .type_state(&type_of(&crd, "v1"), "is served", |state| *state == TypeState::Served)
        .await;
    harness.create(&crd, "gear", 0).await;
    harness.warm_up().await;
    let (counts, end) = (Arc::<Counts>::default(), Arc::new(Notify::new()));
    let detached = Detached {
        client: harness.cluster.unfenced_client().clone(),
        namespace: harness.scope.namespace.clone(),
        resource: crd.api_resource("v1"),
        tasks: Mutex::default(),
        counts: Arc::clone(&counts),
        end: Arc::clone(&end),
    };
    let grace = Duration::from_millis(500);
    let options =
        RunnableOptions { grace, restart: RestartPolicy::Never, ..RunnableOptions::default() };
    harness.manager.add("detached", Arc::new(detached), options).await.unwrap();
    let at_least = async |what: &str, count: &AtomicUsize, least: usize| {
        eventually(what, || match count.load(Ordering::SeqCst) {
            count if count >= least => Ok(()),
            count => Err(format!("{count}")),
        })
        .await;
    };
    at_least("the task writes", &counts.written, 50).await;
    at_least("the task watches", &counts.events, 10).await;

    end.notify_one();
    assert_eq!(harness.done("detached", 1).await, DoneReason::Completed);
    let since = harness.server.clock();
    let is_about = about(&crd);
    let mut open = harness.faults.open();
    open.retain(|open| is_about(&open.info));
    assert!(open.is_empty(), "requests are under way after done: {open:?}");
    let stopped = harness.state("detached", ControllerState::Stopped).await;
    let unknown = stopped.last_done.as_ref().unwrap().unknown_requests;

    // The task retries after a refusal.
    let refused = counts.refused.load(Ordering::SeqCst);
    at_least("the task is refused", &counts.refused, refused + 200).await;
    at_least("its watch is cut", &counts.cut, 1).await;
    let events = harness.requests(&crd, harness.begin).await;
    let patches = events.iter().filter(|event| event.verb == "patch");
    let (before, after): (Vec<_>, Vec<_>) = patches.partition(|event| event.received.0 <= since);
    let written = counts.written.load(Ordering::SeqCst);
    assert!(before.len() + after.len() <= written + unknown, "{} patches", before.len());
    assert!(before.len() >= written && unknown <= 1, "{} of {written}, {unknown}", before.len());
    assert!(after.len() <= unknown, "the server got requests after done: {after:#?}");
    assert_eq!(harness.open_watches(&crd).await, 0, "the server has a watch open after done");
    timeout(PATIENCE, harness.end()).await.unwrap().unwrap();
}

/// Run with a task that panics.
#[cfg(feature = "meta")]
struct Panics;

#[cfg(feature = "meta")]
impl Runnable for Panics {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(async move {
            epoch.spawn(async { panic!("as the test wants it") });
            epoch.stopping().await;
            Ok(())
        })
    }
}

#[cfg(feature = "meta")]
impl ConditionalRunnable for Panics {
    fn ready(&self) -> Readiness {
        always()
    }
}

#[cfg(feature = "meta")]
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_task_is_logged_with_its_controller_and_epoch() {
    use pilotlight::testing::simulated::SimulatedServer;

    use crate::support::{Logs, Server};

    let logs = Logs::capture();
    let server = Server::Simulated(SimulatedServer::new());
    let harness = Harness::at(server, "epochs-panic", Default::default()).await;

    harness.add("panics", Arc::new(Panics)).await;
    harness.state("panics", ControllerState::Running).await;
    harness.manager.remove("panics").await;

    let panicked: Vec<_> =
        logs.troubles().into_iter().filter(|line| line.message == "task panicked").collect();
    let [line] = &panicked[..] else { panic!("{panicked:?}") };
    assert_eq!((line.field("controller"), line.field("epoch")), ("panics", "1"));
    assert_eq!((line.level, line.field("error")), (tracing::Level::ERROR, "as the test wants it"));
    harness.end().await.unwrap();
}
