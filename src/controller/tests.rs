//! The way of a user: builder, cluster and manager, against a scripted API server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{script::Server, *};
use crate::{
    kind::TypeRef,
    manager::{
        ControllerState, Epoch, Manager, ManagerHandle, ManagerOptions, Runnable, RunnableOptions,
        RunnableStatus, Snapshot, StopReason,
    },
};

const WIDGETS: &str = "/apis/example.com/v1/widgets";
const PARTS: &str = "/apis/example.com/v1/parts";
const NAME: &str = "widgets";

mod unknown_outcome;

/// A cluster that is looked at, a manager, and what its controller was asked to reconcile.
struct Rig {
    server: Server,
    cluster: Cluster,
    manager: ManagerHandle,
    log: Log,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

type Log = Arc<Mutex<Vec<String>>>;

/// Notes each request, and what the caches have of it.
struct Recorder {
    log: Log,
}

impl Reconciler for Recorder {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let seen = |type_ref: &TypeRef| match context.store(type_ref) {
            None => "missing".to_owned(),
            Some(store) => match store.get(&request) {
                None => "gone".to_owned(),
                Some(object) => object.header().uid.to_string(),
            },
        };
        let note = format!("{request} {}", seen(&widgets()));
        self.log.lock().unwrap().push(note);
        Ok(Outcome::Done)
    }
}

impl Rig {
    fn new() -> Self {
        let server = Server::new();
        let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        let mut manager = Manager::new(ManagerOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let handle = manager.handle();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        Self { server, cluster, manager: handle, log: Log::default(), stop, tasks }
    }

    fn build(&self, builder: Builder) -> Controller {
        builder.build(&self.cluster, Recorder { log: Arc::clone(&self.log) }).unwrap()
    }

    async fn add(&self, builder: Builder) {
        let controller = Arc::new(self.build(builder));
        self.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    }

    fn status(&self) -> Arc<RunnableStatus> {
        self.manager.status_of(NAME).unwrap()
    }

    async fn until(&self, what: impl Fn(&RunnableStatus) -> bool) -> Arc<RunnableStatus> {
        let mut watch = self.manager.watch();
        let found = watch
            .wait_for(|snapshot| snapshot.get(&NAME.into()).is_some_and(|status| what(status)));
        match tokio::time::timeout(Duration::from_secs(3600), found).await {
            Ok(snapshot) => Arc::clone(snapshot.unwrap().get(&NAME.into()).unwrap()),
            Err(_) => panic!("{:?}", self.status()),
        }
    }

    async fn state(&self, state: ControllerState) -> Arc<RunnableStatus> {
        self.until(|status| status.state == state).await
    }

    fn install(&self, plural: &str, kind: &str, uid: &str) {
        self.server.install(plural, kind, "Namespaced", uid, &["v1"]);
    }

    /// What was reconciled since this was last asked.
    async fn log(&self) -> Vec<String> {
        settle().await;
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    async fn shutdown(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap();
        assert!(self.cluster.informers.status().is_empty());
    }
}

async fn settle() {
    // With paused time, a sleep ends only when nothing else can run.
    sleep(Duration::from_millis(20)).await;
}

fn widgets() -> TypeRef {
    TypeRef::resource("example.com", "v1", "widgets")
}

fn parts() -> TypeRef {
    TypeRef::resource("example.com", "v1", "parts")
}

fn object(name: &str, uid: &str) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "uid": uid}})
}

/// A part that has this widget as its controller.
fn part(name: &str, owner: &str) -> Value {
    let mut part = object(name, name);
    part["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v2", "kind": "Widget", "name": owner, "uid": owner,
        "controller": true,
    }]);
    part
}

fn builder() -> Builder {
    Controller::builder(NAME)
}

