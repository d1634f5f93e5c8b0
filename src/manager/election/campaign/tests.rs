//! Campaigns against the simulated API server, under paused time.

use kube::Client;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tower::ServiceBuilder;

use super::{super::fixture::RuntimeClock, *};
use crate::{
    manager::ElectionMetrics,
    testing::{
        Action, Faults, Rule, Verb,
        simulated::{AccessRule, Delays, SimulatedOptions, SimulatedServer},
    },
};

/// Replica, as its manager sees it.
struct Replica {
    terms: watch::Receiver<Option<Arc<Term>>>,
    status: watch::Receiver<ElectionStatus>,
    release: CancellationToken,
    clock: Arc<RuntimeClock>,
    task: JoinSet<()>,
}

fn server() -> SimulatedServer {
    SimulatedServer::with(SimulatedOptions {
        delays: Delays::none(),
        ..SimulatedOptions::default()
    })
}

impl Replica {
    fn start(server: &SimulatedServer, name: &str) -> Self {
        Self::with(server.client_as(name), name)
    }

    fn with(client: Client, name: &str) -> Self {
        let status = watch::Sender::new(ElectionStatus {
            lease: "default/lease".into(),
            identity: name.into(),
            holder: None,
            leads: false,
            transitions: 0,
            error: None,
        });
        let (term, clock) = (watch::Sender::new(None), Arc::new(RuntimeClock::new()));
        let (terms, seen) = (term.subscribe(), status.subscribe());
        let campaign = Campaign {
            lease: LeaseClient::new(client, "default".into(), "lease".into()),
            identity: name.into(),
            times: ElectionTimes::default(),
            clock: clock.clone(),
            term,
            status,
            series: ElectionMetrics::default().of("lease"),
        };
        let release = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(campaign.run(release.clone()));
        Self { terms, status: seen, release, clock, task }
    }

    fn leads(&self) -> bool {
        self.terms.borrow().as_ref().is_some_and(|term| term.holds())
    }

    async fn until_leading(&mut self) -> Arc<Term> {
        let term = self.terms.wait_for(Option::is_some).await.unwrap();
        Arc::clone(term.as_ref().unwrap())
    }

    async fn until_lost(&mut self) {
        self.terms.wait_for(Option::is_none).await.unwrap();
    }

    async fn release(mut self) {
        self.release.cancel();
        self.task.join_next().await.unwrap().unwrap();
    }
}

fn lease(server: &SimulatedServer) -> Value {
    server.get("coordination.k8s.io/v1", "Lease", "default", "lease").unwrap()
}

fn holder(server: &SimulatedServer) -> Value {
    lease(server)["spec"]["holderIdentity"].clone()
}

/// Lets the replicas work for this long.
async fn pass(time: Duration) {
    sleep(time).await;
}

const SECOND: Duration = Duration::from_secs(1);

/// Server with a leader `a` and a standby `b` that watches the lease.
async fn pair() -> (SimulatedServer, Replica, Replica) {
    let server = server();
    let mut a = Replica::start(&server, "a");
    a.until_leading().await;
    let b = Replica::start(&server, "b");
    pass(3 * SECOND).await;
    assert!(a.leads() && !b.leads());
    (server, a, b)
}

