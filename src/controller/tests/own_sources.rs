//! Custom sources under a manager.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc, watch,
};

use super::*;
use crate::{
    kind::{Scope, TypeIdentity},
    manager::{
        Basis, Check, CheckResult, DoneReason, Readiness, RestartPolicy, Verdict, always, any_of,
    },
};

/// Source that is done as soon as it is started.
#[derive(Clone, Default)]
struct ShortLived(Arc<AtomicUsize>);

impl ConditionalSource for ShortLived {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        self.0.fetch_add(1, Ordering::SeqCst);
        let (synced, done) = (async { Ok(()) }.boxed(), async { SourceEnd::Stopped }.boxed());
        SourceStart { synced, done }
    }
}

#[tokio::test(start_paused = true)]
async fn controller_whose_required_source_is_always_done_starts_again_less_and_less_often() {
    let (harness, short_lived) = (Harness::new(), ShortLived::default());
    harness.install("Widget");

    harness.add(builder().for_type(widgets()).source(short_lived.clone()).conditional()).await;
    harness.until(|status| status.epoch == 3).await;
    let status = harness.until(|status| status.state == ControllerState::BackingOff).await;
    assert_eq!(status.last_done.as_ref().unwrap().reason, DoneReason::Completed);
    assert_eq!((status.reason.as_str(), status.failures, status.restarts), ("SourceDone", 0, 3));
    let is_degraded = |check: &Check| matches!(check.result, CheckResult::Degraded(_));
    assert!(harness.manager.readiness().results().iter().any(is_degraded));
    sleep(Duration::from_secs(3600)).await;

    let starts = short_lived.0.load(Ordering::SeqCst);
    assert_eq!(u64::try_from(starts).unwrap(), harness.status().epoch, "one in each epoch");
    assert!((15..=30).contains(&starts), "{starts}: 1 s doubling to 5 min");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn required_source_that_is_done_is_asked_again_whatever_the_restart_policy() {
    for policy in [RestartPolicy::OnFailure, RestartPolicy::Never] {
        let (harness, short_lived) = (Harness::new(), ShortLived::default());
        let controller = harness.build(builder().source(short_lived.clone()).conditional());
        let options = RunnableOptions { restart: policy, ..RunnableOptions::default() };
        harness.manager.add(NAME, Arc::new(controller), options).await.unwrap();

        harness.until(|status| status.epoch == 3).await;

        assert_eq!(short_lived.0.load(Ordering::SeqCst), 3, "{policy:?}");
        harness.shutdown().await;
    }
}

/// Source that publishes its condition anew for each call of `ready`: at once, or later when it comes
/// to hold. It is done when its condition is lost.
#[derive(Clone, Default)]
struct AskedAnew {
    is_served: watch::Sender<bool>,
    waiting: Arc<Mutex<Vec<watch::Sender<Verdict>>>>,
    /// True for a call whose verdict is already out of date.
    is_late: Arc<AtomicBool>,
    /// True if nothing is published while the condition does not hold.
    is_silent: bool,
    /// True if each call publishes a loss and closes its channel.
    closes: bool,
    live: Arc<Mutex<Vec<watch::Sender<Verdict>>>>,
}

impl AskedAnew {
    fn set(&self, is_served: bool) {
        self.is_served.send_replace(is_served);
        if !is_served && self.closes {
            for live in self.live.lock().unwrap().drain(..) {
                live.send_replace(missing());
            }
        }
        if is_served {
            for waiting in self.waiting.lock().unwrap().drain(..) {
                waiting.send_replace(Verdict::Met(Vec::new()));
            }
        }
    }
}

impl ConditionalSource for AskedAnew {
    fn ready(&self) -> Readiness {
        if *self.is_served.borrow() || self.is_late.swap(false, Ordering::SeqCst) {
            let (sender, verdicts) = watch::channel(Verdict::Met(Vec::new()));
            self.live.lock().unwrap().push(sender);
            return Readiness::published(verdicts);
        }
        let unmet = if self.is_silent { Verdict::Unknown(Vec::new()) } else { missing() };
        let (sender, verdicts) = watch::channel(unmet);
        self.waiting.lock().unwrap().push(sender);
        Readiness::published(verdicts)
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        let mut is_served = self.is_served.subscribe();
        let done = async move {
            drop(is_served.wait_for(|is_served| !*is_served).await);
            SourceEnd::TypeGone
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

#[tokio::test(start_paused = true)]
async fn required_source_that_answers_anew_each_time_is_waited_for_after_its_end() {
    for (is_late, is_silent) in [(false, false), (true, false), (false, true), (true, true)] {
        let (harness, source) = (Harness::new(), AskedAnew { is_silent, ..AskedAnew::default() });
        harness.install("Widget");
        harness.add(builder().for_type(widgets()).source(source.clone()).conditional()).await;
        harness.state(ControllerState::Waiting).await;
        assert_eq!(harness.server.requests_of(WIDGETS), 0);
        for _ in 0..2 {
            let begin = Instant::now();
            source.set(true);
            harness.state(ControllerState::Running).await;
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
            assert_eq!(harness.server.watches(WIDGETS), 1);
            sleep(Duration::from_secs(2)).await;

            source.is_late.store(is_late, Ordering::SeqCst);
            source.set(false);
            sleep(Duration::from_secs(3600)).await;

            assert_eq!(harness.status().state, ControllerState::Waiting, "late: {is_late}");
            assert_eq!(harness.server.watches(WIDGETS), 0);
            let requests = harness.server.requests_of(WIDGETS);
            sleep(Duration::from_secs(3600)).await;
            assert_eq!(harness.server.requests_of(WIDGETS), requests);
        }
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn optional_source_that_answers_anew_each_time_waits_after_its_end() {
    for closes in [false, true] {
        let (harness, source) = (Harness::new(), AskedAnew { closes, ..AskedAnew::default() });
        harness.install("Widget");
        harness.add(builder().for_type(widgets()).source(source.clone()).optional()).await;
        harness.state(ControllerState::Running).await;
        for _ in 0..2 {
            source.set(true);
            run_until_idle().await;
            source.set(false);
            sleep(Duration::from_secs(3600)).await;

            let waiting = source.waiting.lock().unwrap().len();
            assert_eq!(waiting, 1, "it is asked once, and then waited for");
        }
        assert_eq!(harness.status().epoch, 1);
        harness.shutdown().await;
    }
}

/// Source whose condition is off for the first seconds after each call of `ready`.
struct SlowToAnswer(mpsc::UnboundedSender<watch::Sender<bool>>);

impl ConditionalSource for SlowToAnswer {
    fn ready(&self) -> Readiness {
        let flag = watch::Sender::new(false);
        let readiness = Readiness::flag(flag.subscribe(), "Checking", "is being checked");
        self.0.send(flag).unwrap();
        readiness
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let done = async move {
            context.stopping().await;
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

#[tokio::test(start_paused = true)]
async fn required_source_whose_condition_takes_seconds_to_be_answered_runs_in_the_first_epoch() {
    let (sender, mut flags) = mpsc::unbounded_channel();
    let harness = Harness::new();
    harness.add(builder().source(SlowToAnswer(sender)).conditional()).await;

    for _ in ["the manager", "the input"] {
        let flag = flags.recv().await.unwrap();
        sleep(Duration::from_secs(30)).await;
        flag.send_replace(true);
    }

    assert_eq!(harness.state(ControllerState::Running).await.epoch, 1);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!((harness.status().state, harness.status().epoch), (ControllerState::Running, 1));
    harness.shutdown().await;
}

/// A source of either of two types: of the first that is served when it is started.
#[derive(Clone)]
struct Either {
    types: [watch::Sender<Verdict>; 2],
    fails: watch::Sender<bool>,
    running: watch::Sender<Option<Verdict>>,
}

impl Either {
    fn new() -> Self {
        let types = ["one", "two"].map(|uid| watch::Sender::new(served(uid)));
        Self { types, fails: watch::Sender::default(), running: watch::Sender::default() }
    }
}

fn served(uid: &str) -> Verdict {
    let identity = TypeIdentity {
        group: "example.com".into(),
        version: "v1".into(),
        plural: "widgets".into(),
        scope: Scope::Namespaced,
        uid: Some(uid.into()),
    };
    Verdict::Met(vec![Basis { identity, kind: "Widget".into(), list_kind: "WidgetList".into() }])
}

fn missing() -> Verdict {
    Verdict::Unmet(Vec::new())
}

impl ConditionalSource for Either {
    fn ready(&self) -> Readiness {
        any_of(self.types.each_ref().map(|part| Readiness::published(part.subscribe())))
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let mut readiness = self.ready();
        let (running, mut fails) = (self.running.clone(), self.fails.subscribe());
        let done = async move {
            let chosen = readiness.verdict();
            running.send_replace(Some(chosen.clone()));
            let lost = async {
                while readiness.verdict() == chosen {
                    readiness.changed().await;
                }
            };
            let end = tokio::select! {
                () = context.stopping() => SourceEnd::Stopped,
                () = lost => SourceEnd::TypeGone,
                Ok(()) = fails.changed() => SourceEnd::Failed("boom".to_owned()),
            };
            running.send_replace(None);
            end
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

#[tokio::test(start_paused = true)]
async fn source_of_two_alternatives_is_never_left_without_either_while_one_is_served() {
    let (harness, either) = (Harness::new(), Either::new());
    let runs = |uid: &str| {
        let (uid, mut running) = (served(uid), either.running.subscribe());
        async move {
            let found = running.wait_for(|now| *now == Some(uid.clone()));
            let found = tokio::time::timeout(Duration::from_secs(600), found).await.is_ok();
            assert!(found, "it does not run on {uid:?}");
        }
    };
    harness.add(builder().source(either.clone()).conditional()).await;
    runs("one").await;
    either.types[0].send_replace(missing());
    runs("two").await;
    // The manager stays with the second type, whereas the next start of the source takes the first.
    either.types[0].send_replace(served("one"));
    either.fails.send_replace(true);
    runs("one").await;

    either.types[0].send_replace(missing());

    runs("two").await;
    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

/// Source of the requests that are sent during its epochs, as in `docs/library.md`.
fn events_of(sender: broadcast::Sender<Request>) -> FunctionSource {
    FunctionSource::new("events", move |context| {
        let mut events = sender.subscribe();
        async move {
            loop {
                match events.recv().await {
                    Ok(request) => context.enqueue(request),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn broadcast_channel_reaches_each_running_controller_and_waits_for_no_other() {
    let harness = Harness::new();
    harness.install("Widget");
    let (events, _) = broadcast::channel(10);
    let log = Log::default();
    for (name, kind) in [("second", widgets()), ("waiting", parts())] {
        let reconciler = LoggingReconciler { log: Arc::clone(&log) };
        let described = Controller::builder(name).for_type(kind).conditional();
        let described = described.source(events_of(events.clone()));
        let controller = described.build(&harness.cluster, reconciler).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
    }
    harness.add(builder().for_type(widgets()).source(events_of(events.clone()))).await;
    harness.state(ControllerState::Running).await;
    run_until_idle().await;

    for number in 0..3 {
        events.send(Request::cluster(number.to_string())).unwrap();
        run_until_idle().await;
    }

    let expected = ["0 gone", "1 gone", "2 gone"];
    assert_eq!(harness.log().await, expected);
    assert_eq!(*log.lock().unwrap(), expected, "of the second alone");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn function_and_interval_add_requests_in_each_epoch_and_end_with_it() {
    let harness = Harness::new();
    harness.install("Widget");
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let alive = Arc::new(());
    let weak = Arc::downgrade(&alive);
    let function = FunctionSource::new("a function", move |context| {
        counted.fetch_add(1, Ordering::SeqCst);
        let alive = weak.upgrade();
        async move {
            context.enqueue(Request::cluster("function"));
            std::future::pending::<()>().await;
            drop(alive);
        }
    });
    let interval = FunctionSource::interval(Duration::from_secs(60), Request::cluster("interval"));
    let builder = builder().for_type(widgets()).conditional();
    harness.add(builder.source(function).source(interval)).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["function gone"]);
    sleep(Duration::from_secs(130)).await;
    assert_eq!(harness.log().await, ["interval gone", "interval gone"]);

    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;
    assert_eq!(Arc::strong_count(&alive), 1, "the function is dropped");
    sleep(Duration::from_secs(130)).await;
    assert!(harness.log().await.is_empty());
    harness.install("Widget");
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["function gone"]);
    assert_eq!(starts.load(Ordering::SeqCst), 2);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shared_source_is_the_source_that_it_shares() {
    let harness = Harness::new();
    harness.install("Widget");
    let hourly = FunctionSource::interval(Duration::from_secs(3600), Request::cluster("hourly"));
    let shared = Arc::new(ShortLived::default());
    let sources: Vec<Arc<dyn ConditionalSource>> = vec![Arc::new(hourly), shared.clone()];
    let none = |source: &Arc<dyn ConditionalSource>| builder().source(Arc::clone(source));
    let requests_only = none(&sources[0]).predicate(Predicate::new(|_| true));
    let built = requests_only.build(&harness.cluster, LoggingReconciler { log: Log::default() });
    assert!(matches!(built, Err(BuildError::RequestsOnly(..))), "{built:?}");
    let events: Arc<dyn ConditionalSource> = Arc::new(EventSource::new(1).1);
    let changes_only = builder().watches_source(events, Handler::delta(|_, _| {}));
    let built = changes_only.build(&harness.cluster, LoggingReconciler { log: Log::default() });
    assert!(matches!(built, Err(BuildError::ChangesOnly(_))), "{built:?}");

    let described = sources.into_iter().fold(builder().for_type(widgets()), Builder::source);
    harness.add(described.source(Arc::clone(&shared))).await;
    harness.state(ControllerState::Running).await;
    sleep(Duration::from_secs(3700)).await;

    assert_eq!(harness.log().await, ["hourly gone"]);
    assert_eq!(shared.0.load(Ordering::SeqCst), 2, "it is an input twice");
    assert_eq!(ConditionalSource::name(&shared), "a source");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn boxed_source_is_the_source_that_it_holds() {
    let harness = Harness::new();
    harness.install("Widget");
    let hourly = || -> Box<dyn ConditionalSource> {
        Box::new(FunctionSource::interval(Duration::from_secs(3600), Request::cluster("hourly")))
    };
    let built = |builder: Builder| {
        builder.build(&harness.cluster, LoggingReconciler { log: Log::default() }).map(drop)
    };
    let requests_only = built(builder().source(hourly()).predicate(Predicate::new(|_| true)));
    assert!(matches!(requests_only, Err(BuildError::RequestsOnly(..))), "{requests_only:?}");
    let events: Box<dyn ConditionalSource> = Box::new(EventSource::new(1).1);
    assert_eq!(ConditionalSource::name(&events), "a channel of events");
    let changes_only = built(builder().watches_source(events, Handler::delta(|_, _| {})));
    assert!(matches!(changes_only, Err(BuildError::ChangesOnly(_))), "{changes_only:?}");
    let (open, verdicts) = watch::channel(Verdict::Unmet(Vec::new()));
    let switched: Box<dyn ConditionalSource> = Box::new(Switched(verdicts));

    harness
        .add(builder().for_type(widgets()).source(hourly()).source(switched).conditional())
        .await;
    harness.state(ControllerState::Waiting).await;
    open.send_replace(Verdict::Met(Vec::new()));
    harness.state(ControllerState::Running).await;
    sleep(Duration::from_secs(3700)).await;

    assert_eq!(harness.log().await, ["hourly gone"]);
    harness.shutdown().await;
}

/// Source without requests that can be started while its verdict is met.
struct Switched(watch::Receiver<Verdict>);

impl ConditionalSource for Switched {
    fn ready(&self) -> Readiness {
        Readiness::published(self.0.clone())
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let done = async move {
            context.released().await;
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}
