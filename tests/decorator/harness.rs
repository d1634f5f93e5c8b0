//! Declared decorators on the simulated API server under paused time. Their hooks are one function,
//! and faults lie between the manager and the server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use kube::{Client, ResourceExt, client::Body};
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    manager::{
        ControllerState, Manager, ManagerHandle, ManagerOptions, RunnableOptions, RunnableStatus,
    },
    meta::{self, Hook, HookError, HookFactory, HookKind, MetaOptions, Supervisor},
    testing::{CrdBuilder, Faults, RequestInfo, Verb, simulated::SimulatedServer},
};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Deadline of waits, in virtual time; reached only by tests that fail.
const PATIENCE: Duration = Duration::from_secs(3600);

type Respond = Arc<dyn Fn(HookKind, &Value) -> Value + Send + Sync>;

/// Call of a hook.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) kind: HookKind,
    pub(super) request: Value,
}

impl Call {
    /// Kind and name of the object that the call is about.
    pub(super) fn about(&self) -> (&str, &str) {
        let object = &self.request[match self.request["object"].is_object() {
            true => "object",
            false => "parent",
        }];
        (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    }
}

struct Function {
    kind: HookKind,
    respond: Arc<Mutex<Respond>>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Hook for Function {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let respond = self.respond.lock().unwrap().clone();
        let answer = respond(self.kind, &request);
        self.calls.lock().unwrap().push(Call { kind: self.kind, request });
        Box::pin(std::future::ready(Ok(answer.to_string().into())))
    }
}

/// Manager with a supervisor, and its server, which serves things, gadgets and plains.
pub(super) struct DecoratorHarness {
    pub(super) server: SimulatedServer,
    pub(super) faults: Faults,
    pub(super) manager: ManagerHandle,
    respond: Arc<Mutex<Respond>>,
    calls: Arc<Mutex<Vec<Call>>>,
    sent: Arc<Mutex<Vec<RequestInfo>>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl DecoratorHarness {
    /// Starts without a declared controller, with hooks that answer by this function.
    pub(super) async fn start(
        respond: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let server = SimulatedServer::new();
        let types = [things(), gadgets(), plains()].map(|crd| crd.build());
        for crd in meta::crds().iter().chain(&types) {
            server.install(crd).unwrap();
            server.wait_established(&crd.name_any()).await;
        }
        let (faults, sent) = (Faults::default(), Arc::<Mutex<Vec<_>>>::default());
        let service = tower::ServiceBuilder::new()
            .layer(faults.layer())
            .service(server.service("pilotlight"));
        let log = Arc::clone(&sent);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            log.lock().unwrap().push(RequestInfo::new(request.method(), request.uri()));
            service.clone().oneshot(request)
        });
        let client = Client::new(service, "default");
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let mut manager = Manager::new(ManagerOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let handle = manager.handle();
        let respond: Arc<Mutex<Respond>> = Arc::new(Mutex::new(Arc::new(respond)));
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let (made, noted) = (Arc::clone(&respond), Arc::clone(&calls));
        let hooks: HookFactory = Arc::new(move |_, kind| {
            Arc::new(Function { kind, respond: Arc::clone(&made), calls: Arc::clone(&noted) })
        });
        // Resyncs would hide that an event is missing.
        let day = Duration::from_secs(24 * 3600);
        let options =
            MetaOptions { hooks: Some(hooks), resync_period: Some(day), ..MetaOptions::default() };
        for supervisor in Supervisor::all(&cluster, &handle, options).unwrap() {
            let (name, supervisor) = (supervisor.name(), Arc::new(supervisor));
            manager.add(name, supervisor, RunnableOptions::default()).unwrap();
        }
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stopping = stop.clone();
        tasks.spawn(async move { manager.run(stopping).await.unwrap() });
        Self { server, faults, manager: handle, respond, calls, sent, stop, tasks }
    }

    /// Starts with the decorator `a` of this specification running.
    pub(super) async fn running(
        spec: Value,
        respond: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let harness = Self::start(respond).await;
        harness.declare("DecoratorController", "a", spec);
        harness.runs("DecoratorController-a", 1).await;
        harness
    }

