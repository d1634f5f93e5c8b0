//! Scenarios 48 to 52: the process, its own CRDs and its rights change.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use pilotlight::{
    controller::{Context, Controller, Outcome, ReconcileError, Reconciler, Request},
    discovery::{DiscoveryMode, DiscoveryOptions},
    manager::{
        ConditionalRunnable, ControllerState, DoneReason, Epoch, Readiness, RunResult, Runnable,
        RunnableStatus,
    },
    meta::{SUPERVISOR, api::CompositeController},
    testing::CrdBuilder,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Testbed, testbed::InProcessHook};
use crate::support::{
    Act, HarnessOptions, PATIENCE, RecordingReconciler, Rule, Server, install_own_crds_on,
    metrics_text, type_of, until,
};

scenarios! {
    48 termination_with_hundreds_of_controllers both:
        "each is done once within the grace, and no status on the server reports it";
    49 the_managers_own_crds_are_deleted_and_created_again
        alone:
        "the supervisor waits for TypeAbsent before the CRDs exist and while they are deleted, as \
         its metric and readyz report; declared controllers continue in their epoch; when the \
         CRDs return, an equal object keeps its run, an edited one replaces it, and a missing one \
         keeps it for a minute";
    50 no_right_to_read_crds both:
        "types are found by polling; the registry and the status of waiting controllers report \
         the polling and the missing right, until the right is granted";
    51 a_controller_creates_the_type_of_another both:
        "the second controller drains and stops with the type that the first removes, then the \
         first";
    52 a_thousand_lifecycle_events
        simulated("it would take half an hour; examples and benches have the long run"):
        "one epoch for each life of the type, and nothing is left of any epoch";
}

/// Name of the CRD of declared controllers.
const OWN: &str = "compositecontrollers.metacontroller.k8s.io";
/// Grace of a controller's reconciles.
const GRACE: Duration = Duration::from_secs(5);

/// Reconciler that ignores the cancellation.
struct Uncancellable;

impl Reconciler for Uncancellable {
    async fn reconcile(&self, _: Request, _: Context) -> Result<Outcome, ReconcileError> {
        future::pending().await
    }
}

/// Counts its ends.
struct Counted {
    controller: Controller,
    ended: Arc<AtomicUsize>,
}

impl Runnable for Counted {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let (run, ended) = (self.controller.start(epoch), Arc::clone(&self.ended));
        Box::pin(async move {
            let end = run.await;
            ended.fetch_add(1, Ordering::SeqCst);
            end
        })
    }

    fn reports_running(&self) -> bool {
        self.controller.reports_running()
    }

    fn keeps_grace(&self) -> bool {
        self.controller.keeps_grace()
    }
}

impl ConditionalRunnable for Counted {
    fn ready(&self) -> Readiness {
        self.controller.ready()
    }
}

