//! Rolling updates of children, one at a time, with crashes at each write.

mod crashes;
mod customize;
mod events;
mod forged;
mod method;
mod outside_changes;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use http::{Method, Request as HttpRequest};
use kube::client::Body;
use tower::Service;

use super::*;
use crate::{meta::definition::apply_strategy::ApplyStrategy, testing::Verb};

const GROUP: &str = "example.com/v1";
const REVISIONS: (&str, &str) = ("metacontroller.k8s.io/v1alpha1", "ControllerRevision");

/// Variant of a rollout.
#[derive(Clone, Copy, Debug)]
struct Variant {
    method: &'static str,
    is_cluster_scoped: bool,
    generates: bool,
    /// Children are parts with a status rather than ConfigMaps, and must be ready.
    has_checks: bool,
    strategy: ApplyStrategy,
    size: usize,
    /// Namespace of the revisions of cluster-scoped parents.
    revision_namespace: &'static str,
}

const PLAIN: Variant = Variant {
    method: "RollingInPlace",
    is_cluster_scoped: false,
    generates: true,
    has_checks: false,
    strategy: ApplyStrategy::DynamicApply,
    size: 3,
    revision_namespace: "default",
};

impl Variant {
    fn parent_kind(self) -> &'static str {
        if self.is_cluster_scoped { "Thing" } else { "Widget" }
    }

    fn parent_namespace(self) -> &'static str {
        if self.is_cluster_scoped { "" } else { "default" }
    }

    fn child_type(self) -> (&'static str, &'static str) {
        if self.has_checks { (GROUP, "Part") } else { ("v1", "ConfigMap") }
    }

    fn child_resource(self) -> &'static str {
        if self.has_checks { "parts" } else { "configmaps" }
    }

    fn controller(self) -> Value {
        let hook = || json!({"webhook": {"url": "http://scripted/"}});
        let resource = if self.is_cluster_scoped { "things" } else { "widgets" };
        let mut update = json!({"method": self.method});
        if self.has_checks {
            update["statusChecks"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        }
        json!({
            "generateSelector": self.generates,
            "parentResource": {
                "apiVersion": GROUP, "resource": resource,
                "revisionHistory": {"fieldPaths": ["spec.template"]},
            },
            "childResources": [{
                "apiVersion": self.child_type().0, "resource": self.child_resource(),
                "updateStrategy": update,
            }],
            "hooks": {"sync": hook(), "finalize": hook()},
        })
    }

    fn parent(self) -> Value {
        json!({
            "apiVersion": GROUP, "kind": self.parent_kind(),
            "metadata": {"name": "p", "namespace": self.parent_namespace()},
            "spec": {
                "size": self.size,
                "template": {"text": "one"},
                "selector": {"matchLabels": {"app": "x"}},
            },
        })
    }

    fn answer(self, kind: HookKind, request: &Value) -> Value {
        let spec = &request["parent"]["spec"];
        let mut size = usize::try_from(spec["size"].as_u64().unwrap()).unwrap();
        let (api_version, child_kind) = self.child_type();
        let mut finalized = false;
        if kind == HookKind::Finalize {
            // Each sync removes one child.
            let there = request["children"].as_object().unwrap().values();
            let there: usize = there.map(|group| group.as_object().unwrap().len()).sum();
            size = there.saturating_sub(1).min(size);
            finalized = there == 0;
            if let Some(opposed) = spec["opposed"].as_str() {
                size = 0;
                finalized = spec["template"]["text"] != opposed;
            }
        }
        let child = |number: usize| {
            let mut child = json!({
                "apiVersion": api_version, "kind": child_kind,
                "metadata": {
                    "name": name_of(number), "namespace": "default", "labels": {"app": "x"},
                },
            });
            let text = &spec["template"]["text"];
            if self.has_checks {
                child["spec"] = json!({"text": text, "all": spec["all"]});
            } else {
                child["data"] = json!({"text": text});
            }
            child
        };
        let children: Vec<_> = (0..size).map(child).collect();
        let status = json!({"size": size, "conditions": [{"type": "Updated", "status": "x"}]});
        json!({"children": children, "status": status, "finalized": finalized})
    }
}

