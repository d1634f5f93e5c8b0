//! Managers in an election, against the simulated API server.

mod standby;

use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::ServiceBuilder;

use super::*;
use crate::{
    manager::election::{ElectionChange, fixture::RuntimeClock, term::Leadership},
    testing::{
        Action, Faults, Rule,
        simulated::{Delays, SimulatedOptions, SimulatedServer},
    },
};

type ConfigMap = k8s_openapi::api::core::v1::ConfigMap;

/// Runnable that hands its epochs to the test, and ends a time after its stop signal.
struct TestRunnable {
    warm: bool,
    group: RunnableGroup,
    drains: Duration,
    epochs: watch::Sender<Option<Epoch>>,
}

/// Replica with one runnable.
struct Replica {
    harness: Harness,
    epochs: watch::Receiver<Option<Epoch>>,
    status: watch::Receiver<ElectionStatus>,
    clock: Arc<RuntimeClock>,
    client: Client,
}

impl Runnable for TestRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        self.epochs.send_replace(Some(epoch.clone()));
        let drains = self.drains;
        Box::pin(async move {
            epoch.stopping().await;
            sleep(drains).await;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        self.group
    }

    fn warms_up(&self) -> bool {
        self.warm
    }
}

fn server() -> SimulatedServer {
    SimulatedServer::with(SimulatedOptions {
        delays: Delays::none(),
        ..SimulatedOptions::default()
    })
}

fn cold() -> TestRunnable {
    TestRunnable {
        warm: false,
        group: RunnableGroup::LeaderElection,
        drains: Duration::ZERO,
        epochs: watch::Sender::new(None),
    }
}

fn warm() -> TestRunnable {
    TestRunnable { warm: true, ..cold() }
}

impl Replica {
    fn start(server: &SimulatedServer, name: &str, runnable: TestRunnable) -> Self {
        let options =
            ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
        Self::with(server, name, runnable, options, RunnableOptions::default())
    }

    fn with(
        server: &SimulatedServer,
        name: &str,
        runnable: TestRunnable,
        options: ElectionOptions,
        supervision: RunnableOptions,
    ) -> Self {
        let client = server.client_as(name);
        let (clock, own) = (Arc::new(RuntimeClock::new()), server.clone());
        let user = name.to_owned();
        let options = ElectionOptions { identity: name.into(), ..options };
        let election = Election::new(options, move || Ok(own.client_as(&user))).unwrap();
        let election = election.by(clock.clone());
        let (status, epochs) = (election.status(), runnable.epochs.subscribe());
        let mut manager = Manager::new(ManagerOptions::default()).elect(election);
        manager.add_runnable("work", Arc::new(runnable), supervision).unwrap();
        Self { harness: Harness::start(manager), epochs, status, clock, client }
    }

    async fn until_leading(&mut self) {
        self.status.wait_for(|status| status.leads).await.unwrap();
        // The manager processes the change in its next event.
        sleep(Duration::from_millis(1)).await;
    }

    fn epoch(&self) -> Option<Epoch> {
        self.epochs.borrow().clone()
    }

    fn reason(&self) -> String {
        self.harness.handle.status_of("work").unwrap().reason.to_string()
    }