async fn termination_with_hundreds_of_controllers(server: Server<'static>) {
    let controllers = if server.is_simulated() { 500 } else { 50 };
    let testbed = Testbed::on(server.clone(), "process-term").await;
    let crds: Vec<_> = ["Alpha", "Beta", "Gamma", "Delta", "Epsilon"]
        .map(|kind| CrdBuilder::new(&testbed.scope.group, kind))
        .into();
    for crd in &crds {
        testbed.install(crd).await;
        testbed.create(crd, "first", 1).await;
    }
    let recorder = RecordingReconciler::new(type_of(&crds[0], "v1"));
    let ended = Arc::<AtomicUsize>::default();
    for number in 0..controllers {
        let recorder = RecordingReconciler::new(type_of(&crds[number % crds.len()], "v1"));
        let name = format!("c{number}");
        let controller = Controller::builder(name.as_str())
            .for_type(recorder.type_ref().clone())
            .conditional()
            .build(&testbed.cluster, recorder)
            .unwrap();
        testbed.add(&name, Arc::new(Counted { controller, ended: Arc::clone(&ended) })).await;
    }
    let deaf = Controller::builder("deaf")
        .for_type(recorder.type_ref().clone())
        .conditional()
        .build(&testbed.cluster, Uncancellable)
        .unwrap();
    testbed.add("deaf", Arc::new(deaf)).await;
    let hook = InProcessHook::new(|_| future::pending());
    testbed.supervise(&hook).await;
    testbed.declare("declared", &crds[1]).await;
    hook.called("first", 1).await;
    for number in 0..controllers {
        testbed.running(&format!("c{number}"), 1).await;
    }
    until("its status is written", async || {
        let declared =
            testbed.declarations().get(&testbed.declared_name("declared")).await.unwrap();
        match declared.data["status"]["state"].as_str() {
            Some("Running") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let (position, user) = (testbed.position(), testbed.user.clone());
    let declared = testbed.declared_name("declared");
    let took = testbed.terminate().await;

    // On a busy machine, fifty controllers take time to end.
    let late = Duration::from_millis(if server.is_simulated() { 100 } else { 10_000 });
    assert!(took < GRACE + late, "{took:?}");
    assert_eq!(ended.load(Ordering::SeqCst), controllers, "each ends once, within its grace");
    let mut written = server.events(position).await;
    let reads = ["get", "list", "watch"];
    written.retain(|event| event.user == user && !reads.contains(&event.verb.as_str()));
    assert!(written.is_empty(), "{written:#?}");
    let client = match server.script() {
        Some(script) => script.client(),
        None => server.plane().client().unwrap(),
    };
    let declarations = Api::<CompositeController>::all(client);
    let status = declarations.get(&declared).await.unwrap().status.unwrap();
    assert_eq!(status.state.as_deref(), Some("Running"), "another process may continue it");
    declarations.delete(&declared, &DeleteParams::default()).await.unwrap();
}

/// Waits until the child has the size of its parent.
async fn child_follows(testbed: &Testbed, size: &str) {
    let maps = testbed.config_maps();
    until("the child follows", async || {
        let child = maps.get_opt("gear").await.unwrap();
        let data = child.and_then(|child| child.data).unwrap_or_default();
        if data.get("size").is_some_and(|it| it == size) { Ok(()) } else { Err(size.to_owned()) }
    })
    .await;
}

/// Asserts that declared controllers run in their first epochs.
fn first_epochs_run(testbed: &Testbed, names: &[&str]) {
    for last in names {
        let status = testbed.status(&testbed.runnable(last));
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1), "{last}");
    }
}

/// Waits until the status of a declared controller says that it runs in this epoch.
async fn status_is_written(testbed: &Testbed, last: &str, epoch: i64) {
    until("its status is written", async || {
        let declared = testbed.declarations().get(&testbed.declared_name(last)).await.unwrap();
        let status = declared.data["status"].clone();
        let found = (status["state"].as_str(), status["epoch"].as_i64());
        if found == (Some("Running"), Some(epoch)) { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
}

async fn the_managers_own_crds_are_deleted_and_created_again(server: Server<'static>) {
    let testbed = Testbed::on(server, "process-own").await;
    let (crd, gadgets) = (testbed.widgets(), CrdBuilder::new(&testbed.scope.group, "Gadget"));
    let hook = InProcessHook::one_config_map();
    testbed.supervise_without_crds(&hook).await;
    let waits = || testbed.until(SUPERVISOR, "waits", |it| it.reason == "TypeAbsent");
    let waiting = waits().await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("compositecontrollers"), "{}", waiting.message);

    install_own_crds_on(testbed.scope.client()).await;
    testbed.state(SUPERVISOR, ControllerState::Running).await;
    let names = ["same", "edited", "gone"];
    for last in names {
        let edit = |spec: &mut Value| {
            spec["hooks"]["sync"]["webhook"]["timeout"] = json!("9s");
            if last != "same" {
                let selector = json!({ "matchLabels": { "of": last } });
                spec["parentResource"]["labelSelector"] = selector;
            }
        };
        testbed.declare_with(last, if last == "same" { &crd } else { &gadgets }, edit).await;
    }
    testbed.install(&crd).await;
    testbed.install(&gadgets).await;
    testbed.create(&crd, "gear", 1).await;
    let child = async |size: &str| child_follows(&testbed, size).await;
    child("1").await;
    for last in names {
        testbed.running(&testbed.runnable(last), 1).await;
    }
    let declared =
        async |last: &str| testbed.declarations().get(&testbed.declared_name(last)).await.unwrap();
    let (kept, mut edited) = (declared("same").await, declared("edited").await);

    testbed.crds().delete(OWN, &DeleteParams::default()).await.unwrap();
    let waiting = waits().await;
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    let gone = |crd: Option<&CustomResourceDefinition>| crd.is_none();
    timeout(PATIENCE, await_condition(testbed.crds(), OWN, gone)).await.unwrap().unwrap();
    testbed.resize(&crd, "gear", 2).await;
    child("2").await;
    first_epochs_run(&testbed, &names);
    let series =
        "pilotlight_controller_state{controller=\"compositecontrollers\",state=\"Waiting\"} 1";
    let metrics = metrics_text(&testbed.metrics);
    assert!(metrics.lines().any(|line| line == series), "{metrics}");

    install_own_crds_on(testbed.scope.client()).await;
    testbed.running(SUPERVISOR, 2).await;
    edited.data["spec"]["childResources"][0]["optional"] = json!(true);
    for mut object in [kept, edited] {
        object.metadata.uid = None;
        object.metadata.resource_version = None;
        object.metadata.managed_fields = None;
        object.data.as_object_mut().unwrap().remove("status");
        testbed.declarations().create(&PostParams::default(), &object).await.unwrap();
    }

    // The equal object keeps its run, the edited one replaces it, and the missing one keeps it for
    // its grace.
    testbed.running(&testbed.runnable("edited"), 2).await;
    assert_eq!(testbed.done(&testbed.runnable("edited"), 1).await, DoneReason::Superseded);
    testbed.resize(&crd, "gear", 3).await;
    child("3").await;
    first_epochs_run(&testbed, &["same", "gone"]);
    for (last, epoch) in [("same", 1), ("edited", 2)] {
        status_is_written(&testbed, last, epoch).await;
    }

    // A deletion while the CRD exists stops the controller.
    testbed.withdraw("same").await;
    assert_eq!(testbed.done(&testbed.runnable("same"), 1).await, DoneReason::Cancelled);
    testbed.withdraw("edited").await;
    testbed.finish().await;
}

async fn no_right_to_read_crds(server: Server<'static>) {
    let discovery =
        DiscoveryOptions { static_interval: Duration::from_millis(500), ..Default::default() };
    // For the request that opens the pooled connections.
    let rights = vec![Rule::to_watch("", "namespaces")];
    let options = HarnessOptions { discovery, rights, ..HarnessOptions::powerless() };
    let testbed = Testbed::with(server, "process-static", options).await;
    let crd = testbed.widgets();
    testbed.grant("widgets", &[Rule::all_of(&testbed.scope.group, "widgets")]).await;
    let recorder = testbed.controller("polled", &crd).await;

    let mut mode = testbed.cluster.types.mode();
    let said =
        timeout(PATIENCE, mode.wait_for(|mode| matches!(mode, DiscoveryMode::Static(_)))).await;
    let DiscoveryMode::Static(reason) = said.expect("in time").unwrap().clone() else {
        unreachable!()
    };
    assert!(reason.contains("customresourcedefinitions") && reason.contains("grant"), "{reason}");
    for epoch in 1..=2 {
        let waiting = testbed.until("polled", "waits", |it| it.reason == "TypeAbsent").await;
        let said = format!("(discovery is polled: {reason})");
        assert!(waiting.message.contains(&said), "{}", waiting.message);
        testbed.install(&crd).await;
        testbed.running("polled", epoch).await;
        let uid = testbed.create(&crd, "found", 1).await;
        assert_eq!(recorder.saw("found", epoch).await.uid, Some(uid));
        testbed.uninstall(&crd).await;
        assert_eq!(testbed.done("polled", epoch).await, DoneReason::TypeGone);
    }

    assert_eq!(testbed.assert_orderly("polled"), 2);
    // Only on the simulated server: in real time, the longest back-off of the watch takes too long.
    if testbed.server.is_simulated() {
        let crds = Rule::to_watch("apiextensions.k8s.io", "customresourcedefinitions");
        testbed.grant("crds", &[crds]).await;
        let silent = |it: &RunnableStatus| !it.message.contains("polled");
        testbed.until("polled", "stops reporting the polling", silent).await;
        assert_eq!(*testbed.cluster.types.mode().borrow(), DiscoveryMode::Watching);
        testbed.revoke("crds").await;
        testbed.faults.cut_open(|info| info.resource == "customresourcedefinitions");
        // Seven refusals in a row, at most 40 s apart.
        tokio::time::sleep(Duration::from_secs(7 * 40)).await;
        let polled = |it: &RunnableStatus| it.message.contains("polled");
        testbed.until("polled", "reports the polling again", polled).await;
    }
    testbed.finish().await;
}

/// Installs a type while a maker object exists; removes the type, then the maker's finalizer.
struct Maker {
    makers: CrdBuilder,
    made: CrdBuilder,
}

impl Maker {
    async fn make(&self, request: &Request, client: Client) -> Result<Outcome, kube::Error> {
        let crds = Api::<CustomResourceDefinition>::all(client.clone());
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let resource = self.makers.api_resource("v1");
        let makers = Api::<DynamicObject>::namespaced_with(client, namespace, &resource);
        let Some(maker) = makers.get_opt(&request.name).await? else { return Ok(Outcome::Done) };
        let made = self.made.name();
        if maker.metadata.deletion_timestamp.is_none() {
            let by = PatchParams::apply("maker").force();
            crds.patch(&made, &by, &Patch::Apply(self.made.build())).await?;
            return Ok(Outcome::Done);
        }
        if let Some(crd) = crds.get_opt(&made).await? {
            if crd.metadata.deletion_timestamp.is_none() {
                crds.delete(&made, &DeleteParams::default()).await?;
            }
            return Ok(Outcome::RequeueAfter(Duration::from_millis(100)));
        }
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        makers.patch(&maker.name_any(), &PatchParams::default(), &free).await?;
        Ok(Outcome::Done)
    }
}

impl Reconciler for Maker {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        Ok(self.make(&request, context.client().clone()).await?)
    }
}

async fn a_controller_creates_the_type_of_another(server: Server<'static>) {
    let testbed = Testbed::on(server, "process-chain").await;
    let makers = CrdBuilder::new(&testbed.scope.group, "Maker");
    let made = CrdBuilder::new(&testbed.scope.group, "Made");
    let maker = Maker { makers: makers.clone(), made: made.clone() };
    let first = Controller::builder("first")
        .for_type(type_of(&makers, "v1"))
        .conditional()
        .build(&testbed.cluster, maker)
        .unwrap();
    testbed.add("first", Arc::new(first)).await;
    let second = testbed.controller("second", &made).await;
    // The second controller's finalizer keeps its type terminating until it is removed.
    second.act("held", Act::Release);
    testbed.until("second", "waits", |it| it.reason == "TypeAbsent").await;
    testbed.install(&makers).await;
    testbed.create_held(&makers, "maker", "pilotlight.test/maker").await;
    testbed.running("second", 1).await;
    testbed.scope.wait_served(&made, "v1").await.unwrap();
    testbed.create_held(&made, "held", "pilotlight.test/made").await;
    second.saw("held", 1).await;

    testbed.uninstall(&makers).await;

    assert_eq!(testbed.done("second", 1).await, DoneReason::TypeGone);
    assert_eq!(testbed.done("first", 1).await, DoneReason::TypeGone);
    let lives = |name: &str| testbed.assert_orderly(name);
    assert_eq!((lives("first"), lives("second")), (1, 1));
    for name in ["first", "second"] {
        assert_eq!(testbed.state(name, ControllerState::Waiting).await.failures, 0);
    }
    assert!(testbed.crds().get_opt(&made.name()).await.unwrap().is_none());
    testbed.finish().await;
}

async fn a_thousand_lifecycle_events(server: Server<'static>) {
    let testbed = Testbed::on(server, "process-soak").await;
    let (crd, gadgets) = (testbed.widgets(), CrdBuilder::new(&testbed.scope.group, "Gadget"));
    let widgets = testbed.controller("widgets", &crd).await;
    testbed.controller("gadgets", &gadgets).await;
    let script = testbed.server.script().unwrap().clone();
    let seed = 52;
    let mut draw = fastrand::Rng::with_seed(seed);
    let (mut events, mut epoch) = (0, 0);
    let mut leftover = Vec::new();

    while events < 1000 {
        epoch += 1;
        testbed.install(&crd).await;
        testbed.running("widgets", epoch).await;
        testbed.create(&crd, "gear", 1).await;
        widgets.saw("gear", epoch).await;
        widgets.clear();
        for _ in 0..draw.usize(0..4) {
            events += 1;
            match draw.usize(0..5) {
                0 => drop(script.close_watches(&crd.name())),
                1 => script.restart(),
                2 => script.compact(),
                3 => {
                    testbed.edit_crd(&crd, json!({ "metadata": { "labels": { "a": "b" } } })).await
                }
                _ if testbed.crds().get_opt(&gadgets.name()).await.unwrap().is_none() => {
                    testbed.install(&gadgets).await;
                }
                _ => testbed.uninstall(&gadgets).await,
            }
        }
        testbed.uninstall(&crd).await;
        assert_eq!(testbed.done("widgets", epoch).await, DoneReason::TypeGone, "seed {seed}");
        if testbed.crds().get_opt(&gadgets.name()).await.unwrap().is_some() {
            testbed.uninstall(&gadgets).await;
            events += 2;
        }
        events += 2;
        testbed.state("gadgets", ControllerState::Waiting).await;
        script.forget_requests();
        if epoch % 50 == 0 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            leftover.push((testbed.alive_tasks(), testbed.cluster.informers.status().len()));
        }
    }

    assert_eq!(testbed.assert_orderly("widgets"), epoch);
    assert!(leftover.windows(2).all(|pair| pair[0] == pair[1]), "tasks, informers: {leftover:?}");
    testbed.finish().await;
}
