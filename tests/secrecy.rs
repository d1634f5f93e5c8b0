//! Secrets stay in the process: text planted in hook responses, URLs, Secrets and credentials
//! appears in no status, Event, metric, endpoint or log, at the highest log level of every crate.

mod credentials;

use std::{net::SocketAddr, process::Stdio, time::Duration};

use axum::{
    Router,
    response::{IntoResponse, Response},
    routing::post,
};
use http::{StatusCode, header};
use pilotlight::testing::{
    Action, CrdBuilder, Faults, Reply, Rule, Verb, proxy::Proxy, simulated::SimulatedServer,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(60);
/// Part of every planted text.
const PLANTED: &str = "hush";

/// Controllers, each with the path and query of its hook and the reason of its failure.
const CONTROLLERS: [(&str, &str, &str); 12] = [
    ("refused", "/refused?key=hush-query", "HookRefused"),
    ("redirected", "/redirected?key=hush-query", "HookRefused"),
    ("encoded", "/encoded?key=hush-query", "HookAnswerInvalid"),
    ("mistyped", "/mistyped?key=hush-query", "HookAnswerInvalid"),
    ("text", "/text?key=hush-query", "HookAnswerInvalid"),
    ("secret", "/secret?key=hush-query", "HooksAnswer"),
    ("updated", "/secret?key=hush-query", "HooksAnswer"),
    // The adoption, which fails, precedes the hook call.
    ("adopted", "/secret?key=hush-query", "NotAsked"),
    ("plain", "/plain?key=hush-query", "HooksAnswer"),
    ("label-key", "/label-key?key=hush-query", "HookAnswerInvalid"),
    ("label-value", "/label-value?key=hush-query", "HookAnswerInvalid"),
    ("late", "/late?key=hush-query", "HooksAnswer"),
];

/// Message of the API server about an object that is no Secret.
const REPEATED: &str = "ConfigMap \"made\" is invalid: data[a]: Invalid value: \"repeated\"";

/// Error body of the hook `refused`: longer than an excerpt, with an escape sequence.
fn refusal() -> String {
    format!("\u{1b}[31mhush-body\n{}", "x".repeat(2000))
}

fn json_answer(value: &Value) -> Response {
    value.to_string().into_response()
}

fn hooks() -> Router {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "made"},
        "data": {"password": "hush-data"}, "stringData": {"token": "hush-data"},
    });
    let secret = json!({"status": {}, "children": [secret]});
    let child = |metadata: Value| {
        let child = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        json!({"status": {}, "children": [child]})
    };
    let plain = child(json!({"name": "made"}));
    let label_key = child(json!({"name": "made", "labels": {"hush-key": 7}}));
    let label_value = child(json!({"name": "made", "labels": {"controller-uid": "hush-value"}}));
    let late = json!({
        "apiVersion": "late.test/v1", "kind": "hush-kind", "metadata": {"name": "hush-name"},
    });
    let late = json!({"status": {}, "children": [late]});
    let mistyped = json!({"status": {}, "children": "hush-answer"});
    Router::new()
        .route("/refused", post(|| async { (StatusCode::INTERNAL_SERVER_ERROR, refusal()) }))
        .route(
            "/redirected",
            post(|| async {
                let target = "http://user:hush-location@127.0.0.1:1/?key=hush-location";
                (StatusCode::FOUND, [(header::LOCATION, target)], "hush-body")
            }),
        )
        .route(
            "/encoded",
            post(|| async { ([(header::CONTENT_ENCODING, "hush-encoding")], "hush-body") }),
        )
        .route("/mistyped", post(async move || json_answer(&mistyped)))
        .route("/text", post(async || json_answer(&json!("hush-answer"))))
        .route("/secret", post(async move || json_answer(&secret)))
        .route("/plain", post(async move || json_answer(&plain)))
        .route("/label-key", post(async move || json_answer(&label_key)))
        .route("/label-value", post(async move || json_answer(&label_value)))
        .route("/late", post(async move || json_answer(&late)))
        .merge(credentials::echoes())
}

/// Manager in a separate process, between a simulated server and hooks.
struct Harness {
    server: SimulatedServer,
    hooks_at: SocketAddr,
    probes: SocketAddr,
    metrics: SocketAddr,
    kubeconfig: tempfile::NamedTempFile,
    process: Child,
    log: watch::Receiver<String>,
    proxy: Proxy,
    _tasks: JoinSet<()>,
    _socket: pilotlight::testing::simulated::SimulatedSocket,
}

