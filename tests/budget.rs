//! Memory of the process while its hooks answer with much.

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

use kube::ResourceExt;
use pilotlight::{
    meta::{self, MAX_RESPONSE_BYTES},
    testing::{CrdBuilder, simulated::SimulatedServer},
};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{Answer, HookServer, one_config_map};

/// Only bounds tests that fail.
const DEADLINE: Duration = Duration::from_secs(300);
/// The most of anonymous memory that the process may have, in KiB.
const MOST_KIB: u64 = 256 * 1024;
/// Parents that are asked about at the same time.
const WORKERS: usize = 5;

/// The process and the largest anonymous memory that it was seen with.
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
        assert_eq!(self.process.try_wait().unwrap(), None, "it is alive");
        let most = self.most_kib.load(Ordering::Relaxed);
        assert!((1..=MOST_KIB).contains(&most), "RssAnon reached {} MiB", most / 1024);
    }
}

fn anonymous_kib(status: &Path) -> u64 {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

/// Children of a type that is not served, of many small values each, as many as one answer of this
/// size holds; and after them this one.
fn much(bytes: usize, last: &Value) -> Vec<u8> {
    let values: Vec<String> = (10_000..20_000).map(|number| format!("\"k{number}\":1")).collect();
    let values = values.join(",");
    let last = format!("{last}],\"status\":{{\"answered\":true}}}}");
    let mut answer = b"{\"children\":[".to_vec();
    for number in 0.. {
        let child = format!(
            "{{\"apiVersion\":\"late.test/v1\",\"kind\":\"Late\",\
             \"metadata\":{{\"name\":\"n{number}\"}},\"spec\":{{{values}}}}},"
        );
        if answer.len() + child.len() + last.len() > bytes {
            break;
        }
        answer.extend_from_slice(child.as_bytes());
    }
    answer.extend_from_slice(last.as_bytes());
    answer
}

/// Answers once about each parent with much, and from then on with the last child alone.
fn answers_once_with_much(hook: &HookServer, last: impl Fn(&str) -> Value + Send + Sync + 'static) {
    let asked = Mutex::new(BTreeSet::new());
    hook.answers(move |request| {
        let name = request["parent"]["metadata"]["name"].as_str().unwrap();
        let first = asked.lock().unwrap().insert(name.to_owned());
        Answer::Bytes(much(if first { MAX_RESPONSE_BYTES } else { 0 }, &last(name)))
    });
}

fn controller(name: &str, parents: &CrdBuilder, hook: &HookServer) -> Value {
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
            "hooks": { "sync": { "webhook": { "url": hook.url, "timeout": "200s" } } },
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

async fn until(server: &SimulatedServer, what: &str, wanted: impl Fn(&SimulatedServer) -> bool) {
    let seen = timeout(DEADLINE, server.wait_until(&wanted)).await;
    assert!(seen.is_ok(), "{what}: not in time");
}

#[tokio::test]
async fn five_answers_of_sixteen_mebibytes_keep_the_process_small_and_others_served() {
    let server = SimulatedServer::new();
    let widgets = CrdBuilder::new("budget.test", "Widget");
    let gadgets = CrdBuilder::new("budget.test", "Gadget");
    for crd in meta::crds().into_iter().chain([widgets.build(), gadgets.build()]) {
        server.install(&crd).unwrap();
        server.wait_established(&crd.name_any()).await;
    }
    let (verbose, terse) = (HookServer::start().await, HookServer::start().await);
    terse.answers(one_config_map);
    answers_once_with_much(
        &verbose,
        |_| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} }),
    );
    server.apply(controller("verbose", &widgets, &verbose)).unwrap();
    server.apply(controller("terse", &gadgets, &terse)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    std::fs::write(&file, socket.kubeconfig()).unwrap();
    let mut observed = Observed::start(&file);
    let map = |server: &SimulatedServer, name: &str| {
        let maps = server.list("v1", "ConfigMap").unwrap_or_default();
        maps.iter().any(|map| map["metadata"]["name"] == name)
    };

    for number in 0..WORKERS {
        server.apply(parent("Widget", &format!("w{number}"))).unwrap();
    }
    let refused = |server: &SimulatedServer, name: &str| {
        let events = server.list("v1", "Event").unwrap_or_default();
        events.iter().any(|event| {
            event["involvedObject"]["name"] == name
                && event["message"].as_str().is_some_and(|text| text.contains(".metadata.name"))
        })
    };
    until(&server, "the first is refused", |server| {
        (0..WORKERS).any(|number| refused(server, &format!("w{number}")))
    })
    .await;
    server.apply(parent("Gadget", "during")).unwrap();
    until(&server, "another controller is served", |server| map(server, "during")).await;
    until(&server, "all are refused", |server| {
        (0..WORKERS).all(|number| refused(server, &format!("w{number}")))
    })
    .await;
    observed.assert_small();

    answers_once_with_much(
        &verbose,
        |name| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } }),
    );
    // An edit is a reason to ask at once.
    for number in 0..WORKERS {
        let mut edited = parent("Widget", &format!("w{number}"));
        edited["spec"]["size"] = json!(2);
        server.apply(edited).unwrap();
    }
    until(&server, "all are answered", |server| {
        let widgets = server.list("budget.test/v1", "Widget").unwrap_or_default();
        widgets.iter().all(|widget| widget["status"]["answered"] == true)
            && (0..WORKERS).all(|number| map(server, &format!("w{number}")))
    })
    .await;
    server.apply(parent("Gadget", "after")).unwrap();
    until(&server, "another controller is served", |server| map(server, "after")).await;
    observed.assert_small();
}
