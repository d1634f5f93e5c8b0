//! Every crash point, on the simulated server. A "process" is a manager with all its tasks; at the
//! moment of its crash it loses its connection to the server.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Method, Request};
use kube::{Client, client::Body};
use pilotlight::{
    meta::ApplyStrategy,
    testing::{LeakOracle, Recording, simulated::SimulatedServer},
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::support::{Deletions, KillSide, Process, Workload, counted, workload};

/// Seed of all random values except the crash point.
const SEED: u64 = 4;

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_request_loses_nothing_on_the_simulated_server() {
    any_crash_loses_nothing(ApplyStrategy::DynamicApply).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_request_of_server_side_apply_loses_nothing_on_the_simulated_server() {
    any_crash_loses_nothing(ApplyStrategy::ServerSideApply).await;
}

async fn any_crash_loses_nothing(strategy: ApplyStrategy) {
    let expected = recorded(SEED, None, strategy).await;
    // The same workload with other uids.
    let again = recorded(SEED + 1, None, strategy).await;
    assert!(expected.deletions > 0, "something is deleted");
    let mask = workload::mask(&expected.recording, &again.recording);
    let both = |number| [(KillSide::Before, number), (KillSide::After, number)];
    let points: Vec<_> = (1..=expected.requests).flat_map(both).collect();

    let mut killed = 0;
    for (when, number) in &points {
        let crashed = recorded(SEED, Some((*when, *number)), strategy).await;

        killed += usize::from(crashed.crashed);
        if let Err(differences) = mask.compare(&expected.recording, &crashed.recording) {
            panic!("killed {when:?} request {number}: the result differs:\n{differences}");
        }
    }
    counted(format_args!(
        "crash points of {strategy} on the simulated server: killed at {killed} of {}, before and after each of {} \
         mutating requests",
        points.len(),
        expected.requests
    ));
    assert_eq!(killed, points.len(), "every point is reached");
    assert!(expected.requests >= 30, "the workload changes a lot: {}", expected.requests);
}

struct CrashOutcome {
    recording: Recording,
    /// Number of the first process's writes.
    requests: usize,
    crashed: bool,
    /// Number of deletions by all processes.
    deletions: usize,
}

/// Runs the workload with at most one crash.
async fn recorded(
    seed: u64,
    crash: Option<(KillSide, usize)>,
    strategy: ApplyStrategy,
) -> CrashOutcome {
    fastrand::seed(seed);
    let (server, work) = Workload::simulated(seed).await;
    let recorder = work.recorder().await;
    let tasks = LeakOracle::new().tasks("all processes", &Handle::current());
    let baseline = tasks.baseline().await;

    let wire = Arc::new(Wire { crash, ..Wire::default() });
    let mut process = Process::with(wire.client(&server), strategy);
    let working = async {
        work.run().await;
        work.delete("a").await;
    };
    tokio::pin!(working);
    tokio::select! {
        biased;
        () = wire.dead.cancelled() => {
            process.kill().await;
            tasks.assert_baseline(&baseline).await;
            let again = Wire { deletions: wire.deletions.clone(), ..Wire::default() };
            process = Process::with(Arc::new(again).client(&server), strategy);
            working.await;
        }
        () = &mut working => {}
    }
    process.end().await;
    tasks.assert_baseline(&baseline).await;
    CrashOutcome {
        recording: recorder.finish().await.unwrap(),
        requests: wire.changes.load(Ordering::SeqCst),
        crashed: wire.dead.is_cancelled(),
        deletions: wire.deletions.assert_guarded(),
    }
}

/// Connection of a process to the server; counts its writes and cuts it off at the crash.
#[derive(Debug, Default)]
struct Wire {
    crash: Option<(KillSide, usize)>,
    changes: AtomicUsize,
    dead: CancellationToken,
    deletions: Deletions,
}

impl Wire {
    fn client(self: &Arc<Self>, server: &SimulatedServer) -> Client {
        let (service, wire) = (server.service("pilot"), Arc::clone(self));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (mut service, wire) = (service.clone(), Arc::clone(&wire));
            async move {
                let crash = wire.crash_at(&request);
                let request = wire.deletions.note(request).await;
                if crash == Some(KillSide::Before) {
                    wire.dead.cancel();
                }
                if wire.dead.is_cancelled() {
                    return pending().await;
                }
                let answer = service.call(request).await;
                if crash == Some(KillSide::After) {
                    wire.dead.cancel();
                }
                // A crashed process gets no response.
                if wire.dead.is_cancelled() {
                    return pending().await;
                }
                answer
            }
        });
        Client::new(service, "default")
    }

    /// Counts a write and returns on which side of it the process crashes, if it does.
    fn crash_at(&self, request: &Request<Body>) -> Option<KillSide> {
        if request.method() == Method::GET || self.dead.is_cancelled() {
            return None;
        }
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.crash.filter(|(_, at)| *at == number).map(|(when, _)| when)
    }
}
