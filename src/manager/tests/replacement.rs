//! Replacement of one specification by another.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_replacement_takes_over_only_once_it_can_run() {
    let mut harness = Harness::new();
    let old = Probe::new(Body::UntilStopped).arc();
    harness.add("widgets", &old).await;
    harness.until("widgets", ControllerState::Running).await;

    let new = Probe::new(Body::UntilStopped).waiting().arc();
    harness.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();
    let reached = |snapshot: &Arc<Snapshot>| snapshot.values().any(|s| s.pending.is_some());
    let snapshot = harness.handle.watch().wait_for(reached).await.unwrap().clone();
    let status = &snapshot[&ControllerName::from("widgets")];
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    assert_eq!(status.pending.as_deref(), Some("widgets.example.com/v1 is not installed"));

    new.verdict.send_replace(met());
    assert_eq!(harness.next_done().await, (1, DoneReason::Superseded));
    let status = harness.until("widgets", ControllerState::Running).await;
    assert_eq!((status.epoch, status.pending.clone()), (2, None));

    // The old specification's condition has no effect any more.
    old.verdict.send_replace(unmet());
    new.verdict.send_replace(unmet());
    assert_eq!(harness.next_done().await, (2, DoneReason::TypeGone));
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_waits_is_called_off_without_a_restart() {
    let harness = Harness::new();
    let old = Probe::new(Body::UntilStopped).arc();
    harness.add("widgets", &old).await;
    harness.until("widgets", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped).waiting().arc();
    harness.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();
    let mut snapshots = harness.handle.watch();
    let waits = |snapshot: &Arc<Snapshot>| snapshot.values().any(|s| s.pending.is_some());
    drop(snapshots.wait_for(waits).await.unwrap());

    harness.handle.replace("widgets", old, RunnableOptions::default()).await.unwrap();

    drop(snapshots.wait_for(|snapshot| !waits(snapshot)).await.unwrap());
    new.verdict.send_replace(met());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 1);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_a_runnable_that_does_not_run_takes_over_at_once() {
    let harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::UntilStopped).waiting().arc()).await;

    let new = Probe::new(Body::UntilStopped).arc();
    harness.handle.replace("widgets", new, RunnableOptions::default()).await.unwrap();

    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 1);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_whose_condition_is_lost_while_it_prepares_leaves_the_old_one_running() {
    let mut harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::UntilStopped).arc()).await;
    harness.until("widgets", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped).prepares_on_request().arc();
    harness.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();

    new.verdict.send_replace(unmet());
    let says = |snapshot: &Arc<Snapshot>| {
        let pending = snapshot.values().find_map(|status| status.pending.clone());
        pending.is_some_and(|why| why.contains("not installed"))
    };
    harness.handle.watch().wait_for(says).await.unwrap();
    new.prepared.notify_one();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let status = harness.until("widgets", ControllerState::Running).await;
    assert_eq!((status.epoch, new.given_back.load(Ordering::Relaxed)), (1, 1));

    new.prepared.notify_one();
    new.verdict.send_replace(met());
    assert_eq!(harness.next_done().await, (1, DoneReason::Superseded));
    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 2);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_returns_while_its_replacement_cannot_start() {
    let harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::Fails).arc()).await;
    harness.until("widgets", ControllerState::BackingOff).await;

    let new = Probe::new(Body::UntilStopped).waiting().arc();
    harness.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();
    let again = |snapshot: &Arc<Snapshot>| snapshot.values().any(|status| status.epoch == 2);
    harness.handle.watch().wait_for(again).await.unwrap();

    new.verdict.send_replace(met());
    let status = harness.until("widgets", ControllerState::Running).await;
    assert_eq!((status.pending.clone(), status.failures), (None, 0));
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_a_group_that_is_open_starts_though_its_own_was_not() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    let cache = Probe::new(Body::NeverRuns).group(RunnableGroup::Caches, &log).arc();
    manager.add("cache", cache, RunnableOptions::default()).unwrap();
    manager
        .add("widgets", Probe::new(Body::UntilStopped).arc(), RunnableOptions::default())
        .unwrap();
    let harness = Harness::start(manager);
    harness.until("cache", ControllerState::Starting).await;

    let early = Probe::new(Body::UntilStopped).group(RunnableGroup::HttpServers, &log).arc();
    harness.handle.replace("widgets", early, RunnableOptions::default()).await.unwrap();

    harness.until("widgets", ControllerState::Running).await;
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_preparation_that_panics_when_it_is_cancelled_is_cancelled_all_the_same() {
    let harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::UntilStopped).arc()).await;
    harness.until("widgets", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped)
        .prepares_on_request()
        .preparing(Preparing::PanicsWhenDropped)
        .arc();
    harness.handle.replace("widgets", new, RunnableOptions::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    harness.handle.remove("widgets").await;

    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.add("others", &Probe::new(Body::UntilStopped).arc()).await;
    harness.until("others", ControllerState::Running).await;
    harness.stop().await.unwrap();
}

