//! Inputs by name against a simulated API server.

use super::{
    types::{assert_absent, tasks},
    *,
};
use crate::controller::InputState;

#[tokio::test(start_paused = true)]
async fn type_that_is_added_late_is_watched_while_it_is_served_and_until_it_is_removed() {
    let harness = Harness::new();
    harness.install("Part");
    let controller = Arc::new(harness.build(builder().for_type(parts()).conditional()));
    let inputs = controller.inputs();
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;

    let added = inputs
        .add("late", |input| input.watches_type(widgets(), Handler::Object).conditional())
        .unwrap();
    let degraded = harness.until(|status| status.reason == "Degraded").await;
    assert_eq!(degraded.report.missing, [widgets()]);
    assert!(matches!(added.state(), InputState::Pending(_)));

    for mark in ["first", "second"] {
        harness.install("Widget");
        added.started().await.unwrap();
        harness.server.apply(widget("a", mark));
        assert_eq!(harness.log().await, [format!("ns/a {mark}")]);
        assert_eq!(harness.server.watches(WIDGETS), 1);
        harness.server.uninstall("widgets");
        harness.until(|status| status.reason == "Degraded").await;
        assert_eq!((harness.server.watches(WIDGETS), harness.status().epoch), (0, 1));
        harness.log().await;
    }
    harness.install("Widget");
    added.started().await.unwrap();

    harness.server.apply(widget("a", "third"));
    assert_eq!(harness.log().await, ["ns/a third"]);

    assert!(inputs.remove("late").await);

    harness.server.delete("Widget", "a");
    assert_eq!(harness.log().await, [""; 0]);
    harness.server.apply(widget("b", "third"));
    assert_eq!(harness.log().await, [""; 0]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.server.watches(WIDGETS), 0);
    assert_eq!(harness.status().report.watches.len(), 1);
    assert_eq!(
        (harness.status().reason.to_string().as_str(), harness.status().epoch),
        ("Running", 1)
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn replaced_type_stays_readable_and_no_change_between_is_lost() {
    let harness = Harness::new();
    harness.install("Part");
    harness.install("Widget");
    harness.server.apply(widget("a", "first"));
    let controller = Arc::new(harness.build(builder().for_type(parts()).conditional()));
    let inputs = controller.inputs();
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    let watch = || inputs.replace("w", |input| input.watches_type(widgets(), Handler::Object));
    watch().unwrap().started().await.unwrap();
    assert_eq!(harness.log().await, ["ns/a first"]);

    let replaced = watch().unwrap();
    harness.server.apply(widget("a", "second"));
    harness.server.apply(widget("b", "second"));
    replaced.started().await.unwrap();

    let log = harness.log().await;
    assert!(log.contains(&"ns/a second".to_owned()), "{log:?}");
    assert!(log.contains(&"ns/b second".to_owned()), "{log:?}");
    assert!(log.iter().all(|note| !note.ends_with("missing")), "{log:?}");
    assert_eq!((harness.server.watches(WIDGETS), harness.status().epoch), (1, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn input_added_through_a_replaced_controller_reaches_nothing_of_its_replacement() {
    let harness = Harness::new();
    harness.install("Part");
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let of_parts = || Arc::new(harness.build(builder().for_type(parts()).conditional()));
    let (old, new) = (of_parts(), of_parts());
    let (of_old, of_new) = (old.inputs(), new.inputs());
    let options = RunnableOptions::default();
    harness.manager.add(NAME, old, options.clone()).await.unwrap();
    harness.state(ControllerState::Running).await;
    let replaced = harness.manager.replace(NAME, new, options).await.unwrap();
    replaced.installed().await.unwrap();
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    let before = tasks().await;

    let watch = |input: Builder| input.watches_type(widgets(), Handler::Object);
    let added = of_old.add("late", watch).unwrap();

    assert_absent(&harness, WIDGETS, before).await;
    assert_eq!(harness.server.requests_of(WIDGETS), 0);
    let state = InputState::Pending("the controller does not run".to_owned());
    assert_eq!((added.state(), of_old.states().len()), (state, 1));
    assert_eq!(of_new.states(), []);

    // The name is free in the replacement, and of another input there.
    of_new.add("late", watch).unwrap().started().await.unwrap();
    assert_eq!(harness.log().await, ["ns/a a"]);
    assert!(of_old.remove("late").await);
    assert_eq!((added.state(), of_old.states()), (InputState::Ended, vec![]));
    assert_eq!(of_new.states(), [("late".to_owned(), InputState::Started)]);
    assert_eq!((harness.server.watches(WIDGETS), harness.status().epoch), (1, 2));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn bounded_wait_for_an_input_of_a_missing_type_frees_the_worker() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let add = |input: Builder| input.watches_type(parts(), Handler::Object).optional();
            let name = request.name.to_string();
            let added = context.inputs().ok_or("no inputs")?.replace(&name, add)?;
            let second = Duration::from_secs(1);
            let state = match tokio::time::timeout(second, added.started()).await {
                Ok(started) => {
                    started?;
                    "started"
                }
                Err(_) => "late",
            };
            log.lock().unwrap().push(format!("{request} {state}"));
            Ok(match state {
                "late" => Outcome::RequeueAfter(Duration::from_secs(60)),
                _ => Outcome::Done,
            })
        }
    };
    let described = builder().for_type(widgets()).conditional().max_concurrent_reconciles(1);
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    harness.server.apply(widget("b", "b"));

    sleep(Duration::from_secs(3)).await;
    assert_eq!(harness.log().await, ["ns/a late", "ns/b late"], "each holds the worker for 1 s");
    harness.install("Part");
    sleep(Duration::from_secs(61)).await;

    assert_eq!(harness.log().await, ["ns/a started", "ns/b started"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconcile_that_adds_an_input_of_a_missing_type_and_returns_holds_no_worker() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(widget("b", "b"));
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let add = |input: Builder| input.watches_type(parts(), Handler::Object).optional();
        // The second reconcile finds the input of the first one.
        let added = context.inputs().and_then(|inputs| inputs.add("parts", add).ok());
        let listed = context.store(&parts()).ok().map(|store| store.all().len());
        let state = added.map(|added| added.state());
        log.lock().unwrap().push(format!("{request} {listed:?} {}", state.is_some()));
        async { Ok(Outcome::Done) }
    };
    let described = builder().for_type(widgets()).conditional().max_concurrent_reconciles(1);
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a None true", "ns/b None false"]);

    harness.install("Part");
    harness.server.apply(part("p", "a"));
    sleep(Duration::from_secs(1)).await;

    assert_eq!(harness.log().await, ["ns/p Some(1) false"]);
    harness.shutdown().await;
}
