//! Commands of many callers at once.

use tokio::task::{JoinSet, yield_now};

use super::{groups::SlowCache, *};

/// Runs that have begun and ended.
#[derive(Clone, Default)]
struct Runs(Arc<(AtomicUsize, AtomicUsize)>);

impl Runs {
    /// Returns a runnable that is counted here: a closure.
    fn runnable(&self) -> Arc<dyn ConditionalRunnable> {
        let runs = self.clone();
        Arc::new(move |epoch: Epoch| {
            let runs = runs.clone();
            async move {
                runs.0.0.fetch_add(1, Ordering::SeqCst);
                epoch.stopping().await;
                runs.0.1.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        })
    }

    fn begun_and_ended(&self) -> (usize, usize) {
        (self.0.0.load(Ordering::SeqCst), self.0.1.load(Ordering::SeqCst))
    }
}

async fn add(handle: &ManagerHandle, name: &str, runs: &Runs) -> Result<(), AddError> {
    handle.add(name, runs.runnable(), RunnableOptions::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_adds_that_race_start_and_stop_succeed_or_are_refused() {
    let runs = Runs::default();
    let mut manager = Manager::new(ManagerOptions::default());
    // The stop lasts until the last additions have been refused.
    let (drained, drains) = watch::channel(false);
    let drains_on_request = move |epoch: Epoch| {
        let mut drains = drains.clone();
        async move {
            epoch.stopping().await;
            drop(drains.wait_for(|drained| *drained).await);
            Ok(())
        }
    };
    manager.add("slow", Arc::new(drains_on_request), RunnableOptions::default()).unwrap();
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let mut adds = JoinSet::new();
    let mut begin = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let (handle, runs) = (handle.clone(), runs.clone());
            adds.spawn(async move {
                for _ in 0..number % 7 {
                    yield_now().await;
                }
                add(&handle, &number.to_string(), &runs).await
            });
        }
    };
    begin(0..100);
    let mut running = JoinSet::new();
    running.spawn(manager.run(stop.clone()));
    begin(100..150);
    let slow_is = |state| {
        move |snapshot: &Arc<Snapshot>| {
            snapshot.get(&"slow".into()).is_some_and(|it| it.state == state)
        }
    };
    drop(handle.watch().wait_for(slow_is(ControllerState::Running)).await.unwrap());
    drop(handle.watch().wait_for(|snapshot| snapshot.len() > 20).await.unwrap());
    stop.cancel();
    begin(150..175);
    drop(handle.watch().wait_for(slow_is(ControllerState::Stopping)).await.unwrap());
    begin(175..200);

    let results = adds.join_all().await;
    drained.send_replace(true);
    running.join_next().await.unwrap().unwrap().unwrap();

    let accepted = results.iter().filter(|result| result.is_ok()).count();
    let refused = results.iter().filter(|result| **result == Err(AddError::Stopping)).count();
    assert_eq!((accepted + refused, results.len()), (200, 200));
    assert!(accepted >= 20 && refused >= 25, "{accepted} accepted, {refused} refused");
    let (begun, ended) = runs.begun_and_ended();
    assert_eq!(begun, ended, "whatever has begun has ended");
    assert!(begun <= accepted, "{begun} of {accepted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_adds_that_race_the_start_all_succeed_and_run() {
    for _ in 0..20 {
        let runs = Runs::default();
        let mut manager = Manager::new(ManagerOptions::default());
        // Groups are being started until the cache reports running.
        let cache = Arc::new(SlowCache(Duration::from_millis(5)));
        manager.add_runnable("cache", cache, RunnableOptions::default()).unwrap();
        let (handle, stop) = (manager.handle(), CancellationToken::new());
        let mut adds = JoinSet::new();
        let mut begin = |numbers: std::ops::Range<u32>| {
            for number in numbers {
                let (handle, runs) = (handle.clone(), runs.clone());
                adds.spawn(async move { add(&handle, &number.to_string(), &runs).await });
            }
        };
        begin(0..10);
        let mut running = JoinSet::new();
        running.spawn(manager.run(stop.clone()));
        begin(10..20);

        let results = adds.join_all().await;

        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let all_run = |snapshot: &Arc<Snapshot>| {
            let is_running = |it: &Arc<RunnableStatus>| it.state == ControllerState::Running;
            snapshot.values().filter(|it| is_running(it)).count() == 21
        };
        let mut snapshots = handle.watch();
        let ran = timeout(Duration::from_secs(20), snapshots.wait_for(all_run)).await;
        drop(ran.expect("each starts").unwrap());
        stop.cancel();
        running.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(runs.begun_and_ended(), (20, 20));
    }
}

/// A message that is sent while its receiver is dropped may stay in the channel for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_race_the_end_of_the_manager_are_answered() {
    for _ in 0..200 {
        let (runs, stop) = (Runs::default(), CancellationToken::new());
        let manager = Manager::new(ManagerOptions::default());
        let handle = manager.handle();
        let mut run = JoinSet::new();
        run.spawn(manager.run(stop.clone()));
        let mut commands = JoinSet::new();
        for number in 0..40_u32 {
            let (handle, runs) = (handle.clone(), runs.clone());
            commands.spawn(async move {
                let name = number.to_string();
                let added = add(&handle, &name, &runs).await;
                assert!(added.is_ok() || added == Err(AddError::Stopping), "{added:?}");
                handle.remove(name.as_str()).await;
                assert_eq!(handle.debug(name).await, None);
            });
        }
        yield_now().await;
        stop.cancel();

        let answered = tokio::time::timeout(Duration::from_secs(20), commands.join_all()).await;

        answered.expect("each command is answered");
        run.join_next().await.unwrap().unwrap().unwrap();
        let (begun, ended) = runs.begun_and_ended();
        assert_eq!(begun, ended);
    }
}

/// Timers do not use up the budget of a task, so that a whole batch is ready at once.
#[tokio::test(start_paused = true)]
async fn a_thousand_restarts_that_are_due_at_once_all_take_place() {
    let restart_backoff = RestartBackoff { first: Duration::from_millis(1), ..Default::default() };
    let harness =
        Harness::start(Manager::new(ManagerOptions { restart_backoff, ..Default::default() }));
    let adds: JoinSet<_> = (0..1000)
        .map(|number: u32| {
            let handle = harness.handle.clone();
            let runnable: Arc<dyn ConditionalRunnable> = Arc::new(|epoch: Epoch| async move {
                if epoch.number() == 1 {
                    return Err("first run".into());
                }
                epoch.stopping().await;
                Ok(())
            });
            async move { handle.add(number.to_string(), runnable, RunnableOptions::default()).await }
        })
        .collect();

    assert!(adds.join_all().await.iter().all(Result::is_ok));
    let restarted = |snapshot: &Arc<Snapshot>| {
        snapshot.len() == 1000 && snapshot.iter().all(|(_, status)| status.epoch == 2)
    };
    let mut snapshots = harness.handle.watch();
    let all = tokio::time::timeout(Duration::from_mins(1), snapshots.wait_for(restarted)).await;

    drop(all.expect("each starts again").unwrap());
    harness.stop().await.unwrap();
}

/// Adds, watches, restarts and removes runnables of its own, and one that others add too.
async fn use_manager(handle: ManagerHandle, runs: Runs, user: u32) {
    for number in 0..125 {
        let name = format!("user-{user}-{number}");
        add(&handle, &name, &runs).await.unwrap();
        let mut watch = handle.watch();
        let key = ControllerName::from(name.as_str());
        let running = |snapshot: &Arc<Snapshot>| {
            snapshot.get(&key).is_some_and(|status| status.state == ControllerState::Running)
        };
        match number % 5 {
            0 => drop(watch),
            1 => drop(watch.wait_for(running).await.unwrap()),
            2 => handle.restart(name.as_str()).await.unwrap(),
            3 => {
                let again = add(&handle, &name, &runs).await;
                assert_eq!(again, Err(AddError::AlreadyThere(key.clone())));
            }
            _ => {
                let shared = add(&handle, "shared", &runs).await;
                let taken = Err(AddError::AlreadyThere("shared".into()));
                assert!(shared.is_ok() || shared == taken, "{shared:?}");
                tokio::join!(handle.remove("shared"), handle.remove(name.as_str()));
            }
        }
        handle.remove(name.as_str()).await;
        assert!(handle.status_of(name.as_str()).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_adds_removes_awaits_and_watches_at_once_leave_nothing() {
    let before = Handle::current().metrics().num_alive_tasks();
    let (runs, metrics) = (Runs::default(), ManagerMetrics::default());
    let options = ManagerOptions { metrics: metrics.clone(), ..ManagerOptions::default() };
    let harness = Harness::start(Manager::new(options));
    let mut users = JoinSet::new();
    for user in 0..8 {
        users.spawn(use_manager(harness.handle.clone(), runs.clone(), user));
    }

    users.join_all().await;

    assert!(harness.handle.status().is_empty());
    let (begun, ended) = runs.begun_and_ended();
    assert_eq!(begun, ended);
    assert!(begun > 500, "{begun}");
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(!text.contains("user-") && !text.contains("shared"), "{text}");
    // The manager itself.
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before + 1);
    harness.stop().await.unwrap();
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}