/// Series of the timers of one kind.
fn timers(metrics: &ManagerMetrics, kind: &str) -> Vec<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("pilotlight_controller_timers{"));
    lines.filter(|line| line.contains(kind)).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn the_retry_of_a_preparation_ends_with_its_replacement() {
    let options = ManagerOptions::default();
    let metrics = options.metrics.clone();
    let harness = Harness::start(Manager::new(options));
    let old = Probe::new(Body::UntilStopped).arc();
    harness.add("widgets", &old).await;
    harness.until("widgets", ControllerState::Running).await;
    let replaced = async || {
        let new = Probe::new(Body::UntilStopped).preparing(Preparing::Fails).arc();
        harness.handle.replace("widgets", new, RunnableOptions::default()).await.unwrap();
        let fails = |snapshot: &Arc<Snapshot>| {
            let pending = snapshot.values().find_map(|status| status.pending.clone());
            pending.is_some_and(|why| why.contains("nothing to prepare with"))
        };
        drop(harness.handle.watch().wait_for(fails).await.unwrap());
        let label = r#"controller="widgets",kind="retry"} 1"#;
        assert!(timers(&metrics, "retry").concat().ends_with(label), "{:?}", timers(&metrics, ""));
    };

    replaced().await;
    harness.handle.replace("widgets", old, RunnableOptions::default()).await.unwrap();
    assert_eq!(timers(&metrics, "retry"), [""; 0], "called off");

    replaced().await;
    harness.handle.remove("widgets").await;
    assert_eq!(timers(&metrics, ""), [""; 0], "removed");
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn end_of_a_replaced_run_ends_nothing_of_its_replacement() {
    let long = Duration::from_secs(3);
    for old in [Body::FailsSlowly(long), Body::Drains(long), Body::IgnoresStop] {
        let mut harness = Harness::new();
        let fails = matches!(old, Body::FailsSlowly(_));
        harness.add("widgets", &Probe::new(old).arc()).await;
        let begun = if fails { ControllerState::Stopping } else { ControllerState::Running };
        harness.until("widgets", begun).await;

        let new = Probe::new(Body::UntilStopped).arc();
        let last = Arc::clone(&new.last);
        harness.handle.replace("widgets", new, RunnableOptions::default()).await.unwrap();
        assert_eq!(harness.next_done().await.0, 1);
        harness.until("widgets", ControllerState::Running).await;
        // Longer than any task, grace or back-off of the old run.
        tokio::time::sleep(Duration::from_secs(3600)).await;

        let status = harness.handle.status_of("widgets").unwrap();
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 2));
        let replacement = last.lock().unwrap().take().unwrap();
        assert!(replacement.fence().pass().is_ok(), "its requests are sent");
        harness.handle.remove("widgets").await;
        assert_eq!(harness.next_done().await, (2, DoneReason::Cancelled));
        harness.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn name_of_a_runnable_that_is_being_removed_is_taken_until_its_run_has_ended() {
    let mut harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::Drains(Duration::from_secs(3))).arc()).await;
    harness.until("widgets", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped).arc();

    let mut removal = Box::pin(harness.handle.remove("widgets"));
    assert!(futures::poll!(&mut removal).is_pending());
    let early = harness.handle.add("widgets", new.clone(), RunnableOptions::default()).await;
    assert_eq!(early, Err(AddError::AlreadyThere("widgets".into())));
    removal.await;
    harness.add("widgets", &new).await;

    assert_eq!(harness.next_done().await, (1, DoneReason::Cancelled));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 2);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replacement_is_awaited_until_it_is_installed_or_discarded() {
    let mut harness = Harness::new();
    let old = Probe::new(Body::UntilStopped).arc();
    harness.add("widgets", &old).await;
    harness.until("widgets", ControllerState::Running).await;
    let handle = harness.handle.clone();
    let replace = async |new: Arc<Probe>| {
        handle.replace("widgets", new, RunnableOptions::default()).await.unwrap()
    };
    let waiting = || Probe::new(Body::UntilStopped).waiting().arc();

    let discarded = replace(waiting()).await;
    let new = waiting();
    let mut installed = Box::pin(replace(new.clone()).await.installed());
    assert_eq!(discarded.installed().await, Err(ReplacementDiscarded));
    let hour = tokio::time::timeout(Duration::from_secs(3600), &mut installed);
    assert!(hour.await.is_err(), "its condition is not met");

    new.verdict.send_replace(met());
    assert_eq!(installed.await, Ok(()));
    assert_eq!(harness.next_done().await, (1, DoneReason::Superseded));
    assert_eq!(replace(new).await.installed().await, Ok(()), "the same runs already");
    let removed = replace(waiting()).await;
    harness.handle.remove("widgets").await;
    assert_eq!(removed.installed().await, Err(ReplacementDiscarded));
    harness.stop().await.unwrap();
}
