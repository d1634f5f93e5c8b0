//! The real process gets SIGTERM in the middle of its work.

use std::{process::Stdio, time::Duration};

use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use pilotlight::{
    meta::{self, api::CompositeController},
    testing::{
        Action, ControlPlane, CrdBuilder, Faults, Rule, Verb, proxy::Proxy,
        simulated::SimulatedServer,
    },
};
use serde_json::json;
use tokio::{
    process::Command,
    time::{Instant, interval, sleep, timeout},
};

use crate::support::{HookServer, PATIENCE, install_own_crds, until, workload};

const PARENTS: usize = 60;
/// Grace of a reconcile, and a margin for the machine.
const GRACE: Duration = Duration::from_secs(12);

/// Label that selects the objects of this test's process.
const LABEL: &str = "pilotlight.test/scope";

#[tokio::test]
async fn a_process_that_is_stopped_under_load_writes_nothing_afterwards() {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let scope = plane.scope("termination").await.unwrap();
    let hook = HookServer::start().await;
    hook.answers(workload::sized);
    let faults = Faults::default();
    let proxy = Proxy::to_api_server(plane.config(), &faults).await.unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kubeconfig.path(), proxy.kubeconfig()).unwrap();
    let crd = workload::crd(&scope.group);
    scope.install_crd(&crd).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let controllers = Api::<CompositeController>::all(scope.client());
    let controller = serde_json::from_value(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": scope.namespace, "labels": { LABEL: scope.namespace } },
        "spec": workload::spec(&crd, &hook.url),
    }));
    controllers.create(&PostParams::default(), &controller.unwrap()).await.unwrap();
    let parents = scope.api(&crd, "v1");
    for number in 0..PARENTS {
        let object = crd.object(&format!("p{number}"), json!({ "size": 5, "text": "one" }));
        parents.create(&PostParams::default(), &object).await.unwrap();
    }
    let mut process = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
        .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(kubeconfig.path())
        // Excludes the controllers of other tests.
        .arg(format!("--target-label-selector={LABEL}={}", scope.namespace))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let created = |faults: &Faults| {
        let seen = faults.seen();
        let of_children = |it: &&_| {
            let info: &pilotlight::testing::RequestInfo = it;
            info.verb == Verb::Create && info.resource == "configmaps"
        };
        seen.iter().filter(of_children).count()
    };
    timeout(PATIENCE, faults.wait_until(|faults| created(faults) >= 10)).await.unwrap();

    let begin = Instant::now();
    let id = process.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    let end = timeout(PATIENCE, process.wait()).await.unwrap().unwrap();

    assert_eq!(end.code(), Some(0), "{end:?}");
    assert!(begin.elapsed() < GRACE, "{:?}", begin.elapsed());
    until("no request is sent any more", async || match faults.open().len() {
        0 => Ok(()),
        open => Err(format!("{open} requests")),
    })
    .await;
    let seen = faults.seen().len();
    let done = created(&faults);
    assert!(done < PARENTS * 5, "the work was not finished yet: {done}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(faults.seen().len(), seen, "no request is sent afterwards");
    controllers.delete(&scope.namespace, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_second_signal_ends_the_process_in_the_middle_of_its_drain() {
    let server = SimulatedServer::new();
    let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let faults = Faults::default();
    let proxy = Proxy::to_api_server(socket.config(), &faults).await.unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kubeconfig.path(), proxy.kubeconfig()).unwrap();
    let crd = CrdBuilder::new("drain.test", "Widget");
    for crd in meta::crds().iter().chain([&crd.build()]) {
        server.install(crd).unwrap();
        server.wait_established(crd.metadata.name.as_deref().unwrap()).await;
    }
    let hook = HookServer::start().await;
    hook.answers(workload::sized);
    let controller = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": "drained" },
        "spec": workload::spec(&crd, &hook.url),
    });
    server.apply(controller).unwrap();
    let parent = json!({
        "apiVersion": "drain.test/v1",
        "kind": "Widget",
        "metadata": { "name": "a", "namespace": "default" },
        "spec": { "size": 1, "text": "one" },
    });
    server.apply(parent).unwrap();
    // The drain waits for a write in flight until the grace is over.
    faults.add(Rule::new(Action::Hang).verb(Verb::Create).resource("", "configmaps"));
    let mut process = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
        .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(kubeconfig.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let id = process.id().unwrap().to_string();
    let writes = |faults: &Faults| {
        faults.seen().iter().any(|it| it.verb == Verb::Create && it.resource == "configmaps")
    };
    timeout(PATIENCE, faults.wait_until(writes)).await.unwrap();

    let begin = Instant::now();
    let mut signals = interval(Duration::from_millis(500));
    let end = loop {
        tokio::select! {
            end = process.wait() => break end.unwrap(),
            _ = signals.tick() => {
                assert!(begin.elapsed() < GRACE, "the process does not end");
                drop(Command::new("kill").args(["-TERM", &id]).status().await);
            }
        }
    };

    assert_eq!(end.code(), Some(1), "the process did not wait for its drain");
}
