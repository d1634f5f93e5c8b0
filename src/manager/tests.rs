//! The manager seen from outside, under paused time.

mod conditions;
#[cfg(feature = "tls")]
mod connections;
mod election;
mod ending;
mod fence;
mod groups;
mod panics;
mod races;
mod replacement;
mod restart;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{runtime::Handle, sync::Notify, task::JoinHandle, time::timeout};

use super::*;
use crate::guard::fixture::PanicsOnDrop;

/// Runnable whose condition and run the test controls.
struct Probe {
    verdict: watch::Sender<Verdict>,
    group: RunnableGroup,
    body: Body,
    log: Log,
    // Gate of `prepare`, and the number of calls of `unprepare`.
    prepared: Arc<Notify>,
    given_back: Arc<AtomicUsize>,
    gate: bool,
    preparing: Preparing,
    // Epoch of the last run.
    last: Arc<Mutex<Option<Epoch>>>,
}

/// Behaviour of `prepare`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preparing {
    Succeeds,
    Fails,
    PanicsWhenDropped,
}

type Log = Arc<Mutex<Vec<String>>>;

enum Body {
    UntilStopped,
    Fails,
    Panics,
    IgnoresStop,
    NeverRuns,
    /// Leaves a task that blocks its thread until it is released.
    LeavesATask(Arc<Mutex<std::sync::mpsc::Receiver<()>>>),
    Drains(Duration),
    /// Fails this time after its stop.
    FailsWhenStopped(Duration),
    /// Fails, and leaves a task for this time.
    FailsSlowly(Duration),
    PanicsWhenDropped,
}

fn met() -> Verdict {
    Verdict::Met(Vec::new())
}

