//! Two real processes elect a leader on the real API server. The audit log shows who has written.

mod leader_changes;

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use pilotlight::{
    meta::api::CompositeController,
    testing::{
        Action, AuditEvent, AuditPosition, ControlPlane, CrdBuilder, Faults, Rule, TestScope, Verb,
        proxy::Proxy,
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::support::{
    HookServer, Rule as Right, binary, install_own_crds, rights, start_binary, until, workload,
};

/// Label that selects the objects of this test's processes.
const LABEL: &str = "pilotlight.test/scope";
const LEASE: Duration = Duration::from_secs(3);
/// Margin of a takeover.
const MARGIN: Duration = Duration::from_millis(500);
/// Groups of a user with all rights.
const MASTERS: &[&str] = &["system:masters"];

/// End of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGTERM.
    Stopped,
    /// SIGKILL.
    Killed,
    /// SIGSTOP for longer than the lease, then SIGCONT.
    Frozen,
    /// No request of it is answered, then all are.
    CutOff,
    /// Another holder is written into the lease, and no replica may lead until that expires.
    Displaced,
}

/// Namespace with parents whose children change all the time.
struct Replicas {
    plane: &'static ControlPlane,
    /// End of the audit log before the first replica. All tests share the log, and reading all of
    /// it would stall the hook of this one.
    begin: AuditPosition,
    scope: TestScope,
    crd: CrdBuilder,
    _hook: HookServer,
    edits: JoinSet<()>,
    /// Number of pairs of replicas so far.
    pairs: AtomicUsize,
}

impl Replicas {
    async fn new(name: &str) -> Self {
        let plane = ControlPlane::shared();
        let begin = plane.audit().unwrap().position().unwrap();
        install_own_crds(plane).await;
        let scope = plane.scope(name).await.unwrap();
        let hook = HookServer::start().await;
        hook.answers(workload::sized);
        let crd = workload::crd(&scope.group);
        scope.install_crd(&crd).await.unwrap();
        scope.wait_served(&crd, "v1").await.unwrap();
        let controller = serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": { "name": scope.namespace, "labels": { LABEL: scope.namespace } },
            "spec": workload::spec(&crd, &hook.url),
        }));
        let controllers = Api::<CompositeController>::all(scope.client());
        controllers.create(&PostParams::default(), &controller.unwrap()).await.unwrap();
        let parents: Api<DynamicObject> = scope.api(&crd, "v1");
        let parent = crd.object("p", json!({ "size": 2, "text": "0" }));
        parents.create(&PostParams::default(), &parent).await.unwrap();
        let mut edits = JoinSet::new();
        edits.spawn(async move {
            for number in 1_u64.. {
                let patch = json!({ "spec": { "text": number.to_string() } });
                let patch = Patch::Merge(&patch);
                drop(parents.patch("p", &PatchParams::default(), &patch).await);
                sleep(Duration::from_millis(20)).await;
            }
        });
        Self { plane, begin, scope, crd, _hook: hook, edits, pairs: AtomicUsize::new(0) }
    }

    /// Names of the users of two replicas, the old leader first.
    fn pair(&self) -> (String, String) {
        let number = self.pairs.fetch_add(1, Ordering::Relaxed);
        let name = |role: &str| format!("{}-{number}-{role}", self.scope.namespace);
        (name("old"), name("new"))
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.scope.client(), &self.scope.namespace)
    }

    /// Starts a replica as this user, with all rights.
    fn start_as(&self, user: &str) -> Child {
        self.start(&self.plane.user_kubeconfig(user, MASTERS).unwrap())
    }

    /// Starts a replica as this user, with probes. Returns their address.
    async fn start_probed(&self, user: &str) -> (Child, SocketAddr) {
        let kubeconfig = self.plane.user_kubeconfig(user, MASTERS).unwrap();
        let mut arguments = self.arguments();
        // The last of two flags counts.
        arguments.push("--health-probe-bind-address=127.0.0.1:0".to_owned());
        arguments.push("--log-format=json".to_owned());
        let mut process = binary(&kubeconfig, &arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let first = log.next_line().await.unwrap().expect("the manager logs its start");
        let first: Value = serde_json::from_str(&first).unwrap();
        (process, first["probes"].as_str().unwrap().parse().unwrap())
    }

    /// Asserts that the old leader has written nothing after the first write of the new one.
    /// Returns that write.
    async fn assert_no_late_write(&self, old: &str, new: &str) -> AuditEvent {
        self.until_written(new).await;
        // Writes that the old leader may still send arrive in this time.
        sleep(2 * MARGIN).await;
        self.plane.audit_settled().await.unwrap();
        let (by_old, mut by_new) = (self.writes(old), self.writes(new));
        let first = by_new.swap_remove(0);
        // The response counts for a write that was received before: it may have been stored late.
        let late: Vec<_> = by_old.iter().filter(|it| it.reached.0 > first.received.0).collect();
        assert!(late.is_empty(), "{} of the old leader, first {:?}", late.len(), late[0]);
        first
    }

    /// Ends the parents' edits and the controller.
    async fn end(mut self) {
        self.edits.shutdown().await;
        let controllers = Api::<CompositeController>::all(self.scope.client());
        controllers.delete(&self.scope.namespace, &DeleteParams::default()).await.unwrap();
    }

    fn start(&self, kubeconfig: &Path) -> Child {
        start_binary(kubeconfig, &self.arguments())
    }

    fn arguments(&self) -> Vec<String> {
        let namespace = &self.scope.namespace;
        vec![
            "--leader-election".to_owned(),
            "--leader-election-id=test".to_owned(),
            "--leader-election-lease-duration=3s".to_owned(),
            "--leader-election-renew-deadline=2s".to_owned(),
            "--leader-election-retry-period=300ms".to_owned(),
            format!("--leader-election-namespace={namespace}"),
            format!("--target-label-selector={LABEL}={namespace}"),
        ]
    }

    /// Requests of a user in the order of their arrival, except those about the lease.
    fn requests(&self, user: &str) -> Vec<AuditEvent> {
        let of_user = |event: &AuditEvent| event.user == user && event.name != "test";
        let mut all = self.plane.audit().unwrap().since(self.begin).unwrap();
        all.retain(of_user);
        all.sort_by_key(|event| event.received.0);
        all
    }

    /// Writes of a user that the server has accepted.
    fn writes(&self, user: &str) -> Vec<AuditEvent> {
        let mut writes = self.requests(user);
        writes.retain(|event| {
            let is_read = ["get", "list", "watch"].contains(&event.verb.as_str());
            let of_election = event.resource == "leases" && event.name.is_empty();
            !is_read && !of_election && event.code.is_some_and(|code| code < 300)
        });
        writes
    }

    async fn until_written(&self, user: &str) {
        until("the leader writes", async || match self.writes(user).len() {
            0..=3 => Err(format!("{} writes", self.writes(user).len())),
            _ => Ok(()),
        })
        .await;
    }

    async fn until_warm(&self, user: &str) {
        until("the standby watches children", async || {
            let requests = self.requests(user);
            let watches = |resource: &str| {
                requests.iter().any(|it| it.verb == "watch" && it.resource == resource)
            };
            match watches("configmaps") && watches(&self.crd.api_resource("v1").plural) {
                true => Ok(()),
                false => Err(format!("{} requests", requests.len())),
            }
        })
        .await;
    }
}

