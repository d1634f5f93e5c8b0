mod named;
mod reconciles;
mod slots;
mod sources;
mod stopping;
mod triggers;

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
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
        ChannelSource, Cluster, ClusterOptions, ConditionalSource, Controller, ControllerMetrics,
        Handler, LOW_PRIORITY, Outcome, ReconcileError, SourceContext, SourceEnd, SourceStart,
        inputs::{
            input::{Input, InputSource},
            state::NamedInputs,
        },
        queue::QueueOptions,
        slots::WorkerBound,
        source::mapping::SourceHandlers,
        unconfirmed::UnconfirmedWrites,
    },
    guard::GuardedDrop,
    manager::{
        ControllerName, ControllerState, Manager, ManagerError, ManagerOptions, Readiness,
        Runnable, RunnableGroup, RunnableOptions, StopReason, UnmetRequirement, Verdict,
    },
};

/// Source that the test drives step by step.
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
        let unmet = UnmetRequirement { reason: "TypeAbsent".into(), message, type_ref: None };
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

/// Log of reconciles, in order.
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

    /// Returns attempt and time of each reconcile, in milliseconds since the harness was built.
    fn attempts(&self) -> Vec<(u32, u64)> {
        self.0.lock().unwrap().iter().map(|(_, attempt, millis)| (*attempt, *millis)).collect()
    }
}

/// Controller of fake sources, with one run of it.
struct Harness {
    controller: Controller,
    unconfirmed: Arc<UnconfirmedWrites>,
    metrics: ControllerMetrics,
    runs: JoinSet<Result<(), String>>,
    epoch: Epoch,
    start: Instant,
}

const GRACE: Duration = Duration::from_secs(5);

struct Make {
    inputs: Vec<Input>,
    workers: usize,
    most_running: usize,
    reconcile_timeout: Option<Duration>,
    client: Client,
}

fn make() -> Make {
    Make {
        inputs: Vec::new(),
        workers: 1,
        most_running: 0,
        reconcile_timeout: None,
        client: client(async || {}),
    }
}

impl Make {
    fn input(mut self, mode: InputMode, source: impl ConditionalSource) -> Self {
        self.inputs.push(Input {
            source: InputSource::Other(
                GuardedDrop::new(Arc::new(source)),
                Arc::new(SourceHandlers::new(Handler::Object)),
            ),
            mode,
            conditions: Vec::new(),
            part_of: None,
        });
        self
    }

    fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    fn most_running(self, most_running: usize) -> Self {
        Self { most_running, ..self }
    }

    fn run<R>(self, reconcile: impl Fn(Request, Context) -> R + Send + Sync + 'static) -> Harness
    where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let metrics = ControllerMetrics::default();
        let spec = self.spec(&metrics, reconcile);
        let mut harness = Harness {
            unconfirmed: Arc::clone(&spec.unconfirmed),
            controller: Controller::new(spec, RunnableGroup::LeaderElection, true),
            metrics,
            runs: JoinSet::new(),
            epoch: Epoch::new("widgets", 0, GRACE),
            start: Instant::now(),
        };
        harness.start();
        harness
    }

    fn controller<R>(
        self,
        reconcile: impl Fn(Request, Context) -> R + Send + Sync + 'static,
    ) -> Controller
    where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let spec = self.spec(&ControllerMetrics::default(), reconcile);
        Controller::new(spec, RunnableGroup::LeaderElection, true)
    }

    fn spec<R>(
        self,
        metrics: &ControllerMetrics,
        reconcile: impl Fn(Request, Context) -> R + Send + Sync + 'static,
    ) -> Spec
    where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let name = ControllerName::from("widgets");
        let (cluster, _runnable) = Cluster::new(self.client.clone(), ClusterOptions::default());
        Spec {
            named: NamedInputs::new(name.clone(), cluster, Arc::default(), Vec::new()),
            client: self.client,
            inputs: self.inputs,
            primaries: Arc::default(),
            reconcile: Arc::new(move |request, context| reconcile(request, context).boxed()),
            workers: WorkerBound::new(self.workers, self.most_running),
            is_running: AtomicBool::new(false),
            running_queue: parking_lot::Mutex::default(),
            running: parking_lot::Mutex::default(),
            reconcile_timeout: self.reconcile_timeout,
            works_on_standby: false,
            sync_timeout: Duration::from_secs(120),
            queue: QueueOptions::default(),
            limiter: None,
            recovers_panics: true,
            conditions: Vec::new(),
            series: metrics.series(&name),
            unconfirmed: Arc::default(),
            name,
        }
    }
}

impl Harness {
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