fn unmet() -> Verdict {
    Verdict::Unmet(vec![UnmetRequirement {
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
            preparing: Preparing::Succeeds,
            last: Arc::default(),
        }
    }

    fn prepares_on_request(mut self) -> Self {
        self.gate = true;
        self
    }

    fn preparing(mut self, preparing: Preparing) -> Self {
        self.preparing = preparing;
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
        *self.last.lock().unwrap() = Some(epoch.clone());
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
            Body::PanicsWhenDropped => Box::pin(async {
                let _panics = PanicsOnDrop;
                std::future::pending().await
            }),
            Body::LeavesATask(blocked) => {
                let blocked = blocked.clone();
                epoch.spawn(async move {
                    blocked.lock().unwrap().recv().ok();
                });
                Box::pin(async move {
                    epoch.stopping().await;
                    Ok(())
                })
            }
            Body::FailsWhenStopped(after) => {
                let after = *after;
                Box::pin(async move {
                    epoch.stopping().await;
                    tokio::time::sleep(after).await;
                    Err("connection closed".into())
                })
            }
            Body::FailsSlowly(long) => {
                epoch.spawn(tokio::time::sleep(*long));
                Box::pin(async { Err("boom".into()) })
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
        let (gate, prepared, preparing) = (self.gate, self.prepared.clone(), self.preparing);
        Box::pin(async move {
            let _panics = (preparing == Preparing::PanicsWhenDropped).then(|| PanicsOnDrop);
            if gate {
                prepared.notified().await;
            }
            if preparing == Preparing::Fails {
                Err("nothing to prepare with".into())
            } else {
                Ok(())
            }
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

struct Harness {
    handle: ManagerHandle,
    stop: CancellationToken,
    transitions: broadcast::Receiver<Transition>,
    running: JoinHandle<Result<(), ManagerError>>,
}

impl Harness {
    #[expect(clippy::disallowed_methods, reason = "the harness awaits it in stop")]
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
    let mut harness = Harness::new();
    let probe = Probe::new(Body::UntilStopped).waiting().arc();
    harness.add("widgets", &probe).await;

    let waiting = harness.until("widgets", ControllerState::Waiting).await;
    assert_eq!((waiting.reason.as_str(), waiting.epoch), ("TypeAbsent", 0));

    for epoch in 1..=2 {
        probe.verdict.send_replace(met());
        assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, epoch);
        probe.verdict.send_replace(unmet());
        assert_eq!(harness.next_done().await, (epoch, DoneReason::TypeGone));
        harness.until("widgets", ControllerState::Waiting).await;
    }

    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn done_is_announced_once_for_each_epoch_and_epochs_alternate() {
    let harness = Harness::new();
    let mut transitions = harness.handle.transitions();
    let probe = Probe::new(Body::UntilStopped).arc();
    harness.add("widgets", &probe).await;
    for flap in 0..100 {
        probe.verdict.send_replace(if flap % 2 == 0 { unmet() } else { met() });
        tokio::task::yield_now().await;
    }
    harness.until("widgets", ControllerState::Running).await;
    harness.stop().await.unwrap();

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

    let harness = Harness::start(manager);
    harness.until("widgets", ControllerState::Running).await;
    harness.stop().await.unwrap();

    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_taken_while_live_and_free_after_removal() {
    let harness = Harness::new();
    let probe = Probe::new(Body::UntilStopped).arc();
    harness.add("widgets", &probe).await;

    let second = harness.handle.add("widgets", probe.clone(), RunnableOptions::default()).await;
    assert_eq!(second, Err(AddError::AlreadyThere("widgets".into())));

    harness.handle.remove("widgets").await;
    assert!(harness.handle.status_of("widgets").is_none());
    harness.add("widgets", &probe).await;
    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 2);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failing_and_a_panicking_run_back_off_and_disturb_no_other_run() {
    let mut harness = Harness::new();
    harness.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    harness.add("fails", &Probe::new(Body::Fails).arc()).await;
    let failed = harness.until("fails", ControllerState::BackingOff).await;
    assert_eq!((failed.reason.as_str(), failed.message.as_str()), ("RunFailed", "boom"));
    assert_eq!(harness.next_done().await, (1, DoneReason::Failed("boom".into())));
    harness.handle.remove("fails").await;

    harness.add("panics", &Probe::new(Body::Panics).arc()).await;
    let panicked = harness.until("panics", ControllerState::BackingOff).await;

    assert_eq!(panicked.last_error(), Some("boom"));
    assert_eq!(harness.until("well", ControllerState::Running).await.epoch, 1);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ignores_the_stop_is_dropped_after_its_grace() {
    let mut harness = Harness::new();
    let probe = Probe::new(Body::IgnoresStop).arc();
    harness.add("deaf", &probe).await;
    harness.until("deaf", ControllerState::Running).await;
    let begin = tokio::time::Instant::now();

    probe.verdict.send_replace(unmet());
    assert_eq!(harness.next_done().await, (1, DoneReason::TypeGone));

    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
    harness.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_does_not_end_holds_the_runnable_in_stopping_and_is_reported() {
    let mut harness = Harness::new();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let probe = Probe::new(Body::LeavesATask(Arc::new(Mutex::new(blocked)))).arc();
    let options =
        RunnableOptions { grace: Duration::from_millis(10), ..RunnableOptions::default() };
    harness.handle.add("stuck", probe.clone(), options).await.unwrap();
    harness.until("stuck", ControllerState::Running).await;

    probe.verdict.send_replace(unmet());
    harness.until("stuck", ControllerState::Stopping).await;
    probe.verdict.send_replace(met());
    let reached = |snapshot: &Arc<Snapshot>| snapshot.values().any(|status| status.stuck);
    let snapshot = harness.handle.watch().wait_for(reached).await.unwrap().clone();
    let status = &snapshot[&ControllerName::from("stuck")];
    assert_eq!((status.state, status.epoch), (ControllerState::Stopping, 1));
    assert_eq!(status.reason, "Stuck");
    assert!(status.message.ends_with("1 task"), "{}", status.message);
    // A failed check is a 503 of `/readyz`.
    let checks = harness.handle.readiness().results();
    let check = checks.into_iter().find(|it| it.name == "controller/stuck").unwrap();
    assert!(check.result.is_failed());
    assert_eq!(check.to_string(), "[-]controller/stuck Stopping Stuck");

    unblock.send(()).unwrap();
    assert_eq!(harness.next_done().await.0, 1);
    assert_eq!(harness.until("stuck", ControllerState::Running).await.epoch, 2);
    unblock.send(()).unwrap();
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_thousands_of_changes_is_published_in_few_snapshots() {
    const MANY: usize = 5000;
    let mut manager = Manager::new(ManagerOptions::default());
    let verdict = watch::Sender::new(unmet());
    for number in 0..MANY {
        let probe = Probe { verdict: verdict.clone(), ..Probe::new(Body::UntilStopped) };
        manager.add(format!("c{number}"), probe.arc(), RunnableOptions::default()).unwrap();
    }
    let harness = Harness::start(manager);
    let mut snapshots = harness.handle.watch();
    drop(snapshots.wait_for(|snapshot| snapshot.len() == MANY).await.unwrap());

    // A reader that keeps each snapshot, as the status of declared controllers does.
    verdict.send_replace(met());
    let (mut held, mut changes, mut published) = (snapshots.borrow_and_update().clone(), 0, 0);
    while held.values().any(|status| status.state != ControllerState::Running) {
        snapshots.changed().await.unwrap();
        let now = snapshots.borrow_and_update().clone();
        changes += now.changed_since(&held).count();
        published += 1;
        held = now;
    }

    assert!(changes >= MANY);
    assert!(published < MANY / 10, "{published} snapshots for {changes} changes");
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_panics_when_it_is_dropped_ends_no_other_run() {
    let mut harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::PanicsWhenDropped).arc()).await;
    harness.until("widgets", ControllerState::Running).await;
    harness.add("others", &Probe::new(Body::UntilStopped).arc()).await;
    harness.until("others", ControllerState::Running).await;

    harness.handle.remove("widgets").await;

    harness.add("more", &Probe::new(Body::UntilStopped).arc()).await;
    assert_eq!(harness.next_done().await, (1, DoneReason::Cancelled));
    assert_eq!(harness.handle.status_of("others").unwrap().epoch, 1);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn back_offs_beyond_the_clock_end_no_run() {
    let forever = Duration::MAX;
    let restart_backoff = RestartBackoff {
        first: forever,
        longest: forever,
        healthy: forever,
        flaps: 0,
        flap_interval: forever,
    };
    let manager = Manager::new(ManagerOptions { restart_backoff, ..Default::default() });
    let harness = Harness::start(manager);

    harness.add("fails", &Probe::new(Body::Fails).arc()).await;
    harness.until("fails", ControllerState::BackingOff).await;
    let flaps = Probe::new(Body::UntilStopped).arc();
    harness.add("flaps", &flaps).await;
    harness.until("flaps", ControllerState::Running).await;
    flaps.verdict.send_replace(unmet());
    harness.until("flaps", ControllerState::Waiting).await;
    flaps.verdict.send_replace(met());
    harness.until("flaps", ControllerState::BackingOff).await;

    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    harness.until("fails", ControllerState::BackingOff).await;
    harness.until("flaps", ControllerState::BackingOff).await;
    harness.stop().await.unwrap();
}