/// Returns the first line of a response over HTTP.
async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.lines().next().unwrap_or_default().to_owned()
}

async fn signal(process: &Child, signal: &str) {
    let id = process.id().unwrap().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().await.unwrap().success());
}

fn since(time: Timestamp, event: &AuditEvent) -> Duration {
    let MicroTime(received) = event.received;
    Duration::try_from(received.duration_since(time)).unwrap_or_default()
}

/// Ends a leader by a fault; returns the time until the other replica's first write.
async fn take_over(replicas: &Replicas, fault: Fault) -> Duration {
    let (old, new) = replicas.pair();
    let faults = Faults::default();
    let config = replicas.plane.user(&old, MASTERS).unwrap();
    let proxy = Proxy::to_api_server(config, &faults).await.unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kubeconfig.path(), proxy.kubeconfig()).unwrap();
    let mut leader = replicas.start(kubeconfig.path());
    replicas.until_written(&old).await;
    let mut standby = replicas.start_as(&new);
    replicas.until_warm(&new).await;
    assert!(replicas.writes(&new).is_empty(), "a standby writes nothing");

    let mut begin = Timestamp::now();
    match fault {
        Fault::Stopped => {
            signal(&leader, "-TERM").await;
            assert!(leader.wait().await.unwrap().success());
        }
        Fault::Killed => leader.kill().await.unwrap(),
        Fault::Frozen => {
            signal(&leader, "-STOP").await;
            sleep(LEASE + 2 * MARGIN).await;
            signal(&leader, "-CONT").await;
        }
        Fault::CutOff => {
            let rule = faults.add(Rule::new(Action::Hang));
            let cut = proxy.reset_connections();
            assert!(cut > 0);
            sleep(LEASE + 2 * MARGIN).await;
            faults.remove(rule);
        }
        Fault::Displaced => {
            let leases = replicas.leases();
            let taken = json!({ "spec": { "holderIdentity": "alien", "leaseTransitions": 900 } });
            leases.patch("test", &PatchParams::default(), &Patch::Merge(&taken)).await.unwrap();
            begin = Timestamp::now();
            sleep(LEASE - MARGIN).await;
            replicas.plane.audit_settled().await.unwrap();
            let last = replicas.writes(&old).last().map(|it| since(begin, it)).unwrap_or_default();
            assert!(last < MARGIN / 2, "it still wrote {last:?} after it was displaced");
            signal(&leader, "-KILL").await;
        }
    }
    let first = replicas.assert_no_late_write(&old, &new).await;
    if fault == Fault::Stopped {
        begin = renewed(replicas, &old);
    }
    let took = since(begin, &first);
    if fault != Fault::Killed && fault != Fault::Stopped && fault != Fault::Displaced {
        assert_eq!(leader.try_wait().unwrap(), None, "it stands by again");
    }
    leader.kill().await.ok();
    standby.kill().await.unwrap();
    took
}

