//! Conditions that misbehave affect only their own runnable.

use super::{super::verdict::tests::met_by, *};

/// Runnable whose condition panics.
struct Broken;

impl Runnable for Broken {
    fn start(&self, _: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(async { Ok(()) })
    }
}

impl ConditionalRunnable for Broken {
    fn ready(&self) -> Readiness {
        panic!("no condition")
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_panics_keeps_its_own_runnable_waiting_and_no_other() {
    let harness = Harness::new();
    harness.add("well", &Probe::new(Body::UntilStopped).arc()).await;

    harness.handle.add("broken", Arc::new(Broken), RunnableOptions::default()).await.unwrap();

    let broken = harness.until("broken", ControllerState::Waiting).await;
    assert_eq!(broken.reason, "ConditionPanicked");
    assert!(broken.message.contains("no condition"), "{}", broken.message);
    harness.until("well", ControllerState::Running).await;
    harness.stop().await.unwrap();
}

/// Runnable that publishes a verdict once for each call of `ready`, and panics in some calls.
#[derive(Default)]
struct AskedOften {
    asked: Mutex<Vec<watch::Sender<Verdict>>>,
    panics: AtomicUsize,
    ends: Arc<Notify>,
}

impl AskedOften {
    /// Meets the condition for the last call alone, and returns the number of calls.
    fn meet(&self) -> usize {
        let mut asked = self.asked.lock().unwrap();
        asked.last().unwrap().send_replace(met());
        let calls = asked.len();
        asked.iter_mut().for_each(|sender| *sender = watch::Sender::new(met()));
        calls
    }
}

impl Runnable for AskedOften {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let ends = Arc::clone(&self.ends);
        Box::pin(async move {
            tokio::select! {
                _ = epoch.stopping() => {}
                () = ends.notified() => {}
            }
            Ok(())
        })
    }
}

impl ConditionalRunnable for AskedOften {
    fn ready(&self) -> Readiness {
        let (sender, verdicts) = watch::channel(Verdict::Unknown(Vec::new()));
        self.asked.lock().unwrap().push(sender);
        let left = self.panics.load(Ordering::SeqCst);
        self.panics.store(left.saturating_sub(1), Ordering::SeqCst);
        assert_eq!(left, 0, "panics left");
        Readiness::published(verdicts)
    }
}

#[tokio::test(start_paused = true)]
async fn condition_is_asked_again_after_each_epoch_and_at_a_restart() {
    let harness = Harness::new();
    let runnable = Arc::new(AskedOften::default());
    harness.handle.add("often", runnable.clone(), RunnableOptions::default()).await.unwrap();
    for round in 1..=2_u8 {
        assert_eq!(runnable.meet(), usize::from(round));
        harness.until("often", ControllerState::Running).await;
        runnable.ends.notify_one();
        harness.until("often", ControllerState::Waiting).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let waiting = harness.handle.status_of("often").unwrap();
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, u64::from(round)));
        assert_eq!(waiting.reason, "ConditionUnknown", "the earlier verdict counts no longer");
    }
    assert_eq!(runnable.meet(), 3);
    harness.until("often", ControllerState::Running).await;

    harness.handle.restart("often").await.unwrap();
    harness.until("often", ControllerState::Waiting).await;
    harness.handle.restart("often").await.unwrap();

    assert_eq!(runnable.meet(), 5, "after the epoch, and between two");
    assert_eq!(harness.until("often", ControllerState::Running).await.epoch, 4);
    harness.handle.remove("often").await;
    assert_eq!(runnable.asked.lock().unwrap().len(), 5, "not after the last one");
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn verdict_of_before_a_back_off_starts_nothing_after_it() {
    let harness = Harness::new();
    let runnable = Arc::new(AskedOften::default());
    harness.handle.add("often", runnable.clone(), RunnableOptions::default()).await.unwrap();
    runnable.meet();
    harness.until("often", ControllerState::Running).await;

    runnable.ends.notify_one();
    harness.until("often", ControllerState::Waiting).await;
    assert_eq!(runnable.meet(), 2);
    harness.until("often", ControllerState::BackingOff).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;

    let waiting = harness.handle.status_of("often").unwrap();
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    assert_eq!(runnable.meet(), 3);
    assert_eq!(harness.until("often", ControllerState::Running).await.epoch, 2);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn condition_that_panicked_is_asked_again_less_and_less_often() {
    let harness = Harness::new();
    let runnable = Arc::new(AskedOften::default());
    runnable.panics.store(10, Ordering::SeqCst);
    let begin = tokio::time::Instant::now();
    harness.handle.add("often", runnable.clone(), RunnableOptions::default()).await.unwrap();
    let calls = || runnable.asked.lock().unwrap().len();

    for (seconds, expected) in [(0, 1), (1, 2), (3, 3), (63, 7), (122, 7), (123, 8), (243, 10)] {
        tokio::time::sleep_until(begin + Duration::from_secs(seconds)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(calls(), expected, "after {seconds} s");
        let status = harness.handle.status_of("often").unwrap();
        assert_eq!(status.reason, "ConditionPanicked");
    }
    harness.handle.restart("often").await.unwrap();

    assert_eq!(calls(), 11, "a restart asks at once");
    runnable.meet();
    harness.until("often", ControllerState::Running).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(calls(), 11);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replacement_whose_condition_panicked_takes_over_once_it_is_met() {
    let harness = Harness::new();
    harness.add("often", &Probe::new(Body::UntilStopped).arc()).await;
    harness.until("often", ControllerState::Running).await;
    let runnable = Arc::new(AskedOften::default());
    runnable.panics.store(1, Ordering::SeqCst);

    let (handle, options) = (harness.handle.clone(), RunnableOptions::default());
    let installed = handle.replace("often", runnable.clone(), options).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let old = harness.handle.status_of("often").unwrap();
    assert_eq!((old.state, old.epoch), (ControllerState::Running, 1));
    assert_eq!(runnable.meet(), 2);

    installed.installed().await.unwrap();
    assert_eq!(harness.until("often", ControllerState::Running).await.epoch, 2);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replacement_that_cannot_run_waits_until_the_old_condition_is_answered_again() {
    let harness = Harness::new();
    let old = Arc::new(AskedOften::default());
    harness.handle.add("often", old.clone(), RunnableOptions::default()).await.unwrap();
    old.meet();
    harness.until("often", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped).waiting().arc();
    let options = RunnableOptions::default();
    let _replacement = harness.handle.replace("often", new.clone(), options).await.unwrap();

    old.ends.notify_one();
    harness.until("often", ControllerState::Waiting).await;
    assert!(
        harness.handle.status_of("often").unwrap().pending.is_some(),
        "the old one may run again"
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    old.meet();

    assert_eq!(harness.until("often", ControllerState::Running).await.epoch, 2);
    assert!(harness.handle.status_of("often").unwrap().pending.is_some());
    old.ends.notify_one();
    harness.until("often", ControllerState::Waiting).await;
    new.verdict.send_replace(met());
    let taken_over = |it: &Arc<Snapshot>| it[&"often".into()].pending.is_none();
    drop(harness.handle.watch().wait_for(taken_over).await.unwrap());
    assert_eq!(harness.until("often", ControllerState::Running).await.epoch, 3);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_by_itself_is_not_a_failure() {
    let harness = Harness::new();
    let job = Arc::new(|_: Epoch| async { Ok(()) });
    harness.handle.add("job", job, RunnableOptions::default()).await.unwrap();

    let often = |it: &Arc<Snapshot>| {
        it[&"job".into()].epoch >= 4 && it[&"job".into()].state == ControllerState::BackingOff
    };
    drop(harness.handle.watch().wait_for(often).await.unwrap());

    let status = harness.handle.status_of("job").unwrap();
    assert_eq!((status.reason.as_str(), status.failures), ("Completed", 0));
    assert!(status.restarts >= 4, "{}", status.restarts);
    assert_eq!(status.message, "its run has ended; the next one begins after a pause");
    let check = runnable_check::check(&status);
    assert!(matches!(check.result, CheckResult::Passed(_)), "{check:?}");
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_flaps_a_thousand_times_starts_its_own_runnable_less_often() {
    let harness = Harness::new();
    harness.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    let probe = Probe::new(Body::UntilStopped).arc();
    harness.add("flaps", &probe).await;
    let begin = tokio::time::Instant::now();

    let mut spread = None;
    for _ in 0..1000 {
        probe.verdict.send_replace(unmet());
        harness
            .handle
            .watch()
            .wait_for(|it| it[&"flaps".into()].state != ControllerState::Running)
            .await
            .unwrap();
        probe.verdict.send_replace(met());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let status = harness.handle.status_of("flaps").unwrap();
        if status.state == ControllerState::BackingOff {
            spread = Some(status);
        }
    }

    let spread = spread.expect("it backs off");
    assert_eq!((spread.reason.as_str(), spread.failures), ("ConditionFlaps", 0));
    let epoch = harness.until("flaps", ControllerState::Running).await.epoch;
    let seconds = begin.elapsed().as_secs();
    assert!(epoch <= 252 + seconds, "{epoch} epochs in {seconds} s");
    assert_eq!(harness.until("well", ControllerState::Running).await.epoch, 1);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_condition_and_one_without_a_publisher_have_different_reasons() {
    struct Silent(Mutex<Option<watch::Sender<Verdict>>>, watch::Receiver<Verdict>);
    impl Runnable for Silent {
        fn start(&self, _: Epoch) -> BoxFuture<'static, RunResult> {
            Box::pin(async { Ok(()) })
        }
    }
    impl ConditionalRunnable for Silent {
        fn ready(&self) -> Readiness {
            Readiness::published(self.1.clone())
        }
    }
    let (publisher, verdicts) = watch::channel(Verdict::Unknown(Vec::new()));
    let silent = Arc::new(Silent(Mutex::new(Some(publisher)), verdicts));
    let harness = Harness::new();
    harness.handle.add("silent", silent.clone(), RunnableOptions::default()).await.unwrap();
    harness.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let status = harness.handle.status_of("silent").unwrap();
    assert_eq!(status.reason, "ConditionUnknown");
    assert_eq!(status.message, "its condition has not published a verdict");

    drop(silent.0.lock().unwrap().take());
    let gone = |it: &Arc<Snapshot>| it[&"silent".into()].reason == "ConditionAbandoned";
    drop(harness.handle.watch().wait_for(gone).await.unwrap());

    harness.until("well", ControllerState::Running).await;
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_epoch_runs_on_while_the_chosen_part_of_any_of_is_unknown() {
    struct Either([watch::Receiver<Verdict>; 2]);
    impl Runnable for Either {
        fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
            Box::pin(async move {
                epoch.stopping().await;
                Ok(())
            })
        }
    }
    impl ConditionalRunnable for Either {
        fn ready(&self) -> Readiness {
            any_of(self.0.clone().map(Readiness::published))
        }
    }
    let chosen = watch::Sender::new(met_by("1"));
    let other = watch::Sender::new(met_by("2"));
    let harness = Harness::new();
    let either = Arc::new(Either([chosen.subscribe(), other.subscribe()]));
    harness.handle.add("either", either, RunnableOptions::default()).await.unwrap();
    harness.until("either", ControllerState::Running).await;

    chosen.send_replace(Verdict::Unknown(Vec::new()));
    tokio::time::sleep(Duration::from_secs(60)).await;

    let status = harness.handle.status_of("either").unwrap();
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    chosen.send_replace(unmet());
    let next = |it: &Arc<Snapshot>| it[&"either".into()].epoch == 2;
    drop(harness.handle.watch().wait_for(next).await.unwrap());
    harness.stop().await.unwrap();
}

/// Condition of a user.
struct Switch(watch::Sender<Verdict>);

impl Condition for Switch {
    fn watch(&self) -> Readiness {
        Readiness::published(self.0.subscribe())
    }
}

#[tokio::test(start_paused = true)]
async fn any_runnable_runs_only_while_a_condition_of_the_user_is_met() {
    let harness = Harness::new();
    let switch = Arc::new(Switch(watch::Sender::new(unmet())));
    let probe = Probe::new(Body::UntilStopped).arc();
    let plain = RunnableWithCondition::of_runnable(probe.clone(), switch.clone());
    harness.handle.add("plain", Arc::new(plain), RunnableOptions::default()).await.unwrap();
    let (own, also) = (probe.clone(), switch.clone());
    let both = RunnableWithCondition::new(own, move || also.watch());
    harness.handle.add("both", Arc::new(both), RunnableOptions::default()).await.unwrap();
    harness.until("plain", ControllerState::Waiting).await;
    harness.until("both", ControllerState::Waiting).await;

    switch.0.send_replace(met());
    harness.until("plain", ControllerState::Running).await;
    harness.until("both", ControllerState::Running).await;
    probe.verdict.send_replace(unmet());
    harness.until("both", ControllerState::Waiting).await;
    harness.until("plain", ControllerState::Running).await;
    switch.0.send_replace(unmet());
    harness.until("plain", ControllerState::Waiting).await;
    harness.stop().await.unwrap();
}

/// Runnable whose every response differs from the default.
struct Particular(Arc<AtomicUsize>);

impl Runnable for Particular {
    fn start(&self, _: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(async { Err("started".into()) })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Warmup
    }

    fn reports_running(&self) -> bool {
        true
    }

    fn keeps_grace(&self) -> bool {
        true
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        Box::pin(async { Err("prepared".into()) })
    }

    fn unprepare(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn debug(&self) -> Option<serde_json::Value> {
        Some("state".into())
    }
}

#[tokio::test]
async fn a_condition_is_added_to_any_runnable_and_everything_else_is_forwarded() {
    let unprepared = Arc::new(AtomicUsize::new(0));
    let particular = Arc::new(Particular(Arc::clone(&unprepared)));
    let conditional = RunnableWithCondition::of_runnable(particular, || Readiness::fixed(unmet()));

    assert_eq!(conditional.ready().verdict(), unmet());
    assert_eq!(conditional.group(), RunnableGroup::Warmup);
    assert!(conditional.reports_running() && conditional.keeps_grace() && conditional.warms_up());
    let epoch = Epoch::new("particular", 1, Duration::ZERO);
    assert_eq!(conditional.start(epoch).await.unwrap_err().to_string(), "started");
    assert_eq!(conditional.prepare().await.unwrap_err().to_string(), "prepared");
    conditional.unprepare();
    assert_eq!(unprepared.load(Ordering::SeqCst), 1);
    assert_eq!(conditional.debug(), Some("state".into()));
}