#[tokio::test(start_paused = true)]
async fn conditional_controller_lives_with_its_type_twice_round() {
    let rig = Rig::new();
    rig.add(builder().for_type(widgets()).conditional()).await;
    let waiting = rig.until(|status| status.reason == "TypeAbsent").await;
    assert_eq!(waiting.message, "widgets.example.com/v1 is not installed");
    assert_eq!(rig.server.asked(WIDGETS), 0);

    for (epoch, uid) in [(1, "first"), (2, "second")] {
        rig.install("widgets", "Widget", uid);
        let running = rig.state(ControllerState::Running).await;
        assert_eq!(running.epoch, epoch);
        rig.server.apply(WIDGETS, object("a", uid));
        assert_eq!(rig.log().await, [format!("ns/a {uid}")]);
        assert_eq!(rig.status().report.watches[0].state, "Synced");
        assert_eq!(rig.server.watches(WIDGETS), 1);

        rig.server.uninstall("widgets");
        rig.state(ControllerState::Waiting).await;
        assert_eq!(rig.server.watches(WIDGETS), 0);
        assert!(rig.cluster.informers.status().is_empty());
        let asked = rig.server.asked(WIDGETS);
        rig.log().await;
        sleep(Duration::from_secs(3600)).await;
        assert_eq!((rig.server.asked(WIDGETS), rig.log().await.len()), (asked, 0));
    }
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn type_that_is_deleted_and_created_at_once_begins_another_epoch() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "first");
    rig.add(builder().for_type(widgets()).conditional()).await;
    rig.state(ControllerState::Running).await;
    rig.server.apply(WIDGETS, object("a", "old"));
    assert_eq!(rig.log().await, ["ns/a old"]);

    rig.server.uninstall("widgets");
    rig.install("widgets", "Widget", "second");
    rig.server.apply(WIDGETS, object("a", "new"));
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    let log = rig.log().await;
    assert_eq!(log.last().unwrap(), "ns/a new");
    assert!(log.iter().all(|note| note == "ns/a new" || note == "ns/a gone"), "{log:?}");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_owned_objects_concern_their_owner() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.install("parts", "Part", "p");
    rig.server.apply(WIDGETS, object("a", "a"));
    rig.server.apply(PARTS, part("one", "a"));
    rig.server.apply(PARTS, object("stray", "stray"));
    rig.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a a"]);

    rig.server.apply(PARTS, part("one", "b"));
    assert_eq!(rig.log().await, ["ns/a a", "ns/b gone"], "the old owner and the new one");
    rig.server.delete(PARTS, "ns/one");
    assert_eq!(rig.log().await, ["ns/b gone"]);
    rig.server.apply(PARTS, object("stray", "again"));
    assert!(rig.log().await.is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_owner_is_found_without_a_namespace() {
    let rig = Rig::new();
    rig.server.install("widgets", "Widget", "Cluster", "w", &["v1"]);
    rig.install("parts", "Part", "p");
    rig.server.apply(PARTS, part("one", "a"));
    rig.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    rig.state(ControllerState::Running).await;

    assert_eq!(rig.log().await, ["a gone"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn optional_type_comes_and_goes_within_one_epoch() {
    let rig = Rig::new();
    rig.install("parts", "Part", "p");
    rig.add(
        builder()
            .watches_type(parts(), Handler::Object)
            .conditional()
            .watches_type(widgets(), Handler::Object)
            .optional(),
    )
    .await;
    let degraded = rig.until(|status| status.reason == "Degraded").await;
    assert_eq!(degraded.report.missing, [widgets()]);
    rig.server.apply(PARTS, object("x", "x"));
    assert_eq!(rig.log().await, ["ns/x missing"]);

    for uid in ["first", "second"] {
        rig.install("widgets", "Widget", uid);
        rig.server.apply(WIDGETS, object("a", uid));
        rig.until(|status| status.reason == "Running").await;
        assert_eq!(rig.log().await, [format!("ns/a {uid}")]);
        rig.server.install("widgets", "Widget", "Namespaced", uid, &["v2"]);
        rig.until(|status| status.reason == "Degraded").await;
        assert_eq!(rig.log().await, ["ns/a missing"], "its objects are out of sight");
        assert_eq!(rig.server.watches(WIDGETS), 0);
        rig.install("widgets", "Widget", uid);
        rig.until(|status| status.reason == "Running").await;
        rig.server.uninstall("widgets");
        rig.until(|status| status.reason == "Degraded").await;
        assert_eq!(rig.server.watches(WIDGETS), 0);
        rig.log().await;
    }

    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_type_that_is_missing_fails_the_run_with_its_name() {
    let rig = Rig::new();
    rig.add(builder().for_type(widgets())).await;

    let failed = rig.state(ControllerState::BackingOff).await;

    assert_eq!(failed.message, "sync timeout after 2 min: widgets.example.com/v1 is not installed");
    rig.install("widgets", "Widget", "w");
    rig.state(ControllerState::Running).await;
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_type_that_is_lost_is_reported_and_found_again() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "first");
    rig.server.apply(WIDGETS, object("a", "first"));
    rig.add(builder().for_type(widgets())).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a first"]);

    // Not served for a while: its objects may well exist.
    rig.server.install("widgets", "Widget", "Namespaced", "first", &["v2"]);
    rig.until(|status| status.report.stale).await;
    rig.server.install("widgets", "Widget", "Namespaced", "first", &["v1"]);
    rig.server.apply(WIDGETS, object("a", "first"));
    rig.until(|status| !status.report.stale).await;
    let log = rig.log().await;
    assert!(log.iter().all(|note| note == "ns/a first"), "nothing looked deleted: {log:?}");

    // Gone for good, and another one of that name.
    rig.server.uninstall("widgets");
    let stale = rig.until(|status| status.report.stale).await;
    assert_eq!(stale.state, ControllerState::Running);
    settle().await;
    assert_eq!(rig.server.watches(WIDGETS), 0);
    rig.log().await;
    rig.install("widgets", "Widget", "second");
    rig.server.apply(WIDGETS, object("b", "second"));
    rig.until(|status| !status.report.stale).await;

    assert_eq!(rig.log().await, ["ns/b second"]);
    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn version_is_bound_when_the_epoch_begins() {
    let rig = Rig::new();
    let any = widgets().any_version();
    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1", "v2"]);
    rig.add(builder().for_type(any).conditional()).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 1);

    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1"]);
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    assert_eq!(rig.server.watches(WIDGETS), 1);
    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 0);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_better_version_restarts_nobody_who_asked_for_any() {
    let rig = Rig::new();
    let any = widgets().any_version();
    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1"]);
    rig.add(builder().for_type(any.clone()).conditional()).await;
    rig.state(ControllerState::Running).await;

    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1", "v2"]);
    settle().await;
    assert_eq!(rig.status().epoch, 1);
    assert_eq!(rig.server.watches(WIDGETS), 1);
    assert_eq!(&*rig.cluster.types.served(&any).unwrap().identity.version, "v1");

    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v2"]);
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 1);
    assert_eq!(rig.server.watches(WIDGETS), 0);

    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1"]);
    rig.until(|status| status.epoch == 3 && status.state == ControllerState::Running).await;
    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1", "v2"]);
    settle().await;
    assert_eq!(rig.status().epoch, 3);

    // Nobody rests on a version any more: whoever asks next gets the best.
    rig.manager.remove(NAME).await;
    assert_eq!(&*rig.cluster.types.served(&any).unwrap().identity.version, "v2");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_changed_in_place_begins_another_epoch_with_a_cache_of_its_own() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.apply(WIDGETS, object("a", "a"));
    rig.add(builder().for_type(widgets()).conditional()).await;
    rig.state(ControllerState::Running).await;
    let plain = Arc::new(rig.build(builder().for_type(widgets())));
    rig.manager.add("plain", plain, RunnableOptions::default()).await.unwrap();
    settle().await;

    rig.install("widgets", "Gadget", "w");

    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    settle().await;
    let plain = rig.manager.status_of("plain").unwrap();
    assert_eq!((plain.epoch, plain.report.stale), (1, false));
    let informers = rig.cluster.informers.status();
    assert_eq!(informers.len(), 1, "{informers:?}");
    assert_eq!(informers[0].subscribers, 2);
    assert_eq!(rig.server.watches(WIDGETS), 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_is_running_once_discovery_has_answered() {
    let rig = Rig::new();

    let mut watch = rig.manager.watch();
    let runs = |snapshot: &Arc<Snapshot>| {
        snapshot.get(&"cluster".into()).is_some_and(|it| it.state == ControllerState::Running)
    };
    drop(watch.wait_for(runs).await.unwrap());

    let health = rig.cluster.types.health();
    assert!(health.is_current(), "{health:?}");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_that_is_half_dead_holds_others_up_for_five_seconds() {
    let rig = Rig::new();
    rig.server.forbid("/apis");
    rig.install("widgets", "Widget", "w");
    let began = Instant::now();

    rig.add(builder().for_type(widgets()).conditional()).await;
    let before = rig.status();
    assert_eq!((before.state, &*before.reason), (ControllerState::Waiting, "NotStarted"));
    rig.state(ControllerState::Running).await;

    assert!((5..6).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(rig.cluster.types.health().discovery.error.is_some());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn start_that_does_not_finish_says_why_once_the_sync_timeout_is_over() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.forbid(WIDGETS);
    rig.add(builder().for_type(widgets()).conditional()).await;
    let soon = rig.until(|status| status.reason == "Forbidden").await;
    assert!(soon.report.late.is_empty());

    let late = rig.until(|status| status.reason == "SyncTimeout").await;
    assert_eq!((late.state, late.epoch), (ControllerState::Starting, 1));
    assert!(late.message.contains("no rule lets you"), "{}", late.message);
    assert_eq!(late.report.late.len(), 1);

    rig.server.allow(WIDGETS);
    let running = rig.state(ControllerState::Running).await;
    assert_eq!((running.epoch, running.report.late.len()), (1, 0));
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_input_of_any_version_moves_without_losing_sight() {
    let rig = Rig::new();
    let any = widgets().any_version();
    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1"]);
    rig.server.apply(WIDGETS, object("a", "a"));
    rig.add(builder().for_type(any)).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a a"]);

    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v1", "v2"]);
    settle().await;
    assert_eq!(rig.server.watches(WIDGETS), 1, "it stays while it can");
    rig.server.apply("/apis/example.com/v2/widgets", object("b", "b"));
    rig.server.install("widgets", "Widget", "Namespaced", "w", &["v2"]);
    settle().await;

    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 1);
    assert_eq!(rig.server.watches(WIDGETS), 0);
    let mut log = rig.log().await;
    log.sort();
    // The recorder asks for v1, which is no input any more.
    assert_eq!(log, ["ns/a missing", "ns/b missing"]);
    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_type_is_reported_and_found_when_the_rule_is_there() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.forbid(WIDGETS);
    rig.add(builder().for_type(widgets()).conditional()).await;

    let forbidden = rig.until(|status| !status.report.forbidden.is_empty()).await;
    assert_eq!(forbidden.state, ControllerState::Starting);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(rig.status().state, ControllerState::Starting);
    rig.server.allow(WIDGETS);
    let running = rig.state(ControllerState::Running).await;

    assert!(running.report.forbidden.is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn replacement_is_prepared_and_costs_no_second_list() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.install("parts", "Part", "p");
    rig.server.apply(WIDGETS, object("a", "a"));
    rig.add(builder().for_type(widgets()).conditional()).await;
    rig.state(ControllerState::Running).await;
    let asked = rig.server.asked(WIDGETS);
    rig.log().await;

    let next = builder().for_type(widgets()).conditional().owns_type(parts()).conditional();
    let next = Arc::new(rig.build(next));
    rig.manager.replace(NAME, next, RunnableOptions::default()).await.unwrap();
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    assert_eq!(rig.server.asked(WIDGETS), asked);
    assert_eq!(rig.log().await, ["ns/a a"]);
    assert_eq!(rig.cluster.informers.status().len(), 2);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn preparation_that_is_forbidden_fails_at_once_and_holds_nothing() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.forbid(WIDGETS);
    let controller = rig.build(builder().for_type(widgets()));
    settle().await;

    let started = Instant::now();
    let error = controller.prepare().await.unwrap_err().to_string();

    assert!(error.starts_with("widgets.example.com/v1 is forbidden: 403 "), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    sleep(Duration::from_secs(11)).await;
    assert!(rig.cluster.informers.status().is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn prepared_informers_go_with_a_controller_that_is_never_started() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    let controller = rig.build(builder().for_type(widgets()));
    settle().await;
    controller.prepare().await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.server.watches(WIDGETS), 1);

    drop(controller);
    sleep(Duration::from_secs(11)).await;

    assert_eq!(rig.server.watches(WIDGETS), 0);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_prepared_is_given_back_when_no_start_comes() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    let controller = rig.build(builder().for_type(widgets()));
    settle().await;
    controller.prepare().await.unwrap();
    assert_eq!(rig.server.watches(WIDGETS), 1);

    controller.unprepare();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(rig.server.watches(WIDGETS), 0);

    // One that was under way at the time comes too late.
    let late = controller.prepare();
    controller.unprepare();
    late.await.unwrap();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(rig.server.watches(WIDGETS), 0);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn informer_that_ends_by_a_defect_deletes_nothing() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.install("parts", "Part", "p");
    rig.server.apply(WIDGETS, object("a", "a"));
    rig.server.apply(PARTS, object("x", "x"));
    rig.add(
        builder()
            .for_type(widgets())
            .conditional()
            .watches_type(parts(), Handler::Object)
            .optional(),
    )
    .await;
    rig.state(ControllerState::Running).await;
    rig.log().await;

    rig.cluster.informers.shutdown().await;
    let failed = rig.state(ControllerState::BackingOff).await;

    assert!(failed.message.contains("its informer ended: shut down"), "{}", failed.message);
    assert!(rig.log().await.is_empty(), "no object looks deleted");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn context_reads_inputs_by_either_name_and_decodes_them() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::DynamicObject;
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.apply(WIDGETS, object("a", "a"));
    rig.server.apply(WIDGETS, object("b", "b"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    struct Reader(Arc<Mutex<Vec<String>>>);
    impl Reconciler for Reader {
        async fn reconcile(
            &self,
            request: Request,
            context: Context,
        ) -> Result<Outcome, ReconcileError> {
            let by_kind = TypeRef::kind("example.com", "v1", "Widget");
            let store = context.store(&by_kind).ok_or("no store")?;
            let served = context.served(&widgets().any_version()).ok_or("not served")?;
            let other = context.lister::<ConfigMap>();
            let lister = Lister::<DynamicObject>::of(store);
            let object = lister.get(&request)?.ok_or("not found")?;
            self.0.lock().unwrap().push(format!(
                "{} {} of {}, {} of {}",
                served.kind,
                object.metadata.name.unwrap_or_default(),
                lister.list().len(),
                other.list().len(),
                u8::from(other.get(&request)?.is_some()),
            ));
            Ok(Outcome::Done)
        }
    }
    let reader = Reader(Arc::clone(&seen));
    let controller = builder().for_type(widgets()).conditional().build(&rig.cluster, reader);
    let controller = Arc::new(controller.unwrap());
    rig.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    rig.state(ControllerState::Running).await;
    settle().await;

    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["Widget a of 2, 0 of 0", "Widget b of 2, 0 of 0"]);
    assert_eq!(rig.status().report.last_error, None);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handler_that_panics_loses_one_change_and_says_so() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.apply(WIDGETS, object("bad", "bad"));
    rig.server.apply(WIDGETS, object("good", "good"));
    let handler = Handler::map(|object| {
        assert!(&*object.key().name != "bad", "no map for you");
        vec![object.key().clone()]
    });
    rig.add(builder().watches_type(widgets(), handler).conditional()).await;

    let status = rig.until(|status| status.report.last_error.is_some()).await;

    let error = status.report.last_error.as_deref().unwrap();
    assert_eq!(error, "event handler panicked at ns/bad: no map for you");
    assert_eq!(rig.log().await, ["ns/good good"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn predicates_drop_what_none_of_them_wants() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    let widget = |generation: i64, label: &str| {
        let mut widget = object("a", "a");
        widget["metadata"]["generation"] = json!(generation);
        widget["metadata"]["labels"] = json!({"label": label});
        widget
    };
    rig.server.apply(WIDGETS, widget(1, "x"));
    rig.add(builder().for_type(widgets()).conditional().predicate(Predicate::generation())).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await.len(), 1);

    rig.server.apply(WIDGETS, widget(1, "y"));
    assert_eq!(rig.log().await.len(), 0);
    rig.server.apply(WIDGETS, widget(2, "y"));
    assert_eq!(rig.log().await.len(), 1);
    rig.server.delete(WIDGETS, "ns/a");
    assert_eq!(rig.log().await, ["ns/a gone"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn stores_are_empty_and_watches_closed_when_done_fires() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    rig.server.apply(WIDGETS, object("a", "a"));
    let controller = rig.build(builder().for_type(widgets()).conditional());
    settle().await;
    let epoch = Epoch::new(NAME, 1, Duration::from_secs(5));
    let mut runs = JoinSet::new();
    runs.spawn(controller.start(epoch.clone()));
    epoch.subscribe().wait_for(|report| report.running).await.unwrap();

    rig.server.uninstall("widgets");
    settle().await;
    epoch.stop(StopReason::TypeGone);
    runs.join_next().await.unwrap().unwrap().unwrap();

    assert_eq!(rig.server.watches(WIDGETS), 0);
    assert!(rig.cluster.informers.status().is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_that_is_built_and_dropped_costs_nothing() {
    let rig = Rig::new();
    rig.install("widgets", "Widget", "w");
    settle().await;

    drop(rig.build(builder().for_type(widgets()).owns_type(parts()).conditional()));
    settle().await;

    assert_eq!(rig.server.asked(WIDGETS), 0);
    assert!(rig.cluster.informers.status().is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn mistakes_are_told_when_the_controller_is_built() {
    let rig = Rig::new();
    let error = |builder: Builder| {
        let log = Log::default();
        builder.build(&rig.cluster, Recorder { log }).unwrap_err().to_string()
    };
    let (_sender, channel) = ChannelSource::new(1);

    assert_eq!(error(Controller::builder("")), "a controller needs a name");
    assert_eq!(
        error(builder()),
        "widgets watches nothing: add an input with for_, owns or watches"
    );
    assert_eq!(
        error(builder().for_type(widgets()).for_type(parts())),
        "widgets has two types it is for; use watches for the second"
    );
    assert_eq!(
        error(builder().owns_type(parts())),
        "widgets owns parts.example.com/v1 but is for nothing; call for_ first"
    );
    assert_eq!(
        error(builder().conditional().for_type(widgets())),
        "widgets: conditional concerns the input named last, and there is none; call it after one"
    );
    assert_eq!(
        error(builder().source(channel).metadata_only()),
        "widgets: metadata_only concerns a type, not a source of one's own"
    );
    assert_eq!(
        error(builder().for_type(widgets()).max_concurrent_reconciles(0)),
        "widgets: max_concurrent_reconciles is 0, give it at least 1"
    );
    rig.shutdown().await;
}

/// Installs, removes, hides and forbids types at random, and then lets them all be.
async fn flap(seed: u64) {
    let rig = Rig::new();
    let mut random = fastrand::Rng::with_seed(seed);
    let types = [("widgets", "Widget"), ("parts", "Part"), ("things", "Thing")];
    let path = |plural: &str| format!("/apis/example.com/v1/{plural}");
    let mut uids = [0, 0, 0];
    settle().await;
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let things = TypeRef::resource("example.com", "v1", "things");
    rig.add(
        builder()
            .for_type(widgets())
            .conditional()
            .owns_type(parts())
            .optional()
            .watches_type(things, Handler::Object),
    )
    .await;

    for _ in 0..150 {
        let number = random.usize(..3);
        let (plural, kind) = types[number];
        let path = path(plural);
        let uid = format!("{plural}-{}", uids[number]);
        let served = rig.server.serves(&path);
        match random.u8(..10) {
            0 if served => {
                rig.server.uninstall(plural);
                uids[number] += 1;
            }
            1 if served => rig.server.install(plural, kind, "Namespaced", &uid, &["v2"]),
            2 => rig.server.forbid(&path),
            3 | 4 => rig.server.allow(&path),
            5..=7 if served => rig.server.apply(&path, object(&random.u8(..4).to_string(), &uid)),
            _ => rig.server.install(plural, kind, "Namespaced", &uid, &["v1"]),
        }
        match random.u8(..4) {
            0 => sleep(Duration::from_millis(random.u64(..50))).await,
            1 => sleep(Duration::from_secs(random.u64(..20))).await,
            _ => {}
        }
    }
    for (number, (plural, kind)) in types.into_iter().enumerate() {
        let uid = format!("{plural}-{}", uids[number]);
        rig.server.allow(&path(plural));
        rig.install(plural, kind, &uid);
        rig.server.apply(&path(plural), object("last", &uid));
    }
    // The longest back-offs of an informer and of the manager are over by then.
    sleep(Duration::from_secs(600)).await;

    let status = rig.status();
    assert_eq!(
        (status.state, status.reason.as_str()),
        (ControllerState::Running, "Running"),
        "seed {seed}: {:#?}",
        status.report
    );
    assert!(status.report.watches.iter().all(|watch| watch.state == "Synced"), "{status:?}");
    assert_eq!(rig.cluster.informers.status().len(), 3);
    for (plural, _) in types {
        assert_eq!(rig.server.watches(&path(plural)), 1, "{plural}");
        let informers = rig.cluster.informers.status();
        let informer = informers.iter().find(|it| &*it.key.identity.plural == plural).unwrap();
        assert_eq!(informer.objects, rig.server.count(&path(plural)), "{plural}");
    }
    rig.log().await;
    rig.server.apply(WIDGETS, object("new", "new"));
    rig.server.apply(PARTS, part("p", "of-part"));
    rig.server.apply(&path("things"), object("thing", "thing"));
    let mut log = rig.log().await;
    log.sort();
    assert_eq!(log, ["ns/new new", "ns/of-part gone", "ns/thing gone"]);

    rig.server.uninstall("widgets");
    rig.state(ControllerState::Waiting).await;
    assert_eq!(rig.server.watches(WIDGETS), 0);
    sleep(Duration::from_secs(11)).await;
    assert!(rig.cluster.informers.status().is_empty());
    rig.manager.remove(NAME).await;
    settle().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_converges_after_any_flapping_and_leaves_nothing() {
    for seed in 0..20 {
        flap(seed).await;
    }
}