    pub(super) fn declare(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind,
            "metadata": {"name": name}, "spec": spec,
        });
        self.server.apply(object).unwrap();
    }

    /// Waits until a controller runs this epoch.
    pub(super) async fn runs(&self, runnable: &str, epoch: u64) {
        let key = runnable.into();
        let running = |status: &RunnableStatus| {
            status.state == ControllerState::Running && status.epoch == epoch
        };
        let mut watch = self.manager.watch();
        let found = watch.wait_for(|all| all.get(&key).is_some_and(|status| running(status)));
        let late = timeout(PATIENCE, found).await.is_err();
        assert!(!late, "{runnable}: {:#?}", self.manager.status());
    }

    /// Replaces the responses of all later calls.
    pub(super) fn answers(
        &self,
        respond: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
    ) {
        *self.respond.lock().unwrap() = Arc::new(respond);
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(super) fn forget_calls(&self) {
        self.calls.lock().unwrap().clear();
    }

    pub(super) fn thing(&self, name: &str) -> Option<Value> {
        self.server.get("example.com/v1", "Thing", "default", name).ok()
    }

    pub(super) fn config_map(&self, name: &str) -> Option<Value> {
        self.server.get("v1", "ConfigMap", "default", name).ok()
    }

    /// Waits until no request is under way; costs no real time.
    pub(super) async fn settle(&self) {
        sleep(Duration::from_secs(5)).await;
    }

    /// Writes since the last call, as verb, resource with subresource, and name; Events and the
    /// status of controllers are left out.
    pub(super) fn writes(&self) -> Vec<(Verb, String, String)> {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        let own =
            |info: &RequestInfo| info.resource == "events" || info.group == "metacontroller.k8s.io";
        sent.into_iter()
            .filter(|info| !matches!(info.verb, Verb::Get | Verb::List | Verb::Watch))
            .filter(|info| !own(info))
            .map(|info| {
                let resource = match info.subresource.as_str() {
                    "" => info.resource,
                    subresource => format!("{}/{subresource}", info.resource),
                };
                (info.verb, resource, info.name)
            })
            .collect()
    }

    /// Asserts that no request is sent during an hour.
    pub(super) async fn is_at_rest(&self) {
        self.settle().await;
        self.sent.lock().unwrap().clear();
        sleep(Duration::from_secs(3600)).await;
        let mut sent = self.sent.lock().unwrap().clone();
        // Watches end by the server's timeout and are resumed; discovery has its own period.
        sent.retain(|info| info.verb != Verb::Watch && !info.resource.is_empty());
        assert!(sent.is_empty(), "{sent:#?}");
    }

    /// Asserts that the manager ends without an error.
    pub(super) async fn end(mut self) {
        self.stop.cancel();
        timeout(PATIENCE, self.tasks.join_next()).await.unwrap().unwrap().unwrap();
    }
}

pub(super) fn things() -> CrdBuilder {
    CrdBuilder::new("example.com", "Thing").version("v1").version("v2")
}

/// Type without `/status`.
pub(super) fn plains() -> CrdBuilder {
    CrdBuilder::new("example.com", "Plain").without_status()
}

pub(super) fn gadgets() -> CrdBuilder {
    CrdBuilder::new("example.com", "Gadget")
}

/// Specification of a decorator of things, whose attachments are ConfigMaps.
pub(super) fn decorating() -> Value {
    json!({
        "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
        "attachments": [{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
        }],
        "hooks": {"sync": hook()},
    })
}

pub(super) fn hook() -> Value {
    json!({"webhook": {"url": "http://function/"}})
}

/// Thing in the namespace `default`, with this metadata beside its name.
pub(super) fn thing(name: &str, metadata: Value) -> Value {
    object("Thing", name, metadata)
}

pub(super) fn object(kind: &str, name: &str, metadata: Value) -> Value {
    let mut all = json!({"name": name, "namespace": "default"});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": all})
}

/// Attachment with this value.
pub(super) fn config_map(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value},
    })
}
