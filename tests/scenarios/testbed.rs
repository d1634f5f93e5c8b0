//! Test bed of a scenario: a harness on either server, and the leak check at the end.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use pilotlight::{
    controller::{Controller, Handler},
    informer::{InformerOptions, Selector},
    manager::ControllerName,
    meta::{Hook, HookError, MetaOptions, SUPERVISOR, Supervisor, api::CompositeController},
    testing::{CrdBuilder, LeakOracle, Measure, open_watches},
};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use crate::support::{
    ControllerVariant, Embedded, Harness, HarnessOptions, PATIENCE, Position, RecordingReconciler,
    Server, eventually, install_own_crds_on, type_of, until,
};

/// Label that selects the declared controllers of one scenario.
const LABEL: &str = "pilotlight.test/scope";

/// Bound on whatever must happen at once; longer than the simulated server's own delays.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Environment of a scenario: a [`Harness`] with a leak oracle that has taken its baseline.
pub(crate) struct Testbed {
    harness: Harness<'static>,
    leaks: LeakOracle,
    baseline: Measure,
    /// Number of tasks alive before the harness was created.
    tasks_before: usize,
    /// Start of the record of a server that was restarted after a kill.
    restarted: Mutex<Option<Position>>,
    end: End,
}

/// Panics on drop if the scenario has skipped its leak check.
#[derive(Default)]
struct End {
    is_judged: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        let is_missed = !self.is_judged && !thread::panicking();
        assert!(!is_missed, "a scenario ends with Testbed::finish or Testbed::terminate");
    }
}

impl Deref for Testbed {
    type Target = Harness<'static>;

    fn deref(&self) -> &Self::Target {
        &self.harness
    }
}

impl Testbed {
    pub(crate) async fn on(server: Server<'static>, name: &str) -> Self {
        Self::with(server, name, HarnessOptions::default()).await
    }

    /// As [`Testbed::on`], with other options. The linger of unused informers is always short.
    pub(crate) async fn with(server: Server<'static>, name: &str, options: HarnessOptions) -> Self {
        let linger = Duration::from_millis(500);
        let informers = InformerOptions { linger, ..options.informers };
        // On the control plane Pilotlight has a separate runtime, which ends with the harness.
        let tasks_before = tasks();
        let harness = Harness::at(server, name, HarnessOptions { informers, ..options }).await;
        if !harness.server.is_simulated() {
            harness.warm_up().await;
        }
        let leaks = harness.leaks();
        let baseline = leaks.baseline().await;
        let (restarted, end) = (Mutex::default(), End::default());
        Self { harness, leaks, baseline, tasks_before, restarted, end }
    }

    /// Adds an embedded controller of a CRD's objects and returns its recorder.
    pub(crate) async fn controller(&self, name: &str, crd: &CrdBuilder) -> RecordingReconciler {
        let recorder = RecordingReconciler::new(type_of(crd, "v1"));
        Embedded.add(self, name, &recorder).await;
        recorder
    }

    /// Adds a controller that waits for one type and also reconciles each object of an optional
    /// type.
    pub(crate) async fn controller_with_optional(
        &self,
        name: &str,
        crd: &CrdBuilder,
        optional: &CrdBuilder,
    ) -> RecordingReconciler {
        let recorder = RecordingReconciler::new(type_of(crd, "v1"));
        let controller = Controller::builder(name)
            .for_type(type_of(crd, "v1"))
            .conditional()
            .watches_type(type_of(optional, "v1"), Handler::Object)
            .optional()
            .build(&self.cluster, recorder.clone())
            .unwrap();
        self.add(name, Arc::new(controller)).await;
        recorder
    }

    /// Number of tasks alive before the scenario began.
    pub(crate) fn tasks(&self) -> usize {
        usize::try_from(self.baseline.total("tasks")).unwrap()
    }

    /// Asserts that `happens` takes at most a tenth of a second on the simulated server, whose time
    /// is exact.
    pub(crate) async fn at_once<T>(&self, happens: impl Future<Output = T>) -> T {
        self.within(AT_ONCE, happens).await
    }

