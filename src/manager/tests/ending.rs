//! Runs that end by themselves: status until nothing of them is left.

use tokio::time::{Instant, sleep};

use super::*;
use crate::manager::end::RunEnd;

const GRACE: Duration = Duration::from_secs(5);

/// Run that leaves a task behind and then ends.
struct Leaving {
    ends: Ends,
    leaves: Arc<dyn Fn(&Epoch) + Send + Sync>,
}

#[derive(Clone, Copy)]
enum Ends {
    Fails,
    Panics,
    Completes,
}

impl Leaving {
    fn new(ends: Ends, leaves: impl Fn(&Epoch) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { ends, leaves: Arc::new(leaves) })
    }
}

impl Runnable for Leaving {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let (ends, leaves) = (self.ends, Arc::clone(&self.leaves));
        Box::pin(async move {
            leaves(&epoch);
            // Time during which the runnable shows as running.
            sleep(Duration::from_millis(100)).await;
            match ends {
                Ends::Fails => Err("boom".into()),
                Ends::Panics => panic!("boom"),
                Ends::Completes => Ok(()),
            }
        })
    }
}

impl ConditionalRunnable for Leaving {
    fn ready(&self) -> Readiness {
        always()
    }
}

/// Spawns a task that ends only when it is aborted.
fn spawn_endless(epoch: &Epoch) {
    epoch.spawn(std::future::pending());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_has_returned_is_stopping_and_its_tasks_are_aborted_after_the_grace() {
    for (ends, reason) in [
        (Ends::Fails, DoneReason::Failed("boom".into())),
        (Ends::Panics, DoneReason::Panicked("boom".into())),
        (Ends::Completes, DoneReason::Completed),
    ] {
        let mut harness = Harness::new();
        let options = RunnableOptions { restart: RestartPolicy::Never, ..Default::default() };
        let runnable = Leaving::new(ends, spawn_endless);
        harness.handle.add_runnable("leaving", runnable, options).await.unwrap();
        harness.until("leaving", ControllerState::Running).await;
        let stopped = Instant::now();

        let stopping = harness.until("leaving", ControllerState::Stopping).await;
        let returned = Instant::now();
        assert!(returned - stopped <= Duration::from_millis(100), "{:?}", returned - stopped);
        assert_eq!(stopping.reason, "Draining");

        assert_eq!(harness.next_done().await, (1, reason));
        assert_eq!(returned.elapsed().as_secs(), GRACE.as_secs());
        harness.until("leaving", ControllerState::Stopped).await;
        harness.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_ends_the_manager_when_it_returns_and_not_when_it_is_done() {
    let mut harness = Harness::new();
    let others = Probe::new(Body::UntilStopped).arc();
    harness.add("others", &others).await;
    let runnable = Leaving::new(Ends::Fails, spawn_endless);
    harness.handle.add_runnable("leaving", runnable, RunnableOptions::fail_fast()).await.unwrap();
    harness.until("leaving", ControllerState::Running).await;
    let begin = Instant::now();

    assert_eq!(harness.next_done().await, (1, DoneReason::Cancelled), "of the other one");
    assert!(begin.elapsed() <= Duration::from_millis(100), "{:?}", begin.elapsed());
    let end = timeout(Duration::from_secs(60), harness.running).await.expect("it ends").unwrap();

    assert!(
        matches!(end, Err(ManagerError::RunnableFailed { name, .. }) if name.as_str() == "leaving")
    );
}

#[tokio::test(start_paused = true)]
async fn error_of_a_run_and_runnables_that_were_late_are_both_returned() {
    let graceful_shutdown_timeout = Some(Duration::from_secs(1));
    let options = ManagerOptions { graceful_shutdown_timeout, ..Default::default() };
    let harness = Harness::start(Manager::new(options));
    harness.add("deaf", &Probe::new(Body::IgnoresStop).arc()).await;
    harness.until("deaf", ControllerState::Running).await;
    let fails = Probe::new(Body::Fails).arc();
    harness.handle.add("server", fails, RunnableOptions::fail_fast()).await.unwrap();

    let end = timeout(Duration::from_secs(60), harness.running).await.expect("it ends").unwrap();

    let Err(ManagerError::Late { names, before: Some(before) }) = end else { panic!("{end:?}") };
    assert_eq!(names, ["deaf".into()]);
    assert_eq!(before.to_string(), "server failed: boom");
}

#[tokio::test(start_paused = true)]
async fn the_next_epoch_begins_at_done_and_no_sooner_than_the_back_off_after_the_return() {
    // Jitter shortens the back-off by up to a fifth.
    for (first, longest) in [(2, GRACE + Duration::from_millis(100)), (20, Duration::from_secs(20))]
    {
        let first = Duration::from_secs(first);
        let restart_backoff = RestartBackoff { first, ..Default::default() };
        let manager = Manager::new(ManagerOptions { restart_backoff, ..Default::default() });
        let mut harness = Harness::start(manager);
        let runnable = Leaving::new(Ends::Fails, spawn_endless);
        harness.handle.add_runnable("leaving", runnable, Default::default()).await.unwrap();
        harness.until("leaving", ControllerState::Stopping).await;
        let returned = Instant::now();

        assert_eq!(harness.next_done().await.0, 1);
        let done = returned.elapsed();
        harness.until("leaving", ControllerState::Running).await;

        let waited = returned.elapsed();
        assert!(done >= GRACE && waited >= first.mul_f64(0.8).max(done), "{waited:?}");
        assert!(waited <= longest, "{waited:?}");
        drop(harness.stop().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_task_ends_that_task_alone_and_is_counted() {
    let metrics = ManagerMetrics::default();
    let options = ManagerOptions { metrics: metrics.clone(), ..ManagerOptions::default() };
    let harness = Harness::start(Manager::new(options));
    let goes_on = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&goes_on);
    let runnable = Leaving::new(Ends::Completes, move |epoch| {
        epoch.spawn(async { panic!("boom") });
        let stops = epoch.clone();
        epoch.spawn(async move {
            let _panics = PanicsOnDrop;
            stops.stopping().await;
        });
        let count = Arc::clone(&count);
        epoch.spawn(async move {
            sleep(Duration::from_secs(1)).await;
            count.fetch_add(1, Ordering::SeqCst);
        });
    });
    let options = RunnableOptions { restart: RestartPolicy::Never, ..Default::default() };
    harness.handle.add_runnable("leaving", runnable, options).await.unwrap();
    harness.until("leaving", ControllerState::Stopped).await;

    assert_eq!(goes_on.load(Ordering::SeqCst), 1);
    let panics = "pilotlight_controller_task_panics_total{controller=\"leaving\"}";
    assert_eq!(counter(&metrics, panics).as_deref(), Some("2"));
    harness.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_blocks_its_thread_after_the_run_returned_shows_stuck_with_what_is_late() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let mut harness = Harness::new();
    let runnable = Leaving::new(Ends::Fails, move |epoch| {
        let blocked = Arc::clone(&blocked);
        epoch.spawn(async move {
            blocked.lock().unwrap().recv().ok();
        });
    });
    let options = RunnableOptions {
        grace: Duration::from_millis(10),
        restart: RestartPolicy::Never,
        ..Default::default()
    };
    harness.handle.add_runnable("leaving", runnable, options).await.unwrap();

    let reached = |snapshot: &Arc<Snapshot>| snapshot.values().any(|status| status.stuck);
    let mut watch = harness.handle.watch();
    let stuck = timeout(Duration::from_secs(30), watch.wait_for(reached)).await;
    let status =
        stuck.expect("the status reports it").unwrap()[&ControllerName::from("leaving")].clone();
    assert_eq!((status.state, status.reason.as_str()), (ControllerState::Stopping, "Stuck"));
    assert!(status.message.contains("1 task"), "{}", status.message);

    unblock.send(()).unwrap();
    assert_eq!(harness.next_done().await, (1, DoneReason::Failed("boom".into())));
    harness.stop().await.unwrap();
}

/// A run that reports its end, and panics while it drains.
struct PanicsLate;

impl Runnable for PanicsLate {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(async move {
            epoch.record_run_end(RunEnd::Completed);
            sleep(Duration::from_secs(1)).await;
            panic!("boom")
        })
    }
}

impl ConditionalRunnable for PanicsLate {
    fn ready(&self) -> Readiness {
        always()
    }
}

/// Value of a counter of the manager, as it is exported.
fn counter(metrics: &ManagerMetrics, name: &str) -> Option<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_run_that_panics_after_it_has_reported_its_end_counts_as_a_failure() {
    let metrics = ManagerMetrics::default();
    let options = ManagerOptions { metrics: metrics.clone(), ..ManagerOptions::default() };
    let mut harness = Harness::start(Manager::new(options));
    let options = RunnableOptions { restart: RestartPolicy::Never, ..Default::default() };
    harness.handle.add_runnable("late", Arc::new(PanicsLate), options).await.unwrap();

    assert_eq!(harness.next_done().await, (1, DoneReason::Completed));
    harness.until("late", ControllerState::Stopped).await;

    let failures = "pilotlight_controller_run_failures_total{controller=\"late\"}";
    assert_eq!(counter(&metrics, failures).as_deref(), Some("1"));
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_panics_after_it_has_reported_its_end_ends_a_manager_that_must_not_outlive_it() {
    let harness = Harness::new();
    let options =
        RunnableOptions { on_failure: FailurePolicy::FailManager, ..RunnableOptions::default() };
    harness.handle.add_runnable("late", Arc::new(PanicsLate), options).await.unwrap();

    let end = timeout(Duration::from_secs(3600), harness.running).await.expect("the manager ends");

    let error = end.unwrap().unwrap_err();
    assert!(
        matches!(&error, ManagerError::RunnableFailed { name, .. } if name.as_str() == "late"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn error_of_a_run_that_was_stopped_ends_no_manager_and_is_no_reason() {
    for is_removed in [true, false] {
        let mut harness = Harness::new();
        let fails = Probe::new(Body::FailsWhenStopped(Duration::from_secs(1))).arc();
        harness.handle.add("server", fails, RunnableOptions::fail_fast()).await.unwrap();
        harness.until("server", ControllerState::Running).await;

        if is_removed {
            harness.handle.remove("server").await;
            harness.add("others", &Probe::new(Body::UntilStopped).arc()).await;
            harness.until("others", ControllerState::Running).await;
        } else {
            harness.stop.cancel();
        }

        assert_eq!(harness.next_done().await, (1, DoneReason::Cancelled));
        harness.stop().await.unwrap();
    }
}
