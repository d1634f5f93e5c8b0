//! Limit of concurrent reconciles over all controllers of a manager.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{unknown_outcome::make, *};
use crate::testing::{Action, Rule, Verb};

/// Reconciles of several controllers that take a second each, in the order of their starts.
#[derive(Clone, Default)]
struct Shared {
    names: Log,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Shared {
    async fn reconcile(self, controller: &'static str) -> Result<Outcome, ReconcileError> {
        self.names.lock().unwrap().push(controller.to_owned());
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        sleep(Duration::from_secs(1)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(Outcome::Done)
    }
}

fn limited(most: usize) -> Harness {
    let max_concurrent_reconciles = NonZeroUsize::new(most);
    Harness::with(ManagerOptions { max_concurrent_reconciles, ..ManagerOptions::default() })
}

async fn add(
    harness: &Harness,
    shared: &Shared,
    name: &'static str,
    type_ref: TypeRef,
    workers: usize,
) {
    let shared = shared.clone();
    let reconcile = move |_: Request, _: Context| shared.clone().reconcile(name);
    let described = Controller::builder(name).for_type(type_ref).max_concurrent_reconciles(workers);
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    harness.manager.add(name, controller, RunnableOptions::default()).await.unwrap();
    let mut watch = harness.manager.watch();
    let running =
        |snapshot: &Arc<Snapshot>| snapshot[&name.into()].state == ControllerState::Running;
    watch.wait_for(running).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn controllers_take_turns_within_the_limit_over_all() {
    let harness = limited(1);
    harness.install("Widget");
    harness.install("Part");
    let shared = Shared::default();
    add(&harness, &shared, "busy", widgets(), 10).await;
    add(&harness, &shared, "other", parts(), 1).await;

    for number in 0..20 {
        harness.server.apply(widget(&number.to_string(), "busy"));
    }
    run_until_idle().await;
    for number in 0..5 {
        harness.server.apply(object("Part", &number.to_string(), "other"));
    }
    sleep(Duration::from_secs(60)).await;

    assert_eq!(shared.most.load(Ordering::SeqCst), 1);
    let names = shared.names.lock().unwrap().clone();
    assert_eq!(names.len(), 25);
    // The backlog of the busy one delays each request of the other by one reconcile.
    let turns = ["busy", "other"].into_iter().cycle();
    // The second one was in line before the other had a request.
    let expected: Vec<_> = std::iter::once("busy")
        .chain(turns.take(10))
        .chain(std::iter::repeat_n("busy", 14))
        .collect();
    assert_eq!(names, expected);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn request_that_waits_for_its_own_worker_takes_no_shared_slot() {
    let harness = limited(2);
    harness.install("Widget");
    harness.install("Part");
    let shared = Shared::default();
    add(&harness, &shared, "busy", widgets(), 1).await;
    add(&harness, &shared, "other", parts(), 1).await;

    for number in 0..5 {
        harness.server.apply(widget(&number.to_string(), "busy"));
    }
    run_until_idle().await;
    // Added again while it is reconciled, so that it waits for its own reconcile.
    harness.server.apply(widget("0", "changed"));
    harness.server.apply(object("Part", "a", "other"));
    sleep(Duration::from_millis(100)).await;

    assert_eq!(*shared.names.lock().unwrap(), ["busy", "other"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn read_that_is_not_answered_before_a_reconcile_takes_no_shared_slot() {
    let harness = limited(1);
    harness.install("Widget");
    harness.install("Part");
    let shared = Shared::default();
    harness.make(builder().for_type(widgets()).owns_type(parts()).whole(), false).await;
    add(&harness, &shared, "other", parts(), 1).await;
    // Lost response: the next reconcile begins with a read.
    harness.server.mishap(Action::Lose);
    harness.server.apply(widget("a", "a"));
    run_until_idle().await;
    let late = Rule::new(Action::Withhold).verb(Verb::List).resource("example.com", "parts");
    let late = harness.server.fault(late);
    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(2)).await;
    shared.names.lock().unwrap().clear();

    harness.server.apply(object("Part", "b", "other"));
    sleep(Duration::from_secs(2)).await;

    assert_eq!(*shared.names.lock().unwrap(), ["other"]);
    harness.server.remove(late);
    sleep(Duration::from_secs(120)).await;
    let log = harness.log().await;
    assert_eq!(log.last().map(String::as_str), Some("ns/a 1 true"), "{log:?}");
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await.len(), 1, "its slot is its own again");
    harness.shutdown().await;
}

/// Each read released its slot, and each reconcile then waited for one in a place of its own.
#[tokio::test(start_paused = true)]
async fn controllers_take_turns_after_live_reads() {
    let harness = limited(1);
    ["Widget", "Part", "Thing"].into_iter().for_each(|kind| harness.install(kind));
    let shared = Shared::default();
    let log = shared.clone();
    // Each create is lost, so that the next reconcile of its request begins with a read.
    let reconcile = move |request: Request, context: Context| {
        let log = log.clone();
        async move {
            if context.after_unknown() {
                return log.reconcile("reads").await;
            }
            make(context.client().clone(), request.name.to_string()).await?;
            Ok(Outcome::Done)
        }
    };
    let described = builder().for_type(widgets()).owns_type(parts()).max_concurrent_reconciles(10);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    let things = TypeRef::resource("example.com", "v1", "things");
    add(&harness, &shared, "other", things, 1).await;
    harness.server.fault(Rule::new(Action::Lose).verb(Verb::Create));
    let late = Rule::new(Action::Withhold).verb(Verb::List).resource("example.com", "parts");
    let late = harness.server.fault(late);
    for number in 0..10 {
        harness.server.apply(widget(&number.to_string(), "x"));
    }
    sleep(Duration::from_secs(2)).await;

    for number in 0..20 {
        harness.server.apply(object("Thing", &number.to_string(), "x"));
    }
    sleep(Duration::from_millis(1500)).await;
    harness.server.remove(late);
    sleep(Duration::from_secs(60)).await;

    assert_eq!(shared.most.load(Ordering::SeqCst), 1);
    let names = shared.names.lock().unwrap().clone();
    assert_eq!(names.len(), 30, "{names:?}");
    let first = names.iter().position(|name| name == "reads").unwrap();
    let turns: Vec<_> = names[first..].iter().take(20).collect();
    let expected = ["reads", "other"].into_iter().cycle();
    assert!(turns.iter().zip(expected).all(|(name, turn)| *name == turn), "{names:?}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_each_controller_has_its_own_workers() {
    let harness = limited(0);
    harness.install("Widget");
    harness.install("Part");
    let shared = Shared::default();
    add(&harness, &shared, "one", widgets(), 3).await;
    add(&harness, &shared, "other", parts(), 3).await;

    for number in 0..5 {
        harness.server.apply(widget(&number.to_string(), "one"));
        harness.server.apply(object("Part", &number.to_string(), "other"));
    }
    sleep(Duration::from_secs(10)).await;

    assert_eq!(shared.most.load(Ordering::SeqCst), 6);
    harness.shutdown().await;
}