    /// As [`Testbed::at_once`], with another bound.
    pub(crate) async fn within<T>(&self, most: Duration, happens: impl Future<Output = T>) -> T {
        let begin = Instant::now();
        let what = happens.await;
        let took = begin.elapsed();
        assert!(took <= most || !self.server.is_simulated(), "it took {took:?}, not {most:?}");
        what
    }

    /// Removes all controllers, stops the manager, and asserts that it ends without an error and
    /// leaves nothing behind. Drop every client first, including `scope.api()`: each has a task.
    pub(crate) async fn finish(self) {
        let names: Vec<_> = self.manager.status().keys().cloned().collect();
        let removals = names.iter().filter(|name| !is_the_cluster(name)).map(async |name| {
            let removed = time::timeout(PATIENCE, self.manager.remove(name.as_str())).await;
            assert!(removed.is_ok(), "{name} is not removed in time");
        });
        join_all(removals).await;
        let Self { harness, mut leaks, baseline, tasks_before, restarted, mut end } = self;
        end.is_judged = true;
        if let Some(position) = restarted.into_inner().unwrap() {
            // Only watches since the restart count: the record of the killed server lacks the ends
            // of the earlier ones.
            leaks = leaks.expect_more("watches", "");
            until("every watch is closed", async || {
                let events = harness.events(position).await;
                let mut open = open_watches(&events);
                open.retain(|event| event.group.ends_with(&harness.scope.group));
                if open.is_empty() { Ok(()) } else { Err(format!("{open:#?}")) }
            })
            .await;
        }
        assert_nothing_grew(leaks, &baseline).await;
        let server = harness.server.clone();
        harness.end().await.unwrap();
        nothing_is_left(&server, tasks_before).await;
    }

    /// Stops the manager with its controllers running, as the end of the process does. Returns the
    /// elapsed time.
    pub(crate) async fn terminate(self) -> Duration {
        let Self { harness, leaks, baseline, tasks_before, restarted: _, mut end } = self;
        end.is_judged = true;
        let server = harness.server.clone();
        let begin = Instant::now();
        harness.stopped().await.unwrap();
        let took = begin.elapsed();
        assert_nothing_grew(leaks, &baseline).await;
        drop(harness);
        nothing_is_left(&server, tasks_before).await;
        took
    }

    // --- the cluster

    /// Stops the API server.
    pub(crate) async fn stop_server(&self) {
        match self.server.script() {
            Some(script) => script.stop(),
            None => self.plane().stop_api_server().await,
        }
    }

    /// Starts the API server again and returns the start of its new record. The record of a killed
    /// server lacks the ends of its watches.
    pub(crate) async fn start_server(&self) -> Position {
        match self.server.script() {
            Some(script) => {
                let position = self.position();
                script.start();
                position
            }
            None => {
                self.plane().start_api_server().await.unwrap();
                let position = self.position();
                *self.restarted.lock().unwrap() = Some(position);
                position
            }
        }
    }

