//! Sources of a run: start, sync, end and restart.

use super::*;

#[tokio::test(start_paused = true)]
async fn optional_source_starts_and_stops_without_a_restart() {
    let optional = Fake::new("optional", &["o"]).missing();
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make()
        .input(InputMode::Required, Fake::new("required", &["r"]))
        .input(InputMode::Optional, optional.clone())
        .run(move |request, context| {
            notes.note(&request, &context, start);
            async { ok() }
        });
    harness.running().await;
    run_until_idle().await;
    assert_eq!(log.names(), ["ns/r"]);

    for round in 1..=2 {
        optional.comes();
        run_until_idle().await;
        assert_eq!((optional.starts(), optional.running()), (round, 1));
        optional.goes();
        run_until_idle().await;
        assert_eq!(optional.running(), 0);
    }

    assert_eq!(log.names(), ["ns/r", "ns/o", "ns/o"]);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unknown_verdict_leaves_a_running_source_alone() {
    let optional = Fake::new("optional", &["o"]);
    let mut harness =
        make().input(InputMode::Optional, optional.clone()).run(|_, _| async { ok() });
    harness.running().await;

    optional.shared.verdict.send_replace(Verdict::Unknown(Vec::new()));
    run_until_idle().await;

    assert_eq!((optional.starts(), optional.running()), (1, 1));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn optional_source_that_never_syncs_delays_the_start_by_the_timeout() {
    let mut harness = make()
        .input(InputMode::Optional, Fake::new("optional", &[]).unsynced())
        .run(|_, _| async { ok() });

    harness.running().await;

    assert_eq!(harness.start.elapsed().as_secs(), 120);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn plain_source_that_is_not_ready_in_time_fails_the_run_and_says_why() {
    let missing = Fake::new("widgets.example.com/v1", &[]).missing();
    let controller = make().input(InputMode::Plain, missing);
    let before = Handle::current().metrics().num_alive_tasks();
    let mut harness = controller.run(|_, _| async { ok() });

    let error = harness.done().await.unwrap_err();

    assert_eq!(error, "sync timeout after 2 min: widgets.example.com/v1 is not installed");
    assert_eq!(harness.start.elapsed().as_secs(), 120);
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn plain_source_that_becomes_ready_in_time_is_started() {
    let late = Fake::new("late", &["a"]).missing();
    let mut harness = make().input(InputMode::Plain, late.clone()).run(|_, _| async { ok() });

    sleep(Duration::from_secs(119)).await;
    late.comes();
    harness.running().await;

    assert_eq!(harness.start.elapsed().as_secs(), 119);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn required_source_is_waited_for_without_a_limit() {
    let slow = Fake::new("slow", &["a"]).unsynced();
    let mut harness = make().input(InputMode::Required, slow.clone()).run(|_, _| async { ok() });

    sleep(Duration::from_secs(3600)).await;
    slow.shared.synced.send_replace(true);
    harness.running().await;

    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_plain_source_is_reported_and_returns_in_the_same_run() {
    let plain = Fake::new("plain", &["a"]);
    let mut harness = make().input(InputMode::Plain, plain.clone()).run(|_, _| async { ok() });
    harness.running().await;

    plain.goes();
    run_until_idle().await;
    assert_eq!((plain.running(), harness.report().stale), (0, true));
    sleep(Duration::from_secs(3600)).await;
    plain.comes();
    run_until_idle().await;

    assert_eq!((plain.starts(), plain.running(), harness.report().stale), (2, 1, false));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn required_source_whose_type_is_gone_waits_for_the_verdict_of_the_manager() {
    let required = Fake::new("required", &["a"]);
    let mut harness =
        make().input(InputMode::Required, required.clone()).run(|_, _| async { ok() });
    harness.running().await;

    required.goes();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(required.running(), 1);
    harness.stop(StopReason::TypeGone).await.unwrap();
    assert_eq!(required.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn source_that_fails_ends_the_run_with_its_reason() {
    for mode in [InputMode::Required, InputMode::Plain] {
        let fake = Fake::new("fake", &["a"]);
        let other = Fake::new("other", &[]);
        let mut harness = make()
            .input(mode, fake.clone())
            .input(InputMode::Required, other.clone())
            .run(|_, context| async move {
                context.cancelled().await;
                ok()
            });
        harness.running().await;

        fake.shared.fails.send_replace(Some("the wire is cut"));

        assert_eq!(harness.done().await.unwrap_err(), "source fake: the wire is cut");
        assert_eq!(other.running(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn optional_source_that_fails_is_started_again() {
    let fake = Fake::new("fake", &["a"]);
    let mut harness = make().input(InputMode::Optional, fake.clone()).run(|_, _| async { ok() });
    harness.running().await;

    fake.shared.fails.send_replace(Some("the wire is cut"));
    run_until_idle().await;
    fake.shared.fails.send_replace(None);
    assert_eq!((fake.starts(), fake.running()), (1, 0));
    sleep(Duration::from_secs(1)).await;

    assert_eq!((fake.starts(), fake.running()), (2, 1));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn source_that_panics_ends_the_run_with_its_message() {
    let mut harness = make().input(InputMode::Plain, PanicsOnDrop).run(|_, _| async { ok() });

    assert_eq!(harness.done().await.unwrap_err(), "source panics_on_drop: it panicked: tick tock");
}

#[tokio::test(start_paused = true)]
async fn plain_source_whose_condition_holds_again_is_not_stale_any_more() {
    let plain = Fake::new("plain", &["a"]);
    let mut harness = make().input(InputMode::Plain, plain.clone()).run(|_, _| async { ok() });
    harness.running().await;

    let message = "outside of its hours".to_owned();
    let closed = UnmetRequirement { reason: "Closed".into(), message, type_ref: None };
    plain.shared.verdict.send_replace(Verdict::Unmet(vec![closed]));
    run_until_idle().await;
    assert_eq!((plain.running(), harness.report().stale), (1, true));
    plain.comes();
    sleep(Duration::from_secs(3600)).await;

    assert_eq!((plain.running(), harness.report().stale), (1, false));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

/// Source that ends as soon as it is started, or on request.
#[derive(Clone)]
struct ShortLived {
    end: SourceEnd,
    starts: Arc<AtomicUsize>,
    verdict: watch::Sender<Verdict>,
    continues: watch::Sender<bool>,
}

impl ShortLived {
    fn new(end: SourceEnd) -> Self {
        let verdict = watch::Sender::new(Verdict::Met(Vec::new()));
        Self { end, starts: Arc::default(), verdict, continues: watch::Sender::new(false) }
    }

    fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }

    fn is(&self, verdict: Verdict) {
        self.verdict.send_replace(verdict);
    }
}

impl ConditionalSource for ShortLived {
    fn ready(&self) -> Readiness {
        Readiness::published(self.verdict.subscribe())
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        self.starts.fetch_add(1, Ordering::SeqCst);
        let (end, mut continues) = (self.end.clone(), self.continues.subscribe());
        let done = async move {
            continues.wait_for(|continues| !continues).await.ok();
            end
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

const ENDS: [SourceEnd; 2] = [SourceEnd::Stopped, SourceEnd::TypeGone];

#[tokio::test(start_paused = true)]
async fn required_source_that_is_done_while_its_condition_holds_ends_the_epoch() {
    for end in ENDS {
        for holds in [Verdict::Met(Vec::new()), Verdict::Unknown(Vec::new())] {
            let (short_lived, other) = (ShortLived::new(end.clone()), Fake::new("other", &["a"]));
            short_lived.continues.send_replace(true);
            let mut harness = make()
                .input(InputMode::Required, short_lived.clone())
                .input(InputMode::Required, other.clone())
                .run(|_, _| async { ok() });
            harness.running().await;

            short_lived.is(holds);
            short_lived.continues.send_replace(false);

            let done = timeout(Duration::from_secs(1), harness.done()).await;
            assert_eq!(done, Ok(Ok(())), "{end:?}");
            assert_eq!((short_lived.starts(), other.running()), (1, 0));
            short_lived.is(Verdict::Met(Vec::new()));
            harness.start();
            assert_eq!(harness.done().await, Ok(()), "also while the others sync");
            assert_eq!(short_lived.starts(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn required_source_that_is_done_with_its_condition_leaves_the_epoch_to_the_manager() {
    for end in ENDS {
        let short_lived = ShortLived::new(end);
        short_lived.continues.send_replace(true);
        let mut harness =
            make().input(InputMode::Required, short_lived.clone()).run(|_, _| async { ok() });
        harness.running().await;

        short_lived.is(Verdict::Unmet(Vec::new()));
        short_lived.continues.send_replace(false);
        sleep(Duration::from_secs(60)).await;

        assert_eq!((harness.runs.len(), short_lived.starts()), (1, 1));
        harness.stop(StopReason::TypeGone).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn required_source_whose_condition_holds_again_after_its_end_ends_the_epoch() {
    let short_lived = ShortLived::new(SourceEnd::TypeGone);
    short_lived.continues.send_replace(true);
    let mut harness =
        make().input(InputMode::Required, short_lived.clone()).run(|_, _| async { ok() });
    harness.running().await;
    short_lived.is(Verdict::Unmet(Vec::new()));
    short_lived.continues.send_replace(false);
    run_until_idle().await;

    // Holds again before the manager has seen the loss.
    short_lived.is(Verdict::Met(Vec::new()));

    assert_eq!(timeout(Duration::from_secs(1), harness.done()).await, Ok(Ok(())));
    assert_eq!(short_lived.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn optional_source_that_is_always_done_is_started_again_less_and_less_often() {
    for end in ENDS {
        let short_lived = ShortLived::new(end.clone());
        let mut harness =
            make().input(InputMode::Optional, short_lived.clone()).run(|_, _| async { ok() });

        sleep(Duration::from_secs(62)).await;
        assert_eq!(short_lived.starts(), 6, "{end:?}: after 1, 3, 7, 15 and 31 s");
        sleep(Duration::from_secs(600)).await;

        assert_eq!(short_lived.starts(), 16, "{end:?}: once a minute");
        assert_eq!(harness.runs.len(), 1);
        harness.stop(StopReason::Cancelled).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn plain_source_that_has_ended_is_not_started_again() {
    let short_lived = ShortLived::new(SourceEnd::Stopped);
    let mut harness =
        make().input(InputMode::Plain, short_lived.clone()).run(|_, _| async { ok() });

    sleep(Duration::from_secs(3600)).await;

    assert_eq!((short_lived.starts(), harness.runs.len()), (1, 1));
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn plain_source_that_does_not_sync_in_time_fails_the_run_and_leaves_no_task() {
    let slow = Fake::new("slow", &[]).unsynced();
    let controller = make().input(InputMode::Plain, slow.clone());
    let before = Handle::current().metrics().num_alive_tasks();
    let mut harness = controller.run(|_, _| async { ok() });

    let error = harness.done().await.unwrap_err();

    assert_eq!(error, "sync timeout after 2 min: slow is syncing");
    assert_eq!((harness.start.elapsed().as_secs(), slow.starts()), (120, 1));
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}