fn name_of(number: usize) -> String {
    format!("c{number:02}")
}

/// Side of a write on which the process crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrashSide {
    Before,
    After,
}

/// Connection of the controller: records its writes, counts the children that are unavailable
/// together, and cuts it off at a crash.
struct Wire {
    server: SimulatedServer,
    variant: Variant,
    crash: Option<(CrashSide, usize)>,
    changes: AtomicUsize,
    dead: CancellationToken,
    writes: Mutex<Vec<String>>,
    violations: Mutex<Vec<String>>,
}

/// Child that is applied while others are unavailable.
struct Applied {
    name: String,
    content: Value,
    others: Vec<String>,
}

impl Wire {
    fn new(
        server: &SimulatedServer,
        variant: Variant,
        crash: Option<(CrashSide, usize)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server: server.clone(),
            variant,
            crash,
            changes: AtomicUsize::default(),
            dead: CancellationToken::new(),
            writes: Mutex::default(),
            violations: Mutex::default(),
        })
    }

    fn client(self: &Arc<Self>) -> kube::Client {
        let (service, wire) = (self.server.service("controller"), Arc::clone(self));
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let (mut service, wire) = (service.clone(), Arc::clone(&wire));
            async move {
                let crash =
                    wire.note(request.method(), request.uri().path(), request.uri().query());
                if crash == Some(CrashSide::Before) {
                    wire.dead.cancel();
                }
                if wire.dead.is_cancelled() {
                    return std::future::pending().await;
                }
                let applied = wire.before_apply(request.method(), request.uri().path());
                let response = service.call(request).await;
                if let Some(applied) = applied {
                    wire.after_apply(applied);
                }
                if crash == Some(CrashSide::After) {
                    wire.dead.cancel();
                }
                if wire.dead.is_cancelled() {
                    return std::future::pending().await;
                }
                response
            }
        });
        kube::Client::new(service, "default")
    }

    /// Notes a write of a child, a revision or a parent. Returns the side on which it crashes.
    fn note(&self, method: &Method, path: &str, query: Option<&str>) -> Option<CrashSide> {
        let noted = ["configmaps", "parts", "controllerrevisions", "things", "widgets"];
        let is_noted = noted.iter().any(|name| path.split('/').any(|part| part == *name));
        let is_dry = query.is_some_and(|query| query.contains("dryRun"));
        if *method == Method::GET || !is_noted || is_dry || self.dead.is_cancelled() {
            return None;
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        self.writes.lock().unwrap().push(format!("{method} {path}"));
        let is_child = path.contains(&format!("/{}/", self.variant.child_resource()));
        // An apply may change nothing: see `after_apply`.
        if is_child && [Method::DELETE, Method::PUT].contains(method) {
            let others = self.unavailable(name);
            if !others.is_empty() {
                let violation = format!("{method} {path} while {others:?} are unavailable");
                self.violations.lock().unwrap().push(violation);
            }
        }
        let number = 1 + self.changes.fetch_add(1, Ordering::SeqCst);
        self.crash.filter(|(_, at)| *at == number).map(|(when, _)| when)
    }

    /// Returns the child that a request applies, if it exists while others are unavailable.
    fn before_apply(&self, method: &Method, path: &str) -> Option<Applied> {
        let is_child = path.contains(&format!("/{}/", self.variant.child_resource()));
        if *method != Method::PATCH || !is_child {
            return None;
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let content = self.content(&name)?;
        let others = self.unavailable(&name);
        (!others.is_empty()).then_some(Applied { name, content, others })
    }

    /// Notes an apply that has changed its child.
    fn after_apply(&self, applied: Applied) {
        let Applied { name, content, others } = applied;
        if self.content(&name).is_some_and(|now| now != content) {
            let violation = format!("{name} is changed while {others:?} are unavailable");
            self.violations.lock().unwrap().push(violation);
        }
    }

    /// Returns the specification of a child, if it exists.
    fn content(&self, name: &str) -> Option<Value> {
        let (api_version, kind) = self.variant.child_type();
        let child = self.server.get(api_version, kind, "default", name).ok()?;
        Some(json!([child["spec"], child["data"]]))
    }

    /// Returns the children other than this one that the parent desires and that are not available.
    fn unavailable(&self, except: &str) -> Vec<String> {
        let variant = self.variant;
        let namespace = variant.parent_namespace();
        let parent = self.server.get(GROUP, variant.parent_kind(), namespace, "p");
        let Ok(parent) = parent else { return Vec::new() };
        if !parent["metadata"]["deletionTimestamp"].is_null() {
            return Vec::new();
        }
        let size = usize::try_from(parent["spec"]["size"].as_u64().unwrap()).unwrap();
        let (api_version, kind) = variant.child_type();
        let is_available = |name: &String| {
            let child = self.server.get(api_version, kind, "default", name);
            child.is_ok_and(|child| !variant.has_checks || is_ready(&child))
        };
        let names: Vec<_> = (0..size).map(name_of).collect();
        if !names.iter().any(|name| name == except) {
            // The response requires this deletion.
            return Vec::new();
        }
        names.into_iter().filter(|name| name != except && !is_available(name)).collect()
    }

    fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut *self.writes.lock().unwrap())
    }

    /// Writes of children, as method and name.
    fn child_writes(&self) -> Vec<String> {
        let resource = format!("/{}", self.variant.child_resource());
        let writes = self.take_writes().into_iter().filter(|write| write.contains(&resource));
        let short = |write: String| {
            let (method, path) = write.split_once(' ').unwrap();
            let name = path.rsplit('/').next().unwrap();
            if method == "POST" { "POST".to_owned() } else { format!("{method} {name}") }
        };
        writes.map(short).collect()
    }
}

