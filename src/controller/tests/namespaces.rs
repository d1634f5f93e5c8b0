//! Inputs of several namespaces: they begin, and are read, as one.

use tokio::sync::watch;

use super::*;
use crate::{
    manager::{Readiness, WatchState},
    testing::{Action, Rule, Verb},
};

/// Log of the events of a handler, and a handler that adds to it.
fn logging(log: &Log) -> Handler {
    let log = Arc::clone(log);
    Handler::events(move |event, queue| {
        let verb = match &event {
            Event::Create { .. } => "create",
            Event::Update { old, new } if old.is(new) => "resync",
            Event::Update { .. } => "update",
            Event::Delete { .. } => "delete",
        };
        let key = event.object().key().clone();
        log.lock().unwrap().push(format!("{verb} {key}"));
        queue.add(key);
    })
}

fn take(log: &Log) -> Vec<String> {
    let mut taken = std::mem::take(&mut *log.lock().unwrap());
    taken.sort();
    taken
}

/// Adds a controller of parts, which counts the widgets of two namespaces when a widget changes.
async fn add_counter(harness: &Harness, events: &Log) {
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let found = context.store(&widgets()).map(|widgets| widgets.all().len());
        let found = found.map_or_else(|_| "unread".to_owned(), |found| found.to_string());
        log.lock().unwrap().push(format!("{request} {found}"));
        async { Ok(Outcome::Done) }
    };
    let described = builder()
        .for_type(parts())
        .watches_type(widgets(), logging(events))
        .optional()
        .namespaces(["one", "two"])
        .on_synced(|queue| queue.add(Request::cluster("synced")));
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn optional_input_delivers_once_all_of_its_namespaces_are_listed_twice_round() {
    for fails in ["is late", "is forbidden"] {
        let (harness, events) = (Harness::new(), Log::default());
        harness.install("Part");
        add_counter(&harness, &events).await;
        for _ in 0..2 {
            let path = "/apis/example.com/v1/namespaces/two/widgets";
            let hangs = Rule::new(Action::Hang).path_is(path).verb(Verb::List);
            let rule = (fails == "is late").then(|| harness.server.fault(hangs));
            if fails == "is forbidden" {
                harness.server.forbid_in("two", "widgets.example.com");
            }
            harness.install("Widget");
            harness.server.apply_in("one", widget("a", "a"));
            harness.server.apply_in("two", widget("b", "b"));
            harness.state(ControllerState::Running).await;
            sleep(Duration::from_secs(10)).await;
            assert_eq!(harness.log().await, [""; 0], "two {fails}");

            rule.into_iter().for_each(|rule| harness.server.remove(rule));
            harness.server.forbid_in("two", "none.example.com");
            sleep(Duration::from_secs(600)).await;
            let mut log = harness.log().await;
            log.sort();
            assert_eq!(log, ["one/a 2", "synced 2", "two/b 2"], "two {fails}");
            assert_eq!(take(&events), ["create one/a", "create two/b"]);

            harness.server.uninstall("widgets");
            let log = harness.log().await;
            assert!(log.iter().all(|it| it.ends_with("unread")), "{log:?}");
            assert_eq!(take(&events), ["delete one/a", "delete two/b"]);
        }
        assert_eq!(harness.status().epoch, 1);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_namespace_of_an_optional_input_does_not_delay_the_controller() {
    let (harness, events) = (Harness::new(), Log::default());
    harness.install("Part");
    harness.install("Widget");
    harness.server.forbid_in("two", "widgets.example.com");
    let begin = Instant::now();

    add_counter(&harness, &events).await;
    harness.state(ControllerState::Running).await;

    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn sync_timeout_names_the_late_namespace_alone() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.forbid_in("two", "widgets.example.com");
    let described = builder().for_type(widgets()).namespaces(["one", "two", "three"]);
    harness.add(described.sync_timeout(Duration::from_secs(10))).await;

    let failed = harness.until(|status| status.message.contains("sync timeout")).await;

    let (_, reasons) = failed.message.split_once("10 s: ").unwrap();
    assert!(reasons.contains("in the namespace two"), "{reasons}");
    assert!(!reasons.contains("; "), "{reasons}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_type_is_delivered_once_whatever_its_namespaces() {
    let (harness, events) = (Harness::new(), Log::default());
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let found = context.store(&widgets()).map(|widgets| widgets.all().len());
        log.lock().unwrap().push(format!("{request} {found:?}"));
        async { Ok(Outcome::Done) }
    };
    let period = Duration::from_secs(100);
    let described = builder()
        .watches_type(widgets(), logging(&events))
        .namespaces(["one", "two"])
        .conditional()
        .resync(period)
        .on_synced(|queue| queue.add(Request::cluster("synced")));
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    for epoch in [1, 3] {
        harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
        harness.server.apply_cluster_scoped(widget("a", "a"));
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
        assert_eq!(harness.status().report.late, [""; 0]);
        let mut log = harness.log().await;
        log.sort();
        assert_eq!(log, ["a Ok(1)", "synced Ok(1)"]);
        assert_eq!(take(&events), ["create a"]);
        harness.server.apply_cluster_scoped(widget("a", "again"));
        assert_eq!(harness.log().await, ["a Ok(1)"]);
        assert_eq!(take(&events), ["update a"]);
        sleep(period).await;
        run_until_idle().await;
        assert_eq!(take(&events), ["resync a"]);
        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        take(&events);

        // A type of the same name that has namespaces.
        harness.install("Widget");
        for namespace in ["one", "two"] {
            harness.server.apply_in(namespace, widget("a", "a"));
        }
        harness.state(ControllerState::Running).await;
        run_until_idle().await;
        assert_eq!(take(&events), ["create one/a", "create two/a"]);
        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        take(&events);
        harness.log().await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_input_of_several_namespaces_is_not_stale_while_its_condition_is_off() {
    let harness = Harness::new();
    harness.install("Part");
    harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    let flag = watch::Sender::new(true);
    let on = flag.subscribe();
    let described = builder()
        .for_type(parts())
        .watches_type(widgets(), Handler::Object)
        .namespaces(["one", "two"])
        .optional()
        .input_when(move || Readiness::flag(on.clone(), "Off", "it is off"));
    let reconcile = |_: Request, _: Context| async { Ok(Outcome::Done) };
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    for is_on in [false, true, false, true] {
        flag.send_replace(is_on);
        run_until_idle().await;

        let report = harness.status().report.clone();
        assert!(!report.stale, "{is_on}: {report:?}");
        let synced = report.watches.iter().filter(|it| it.state == WatchState::Synced).count();
        assert_eq!(synced, if is_on { 3 } else { 1 }, "{report:?}");
    }
    harness.shutdown().await;
}