impl Harness {
    async fn start(flags: &[&str]) -> Self {
        let mut tasks = JoinSet::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hooks_at = listener.local_addr().unwrap();
        tasks.spawn(async { axum::serve(listener, hooks()).await.unwrap() });

        let server = SimulatedServer::new();
        for crd in pilotlight::meta::crds() {
            server.install(&crd).unwrap();
        }
        server.install(&CrdBuilder::new("hush.test", "Widget").version("v1").build()).unwrap();
        let faults = Faults::default();
        // Wording of the API server for an invalid field.
        let refused = "Secret \"made\" is invalid: data[password]: Invalid value: \"hush-data\": \
                       must be a base64 text";
        let refused = Reply::status(422, "Invalid", refused);
        for verb in [Verb::Create, Verb::Update, Verb::Patch] {
            let refused = Action::Reply(refused.clone());
            faults.add(Rule::new(refused).verb(verb).resource("", "secrets"));
        }
        let repeated = Action::Reply(Reply::status(422, "Invalid", REPEATED));
        faults.add(Rule::new(repeated).verb(Verb::Create).resource("", "configmaps"));
        let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
        let proxy = Proxy::to_api_server(socket.config(), &faults).await.unwrap();

        let mut kubeconfig: Value = serde_json::from_str(&proxy.kubeconfig()).unwrap();
        let at = kubeconfig["clusters"][0]["cluster"]["server"].as_str().unwrap();
        let at = at.replace("://", "://admin:hush-password@");
        kubeconfig["clusters"][0]["cluster"]["server"] = json!(at);
        kubeconfig["users"][0]["user"] = json!({"token": "hush-token"});
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), kubeconfig.to_string()).unwrap();

        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
        command
            .args(["run", "--metrics-address=127.0.0.1:0"])
            .arg("--health-probe-bind-address=127.0.0.1:0")
            .args(flags)
            .arg("--kubeconfig")
            .arg(file.path())
            .env_clear()
            .env("HTTP_PROXY", "http://admin:hush-proxy@127.0.0.1:1")
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // With both flags, bodies are not logged.
        if !flags.iter().any(|flag| flag.starts_with("--zap-log-level")) {
            command.arg("--log-level=trace,pilotlight=trace");
        }
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (written, mut log) = watch::channel(String::new());
        tasks.spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                written.send_modify(|log| {
                    log.push_str(&line);
                    log.push('\n');
                });
            }
        });
        let port = |log: &str, field: &str| -> Option<SocketAddr> {
            let line = log.lines().find(|line| line.contains(" starting "))?;
            let value = line.split(field).nth(1)?.split_whitespace().next()?;
            value.parse().ok()
        };
        let starting = log.wait_for(|log| port(log, "probes=").is_some());
        let (probes, metrics) = {
            let log = timeout(DEADLINE, starting).await.unwrap().unwrap();
            (port(&log, "probes=").unwrap(), port(&log, "metrics=").unwrap())
        };
        Self {
            server,
            hooks_at,
            probes,
            metrics,
            kubeconfig: file,
            process,
            log,
            proxy,
            _tasks: tasks,
            _socket: socket,
        }
    }

    /// Starts with a controller for each fault.
    async fn declared(flags: &[&str]) -> Self {
        let harness = Self::start(flags).await;
        harness.declare();
        harness
    }

    fn declare(&self) {
        for (name, path, _) in CONTROLLERS {
            self.declare_one(name, &format!("http://{}{path}", self.hooks_at));
        }
        self.declare_one("credentials", "http://user:hush-password@127.0.0.1:1/?key=hush-query");
        self.declare_one("scheme", "ftp://user:hush-password@127.0.0.1:1/?key=hush-query");
        self.declare_one("broken", "http://user:hush-password@127.0.0.1:99999/ ?key=hush-query");
        self.declare_one("unreachable", "http://127.0.0.1:1/sync?key=hush-query");
        self.declare_one("proxied", "http://hook.invalid/sync?key=hush-query");
    }

    fn declare_one(&self, name: &str, url: &str) {
        self.declare_hook(name, &json!({"url": url}));
    }

    fn declare_hook(&self, name: &str, webhook: &Value) {
        // Separate object, because the Events per object are limited; separate namespace, because
        // the children have the same names.
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
        });
        self.server.apply(namespace).unwrap();
        let widget = json!({
            "apiVersion": "hush.test/v1", "kind": "Widget",
            "metadata": {"name": name, "namespace": name, "labels": {"of": name}},
        });
        self.server.apply(widget).unwrap();
        if matches!(name, "updated" | "adopted") {
            self.make_secret(name);
        }
        let parents = json!({
            "apiVersion": "hush.test/v1", "resource": "widgets",
            "labelSelector": {"matchLabels": {"of": name}},
        });
        let mut controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {"name": name},
            "spec": {
                "generateSelector": true,
                "parentResource": parents,
                "childResources": [
                    {
                        "apiVersion": "v1", "resource": "secrets",
                        "updateStrategy": {"method": "InPlace"},
                    },
                    {"apiVersion": "v1", "resource": "configmaps"},
                ],
                "hooks": {"sync": {"webhook": webhook}},
            },
        });
        if name == "late" {
            let rule = json!({
                "apiVersion": "late.test/v1", "resource": "lates", "optional": true,
            });
            controller["spec"]["childResources"].as_array_mut().unwrap().push(rule);
        }
        self.server.apply(controller).unwrap();
    }

    /// Creates the hook's Secret with other content: as a child, or as an orphan that is adopted.
    fn make_secret(&self, of: &str) {
        let parent = self.server.get("hush.test/v1", "Widget", of, of).unwrap();
        let uid = &parent["metadata"]["uid"];
        let owner = json!({
            "apiVersion": "hush.test/v1", "kind": "Widget", "name": of, "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        });
        let owners = if of == "updated" { vec![owner] } else { Vec::new() };
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "made", "namespace": of, "labels": {"controller-uid": uid},
                "ownerReferences": owners,
            },
            "data": {"password": "aHVzaC1kYXRh"},
        });
        self.server.apply(secret).unwrap();
    }

    fn status_of(&self, name: &str) -> Value {
        let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        self.server.get(kind.0, kind.1, "", name).unwrap()["status"].clone()
    }

    /// Reason of a condition.
    fn reason_of(&self, name: &str, condition: &str) -> String {
        let status = self.status_of(name);
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|it| it["type"] == condition);
        found.and_then(|it| it["reason"].as_str()).unwrap_or_default().to_owned()
    }

    fn events(&self) -> String {
        let events = self.server.list("events.k8s.io/v1", "Event").unwrap_or_default();
        let core = self.server.list("v1", "Event").unwrap_or_default();
        format!("{}", Value::from([events, core].concat()))
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < DEADLINE, "not in time: {what}: {}", self.events());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until each fault was reported.
    async fn reported(&self) {
        for (name, _, reason) in CONTROLLERS {
            self.until(name, || self.reason_of(name, "HooksHealthy") == reason).await;
        }
        for name in ["unreachable", "proxied"] {
            self.until(name, || self.reason_of(name, "HooksHealthy") == "HookUnreachable").await;
        }
        for name in ["scheme", "broken"] {
            self.until(name, || self.reason_of(name, "Ready") == "SpecInvalid").await;
        }
        for refused in ["creating Secret", "updating Secret", "adopting Secret"] {
            self.until(refused, || self.events().contains(refused)).await;
        }
        self.until("the refused ConfigMap", || self.events().contains("creating ConfigMap")).await;
        self.until("the last error of the refused Secret", || {
            let status = self.status_of("secret").to_string();
            status.contains("creating Secret")
        })
        .await;
    }

    async fn get(&self, at: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// All output of the process except its log, by name.
    async fn said(&self) -> Vec<(String, String)> {
        let mut said = Vec::new();
        for path in ["/healthz", "/livez", "/readyz", "/readyz?verbose"] {
            said.push((path.to_owned(), self.get(self.probes, path).await));
        }
        for path in ["/metrics", "/debug/status", "/debug/types"] {
            said.push((path.to_owned(), self.get(self.metrics, path).await));
        }
        let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let mut queues = 0;
        for controller in self.server.list(kind.0, kind.1).unwrap() {
            let name = controller["metadata"]["name"].as_str().unwrap();
            let path = format!("/debug/queues/CompositeController-{name}");
            let queue = self.get(self.metrics, &path).await;
            queues += usize::from(queue.starts_with("HTTP/1.1 200"));
            said.push((path, queue));
        }
        assert!(queues > 0, "no controller has a queue");
        said.push(("Events".to_owned(), self.events()));
        for controller in self.server.list(kind.0, kind.1).unwrap() {
            let name = controller["metadata"]["name"].as_str().unwrap();
            said.push((format!("status of {name}"), controller["status"].to_string()));
        }
        let address = format!("--address={}", self.metrics);
        let file = format!("--kubeconfig={}", self.kubeconfig.path().display());
        let held = json!({
            "apiVersion": "hush.test/v1", "kind": "Widget",
            "metadata": {
                "name": "heldparent", "namespace": "default", "annotations": {"a": "hush-annotation"},
                "finalizers": ["metacontroller.io/compositecontroller-missing"],
            },
        });
        self.server.apply(held).unwrap();
        // Status exits with 1 because controllers are not ready.
        for (command, source, code) in [
            (&["status"][..], &address, 1),
            (&["status"], &file, 1),
            (&["status", "--finalizers"], &file, 1),
            (&["types"], &address, 0),
            (&["types"], &file, 0),
            (&["release", "missing", "--dry-run"], &file, 0),
            (&["release", "missing"], &file, 0),
        ] {
            let mut process = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
            let output = process.args(command).arg(source).output().await.unwrap();
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            assert_eq!(output.status.code(), Some(code), "{command:?} {source}: {text}");
            let names_it = text.contains("heldparent");
            assert_eq!(names_it, command[0] == "release" || command.contains(&"--finalizers"));
            said.push((format!("pilotlight {} {source}", command.join(" ")), text));
        }
        said
    }

    async fn end(mut self) -> String {
        self.process.kill().await.unwrap();
        self.proxy.stop().await;
        // The task that reads the log ends with the process.
        while self.log.changed().await.is_ok() {}
        self.log.borrow().clone()
    }
}

