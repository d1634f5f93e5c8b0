//! Preparation of an epoch: informers acquired before its start, and released if it does not start.

use super::*;

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
