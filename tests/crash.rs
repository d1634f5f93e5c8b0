//! The process is killed before and after any of its writes and restarted: nothing is lost, and
//! nothing happens twice.

mod simulated;

use std::{path::Path, process::Stdio};

use kube::Api;
use pilotlight::{
    meta::api::CompositeController,
    testing::{
        Action, ControlPlane, ControlPlaneOptions, Faults, Recording, Rule, Verb, proxy::Proxy,
    },
};
use serde_json::json;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::support::{HookServer, PATIENCE, Workload, counted, install_own_crds, until, workload};

/// Seed of the points that every test run tries.
const SEED: u64 = 4;
const SAMPLE: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// The request does not reach the server.
    Before,
    /// The server carries out the request, but the process gets no answer.
    After,
}

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
    let bench = Bench::start(&plane).await;
    let (calm, requests) = bench.recorded("calm", None).await;
    let (again, _) = bench.recorded("calm-again", None).await;
    let mask = workload::mask(&calm, &again);
    let both = |number| [(When::Before, number), (When::After, number)];
    let mut points: Vec<_> = (1..=requests).flat_map(both).collect();
    let all = points.len();
    fastrand::Rng::with_seed(SEED).shuffle(&mut points);
    points.truncate(most);

    let mut killed = 0;
    for (when, number) in &points {
        let name = format!("crash-{when:?}-{number}").to_lowercase();
        let fired = bench.faults.fired().len();
        let (crashed, _) = bench.recorded(&name, Some((*when, *number))).await;

        if let Err(differences) = mask.compare(&calm, &crashed) {
            panic!("killed {when:?} request {number}: the result differs:\n{differences}");
        }
        // A run may have fewer requests than the undisturbed one.
        killed += bench.faults.fired().len() - fired;
    }
    counted(format_args!(
        "crash points with SIGKILL: killed at {killed}, tried {} of {all}, seed {SEED}",
        points.len()
    ));
    assert!(killed > 0, "the workload changes something");
    plane.stop().await;
}

/// Proxy in front of a control plane, and a hook.
struct Bench<'plane> {
    plane: &'plane ControlPlane,
    hook: HookServer,
    faults: Faults,
    /// Kept while the bench exists.
    _proxy: Proxy,
    kubeconfig: tempfile::NamedTempFile,
}

impl<'plane> Bench<'plane> {
    async fn start(plane: &'plane ControlPlane) -> Self {
        let hook = HookServer::start().await;
        hook.answers(workload::sized);
        let faults = Faults::default();
        let proxy = Proxy::to_api_server(plane.config(), &faults).await.unwrap();
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), proxy.kubeconfig()).unwrap();
        Self { plane, hook, faults, _proxy: proxy, kubeconfig }
    }

    /// Runs the workload with at most one kill. Returns its recording and the number of its writes.
    async fn recorded(&self, name: &str, crash: Option<(When, usize)>) -> (Recording, usize) {
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
        self.faults.forget_seen();

        let mut process = run(self.kubeconfig.path());
        let killed = async {
            let Some((when, number)) = crash else { return std::future::pending().await };
            let action = match when {
                When::Before => Action::Hang,
                When::After => Action::Withhold,
            };
            let fired = self.faults.fired().len();
            let rule = about(Rule::new(action), &scope.namespace).nth(number);
            let rule = self.faults.add(rule);
            self.faults.wait_until(|faults| faults.fired().len() > fired).await;
            rule
        };
        let working = work.run();
        tokio::pin!(working);
        tokio::select! {
            () = &mut working => assert!(
                crash.is_none_or(|(_, number)| number > 1),
                "the first request is made in every run"
            ),
            rule = killed => {
                process.kill().await.unwrap();
                // A held request must end before the rule is removed, which would let it proceed.
                let gone = self.faults.wait_until(|faults| faults.open().is_empty());
                timeout(PATIENCE, gone).await.unwrap();
                self.faults.remove(rule);
                process = run(self.kubeconfig.path());
                working.await;
            }
        }
        self.faults.clear();

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
        let rule = about(Rule::new(Action::Hang), &scope.namespace);
        let requests = self.faults.seen().iter().filter(|info| rule.matches(info)).count();
        let begun = timeout(PATIENCE, self.faults.wait_until(|faults| faults.open().is_empty()));
        begun.await.unwrap();
        (recording, requests)
    }
}

/// Extends a rule to writes in this namespace. Events are excluded: no controller depends on them.
fn about(rule: Rule, namespace: &str) -> Rule {
    let rule = rule.namespace(namespace).path_not_contains("/events");
    [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete].into_iter().fold(rule, Rule::verb)
}

fn run(kubeconfig: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pilotlight"))
        .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
