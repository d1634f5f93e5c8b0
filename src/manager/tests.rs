//! The manager seen from outside, under paused time.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use futures::future::BoxFuture;
use tokio::{runtime::Handle, sync::Notify, task::JoinHandle, time::timeout};

use super::*;

/// A runnable whose condition and run the test holds in its hands.
struct Probe {
    verdict: watch::Sender<Verdict>,
    group: RunnableGroup,
    body: Body,
    log: Log,
    // What `prepare` waits for, and how often it was given back.
    prepared: Arc<Notify>,
    given_back: Arc<AtomicUsize>,
    gate: bool,
}

type Log = Arc<Mutex<Vec<String>>>;

enum Body {
    UntilStopped,
    Fails,
    Panics,
    IgnoresStop,
    NeverRuns,
    LeavesATask(Arc<Notify>),
    Drains(Duration),
}

fn met() -> Verdict {
    Verdict::Met(Vec::new())
}

fn unmet() -> Verdict {
    Verdict::Unmet(vec![Unmet {
        reason: "TypeAbsent".into(),
        message: "widgets.example.com/v1 is not installed".into(),
        type_ref: None,
    }])
}

impl Probe {
    fn new(body: Body) -> Self {
        Self {
            verdict: watch::Sender::new(met()),
            group: RunnableGroup::LeaderElection,
            body,
            log: Log::default(),
            prepared: Arc::default(),
            given_back: Arc::default(),
            gate: false,
        }
    }

    fn prepares_when_told(mut self) -> Self {
        self.gate = true;
        self
    }

    fn waiting(self) -> Self {
        self.verdict.send_replace(unmet());
        self
    }

    fn group(mut self, group: RunnableGroup, log: &Log) -> Self {
        self.group = group;
        self.log = log.clone();
        self
    }

    fn arc(self) -> Arc<Self> {
        Arc::new(self)
    }
}

impl Runnable for Probe {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let log = self.log.clone();
        let group = self.group;
        log.lock().unwrap().push(format!("start {group:?}"));
        let ended = move || log.lock().unwrap().push(format!("end {group:?}"));
        match &self.body {
            Body::UntilStopped | Body::NeverRuns => Box::pin(async move {
                epoch.stopping().await;
                ended();
                Ok(())
            }),
            Body::Fails => Box::pin(async { Err("boom".into()) }),
            Body::Panics => Box::pin(async { panic!("boom") }),
            Body::IgnoresStop => Box::pin(std::future::pending()),
            Body::LeavesATask(release) => {
                let release = release.clone();
                epoch.tasks().spawn(async move { release.notified().await });
                Box::pin(async move {
                    epoch.stopping().await;
                    Ok(())
                })
            }
            Body::Drains(long) => {
                let long = *long;
                Box::pin(async move {
                    epoch.stopping().await;
                    tokio::time::sleep(long).await;
                    ended();
                    Ok(())
                })
            }
        }
    }

    fn group(&self) -> RunnableGroup {
        self.group
    }

    fn reports_running(&self) -> bool {
        matches!(self.body, Body::NeverRuns)
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        let (gate, prepared) = (self.gate, self.prepared.clone());
        Box::pin(async move {
            if gate {
                prepared.notified().await;
            }
            Ok(())
        })
    }

    fn unprepare(&self) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
    }
}

impl ConditionalRunnable for Probe {
    fn ready(&self) -> Readiness {
        Readiness::published(self.verdict.subscribe())
    }
}

struct Rig {
    handle: ManagerHandle,
    stop: CancellationToken,
    transitions: broadcast::Receiver<Transition>,
    running: JoinHandle<Result<(), ManagerError>>,
}

impl Rig {
    #[expect(clippy::disallowed_methods, reason = "the rig awaits it in stop")]
    fn start(manager: Manager) -> Self {
        let (handle, stop) = (manager.handle(), CancellationToken::new());
        let transitions = handle.transitions();
        let running = tokio::spawn(manager.run(stop.clone()));
        Self { handle, stop, transitions, running }
    }

    fn new() -> Self {
        Self::start(Manager::new(ManagerOptions::default()))
    }

