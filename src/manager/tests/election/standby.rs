//! Runnables of a replica that stands by.

use super::{super::groups::SlowCache, *};

#[tokio::test(start_paused = true)]
async fn other_groups_run_on_every_replica() {
    let server = server();
    let mut a = Replica::start(&server, "a", warm());
    a.until_leading().await;
    let b = Replica::start(&server, "b", TestRunnable { group: RunnableGroup::Others, ..cold() });
    sleep(Duration::from_secs(5)).await;

    assert!(b.epoch().unwrap().leads());
    b.epoch().unwrap().leading().await;
    b.write("of-b").await.unwrap();
    a.harness.stop().await.unwrap();
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn standby_that_stops_starts_nothing() {
    let server = server();
    let mut a = Replica::start(&server, "a", cold());
    a.until_leading().await;
    let b = Replica::start(&server, "b", cold());
    sleep(Duration::from_secs(5)).await;
    let epochs = b.epochs.clone();

    b.harness.stop().await.unwrap();
    a.harness.stop().await.unwrap();

    assert!(epochs.borrow().is_none());
}

#[tokio::test(start_paused = true)]
async fn runnable_that_is_added_to_a_standby_starts_once_its_replica_leads() {
    let server = server();
    let mut a = Replica::start(&server, "a", cold());
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", cold());
    sleep(Duration::from_secs(5)).await;

    let late = cold();
    let epochs = late.epochs.subscribe();
    let options = RunnableOptions::default();
    b.harness.handle.add_runnable("late", Arc::new(late), options).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(epochs.borrow().is_none());
    assert_eq!(b.harness.handle.status_of("late").unwrap().reason, "Standby");

    a.harness.stop().await.unwrap();
    b.until_leading().await;
    assert!(epochs.borrow().as_ref().unwrap().leads());
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn warm_up_group_runs_before_the_election_is_won_and_stops_beside_others() {
    let server = server();
    let mut a = Replica::start(&server, "a", cold());
    a.until_leading().await;
    let drains = Duration::from_secs(3);
    let warm_up = TestRunnable { group: RunnableGroup::Warmup, drains, ..cold() };
    let mut b = Replica::start(&server, "b", warm_up);
    let others = TestRunnable { group: RunnableGroup::Others, drains, ..cold() };
    let options = RunnableOptions::default();
    b.harness.handle.add_runnable("others", Arc::new(others), options).await.unwrap();
    sleep(Duration::from_secs(5)).await;

    assert!(!b.status.borrow().leads);
    for name in ["work", "others"] {
        let status = b.harness.handle.status_of(name).unwrap();
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1), "{name}");
    }
    b.write("of-b").await.unwrap();

    a.harness.stop().await.unwrap();
    b.until_leading().await;
    assert_eq!(b.epoch().unwrap().number(), 1);
    let before = Instant::now();
    b.harness.stop().await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 3, "both drain at the same time");
}

/// Runnable of the warm-up group that reports running after a time.
struct SlowWarmup(SlowCache);

impl Runnable for SlowWarmup {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        self.0.start(epoch)
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Warmup
    }

    fn reports_running(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn warm_up_runnable_that_is_late_delays_neither_the_election_nor_the_elected_group() {
    let server = server();
    let options = ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
    let own = server.clone();
    let election = Election::new(options, move || Ok(own.client_as("a"))).unwrap();
    let election = election.by(Arc::new(RuntimeClock::new()));
    let mut manager = Manager::new(ManagerOptions::default()).elect(election);
    let options = RunnableOptions::default;
    let minute = Duration::from_secs(60);
    let late = Arc::new(SlowWarmup(SlowCache(minute)));
    manager.add_runnable("late", late, options()).unwrap();
    manager.add_runnable("elected", Arc::new(cold()), options()).unwrap();
    let begin = Instant::now();
    let harness = Harness::start(manager);

    harness.until("elected", ControllerState::Running).await;

    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    let late = harness.handle.status_of("late").unwrap();
    assert_eq!(late.state, ControllerState::Starting);
    harness.until("late", ControllerState::Running).await;
    assert_eq!(begin.elapsed().as_secs(), minute.as_secs());
    harness.stop().await.unwrap();
}

/// Runnable that fails while it warms up.
struct FailsToWarmUp;

impl Runnable for FailsToWarmUp {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(async move {
            assert!(!epoch.leads());
            Err("no cache is reachable".into())
        })
    }

    fn warms_up(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn standby_whose_warm_up_fails_backs_off_and_says_why() {
    let server = server();
    let mut a = Replica::start(&server, "a", cold());
    a.until_leading().await;
    let b = Replica::start(&server, "b", cold());
    let options = RunnableOptions::default();
    b.harness.handle.add_runnable("broken", Arc::new(FailsToWarmUp), options).await.unwrap();

    let broken = b.harness.until("broken", ControllerState::BackingOff).await;

    assert_eq!(
        (broken.reason.as_str(), broken.message.as_str()),
        ("RunFailed", "no cache is reachable")
    );
    assert!(!b.status.borrow().leads);
    assert_eq!(b.reason(), "Standby", "of the runnable that does not warm up");
    b.harness.stop().await.unwrap();
    a.harness.stop().await.unwrap();
}
