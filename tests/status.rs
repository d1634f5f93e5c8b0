//! `pilotlight status` with its two sources: the API server and a running manager.

use std::{process::Stdio, time::Duration};

use pilotlight::testing::{
    CrdBuilder,
    simulated::{SimulatedServer, SimulatedSocket},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(60);
const GROUP: &str = "metacontroller.k8s.io/v1alpha1";

/// Manager in a separate process, on a simulated server.
struct Harness {
    server: SimulatedServer,
    kubeconfig: tempfile::NamedTempFile,
    metrics: String,
    _process: Child,
    _socket: SimulatedSocket,
}

impl Harness {
    async fn start() -> Self {
        let server = SimulatedServer::new();
        for crd in pilotlight::meta::crds() {
            server.install(&crd).unwrap();
        }
        server.install(&CrdBuilder::new("status.test", "Thing").build()).unwrap();
        let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), socket.kubeconfig()).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
            .args(["run", "--metrics-address=127.0.0.1:0", "--health-probe-bind-address=0"])
            .arg("--kubeconfig")
            .arg(kubeconfig.path())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.as_mut().unwrap()).lines();
        let metrics = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once("metrics=") {
                    return rest.split_whitespace().next().unwrap().to_owned();
                }
            }
            panic!("it names no address")
        };
        let metrics = timeout(DEADLINE, metrics).await.unwrap();
        Self { server, kubeconfig, metrics, _process: process, _socket: socket }
    }

    fn declare(&self, name: &str, change: impl Fn(&mut Value)) {
        let mut object = json!({
            "apiVersion": GROUP, "kind": "CompositeController",
            "metadata": {"name": name},
            "spec": {
                "generateSelector": true,
                "parentResource": {"apiVersion": "status.test/v1", "resource": "things"},
                "hooks": {"sync": {"webhook": {"url": "http://127.0.0.1:1/"}}},
            },
        });
        change(&mut object);
        self.server.apply(object).unwrap();
    }

    /// Waits until the object has this reason, then returns exit code and row from both sources.
    async fn status_with(&self, name: &str, reason: &str) -> [(Option<i32>, Value); 2] {
        let says = self.server.wait_until(|server| {
            let object = server.get(GROUP, "CompositeController", "", name);
            object.is_ok_and(|object| object["status"]["reason"] == reason)
        });
        timeout(DEADLINE, says).await.expect(reason);
        let file = format!("--kubeconfig={}", self.kubeconfig.path().display());
        let address = format!("--address={}", self.metrics);
        [self.status(name, &file).await, self.status(name, &address).await]
    }

    async fn status(&self, name: &str, source: &str) -> (Option<i32>, Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
        let output = command.args(["status", "--output=json", source]).output().await.unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let name = format!("CompositeController-{name}");
        let rows = report["controllers"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_default();
        (output.status.code(), row)
    }
}

/// Asserts that the sources agree on the verdict and on everything that the API server knows.
#[track_caller]
fn agree([api, instance]: [(Option<i32>, Value); 2], code: i32, ready: &str) {
    for (of, row) in [&api, &instance] {
        assert_eq!((*of, row["ready"].as_str()), (Some(code), Some(ready)), "{row:#}");
    }
    for field in
        ["parent", "state", "reason", "message", "epoch", "outdated", "failing", "pending", "stuck"]
    {
        assert_eq!(api.1[field], instance.1[field], "{field}");
    }
    let verdicts = |row: &Value| {
        let conditions = row["conditions"].as_array().unwrap().iter();
        conditions
            .map(|it| (it["type"].clone(), it["status"].clone(), it["reason"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&api.1), verdicts(&instance.1));
}

#[tokio::test]
async fn both_sources_give_one_verdict_on_what_is_rejected_paused_or_pending() {
    let harness = Harness::start().await;

    harness.declare("a", |_| {});
    agree(harness.status_with("a", "Running").await, 0, "True");

    harness.declare("rejected", |object| {
        object["spec"]["hooks"]["sync"]["webhook"]["url"] = json!("ftp://nowhere");
    });
    agree(harness.status_with("rejected", "SpecInvalid").await, 1, "False");

    harness.declare("paused", |object| {
        object["metadata"]["annotations"] = json!({pilotlight::meta::PAUSED: "true"});
    });
    agree(harness.status_with("paused", "Paused").await, 1, "False");

    harness.declare("a", |object| {
        object["spec"]["childResources"] =
            json!([{"apiVersion": "status.test/v1", "resource": "parts"}]);
    });
    agree(harness.status_with("a", "SpecPending").await, 1, "False");

    // A rejected edit, while the previous spec runs.
    harness.declare("a", |object| {
        object["spec"]["hooks"]["sync"]["webhook"]["url"] = json!("ftp://nowhere");
    });
    agree(harness.status_with("a", "SpecInvalid").await, 1, "False");
}
