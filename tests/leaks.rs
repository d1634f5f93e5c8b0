//! The leak oracle names remaining tasks and timers, each with its owner and its growth.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::Client;
use pilotlight::{
    controller::{Context, Controller, Outcome, ReconcileError, Reconciler, Request},
    kind::TypeRef,
    manager::{
        ConditionalRunnable, ControllerState, Epoch, Readiness, RunResult, Runnable,
        RunnableOptions, always,
    },
    testing::{LeakOracle, Measure, simulated::SimulatedServer},
};
use tokio::sync::{Notify, mpsc};

use crate::support::{Harness, Server, type_of};

/// Patience of the oracle; longer than any task that ends by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs that leak a resource of their epoch, or fail.
enum Leaky {
    /// Leaves a task that ends on request, or when the grace is over.
    Task(Arc<Notify>),
    /// Sends its client to a receiver that keeps it.
    Client(Client, mpsc::Sender<Client>),
    Fails,
}

impl Runnable for Leaky {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        match self {
            Self::Task(release) => {
                let release = Arc::clone(release);
                epoch.spawn(async move { release.notified().await });
            }
            Self::Client(client, escaped) => escaped.try_send(epoch.client(client)).unwrap(),
            Self::Fails => return Box::pin(async { Err("as the test wants it".into()) }),
        }
        Box::pin(async move {
            epoch.stopping().await;
            Ok(())
        })
    }
}

impl ConditionalRunnable for Leaky {
    fn ready(&self) -> Readiness {
        always()
    }
}

/// Requeues each object after a very long time.
#[derive(Clone)]
struct RequeuesLate;

impl Reconciler for RequeuesLate {
    async fn reconcile(&self, _: Request, _: Context) -> Result<Outcome, ReconcileError> {
        Ok(Outcome::RequeueAfter(Duration::from_secs(300 * 24 * 3600)))
    }
}

async fn harness(name: &str) -> (Harness<'static>, LeakOracle, Measure) {
    let harness =
        Harness::at(Server::Simulated(SimulatedServer::new()), name, Default::default()).await;
    let leaks = harness.leaks().patience(PATIENCE);
    let baseline = leaks.baseline().await;
    (harness, leaks, baseline)
}

/// Asserts that the oracle reports all these lines: kind, owner and growth.
async fn assert_grown(leaks: &LeakOracle, baseline: &Measure, expected: &[&str]) {
    let grown = leaks.compare(baseline).await.unwrap_err().to_string();
    for line in expected {
        assert!(grown.contains(line), "{line} is not in\n{grown}");
    }
}

async fn nothing_is_left(leaks: LeakOracle, baseline: &Measure) {
    // A state keeps its series once it was seen.
    let leaks = leaks.expect_more("series", "pilotlight_types{");
    leaks.expect_more("series", "pilotlight_informers{").assert_baseline(baseline).await;
}

async fn controller(harness: &Harness<'_>, name: &str, widgets: TypeRef) {
    let controller = Controller::builder(name).for_type(widgets).conditional();
    harness.add(name, Arc::new(controller.build(&harness.cluster, RequeuesLate).unwrap())).await;
}

#[tokio::test(start_paused = true)]
async fn leaked_task_is_reported_by_its_name() {
    let (harness, leaks, baseline) = harness("leaks-task").await;
    let release = Arc::new(Notify::new());
    // Longer than the oracle's patience.
    let options = RunnableOptions { grace: PATIENCE * 100, ..RunnableOptions::default() };
    let leaky = Arc::new(Leaky::Task(Arc::clone(&release)));
    harness.manager.add("leaky", leaky, options).await.unwrap();
    harness.state("leaky", ControllerState::Running).await;
    let manager = harness.manager.clone();

    let removed = async { manager.remove("leaky").await };
    let reported = async {
        harness.state("leaky", ControllerState::Stopping).await;
        let lines = [
            "named tasks of pilotlight_controller_tasks{controller=\"leaky\",kind=\"epoch\"}: 1, 0",
            "named tasks of pilotlight_controller_tasks{controller=\"leaky\",kind=\"run\"}: 1, 0",
            "\n  tasks of Pilotlight: ",
        ];
        assert_grown(&leaks, &baseline, &lines).await;
        release.notify_one();
    };

    tokio::join!(removed, reported);
    leaks.assert_baseline(&baseline).await;
}

#[tokio::test(start_paused = true)]
async fn leaked_client_is_reported_with_its_controller() {
    let (harness, leaks, baseline) = harness("leaks-client").await;
    let (escaped, mut kept) = mpsc::channel(1);
    harness
        .add("leaky", Arc::new(Leaky::Client(harness.cluster.unfenced_client().clone(), escaped)))
        .await;
    harness.state("leaky", ControllerState::Running).await;

    harness.manager.remove("leaky").await;

    let line =
        "named tasks of pilotlight_controller_tasks{controller=\"leaky\",kind=\"client\"}: 1, 0";
    assert_grown(&leaks, &baseline, &[line]).await;
    drop(kept.recv().await);
    leaks.assert_baseline(&baseline).await;
}

#[tokio::test(start_paused = true)]
async fn leaked_request_is_reported_with_its_controller() {
    let (harness, leaks, baseline) = harness("leaks-queue").await;
    let crd = harness.widgets();
    harness.scope.install_crd(&crd).await.unwrap();
    controller(&harness, "patient", type_of(&crd, "v1")).await;
    harness.state("patient", ControllerState::Running).await;
    harness.create(&crd, "one", 1).await;
    harness.create(&crd, "other", 1).await;

    let line = "timers of pilotlight_queue_waiting{name=\"patient\",controller=\"patient\"}: 2, 0";
    assert_grown(&leaks, &baseline, &[line]).await;

    harness.scope.delete_crd(&crd).await.unwrap();
    harness.manager.remove("patient").await;
    nothing_is_left(leaks, &baseline).await;
}

#[tokio::test(start_paused = true)]
async fn leaked_timer_is_reported_with_its_owner() {
    let (harness, leaks, baseline) = harness("leaks-timers").await;
    let crd = harness.widgets();
    harness.scope.install_crd(&crd).await.unwrap();
    controller(&harness, "lingers", type_of(&crd, "v1")).await;
    harness.state("lingers", ControllerState::Running).await;
    harness.manager.remove("lingers").await;
    harness.add("fails", Arc::new(Leaky::Fails)).await;
    harness.state("fails", ControllerState::BackingOff).await;

    let impatient = leaks.patience(Duration::ZERO);
    let linger = format!(
        "timers of pilotlight_informer_timers{{group=\"{}\",resource=\"widgets\",kind=\"linger\"}}: 1, 0",
        harness.scope.group
    );
    let wake = "timers of pilotlight_controller_timers{controller=\"fails\",kind=\"wake\"}: 1, 0";
    assert_grown(&impatient, &baseline, &[&linger, wake]).await;

    harness.manager.remove("fails").await;
    nothing_is_left(impatient.patience(PATIENCE), &baseline).await;
}
