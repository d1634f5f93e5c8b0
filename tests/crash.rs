//! The process is killed before and after any of its writes and restarted: nothing is lost, and
//! nothing happens twice.

mod simulated;

use kube::Api;
use pilotlight::{
    meta::api::CompositeController,
    testing::{ControlPlane, ControlPlaneOptions, Recording},
};
use serde_json::json;

use crate::support::{
    HookServer, KillSide, Killed, Workload, counted, install_own_crds, until, workload,
};

/// Seed of the points that every test run tries.
const SEED: u64 = 4;
const SAMPLE: usize = 6;

#[tokio::test]
async fn a_crash_at_a_request_loses_nothing() {
    crashes_lose_nothing(SAMPLE).await;
}

#[tokio::test]
#[ignore = "takes minutes: run it by name"]
async fn a_crash_at_every_request_loses_nothing() {
    crashes_lose_nothing(usize::MAX).await;
}

async fn crashes_lose_nothing(most: usize) {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    install_own_crds(&plane).await;
    let mut harness = CrashHarness::start(&plane).await;
    let (calm, requests) = harness.recorded("calm", None).await;
    let (again, _) = harness.recorded("calm-again", None).await;
    let mask = workload::mask(&calm, &again);
    let both = |number| [(KillSide::Before, number), (KillSide::After, number)];
    let mut points: Vec<_> = (1..=requests).flat_map(both).collect();
    let all = points.len();
    fastrand::Rng::with_seed(SEED).shuffle(&mut points);
    points.truncate(most);

    let mut killed = 0;
    for (when, number) in &points {
        let name = format!("crash-{when:?}-{number}").to_lowercase();
        let fired = harness.binary.faults.fired().len();
        let (crashed, _) = harness.recorded(&name, Some((*when, *number))).await;

        if let Err(differences) = mask.compare(&calm, &crashed) {
            panic!("killed {when:?} request {number}: the result differs:\n{differences}");
        }
        // A run may have fewer requests than the undisturbed one.
        killed += harness.binary.faults.fired().len() - fired;
    }
    counted(format_args!(
        "crash points with SIGKILL: killed at {killed}, tried {} of {all}, seed {SEED}",
        points.len()
    ));
    assert!(killed > 0, "the workload changes something");
    plane.stop().await;
}

/// Binary that is killed, and its hook.
struct CrashHarness<'plane> {
    plane: &'plane ControlPlane,
    hook: HookServer,
    binary: Killed,
}

impl<'plane> CrashHarness<'plane> {
    async fn start(plane: &'plane ControlPlane) -> Self {
        let hook = HookServer::start().await;
        hook.answers(workload::sized);
        Self { plane, hook, binary: Killed::new(plane, Vec::new()).await }
    }

    /// Runs the workload with at most one kill. Returns its recording and the number of its writes.
    async fn recorded(
        &mut self,
        name: &str,
        crash: Option<(KillSide, usize)>,
    ) -> (Recording, usize) {
        let scope = self.plane.scope(name).await.unwrap();
        let crd = workload::crd(&scope.group);
        scope.install_crd(&crd).await.unwrap();
        scope.wait_served(&crd, "v1").await.unwrap();
        let controllers = Api::<CompositeController>::all(scope.client());
        let controller = serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": { "name": scope.namespace },
            "spec": workload::spec(&crd, &self.hook.url),
        }))
        .unwrap();
        controllers.create(&Default::default(), &controller).await.unwrap();
        let work = Workload::new(scope.client(), &scope.namespace, &crd);
        let recorder = work.recorder().await;
        self.binary.count_in(&scope.namespace);

        let mut process = self.binary.during(crash, work.run()).await;

        controllers.delete(&scope.namespace, &Default::default()).await.unwrap();
        until("the controller is gone", async || {
            match controllers.get_opt(&scope.namespace).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        process.kill().await.unwrap();
        let recording = recorder.finish().await.unwrap();
        (recording, self.binary.writes().await)
    }
}