    /// Writes through the current epoch.
    async fn write(&self, name: &str) -> Result<ConfigMap, kube::Error> {
        let maps = Api::namespaced(self.epoch().unwrap().client(&self.client), "default");
        maps.create(&PostParams::default(), &map(name)).await
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn holder(server: &SimulatedServer) -> Value {
    let lease = server.get("coordination.k8s.io/v1", "Lease", "default", "lease").unwrap();
    lease["spec"]["holderIdentity"].clone()
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_starts_a_runnable_that_does_not_warm_up() {
    let server = server();
    let mut a = Replica::start(&server, "a", cold());
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", cold());
    sleep(Duration::from_secs(30)).await;

    assert!(a.epoch().unwrap().leads());
    assert!(b.epoch().is_none());
    assert_eq!(b.reason(), "Standby");
    a.harness.stop().await.unwrap();
    b.until_leading().await;
    assert!(b.epoch().unwrap().leads());
    b.harness.stop().await.unwrap();
    assert_eq!(holder(&server), "");
}

#[tokio::test(start_paused = true)]
async fn warm_epoch_reads_and_writes_nothing_until_its_replica_leads() {
    let server = server();
    let mut a = Replica::start(&server, "a", warm());
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", warm());
    sleep(Duration::from_secs(5)).await;
    a.write("of-a").await.unwrap();
    let epoch = b.epoch().unwrap();
    assert!(!epoch.leads());

    let refused = b.write("of-b").await.unwrap_err();
    assert!(refused.to_string().contains("does not lead"), "{refused}");
    assert!(epoch.fence().pass().is_err(), "no hook is called");
    let maps = Api::<ConfigMap>::namespaced(epoch.client(&b.client), "default");
    maps.get("of-a").await.unwrap();
    a.harness.stop().await.unwrap();
    epoch.leading().await;

    b.until_leading().await;
    b.write("of-b").await.unwrap();
    assert_eq!(b.epoch().unwrap().number(), 1, "the epoch that was warm");
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_after_the_last_elected_epoch_is_done() {
    let server = server();
    let mut a =
        Replica::start(&server, "a", TestRunnable { drains: Duration::from_secs(3), ..warm() });
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", warm());
    sleep(Duration::from_secs(5)).await;
    let epoch = a.epoch().unwrap();
    let before = Instant::now();

    a.harness.stop.cancel();
    sleep(Duration::from_millis(2900)).await;
    assert_eq!(holder(&server), "a", "it still drains");
    assert!(epoch.leads());
    b.until_leading().await;

    assert!(before.elapsed() < Duration::from_millis(3100), "{:?}", before.elapsed());
    assert!(epoch.fence().pass().is_err());
    a.harness.stop().await.unwrap();
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_after_the_deadline_of_a_write_that_was_cut() {
    let server = server();
    let supervision =
        RunnableOptions { grace: Duration::from_secs(1), ..RunnableOptions::default() };
    let options = ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
    let mut a = Replica::with(&server, "a", warm(), options, supervision);
    let faults = Faults::default();
    let service = ServiceBuilder::new().layer(faults.layer()).service(server.service("a"));
    a.client = Client::new(service, "default");
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", warm());
    sleep(Duration::from_secs(5)).await;
    let _hanging = faults.add(Rule::new(Action::Hang).mutating());
    let maps = Api::namespaced(a.epoch().unwrap().client(&a.client), "default");
    let mut writing = JoinSet::new();
    writing.spawn(async move { maps.create(&PostParams::default(), &map("late")).await });
    sleep(Duration::from_millis(1)).await;
    let before = Instant::now();

    a.harness.stop.cancel();
    b.until_leading().await;

    // The grace, and the deadline of a write.
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(5) && waited < Duration::from_millis(5200), "{waited:?}");
    drop(writing.join_next().await.unwrap().unwrap().unwrap_err());
    a.harness.stop().await.unwrap();
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_later_term_is_released_after_the_deadline_of_a_write_that_an_earlier_one_cut() {
    let server = server();
    let mut a = Replica::start(&server, "a", warm());
    let faults = Faults::default();
    let service = ServiceBuilder::new().layer(faults.layer()).service(server.service("a"));
    a.client = Client::new(service, "default");
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", warm());
    sleep(Duration::from_secs(5)).await;
    let _hanging = faults.add(Rule::new(Action::Hang).mutating());
    let maps = Api::namespaced(a.epoch().unwrap().client(&a.client), "default");
    let mut writing = JoinSet::new();
    writing.spawn(async move { maps.create(&PostParams::default(), &map("late")).await });
    sleep(Duration::from_millis(1)).await;
    a.clock.jump(Duration::from_secs(11));
    drop(writing.join_next().await.unwrap().unwrap().unwrap_err());
    let cut = Instant::now();
    a.status.wait_for(|status| status.leads && status.transitions == 1).await.unwrap();

    a.harness.stop.cancel();
    b.until_leading().await;

    let waited = cut.elapsed();
    assert!(waited >= Duration::from_secs(4) && waited < Duration::from_millis(4200), "{waited:?}");
    a.harness.stop().await.unwrap();
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn end_of_an_election_is_awaited_while_a_renewal_hangs() {
    let (server, faults) = (server(), Faults::default());
    let service = ServiceBuilder::new().layer(faults.layer()).service(server.service("a"));
    let client = Client::new(service, "default");
    let times = ElectionTimes {
        lease_duration: Duration::from_secs(61),
        renew_deadline: Duration::from_secs(60),
        ..ElectionTimes::default()
    };
    let lease = ElectionOptions::new("default", "lease");
    let options = ElectionOptions { own_thread: false, times, ..lease };
    let election = Election::new(options, move || Ok(client)).unwrap();
    let mut run = election.by(Arc::new(RuntimeClock::new())).start();
    assert!(matches!(run.changed().await, ElectionChange::Term(Some(_))));
    let _hanging = faults.add(Rule::new(Action::Hang).mutating().times(1));
    sleep(Duration::from_secs(3)).await;

    run.ended().await;

    assert_eq!(holder(&server), "", "half the renew deadline later");
}

#[tokio::test(start_paused = true)]
async fn leader_and_standby_are_ready_and_their_checks_say_which_of_them_leads() {
    let server = server();
    let mut a = Replica::start(&server, "a", cold());
    a.until_leading().await;
    let mut b = Replica::start(&server, "b", cold());
    b.status.wait_for(|status| status.holder.as_deref() == Some("a")).await.unwrap();
    let shown = |replica: &Replica| {
        let checks = replica.harness.handle.readiness().results();
        assert!(!checks.iter().any(|it| it.result.is_failed()), "{checks:?}");
        checks.into_iter().find(|it| it.name == "leader-election").unwrap().to_string()
    };

    assert_eq!(shown(&a), "[+]leader-election leads");
    assert_eq!(shown(&b), "[+]leader-election stands by");

    a.harness.stop().await.unwrap();
    b.until_leading().await;
    assert_eq!(shown(&b), "[+]leader-election leads");
    server.stop();
    b.status.wait_for(|status| status.error.is_some()).await.unwrap();
    assert_eq!(shown(&b), "[!]leader-election the lease cannot be reached");
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_lease_ends_the_epoch_without_a_grace_and_another_stands_by() {
    let server = server();
    let mut a =
        Replica::start(&server, "a", TestRunnable { drains: Duration::from_secs(60), ..warm() });
    a.until_leading().await;
    let first = a.epoch().unwrap();
    server.stop();
    let before = Instant::now();

    assert_eq!(a.harness.next_done().await, (1, DoneReason::LeaseLost));

    // The slack in which a run that ignores the stop is dropped is included.
    assert!(before.elapsed() <= Duration::from_millis(10_600), "{:?}", before.elapsed());
    assert_eq!(first.stop_reason(), Some(StopReason::LeaseLost));
    assert!(first.fence().pass().is_err());
    a.epochs.wait_for(|epoch| epoch.as_ref().is_some_and(|it| it.number() == 2)).await.unwrap();
    assert!(!a.epoch().unwrap().leads());
    server.start();
    a.until_leading().await;
    assert!(a.epoch().unwrap().leads());
    assert!(first.fence().pass().is_err(), "for ever");
    a.harness.stop().await.unwrap();
}

/// Checks that a runnable with the restart policy `Never` stands by after a loss of the lease,
/// though it ends by itself before the manager handles the loss.
async fn check_early_end(own_thread: bool, times: ElectionTimes) {
    let server = server();
    let lease = ElectionOptions::new("default", "lease");
    let options = ElectionOptions { own_thread, times, ..lease };
    let never = RunnableOptions { restart: RestartPolicy::Never, ..RunnableOptions::default() };
    let mut a = Replica::with(&server, "a", warm(), options, never);
    a.until_leading().await;
    server.stop();

    assert_eq!(a.harness.next_done().await, (1, DoneReason::LeaseLost));

    a.epochs.wait_for(|epoch| epoch.as_ref().is_some_and(|it| it.number() == 2)).await.unwrap();
    server.start();
    a.until_leading().await;
    a.epoch().unwrap().leading().await;
    assert_eq!(a.epoch().unwrap().number(), 2);
    a.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_that_sees_the_lost_lease_first_stands_by_again() {
    check_early_end(false, ElectionTimes::default()).await;
}

#[tokio::test]
async fn run_that_sees_the_lost_lease_of_another_thread_first_stands_by_again() {
    let [lease_duration, renew_deadline, retry_period] = [900, 600, 100].map(Duration::from_millis);
    check_early_end(true, ElectionTimes { lease_duration, renew_deadline, retry_period }).await;
}

/// Ends the term of a replica's epoch, as the thread of an election does before it reports that.
fn end_term(replica: &Replica) {
    let leadership = replica.epoch().unwrap().fence().subscribe_leadership().borrow().clone();
    let Leadership::Held(term) = leadership else { panic!("the replica leads") };
    term.end();
}

#[tokio::test(start_paused = true)]
async fn no_epoch_starts_in_a_term_that_a_run_saw_end_before_the_manager() {
    let mut a = Replica::start(&server(), "a", warm());
    let mut b = Replica::start(&server(), "b", cold());
    a.until_leading().await;
    b.until_leading().await;

    end_term(&a);
    end_term(&b);

    for replica in [&mut a, &mut b] {
        assert_eq!(replica.harness.next_done().await, (1, DoneReason::LeaseLost));
    }
    sleep(Duration::from_secs(1)).await;
    let second = a.epoch().unwrap();
    assert!(second.number() == 2 && second.stop_reason().is_none() && !second.leads());
    assert_eq!((b.epoch().unwrap().number(), b.reason().as_str()), (1, "Standby"));
    a.harness.stop().await.unwrap();
    b.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn term_that_ends_during_a_shutdown_is_followed_by_no_epoch() {
    let mut a = Replica::start(&server(), "a", cold());
    let group = RunnableGroup::Others;
    let slow = TestRunnable { group, drains: Duration::from_secs(4), ..cold() };
    let options = RunnableOptions::default();
    a.harness.handle.add_runnable("slow", Arc::new(slow), options).await.unwrap();
    a.until_leading().await;

    a.harness.stop.cancel();
    sleep(Duration::from_secs(1)).await;
    end_term(&a);
    sleep(Duration::from_secs(2)).await;

    assert_eq!(a.epoch().unwrap().number(), 1);
    a.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_write_passes_after_the_deadline_by_a_clock_that_counts_suspension() {
    let server = server();
    let mut a = Replica::start(&server, "a", warm());
    a.until_leading().await;
    a.write("before").await.unwrap();

    a.clock.jump(Duration::from_secs(11));

    // No task has run since.
    assert!(a.epoch().unwrap().fence().pass().is_err());
    let refused = a.write("after").await.unwrap_err();
    assert!(refused.to_string().contains("does not lead"), "{refused}");
    a.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn write_of_the_leader_has_a_deadline_that_the_server_knows() {
    let server = server();
    let mut a = Replica::start(&server, "a", warm());
    a.until_leading().await;
    a.write("quick").await.unwrap();
    let requests = server.requests();
    let written = requests.iter().find(|it| it.info.resource == "configmaps").unwrap();
    assert!(written.info.query.contains("timeout=4000ms"), "{}", written.info.query);

    let delays = Delays { latency: Duration::from_secs(5), ..Delays::none() };
    server.set_delays(delays);
    let before = Instant::now();
    let late = a.write("slow").await.unwrap_err();

    assert_eq!(before.elapsed(), Duration::from_secs(4));
    assert!(late.to_string().contains("longer lease duration"), "{late}");
    assert_eq!(a.epoch().unwrap().fence().unknown(), 1);
    server.set_delays(Delays::none());
    a.harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn leader_changes_leave_no_task() {
    let server = server();
    let mut leader = Replica::start(&server, "r", warm());
    leader.until_leading().await;
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    for _ in 0..100 {
        let mut next = Replica::start(&server, "next", warm());
        sleep(Duration::from_secs(1)).await;
        leader.harness.stop().await.unwrap();
        next.until_leading().await;
        leader = next;
    }
    sleep(Duration::from_secs(1)).await;

    assert_eq!(alive(), before);
    assert_eq!(server.open_watches().values().sum::<usize>(), 1, "{:?}", server.open_watches());
    leader.harness.stop().await.unwrap();
}

#[test]
fn election_on_its_own_thread_leads_and_renews_while_the_managers_runtime_is_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(async { server() });
    let (_inside, own) = (runtime.enter(), server.clone());
    let times = ElectionTimes {
        lease_duration: Duration::from_millis(1500),
        renew_deadline: Duration::from_millis(1200),
        retry_period: Duration::from_millis(100),
    };
    let options = ElectionOptions { times, ..ElectionOptions::new("default", "lease") };
    let election = Election::new(options, move || Ok(own.client_as("a"))).unwrap();
    let mut status = election.status();
    let mut run = election.start();

    // The runtime of the manager is blocked until its replica has led for longer than its lease.
    let leads = std::thread::spawn(move || {
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        own.block_on(async {
            status.wait_for(|status| status.leads).await.unwrap();
            sleep(times.lease_duration + times.retry_period).await;
            status.borrow().clone()
        })
    });
    let seen = leads.join().unwrap();
    let held = runtime.block_on(async {
        let change = run.changed().await;
        let ElectionChange::Term(Some(term)) = change else { panic!("the replica leads") };
        let held = term.holds();
        run.ended().await;
        held
    });

    assert!(held, "the lease was renewed");
    assert!(seen.leads && seen.transitions == 0, "{seen:?}");
    assert_eq!(holder(&server), "");
}

#[tokio::test(start_paused = true)]
async fn election_without_a_client_ends_the_manager_with_its_error() {
    let options = ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
    let election = Election::new(options, || Err("no credentials".into())).unwrap();
    let manager = Manager::new(ManagerOptions::default()).elect(election);

    let error = manager.run(CancellationToken::new()).await.unwrap_err();

    assert_eq!(error.to_string(), "leader election: no credentials");
}