/// Time at which a user has written the lease last.
fn renewed(replicas: &Replicas, user: &str) -> Timestamp {
    let all = replicas.plane.audit().unwrap().since(replicas.begin).unwrap();
    let is_stored = |it: &&AuditEvent| {
        let is_write = it.verb == "create" || it.verb == "update";
        it.user == user && it.name == "test" && is_write && it.code.is_some_and(|code| code < 300)
    };
    all.iter().filter(is_stored).map(|it| it.received.0).max().unwrap()
}

#[expect(clippy::print_stdout, reason = "the figures are the result")]
#[tokio::test]
async fn no_old_leader_writes_after_the_first_write_of_the_new_one() {
    let replicas = Replicas::new("election").await;

    for fault in [Fault::Stopped, Fault::Killed, Fault::Frozen, Fault::CutOff, Fault::Displaced] {
        let took = take_over(&replicas, fault).await;

        println!("{fault:?}: the other replica wrote after {took:?}");
        let limit = if fault == Fault::Stopped { MARGIN } else { LEASE + MARGIN };
        assert!(took <= limit, "{fault:?}: {took:?}");
        // The next pair begins with a free lease.
        replicas.leases().delete("test", &DeleteParams::default()).await.unwrap();
    }

    replicas.end().await;
}

#[tokio::test]
async fn leader_keeps_a_lease_that_is_deleted_or_rewritten_by_hand_and_its_standby_is_ready() {
    let replicas = Replicas::new("election-lease").await;
    let (old, new) = replicas.pair();
    let mut leader = replicas.start_as(&old);
    replicas.until_written(&old).await;
    let (mut standby, probes) = replicas.start_probed(&new).await;
    replicas.until_warm(&new).await;
    until("the standby is ready", async || match get(probes, "/readyz").await {
        ready if ready == "HTTP/1.1 200 OK" => Ok(()),
        other => Err(other),
    })
    .await;
    let leases = replicas.leases();
    let holder = async || leases.get("test").await.ok()?.spec?.holder_identity;
    let before = holder().await;

    leases.delete("test", &DeleteParams::default()).await.unwrap();
    sleep(LEASE + MARGIN).await;
    assert_eq!(holder().await, before, "its holder has created it again");
    let end = Instant::now() + LEASE + MARGIN;
    for number in 0.. {
        let year = if number % 2 == 0 { 2001 } else { 2099 };
        let change = json!({ "spec": { "renewTime": format!("{year}-01-01T00:00:00.000000Z") } });
        leases.patch("test", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        if Instant::now() > end {
            break;
        }
        sleep(MARGIN / 5).await;
    }
    replicas.plane.audit_settled().await.unwrap();
    assert_eq!(holder().await, before);
    assert!(replicas.writes(&new).is_empty(), "{:?}", replicas.writes(&new));
    assert_eq!(get(probes, "/readyz").await, "HTTP/1.1 200 OK", "it stands by");

    let begin = Timestamp::now();
    leader.kill().await.unwrap();
    let first = replicas.assert_no_late_write(&old, &new).await;
    let took = since(begin, &first);
    assert!(took <= LEASE + MARGIN, "{took:?}");
    standby.kill().await.unwrap();
    replicas.end().await;
}

#[tokio::test]
async fn standby_that_reads_renew_times_of_another_clock_takes_over_after_the_lease_and_not_before()
{
    let replicas = Replicas::new("election-clock").await;
    for year in ["2001", "2099"] {
        let (old, new) = replicas.pair();
        let mut leader = replicas.start_as(&old);
        replicas.until_written(&old).await;
        let faults = Faults::default();
        let of_leases = |action| Rule::new(action).resource("coordination.k8s.io", "leases");
        faults.add(of_leases(Action::Fail("refused".to_owned())).verb(Verb::Watch));
        let move_year = move |lease: &mut serde_json::Value| {
            if let Some(time) = lease.pointer_mut("/spec/renewTime") {
                *time = format!("{year}{}", &time.as_str().unwrap()["2001".len()..]).into();
            }
        };
        let moved = faults.add(of_leases(Action::edit(move_year)).verb(Verb::Get));
        let config = replicas.plane.user(&new, MASTERS).unwrap();
        let proxy = Proxy::to_api_server(config, &faults).await.unwrap();
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), proxy.kubeconfig()).unwrap();
        let mut standby = replicas.start(kubeconfig.path());
        replicas.until_warm(&new).await;

        sleep(2 * LEASE).await;
        replicas.plane.audit_settled().await.unwrap();
        assert!(replicas.writes(&new).is_empty(), "{year}: {:?}", replicas.writes(&new));
        assert!(faults.hits(moved) >= 6, "{year}: {} reads", faults.hits(moved));

        let begin = Timestamp::now();
        leader.kill().await.unwrap();
        let first = replicas.assert_no_late_write(&old, &new).await;
        let took = since(begin, &first);
        assert!(took >= LEASE - 2 * MARGIN, "{year}: {took:?}");
        // Without a watch, the standby reads the lease every 300 ms to 660 ms, later on a busy machine.
        assert!(took <= 3 * LEASE, "{year}: {took:?}");
        standby.kill().await.unwrap();
        replicas.leases().delete("test", &DeleteParams::default()).await.unwrap();
    }
    replicas.end().await;
}

