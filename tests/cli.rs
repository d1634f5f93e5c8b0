//! The binary, run as from a shell.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Crd;
use kube::{Api, Client, CustomResourceExt, api::PostParams};
use pilotlight::{
    meta::api::CompositeController,
    testing::{Binary, BinarySources, ControlPlane, simulated::SimulatedServer},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(120);

fn pilotlight(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).kill_on_drop(true);
    command
}

async fn run(arguments: &[&str]) -> Output {
    let output = pilotlight(arguments).output();
    timeout(DEADLINE, output).await.expect("it ends").unwrap()
}

#[track_caller]
fn assert_code(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    errors
}

#[tokio::test]
async fn a_wrong_command_line_exits_with_2_and_names_the_flag() {
    let workers = run(&["run", "--workers=none"]).await;
    let of_metacontroller = run(&["run", "--leader-election=maybe"]).await;
    let namespace = run(&["run", "--namespace=a/b"]).await;
    let level = run(&["run", "--log-level=loud"]).await;

    assert!(assert_code(&workers, 2).contains("--workers"));
    assert!(assert_code(&namespace, 2).contains("--namespace"));
    assert!(assert_code(&level, 2).contains("--log-level"));
    assert!(assert_code(&of_metacontroller, 2).contains("--leader-election"));
}

#[tokio::test]
async fn the_arguments_of_metacontrollers_manifests_start_a_manager() {
    let server = SimulatedServer::new();
    let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, socket.kubeconfig()).unwrap();
    let mut command = pilotlight(&[
        "--zap-log-level=4",
        "--discovery-interval=20s",
        "--cache-flush-interval=30m",
        "--zap-encoder=json",
        "-client-go-qps=100",
        "--leader-election=false",
        "--metrics-address=0",
        "--health-probe-bind-address=127.0.0.1:0",
        "true",
        "--nonsense",
    ]);
    command.env("KUBECONFIG", &file).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();

    let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
    let starts = async {
        let (mut explained, mut ignored) = (Vec::new(), Vec::new());
        loop {
            let line = log.next_line().await.unwrap().expect("the process ended too early");
            let line: Value = serde_json::from_str(&line).expect("--zap-encoder=json");
            match line["message"].as_str() {
                Some("flag of Metacontroller") => explained.push(line["flag"].clone()),
                Some(message) if message.contains("is not a flag") => {
                    assert!(!line.to_string().contains("nonsense"), "it may be a secret: {line}");
                    ignored = ["position", "count"].map(|field| line[field].clone()).to_vec();
                }
                Some("starting") => {
                    assert_eq!(explained.len(), 4, "{explained:?}");
                    assert_eq!(ignored, [9, 2], "arguments that are no flags");
                }
                // A debug line, because the level is debug.
                Some(_) if line["level"] == "DEBUG" => return,
                Some(_) | None => {}
            }
        }
    };
    timeout(DEADLINE, starts).await.expect("the process did not start in time");
    assert_eq!(process.try_wait().unwrap(), None, "the process has ended");
    process.kill().await.unwrap();
}

#[tokio::test]
async fn the_demo_runs_without_a_control_plane() {
    let played = run(&["dev", "--demo", "--simulated"]).await;

    assert_code(&played, 0);
    let output = String::from_utf8_lossy(&played.stdout).into_owned();
    assert!(output.contains("A simulated API server runs"), "{output}");
    assert!(output.contains("CRD gone → controller done (TypeGone)"), "{output}");
}

#[tokio::test]
async fn a_failure_exits_with_1_and_says_what_to_set() {
    let missing = run(&["types", "--kubeconfig=/does/not/exist"]).await;
    let not_there = run(&["status", "--address=127.0.0.1:1"]).await;

    assert!(assert_code(&missing, 1).contains("--kubeconfig /does/not/exist: "));
    assert!(assert_code(&not_there, 1).contains("--metrics-address"));
}

#[tokio::test]
async fn empty_kubeconfig_counts_as_absent() {
    let home = tempfile::tempdir().unwrap();
    for (argument, variable) in [("", ""), ("--kubeconfig=", ""), ("--kubeconfig=", ":")] {
        let mut command = pilotlight(&["types"]);
        command.args(Some(argument).filter(|argument| !argument.is_empty()));
        command.env_clear().env("HOME", home.path()).env("KUBECONFIG", variable);

        let output = timeout(DEADLINE, command.output()).await.unwrap().unwrap();

        let said = assert_code(&output, 1);
        assert!(said.contains("not in a pod, KUBECONFIG is not set"), "{variable:?}: {said}");
    }
}

