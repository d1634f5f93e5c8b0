//! Memory of the process while its hooks return large responses.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, extract::DefaultBodyLimit, routing::post};
use kube::ResourceExt;
use pilotlight::{
    meta::{self, ResponseLimits},
    testing::{
        CrdBuilder,
        simulated::{SimulatedServer, SimulatedSocket},
    },
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{Answer, HookServer, one_config_map};

/// Limit of a parent's status in bytes.
const MAX_STATUS_BYTES: usize = 1536 * 1024;
/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(300);
/// Limit of the process's anonymous memory, in KiB.
const MOST_KIB: u64 = 256 * 1024;
/// Number of concurrent hook calls, and of parents.
const WORKERS: usize = 5;

/// Process and the peak of its anonymous memory.
struct Observed {
    process: Child,
    most_kib: Arc<AtomicU64>,
    _looking: JoinSet<()>,
}

impl Observed {
    fn start(kubeconfig: &Path) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
            .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
            .arg(kubeconfig)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let status = PathBuf::from(format!("/proc/{}/status", process.id().unwrap()));
        let most_kib = Arc::<AtomicU64>::default();
        let (most, mut looking) = (Arc::clone(&most_kib), JoinSet::new());
        looking.spawn(async move {
            loop {
                most.fetch_max(anonymous_kib(&status), Ordering::Relaxed);
                sleep(Duration::from_millis(20)).await;
            }
        });
        Self { process, most_kib, _looking: looking }
    }

    #[track_caller]
    fn assert_small(&mut self) {
        assert_eq!(self.process.try_wait().unwrap(), None, "the process has ended");
        let most = self.most_kib.load(Ordering::Relaxed);
        assert!((1..=MOST_KIB).contains(&most), "RssAnon reached {} MiB", most / 1024);
    }
}

fn anonymous_kib(status: &Path) -> u64 {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

/// Response of at most this size: copies of one child, numbered by name, then the last child and a
/// status.
fn answer(bytes: usize, child: &Value, last: &Value) -> Vec<u8> {
    let last = format!("{last}],\"status\":{{\"answered\":true}}}}");
    let (mut answer, child) = (b"{\"children\":[".to_vec(), child.to_string());
    for number in 0.. {
        let child = child.replace("NUMBER", &number.to_string());
        if answer.len() + child.len() + 1 + last.len() > bytes {
            break;
        }
        answer.extend_from_slice(child.as_bytes());
        answer.push(b',');
    }
    answer.extend_from_slice(last.as_bytes());
    answer
}

/// Fields of a few bytes each.
fn fields(count: usize, value: &Value) -> Value {
    (0..count).map(|number| (format!("k{number}"), value.clone())).collect()
}

/// Child of a type that is not served, with many values.
fn late() -> Value {
    json!({
        "apiVersion": "late.test/v1", "kind": "Late",
        "metadata": { "name": "nNUMBER" }, "spec": fields(10_000, &json!(1)),
    })
}

/// Child of a type that is served, with as much metadata as is read.
fn labelled() -> Value {
    let (labels, annotations) = (fields(15_000, &json!("1")), fields(15_000, &json!("1")));
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "nNUMBER", "labels": labels, "annotations": annotations },
    })
}

/// Answers the first call of each parent with as many children as fit, and later calls with the
/// last child only.
fn answers_once_with(
    hook: &HookServer,
    child: Value,
    last: impl Fn(&str) -> Value + Send + Sync + 'static,
) {
    let seen = Mutex::new(BTreeSet::new());
    hook.answers(move |request| {
        let name = request["parent"]["metadata"]["name"].as_str().unwrap();
        let first = seen.lock().unwrap().insert(name.to_owned());
        Answer::Bytes(answer(
            if first { ResponseLimits::default().response } else { 0 },
            &child,
            &last(name),
        ))
    });
}

/// Child without a name, for which the whole response is refused.
fn nameless(_parent: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} })
}

fn controller(name: &str, parents: &CrdBuilder, url: &str) -> Value {
    let parent = parents.api_resource("v1");
    json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": name },
        "spec": {
            "generateSelector": true,
            "parentResource": { "apiVersion": parent.api_version, "resource": parent.plural },
            "childResources": [
                { "apiVersion": "v1", "resource": "configmaps" },
                { "apiVersion": "late.test/v1", "resource": "lates", "optional": true },
            ],
            "hooks": { "sync": { "webhook": { "url": url, "timeout": "200s" } } },
        },
    })
}

fn parent(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "budget.test/v1",
        "kind": kind,
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "size": 1 },
    })
}

/// Part of a hook request on which the response depends.
#[derive(serde::Deserialize)]
struct HookRequest {
    parent: HookRequestParent,
}

#[derive(serde::Deserialize)]
struct HookRequestParent {
    spec: HookRequestSpec,
}

#[derive(serde::Deserialize)]
struct HookRequestSpec {
    size: u64,
}

/// Process with two controllers, one with a verbose hook and one with a terse hook.
struct Harness {
    server: SimulatedServer,
    verbose: HookServer,
    observed: Observed,
    _terse: HookServer,
    _socket: SimulatedSocket,
    _directory: tempfile::TempDir,
}

