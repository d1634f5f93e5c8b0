//! Declared controller on the simulated API server under paused time. Its hook is a function, and
//! faults lie between the controller and the server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Uri;
use kube::{Client, ResourceExt, client::Body};
use pilotlight::{
    controller::{Cluster, ClusterOptions, Request},
    informer::InformerStatus,
    manager::{Manager, ManagerOptions, RunnableOptions},
    meta::{self, Hook, HookError, HookFactory, HookMetrics, MetaOptions, SUPERVISOR, Supervisor},
    testing::{
        CrdBuilder, Faults, LeakOracle, Measure, RequestInfo, Verb, simulated::SimulatedServer,
    },
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::deletions::Deletions;

/// Deadline of waits, in virtual time, so that its length costs nothing; reached only by tests that
/// fail.
const PATIENCE: Duration = Duration::from_secs(6 * 3600);

type Respond = Arc<dyn Fn(Value) -> BoxFuture<'static, Result<Value, HookError>> + Send + Sync>;

/// Hook implemented by a function; records its calls.
pub(crate) struct FunctionHook {
    respond: Mutex<Respond>,
    record: Mutex<CallRecord>,
}

#[derive(Default)]
struct CallRecord {
    /// Time and parent of each call.
    calls: Vec<(Instant, String)>,
    /// Parents with a call in progress.
    running: BTreeSet<String>,
    /// Parents for which the hook may keep state.
    kept: BTreeSet<String>,
    most: usize,
    overlapped: bool,
}

impl FunctionHook {
    fn new() -> Self {
        let respond: Respond = Arc::new(|request| Box::pin(async move { Ok(sized(&request)) }));
        Self { respond: Mutex::new(respond), record: Mutex::default() }
    }

    /// Replaces the hook's response for all later calls.
    pub(crate) fn answers<F>(&self, respond: impl Fn(Value) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Value, HookError>> + Send + 'static,
    {
        *self.respond.lock().unwrap() = Arc::new(move |request| Box::pin(respond(request)));
    }

    /// Time and parent of each call.
    pub(crate) fn calls(&self) -> Vec<(Instant, String)> {
        self.record.lock().unwrap().calls.clone()
    }

    /// Largest number of parents with a call in progress at the same time.
    pub(crate) fn most(&self) -> usize {
        self.record.lock().unwrap().most
    }

    /// Parents for which the hook may keep state.
    pub(crate) fn kept(&self) -> BTreeSet<String> {
        self.record.lock().unwrap().kept.clone()
    }

    /// Returns whether two calls for the same parent ever overlapped.
    pub(crate) fn overlapped(&self) -> bool {
        self.record.lock().unwrap().overlapped
    }
}

impl Hook for FunctionHook {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        Box::pin(async move {
            let request: Value = serde_json::from_slice(&request).unwrap();
            let parent = request["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
            let _running = Running::begin(&self.record, parent);
            let respond = self.respond.lock().unwrap().clone();
            let answer = respond(request).await?;
            Ok(answer.to_string().into())
        })
    }

    fn call_about<'a>(
        &'a self,
        parent: &'a Request,
        _uid: &'a str,
        request: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, HookError>> {
        self.record.lock().unwrap().kept.insert(parent.to_string());
        self.call(request)
    }

    fn forget(&self, parent: &Request) {
        self.record.lock().unwrap().kept.remove(&parent.to_string());
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        self.record.lock().unwrap().kept.clear();
        Box::pin(std::future::ready(()))
    }
}

/// Guard of a call in progress; dropping it, also on cancellation, ends the call.
struct Running<'a>(&'a Mutex<CallRecord>, String);

impl<'a> Running<'a> {
    fn begin(record: &'a Mutex<CallRecord>, parent: String) -> Self {
        let mut state = record.lock().unwrap();
        state.calls.push((Instant::now(), parent.clone()));
        state.overlapped |= !state.running.insert(parent.clone());
        state.most = state.most.max(state.running.len());
        Self(record, parent)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().running.remove(&self.1);
    }
}

/// Hook response with `spec.size` ConfigMaps that hold the parent's `spec.text`.
pub(crate) fn sized(request: &Value) -> Value {
    let parent = &request["parent"];
    let name = parent["metadata"]["name"].as_str().unwrap_or_default();
    let size = parent["spec"]["size"].as_i64().unwrap_or_default();
    let children = (0..size).map(|number| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": format!("{name}-{number}") },
            "data": { "text": parent["spec"]["text"] },
        })
    });
    json!({ "status": { "size": size }, "children": children.collect::<Vec<_>>() })
}