/// Lines with planted text.
fn leaks(name: &str, text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.replace("hush.test", "").contains(PLANTED));
    lines.map(|line| format!("{name}: {}", line.chars().take(400).collect::<String>())).collect()
}

#[tokio::test]
async fn nothing_secret_leaves_the_process() {
    let harness = Harness::declared(&[]).await;
    harness.reported().await;

    let said = harness.said().await;
    let log = harness.end().await;

    let mut leaked: Vec<_> = said.iter().flat_map(|(name, text)| leaks(name, text)).collect();
    leaked.extend(leaks("log", &log));
    assert!(leaked.is_empty(), "{} leaks\n{}", leaked.len(), leaked.join("\n"));
    let text = |of: &str| said.iter().find(|(name, _)| name == of).unwrap().1.as_str();
    let metrics = text("/metrics");
    let url = metrics.lines().find(|line| line.contains("/refused")).unwrap();
    assert!(url.contains("url=\"http://127.0.0.1:"), "{url}");
    assert!(text("Events").contains("hook answered with status 500"), "{}", text("Events"));
    assert!(text("Events").contains("422 Invalid"), "{}", text("Events"));
    // As documented, the server's message about any other object is repeated, but not in a probe.
    let repeated = REPEATED.replace('"', "\\\"");
    for place in ["Events", "status of plain", "/debug/status"] {
        assert!(text(place).contains(&repeated), "{place}: {}", text(place));
    }
    let labels = text("status of label-key");
    assert!(labels.contains("children[0].metadata.labels"), "the field is named: {labels}");
    let probe = text("/readyz?verbose");
    assert!(!probe.contains("repeated"), "{probe}");
    assert!(probe.contains("controller/CompositeController-refused"), "{probe}");
    assert!(!probe.contains("status 500"), "names and reasons, no messages: {probe}");
    assert!(log.contains("reconcile failed"), "it is logged");
    assert!(!log.contains("hook_bodies"), "no level of --log-level logs bodies");
}

