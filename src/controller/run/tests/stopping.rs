//! Stop of an epoch, and the order of its steps.

use super::*;

#[tokio::test(start_paused = true)]
async fn stop_lets_running_reconciles_finish_and_starts_no_other() {
    let fake = Fake::new("fake", &["a", "b"]);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness =
        make().input(InputMode::Required, fake.clone()).run(move |request, context| {
            notes.note(&request, &context, start);
            async move {
                context.cancelled().await;
                sleep(Duration::from_secs(3)).await;
                // Within the grace the reconcile may still write.
                send(&context).await?;
                failed()
            }
        });
    harness.running().await;
    run_until_idle().await;

    let stopped = Instant::now();
    harness.stop(StopReason::TypeGone).await.unwrap();

    assert_eq!(stopped.elapsed(), Duration::from_secs(3));
    assert_eq!(log.names(), ["ns/a"]);
    assert_eq!(*fake.shared.released.borrow(), Some(Instant::now()), "after the last reconcile");
    assert_eq!(harness.report().last_error, None, "an error while stopping is no news");
    assert!(harness.epoch.fence().pass().is_err());
}

#[tokio::test(start_paused = true)]
async fn reconcile_that_outlasts_the_grace_is_dropped_with_its_request() {
    let fake = Fake::new("fake", &["a"]);
    let mut spec = make().input(InputMode::Required, fake.clone());
    spec.client = client(pending);
    let mut harness = spec.run(|_, context| async move {
        send(&context).await?;
        ok()
    });
    harness.running().await;
    run_until_idle().await;
    assert_eq!(harness.epoch.fence().under_way(), 1);

    let stopped = Instant::now();
    harness.stop(StopReason::Cancelled).await.unwrap();

    assert_eq!(stopped.elapsed(), GRACE);
    assert_eq!(harness.epoch.fence().under_way(), 0);
    assert_eq!(fake.running(), 0);
    assert_eq!(harness.metric("controller_runtime_active_workers{controller=\"widgets\"}"), "0");
}