#[tokio::test]
async fn the_crds_in_the_repository_are_those_of_the_types() {
    assert_code(&run(&["crds", "--check"]).await, 0);
}

#[tokio::test]
async fn an_unread_log_ends_no_process() {
    let mut command = pilotlight(&["dev", "--simulated"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stderr.take());
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let said = async {
        while !output.next_line().await.unwrap()?.contains("Ctrl-C") {}
        Some(())
    };
    timeout(DEADLINE, said).await.unwrap().expect("the process ended too early");

    // The process logs more lines while its controllers run.
    let ended = timeout(Duration::from_secs(1), process.wait()).await;

    assert!(ended.is_err(), "{ended:?}");
}

#[tokio::test]
async fn status_reports_a_crd_without_status_and_the_fix() {
    let server = SimulatedServer::new();
    let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, socket.kubeconfig()).unwrap();
    let client = Client::try_from(socket.config()).unwrap();
    let mut crd = serde_json::to_value(CompositeController::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] =
        json!({"type": "object"});
    let crd = serde_json::from_value(crd).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &crd).await.map(drop::<Crd>).unwrap();
    let declared: CompositeController = serde_json::from_value(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": {"name": "things"},
        "spec": {"parentResource": {"apiVersion": "example.com/v1", "resource": "things"}},
    }))
    .unwrap();
    let controllers = Api::<CompositeController>::all(client);
    let created = async {
        while controllers.create(&PostParams::default(), &declared).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, created).await.expect("the type is served");

    let status = run(&["status", "--kubeconfig", file.to_str().unwrap()]).await;

    // Exit code 1, because the readiness is unknown.
    assert!(assert_code(&status, 1).contains("pilotlight crds | kubectl apply"));
    let table = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(table.contains("StatusNotKept") && !table.contains("old spec"), "{table}");
}

/// Entries of a directory, with their permissions.
fn entries(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        found.push((path.clone(), metadata.permissions().mode() & 0o777));
        if metadata.is_dir() {
            found.extend(entries(&path));
        }
    }
    found
}

#[tokio::test]
async fn the_kubeconfig_of_a_simulated_server_is_private_and_removed_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = pilotlight(&["dev", "--simulated", "--no-manager"]);
    command.env("TMPDIR", directory.path()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let output = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut dev = Dev { process, output };
    let kubeconfig = PathBuf::from(dev.says("export KUBECONFIG=").await);
    dev.says("Ctrl-C").await;

    let found = entries(directory.path());
    let id = dev.process.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    let (code, _) = dev.end().await;

    let folder = kubeconfig.parent().unwrap().to_owned();
    assert_eq!(found, [(folder, 0o700), (kubeconfig, 0o600)]);
    assert_eq!(code, Some(0));
    assert_eq!(entries(directory.path()), [], "nothing is left behind");
}

/// A running `pilotlight dev`.
struct Dev {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Dev {
    fn start(arguments: &[&str]) -> Self {
        // A new machine builds the binaries first, which takes longer than any deadline.
        ControlPlane::shared();
        let mut command = pilotlight(&[&["dev"], arguments].concat());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, output }
    }

    /// Returns the rest of the next line with `prefix`.
    async fn says(&mut self, prefix: &str) -> String {
        let said = async {
            loop {
                let line =
                    self.output.next_line().await.unwrap().expect("the process ended too early");
                if let Some((_, rest)) = line.split_once(prefix) {
                    return rest.to_owned();
                }
            }
        };
        timeout(DEADLINE, said).await.unwrap_or_else(|_| panic!("no line with {prefix:?} in time"))
    }

    async fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        while let Some(line) = self.output.next_line().await.unwrap() {
            rest.push_str(&line);
            rest.push('\n');
        }
        (self.process.wait().await.unwrap().code(), rest)
    }
}

/// Returns the response to a GET of a URL without its scheme.
async fn get(url: &str) -> String {
    let (address, path) = url.split_once('/').unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /{path} HTTP/1.0\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, socket.read_to_string(&mut answer)).await.expect("it ends").unwrap();
    answer
}

