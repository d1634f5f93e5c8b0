//! The manager seen from outside, under paused time.

mod conditions;
mod ending;
mod fence;
mod groups;
mod panics;
mod replacement;

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
    preparing: Preparing,
}

/// What `prepare` comes to.
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
    /// A task that blocks its thread until it is released.
    LeavesATask(Arc<Mutex<std::sync::mpsc::Receiver<()>>>),
    Drains(Duration),
    PanicsWhenDropped,
}

/// Somebody's value that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("boom")
    }
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
            preparing: Preparing::Succeeds,
        }
    }

    fn prepares_when_told(mut self) -> Self {
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
                let _bomb = Bomb;
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
            let _bomb = (preparing == Preparing::PanicsWhenDropped).then(|| Bomb);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_does_not_end_holds_the_runnable_in_stopping_and_is_reported() {
    let mut rig = Rig::new();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let probe = Probe::new(Body::LeavesATask(Arc::new(Mutex::new(blocked)))).arc();
    let options =
        RunnableOptions { grace: Duration::from_millis(10), ..RunnableOptions::default() };
    rig.handle.add("stuck", probe.clone(), options).await.unwrap();
    rig.until("stuck", ControllerState::Running).await;

    probe.verdict.send_replace(unmet());
    rig.until("stuck", ControllerState::Stopping).await;
    probe.verdict.send_replace(met());
    let reached = |snapshot: &Arc<Snapshot>| snapshot.values().any(|status| status.stuck);
    let snapshot = rig.handle.watch().wait_for(reached).await.unwrap().clone();
    let status = &snapshot[&ControllerName::from("stuck")];
    assert_eq!((status.state, status.epoch), (ControllerState::Stopping, 1));
    assert_eq!(status.reason, "Stuck");
    assert!(status.message.ends_with("1 task"), "{}", status.message);

    unblock.send(()).unwrap();
    assert_eq!(rig.next_done().await.0, 1);
    assert_eq!(rig.until("stuck", ControllerState::Running).await.epoch, 2);
    unblock.send(()).unwrap();
    rig.stop().await.unwrap();
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
async fn a_run_that_panics_when_it_is_dropped_ends_nobody_else() {
    let mut rig = Rig::new();
    rig.add("widgets", &Probe::new(Body::PanicsWhenDropped).arc()).await;
    rig.until("widgets", ControllerState::Running).await;
    rig.add("others", &Probe::new(Body::UntilStopped).arc()).await;
    rig.until("others", ControllerState::Running).await;

    rig.handle.remove("widgets").await;

    rig.add("more", &Probe::new(Body::UntilStopped).arc()).await;
    assert_eq!(rig.next_done().await, (1, DoneReason::Cancelled));
    assert_eq!(rig.handle.status_of("others").unwrap().epoch, 1);
    rig.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn back_offs_beyond_all_clocks_end_nobody() {
    let forever = Duration::MAX;
    let restart_backoff = RestartBackoff {
        first: forever,
        longest: forever,
        healthy: forever,
        flaps: 0,
        flap_interval: forever,
    };
    let manager = Manager::new(ManagerOptions { restart_backoff, ..Default::default() });
    let rig = Rig::start(manager);

    rig.add("fails", &Probe::new(Body::Fails).arc()).await;
    rig.until("fails", ControllerState::BackingOff).await;
    let flaps = Probe::new(Body::UntilStopped).arc();
    rig.add("flaps", &flaps).await;
    rig.until("flaps", ControllerState::Running).await;
    flaps.verdict.send_replace(unmet());
    rig.until("flaps", ControllerState::Waiting).await;
    flaps.verdict.send_replace(met());
    rig.until("flaps", ControllerState::BackingOff).await;

    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    rig.until("fails", ControllerState::BackingOff).await;
    rig.until("flaps", ControllerState::BackingOff).await;
    rig.stop().await.unwrap();
}