#[tokio::test]
async fn leader_without_access_to_its_lease_stands_by_until_access_is_granted_again() {
    let replicas = Replicas::new("election-rights").await;
    let (old, new) = replicas.pair();
    let work = [
        Right::all_of("metacontroller.k8s.io", "*"),
        Right::all_of(&replicas.scope.group, "*"),
        Right::all_of("", "configmaps"),
        Right::all_of("", "secrets"),
        Right::all_of("", "events"),
        Right::to_watch("coordination.k8s.io", "leases"),
        Right::to_watch("apiextensions.k8s.io", "customresourcedefinitions"),
        Right::to_watch("apiregistration.k8s.io", "apiservices"),
    ];
    let lease = [Right::all_of("coordination.k8s.io", "leases")];
    let client = replicas.scope.client();
    rights::grant(client.clone(), &old, "work", &work).await;
    rights::grant(client.clone(), &old, "lease", &lease).await;
    let mut leader = replicas.start(&replicas.plane.user_kubeconfig(&old, &[]).unwrap());
    replicas.until_written(&old).await;
    let mut standby = replicas.start_as(&new);
    replicas.until_warm(&new).await;

    rights::revoke(client.clone(), &old, "lease").await;
    let first = replicas.assert_no_late_write(&old, &new).await;
    let took = since(renewed(&replicas, &old), &first);
    assert!(took <= LEASE + MARGIN, "{took:?}");
    assert_eq!(leader.try_wait().unwrap(), None, "it stands by");

    rights::grant(client, &old, "lease", &lease).await;
    let before = replicas.writes(&old).len();
    standby.kill().await.unwrap();
    until("the old leader leads again", async || match replicas.writes(&old).len() {
        after if after > before => Ok(()),
        after => Err(format!("{after} writes")),
    })
    .await;
    let last = replicas.writes(&new).pop().unwrap();
    let again = replicas.writes(&old).swap_remove(before);
    assert!(again.received.0 > last.received.0, "{again:?} before {last:?}");
    leader.kill().await.unwrap();
    replicas.end().await;
}

/// Five takeovers each after a clean stop and after a crash, in order of their length.
#[expect(clippy::print_stdout, reason = "the figures are the result")]
#[ignore = "a measurement"]
#[tokio::test]
async fn takeover_times() {
    let replicas = Replicas::new("election-times").await;

    for fault in [Fault::Stopped, Fault::Killed] {
        let mut times = Vec::new();
        for _ in 0..5 {
            times.push(take_over(&replicas, fault).await);
            replicas.leases().delete("test", &DeleteParams::default()).await.unwrap();
        }
        times.sort();
        println!("{fault:?}: the other replica wrote after {times:?}");
    }

    replicas.end().await;
}