/// Changes the specification of the declared controller, and waits until it runs anew.
pub(crate) async fn redeclare(harness: &SimulatedHarness, change: impl FnOnce(&mut Value)) {
    const KIND: (&str, &str) = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
    harness.until("the controller is declared", |it| !it.list(KIND.0, KIND.1).is_empty()).await;
    let mut controller = harness.list(KIND.0, KIND.1).remove(0);
    change(&mut controller["spec"]);
    harness.server.apply(controller).unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
}

/// Returns the URI without its request for bookmarks.
fn without_bookmarks(uri: &Uri) -> Uri {
    let wanted = "allowWatchBookmarks=true";
    uri.to_string().replace(wanted, "allowWatchBookmarks=false").parse().unwrap()
}

/// Manager with one declared controller of widgets, and its server.
pub(crate) struct SimulatedHarness {
    pub(crate) server: SimulatedServer,
    pub(crate) faults: Faults,
    pub(crate) hook: Arc<FunctionHook>,
    /// Metrics of the hook.
    pub(crate) metrics: Arc<Registry>,
    crd: CrdBuilder,
    sent: Arc<Mutex<Vec<(Instant, RequestInfo)>>>,
    deletions: Deletions,
    bookmarks: Arc<AtomicBool>,
    // Dropped with the manager.
    cluster: Option<Cluster>,
    leaks: LeakOracle,
    baseline: Measure,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl SimulatedHarness {
    /// Starts with a running controller and no parents.
    pub(crate) async fn start() -> Self {
        let hook = Arc::new(FunctionHook::new());
        let made = Arc::clone(&hook);
        let hooks: HookFactory = Arc::new(move |_, _| made.clone());
        let harness = Self::begin(hook, Some(hooks)).await;
        harness.declare("a", &harness.crd, "http://function/");
        harness
    }

    /// Starts without a declared controller; controllers declared later call their hooks at their
    /// URLs.
    pub(crate) async fn with_web_hooks() -> Self {
        Self::begin(Arc::new(FunctionHook::new()), None).await
    }

    async fn begin(hook: Arc<FunctionHook>, hooks: Option<HookFactory>) -> Self {
        let server = SimulatedServer::new();
        let crd = CrdBuilder::new("harness.test", "Widget");
        for own in meta::crds() {
            server.install(&own).unwrap();
            server.wait_established(&own.name_any()).await;
        }
        server.install(&crd.build()).unwrap();
        server.wait_established(&crd.name()).await;
        let (faults, sent) = (Faults::default(), Arc::<Mutex<Vec<_>>>::default());
        let leaks = LeakOracle::new()
            .tasks("this test", &tokio::runtime::Handle::current())
            .requests(&faults);
        let baseline = leaks.baseline().await;
        let (log, deletions) = (Arc::clone(&sent), Deletions::default());
        let disturbed = tower::ServiceBuilder::new()
            .layer(faults.layer())
            .service(server.service("pilotlight"));
        let deleting = deletions.clone();
        let bookmarks = Arc::new(AtomicBool::new(true));
        let wanted = Arc::clone(&bookmarks);
        let service = tower::service_fn(move |mut request: http::Request<Body>| {
            if !wanted.load(Ordering::Relaxed) {
                *request.uri_mut() = without_bookmarks(request.uri());
            }
            let info = RequestInfo::new(request.method(), request.uri());
            log.lock().unwrap().push((Instant::now(), info));
            let (disturbed, deleting) = (disturbed.clone(), deleting.clone());
            async move { disturbed.oneshot(deleting.note(request).await).await }
        });
        let client = Client::new(service, "default");
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let mut manager = Manager::new(ManagerOptions::default());
        runnable.add_to(&mut manager, "cluster").unwrap();
        let handle = manager.handle();
        let (hook_metrics, mut metrics) = (HookMetrics::default(), Registry::default());
        hook_metrics.register(&mut metrics);
        let options = MetaOptions { hooks, metrics: hook_metrics, ..MetaOptions::default() };
        let supervisor = Supervisor::new(&cluster, handle, options).unwrap();
        manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default()).unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stopping = stop.clone();
        tasks.spawn(async move { manager.run(stopping).await.unwrap() });
        let cluster = Some(cluster);
        Self {
            server,
            faults,
            hook,
            metrics: Arc::new(metrics),
            crd,
            sent,
            deletions,
            bookmarks,
            cluster,
            leaks,
            baseline,
            stop,
            tasks,
        }
    }

