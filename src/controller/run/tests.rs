use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use futures::{FutureExt, future::pending};
use http::{Request as HttpRequest, Response};
use kube::{Client, client::Body};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::sleep,
};
use tower::service_fn;

use super::*;
use crate::{
    controller::{
        ChannelSource, ConditionalSource, Controller, ControllerMetrics, LOW_PRIORITY, Outcome,
        ReconcileError, SourceContext, SourceStart,
        handover::Handovers,
        input::{Input, InputSource},
        queue::QueueOptions,
    },
    informer::ObjectKey,
    manager::{ControllerName, Readiness, Runnable, RunnableGroup, Unmet, Verdict},
};

/// A source whose every turn is the test's.
#[derive(Clone)]
struct Fake {
    shared: Arc<FakeShared>,
}

struct FakeShared {
    name: &'static str,
    initial: Vec<Request>,
    verdict: watch::Sender<Verdict>,
    synced: watch::Sender<bool>,
    fails: watch::Sender<Option<&'static str>>,
    starts: AtomicUsize,
    running: watch::Sender<usize>,
    released: watch::Sender<Option<Instant>>,
}

impl Fake {
    fn new(name: &'static str, initial: &[&str]) -> Self {
        let shared = FakeShared {
            name,
            initial: initial.iter().map(|name| key(name)).collect(),
            verdict: watch::Sender::new(Verdict::Met(Vec::new())),
            synced: watch::Sender::new(true),
            fails: watch::Sender::new(None),
            starts: AtomicUsize::new(0),
            running: watch::Sender::new(0),
            released: watch::Sender::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    fn unsynced(self) -> Self {
        self.shared.synced.send_replace(false);
        self
    }

    fn missing(self) -> Self {
        self.goes();
        self
    }

    fn goes(&self) {
        let message = format!("{} is not installed", self.shared.name);
        let unmet = Unmet { reason: "TypeAbsent".into(), message, type_ref: None };
        self.shared.verdict.send_replace(Verdict::Unmet(vec![unmet]));
    }

    fn comes(&self) {
        self.shared.verdict.send_replace(Verdict::Met(Vec::new()));
    }

    fn starts(&self) -> usize {
        self.shared.starts.load(Ordering::SeqCst)
    }

    fn running(&self) -> usize {
        *self.shared.running.borrow()
    }
}

impl ConditionalSource for Fake {
    fn ready(&self) -> Readiness {
        Readiness::published(self.shared.verdict.subscribe())
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let shared = Arc::clone(&self.shared);
        shared.starts.fetch_add(1, Ordering::SeqCst);
        let mut synced = shared.synced.subscribe();
        let (feed, initial) = (context.clone(), shared.initial.clone());
        let synced = async move {
            synced.wait_for(|synced| *synced).await?;
            for request in initial {
                feed.enqueue_with_priority(request, LOW_PRIORITY);
            }
            Ok(())
        };
        let done = async move {
            shared.running.send_modify(|running| *running += 1);
            let mut fails = shared.fails.subscribe();
            let failed = async { fails.wait_for(Option::is_some).await.ok().and_then(|it| *it) };
            let end = select! {
                Some(error) = failed => SourceEnd::Failed(error.to_owned()),
                () = context.stopping() => {
                    context.released().await;
                    shared.released.send_replace(Some(Instant::now()));
                    SourceEnd::Stopped
                }
            };
            shared.running.send_modify(|running| *running -= 1);
            end
        };
        SourceStart { synced: synced.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        self.shared.name.to_owned()
    }
}

/// What reconciles did, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(String, u32, u64)>>>);

impl Log {
    fn note(&self, request: &Request, context: &Context, since: Instant) {
        let millis = u64::try_from(since.elapsed().as_millis()).unwrap();
        self.0.lock().unwrap().push((request.to_string(), context.attempt(), millis));
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(name, ..)| name.clone()).collect()
    }

    /// Attempt and milliseconds since the rig was made.
    fn attempts(&self) -> Vec<(u32, u64)> {
        self.0.lock().unwrap().iter().map(|(_, attempt, millis)| (*attempt, *millis)).collect()
    }
}

/// A controller of fake sources, and one run of it.
struct Rig {
    controller: Controller,
    metrics: ControllerMetrics,
    runs: JoinSet<Result<(), String>>,
    epoch: Epoch,
    start: Instant,
}

const GRACE: Duration = Duration::from_secs(5);

struct Make {
    inputs: Vec<Input>,
    workers: usize,
    reconcile_timeout: Option<Duration>,
    client: Client,
}

fn make() -> Make {
    Make { inputs: Vec::new(), workers: 1, reconcile_timeout: None, client: client(async || {}) }
}

impl Make {
    fn input(mut self, mode: Mode, source: impl ConditionalSource) -> Self {
        self.inputs.push(Input { source: InputSource::Other(Arc::new(source)), mode });
        self
    }

    fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    fn run<R>(self, reconcile: impl Fn(Request, Context) -> R + Send + Sync + 'static) -> Rig
    where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let metrics = ControllerMetrics::default();
        let name = ControllerName::from("widgets");
        let spec = Spec {
            client: self.client,
            inputs: self.inputs,
            primary: None,
            reconcile: Arc::new(move |request, context| reconcile(request, context).boxed()),
            workers: self.workers,
            reconcile_timeout: self.reconcile_timeout,
            sync_timeout: Duration::from_secs(120),
            queue: QueueOptions::default(),
            series: metrics.series(&name),
            handover: Handovers::default().of(&name),
            name,
        };
        let mut rig = Rig {
            controller: Controller::new(spec, RunnableGroup::LeaderElection),
            metrics,
            runs: JoinSet::new(),
            epoch: Epoch::new("widgets", 0, GRACE),
            start: Instant::now(),
        };
        rig.start();
        rig
    }
}

impl Rig {
    fn start(&mut self) {
        self.epoch = Epoch::new("widgets", self.epoch.number() + 1, GRACE);
        let run = self.controller.start(self.epoch.clone());
        self.runs.spawn(run.map(|end| end.map_err(|error| error.to_string())));
    }

    async fn running(&self) {
        self.epoch.subscribe().wait_for(|report| report.running).await.unwrap();
    }

    fn report(&self) -> crate::manager::Report {
        self.epoch.subscribe().borrow().clone()
    }

    async fn done(&mut self) -> Result<(), String> {
        self.runs.join_next().await.unwrap().unwrap()
    }

    async fn stop(&mut self, reason: StopReason) -> Result<(), String> {
        self.epoch.stop(reason);
        self.done().await
    }

    /// The value of the series of this name, as it is exported.
    fn metric(&self, name: &str) -> String {
        exported(&self.metrics)
            .lines()
            .find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
            .unwrap_or_else(|| panic!("no {name}"))
    }
}

fn exported(metrics: &ControllerMetrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

/// A client whose server answers when `answer` resolves.
fn client<F>(answer: impl Fn() -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = ()> + Send + 'static,
{
    let answer = Arc::new(answer);
    let service = service_fn(move |_request: HttpRequest<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            answer().await;
            Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
        }
    });
    Client::new(service, "default")
}

async fn send(context: &Context) -> Result<(), kube::Error> {
    let request = HttpRequest::get("/version").body(Body::empty()).unwrap();
    context.client().send(request).await.map(drop)
}

fn key(name: &str) -> Request {
    ObjectKey { namespace: Some("ns".into()), name: name.into() }
}

fn ok() -> Result<Outcome, ReconcileError> {
    Ok(Outcome::Done)
}

async fn settle() {
    // With paused time, a sleep ends only when nothing else can run.
    sleep(Duration::from_micros(1)).await;
}

#[tokio::test(start_paused = true)]
async fn workers_start_when_everything_that_existed_is_in_the_queue() {
    let slow = Fake::new("slow", &["c"]).unsynced();
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make()
        .input(Mode::Required, Fake::new("fast", &["a", "b"]))
        .input(Mode::Plain, slow.clone())
        .run(move |request, context| {
            notes.note(&request, &context, start);
            async { ok() }
        });
    settle().await;
    assert!(log.names().is_empty());
    assert!(!rig.report().running);
    assert_eq!(
        rig.metric("workqueue_depth{name=\"widgets\",controller=\"widgets\",priority=\"-100\"}"),
        "2"
    );

    slow.shared.synced.send_replace(true);
    rig.running().await;
    settle().await;

    assert_eq!(log.names(), ["ns/a", "ns/b", "ns/c"]);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_is_never_reconciled_twice_at_once_though_others_are() {
    let (sender, channel) = ChannelSource::new(64);
    let active = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let most = Arc::new(AtomicUsize::new(0));
    let count = Arc::new(AtomicUsize::new(0));
    let seen = (Arc::clone(&active), Arc::clone(&most), Arc::clone(&count));
    let mut rig = make().input(Mode::Plain, channel).workers(3).run(move |request, _| {
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
    rig.running().await;

    for _ in 0..6 {
        for name in ["a", "b", "c", "d", "e"] {
            sender.send(key(name)).await.unwrap();
        }
        sleep(Duration::from_millis(3)).await;
    }
    sleep(Duration::from_secs(1)).await;

    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert!((5..30).contains(&count.load(Ordering::SeqCst)));
    rig.stop(StopReason::Cancelled).await.unwrap();
}

/// Runs one request through these ends, and then to success.
fn ends(ends: Vec<fn() -> Result<Outcome, ReconcileError>>) -> (Rig, Log) {
    let log = Log::default();
    let (notes, start, ends) = (log.clone(), Instant::now(), Mutex::new(ends.into_iter()));
    let rig =
        make().input(Mode::Required, Fake::new("fake", &["a"])).run(move |request, context| {
            notes.note(&request, &context, start);
            let end = ends.lock().unwrap().next();
            async move { end.map_or_else(ok, |end| end()) }
        });
    (rig, log)
}

fn failed() -> Result<Outcome, ReconcileError> {
    Err("no luck".into())
}

fn conflict() -> Result<Outcome, ReconcileError> {
    let status = kube::core::Status::failure("modified", "Conflict").with_code(409);
    Err(kube::Error::Api(status.boxed()).into())
}

#[tokio::test(start_paused = true)]
async fn failure_is_repeated_after_a_doubling_back_off() {
    let (mut rig, log) = ends(vec![failed, failed, failed]);

    sleep(Duration::from_secs(60)).await;

    // Milliseconds: timers go off with the next whole one.
    assert_eq!(log.attempts(), [(0, 0), (1, 5), (2, 15), (3, 35)]);
    assert_eq!(rig.report().last_error, None);
    assert_eq!(
        rig.metric("controller_runtime_reconcile_errors_total{controller=\"widgets\"}"),
        "3"
    );
    assert_eq!(rig.metric("workqueue_retries_total{name=\"widgets\",controller=\"widgets\"}"), "3");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn error_stands_until_its_request_succeeds() {
    let (mut rig, _log) = ends(vec![failed]);

    rig.running().await;
    settle().await;
    assert_eq!(rig.report().last_error.as_deref(), Some("ns/a: no luck"));
    sleep(Duration::from_millis(6)).await;

    assert_eq!(rig.report().last_error, None);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn errors_of_many_requests_are_reported_one_a_second() {
    let names: Vec<_> = (0..500).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut rig = make()
        .workers(10)
        .input(Mode::Required, Fake::new("fake", &names))
        .run(|_, context| async move { if context.attempt() < 9 { failed() } else { ok() } });
    let mut reports = rig.epoch.subscribe();
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

    assert_eq!(rig.report().last_error, None);
    rig.epoch.report(|report| {
        let watch = crate::manager::WatchReport {
            type_ref: crate::kind::TypeRef::resource("", "v1", "pods"),
            state: "Synced",
            error: None,
        };
        report.watches = vec![watch.clone(), watch];
    });
    let errors = watcher.join_next().await.unwrap().unwrap();
    assert!((1..=5).contains(&errors), "{errors}");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn terminal_failure_is_not_repeated() {
    let (mut rig, log) = ends(vec![|| Err(ReconcileError::Terminal("hopeless".into()))]);

    sleep(Duration::from_secs(3600)).await;

    assert_eq!(log.attempts(), [(0, 0)]);
    assert_eq!(rig.report().last_error.as_deref(), Some("ns/a: hopeless"));
    let terminal = "controller_runtime_terminal_reconcile_errors_total{controller=\"widgets\"}";
    assert_eq!(rig.metric(terminal), "1");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requeue_after_waits_as_told_and_forgets_the_back_off() {
    let again: fn() -> _ = || Ok(Outcome::RequeueAfter(Duration::from_secs(1)));
    let (mut rig, log) = ends(vec![failed, again, failed]);

    sleep(Duration::from_secs(60)).await;

    assert_eq!(log.attempts(), [(0, 0), (1, 5), (0, 1005), (1, 1010)]);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requeue_after_centuries_does_no_harm() {
    let (mut rig, log) = ends(vec![|| Ok(Outcome::RequeueAfter(Duration::MAX))]);

    sleep(Duration::from_secs(60)).await;

    assert_eq!(log.attempts(), [(0, 0)]);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn conflict_is_repeated_without_being_an_error() {
    let (mut rig, log) = ends(vec![conflict, conflict]);
    let mut reports = rig.epoch.subscribe();
    let mut errors = 0;

    rig.running().await;
    for _ in 0..100 {
        errors += usize::from(reports.borrow_and_update().last_error.is_some());
        sleep(Duration::from_millis(1)).await;
    }

    assert_eq!((log.attempts().len(), errors), (3, 0));
    let total = "controller_runtime_reconcile_total{controller=\"widgets\",result=";
    assert_eq!(rig.metric(&format!("{total}\"requeue\"}}")), "2");
    assert_eq!(rig.metric(&format!("{total}\"success\"}}")), "1");
    assert_eq!(rig.metric(&format!("{total}\"error\"}}")), "0");
    assert_eq!(
        rig.metric("controller_runtime_reconcile_errors_total{controller=\"widgets\"}"),
        "0"
    );
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn panic_is_an_error_of_its_request_alone() {
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make().input(Mode::Required, Fake::new("fake", &["a", "b"])).run(
        move |request, context| {
            // Not even the function that makes the future may do harm.
            assert!(&*request.name != "a" || context.attempt() > 0, "a is unbearable");
            notes.note(&request, &context, start);
            async move {
                assert!(&*request.name != "b" || context.attempt() > 1, "b is unbearable");
                ok()
            }
        },
    );
    rig.running().await;
    settle().await;
    let error = rig.report().last_error.unwrap();
    assert_eq!(error, "ns/a: the reconcile panicked: a is unbearable");

    sleep(Duration::from_secs(1)).await;

    assert_eq!(log.names(), ["ns/b", "ns/a", "ns/b", "ns/b"]);
    assert_eq!(
        rig.metric("controller_runtime_reconcile_panics_total{controller=\"widgets\"}"),
        "3"
    );
    assert_eq!(rig.metric("controller_runtime_active_workers{controller=\"widgets\"}"), "0");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconcile_that_outlasts_its_timeout_is_dropped_and_repeated() {
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut spec = make().input(Mode::Required, Fake::new("fake", &["a"]));
    spec.reconcile_timeout = Some(Duration::from_secs(2));
    let mut rig = spec.run(move |request, context| {
        notes.note(&request, &context, start);
        async move { if context.attempt() == 0 { pending().await } else { ok() } }
    });

    sleep(Duration::from_secs(10)).await;

    assert_eq!(log.attempts(), [(0, 0), (1, 2005)]);
    let timeouts = "controller_runtime_reconcile_timeouts_total{controller=\"widgets\"}";
    assert_eq!(rig.metric(timeouts), "1");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_lets_running_reconciles_finish_and_starts_no_other() {
    let fake = Fake::new("fake", &["a", "b"]);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make().input(Mode::Required, fake.clone()).run(move |request, context| {
        notes.note(&request, &context, start);
        async move {
            context.cancelled().await;
            sleep(Duration::from_secs(3)).await;
            // Within the grace the reconcile may still write.
            send(&context).await?;
            failed()
        }
    });
    rig.running().await;
    settle().await;

    let asked = Instant::now();
    rig.stop(StopReason::TypeGone).await.unwrap();

    assert_eq!(asked.elapsed(), Duration::from_secs(3));
    assert_eq!(log.names(), ["ns/a"]);
    assert_eq!(*fake.shared.released.borrow(), Some(Instant::now()), "after the last reconcile");
    assert_eq!(rig.report().last_error, None, "an error while stopping is no news");
    assert!(rig.epoch.fence().pass().is_err());
}

#[tokio::test(start_paused = true)]
async fn reconcile_that_outlasts_the_grace_is_dropped_with_its_request() {
    let fake = Fake::new("fake", &["a"]);
    let mut spec = make().input(Mode::Required, fake.clone());
    spec.client = client(pending);
    let mut rig = spec.run(|_, context| async move {
        send(&context).await?;
        ok()
    });
    rig.running().await;
    settle().await;
    assert_eq!(rig.epoch.fence().under_way(), 1);

    let asked = Instant::now();
    rig.stop(StopReason::Cancelled).await.unwrap();

    assert_eq!(asked.elapsed(), GRACE);
    assert_eq!(rig.epoch.fence().under_way(), 0);
    assert_eq!(fake.running(), 0);
    assert_eq!(rig.metric("controller_runtime_active_workers{controller=\"widgets\"}"), "0");
}

#[tokio::test(start_paused = true)]
async fn lost_lease_closes_the_fence_and_leaves_no_grace() {
    let (result, mut results) = tokio::sync::mpsc::unbounded_channel();
    let mut rig = make().workers(2).input(Mode::Required, Fake::new("fake", &["a", "b"])).run(
        move |request, context| {
            let result = result.clone();
            async move {
                if &*request.name == "a" {
                    return pending().await;
                }
                context.cancelled().await;
                result.send(send(&context).await.map_err(|error| error.to_string())).ok();
                pending().await
            }
        },
    );
    rig.running().await;
    settle().await;

    let asked = Instant::now();
    rig.stop(StopReason::LeaseLost).await.unwrap();

    assert_eq!(asked.elapsed(), Duration::ZERO);
    while let Some(result) = results.recv().now_or_never().flatten() {
        assert!(result.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn stop_while_syncing_returns_at_once() {
    for mode in [Mode::Required, Mode::Plain, Mode::Optional] {
        let fake = Fake::new("fake", &["a"]).unsynced();
        let missing = Fake::new("missing", &[]).missing();
        let mut rig = make()
            .input(mode, fake.clone())
            .input(Mode::Plain, missing.clone())
            .run(|_, _| async { ok() });
        settle().await;
        assert_eq!((fake.running(), missing.starts()), (1, 0));

        let asked = Instant::now();
        rig.stop(StopReason::TypeGone).await.unwrap();

        assert_eq!(asked.elapsed(), Duration::ZERO);
        assert!(!rig.report().running);
        assert_eq!(fake.running(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn done_leaves_no_task() {
    for reason in [StopReason::Cancelled, StopReason::Superseded, StopReason::LeaseLost] {
        let controller = make()
            .workers(4)
            .input(Mode::Required, Fake::new("one", &["a", "b", "c", "d"]))
            .input(Mode::Optional, Fake::new("two", &[]).missing())
            .input(Mode::Optional, Fake::new("three", &[]));
        // The client of the process has one, and the one before is leaving.
        settle().await;
        let before = Handle::current().metrics().num_alive_tasks();
        let mut rig = controller.run(|request, context| async move {
            match &*request.name {
                "a" => pending().await,
                "b" => context.cancelled().await,
                "c" => panic!("c is unbearable"),
                _ => {}
            }
            failed()
        });
        rig.running().await;
        settle().await;
        assert!(Handle::current().metrics().num_alive_tasks() > before);

        rig.stop(reason).await.unwrap();

        assert_eq!(Handle::current().metrics().num_alive_tasks(), before, "{reason:?}");
        assert!(rig.epoch.tasks().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_run_leaves_nothing() {
    let fake = Fake::new("fake", &["a"]);
    let controller = make().input(Mode::Required, fake.clone());
    let before = Handle::current().metrics().num_alive_tasks();
    let mut rig = controller.run(|_, _| pending());
    rig.running().await;
    settle().await;

    rig.runs.shutdown().await;
    settle().await;

    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    assert_eq!(rig.metric("controller_runtime_active_workers{controller=\"widgets\"}"), "0");
    assert_eq!(Arc::strong_count(&fake.shared), 2, "the test's and the controller's");
}

#[tokio::test(start_paused = true)]
async fn optional_source_comes_and_goes_without_a_restart() {
    let optional = Fake::new("optional", &["o"]).missing();
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make()
        .input(Mode::Required, Fake::new("required", &["r"]))
        .input(Mode::Optional, optional.clone())
        .run(move |request, context| {
            notes.note(&request, &context, start);
            async { ok() }
        });
    rig.running().await;
    settle().await;
    assert_eq!(log.names(), ["ns/r"]);

    for round in 1..=2 {
        optional.comes();
        settle().await;
        assert_eq!((optional.starts(), optional.running()), (round, 1));
        optional.goes();
        settle().await;
        assert_eq!(optional.running(), 0);
    }

    assert_eq!(log.names(), ["ns/r", "ns/o", "ns/o"]);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unknown_verdict_leaves_a_running_source_alone() {
    let optional = Fake::new("optional", &["o"]);
    let mut rig = make().input(Mode::Optional, optional.clone()).run(|_, _| async { ok() });
    rig.running().await;

    optional.shared.verdict.send_replace(Verdict::Unknown(Vec::new()));
    settle().await;

    assert_eq!((optional.starts(), optional.running()), (1, 1));
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn optional_source_that_never_syncs_holds_nobody_up_for_longer_than_the_timeout() {
    let mut rig = make()
        .input(Mode::Optional, Fake::new("optional", &[]).unsynced())
        .run(|_, _| async { ok() });

    rig.running().await;

    assert_eq!(rig.start.elapsed().as_secs(), 120);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn plain_source_that_is_not_ready_in_time_fails_the_run_and_says_why() {
    let missing = Fake::new("widgets.example.com/v1", &[]).missing();
    let controller = make().input(Mode::Plain, missing);
    let before = Handle::current().metrics().num_alive_tasks();
    let mut rig = controller.run(|_, _| async { ok() });

    let error = rig.done().await.unwrap_err();

    assert_eq!(error, "sync timeout after 2 min: widgets.example.com/v1 is not installed");
    assert_eq!(rig.start.elapsed().as_secs(), 120);
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn plain_source_that_becomes_ready_in_time_is_started() {
    let late = Fake::new("late", &["a"]).missing();
    let mut rig = make().input(Mode::Plain, late.clone()).run(|_, _| async { ok() });

    sleep(Duration::from_secs(119)).await;
    late.comes();
    rig.running().await;

    assert_eq!(rig.start.elapsed().as_secs(), 119);
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn required_source_is_waited_for_without_a_limit() {
    let slow = Fake::new("slow", &["a"]).unsynced();
    let mut rig = make().input(Mode::Required, slow.clone()).run(|_, _| async { ok() });

    sleep(Duration::from_secs(3600)).await;
    slow.shared.synced.send_replace(true);
    rig.running().await;

    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_plain_source_is_reported_and_comes_back_in_the_same_run() {
    let plain = Fake::new("plain", &["a"]);
    let mut rig = make().input(Mode::Plain, plain.clone()).run(|_, _| async { ok() });
    rig.running().await;

    plain.goes();
    settle().await;
    assert_eq!((plain.running(), rig.report().stale), (0, true));
    sleep(Duration::from_secs(3600)).await;
    plain.comes();
    settle().await;

    assert_eq!((plain.starts(), plain.running(), rig.report().stale), (2, 1, false));
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn required_source_whose_type_is_gone_waits_for_the_verdict_of_the_manager() {
    let required = Fake::new("required", &["a"]);
    let mut rig = make().input(Mode::Required, required.clone()).run(|_, _| async { ok() });
    rig.running().await;

    required.goes();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(required.running(), 1);
    rig.stop(StopReason::TypeGone).await.unwrap();
    assert_eq!(required.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn source_that_fails_ends_the_run_with_its_reason() {
    for mode in [Mode::Required, Mode::Plain] {
        let fake = Fake::new("fake", &["a"]);
        let other = Fake::new("other", &[]);
        let mut rig = make().input(mode, fake.clone()).input(Mode::Required, other.clone()).run(
            |_, context| async move {
                context.cancelled().await;
                ok()
            },
        );
        rig.running().await;

        fake.shared.fails.send_replace(Some("the wire is cut"));

        assert_eq!(rig.done().await.unwrap_err(), "source fake: the wire is cut");
        assert_eq!(other.running(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn optional_source_that_fails_is_started_again() {
    let fake = Fake::new("fake", &["a"]);
    let mut rig = make().input(Mode::Optional, fake.clone()).run(|_, _| async { ok() });
    rig.running().await;

    fake.shared.fails.send_replace(Some("the wire is cut"));
    settle().await;
    fake.shared.fails.send_replace(None);
    assert_eq!((fake.starts(), fake.running()), (1, 0));
    sleep(Duration::from_secs(1)).await;

    assert_eq!((fake.starts(), fake.running()), (2, 1));
    rig.stop(StopReason::Cancelled).await.unwrap();
}

struct Bomb;

impl ConditionalSource for Bomb {
    fn ready(&self) -> Readiness {
        crate::manager::always()
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        panic!("tick tock")
    }

    fn name(&self) -> String {
        "bomb".to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn source_that_panics_ends_the_run_with_its_message() {
    let mut rig = make().input(Mode::Plain, Bomb).run(|_, _| async { ok() });

    assert_eq!(rig.done().await.unwrap_err(), "source bomb: it panicked: tick tock");
}

/// One request is delayed, one is ready, one is under way; then the epoch stops.
async fn stopped_with_work_left(reason: StopReason) -> (Rig, Log) {
    let (sender, channel) = ChannelSource::new(8);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make().input(Mode::Plain, channel).run(move |request, context| {
        notes.note(&request, &context, start);
        async move {
            match (&*request.name, context.epoch().number()) {
                ("delayed", 1) => Ok(Outcome::RequeueAfter(Duration::from_secs(60))),
                ("failed", 1) => failed(),
                ("stuck", 1) => pending().await,
                _ => ok(),
            }
        }
    });
    rig.running().await;
    for name in ["delayed", "failed", "stuck", "ready"] {
        sender.send(key(name)).await.unwrap();
    }
    settle().await;
    assert_eq!(log.names(), ["ns/delayed", "ns/failed", "ns/stuck"]);
    rig.stop(reason).await.unwrap();
    rig.start();
    rig.running().await;
    sleep(Duration::from_secs(120)).await;
    (rig, log)
}

#[tokio::test(start_paused = true)]
async fn superseded_epoch_hands_its_work_to_the_next() {
    let (mut rig, log) = stopped_with_work_left(StopReason::Superseded).await;

    let names = log.names();
    let (next, last) = (&names[3..], log.attempts()[names.len() - 1]);

    assert_eq!(next, ["ns/failed", "ns/ready", "ns/stuck", "ns/delayed"]);
    assert_eq!(log.attempts()[3].0, 1, "its failures count on");
    assert_eq!(last, (0, 60_000), "not sooner than it was asked for");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn restart_begins_with_an_empty_queue() {
    let (mut rig, log) = stopped_with_work_left(StopReason::TypeGone).await;

    assert_eq!(log.names().len(), 3, "nothing was left for the second epoch");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn controller_can_be_started_again_and_again() {
    let fake = Fake::new("fake", &["a", "b"]);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make().input(Mode::Required, fake.clone()).run(move |request, context| {
        notes.note(&request, &context, start);
        async { ok() }
    });
    for epoch in 1..=10 {
        rig.running().await;
        settle().await;
        rig.stop(StopReason::TypeGone).await.unwrap();

        assert_eq!((fake.starts(), fake.running()), (epoch, 0));
        assert_eq!(log.names().len(), epoch * 2);
        rig.start();
    }
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_sent_while_no_epoch_runs_wait_for_the_next_one() {
    let (sender, channel) = ChannelSource::new(8);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut rig = make().input(Mode::Plain, channel).run(move |request, context| {
        notes.note(&request, &context, start);
        async { ok() }
    });
    rig.running().await;
    rig.stop(StopReason::Cancelled).await.unwrap();
    sender.send(key("a")).await.unwrap();

    rig.start();
    rig.running().await;
    drop(sender);
    settle().await;

    assert_eq!(log.names(), ["ns/a"]);
    assert_eq!(rig.runs.len(), 1, "a closed channel ends no run");
    rig.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_that_blocks_its_thread_holds_up_done_but_not_the_release_of_sources() {
    let fake = Fake::new("fake", &["a"]);
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (blocked, entered) = (Arc::new(Mutex::new(blocked)), Arc::new(Notify::new()));
    let inside = Arc::clone(&entered);
    let mut rig = make().input(Mode::Required, fake.clone()).run(move |_, _| {
        let (blocked, inside) = (Arc::clone(&blocked), Arc::clone(&inside));
        async move {
            inside.notify_one();
            blocked.lock().unwrap().recv().ok();
            ok()
        }
    });
    entered.notified().await;

    rig.epoch.stop(StopReason::LeaseLost);
    fake.shared.released.subscribe().wait_for(Option::is_some).await.unwrap();
    fake.shared.running.subscribe().wait_for(|running| *running == 0).await.unwrap();

    assert!(rig.runs.try_join_next().is_none(), "done has not fired");
    unblock.send(()).unwrap();
    rig.done().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn series_are_there_from_the_build_and_go_with_the_last_controller_of_the_name() {
    let mut rig = make().input(Mode::Required, Fake::new("fake", &["a"])).run(|_, _| pending());
    let metrics = rig.metrics.clone();
    let second = metrics.series(&"widgets".into());
    rig.running().await;
    sleep(Duration::from_secs(3)).await;
    let longest =
        "workqueue_longest_running_processor_seconds{name=\"widgets\",controller=\"widgets\"}";
    assert_eq!(rig.metric(longest).parse::<f64>().unwrap().round() as u32, 3);
    rig.stop(StopReason::Cancelled).await.unwrap();
    assert_eq!(rig.metric(longest), "0.0");
    let depth = "workqueue_depth{name=\"widgets\",controller=\"widgets\",priority=\"-100\"}";
    assert_eq!(rig.metric(depth), "0");
    let total = "controller_runtime_reconcile_total{controller=\"widgets\",result=\"success\"}";
    assert_eq!(rig.metric(total), "0", "seeded");

    drop(rig);
    assert!(exported(&metrics).contains("controller=\"widgets\""));
    drop(second);

    assert!(!exported(&metrics).contains("widgets"), "{}", exported(&metrics));
}
