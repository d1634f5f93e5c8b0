//! Resyncs of an input.

use std::{
    future::pending,
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;
use crate::testing::{Action, Reply, Rule, Verb};

const PERIOD: Duration = Duration::from_secs(600);

/// Handler that logs each update with whether it is a resync.
fn logging(log: &Log) -> Handler {
    let log = Arc::clone(log);
    Handler::events(move |event, queue| {
        if let Event::Update { old, new } = &event {
            let kind = if old.is(new) { "resync" } else { "update" };
            log.lock().unwrap().push(format!("{kind} {}", new.key()));
        }
        queue.add(event.object().key().clone());
    })
}

#[tokio::test(start_paused = true)]
async fn every_object_is_delivered_again_in_each_period_at_low_priority_without_a_request() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    for name in ["a", "b", "c"] {
        harness.server.apply(widget(name, name));
    }
    harness.server.apply(object("Part", "one", "one"));
    // All periods of the test end before the watch does, which would be resumed by a request.
    let period = Duration::from_secs(10);
    let described = builder()
        .for_type(widgets())
        .resync(period)
        .watches_type(parts(), Handler::delta(|_, queue| queue.add(Request::cluster("part"))));
    let hangs = Arc::new(AtomicBool::new(false));
    let (log, hanging) = (Arc::clone(&harness.log), Arc::clone(&hangs));
    let reconcile = move |request: Request, _: Context| {
        log.lock().unwrap().push(request.to_string());
        let hangs = hanging.load(Ordering::Relaxed);
        async move { if hangs { pending().await } else { Ok(Outcome::Done) } }
    };
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    let added = Arc::clone(&controller);
    harness.manager.add(NAME, added, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    let mut first = harness.log().await;
    first.sort();
    assert_eq!(first, ["ns/a", "ns/b", "ns/c", "part"]);
    let requests = harness.server.requests_of(WIDGETS);

    for _ in 0..3 {
        sleep(period).await;
        let mut again = harness.log().await;
        again.sort();
        assert_eq!(again, ["ns/a", "ns/b", "ns/c"], "parts have no resync");
    }
    harness.server.delete("Widget", "b");
    assert_eq!(harness.log().await, ["ns/b"]);
    // The requests of the last period stay in the queue.
    hangs.store(true, Ordering::Relaxed);
    sleep(period).await;
    run_until_idle().await;
    let rows = controller.queue().into_iter();
    let queued: BTreeSet<_> = rows.map(|row| (row.key.to_string(), row.priority)).collect();
    let rest = ["ns/a", "ns/c"].map(|request| (request.to_owned(), LOW_PRIORITY));
    assert_eq!(queued, BTreeSet::from(rest));
    assert_eq!(harness.server.requests_of(WIDGETS), requests);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn resync_is_an_update_without_a_difference_that_predicates_of_changes_drop() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(object("Part", "one", "one"));
    let events = Log::default();
    let described = builder()
        .watches_type(widgets(), logging(&events))
        .resync(PERIOD)
        .watches_type(parts(), logging(&events))
        .resync(PERIOD)
        .predicate(Predicate::resource_version());
    harness.add(described).await;
    harness.state(ControllerState::Running).await;

    sleep(PERIOD).await;
    run_until_idle().await;
    assert_eq!(std::mem::take(&mut *events.lock().unwrap()), ["resync ns/a"]);
    harness.server.apply(widget("a", "b"));
    run_until_idle().await;
    assert_eq!(*events.lock().unwrap(), ["update ns/a"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn resync_continues_while_the_watch_fails_and_begins_anew_with_each_epoch() {
    let harness = Harness::new();
    harness.add(builder().for_type(widgets()).conditional().resync(PERIOD)).await;
    for _ in 0..2 {
        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        harness.state(ControllerState::Running).await;
        assert_eq!(harness.log().await, ["ns/a a"]);
        let fails = Action::Instead(Reply::status(500, "InternalError", "no quorum"));
        let fault = harness.server.fault(Rule::new(fails).resource("example.com", "widgets"));
        harness.server.cut_watches("widgets");

        sleep(PERIOD).await;
        assert_eq!(harness.log().await, ["ns/a a"]);
        assert!(harness.status().report.stale);

        harness.server.remove(fault);
        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        sleep(PERIOD).await;
        assert!(harness.log().await.is_empty());
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn resync_and_watch_errors_of_a_type_are_those_of_the_input_or_the_default() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    let errors = Log::default();
    let log = |place: &'static str| {
        let errors = Arc::clone(&errors);
        move |_: crate::manager::WatchState, _: &str| errors.lock().unwrap().push(place.to_owned())
    };
    let of_type = TypeDefaults {
        resync: Some(PERIOD),
        on_watch_error: Some(WatchErrorHandler::new(log("default"))),
        ..TypeDefaults::default()
    };
    let defaults =
        ControllerDefaults::default().of_type(widgets(), of_type.clone()).of_type(parts(), of_type);
    let cluster = harness.cluster.clone().with_defaults(defaults);
    let fails = Action::Instead(Reply::status(500, "InternalError", "no quorum"));
    let rules = ["widgets", "parts"].map(|plural| {
        let rule = Rule::new(fails.clone()).verb(Verb::List).resource("example.com", plural);
        harness.server.fault(rule)
    });
    let described = builder()
        .for_type(widgets())
        .watches_type(parts(), Handler::Object)
        .on_watch_error(log("own"))
        .resync(PERIOD * 100);
    let reconciler = LoggingReconciler { log: Arc::clone(&harness.log) };
    let controller = described.build(&cluster, reconciler).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    run_until_idle().await;

    let mut seen = errors.lock().unwrap().clone();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["default", "own"]);
    rules.into_iter().for_each(|rule| harness.server.remove(rule));
    harness.server.apply(object("Part", "one", "one"));
    harness.state(ControllerState::Running).await;
    harness.log().await;
    sleep(PERIOD).await;
    assert_eq!(harness.log().await, ["ns/a a"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn resync_of_no_time_is_none_also_where_the_type_has_one() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let second = Some(Duration::from_secs(1));
    for resync in [None, second] {
        let of_type = TypeDefaults { resync, ..TypeDefaults::default() };
        let defaults = ControllerDefaults::default().of_type(widgets(), of_type);
        let cluster = harness.cluster.clone().with_defaults(defaults);
        let reconciler = LoggingReconciler { log: Arc::clone(&harness.log) };
        let described = builder().for_type(widgets()).resync(Duration::ZERO);
        let controller = described.build(&cluster, reconciler).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
        harness.state(ControllerState::Running).await;

        sleep(PERIOD).await;

        assert_eq!(harness.log().await, ["ns/a a"], "{resync:?}");
        harness.manager.remove(NAME).await;
    }
    harness.shutdown().await;
}