#[tokio::test]
async fn bodies_of_hooks_are_logged_without_data_of_secrets_at_level_6() {
    let harness = Harness::start(&["--zap-log-level=6"]).await;
    harness.declare_one("updated", &format!("http://{}/secret", harness.hooks_at));
    harness.until("the hook's response", || harness.events().contains("updating Secret")).await;

    let log = harness.end().await;

    let bodies: Vec<_> = log.lines().filter(|line| line.contains("hook_bodies")).collect();
    assert!(bodies.iter().any(|line| line.contains("Secret.v1")), "requests: {bodies:#?}");
    assert!(bodies.iter().any(|line| line.contains("stringData")), "responses: {bodies:#?}");
    // As text, and as the observed Secret has it.
    for data in ["hush-data", "aHVzaC1kYXRh"] {
        assert!(!log.contains(data), "{data}: {log}");
    }
}

#[tokio::test]
async fn excerpt_of_a_hook_error_is_shown_if_a_flag_is_set() {
    let harness = Harness::declared(&["--hook-error-excerpts"]).await;
    harness.reported().await;
    harness.until("the excerpt", || harness.events().contains("hush-body")).await;

    let status = harness.status_of("refused")["conditions"].to_string();
    harness.end().await;

    let excerpt = status.split("hush-body").nth(1).unwrap();
    assert!(!status.contains("\\u001b"), "control characters are stripped: {status}");
    let length = excerpt.chars().take_while(|letter| matches!(letter, 'x' | ' ')).count();
    assert!((100..=256).contains(&length), "it is bounded: {length}");
}
