//! What is acquired before an epoch begins, and given back when it does not.

use super::*;

#[tokio::test(start_paused = true)]
async fn replacement_is_prepared_and_costs_no_second_list() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.install("Part");
    rig.server.apply(widget("a", "a"));
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
    rig.install("Widget");
    rig.server.forbid("widgets.example.com");
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
    rig.install("Widget");
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
    rig.install("Widget");
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