#[tokio::test(start_paused = true)]
async fn lost_lease_closes_the_fence_and_leaves_no_grace() {
    let (result, mut results) = tokio::sync::mpsc::unbounded_channel();
    let mut harness = make()
        .workers(2)
        .input(InputMode::Required, Fake::new("fake", &["a", "b"]))
        .run(move |request, context| {
            let result = result.clone();
            async move {
                if &*request.name == "a" {
                    return pending().await;
                }
                context.cancelled().await;
                result.send(send(&context).await.map_err(|error| error.to_string())).ok();
                pending().await
            }
        });
    harness.running().await;
    run_until_idle().await;

    let stopped = Instant::now();
    harness.stop(StopReason::LeaseLost).await.unwrap();

    assert_eq!(stopped.elapsed(), Duration::ZERO);
    while let Some(result) = results.recv().now_or_never().flatten() {
        assert!(result.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn stop_while_syncing_returns_at_once() {
    for mode in [InputMode::Required, InputMode::Plain, InputMode::Optional] {
        let fake = Fake::new("fake", &["a"]).unsynced();
        let missing = Fake::new("missing", &[]).missing();
        let mut harness = make()
            .input(mode, fake.clone())
            .input(InputMode::Plain, missing.clone())
            .run(|_, _| async { ok() });
        run_until_idle().await;
        assert_eq!((fake.running(), missing.starts()), (1, 0));

        let stopped = Instant::now();
        harness.stop(StopReason::TypeGone).await.unwrap();

        assert_eq!(stopped.elapsed(), Duration::ZERO);
        assert!(!harness.report().running);
        assert_eq!(fake.running(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn done_leaves_no_task() {
    for reason in [StopReason::Cancelled, StopReason::Superseded, StopReason::LeaseLost] {
        let controller = make()
            .workers(4)
            .input(InputMode::Required, Fake::new("one", &["a", "b", "c", "d"]))
            .input(InputMode::Optional, Fake::new("two", &[]).missing())
            .input(InputMode::Optional, Fake::new("three", &[]));
        // Lets the tasks of the last iteration end; the buffer task of the shared client stays.
        run_until_idle().await;
        let before = Handle::current().metrics().num_alive_tasks();
        let mut harness = controller.run(|request, context| async move {
            match &*request.name {
                "a" => pending().await,
                "b" => context.cancelled().await,
                "c" => panic!("c is unbearable"),
                _ => {}
            }
            failed()
        });
        harness.running().await;
        run_until_idle().await;
        assert!(Handle::current().metrics().num_alive_tasks() > before);

        harness.stop(reason).await.unwrap();

        assert_eq!(Handle::current().metrics().num_alive_tasks(), before, "{reason:?}");
        assert!(harness.epoch.tracker().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_run_leaves_nothing() {
    let fake = Fake::new("fake", &["a"]);
    let controller = make().input(InputMode::Required, fake.clone());
    let before = Handle::current().metrics().num_alive_tasks();
    let mut harness = controller.run(|_, _| pending());
    harness.running().await;
    run_until_idle().await;

    harness.runs.shutdown().await;
    run_until_idle().await;

    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    assert_eq!(harness.metric("controller_runtime_active_workers{controller=\"widgets\"}"), "0");
    assert_eq!(Arc::strong_count(&fake.shared), 2, "the test's and the controller's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_that_blocks_its_thread_delays_done_but_not_the_release_of_sources() {
    let fake = Fake::new("fake", &["a"]);
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (blocked, entered) = (Arc::new(Mutex::new(blocked)), Arc::new(Notify::new()));
    let inside = Arc::clone(&entered);
    let mut harness = make().input(InputMode::Required, fake.clone()).run(move |_, _| {
        let (blocked, inside) = (Arc::clone(&blocked), Arc::clone(&inside));
        async move {
            inside.notify_one();
            blocked.lock().unwrap().recv().ok();
            ok()
        }
    });
    entered.notified().await;

    harness.epoch.stop(StopReason::LeaseLost);
    fake.shared.released.subscribe().wait_for(Option::is_some).await.unwrap();
    fake.shared.running.subscribe().wait_for(|running| *running == 0).await.unwrap();

    assert!(harness.runs.try_join_next().is_none(), "done has not fired");
    unblock.send(()).unwrap();
    harness.done().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_reconcile_may_write_until_the_grace_is_over_and_are_then_aborted() {
    for (takes, expected) in [(GRACE / 2, Ok(true)), (GRACE * 2, Err(()))] {
        let (result, mut results) = tokio::sync::mpsc::unbounded_channel();
        let mut harness = make().input(InputMode::Required, Fake::new("fake", &["a"])).run(
            move |_request, context| {
                let (result, left) = (result.clone(), context.clone());
                context.spawn(async move {
                    left.cancelled().await;
                    sleep(takes).await;
                    result.send(send(&left).await.is_ok()).ok();
                });
                async { ok() }
            },
        );
        harness.running().await;
        run_until_idle().await;

        let stopped = Instant::now();
        harness.stop(StopReason::Cancelled).await.unwrap();

        assert_eq!(stopped.elapsed(), takes.min(GRACE));
        harness.epoch.wait_ended().await;
        assert_eq!(results.try_recv().map_err(drop), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_write_of_a_reconciles_task_is_unconfirmed_for_its_request() {
    let mut spec = make().workers(2).input(InputMode::Required, Fake::new("fake", &["a", "b"]));
    spec.client = client(pending);
    let mut harness = spec.run(|request, context| async move {
        if &*request.name == "b" {
            context.cancelled().await;
            return ok();
        }
        let left = context.clone();
        context.spawn(async move {
            // Continues after the end of the reconcile.
            run_until_idle().await;
            let pod = HttpRequest::post("/api/v1/namespaces/ns/pods").body(Body::empty());
            drop(left.client().send(pod.unwrap()).await);
        });
        ok()
    });
    harness.running().await;
    run_until_idle().await;
    run_until_idle().await;
    assert_eq!(harness.epoch.fence().under_way(), 1);

    harness.stop(StopReason::Cancelled).await.unwrap();
    harness.epoch.wait_ended().await;

    assert_eq!(harness.epoch.fence().unknown(), 1);
    let unconfirmed: Vec<_> =
        harness.unconfirmed.requests().iter().map(ToString::to_string).collect();
    assert_eq!(unconfirmed, ["ns/a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_source_fails_while_a_reconcile_blocks_is_stopping_and_then_stuck() {
    let fake = Fake::new("fake", &["a"]);
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (blocked, entered) = (Arc::new(Mutex::new(blocked)), Arc::new(Notify::new()));
    let inside = Arc::clone(&entered);
    let controller = make().input(InputMode::Required, fake.clone()).controller(move |_, _| {
        let (blocked, inside) = (Arc::clone(&blocked), Arc::clone(&inside));
        async move {
            inside.notify_one();
            blocked.lock().unwrap().recv().ok();
            ok()
        }
    });
    let manager = Manager::new(ManagerOptions::default());
    let (handle, stop, mut runs) = (manager.handle(), CancellationToken::new(), JoinSet::new());
    runs.spawn(manager.run(stop.clone()));
    let grace = Duration::from_millis(10);
    let options = RunnableOptions { grace, ..RunnableOptions::fail_fast() };
    handle.add("widgets", Arc::new(controller), options).await.unwrap();
    entered.notified().await;
    let (mut statuses, name) = (handle.watch(), ControllerName::from("widgets"));

    fake.shared.fails.send_replace(Some("boom"));

    let stuck = statuses.wait_for(|all| all.get(&name).is_some_and(|status| status.stuck));
    let stuck = timeout(Duration::from_secs(30), stuck).await.expect("reported").unwrap();
    let (state, message) = (stuck[&name].state, stuck[&name].message.clone());
    drop(stuck);
    assert_eq!(state, ControllerState::Stopping);
    assert!(message.contains("its run") || message.contains("1 task"), "{message}");
    assert!(message.contains("reconcile of ns/a"), "{message}");
    unblock.send(()).unwrap();
    let end = runs.join_next().await.unwrap().unwrap();
    assert!(matches!(end, Err(ManagerError::RunnableFailed { .. })), "{end:?}");
}

/// Source whose end is a function of its context.
struct Scripted<F>(F);

impl<F> ConditionalSource for Scripted<F>
where
    F: Fn(SourceContext) -> futures::future::BoxFuture<'static, SourceEnd> + Send + Sync + 'static,
{
    fn ready(&self) -> Readiness {
        crate::manager::always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        SourceStart { synced: async { Ok(()) }.boxed(), done: (self.0)(context) }
    }

    fn name(&self) -> String {
        "scripted".to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn source_that_ignores_its_release_is_aborted_after_the_grace() {
    let deaf = Scripted(|_| pending().boxed());
    let mut harness = make().input(InputMode::Plain, deaf).run(|_, _| async { ok() });
    harness.running().await;
    let begun = Instant::now();

    let stopped = timeout(Duration::from_secs(60), harness.stop(StopReason::Cancelled)).await;

    assert_eq!(stopped, Ok(Ok(())));
    assert!(begun.elapsed() >= Duration::from_secs(5), "it had its grace: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn source_may_write_until_it_has_ended() {
    for spawns in [false, true] {
        let (result, mut results) = tokio::sync::mpsc::unbounded_channel();
        let shared = client(async || {});
        let writes = Scripted(move |context: SourceContext| {
            let (result, shared) = (result.clone(), shared.clone());
            async move {
                let client = context.epoch.client(&shared);
                context.stopping().await;
                let write = async move {
                    let request = HttpRequest::get("/version").body(Body::empty()).unwrap();
                    result.send(client.send(request).await.is_ok()).unwrap();
                };
                if spawns {
                    context.epoch.spawn(write)
                } else {
                    write.await
                }
                context.released().await;
                SourceEnd::Stopped
            }
            .boxed()
        });
        let mut harness = make().input(InputMode::Plain, writes).run(|_, _| async { ok() });
        harness.running().await;
        run_until_idle().await;

        harness.stop(StopReason::Cancelled).await.unwrap();

        assert_eq!(results.try_recv(), Ok(true), "spawns: {spawns}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_fails_though_a_source_that_could_not_sync_does_not_end() {
    struct IgnoresStop;

    impl ConditionalSource for IgnoresStop {
        fn ready(&self) -> Readiness {
            crate::manager::always()
        }

        fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
            SourceStart { synced: async { Err("no luck".into()) }.boxed(), done: pending().boxed() }
        }
    }
    let mut harness = make().input(InputMode::Required, IgnoresStop).run(|_, _| async { ok() });

    let end = timeout(Duration::from_secs(60), harness.done()).await.expect("the run ends");

    assert!(end.unwrap_err().contains("no luck"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_blocks_its_thread_shows_stuck_with_its_name() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let blocks = Scripted(move |context: SourceContext| {
        let blocked = Arc::clone(&blocked);
        async move {
            context.stopping().await;
            blocked.lock().unwrap().recv().ok();
            SourceEnd::Stopped
        }
        .boxed()
    });
    let fake = Fake::new("fake", &[]);
    let controller = make()
        .input(InputMode::Plain, blocks)
        .input(InputMode::Plain, fake)
        .controller(|_, _| async { ok() });
    let manager = Manager::new(ManagerOptions::default());
    let (handle, stop, mut runs) = (manager.handle(), CancellationToken::new(), JoinSet::new());
    runs.spawn(manager.run(stop.clone()));
    let options =
        RunnableOptions { grace: Duration::from_millis(10), ..RunnableOptions::default() };
    handle.add("widgets", Arc::new(controller), options).await.unwrap();
    let (mut statuses, name) = (handle.watch(), ControllerName::from("widgets"));
    let running = |all: &Arc<crate::manager::Snapshot>| {
        all.get(&name).is_some_and(|status| status.state == ControllerState::Running)
    };
    drop(statuses.wait_for(running).await.unwrap());

    stop.cancel();

    let stuck = statuses.wait_for(|all| all.get(&name).is_some_and(|status| status.stuck));
    let stuck = timeout(Duration::from_secs(30), stuck).await.expect("it is reported").unwrap();
    let message = stuck[&name].message.clone();
    drop(stuck);
    assert!(message.contains("source scripted"), "{message}");
    assert!(!message.contains("fake"), "that one has ended: {message}");
    unblock.send(()).unwrap();
    runs.join_next().await.unwrap().unwrap().unwrap();
}
