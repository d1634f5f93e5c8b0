//! Requests after the end of their reconcile.

use super::*;

#[tokio::test(start_paused = true)]
async fn request_is_never_reconciled_twice_at_once_though_others_are() {
    let (sender, channel) = ChannelSource::new(64);
    let active = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let most = Arc::new(AtomicUsize::new(0));
    let count = Arc::new(AtomicUsize::new(0));
    let seen = (Arc::clone(&active), Arc::clone(&most), Arc::clone(&count));
    let mut harness = make().input(InputMode::Plain, channel).workers(3).run(move |request, _| {
        let (active, most, count) = seen.clone();
        async move {
            let name = request.to_string();
            {
                let mut active = active.lock().unwrap();
                *active.entry(name.clone()).or_default() += 1;
                assert_eq!(active[&name], 1);
                most.fetch_max(active.len(), Ordering::SeqCst);
            }
            sleep(Duration::from_millis(10)).await;
            active.lock().unwrap().remove(&name);
            count.fetch_add(1, Ordering::SeqCst);
            ok()
        }
    });
    harness.running().await;

    for _ in 0..6 {
        for name in ["a", "b", "c", "d", "e"] {
            sender.send(key(name)).await.unwrap();
        }
        sleep(Duration::from_millis(3)).await;
    }
    sleep(Duration::from_secs(1)).await;

    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert!((5..30).contains(&count.load(Ordering::SeqCst)));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

/// Reconciles one request to each of these ends in turn, and then to success.
fn ends(ends: Vec<fn() -> Result<Outcome, ReconcileError>>) -> (Harness, Log) {
    let log = Log::default();
    let (notes, start, ends) = (log.clone(), Instant::now(), Mutex::new(ends.into_iter()));
    let harness = make().input(InputMode::Required, Fake::new("fake", &["a"])).run(
        move |request, context| {
            notes.note(&request, &context, start);
            let end = ends.lock().unwrap().next();
            async move { end.map_or_else(ok, |end| end()) }
        },
    );
    (harness, log)
}

fn conflict() -> Result<Outcome, ReconcileError> {
    let status = kube::core::Status::failure("modified", "Conflict").with_code(409);
    Err(kube::Error::Api(status.boxed()).into())
}

#[tokio::test(start_paused = true)]
async fn failure_is_repeated_after_a_doubling_back_off() {
    let (mut harness, log) = ends(vec![failed, failed, failed]);

    sleep(Duration::from_secs(60)).await;

    // In milliseconds: timers expire at the next whole one.
    assert_eq!(log.attempts(), [(0, 0), (1, 5), (2, 15), (3, 35)]);
    assert_eq!(harness.report().last_error, None);
    assert_eq!(
        harness.metric("controller_runtime_reconcile_errors_total{controller=\"widgets\"}"),
        "3"
    );
    assert_eq!(
        harness.metric("workqueue_retries_total{name=\"widgets\",controller=\"widgets\"}"),
        "3"
    );
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn error_stands_until_its_request_succeeds() {
    let (mut harness, _log) = ends(vec![failed]);

    harness.running().await;
    run_until_idle().await;
    assert_eq!(harness.report().last_error.as_deref(), Some("ns/a: no luck"));
    sleep(Duration::from_millis(6)).await;

    assert_eq!(harness.report().last_error, None);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn errors_of_many_requests_are_reported_one_a_second() {
    let names: Vec<_> = (0..500).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut harness = make()
        .workers(10)
        .input(InputMode::Required, Fake::new("fake", &names))
        .run(|_, context| async move { if context.attempt() < 9 { failed() } else { ok() } });
    let mut reports = harness.epoch.subscribe();
    let mut watcher = JoinSet::new();
    watcher.spawn(async move {
        let mut errors = std::collections::HashSet::new();
        while reports.changed().await.is_ok() {
            let report = reports.borrow_and_update().clone();
            if report.watches.len() > 1 {
                break;
            }
            errors.extend(report.last_error);
        }
        errors.len()
    });

    sleep(Duration::from_secs(30)).await;

    assert_eq!(harness.report().last_error, None);
    harness.epoch.report(|report| {
        let watch = crate::manager::WatchReport {
            type_ref: crate::kind::TypeRef::resource("", "v1", "pods"),
            state: crate::manager::WatchState::Synced,
            error: None,
        };
        report.watches = vec![watch.clone(), watch];
    });
    let errors = watcher.join_next().await.unwrap().unwrap();
    assert!((1..=5).contains(&errors), "{errors}");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

fn throttled() -> Result<Outcome, ReconcileError> {
    let response = serde_json::json!({
        "code": 429, "reason": "TooManyRequests", "message": "later",
        "details": { "retryAfterSeconds": 20 },
    });
    let status: kube::core::Status = serde_json::from_value(response).unwrap();
    Err(kube::Error::Api(status.boxed()).into())
}

#[tokio::test(start_paused = true)]
async fn throttled_request_waits_and_is_not_an_error() {
    let (mut harness, log) = ends(vec![throttled]);
    harness.running().await;
    run_until_idle().await;
    let error = harness.report().last_error.unwrap_or_default();
    assert!(error.contains("later"), "the status shows it: {error}");

    sleep(Duration::from_secs(60)).await;

    let [(0, 0), (1, again)] = log.attempts()[..] else { panic!("{:?}", log.attempts()) };
    assert!((20_000..=24_001).contains(&again), "{again}");
    assert_eq!(harness.report().last_error, None);
    let errors = "controller_runtime_reconcile_errors_total{controller=\"widgets\"}";
    assert_eq!(harness.metric(errors), "0");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn throttled_requests_follow_the_first_that_succeeds() {
    let names: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (failing, tries) = (watch::Sender::new(true), Arc::new(AtomicUsize::new(0)));
    let (over, count) = (failing.subscribe(), Arc::clone(&tries));
    let mut harness =
        make().workers(5).input(InputMode::Required, Fake::new("fake", &names)).run(move |_, _| {
            let (over, count) = (over.clone(), count.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                if *over.borrow() { throttled() } else { ok() }
            }
        });

    sleep(Duration::from_secs(600)).await;
    let during = tries.swap(0, Ordering::SeqCst);
    failing.send_replace(false);
    sleep(Duration::from_secs(25)).await;

    assert!(during <= 200 + 10 + 600, "once each, a few, and then one a second: {during}");
    assert_eq!(tries.load(Ordering::SeqCst), 200);
    assert_eq!(harness.report().last_error, None);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn retry_after_counts_as_a_failure_and_does_not_double() {
    let again: fn() -> _ =
        || Err(ReconcileError::RetryAfter("it is out".into(), Duration::from_secs(1)));
    let (mut harness, log) = ends(vec![again, again, again]);

    sleep(Duration::from_secs(60)).await;

    assert_eq!(log.attempts(), [(0, 0), (1, 1000), (2, 2000), (3, 3000)]);
    let errors = "controller_runtime_reconcile_errors_total{controller=\"widgets\"}";
    assert_eq!(harness.metric(errors), "3");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconciler_can_enqueue_a_delayed_request() {
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make().input(InputMode::Required, Fake::new("fake", &["a", "b"])).run(
        move |request, context| {
            notes.note(&request, &context, start);
            async move {
                if &*request.name == "b" && context.attempt() == 0 {
                    context.enqueue(key("a"));
                    return ok();
                }
                let first = context.attempt() == 0;
                let wait = Duration::from_secs(900);
                if first { Err(ReconcileError::RetryAfter("out".into(), wait)) } else { ok() }
            }
        },
    );

    sleep(Duration::from_secs(1)).await;

    let attempts = log.attempts();
    assert_eq!(attempts.iter().filter(|(attempt, _)| *attempt == 1).count(), 1, "{attempts:?}");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn terminal_failure_is_not_repeated() {
    let (mut harness, log) = ends(vec![|| Err(ReconcileError::Terminal("hopeless".into()))]);

    sleep(Duration::from_secs(3600)).await;

    assert_eq!(log.attempts(), [(0, 0)]);
    assert_eq!(harness.report().last_error.as_deref(), Some("ns/a: hopeless"));
    let terminal = "controller_runtime_terminal_reconcile_errors_total{controller=\"widgets\"}";
    assert_eq!(harness.metric(terminal), "1");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requeue_after_waits_for_its_time_and_resets_the_back_off() {
    let again: fn() -> _ = || Ok(Outcome::RequeueAfter(Duration::from_secs(1)));
    let (mut harness, log) = ends(vec![failed, again, failed]);

    sleep(Duration::from_secs(60)).await;

    assert_eq!(log.attempts(), [(0, 0), (1, 5), (0, 1005), (1, 1010)]);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requeue_after_centuries_does_no_harm() {
    let (mut harness, log) = ends(vec![|| Ok(Outcome::RequeueAfter(Duration::MAX))]);

    sleep(Duration::from_secs(60)).await;

    assert_eq!(log.attempts(), [(0, 0)]);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn conflict_is_repeated_without_being_an_error() {
    let (mut harness, log) = ends(vec![conflict, conflict]);
    let mut reports = harness.epoch.subscribe();
    let mut errors = 0;

    harness.running().await;
    for _ in 0..100 {
        errors += usize::from(reports.borrow_and_update().last_error.is_some());
        sleep(Duration::from_millis(1)).await;
    }

    assert_eq!((log.attempts().len(), errors), (3, 0));
    let total = "controller_runtime_reconcile_total{controller=\"widgets\",result=";
    assert_eq!(harness.metric(&format!("{total}\"requeue\"}}")), "2");
    assert_eq!(harness.metric(&format!("{total}\"success\"}}")), "1");
    assert_eq!(harness.metric(&format!("{total}\"error\"}}")), "0");
    let time = "controller_runtime_reconcile_time_seconds_count{controller=\"widgets\"}";
    assert_eq!(harness.metric(time), "3");
    assert_eq!(
        harness.metric("controller_runtime_reconcile_errors_total{controller=\"widgets\"}"),
        "0"
    );
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn panic_is_an_error_of_its_request_alone() {
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make().input(InputMode::Required, Fake::new("fake", &["a", "b"])).run(
        move |request, context| {
            // The function that returns the future may panic, too.
            assert!(&*request.name != "a" || context.attempt() > 0, "a is unbearable");
            notes.note(&request, &context, start);
            async move {
                assert!(&*request.name != "b" || context.attempt() > 1, "b is unbearable");
                ok()
            }
        },
    );
    harness.running().await;
    run_until_idle().await;
    let error = harness.report().last_error.unwrap();
    assert_eq!(error, "ns/a: the reconcile panicked: a is unbearable");

    sleep(Duration::from_secs(1)).await;

    assert_eq!(log.names(), ["ns/b", "ns/a", "ns/b", "ns/b"]);
    assert_eq!(
        harness.metric("controller_runtime_reconcile_panics_total{controller=\"widgets\"}"),
        "3"
    );
    assert_eq!(harness.metric("controller_runtime_active_workers{controller=\"widgets\"}"), "0");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[derive(Debug)]
struct PanickingError;

impl std::fmt::Display for PanickingError {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("it cannot be said")
    }
}

impl std::error::Error for PanickingError {}

#[tokio::test(start_paused = true)]
async fn error_that_panics_when_it_is_formatted_affects_its_request_only() {
    let mut harness = make().input(InputMode::Required, Fake::new("fake", &["a", "b"])).run(
        |request, context| {
            let fails = &*request.name == "a" && context.attempt() == 0;
            async move { if fails { Err(PanickingError.into()) } else { ok() } }
        },
    );

    sleep(Duration::from_secs(1)).await;

    assert_eq!(
        harness.metric("controller_runtime_reconcile_panics_total{controller=\"widgets\"}"),
        "1"
    );
    assert_eq!(harness.report().last_error, None, "it was tried again");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconcile_that_outlasts_its_timeout_is_dropped_and_repeated() {
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut spec = make().input(InputMode::Required, Fake::new("fake", &["a"]));
    spec.reconcile_timeout = Some(Duration::from_secs(2));
    let mut harness = spec.run(move |request, context| {
        notes.note(&request, &context, start);
        async move { if context.attempt() == 0 { pending().await } else { ok() } }
    });

    sleep(Duration::from_secs(10)).await;

    assert_eq!(log.attempts(), [(0, 0), (1, 2005)]);
    let timeouts = "controller_runtime_reconcile_timeouts_total{controller=\"widgets\"}";
    assert_eq!(harness.metric(timeouts), "1");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn timeout_is_counted_where_it_ends_a_reconcile_and_the_time_of_each_that_ends() {
    let names = ["completed", "failed", "late", "stopped"];
    let mut spec = make().workers(4).input(InputMode::Required, Fake::new("fake", &names));
    spec.reconcile_timeout = Some(Duration::from_secs(20));
    let mut harness = spec.run(|request, context| async move {
        match (&*request.name, context.attempt()) {
            ("completed", _) => sleep(Duration::from_secs(1)).await,
            ("failed", 0) => timeout(Duration::from_secs(1), pending()).await?,
            ("late", 0) => pending().await,
            ("stopped", _) => {
                sleep(Duration::from_secs(19)).await;
                return Ok(Outcome::RequeueAfter(Duration::from_secs(2)));
            }
            _ => {}
        }
        ok()
    });

    // The second reconcile of `stopped` began at 21 s, and is dropped after the grace.
    sleep(Duration::from_secs(30)).await;
    harness.stop(StopReason::Cancelled).await.unwrap();

    let metric = |name: &str| {
        harness.metric(&format!("controller_runtime_reconcile_{name}{{controller=\"widgets\"}}"))
    };
    assert_eq!(metric("timeouts_total"), "1");
    assert_eq!(metric("errors_total"), "2", "of failed and of late");
    assert_eq!(metric("time_seconds_count"), "6", "one of stopped, two of each that failed");
    let total: f64 = metric("time_seconds_sum").parse().unwrap();
    assert!((41.0..41.1).contains(&total), "{total}: 1 + 1 + 20 + 19");
}

#[tokio::test(start_paused = true)]
async fn existing_objects_are_reconciled_under_constant_changes() {
    const EACH: Duration = Duration::from_millis(100);
    let initial = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (sender, channel) = ChannelSource::new(1);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make()
        .input(InputMode::Required, Fake::new("fake", &initial))
        .input(InputMode::Plain, channel)
        .run(move |request, context| {
            notes.note(&request, &context, start);
            async {
                sleep(EACH).await;
                ok()
            }
        });
    harness.running().await;
    let mut changes = JoinSet::new();
    changes.spawn(async move {
        for number in 0..1000 {
            sender.send(key(&format!("change-{number}"))).await.unwrap();
            sleep(EACH).await;
        }
    });

    sleep(Duration::from_secs(62)).await;

    let names = log.names();
    assert!((610..=621).contains(&names.len()), "no worker rests: {}", names.len());
    for name in initial {
        assert!(names.contains(&format!("ns/{name}")), "{name}");
    }
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failing_request_delays_no_other() {
    let (sender, channel) = ChannelSource::new(8);
    for name in ["bad", "worse", "good"] {
        sender.try_send(key(name)).unwrap();
    }
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make().input(InputMode::Plain, channel).run(move |request, context| {
        notes.note(&request, &context, start);
        async move {
            match (&*request.name, context.attempt()) {
                ("bad", 0..3) => failed(),
                ("worse", _) => Err(ReconcileError::Terminal("hopeless".into())),
                _ => ok(),
            }
        }
    });
    harness.running().await;

    sleep(Duration::from_millis(10)).await;
    sender.send(key("late")).await.unwrap();
    sleep(Duration::from_secs(3600)).await;

    let mut times = HashMap::<String, Vec<u64>>::new();
    for (name, _, millis) in log.0.lock().unwrap().iter() {
        times.entry(name.clone()).or_default().push(*millis);
    }
    let expected = [
        ("ns/bad", vec![0, 5, 15, 35]),
        ("ns/worse", vec![0]),
        ("ns/good", vec![0]),
        ("ns/late", vec![10]),
    ];
    assert_eq!(times, expected.map(|(name, times)| (name.to_owned(), times)).into());
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn results_are_counted_by_their_kind_from_0() {
    let requeue: fn() -> _ = || Ok(Outcome::Requeue);
    let later: fn() -> _ = || Ok(Outcome::RequeueAfter(Duration::from_secs(1)));
    let (mut harness, _log) = ends(vec![failed, requeue, later]);
    let counts = |harness: &Harness| {
        ["success", "error", "requeue", "requeue_after"].map(|result| {
            let total = "controller_runtime_reconcile_total{controller=\"widgets\",result=";
            harness.metric(&format!("{total}\"{result}\"}}"))
        })
    };

    assert_eq!(counts(&harness), ["0"; 4], "before the first reconcile");
    sleep(Duration::from_secs(60)).await;

    assert_eq!(counts(&harness), ["1"; 4]);
    harness.stop(StopReason::Cancelled).await.unwrap();
}