    pub(crate) fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.scope.client())
    }

    /// Installs a CRD and waits until its objects can be requested.
    pub(crate) async fn install(&self, crd: &CrdBuilder) {
        self.scope.install_crd(crd).await.unwrap();
        self.scope.wait_established(crd).await.unwrap();
        self.scope.wait_served(crd, "v1").await.unwrap();
    }

    /// Deletes a CRD and waits until it is gone.
    pub(crate) async fn uninstall(&self, crd: &CrdBuilder) {
        self.scope.delete_crd(crd).await.unwrap();
        self.scope.wait_gone(crd).await.unwrap();
    }

    /// Merges a change into a CRD.
    pub(crate) async fn edit_crd(&self, crd: &CrdBuilder, change: Value) {
        let by = PatchParams::default();
        self.crds().patch(&crd.name(), &by, &Patch::Merge(change)).await.unwrap();
    }

    /// Merges a change into the status of a CRD, which only the server writes outside of tests.
    pub(crate) async fn edit_crd_status(&self, crd: &CrdBuilder, change: Value) {
        let by = PatchParams::default();
        self.crds().patch_status(&crd.name(), &by, &Patch::Merge(change)).await.unwrap();
    }

    /// Creates an object with this finalizer and returns its uid.
    pub(crate) async fn create_held(
        &self,
        crd: &CrdBuilder,
        name: &str,
        finalizer: &str,
    ) -> String {
        let mut object = crd.object(name, json!({ "size": 1 }));
        object.metadata.finalizers = Some(vec![finalizer.to_owned()]);
        let api = self.scope.api(crd, "v1");
        let created = api.create(&PostParams::default(), &object).await.unwrap();
        created.metadata.uid.unwrap()
    }

    /// Merges a change into an object.
    pub(crate) async fn edit(&self, crd: &CrdBuilder, name: &str, change: Value) {
        let api = self.scope.api(crd, "v1");
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    pub(crate) async fn resize(&self, crd: &CrdBuilder, name: &str, size: i64) {
        self.edit(crd, name, json!({ "spec": { "size": size } })).await;
    }

    pub(crate) async fn delete(&self, crd: &CrdBuilder, name: &str) {
        let api = self.scope.api(crd, "v1");
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.scope.client(), &self.scope.namespace)
    }

    // --- declared controllers

    /// Adds a supervisor of declared controllers, whose hooks are called in this process.
    pub(crate) async fn supervise(&self, hook: &InProcessHook) {
        install_own_crds_on(self.scope.client()).await;
        self.supervise_without_crds(hook).await;
    }

    /// As [`Testbed::supervise`], where the CRD of declared controllers may be missing.
    pub(crate) async fn supervise_without_crds(&self, hook: &InProcessHook) {
        let shared: Arc<dyn Hook> = Arc::new(hook.clone());
        let options = MetaOptions {
            hooks: Some(Arc::new(move |_, _| Arc::clone(&shared))),
            target: Selector::label(LABEL, &self.scope.namespace),
            ..MetaOptions::default()
        };
        let supervisor =
            self.enter(|| Supervisor::new(&self.cluster, self.manager.clone(), options)).unwrap();
        self.add(SUPERVISOR, Arc::new(supervisor)).await;
    }

    /// Name of a declared controller, from its last part.
    pub(crate) fn declared_name(&self, last: &str) -> String {
        format!("{}-{last}", self.scope.namespace)
    }

    /// Name of a declared controller in the manager.
    pub(crate) fn runnable(&self, last: &str) -> String {
        format!("CompositeController-{}", self.declared_name(last))
    }

    pub(crate) fn declarations(&self) -> Api<DynamicObject> {
        Api::all_with(self.scope.client(), &ApiResource::erase::<CompositeController>(&()))
    }

    /// Declares a controller of a CRD's objects, with ConfigMaps as children.
    pub(crate) async fn declare(&self, last: &str, crd: &CrdBuilder) {
        self.declare_with(last, crd, |_| ()).await;
    }

    /// As [`Testbed::declare`], with an edit of the spec.
    pub(crate) async fn declare_with(
        &self,
        last: &str,
        crd: &CrdBuilder,
        edit: impl FnOnce(&mut Value),
    ) {
        let parent = crd.api_resource("v1");
        let mut object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {
                "name": self.declared_name(last),
                "labels": { LABEL: self.scope.namespace },
            },
            "spec": {
                "generateSelector": true,
                "parentResource": { "apiVersion": parent.api_version, "resource": parent.plural },
                "childResources": [{
                    "apiVersion": "v1",
                    "resource": "configmaps",
                    "updateStrategy": { "method": "InPlace" },
                }],
                "hooks": { "sync": { "webhook": { "url": "http://in-process.test/" } } },
            },
        });
        edit(&mut object["spec"]);
        let object = serde_json::from_value(object).unwrap();
        self.declarations().create(&PostParams::default(), &object).await.unwrap();
    }

    /// Deletes the object of a declared controller and waits until its controller is removed.
    pub(crate) async fn withdraw(&self, last: &str) {
        let name = self.declared_name(last);
        self.declarations().delete(&name, &DeleteParams::default()).await.unwrap();
        let gone = ControllerName::from(self.runnable(last).as_str());
        let mut snapshots = self.manager.watch();
        let gone = snapshots.wait_for(|snapshot| snapshot.get(&gone).is_none());
        let late = time::timeout(PATIENCE, gone).await.is_err();
        assert!(!late, "{name} is not removed in time");
    }
}