fn is_ready(part: &Value) -> bool {
    part["status"]["observedGeneration"] == part["metadata"]["generation"]
        && part["status"]["conditions"][0]["status"] == "True"
}

/// Controller with one parent, and its connection.
struct RolloutFixture {
    harness: Harness,
    wire: Arc<Wire>,
    variant: Variant,
    /// Hook requests as the names of templates that they were for.
    calls: Arc<Mutex<Vec<String>>>,
}

impl RolloutFixture {
    /// Starts a controller, and waits until it has rolled out the first revision of its parent.
    async fn start(variant: Variant) -> Self {
        let server = SimulatedServer::new();
        let fixture = Self::process(&server, variant, None, move |kind, request| {
            variant.answer(kind, request)
        })
        .await;
        fixture.declare();
        fixture.done("one").await;
        fixture
    }

    fn declare(&self) {
        self.harness.declare("roll", self.variant.controller());
        self.harness.server.apply(self.variant.parent()).unwrap();
    }

    /// Starts a process on this server, which crashes there.
    async fn process(
        server: &SimulatedServer,
        variant: Variant,
        crash: Option<(CrashSide, usize)>,
        response: impl Fn(HookKind, &Value) -> Value + Clone + Send + Sync + 'static,
    ) -> Self {
        for kind in ["Widget", "Part"] {
            server.install(&CrdBuilder::new("example.com", kind).build()).unwrap();
        }
        let wire = Wire::new(server, variant, crash);
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let called = Arc::clone(&calls);
        let hooks: HookFactory = Arc::new(move |_, kind| {
            let (response, called) = (response.clone(), Arc::clone(&called));
            Arc::new(ScriptedHook(Box::new(move |request| {
                let text = request["parent"]["spec"]["template"]["text"].as_str();
                called.lock().unwrap().push(text.unwrap_or_default().to_owned());
                response(kind, request)
            })))
        });
        let (hooks, resync_period) = (Some(hooks), Some(RESYNC));
        let apply_strategy = variant.strategy;
        let options = MetaOptions {
            resync_period,
            hooks,
            apply_strategy,
            revision_namespace: variant.revision_namespace.into(),
            ..MetaOptions::default()
        };
        let harness = Harness::over(server.clone(), wire.client(), options).await;
        // A type that has just begun to be served refuses lists for a moment.
        sleep(Duration::from_millis(100)).await;
        Self { harness, wire, variant, calls }
    }