    /// Declares a controller of these parents, with its hook at this URL.
    pub(crate) fn declare(&self, name: &str, parents: &CrdBuilder, url: &str) {
        let parent = parents.api_resource("v1");
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": { "name": name },
            "spec": {
                "generateSelector": true,
                "parentResource": { "apiVersion": parent.api_version, "resource": parent.plural },
                "childResources": [{
                    "apiVersion": "v1",
                    "resource": "configmaps",
                    "updateStrategy": { "method": "InPlace" },
                }],
                "hooks": { "sync": { "webhook": { "url": url } } },
            },
        });
        self.server.apply(controller).unwrap();
    }

    /// Creates or changes a parent.
    pub(crate) fn parent(&self, name: &str, size: i64, text: &str) {
        let parent = json!({
            "apiVersion": "harness.test/v1",
            "kind": "Widget",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "size": size, "text": text },
        });
        self.server.apply(parent).unwrap();
    }

    /// Lists the objects of a kind; empty while a new type cannot be listed yet.
    pub(crate) fn list(&self, api_version: &str, kind: &str) -> Vec<Value> {
        self.server.list(api_version, kind).unwrap_or_default()
    }

    /// Texts of the children, by name.
    pub(crate) fn children(&self) -> BTreeMap<String, String> {
        let all = self.list("v1", "ConfigMap");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        all.iter().map(|it| (text(&it["metadata"]["name"]), text(&it["data"]["text"]))).collect()
    }

    /// Waits until the server satisfies `wanted` and returns the elapsed time.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Self) -> bool) -> Duration {
        let begin = Instant::now();
        let seen = timeout(PATIENCE, self.server.wait_until(|_| wanted(self))).await;
        assert!(seen.is_ok(), "{what}: not in time, but {:#?}", self.children());
        begin.elapsed()
    }

    /// Waits until each of these parents has `size` children with this text, and a status; returns
    /// the elapsed time.
    pub(crate) async fn settled(&self, parents: &[&str], size: i64, text: &str) -> Duration {
        self.until(&format!("{size} children that say {text:?}"), |harness| {
            let children = harness.children();
            let widgets = harness.list("harness.test/v1", "Widget");
            parents.iter().all(|parent| {
                let own = (0..size).map(|number| format!("{parent}-{number}"));
                let widget = widgets.iter().find(|it| it["metadata"]["name"] == *parent);
                own.map(|name| children.get(&name)).all(|it| it.is_some_and(|it| it == text))
                    && widget.is_some_and(|it| it["status"]["size"] == size)
            })
        })
        .await
    }

    /// Messages of the Events with this reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<String> {
        let all = self.list("v1", "Event");
        let of_reason = all.iter().filter(|event| event["reason"] == reason);
        of_reason.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Opens all later watches without bookmarks.
    pub(crate) fn withholds_bookmarks(&self) {
        self.bookmarks.store(false, Ordering::Relaxed);
    }

    /// Status of the parents' informer, if there is one.
    pub(crate) fn informer(&self) -> Option<InformerStatus> {
        let all = self.cluster.as_ref().unwrap().informers.status();
        let of_parents = self.crd.name();
        all.into_iter().find(|it| it.key.identity.group_resource().to_string() == of_parents)
    }

    /// Number of requests with this verb for the parents. A streaming list counts as a list.
    pub(crate) fn requests_for_parents(&self, verb: Verb) -> usize {
        let sent = self.sent.lock().unwrap();
        let of_parents = sent.iter().filter(|(_, info)| info.resource == "widgets");
        let verbs = of_parents.map(|(_, info)| match info.query.contains("sendInitialEvents") {
            true => Verb::List,
            false => info.verb,
        });
        verbs.filter(|it| *it == verb).count()
    }

    /// Times of the requests with this verb for ConfigMaps, whatever their result.
    pub(crate) fn sent(&self, verb: Verb) -> Vec<Instant> {
        let of_children = |info: &RequestInfo| info.verb == verb && info.resource == "configmaps";
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|(_, info)| of_children(info)).map(|(at, _)| *at).collect()
    }

    /// Every request so far, with its time.
    pub(crate) fn requests(&self) -> Vec<(Instant, RequestInfo)> {
        self.sent.lock().unwrap().clone()
    }

    /// Asserts that the manager ends without an error, that each of its deletions named a uid, and
    /// that nothing is left in this process or at the server.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        timeout(PATIENCE, self.tasks.join_next()).await.unwrap().unwrap().unwrap();
        self.deletions.assert_guarded();
        self.cluster = None;
        let closed = self.server.wait_until(|server| server.open_watches().is_empty());
        timeout(PATIENCE, closed).await.unwrap();
        self.leaks.assert_baseline(&self.baseline).await;
    }
}
