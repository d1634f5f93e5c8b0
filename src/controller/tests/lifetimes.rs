//! Lifetimes: nothing of an epoch, a controller or a shared informer outlives it, and none of them
//! ends with another one.

use std::sync::{
    Weak,
    atomic::{AtomicUsize, Ordering},
};

use kube::core::DynamicObject;
use tokio::runtime::Handle;

use super::{types::tasks, *};
use crate::{
    manager::{metrics_text, prometheus_client::registry::Registry},
    testing::{Action, Reply, Rule, Verb},
};

/// Adds another controller, whose reconciles are not logged.
async fn add_other(harness: &Harness, name: &str, builder: Builder) {
    let other =
        builder.build(&harness.cluster, |_: Request, _: Context| async { Ok(Outcome::Done) });
    let options = RunnableOptions::default();
    harness.manager.add(name, Arc::new(other.unwrap()), options).await.unwrap();
}

fn controller_of_widgets(name: &str) -> Builder {
    Controller::builder(name).for_type(widgets()).conditional()
}

fn running(state: &RunnableStatus, epoch: u64) -> bool {
    (state.state, state.epoch) == (ControllerState::Running, epoch)
}

#[tokio::test(start_paused = true)]
async fn controller_that_runs_already_refuses_a_second_start_and_continues() {
    let harness = Harness::new();
    harness.install("Widget");
    let controller = Arc::new(harness.build(controller_of_widgets(NAME)));
    let first = Arc::clone(&controller);
    harness.manager.add(NAME, first, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;

    // A runnable of the user's hides the name of the controller from the manager.
    let again = Arc::new(move |epoch| controller.start(epoch));
    harness.manager.add("again", again, RunnableOptions::default()).await.unwrap();
    sleep(Duration::from_secs(1)).await;

    let again = harness.manager.status_of("again").unwrap();
    assert_ne!(again.state, ControllerState::Running);
    assert!(format!("{again:?}").contains("runs already, under another name"), "{again:?}");
    assert!(running(&harness.status(), 1));
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await.len(), 1, "one reconcile");

    harness.manager.remove(NAME).await;
    let mut watch = harness.manager.watch();
    let runs = |it: &Arc<Snapshot>| it[&"again".into()].state == ControllerState::Running;
    drop(watch.wait_for(runs).await.unwrap());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn removed_controller_leaves_the_shared_watch_to_the_others() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.add(controller_of_widgets(NAME)).await;
    add_other(&harness, "other", controller_of_widgets("other")).await;
    harness.state(ControllerState::Running).await;
    run_until_idle().await;
    assert_eq!(harness.cluster.informers.status()[0].subscribers, 2);
    let requests = harness.server.requests_of(WIDGETS);

    harness.manager.remove("other").await;
    // Longer than an informer lingers.
    sleep(Duration::from_secs(20)).await;
    harness.server.apply(widget("a", "seen"));

    assert_eq!(harness.log().await, ["ns/a seen"]);
    assert_eq!(
        (harness.server.requests_of(WIDGETS), harness.server.watches(WIDGETS)),
        (requests, 1)
    );
    harness.manager.remove(NAME).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(harness.server.watches(WIDGETS), 0);
    assert!(harness.cluster.informers.status().is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_that_come_and_go_leave_no_subscriber_and_no_task_at_a_shared_informer() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.take_time_to_list("parts");
    harness.add(controller_of_widgets(NAME)).await;
    harness.state(ControllerState::Running).await;
    let before = tasks().await;

    for round in 0..40 {
        let both = controller_of_widgets("other").owns_type(parts()).conditional();
        add_other(&harness, "other", both).await;
        // Every other one is removed before its list of parts is complete.
        sleep(Duration::from_millis(100 + 1900 * (round % 2))).await;
        let all = harness.cluster.informers.status();
        assert!(all.iter().any(|informer| informer.subscribers == 2), "{all:?}");
        harness.manager.remove("other").await;
    }
    // Longer than an informer lingers.
    sleep(Duration::from_secs(20)).await;

    let informers = harness.cluster.informers.status();
    assert_eq!((informers.len(), informers[0].subscribers), (1, 1), "{informers:?}");
    assert_eq!((harness.server.watches(WIDGETS), harness.server.watches(PARTS)), (1, 0));
    assert_eq!(tasks().await, before);
    harness.shutdown().await;
}

/// Number of reconciles that run now, and the highest number so far.
#[derive(Default)]
struct Concurrency {
    now: AtomicUsize,
    most: AtomicUsize,
    begun: AtomicUsize,
}

struct Reconciling(Arc<Concurrency>);

impl Reconciling {
    fn begin(counts: &Arc<Concurrency>) -> Self {
        let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        counts.begun.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for Reconciling {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn key_has_one_reconcile_at_once_however_often_its_controller_restarts() {
    // Within the grace, and beyond it.
    for long in [Duration::from_secs(3), Duration::from_secs(60)] {
        let harness = Harness::new();
        let counts = Arc::<Concurrency>::default();
        let counted = Arc::clone(&counts);
        let reconcile = move |_: Request, _: Context| {
            let reconciling = Reconciling::begin(&counted);
            async move {
                sleep(long).await;
                drop(reconciling);
                Ok(Outcome::Done)
            }
        };
        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        let described = builder().for_type(widgets()).conditional().max_concurrent_reconciles(4);
        let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
        harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

        for epoch in 1..=6 {
            harness.until(|status| running(status, epoch)).await;
            run_until_idle().await;
            assert_eq!(counts.now.load(Ordering::SeqCst), 1, "epoch {epoch}");
            if epoch % 2 == 0 {
                harness.manager.restart(NAME).await.unwrap();
            } else {
                harness.server.uninstall("widgets");
                harness.install("Widget");
                harness.server.apply(widget("a", "a"));
            }
        }
        harness.shutdown().await;

        assert_eq!(counts.most.load(Ordering::SeqCst), 1, "{long:?}");
        assert_eq!(counts.now.load(Ordering::SeqCst), 0);
        assert!(counts.begun.load(Ordering::SeqCst) >= 6);
    }
}

#[tokio::test(start_paused = true)]
async fn controller_that_waits_holds_no_object_of_its_last_epoch() {
    let harness = Harness::new();
    let seen = Arc::new(Mutex::new(Weak::<DynamicObject>::new()));
    let last = Arc::clone(&seen);
    let reconcile = move |request: Request, context: Context| {
        let store = context.store(&widgets()).unwrap();
        if let Some(object) = Lister::<DynamicObject>::of(store).get(&request).unwrap() {
            *last.lock().unwrap() = Arc::downgrade(&object);
        }
        async { Ok(Outcome::Done) }
    };
    let described = builder().for_type(widgets()).conditional();
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    let added = Arc::clone(&controller);
    harness.manager.add(NAME, added, RunnableOptions::default()).await.unwrap();

    for epoch in 1..=2 {
        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        harness.until(|status| running(status, epoch)).await;
        run_until_idle().await;
        assert!(seen.lock().unwrap().upgrade().is_some(), "it is cached");

        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        run_until_idle().await;

        assert!(seen.lock().unwrap().upgrade().is_none(), "the description holds no cache");
        assert!(controller.queue().is_empty());
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_program_that_are_never_run_spawn_no_task() {
    let server = Server::new();
    let client = server.client();
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();

    let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
    let (_sender, channel) = ChannelSource::new(8);
    let described = builder().for_type(widgets()).conditional().source(channel);
    let controller = described
        .owns_type(parts())
        .optional()
        .build(&cluster, |_: Request, _: Context| async { Ok(Outcome::Done) });
    let controller = controller.unwrap();
    let late = |input: Builder| input.watches_type(parts(), Handler::Object).optional();
    let _late = controller.inputs().add("late", late).unwrap();
    let permission = Permission::new(&cluster, "create", "", "configmaps");
    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster").unwrap();
    controller.add_to(&mut manager).unwrap();
    permission.add_to(&mut manager).unwrap();
    run_until_idle().await;

    assert_eq!(alive(), before);
    drop((manager, cluster));
    assert_eq!(alive(), before);
    assert_eq!(
        (server.requests_of(WIDGETS), server.requests_of(PARTS), server.creations()),
        (0, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn established_type_whose_resource_is_served_a_second_later_fails_no_run() {
    let harness = Harness::new();
    let not_found = Reply::status(404, "NotFound", "404 page not found");
    let early = Rule::new(Action::Reply(not_found)).resource("example.com", "widgets");
    let early = harness.server.fault(early);
    harness.add(controller_of_widgets(NAME)).await;
    harness.state(ControllerState::Waiting).await;

    harness.install("Widget");
    harness.state(ControllerState::Starting).await;
    sleep(Duration::from_secs(1)).await;
    assert!(harness.server.requests_of(WIDGETS) > 1, "it is tried again");
    let syncing = harness.status();
    assert_eq!((syncing.state, syncing.epoch), (ControllerState::Starting, 1));
    harness.server.remove(early);
    let served = Instant::now();
    let running = harness.state(ControllerState::Running).await;

    assert_eq!((running.epoch, running.failures), (1, 0));
    assert!(served.elapsed() < Duration::from_secs(1), "{:?}", served.elapsed());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn kind_that_returns_with_another_scope_or_plural_begins_another_epoch() {
    let gizmos = "/apis/example.com/v1/gizmos";
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "namespaced"));
    let by_kind = TypeRef::kind("example.com", "v1", "Widget");
    harness.add(builder().for_type(by_kind).conditional()).await;
    harness.until(|status| running(status, 1)).await;
    assert_eq!(harness.log().await, ["ns/a namespaced"]);

    harness.server.uninstall("widgets");
    harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    harness.until(|status| running(status, 2)).await;
    harness.log().await;
    harness.server.apply_cluster_scoped(widget("a", "cluster-scoped"));
    assert_eq!(harness.log().await, ["a cluster-scoped"]);

    harness.server.uninstall("widgets");
    harness.server.install(crd("Widget").plural("gizmos"), &["v1"]);
    harness.until(|status| running(status, 3)).await;
    harness.log().await;
    harness.server.apply(widget("b", "b"));
    // The log reads widgets by their plural, which is no input any more.
    assert_eq!(harness.log().await, ["ns/b missing"]);
    assert_eq!((harness.server.watches(gizmos), harness.server.watches(WIDGETS)), (1, 0));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn series_of_a_name_that_returns_begin_anew_and_are_exported_once() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let mut registry = Registry::default();
    harness.cluster.register_metrics(&mut registry);
    let of_widgets = || {
        let text = metrics_text(&registry).unwrap();
        let own = text.lines().filter(|line| line.contains("controller=\"widgets\""));
        own.map(str::to_owned).collect::<Vec<_>>()
    };

    for _ in 0..3 {
        harness.add(controller_of_widgets(NAME)).await;
        harness.state(ControllerState::Running).await;
        assert_eq!(harness.log().await, ["ns/a a"]);

        let all = of_widgets();
        let series = |line: &String| line.rsplit_once(' ').unwrap().0.to_owned();
        let names: BTreeSet<_> = all.iter().map(series).collect();
        assert_eq!(names.len(), all.len(), "{all:#?}");
        let total = "controller_runtime_reconcile_total{controller=\"widgets\",result=\"success\"}";
        assert!(all.contains(&format!("{total} 1")), "{all:#?}");

        harness.manager.remove(NAME).await;
        run_until_idle().await;
        assert_eq!(of_widgets(), [""; 0]);
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_come_and_go_while_a_list_of_another_one_is_never_answered() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let hangs = Rule::new(Action::Hang).verb(Verb::List);
    harness.server.fault(hangs.resource("example.com", "widgets"));
    harness.add(controller_of_widgets(NAME)).await;
    harness.state(ControllerState::Starting).await;
    run_until_idle().await;
    assert_eq!(harness.server.lists("widgets"), 1);
    let start = Instant::now();

    for epoch in 1..=2 {
        let parts = Controller::builder("other").for_type(parts()).conditional();
        add_other(&harness, "other", parts).await;
        let mut watch = harness.manager.watch();
        let runs = |it: &Arc<Snapshot>| {
            it.get(&"other".into()).is_some_and(|it| it.state == ControllerState::Running)
        };
        drop(watch.wait_for(runs).await.unwrap());
        harness.manager.remove("other").await;
        assert!(harness.manager.status_of("other").is_none(), "{epoch}");
    }

    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(harness.status().state, ControllerState::Starting);
    harness.manager.remove(NAME).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    harness.shutdown().await;
}