    fn parent(&self) -> Value {
        let (kind, namespace) = (self.variant.parent_kind(), self.variant.parent_namespace());
        self.harness.server.get(GROUP, kind, namespace, "p").unwrap()
    }

    fn edit(&self, spec: Value) {
        let object = json!({
            "apiVersion": GROUP, "kind": self.variant.parent_kind(),
            "metadata": {"name": "p", "namespace": self.variant.parent_namespace()},
            "spec": spec,
        });
        self.harness.server.merge(&object).unwrap();
    }

    fn roll_to(&self, text: &str) {
        self.edit(json!({"template": {"text": text}}));
    }

    /// Condition `Updated` of the parent: reason and message.
    fn updated(&self) -> (String, String) {
        let parent = self.parent();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = parent["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let updated = conditions.iter().find(|condition| condition["type"] == "Updated");
        let updated = updated.cloned().unwrap_or_default();
        (text(&updated["reason"]), text(&updated["message"]))
    }

    fn children(&self) -> Vec<Value> {
        let (api_version, kind) = self.variant.child_type();
        let all = self.harness.server.list(api_version, kind).unwrap_or_default();
        let is_ours = |child: &Value| !child["metadata"]["ownerReferences"].is_null();
        all.into_iter().filter(is_ours).collect()
    }

    /// Texts of the children, in the order of their names.
    fn texts(&self) -> Vec<String> {
        let field = if self.variant.has_checks { "spec" } else { "data" };
        let text = |child: &Value| child[field]["text"].as_str().unwrap().to_owned();
        self.children().iter().map(text).collect()
    }

    /// Sets the status of parts that are not ready.
    fn make_ready(&self, name: &str, is_ready: bool) {
        let part = self.harness.server.get(GROUP, "Part", "default", name).unwrap();
        let status = json!({
            "observedGeneration": part["metadata"]["generation"],
            "conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "False" }}],
        });
        let object = json!({
            "apiVersion": GROUP, "kind": "Part",
            "metadata": {"name": name, "namespace": "default"}, "status": status,
        });
        self.harness.server.merge(&object).unwrap();
    }

    fn make_all_ready(&self) {
        if self.variant.has_checks {
            for part in self.children().iter().filter(|part| !is_ready(part)) {
                self.make_ready(part["metadata"]["name"].as_str().unwrap(), true);
            }
        }
    }

    /// Waits until all children have this text, and nothing but the latest revision is left. A
    /// status writer makes parts ready.
    async fn done(&self, text: &str) {
        let is_done = || {
            let parent = self.parent();
            let size = usize::try_from(parent["spec"]["size"].as_u64().unwrap()).unwrap();
            let is_observed =
                parent["status"]["observedGeneration"] == parent["metadata"]["generation"];
            if !is_observed || self.updated().0 != "OnLatestRevision" {
                return false;
            }
            let (texts, revisions) = (self.texts(), self.revisions());
            texts.len() == size
                && texts.iter().all(|found| found == text)
                && revisions.len() == 1
                && revisions.values().all(|names| names.len() == size)
                && self.children().iter().all(|it| !self.variant.has_checks || is_ready(it))
        };
        for _ in 0..4000 {
            if is_done() {
                // No further step may follow.
                run_until_idle().await;
                assert!(is_done(), "{:?}", self.updated());
                self.assert_kept();
                return;
            }
            sleep(Duration::from_millis(50)).await;
            self.make_all_ready();
        }
        panic!("{text}: {:?} {:?} {:?}", self.texts(), self.revisions(), self.updated());
    }

    fn assert_kept(&self) {
        let violations = self.wire.violations.lock().unwrap();
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Children of each revision, by its text.
    fn revisions(&self) -> BTreeMap<String, Vec<String>> {
        let all = self.harness.server.list(REVISIONS.0, REVISIONS.1).unwrap_or_default();
        let entry = |revision: &Value| {
            let text = revision["parentPatch"]["spec"]["template"]["text"].as_str().unwrap();
            let names = revision["children"][0]["names"].as_array().cloned().unwrap_or_default();
            let names = names.iter().map(|name| name.as_str().unwrap().to_owned());
            (text.to_owned(), names.collect())
        };
        all.iter().map(entry).collect()
    }

    async fn end(self) {
        self.harness.end().await;
    }
}

/// Hook that answers by a function.
struct ScriptedHook(Box<dyn Fn(&Value) -> Value + Send + Sync>);

impl Hook for ScriptedHook {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let response = (self.0)(&serde_json::from_slice(&request).unwrap());
        // A function that answers `null` is busy.
        let response = if response.is_null() {
            Err(HookError::Busy(Duration::from_secs(7)))
        } else {
            Ok(Bytes::from(response.to_string()))
        };
        async move { response }.boxed()
    }
}

fn variants(size: usize) -> Vec<Variant> {
    let mut variants = Vec::new();
    for method in ["RollingInPlace", "RollingRecreate"] {
        for is_cluster_scoped in [false, true] {
            for generates in [false, true] {
                for has_checks in [false, true] {
                    variants.push(Variant {
                        method,
                        is_cluster_scoped,
                        generates,
                        has_checks,
                        size,
                        ..PLAIN
                    });
                }
            }
        }
    }
    variants
}

async fn rolls(variant: Variant) {
    let fixture = RolloutFixture::start(variant).await;
    fixture.wire.take_writes();

    fixture.roll_to("two");
    fixture.done("two").await;

    let is_applied = variant.strategy == ApplyStrategy::ServerSideApply;
    let expected =
        (0..variant.size).map(name_of).flat_map(|name| match (variant.method, is_applied) {
            ("RollingInPlace", false) => vec![format!("PUT {name}")],
            ("RollingInPlace", true) => vec![format!("PATCH {name}")],
            (_, false) => vec![format!("DELETE {name}"), "POST".to_owned()],
            (_, true) => vec![format!("DELETE {name}"), format!("PATCH {name}")],
        });
    assert_eq!(fixture.wire.child_writes(), expected.collect::<Vec<_>>(), "{variant:?}");
    let revision = &fixture.harness.server.list(REVISIONS.0, REVISIONS.1).unwrap()[0];
    let name = revision["metadata"]["name"].as_str().unwrap();
    assert_eq!(fixture.updated().1, format!("latest ControllerRevision: {name}"));
    let names: Vec<_> = revision["children"][0]["names"].as_array().unwrap().clone();
    let prefix = if variant.is_cluster_scoped { "default/" } else { "" };
    assert_eq!(names[0], format!("{prefix}c00"));
    assert_eq!(revision["metadata"]["namespace"], "default");
    let events = fixture.harness.server.list("v1", "Event").unwrap();
    assert!(events.iter().all(|event| event["reason"] != "Flapping"), "{variant:?} {events:#?}");
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn every_child_is_updated_in_order_and_one_at_a_time() {
    for variant in variants(3) {
        rolls(variant).await;
    }
}

#[tokio::test(start_paused = true)]
async fn server_side_apply_updates_one_child_at_a_time() {
    for method in ["RollingInPlace", "RollingRecreate"] {
        for has_checks in [false, true] {
            let strategy = ApplyStrategy::ServerSideApply;
            rolls(Variant { method, has_checks, strategy, ..PLAIN }).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_children_are_updated_one_at_a_time() {
    for (method, has_checks, size) in
        [("RollingInPlace", false, 100), ("RollingRecreate", true, 50)]
    {
        rolls(Variant { method, size, has_checks, ..PLAIN }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sync_after_a_rollout_writes_and_reads_nothing() {
    let fixture = RolloutFixture::start(PLAIN).await;
    fixture.roll_to("two");
    fixture.done("two").await;
    fixture.wire.take_writes();
    fixture.calls.lock().unwrap().clear();
    fixture.harness.server.forget_requests();

    sleep(RESYNC + Duration::from_secs(1)).await;

    assert_eq!(*fixture.calls.lock().unwrap(), ["two"], "one call for the one live revision");
    assert_eq!(fixture.wire.take_writes(), [""; 0]);
    let requests = fixture.harness.server.requests();
    let reads = requests.iter().filter(|it| {
        it.user == "controller" && it.info.verb == Verb::Get && !it.resource().is_empty()
    });
    assert_eq!(reads.count(), 0);
    fixture.end().await;
}
