//! Harness of the bench: a manager on a control plane, and plain clients as reference.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use axum::{Json, Router, routing::post};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, PostParams, WatchEvent, WatchParams},
    runtime::{
        conditions::is_crd_established,
        wait::{Condition, await_condition},
    },
};
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Outcome, ReconcileError, Reconciler, Request,
    },
    kind::TypeRef,
    manager::{
        ControllerState, Manager, ManagerOptions, RunnableOptions, Transition, TransitionKind,
    },
    meta::{self, MetaOptions, SUPERVISOR, Supervisor, api::CompositeController},
    testing::{ControlPlane, CrdBuilder, TestScope},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{broadcast, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::controller_variant::ControllerVariant;

/// Serves a hook that answers with no children; returns its URL.
async fn hook(recorder: RecordingReconciler, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/sync", listener.local_addr().unwrap());
    let answer = post(move |Json(request): Json<Value>| async move {
        recorder.record(request["parent"]["metadata"]["name"].as_str().unwrap());
        Json(json!({"status": {}, "children": []}))
    });
    let router = Router::new().route("/sync", answer);
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// Installs our CRDs and declares a controller of widgets.
async fn declare(client: Client, scope: &TestScope, hook: &str) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in meta::crds() {
        crds.create(&PostParams::default(), &crd).await.unwrap();
        let name = crd.metadata.name.unwrap();
        await_condition(crds.clone(), &name, is_crd_established()).await.unwrap();
    }
    let controller: CompositeController = serde_json::from_value(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": {"name": "measured"},
        "spec": {
            "parentResource": {"apiVersion": format!("{}/v1", scope.group), "resource": "widgets"},
            "childResources": [{"apiVersion": "v1", "resource": "configmaps"}],
            "generateSelector": true,
            "hooks": {"sync": {"webhook": {"url": hook}}}
        }
    }))
    .unwrap();
    Api::all(client).create(&PostParams::default(), &controller).await.unwrap();
}

pub(crate) struct Harness {
    pub(crate) variant: ControllerVariant,
    pub(crate) scope: TestScope,
    pub(crate) requests: Requests,
    pub(crate) recorder: RecordingReconciler,
    crds: watch::Receiver<PlainCrd>,
    transitions: broadcast::Receiver<Transition>,
    stop: CancellationToken,
    manager: AbortHandle,
    tasks: JoinSet<()>,
}

