//! Preparation of an epoch: informers acquired before its start, and released if it does not start.

use super::*;
use crate::testing::{Action, Reply, Rule, RuleId, Verb};

/// Returns a harness whose parts are cached as metadata entries by another controller, while further
/// lists of parts fail.
async fn with_entries(code: u16, reason: &str) -> (Harness, Vec<RuleId>) {
    let harness = Harness::new();
    ["Widget", "Part"].iter().for_each(|kind| harness.install(kind));
    harness.server.apply(object("Part", "foreign", "x"));
    let other = Controller::builder("other").for_type(widgets()).conditional();
    let other = Arc::new(harness.build(other.owns_type(parts()).conditional()));
    harness.manager.add("other", other, RunnableOptions::default()).await.unwrap();
    harness.add(builder().for_type(widgets()).conditional()).await;
    harness.state(ControllerState::Running).await;
    run_until_idle().await;
    let fails = Rule::new(Action::Instead(Reply::status(code, reason, "no quorum")));
    let fails = fails.resource("example.com", "parts");
    let rules = [fails.clone().verb(Verb::List), fails.query_contains("sendInitialEvents")];
    let rules = rules.map(|rule| harness.server.fault(rule)).into();
    (harness, rules)
}

#[tokio::test(start_paused = true)]
async fn replacement_is_prepared_and_costs_no_second_list() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.add(builder().for_type(widgets()).conditional()).await;
    harness.state(ControllerState::Running).await;
    let before = harness.server.requests_of(WIDGETS);
    harness.log().await;

    let next = builder().for_type(widgets()).conditional().owns_type(parts()).conditional();
    let next = Arc::new(harness.build(next));
    harness.manager.replace(NAME, next, RunnableOptions::default()).await.unwrap();
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    assert_eq!(harness.server.requests_of(WIDGETS), before);
    assert_eq!(harness.log().await, ["ns/a a"]);
    assert_eq!(harness.cluster.informers.status().len(), 2);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn preparation_that_is_forbidden_fails_at_once_and_holds_nothing() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.forbid("widgets.example.com");
    let controller = harness.build(builder().for_type(widgets()));
    run_until_idle().await;

    let started = Instant::now();
    let error = controller.prepare().await.unwrap_err().to_string();

    assert!(error.starts_with("widgets.example.com/v1 is forbidden: 403 "), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    sleep(Duration::from_secs(11)).await;
    assert!(harness.cluster.informers.status().is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn prepared_informers_go_with_a_controller_that_is_never_started() {
    let harness = Harness::new();
    harness.install("Widget");
    let controller = harness.build(builder().for_type(widgets()));
    run_until_idle().await;
    controller.prepare().await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.server.watches(WIDGETS), 1);

    drop(controller);
    sleep(Duration::from_secs(11)).await;

    assert_eq!(harness.server.watches(WIDGETS), 0);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn prepared_informers_are_released_without_a_start() {
    let harness = Harness::new();
    harness.install("Widget");
    let controller = harness.build(builder().for_type(widgets()));
    run_until_idle().await;
    controller.prepare().await.unwrap();
    assert_eq!(harness.server.watches(WIDGETS), 1);

    controller.unprepare();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(harness.server.watches(WIDGETS), 0);

    // The result of a preparation that `unprepare` overtakes is dropped.
    let late = controller.prepare();
    controller.unprepare();
    late.await.unwrap();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(harness.server.watches(WIDGETS), 0);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn old_epoch_runs_until_the_whole_objects_of_its_replacement_are_listed() {
    let (harness, rules) = with_entries(500, "InternalError").await;
    let next = builder().for_type(widgets()).conditional().owns_type(parts()).whole();
    let next = Arc::new(harness.build(next.conditional()));
    harness.manager.replace(NAME, next, RunnableOptions::default()).await.unwrap();

    for _ in 0..10 {
        sleep(Duration::from_secs(30)).await;
        let status = harness.status();
        assert_eq!((status.epoch, status.state), (1, ControllerState::Running), "{status:?}");
    }
    harness.server.apply(widget("a", "seen"));
    assert!(harness.log().await.contains(&"ns/a seen".to_owned()));

    rules.into_iter().for_each(|rule| harness.server.remove(rule));
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn preparation_says_why_the_whole_objects_are_not_listed() {
    for (code, reason, expected) in [
        (500, "InternalError", "parts.example.com/v1 is not synced after 2 min: 500 InternalError"),
        (403, "Forbidden", "parts.example.com/v1 is forbidden: 403 Forbidden"),
    ] {
        let (harness, rules) = with_entries(code, reason).await;
        let next = builder().for_type(widgets()).conditional().owns_type(parts()).whole();
        let controller = harness.build(next.conditional());

        let error = controller.prepare().await.unwrap_err().to_string();

        assert!(error.starts_with(expected), "{error}");
        rules.into_iter().for_each(|rule| harness.server.remove(rule));
        // Longer than the pause before the list is repeated.
        sleep(Duration::from_secs(60)).await;
        controller.prepare().await.unwrap();
        drop(controller);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn watch_that_fails_delays_no_replacement_whose_objects_are_listed() {
    let (harness, rules) = with_entries(500, "InternalError").await;
    rules.into_iter().for_each(|rule| harness.server.remove(rule));
    let fails = Rule::new(Action::Instead(Reply::status(500, "InternalError", "no quorum")));
    let fails = fails.verb(Verb::Watch).resource("example.com", "parts");
    let failing = harness.server.fault(fails);
    harness.server.cut_watches("parts");
    sleep(Duration::from_secs(10)).await;
    let controller =
        harness.build(builder().for_type(widgets()).conditional().owns_type(parts()).conditional());

    controller.prepare().await.unwrap();

    drop(controller);
    harness.server.remove(failing);
    harness.shutdown().await;
}