    /// Returns the exported value of a series.
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

/// Returns a client whose server responds when `answer` resolves.
fn client<F>(response: impl Fn() -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = ()> + Send + 'static,
{
    let response = Arc::new(response);
    let service = service_fn(move |_request: HttpRequest<Body>| {
        let response = Arc::clone(&response);
        async move {
            response().await;
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
    Request::namespaced("ns", name)
}

fn ok() -> Result<Outcome, ReconcileError> {
    Ok(Outcome::Done)
}

fn failed() -> Result<Outcome, ReconcileError> {
    Err("no luck".into())
}

async fn run_until_idle() {
    // With paused time, a sleep ends only when nothing else can run.
    sleep(Duration::from_micros(1)).await;
}

#[tokio::test(start_paused = true)]
async fn workers_start_when_everything_that_existed_is_in_the_queue() {
    let slow = Fake::new("slow", &["c"]).unsynced();
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make()
        .input(InputMode::Required, Fake::new("fast", &["a", "b"]))
        .input(InputMode::Plain, slow.clone())
        .run(move |request, context| {
            notes.note(&request, &context, start);
            async { ok() }
        });
    run_until_idle().await;
    assert!(log.names().is_empty());
    assert!(!harness.report().running);
    assert_eq!(
        harness
            .metric("workqueue_depth{name=\"widgets\",controller=\"widgets\",priority=\"-100\"}"),
        "2"
    );

    slow.shared.synced.send_replace(true);
    harness.running().await;
    run_until_idle().await;

    assert_eq!(log.names(), ["ns/a", "ns/b", "ns/c"]);
    harness.stop(StopReason::Cancelled).await.unwrap();
}

struct PanicsOnDrop;

impl ConditionalSource for PanicsOnDrop {
    fn ready(&self) -> Readiness {
        crate::manager::always()
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        panic!("tick tock")
    }

    fn name(&self) -> String {
        "panics_on_drop".to_owned()
    }
}

/// Stops an epoch with a delayed, a ready and a running request, and starts the next one.
async fn stopped_with_work_left(
    reason: StopReason,
    source: impl ConditionalSource,
) -> (Harness, Log) {
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make().input(InputMode::Plain, source).run(move |request, context| {
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
    harness.running().await;
    run_until_idle().await;
    assert_eq!(log.names(), ["ns/delayed", "ns/failed", "ns/stuck"]);
    harness.stop(reason).await.unwrap();
    harness.start();
    harness.running().await;
    sleep(Duration::from_secs(120)).await;
    (harness, log)
}

const WORK: [&str; 4] = ["delayed", "failed", "stuck", "ready"];

#[tokio::test(start_paused = true)]
async fn each_epoch_begins_with_an_empty_queue() {
    for reason in [StopReason::TypeGone, StopReason::Superseded] {
        let source = Fake::new("fake", &WORK);
        let (mut harness, log) = stopped_with_work_left(reason, source).await;

        let (names, attempts) = (log.names(), log.attempts());
        assert_eq!(names[3..], ["ns/delayed", "ns/failed", "ns/stuck", "ns/ready"], "in its order");
        assert!(attempts[3..].iter().all(|(failures, at)| *failures == 0 && *at < 5_100));
        harness.stop(StopReason::Cancelled).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn controller_can_be_started_again_and_again() {
    let fake = Fake::new("fake", &["a", "b"]);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness =
        make().input(InputMode::Required, fake.clone()).run(move |request, context| {
            notes.note(&request, &context, start);
            async { ok() }
        });
    for epoch in 1..=10 {
        harness.running().await;
        run_until_idle().await;
        harness.stop(StopReason::TypeGone).await.unwrap();

        assert_eq!((fake.starts(), fake.running()), (epoch, 0));
        assert_eq!(log.names().len(), epoch * 2);
        harness.start();
    }
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_sent_while_no_epoch_runs_wait_for_the_next_one() {
    let (sender, channel) = ChannelSource::new(8);
    let log = Log::default();
    let (notes, start) = (log.clone(), Instant::now());
    let mut harness = make().input(InputMode::Plain, channel).run(move |request, context| {
        notes.note(&request, &context, start);
        async { ok() }
    });
    harness.running().await;
    harness.stop(StopReason::Cancelled).await.unwrap();
    sender.send(key("a")).await.unwrap();

    harness.start();
    harness.running().await;
    drop(sender);
    run_until_idle().await;

    assert_eq!(log.names(), ["ns/a"]);
    assert_eq!(harness.runs.len(), 1, "a closed channel ends no run");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn series_are_there_from_the_build_and_go_with_the_last_controller_of_the_name() {
    let mut harness =
        make().input(InputMode::Required, Fake::new("fake", &["a"])).run(|_, _| pending());
    let metrics = harness.metrics.clone();
    let second = metrics.series(&"widgets".into());
    harness.running().await;
    sleep(Duration::from_secs(3)).await;
    let longest =
        "workqueue_longest_running_processor_seconds{name=\"widgets\",controller=\"widgets\"}";
    assert_eq!(harness.metric(longest).parse::<f64>().unwrap().round() as u32, 3);
    harness.stop(StopReason::Cancelled).await.unwrap();
    assert_eq!(harness.metric(longest), "0.0");
    let depth = "workqueue_depth{name=\"widgets\",controller=\"widgets\",priority=\"-100\"}";
    assert_eq!(harness.metric(depth), "0");
    let total = "controller_runtime_reconcile_total{controller=\"widgets\",result=\"success\"}";
    assert_eq!(harness.metric(total), "0", "seeded");

    drop(harness);
    assert!(exported(&metrics).contains("controller=\"widgets\""));
    drop(second);

    assert!(!exported(&metrics).contains("widgets"), "{}", exported(&metrics));
}