/// Takes the oracle by value, because it holds the objects that it measures.
async fn assert_nothing_grew(leaks: LeakOracle, baseline: &Measure) {
    // A connection is shared by several watches and stays pooled, and a state or verb keeps its
    // series once it was seen.
    let leaks = leaks
        .expect_more("connections", "")
        .expect_more("series", "pilotlight_discovery_watch_failures_total")
        // The lease is watched from the first read on, which may follow the baseline.
        .expect_more("watches", "leases")
        .expect_more("series", "rest_client_")
        .expect_more("series", "pilotlight_types{")
        .expect_more("series", "pilotlight_informers{");
    leaks.assert_baseline(baseline).await;
    let most = baseline.total("connections") + 1;
    eventually("one connection more at most", || match leaks.measure().total("connections") {
        open if open <= most => Ok(()),
        open => Err(format!("{open} are open, {most} at most")),
    })
    .await;
}

/// Asserts that no task of the test's runtime and no request on the simulated server is left.
async fn nothing_is_left(server: &Server<'_>, tasks_before: usize) {
    let Some(script) = server.script() else { return };
    eventually("no request is open when the manager has ended", || {
        let open: Vec<_> = script.requests().into_iter().filter(|it| it.is_open()).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:#?}")) }
    })
    .await;
    eventually("no task outlives the manager", || match tasks() {
        alive if alive <= tasks_before => Ok(()),
        alive => Err(format!("{alive} tasks, {tasks_before} before")),
    })
    .await;
}

fn is_the_cluster(name: &ControllerName) -> bool {
    name.as_str() == "cluster"
}

/// Number of live tasks in the test's runtime.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

type RespondToHook = dyn Fn(Value) -> BoxFuture<'static, Result<Value, HookError>> + Send + Sync;

/// Hook in the test's process; records its calls. Clones share the record.
#[derive(Clone)]
pub(crate) struct InProcessHook {
    respond: Arc<RespondToHook>,
    calls: Arc<Mutex<Vec<HookCall>>>,
}

/// Call of a hook.
#[derive(Clone, Debug)]
pub(crate) struct HookCall {
    /// Name of the parent.
    pub(crate) name: String,
    /// True if the call was answered; false also if it was cancelled.
    pub(crate) answered: bool,
}

impl InProcessHook {
    pub(crate) fn new<F>(respond: impl Fn(Value) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Value, HookError>> + Send + 'static,
    {
        let answers = move |request| Box::pin(respond(request)) as BoxFuture<'static, _>;
        Self { respond: Arc::new(answers), calls: Arc::default() }
    }

    /// Creates a hook whose responses hold one ConfigMap of the parent's name, with its size.
    pub(crate) fn one_config_map() -> Self {
        Self::new(|request| async move { Ok(one_config_map(&request)) })
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> Vec<HookCall> {
        self.calls.lock().unwrap().clone()
    }

    /// Waits until there were `times` calls for a parent.
    pub(crate) async fn called(&self, name: &str, times: usize) {
        eventually(&format!("{times} calls about {name}"), || {
            let calls = self.calls();
            let count = calls.iter().filter(|call| call.name == name).count();
            if count >= times { Ok(()) } else { Err(format!("{count} calls")) }
        })
        .await;
    }
}

impl Hook for InProcessHook {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let name = request["parent"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(HookCall { name, answered: false });
            calls.len() - 1
        };
        let (answer, calls) = ((self.respond)(request), Arc::clone(&self.calls));
        Box::pin(async move {
            let answer = answer.await;
            calls.lock().unwrap()[number].answered = true;
            answer.map(|answer| answer.to_string().into())
        })
    }
}

/// Hook response with one ConfigMap of the parent's name, which holds its size.
pub(crate) fn one_config_map(request: &Value) -> Value {
    let parent = &request["parent"];
    json!({
        "status": { "size": parent["spec"]["size"] },
        "children": [{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": parent["metadata"]["name"] },
            "data": { "size": parent["spec"]["size"].to_string() },
        }],
    })
}

#[test]
#[should_panic(expected = "a scenario ends with")]
fn a_scenario_that_forgets_its_end_fails() {
    drop(End::default());
}