#[tokio::test]
async fn dev_runs_until_it_is_interrupted_and_leaves_nothing_behind() {
    let mut dev = Dev::start(&[]);
    let kubeconfig = PathBuf::from(dev.says("export KUBECONFIG=").await);
    let address = dev.says("status --address ").await;
    let probes = dev.says("curl 'http://").await;
    dev.says("Ctrl-C").await;
    let file = kubeconfig.to_str().unwrap();

    let types = run(&["types", "--kubeconfig", file, "--output=json"]).await;
    let types_seen = run(&["types", "--address", &address]).await;
    let declared = run(&["status", "--kubeconfig", file]).await;
    let arguments = ["status", "--address", &address, "--output=json"];
    let mut status = run(&arguments).await;
    // The exit code is 1 until the supervisor runs.
    while status.status.code() == Some(1) && !status.stdout.is_empty() {
        status = run(&arguments).await;
    }
    let ready = get(probes.trim_end_matches("'")).await;
    let id = dev.process.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    let (code, _) = dev.end().await;

    assert_code(&types, 0);
    let types: Vec<Value> = serde_json::from_slice(&types.stdout).unwrap();
    assert!(types.iter().any(|row| {
        row["name"] == "compositecontrollers.metacontroller.k8s.io" && row["state"] == "Served"
    }));
    let reviews = "tokenreviews.authentication.k8s.io";
    let reviews = types.iter().find(|row| row["name"] == reviews).unwrap();
    assert_eq!(reviews["state"], "NotWatchable");
    assert_eq!(reviews["watchedBy"], 0, "a controller is declared: {reviews}");
    assert_code(&types_seen, 0);
    assert!(String::from_utf8(types_seen.stdout).unwrap().contains("deployments.apps"));
    assert_code(&declared, 0);
    assert_code(&status, 0);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["discovery"]["mode"], "Watching");
    assert!(ready.contains("controller/compositecontrollers"), "{ready}");
    assert_eq!(code, Some(0));
    assert!(!Path::new(file).exists(), "its data is left");
}

/// Builds nothing in the place of Go: takes the binaries from a directory, after a while.
const COPYING_GO: &str = "#!/bin/sh
while [ \"$1\" != -o ]; do shift; done
until [ -e \"$BUILT/continue\" ]; do sleep 0.1; done
cp \"$BUILT/$2\" \"$2\"
";

#[tokio::test]
async fn demo_is_simulated_until_the_control_plane_is_built() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    std::fs::write(&go, COPYING_GO).unwrap();
    ControlPlane::shared();
    let built = directory.path().join("built");
    std::fs::create_dir(&built).unwrap();
    let sources = BinarySources::from_env().unwrap();
    for binary in [Binary::Etcd, Binary::KubeApiserver, Binary::KubeControllerManager] {
        let found = sources.find(binary).unwrap();
        std::os::unix::fs::symlink(&found, built.join(found.file_name().unwrap())).unwrap();
    }
    std::fs::set_permissions(&go, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = pilotlight(&["dev", "--demo"]);
    command
        .env("PATH", format!("{}:{path}", directory.path().display()))
        .env("PILOTLIGHT_CACHE", directory.path().join("cache"))
        .env("BUILT", &built)
        .env_remove("KUBEBUILDER_ASSETS");
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut dev = Dev { process, output };

    dev.says("The control plane is built now").await;
    dev.says("A simulated API server runs").await;
    dev.says("CRD gone → controller done (TypeGone)").await;
    dev.says("The demo runs again").await;
    std::fs::write(built.join("continue"), "").unwrap();
    dev.says("A Kubernetes control plane runs").await;
    dev.says("CRD gone → controller done (TypeGone)").await;
    let (code, rest) = dev.end().await;

    assert_eq!(code, Some(0), "{rest}");
}

#[tokio::test]
async fn the_demo_plays_a_controllers_life_to_its_end() {
    let mut demo = Dev::start(&["--demo"]);

    let waits_for = demo.says("it waits: ").await;
    let (code, rest) = demo.end().await;

    assert_eq!(waits_for, "greetings.demo.pilotlight.dev/v1 is not installed");
    assert_eq!(code, Some(0), "{rest}");
    let summary: Vec<_> = rest.lines().skip_while(|line| !line.starts_with("STEP")).collect();
    let steps = [
        "controller declared → its status says Waiting",
        "CRD established → running, epoch 1",
        "parent visible → its child created",
        "parent visible → its status written",
        "CRD gone → controller done (TypeGone)",
        "CRD established → running, epoch 2",
        "parent visible → its child created",
        "parent visible → its status written",
    ];
    assert!(summary[1..].iter().zip(steps).all(|(line, step)| line.starts_with(step)), "{rest}");
}