    async fn add(&self, name: &str, probe: &Arc<Probe>) {
        self.handle.add(name, probe.clone(), RunnableOptions::default()).await.unwrap();
    }

    async fn until(&self, name: &str, state: ControllerState) -> Arc<RunnableStatus> {
        let reached = |snapshot: &Arc<Snapshot>| {
            snapshot.get(&ControllerName::from(name)).is_some_and(|status| status.state == state)
        };
        let mut watch = self.handle.watch();
        let snapshot = timeout(Duration::from_secs(3600), watch.wait_for(reached))
            .await
            .unwrap_or_else(|_| panic!("{name} never got {state:?}: {:?}", self.handle.status()))
            .unwrap();
        snapshot[&ControllerName::from(name)].clone()
    }

    async fn next_done(&mut self) -> (u64, DoneReason) {
        loop {
            let transition = self.transitions.recv().await.unwrap();
            if let TransitionKind::Done(reason) = transition.kind {
                return (transition.epoch, reason);
            }
        }
    }

    async fn stop(self) -> Result<(), ManagerError> {
        self.stop.cancel();
        self.running.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_runnable_waits_runs_stops_and_runs_again_with_its_condition() {
    let mut rig = Rig::new();
    let probe = Probe::new(Body::UntilStopped).waiting().arc();
    rig.add("widgets", &probe).await;

    let waiting = rig.until("widgets", ControllerState::Waiting).await;
    assert_eq!((waiting.reason.as_str(), waiting.epoch), ("TypeAbsent", 0));

    for epoch in 1..=2 {
        probe.verdict.send_replace(met());
        assert_eq!(rig.until("widgets", ControllerState::Running).await.epoch, epoch);
        probe.verdict.send_replace(unmet());
        assert_eq!(rig.next_done().await, (epoch, DoneReason::TypeGone));
        rig.until("widgets", ControllerState::Waiting).await;
    }

    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn done_is_announced_once_for_each_epoch_and_epochs_alternate() {
    let rig = Rig::new();
    let mut transitions = rig.handle.transitions();
    let probe = Probe::new(Body::UntilStopped).arc();
    rig.add("widgets", &probe).await;
    for flap in 0..100 {
        probe.verdict.send_replace(if flap % 2 == 0 { unmet() } else { met() });
        tokio::task::yield_now().await;
    }
    rig.until("widgets", ControllerState::Running).await;
    rig.stop().await.unwrap();

    let (mut live, mut epochs) = (None, 0);
    while let Ok(transition) = transitions.recv().await {
        match transition.kind {
            TransitionKind::Entered(ControllerState::Starting) => {
                assert_eq!(live, None);
                epochs += 1;
                assert_eq!(transition.epoch, epochs);
                live = Some(transition.epoch);
            }
            TransitionKind::Done(_) => assert_eq!(live.take(), Some(transition.epoch)),
            TransitionKind::Entered(_) | TransitionKind::Removed => {}
        }
    }
    assert_eq!(live, None);
    assert!(epochs > 1);
}

#[tokio::test(start_paused = true)]
async fn constructing_spawns_nothing_and_stopping_leaves_nothing() {
    let before = Handle::current().metrics().num_alive_tasks();
    let mut manager = Manager::new(ManagerOptions::default());
    let probe = Probe::new(Body::UntilStopped).arc();
    manager.add("widgets", probe.clone(), RunnableOptions::default()).unwrap();
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);

    let rig = Rig::start(manager);
    rig.until("widgets", ControllerState::Running).await;
    rig.stop().await.unwrap();

    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_taken_while_live_and_free_after_removal() {
    let rig = Rig::new();
    let probe = Probe::new(Body::UntilStopped).arc();
    rig.add("widgets", &probe).await;

    let second = rig.handle.add("widgets", probe.clone(), RunnableOptions::default()).await;
    assert_eq!(second, Err(AddError::AlreadyThere("widgets".into())));

    rig.handle.remove("widgets").await;
    assert!(rig.handle.status_of("widgets").is_none());
    rig.add("widgets", &probe).await;
    assert_eq!(rig.until("widgets", ControllerState::Running).await.epoch, 2);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failing_and_a_panicking_run_back_off_and_disturb_nobody() {
    let mut rig = Rig::new();
    rig.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    rig.add("fails", &Probe::new(Body::Fails).arc()).await;
    let failed = rig.until("fails", ControllerState::BackingOff).await;
    assert_eq!((failed.reason.as_str(), failed.message.as_str()), ("RunFailed", "boom"));
    assert_eq!(rig.next_done().await, (1, DoneReason::Failed("boom".into())));
    rig.handle.remove("fails").await;

    rig.add("panics", &Probe::new(Body::Panics).arc()).await;
    let panicked = rig.until("panics", ControllerState::BackingOff).await;

    assert_eq!(panicked.last_error(), Some("boom"));
    assert_eq!(rig.until("well", ControllerState::Running).await.epoch, 1);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ignores_the_stop_is_dropped_after_its_grace() {
    let mut rig = Rig::new();
    let probe = Probe::new(Body::IgnoresStop).arc();
    rig.add("deaf", &probe).await;
    rig.until("deaf", ControllerState::Running).await;
    let begin = tokio::time::Instant::now();

    probe.verdict.send_replace(unmet());
    assert_eq!(rig.next_done().await, (1, DoneReason::TypeGone));

    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_holds_the_runnable_in_stopping_and_is_reported() {
    let mut rig = Rig::new();
    let release = Arc::new(Notify::new());
    let probe = Probe::new(Body::LeavesATask(release.clone())).arc();
    rig.add("stuck", &probe).await;
    rig.until("stuck", ControllerState::Running).await;

    probe.verdict.send_replace(unmet());
    rig.until("stuck", ControllerState::Stopping).await;
    probe.verdict.send_replace(met());
    let reached = |snapshot: &Arc<Snapshot>| snapshot.values().any(|status| status.stuck);
    let snapshot = rig.handle.watch().wait_for(reached).await.unwrap().clone();
    let status = &snapshot[&ControllerName::from("stuck")];
    assert_eq!((status.state, status.epoch), (ControllerState::Stopping, 1));
    assert_eq!(status.reason, "Stuck");

    release.notify_one();
    assert_eq!(rig.next_done().await.0, 1);
    release.notify_one();
    assert_eq!(rig.until("stuck", ControllerState::Running).await.epoch, 2);
    release.notify_one();
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_takes_over_only_once_it_can_run() {
    let mut rig = Rig::new();
    let old = Probe::new(Body::UntilStopped).arc();
    rig.add("widgets", &old).await;
    rig.until("widgets", ControllerState::Running).await;

    let new = Probe::new(Body::UntilStopped).waiting().arc();
    rig.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();
    let reached = |snapshot: &Arc<Snapshot>| snapshot.values().any(|s| s.pending.is_some());
    let snapshot = rig.handle.watch().wait_for(reached).await.unwrap().clone();
    let status = &snapshot[&ControllerName::from("widgets")];
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    assert_eq!(status.pending.as_deref(), Some("widgets.example.com/v1 is not installed"));

    new.verdict.send_replace(met());
    assert_eq!(rig.next_done().await, (1, DoneReason::Superseded));
    let status = rig.until("widgets", ControllerState::Running).await;
    assert_eq!((status.epoch, status.pending.clone()), (2, None));

    // The old specification's condition concerns nobody any more.
    old.verdict.send_replace(unmet());
    new.verdict.send_replace(unmet());
    assert_eq!(rig.next_done().await, (2, DoneReason::TypeGone));
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_waits_is_called_off_without_a_restart() {
    let rig = Rig::new();
    let old = Probe::new(Body::UntilStopped).arc();
    rig.add("widgets", &old).await;
    rig.until("widgets", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped).waiting().arc();
    rig.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();
    let mut snapshots = rig.handle.watch();
    let waits = |snapshot: &Arc<Snapshot>| snapshot.values().any(|s| s.pending.is_some());
    drop(snapshots.wait_for(waits).await.unwrap());

    rig.handle.replace("widgets", old, RunnableOptions::default()).await.unwrap();

    drop(snapshots.wait_for(|snapshot| !waits(snapshot)).await.unwrap());
    new.verdict.send_replace(met());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.until("widgets", ControllerState::Running).await.epoch, 1);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_what_does_not_run_takes_over_at_once() {
    let rig = Rig::new();
    rig.add("widgets", &Probe::new(Body::UntilStopped).waiting().arc()).await;

    let new = Probe::new(Body::UntilStopped).arc();
    rig.handle.replace("widgets", new, RunnableOptions::default()).await.unwrap();

    assert_eq!(rig.until("widgets", ControllerState::Running).await.epoch, 1);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn groups_start_in_order_and_stop_in_reverse() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    for group in [
        RunnableGroup::LeaderElection,
        RunnableGroup::Others,
        RunnableGroup::Caches,
        RunnableGroup::HttpServers,
        RunnableGroup::Webhooks,
    ] {
        let probe = Probe::new(Body::Drains(Duration::from_secs(1))).group(group, &log).arc();
        manager.add(format!("{group:?}"), probe, RunnableOptions::default()).unwrap();
    }

    let rig = Rig::start(manager);
    rig.until("LeaderElection", ControllerState::Running).await;
    tokio::task::yield_now().await;
    rig.stop().await.unwrap();

    assert_eq!(
        *log.lock().unwrap(),
        [
            "start HttpServers",
            "start Webhooks",
            "start Caches",
            "start Others",
            "start LeaderElection",
            "end Others",
            "end LeaderElection",
            "end Caches",
            "end Webhooks",
            "end HttpServers",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_fail_fast_runnable_ends_the_manager_with_its_error() {
    let mut manager = Manager::new(ManagerOptions::default());
    let probe = Probe::new(Body::Fails).arc();
    manager.add("server", probe, RunnableOptions::fail_fast()).unwrap();

    let error = manager.run(CancellationToken::new()).await.unwrap_err();

    assert_eq!(error.to_string(), "server failed: boom");
}

#[tokio::test(start_paused = true)]
async fn the_late_are_named_when_the_patience_is_over() {
    let options = ManagerOptions {
        graceful_shutdown_timeout: Some(Duration::from_secs(1)),
        ..ManagerOptions::default()
    };
    let rig = Rig::start(Manager::new(options));
    rig.add("deaf", &Probe::new(Body::IgnoresStop).arc()).await;
    rig.until("deaf", ControllerState::Running).await;

    let error = rig.stop().await.unwrap_err();

    assert_eq!(error.to_string(), "not stopped in time: deaf");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_added_once_the_manager_stops() {
    let rig = Rig::new();
    let deaf = Probe::new(Body::Drains(Duration::from_secs(3))).arc();
    rig.add("slow", &deaf).await;
    rig.until("slow", ControllerState::Running).await;
    rig.stop.cancel();
    rig.until("slow", ControllerState::Stopping).await;

    let late = rig.handle.add("late", deaf.clone(), RunnableOptions::default()).await;

    assert_eq!(late, Err(AddError::Stopping));
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_passes_the_fence_of_an_epoch_that_is_done() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty())) }
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let client = epoch.client(&kube::Client::new(service, "default"));
    let request = || http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
    client.send(request()).await.unwrap();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    let refused = client.send(request()).await.unwrap_err();
    assert!(refused.to_string().contains("the epoch is over"), "{refused}");
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    assert_eq!(epoch.fence().under_way(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replacement_whose_condition_is_lost_while_it_prepares_leaves_the_old_one_running() {
    let mut rig = Rig::new();
    rig.add("widgets", &Probe::new(Body::UntilStopped).arc()).await;
    rig.until("widgets", ControllerState::Running).await;
    let new = Probe::new(Body::UntilStopped).prepares_when_told().arc();
    rig.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();

    new.verdict.send_replace(unmet());
    let says = |snapshot: &Arc<Snapshot>| {
        let pending = snapshot.values().find_map(|status| status.pending.clone());
        pending.is_some_and(|why| why.contains("not installed"))
    };
    rig.handle.watch().wait_for(says).await.unwrap();
    new.prepared.notify_one();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let status = rig.until("widgets", ControllerState::Running).await;
    assert_eq!((status.epoch, new.given_back.load(Ordering::Relaxed)), (1, 1));

    new.prepared.notify_one();
    new.verdict.send_replace(met());
    assert_eq!(rig.next_done().await, (1, DoneReason::Superseded));
    assert_eq!(rig.until("widgets", ControllerState::Running).await.epoch, 2);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_returns_while_its_replacement_cannot_start() {
    let rig = Rig::new();
    rig.add("widgets", &Probe::new(Body::Fails).arc()).await;
    rig.until("widgets", ControllerState::BackingOff).await;

    let new = Probe::new(Body::UntilStopped).waiting().arc();
    rig.handle.replace("widgets", new.clone(), RunnableOptions::default()).await.unwrap();
    let again = |snapshot: &Arc<Snapshot>| snapshot.values().any(|status| status.epoch == 2);
    rig.handle.watch().wait_for(again).await.unwrap();

    new.verdict.send_replace(met());
    let status = rig.until("widgets", ControllerState::Running).await;
    assert_eq!((status.pending.clone(), status.failures), (None, 0));
    rig.stop().await.unwrap();
}

/// A condition that panics.
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
    let rig = Rig::new();
    rig.add("well", &Probe::new(Body::UntilStopped).arc()).await;

    rig.handle.add("broken", Arc::new(Broken), RunnableOptions::default()).await.unwrap();

    let broken = rig.until("broken", ControllerState::Waiting).await;
    assert_eq!(broken.reason, "ConditionPanicked");
    assert!(broken.message.contains("no condition"), "{}", broken.message);
    rig.until("well", ControllerState::Running).await;
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_never_comes_up_holds_up_no_later_group() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    let slow = Probe::new(Body::NeverRuns).group(RunnableGroup::Others, &log).arc();
    manager.add("slow", slow, RunnableOptions::default()).unwrap();
    manager.add("last", Probe::new(Body::UntilStopped).arc(), RunnableOptions::default()).unwrap();

    let rig = Rig::start(manager);

    rig.until("last", ControllerState::Running).await;
    assert_eq!(rig.handle.status_of("slow").unwrap().state, ControllerState::Starting);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_left_behind_sends_nothing_more() {
    let epoch = Arc::new(Mutex::new(None));
    let options = ManagerOptions {
        graceful_shutdown_timeout: Some(Duration::from_secs(1)),
        ..ManagerOptions::default()
    };
    struct Keeps(Arc<Mutex<Option<Epoch>>>);
    impl Runnable for Keeps {
        fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
            *self.0.lock().unwrap() = Some(epoch);
            Box::pin(std::future::pending())
        }
    }
    let mut manager = Manager::new(options);
    let keeps = Arc::new(Keeps(epoch.clone()));
    manager.add_runnable("late", keeps, RunnableOptions::default()).unwrap();
    let rig = Rig::start(manager);
    rig.until("late", ControllerState::Running).await;

    rig.stop().await.unwrap_err();

    let epoch = epoch.lock().unwrap().take().unwrap();
    assert!(epoch.fence().pass().is_err());
}

#[test]
fn a_request_that_nobody_waited_for_is_counted_as_unknown() {
    let fence = Fence::new();

    fence.pass().unwrap().answered();
    drop(fence.pass().unwrap());

    assert_eq!((fence.under_way(), fence.unknown()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_thousands_costs_as_much_as_changes() {
    const MANY: usize = 5000;
    let mut manager = Manager::new(ManagerOptions::default());
    let verdict = watch::Sender::new(unmet());
    for number in 0..MANY {
        let probe = Probe { verdict: verdict.clone(), ..Probe::new(Body::UntilStopped) };
        manager.add(format!("c{number}"), probe.arc(), RunnableOptions::default()).unwrap();
    }
    let rig = Rig::start(manager);
    let mut snapshots = rig.handle.watch();
    drop(snapshots.wait_for(|snapshot| snapshot.len() == MANY).await.unwrap());
    let before = snapshot::tests::COPIES.get();

    // A reader that holds on to each snapshot, as the status of declared controllers does.
    verdict.send_replace(met());
    let (mut held, mut changes) = (snapshots.borrow_and_update().clone(), 0);
    while held.values().any(|status| status.state != ControllerState::Running) {
        snapshots.changed().await.unwrap();
        let now = snapshots.borrow_and_update().clone();
        changes += now.changed_since(&held).len();
        held = now;
    }

    let copies = snapshot::tests::COPIES.get() - before;
    assert!(changes >= MANY);
    assert!(copies < MANY * 40, "{copies} copies for {changes} changes");
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_a_group_that_is_open_starts_though_its_own_was_not() {
    let log = Log::default();
    let mut manager = Manager::new(ManagerOptions::default());
    let cache = Probe::new(Body::NeverRuns).group(RunnableGroup::Caches, &log).arc();
    manager.add("cache", cache, RunnableOptions::default()).unwrap();
    manager
        .add("widgets", Probe::new(Body::UntilStopped).arc(), RunnableOptions::default())
        .unwrap();
    let rig = Rig::start(manager);
    rig.until("cache", ControllerState::Starting).await;

    let early = Probe::new(Body::UntilStopped).group(RunnableGroup::HttpServers, &log).arc();
    rig.handle.replace("widgets", early, RunnableOptions::default()).await.unwrap();

    rig.until("widgets", ControllerState::Running).await;
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_flaps_a_thousand_times_starts_its_own_runnable_less_often() {
    let rig = Rig::new();
    rig.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    let probe = Probe::new(Body::UntilStopped).arc();
    rig.add("flaps", &probe).await;
    let begin = tokio::time::Instant::now();

    let mut spread = None;
    for _ in 0..1000 {
        probe.verdict.send_replace(unmet());
        rig.handle
            .watch()
            .wait_for(|it| it[&"flaps".into()].state != ControllerState::Running)
            .await
            .unwrap();
        probe.verdict.send_replace(met());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let status = rig.handle.status_of("flaps").unwrap();
        if status.state == ControllerState::BackingOff {
            spread = Some(status);
        }
    }

    let spread = spread.expect("it backs off");
    assert_eq!((spread.reason.as_str(), spread.failures), ("ConditionFlaps", 0));
    let epoch = rig.until("flaps", ControllerState::Running).await.epoch;
    let seconds = begin.elapsed().as_secs();
    assert!(epoch <= 252 + seconds, "{epoch} epochs in {seconds} s");
    assert_eq!(rig.until("well", ControllerState::Running).await.epoch, 1);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_says_nothing_is_told_from_one_whose_publisher_is_gone() {
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
    let rig = Rig::new();
    rig.handle.add("silent", silent.clone(), RunnableOptions::default()).await.unwrap();
    rig.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let status = rig.handle.status_of("silent").unwrap();
    assert_eq!(status.reason, "ConditionUnknown");
    assert_eq!(status.message, "its condition has not said anything");

    drop(silent.0.lock().unwrap().take());
    let gone = |it: &Arc<Snapshot>| it[&"silent".into()].reason == "ConditionAbandoned";
    drop(rig.handle.watch().wait_for(gone).await.unwrap());

    rig.until("well", ControllerState::Running).await;
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_an_epochs_clients_have_ended_when_it_is_done() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
    });
    let client = kube::Client::new(service, "default");
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));

    let (inside, outside) = (epoch.clone(), client.clone());
    let work = async move {
        for _ in 0..3 {
            let client = inside.client(&outside);
            let request = http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
            client.send(request).await.unwrap();
        }
        Ok(())
    };
    run::drive(epoch.clone(), Box::pin(work), run::Overrun::Dropped).await;

    assert_eq!(alive(), before);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_kept_beyond_the_run_delays_done_by_no_more_than_a_moment() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let kept = epoch.client(&kube::Client::new(service, "default"));
    let begin = tokio::time::Instant::now();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    assert!(begin.elapsed() < Duration::from_millis(200));
    drop(kept);
}
