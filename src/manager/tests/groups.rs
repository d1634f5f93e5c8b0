//! Order of the groups, and the end of a manager.

use super::*;

/// Cache that reports running after a time.
pub(super) struct SlowCache(pub(super) Duration);

impl Runnable for SlowCache {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let after = self.0;
        Box::pin(async move {
            tokio::time::sleep(after).await;
            epoch.running();
            epoch.stopping().await;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Caches
    }

    fn reports_running(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn groups_start_in_order_and_stop_in_reverse() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    for group in [
        RunnableGroup::LeaderElection,
        RunnableGroup::Others,
        RunnableGroup::Warmup,
        RunnableGroup::Caches,
        RunnableGroup::HttpServers,
        RunnableGroup::Webhooks,
    ] {
        let probe = Probe::new(Body::Drains(Duration::from_secs(1))).group(group, &log).arc();
        manager.add(format!("{group:?}"), probe, RunnableOptions::default()).unwrap();
    }

    let harness = Harness::start(manager);
    harness.until("LeaderElection", ControllerState::Running).await;
    tokio::task::yield_now().await;
    let begin = tokio::time::Instant::now();
    harness.stop().await.unwrap();

    // Each of six runnables drains for a second, two of them at the same time.
    assert_eq!(begin.elapsed().as_secs(), 5);
    assert_eq!(
        *log.lock().unwrap(),
        [
            "start HttpServers",
            "start Webhooks",
            "start Caches",
            "start Others",
            "start Warmup",
            "start LeaderElection",
            "end Others",
            "end Warmup",
            "end LeaderElection",
            "end Caches",
            "end Webhooks",
            "end HttpServers",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_fail_fast_runnable_ends_the_manager_with_its_error() {
    let mut manager = Manager::new(ManagerOptions::default());
    let probe = Probe::new(Body::Fails).arc();
    manager.add("server", probe, RunnableOptions::fail_fast()).unwrap();

    let error = manager.run(CancellationToken::new()).await.unwrap_err();

    assert_eq!(error.to_string(), "server failed: boom");
}

#[tokio::test(start_paused = true)]
async fn late_runnables_are_named_at_the_deadline() {
    let before = Handle::current().metrics().num_alive_tasks();
    let hour = Duration::from_secs(3600);
    for body in [Body::IgnoresStop, Body::FailsWhenStopped(hour)] {
        let options = ManagerOptions {
            graceful_shutdown_timeout: Some(Duration::from_secs(1)),
            ..ManagerOptions::default()
        };
        let harness = Harness::start(Manager::new(options));
        let options = RunnableOptions { grace: 2 * hour, ..RunnableOptions::default() };
        harness.handle.add("deaf", Probe::new(body).arc(), options).await.unwrap();
        harness.until("deaf", ControllerState::Running).await;

        let error = harness.stop().await.unwrap_err();

        assert_eq!(error.to_string(), "not stopped in time: deaf");
        // Aborted tasks are dropped when the runtime polls them.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_no_runnable_or_for_every_one_by_its_timeout() {
    let waits = Duration::from_secs(3 * 3600);
    for (timeout, expected) in [(Some(Duration::ZERO), None), (None, Some(waits))] {
        let options =
            ManagerOptions { graceful_shutdown_timeout: timeout, ..ManagerOptions::default() };
        let harness = Harness::start(Manager::new(options));
        let drains = Probe::new(Body::Drains(waits)).arc();
        let options = RunnableOptions { grace: 2 * waits, ..RunnableOptions::default() };
        harness.handle.add("slow", drains, options).await.unwrap();
        harness.until("slow", ControllerState::Running).await;
        let began = tokio::time::Instant::now();

        let ended = harness.stop().await;

        match expected {
            None => {
                ended.expect("nothing was to be waited for");
                assert_eq!(began.elapsed(), Duration::ZERO);
            }
            Some(waits) => {
                ended.unwrap();
                assert_eq!(began.elapsed().as_secs(), waits.as_secs());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_added_once_the_manager_stops() {
    let harness = Harness::new();
    let deaf = Probe::new(Body::Drains(Duration::from_secs(3))).arc();
    harness.add("slow", &deaf).await;
    harness.until("slow", ControllerState::Running).await;
    harness.stop.cancel();
    harness.until("slow", ControllerState::Stopping).await;

    let late = harness.handle.add("late", deaf.clone(), RunnableOptions::default()).await;

    assert_eq!(late, Err(AddError::Stopping));
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_runnable_that_never_comes_up_delays_no_later_group() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    let slow = Probe::new(Body::NeverRuns).group(RunnableGroup::Others, &log).arc();
    manager.add("slow", slow, RunnableOptions::default()).unwrap();
    manager.add("last", Probe::new(Body::UntilStopped).arc(), RunnableOptions::default()).unwrap();

    let harness = Harness::start(manager);

    harness.until("last", ControllerState::Running).await;
    assert_eq!(harness.handle.status_of("slow").unwrap().state, ControllerState::Starting);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_left_behind_sends_nothing_more() {
    let epoch = Arc::new(Mutex::new(None));
    let options = ManagerOptions {
        graceful_shutdown_timeout: Some(Duration::from_secs(1)),
        ..ManagerOptions::default()
    };
    let before = Handle::current().metrics().num_alive_tasks();
    struct KeepsEpoch(Arc<Mutex<Option<Epoch>>>);
    impl Runnable for KeepsEpoch {
        fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
            *self.0.lock().unwrap() = Some(epoch.clone());
            epoch.spawn(tokio::time::sleep(Duration::from_secs(3600)));
            Box::pin(async move {
                epoch.stopping().await;
                tokio::time::sleep(Duration::from_secs(3600)).await;
                Err("connection closed".into())
            })
        }
    }
    let mut manager = Manager::new(options);
    let keeps = Arc::new(KeepsEpoch(epoch.clone()));
    manager.add_runnable("late", keeps, RunnableOptions::default()).unwrap();
    let harness = Harness::start(manager);
    harness.until("late", ControllerState::Running).await;

    harness.stop().await.unwrap_err();

    let epoch = epoch.lock().unwrap().take().unwrap();
    assert!(epoch.fence().pass().is_err());
    // Aborted tasks are dropped when the runtime polls them.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn an_early_runnable_that_panics_starts_again_by_itself_and_delays_no_later_group() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    let cache = Probe::new(Body::Panics).group(RunnableGroup::Caches, &log).arc();
    manager.add("cache", cache, RunnableOptions::default()).unwrap();
    manager.add("last", Probe::new(Body::UntilStopped).arc(), RunnableOptions::default()).unwrap();

    let harness = Harness::start(manager);

    harness.until("last", ControllerState::Running).await;
    let cache = harness.until("cache", ControllerState::BackingOff).await;
    assert_eq!(cache.last_error(), Some("boom"));
    let again = |snapshot: &Arc<Snapshot>| snapshot[&"cache".into()].epoch == 2;
    drop(harness.handle.watch().wait_for(again).await.unwrap());
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_early_runnable_that_never_reports_running_delays_later_groups_until_the_deadline() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    let silent = Probe::new(Body::NeverRuns).group(RunnableGroup::Webhooks, &log).arc();
    manager.add("silent", silent, RunnableOptions::default()).unwrap();
    manager.add("last", Probe::new(Body::UntilStopped).arc(), RunnableOptions::default()).unwrap();
    let begin = tokio::time::Instant::now();
    let harness = Harness::start(manager);
    harness.until("silent", ControllerState::Starting).await;

    harness.until("last", ControllerState::Running).await;

    assert_eq!(begin.elapsed().as_secs(), 120);
    let silent = harness.handle.status_of("silent").unwrap();
    assert_eq!(silent.state, ControllerState::Starting);
    assert_eq!(silent.reason, "StartTimeout");
    assert!(silent.message.contains("within 120s"), "{}", silent.message);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn group_after_the_caches_starts_when_the_last_of_them_reports_running() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    for (name, seconds) in [("quick", 1), ("slow", 3)] {
        let cache = Arc::new(SlowCache(Duration::from_secs(seconds)));
        manager.add_runnable(name, cache, RunnableOptions::default()).unwrap();
    }
    let next = Probe::new(Body::UntilStopped).group(RunnableGroup::Others, &log).arc();
    manager.add("next", next, RunnableOptions::default()).unwrap();
    let begin = tokio::time::Instant::now();
    let harness = Harness::start(manager);

    harness.until("quick", ControllerState::Running).await;
    assert_eq!(begin.elapsed().as_secs(), 1);
    tokio::time::sleep(Duration::from_millis(1900)).await;
    assert!(log.lock().unwrap().is_empty(), "one cache is running");
    harness.until("next", ControllerState::Running).await;

    assert_eq!(begin.elapsed().as_secs(), 3);
    harness.stop().await.unwrap();
}