impl Harness {
    async fn start() -> Self {
        let server = SimulatedServer::new();
        let widgets = CrdBuilder::new("budget.test", "Widget");
        let gadgets = CrdBuilder::new("budget.test", "Gadget");
        for crd in meta::crds().into_iter().chain([widgets.build(), gadgets.build()]) {
            server.install(&crd).unwrap();
            server.wait_established(&crd.name_any()).await;
        }
        let (verbose, terse) = (HookServer::start().await, HookServer::start().await);
        terse.answers(one_config_map);
        server.apply(controller("verbose", &widgets, &verbose.url)).unwrap();
        server.apply(controller("terse", &gadgets, &terse.url)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
        std::fs::write(&file, socket.kubeconfig()).unwrap();
        let observed = Observed::start(&file);
        let (_terse, _socket, _directory) = (terse, socket, directory);
        Self { server, verbose, observed, _terse, _socket, _directory }
    }

    /// Creates or edits the parents of the verbose hook; an edit causes a sync at once.
    fn apply_parents(&self, size: usize) {
        for number in 0..WORKERS {
            let mut parent = parent("Widget", &format!("w{number}"));
            parent["spec"]["size"] = json!(size);
            self.server.apply(parent).unwrap();
        }
    }

    async fn until(&self, what: &str, wanted: impl Fn(&SimulatedServer) -> bool) {
        let seen = timeout(DEADLINE, self.server.wait_until(&wanted)).await;
        assert!(seen.is_ok(), "{what}: not in time");
    }

    /// Waits until the other controller has created the child of a new parent.
    async fn other_is_served(&self, name: &str) {
        self.server.apply(parent("Gadget", name)).unwrap();
        self.until("another controller is served", |server| has_map(server, name)).await;
    }

    /// Waits until an Event of each parent names the field.
    async fn refused(&self, numbers: std::ops::Range<usize>, all: bool, field: &str) {
        let is_refused = |server: &SimulatedServer, number: usize| {
            let events = server.list("v1", "Event").unwrap_or_default();
            events.iter().any(|event| {
                event["involvedObject"]["name"] == format!("w{number}")
                    && event["message"].as_str().is_some_and(|text| text.contains(field))
            })
        };
        self.until("refused", |server| {
            let mut refused = numbers.clone().map(|number| is_refused(server, number));
            if all { refused.all(|is| is) } else { refused.any(|is| is) }
        })
        .await;
    }
}

fn has_map(server: &SimulatedServer, name: &str) -> bool {
    let maps = server.list("v1", "ConfigMap").unwrap_or_default();
    maps.iter().any(|map| map["metadata"]["name"] == name)
}

#[tokio::test]
async fn five_responses_of_sixteen_mebibytes_keep_the_process_small_and_others_served() {
    let mut harness = Harness::start().await;
    answers_once_with(&harness.verbose, late(), nameless);

    harness.apply_parents(1);
    harness.refused(0..WORKERS, false, ".metadata.name").await;
    harness.other_is_served("during").await;
    harness.refused(0..WORKERS, true, ".metadata.name").await;
    harness.observed.assert_small();

    answers_once_with(
        &harness.verbose,
        late(),
        |name| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } }),
    );
    harness.apply_parents(2);
    harness
        .until("all syncs are finished", |server| {
            let widgets = server.list("budget.test/v1", "Widget").unwrap_or_default();
            widgets.iter().all(|widget| widget["status"]["answered"] == true)
                && (0..WORKERS).all(|number| has_map(server, &format!("w{number}")))
        })
        .await;
    harness.other_is_served("after").await;
    harness.observed.assert_small();
}

#[tokio::test]
async fn five_responses_of_much_metadata_keep_the_process_small_and_others_served() {
    let mut harness = Harness::start().await;
    answers_once_with(&harness.verbose, labelled(), nameless);

    harness.apply_parents(1);
    harness.refused(0..WORKERS, false, ".metadata.name").await;
    harness.other_is_served("during").await;
    harness.refused(0..WORKERS, true, ".metadata.name").await;
    harness.observed.assert_small();
}

#[tokio::test]
async fn five_statuses_of_many_values_keep_the_process_small_and_others_served() {
    let mut harness = Harness::start().await;
    // Parsed, these values take about eighty times their text.
    let values = vec![json!({"a": 0}); (MAX_STATUS_BYTES - 1000) / 8];
    let values = serde_json::to_string(&values).unwrap();
    // Not a [`HookServer`], which would keep every request.
    let hook = post(async move |Json(request): Json<HookRequest>| {
        let size = request.parent.spec.size;
        format!("{{\"status\":{{\"size\":{size},\"values\":{values}}}}}")
    });
    let hook = Router::new().route("/", hook.layer(DefaultBodyLimit::disable()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async { axum::serve(listener, hook).await.unwrap() });
    let widgets = CrdBuilder::new("budget.test", "Widget");
    harness.server.apply(controller("verbose", &widgets, &url)).unwrap();

    // The second status is compared with a cached one.
    for round in 1..=2 {
        harness.apply_parents(round);
        harness
            .until("all statuses are written", |server| {
                let requests = server.requests();
                let written = requests.iter().filter(|request| {
                    request.info.subresource == "status" && request.info.resource == "widgets"
                });
                written.count() >= round * WORKERS
            })
            .await;
        harness.other_is_served(&format!("after{round}")).await;
        harness.observed.assert_small();
    }
    harness
        .until("the last status is written", |server| {
            let widgets = server.list("budget.test/v1", "Widget").unwrap();
            widgets.iter().all(|widget| widget["status"]["size"] == 2)
        })
        .await;
}

#[tokio::test]
async fn status_that_the_server_does_not_take_is_refused_by_the_name_of_its_field() {
    let mut harness = Harness::start().await;
    let values = vec![[0]; MAX_STATUS_BYTES / 4 + 1];
    harness.verbose.answers(move |_| Answer::Json(json!({ "status": { "values": values } })));

    harness.apply_parents(1);
    harness.refused(0..WORKERS, true, "status has ").await;
    harness.other_is_served("after").await;
    harness.observed.assert_small();
}