#[tokio::test(start_paused = true)]
async fn first_replica_creates_the_lease_and_renews_it_every_two_seconds() {
    let server = server();
    let mut a = Replica::start(&server, "a");
    a.until_leading().await;

    assert_eq!(lease(&server)["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(lease(&server)["spec"]["leaseTransitions"], 0);
    let created = lease(&server)["metadata"]["resourceVersion"].clone();
    server.forget_requests();
    pass(20 * SECOND).await;
    let writes = server.requests().iter().filter(|it| it.info.verb == Verb::Update).count();
    assert!((9..=10).contains(&writes), "{writes}");
    let reads = server.requests().iter().filter(|it| it.info.verb == Verb::Get).count();
    assert_eq!(reads, 0, "the leader reads nothing");
    assert_ne!(lease(&server)["metadata"]["resourceVersion"], created);
    assert!(a.leads());
}

#[tokio::test(start_paused = true)]
async fn standby_that_watches_sends_no_request() {
    let (server, _a, b) = pair().await;
    server.forget_requests();

    pass(60 * SECOND).await;

    let requests = server.requests();
    let requests: Vec<_> = requests.iter().filter(|it| it.user == "b" && !it.is_open()).collect();
    assert!(requests.is_empty(), "{requests:?}");
    assert_eq!(b.status.borrow().holder.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn released_lease_is_taken_at_once() {
    let (server, a, mut b) = pair().await;
    let before = Instant::now();

    a.release().await;
    b.until_leading().await;

    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
    assert_eq!(holder(&server), "b");
    assert_eq!(lease(&server)["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_dead_replica_is_taken_when_it_expires() {
    let (server, mut a, mut b) = pair().await;
    a.task.shutdown().await;
    let renewed = lease(&server);
    let before = Instant::now();

    b.until_leading().await;

    let waited = before.elapsed();
    assert!(waited <= Duration::from_millis(15_500) && waited > 13 * SECOND, "{waited:?}");
    assert_eq!(renewed["spec"]["holderIdentity"], "a");
}

#[tokio::test(start_paused = true)]
async fn leader_without_a_server_loses_at_its_deadline_and_leads_again_later() {
    let server = server();
    let mut a = Replica::start(&server, "a");
    let term = a.until_leading().await;
    pass(5 * SECOND).await;
    server.stop();
    let before = Instant::now();

    a.until_lost().await;

    let waited = before.elapsed();
    assert!(waited <= 10 * SECOND && waited >= 8 * SECOND, "{waited:?}");
    assert!(!term.holds());
    assert!(a.status.borrow().error.is_some());
    server.start();
    a.until_leading().await;
    assert_eq!(a.status.borrow().error, None);
    assert_eq!(lease(&server)["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn clock_that_jumps_over_the_deadline_closes_the_term_before_anything_runs() {
    let server = server();
    let mut a = Replica::start(&server, "a");
    let term = a.until_leading().await;

    a.clock.jump(Duration::from_secs(3600));

    assert!(!term.holds(), "without a step of the campaign");
    let next = |now: &Option<Arc<Term>>| now.as_ref().is_some_and(|now| !Arc::ptr_eq(now, &term));
    let now = a.terms.wait_for(next).await.unwrap().clone();
    assert!(now.unwrap().holds(), "a term of its own");
}

#[tokio::test(start_paused = true)]
async fn rewritten_renew_time_changes_nothing_for_the_leader_and_delays_no_takeover() {
    let (server, mut a, mut b) = pair().await;
    for time in ["2000-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"] {
        let mut skewed = lease(&server);
        skewed["spec"]["renewTime"] = json!(time);
        server.apply(skewed).unwrap();
        pass(5 * SECOND).await;
        assert!(a.leads() && !b.leads(), "{time}");
    }
    let mut skewed = lease(&server);
    a.task.shutdown().await;
    skewed["spec"]["renewTime"] = json!("2100-01-01T00:00:00.000000Z");
    server.apply(skewed).unwrap();
    let before = Instant::now();

    b.until_leading().await;

    assert!(before.elapsed() <= Duration::from_millis(15_500), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn foreign_write_ends_the_term_at_once_and_the_lease_is_taken_when_it_expires() {
    let (server, mut a, mut b) = pair().await;
    let term = a.until_leading().await;
    let mut taken = lease(&server);
    taken["spec"]["holderIdentity"] = json!("alien");
    server.apply(taken).unwrap();
    let before = Instant::now();

    a.until_lost().await;
    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
    assert!(!term.holds());

    tokio::select! {
        _ = a.until_leading() => {}
        _ = b.until_leading() => {}
    }
    let waited = before.elapsed();
    assert!(waited >= 15 * SECOND && waited < 16 * SECOND, "{waited:?}");
    pass(5 * SECOND).await;
    assert!(a.leads() != b.leads(), "one of the two");
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_created_by_its_holder() {
    let (server, a, b) = pair().await;

    server.remove("coordination.k8s.io/v1", "Lease", "default", "lease").unwrap();
    pass(60 * SECOND).await;

    assert!(a.leads() && !b.leads());
    assert_eq!(holder(&server), "a");
}

#[tokio::test(start_paused = true)]
async fn leader_without_access_loses_at_its_deadline_and_the_other_takes_over() {
    let (server, mut a, mut b) = pair().await;
    let term = a.until_leading().await;

    server.set_rbac([AccessRule::deny().users(["a"]), AccessRule::allow()]);
    b.until_leading().await;

    assert!(!term.holds());
    pass(SECOND).await;
    assert!(!a.leads());
    assert_eq!(holder(&server), "b");
    assert!(a.status.borrow().error.as_ref().unwrap().contains("forbidden"));
}

#[tokio::test(start_paused = true)]
async fn standby_without_the_right_to_watch_tries_every_few_seconds() {
    let server = server();
    server.set_rbac([AccessRule::deny().verbs(["watch"]), AccessRule::allow()]);
    let mut a = Replica::start(&server, "a");
    a.until_leading().await;
    let mut b = Replica::start(&server, "b");
    pass(10 * SECOND).await;
    a.release().await;
    let before = Instant::now();

    b.until_leading().await;

    assert!(before.elapsed() <= Duration::from_millis(4400), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn standby_whose_watch_is_silent_tries_every_few_seconds() {
    let server = server();
    let mut a = Replica::start(&server, "a");
    a.until_leading().await;
    let faults = Faults::default();
    let _rule = faults.add(Rule::new(Action::Hang).verb(Verb::Watch));
    let service = ServiceBuilder::new().layer(faults.layer()).service(server.service("b"));
    let mut b = Replica::with(Client::new(service, "default"), "b");
    pass(10 * SECOND).await;
    a.release().await;
    let before = Instant::now();

    b.until_leading().await;

    assert!(before.elapsed() <= Duration::from_millis(4400), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn broken_watch_is_opened_again() {
    let (server, a, mut b) = pair().await;
    server.close_watches("leases.coordination.k8s.io");
    server.close_watches("leases");
    pass(20 * SECOND).await;
    assert!(a.leads() && !b.leads());
    let before = Instant::now();

    a.release().await;
    b.until_leading().await;

    assert!(before.elapsed() < Duration::from_millis(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn frozen_leader_does_not_lead_when_it_resumes() {
    let (server, mut a, mut b) = pair().await;
    let term = a.until_leading().await;
    // The task does not run, as at SIGSTOP.
    a.task.shutdown().await;
    b.until_leading().await;

    assert!(!term.holds());
    assert_eq!(holder(&server), "b");
}

#[tokio::test(start_paused = true)]
async fn leader_changes_alternate_and_leave_one_watch_and_one_lease() {
    let server = server();
    let mut leader = Replica::start(&server, "r0");
    leader.until_leading().await;
    for number in 1..=100 {
        let mut next = Replica::start(&server, &format!("r{number}"));
        pass(SECOND).await;
        let before = Instant::now();
        leader.release().await;
        next.until_leading().await;
        assert!(before.elapsed() < Duration::from_millis(10), "{number}: {:?}", before.elapsed());
        leader = next;
    }
    pass(SECOND).await;

    assert_eq!(lease(&server)["spec"]["leaseTransitions"], 100);
    assert_eq!(server.open_watches().values().sum::<usize>(), 1, "{:?}", server.open_watches());
    leader.release().await;
    pass(SECOND).await;
    assert!(server.open_watches().is_empty(), "{:?}", server.open_watches());
}