impl Harness {
    pub(crate) async fn start(plane: &ControlPlane, variant: ControllerVariant) -> Self {
        let scope = plane.scope(variant.word()).await.unwrap();
        let requests = Requests::default();
        let recorder = RecordingReconciler::default();
        let client = requests.client(plane, &scope.group);
        let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
        let mut manager = Manager::new(ManagerOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::fail_fast()).unwrap();
        let mut tasks = JoinSet::new();
        match variant {
            ControllerVariant::Embedded => {
                let controller = Controller::builder(variant.name())
                    .for_type(TypeRef::resource(&scope.group, "v1", "widgets"))
                    .conditional()
                    .build(&cluster, recorder.clone())
                    .unwrap();
                manager
                    .add(variant.name(), Arc::new(controller), RunnableOptions::default())
                    .unwrap();
            }
            ControllerVariant::Composite => {
                let hook = hook(recorder.clone(), &mut tasks).await;
                declare(plane.client().unwrap(), &scope, &hook).await;
                let options = MetaOptions::default();
                let supervisor = Supervisor::new(&cluster, manager.handle(), options).unwrap();
                manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default()).unwrap();
            }
        }
        let stop = CancellationToken::new();
        let crds = PlainCrd::watch(plane.client().unwrap(), &scope, stop.clone(), &mut tasks).await;
        let transitions = manager.handle().transitions();
        let token = stop.clone();
        let manager = tasks.spawn(async move { manager.run(token).await.unwrap() });
        Self { variant, scope, requests, recorder, crds, transitions, stop, manager, tasks }
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while !self.manager.is_finished() {
            self.transitions.recv().await.ok();
        }
        self.tasks.shutdown().await;
    }

    pub(crate) fn crd(&self) -> CrdBuilder {
        CrdBuilder::new(&self.scope.group, "Widget")
    }

    /// Installs the CRD and waits until objects can be created without delay.
    pub(crate) async fn install(&mut self) -> CrdBuilder {
        let crd = self.crd();
        self.scope.install_crd(&crd).await.unwrap();
        self.scope.wait_established(&crd).await.unwrap();
        self.running().await;
        tokio::time::sleep(Duration::from_millis(2200)).await;
        crd
    }

    pub(crate) async fn uninstall(&mut self, crd: &CrdBuilder) {
        self.scope.delete_crd(crd).await.unwrap();
        self.done().await;
    }

    pub(crate) async fn running(&mut self) -> Instant {
        self.transition(|kind| *kind == TransitionKind::Entered(ControllerState::Running)).await
    }

    pub(crate) async fn done(&mut self) -> Instant {
        self.transition(|kind| matches!(kind, TransitionKind::Done(_))).await
    }

    async fn transition(&mut self, wanted: impl Fn(&TransitionKind) -> bool) -> Instant {
        loop {
            let transition = self.transitions.recv().await.unwrap();
            if transition.name.as_str() == self.variant.name() && wanted(&transition.kind) {
                return Instant::now();
            }
        }
    }

    /// Returns the time at which the plain watcher saw the CRD established.
    pub(crate) async fn established(&mut self) -> Instant {
        self.crds.wait_for(|crd| crd.established.is_some()).await.unwrap().established.unwrap()
    }

    /// Returns the time at which the plain watcher saw the CRD deleted.
    pub(crate) async fn removed(&mut self) -> Instant {
        self.crds.wait_for(|crd| crd.removed.is_some()).await.unwrap().removed.unwrap()
    }

    /// Watches the type with a plain client.
    pub(crate) async fn plain_watch(&mut self, crd: &CrdBuilder) -> PlainWatch {
        let api = self.scope.api(crd, "v1");
        let version = api.list(&ListParams::default()).await.unwrap().metadata.resource_version;
        let events = api.watch(&WatchParams::default(), &version.unwrap()).await.unwrap();
        let (sender, seen) = watch::channel(HashMap::new());
        let mut events: BoxStream<'static, _> = events.boxed();
        let task = spawn(async move {
            while let Ok(Some(event)) = events.try_next().await {
                if let WatchEvent::Added(object) = event {
                    note(&sender, object);
                }
            }
        });
        PlainWatch { seen, task }
    }

    /// Returns the time at which a plain client that lists repeatedly has `count` objects.
    pub(crate) fn plain_list(
        &mut self,
        crd: &CrdBuilder,
        count: usize,
    ) -> impl Future<Output = Instant> + use<> {
        let api = self.scope.api(crd, "v1");
        let task = spawn(async move {
            loop {
                match api.list(&ListParams::default().limit(500)).await {
                    Ok(list) if list.items.len() >= count => return Instant::now(),
                    Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        });
        async move { task.await.unwrap() }
    }
}

/// Last state of the CRD as seen by a plain watcher of kube. The watch is opened before the CRD is
/// created.
#[derive(Clone, Copy, Debug, Default)]
struct PlainCrd {
    established: Option<Instant>,
    removed: Option<Instant>,
}

impl PlainCrd {
    async fn watch(
        client: Client,
        scope: &TestScope,
        stop: CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> watch::Receiver<Self> {
        let api: Api<CustomResourceDefinition> = Api::all(client);
        let name = CrdBuilder::new(&scope.group, "Widget").name();
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let version = api.list(&ListParams::default().limit(1)).await.unwrap();
        let version = version.metadata.resource_version.unwrap();
        let mut events = api.watch(&params, &version).await.unwrap().boxed();
        let (sender, receiver) = watch::channel(Self::default());
        tasks.spawn(async move {
            loop {
                let event = tokio::select! {
                    event = events.try_next() => event.unwrap().expect("the watch stays open"),
                    () = stop.cancelled() => return,
                };
                let now = Instant::now();
                match event {
                    WatchEvent::Added(crd) | WatchEvent::Modified(crd) => {
                        let deleting = crd.metadata.deletion_timestamp.is_some();
                        let established = is_crd_established().matches_object(Some(&crd));
                        sender.send_modify(|seen| {
                            if established && !deleting && seen.established.is_none() {
                                *seen = Self { established: Some(now), removed: None };
                            }
                        });
                    }
                    WatchEvent::Deleted(_) => {
                        sender.send_replace(Self { established: None, removed: Some(now) });
                    }
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
                }
            }
        });
        receiver
    }
}

#[expect(clippy::disallowed_methods, reason = "the caller awaits the handle")]
fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(future)
}

fn note(sender: &watch::Sender<HashMap<String, Instant>>, object: DynamicObject) {
    let name = object.metadata.name.unwrap_or_default();
    sender.send_modify(|seen| {
        seen.entry(name).or_insert_with(Instant::now);
    });
}

pub(crate) struct PlainWatch {
    seen: watch::Receiver<HashMap<String, Instant>>,
    task: JoinHandle<()>,
}

impl PlainWatch {
    pub(crate) async fn seen(&mut self, name: &str) -> Instant {
        self.seen.wait_for(|seen| seen.contains_key(name)).await.unwrap()[name]
    }
}

impl Drop for PlainWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Time at which each object was first reconciled, or its hook first called.
#[derive(Clone, Default)]
pub(crate) struct RecordingReconciler {
    seen: Arc<watch::Sender<HashMap<String, Instant>>>,
}

impl RecordingReconciler {
    pub(crate) fn record(&self, name: &str) {
        self.seen.send_if_modified(|seen| {
            let known = seen.len();
            seen.entry(name.to_owned()).or_insert_with(Instant::now);
            seen.len() > known
        });
    }

    pub(crate) fn forget(&self) {
        self.seen.send_modify(HashMap::clear);
    }

    pub(crate) async fn first(&self, name: &str) -> Instant {
        self.seen.subscribe().wait_for(|seen| seen.contains_key(name)).await.unwrap()[name]
    }

    pub(crate) fn last(&self) -> Instant {
        self.seen.borrow().values().max().copied().unwrap()
    }
}

impl Reconciler for RecordingReconciler {
    async fn reconcile(&self, request: Request, _: Context) -> Result<Outcome, ReconcileError> {
        self.record(&request.name);
        Ok(Outcome::Done)
    }
}

/// Time of the first request for the type by the measured client.
#[derive(Clone, Default)]
pub(crate) struct Requests {
    first: Arc<watch::Sender<Option<Instant>>>,
}

impl Requests {
    /// Returns a client whose first request to `group` is recorded.
    fn client(&self, plane: &ControlPlane, group: &str) -> Client {
        let inner = pilotlight::transport::client(plane.config(), Default::default()).unwrap();
        let prefix = format!("/apis/{group}/");
        let first = self.first.clone();
        let namespace = inner.default_namespace().to_owned();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            if request.uri().path().starts_with(&prefix) {
                first.send_if_modified(|first| {
                    let new = first.is_none();
                    first.get_or_insert_with(Instant::now);
                    new
                });
            }
            let inner = inner.clone();
            async move { inner.send(request).await }
        });
        Client::new(service, namespace)
    }

    pub(crate) fn forget(&self) {
        self.first.send_replace(None);
    }

    pub(crate) async fn first_list(&self) -> Instant {
        self.first.subscribe().wait_for(Option::is_some).await.unwrap().unwrap()
    }
}
