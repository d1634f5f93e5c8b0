//! A hundred leader changes between two replicas leave a free lease and nothing else.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, Config};
use pilotlight::{
    manager::{
        ConditionalRunnable, Election, ElectionMetrics, ElectionOptions, ElectionStatus, Epoch,
        Manager, ManagerError, ManagerMetrics, ManagerOptions, Readiness, RunResult, Runnable,
        RunnableOptions, always,
    },
    testing::LeakOracle,
    transport::{self, TransportOptions},
};
use prometheus_client::registry::Registry;
use tokio::{runtime::Handle, sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::support::{PATIENCE, alone};

const LEADER_CHANGES: usize = 100;
/// Limit of the median time between the release of the lease and the first write of the next holder.
const MEDIAN: Duration = Duration::from_millis(100);
/// Users of the replicas, which lead in turn.
const USERS: [&str; 2] = ["leader-change-a", "leader-change-b"];

/// Elected runnable that writes without a pause, and ends its last write before it stops.
struct Writer {
    client: Client,
    namespace: String,
    /// Number of writes.
    written: watch::Sender<u64>,
}

impl Runnable for Writer {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let maps = Api::<ConfigMap>::namespaced(epoch.client(&self.client), &self.namespace);
        let (written, by) = (self.written.clone(), PatchParams::default());
        Box::pin(async move {
            while !epoch.token().is_cancelled() {
                let number = written.borrow().to_string();
                let change = Patch::Merge(json!({ "data": { "number": number } }));
                let stored = maps.patch("written", &by, &change).await;
                written.send_modify(|number| *number += u64::from(stored.is_ok()));
            }
            Ok(())
        })
    }
}

impl ConditionalRunnable for Writer {
    fn ready(&self) -> Readiness {
        always()
    }
}

/// Manager that takes part in the election.
struct Replica {
    status: watch::Receiver<ElectionStatus>,
    written: watch::Receiver<u64>,
    stop: CancellationToken,
    run: JoinSet<Result<(), ManagerError>>,
}

impl Replica {
    async fn start(config: &Config, user: &str, namespace: &str, metrics: &Metrics) -> Self {
        let connect = {
            let config = config.clone();
            move || Ok(transport::client(config, TransportOptions::default())?)
        };
        let options = ElectionOptions {
            identity: user.into(),
            metrics: metrics.election.clone(),
            ..ElectionOptions::new(namespace, "leader-changes")
        };
        let election = Election::new(options, connect).unwrap();
        let status = election.status();
        let options =
            ManagerOptions { metrics: metrics.manager.clone(), ..ManagerOptions::default() };
        let mut manager = Manager::new(options).elect(election);
        let client = transport::client(config.clone(), TransportOptions::default()).unwrap();
        let (sender, written) = watch::channel(0);
        let writer = Writer { client, namespace: namespace.to_owned(), written: sender };
        manager.add("writer", Arc::new(writer), RunnableOptions::default()).unwrap();
        let stop = CancellationToken::new();
        let mut run = JoinSet::new();
        run.spawn(manager.run(stop.clone()));
        Self { status, written, stop, run }
    }

    async fn until(&mut self, wanted: impl Fn(&ElectionStatus) -> bool) {
        timeout(PATIENCE, self.status.wait_for(wanted)).await.unwrap().unwrap();
    }

    async fn until_written(&mut self) {
        timeout(PATIENCE, self.written.wait_for(|number| *number > 0)).await.unwrap().unwrap();
    }

    async fn end(mut self) {
        self.stop.cancel();
        timeout(PATIENCE, self.run.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    }
}

/// Metrics of all managers.
#[derive(Default)]
struct Metrics {
    manager: ManagerMetrics,
    election: ElectionMetrics,
}

#[tokio::test]
async fn a_hundred_leader_changes_leave_a_free_lease_and_nothing_else() {
    let name =
        "election::leader_changes::a_hundred_leader_changes_leave_a_free_lease_and_nothing_else";
    alone(name, Box::pin(hand_over())).await;
}

#[expect(clippy::print_stdout, reason = "the figures are the result")]
async fn hand_over() {
    let plane = ControlPlane::shared();
    let scope = plane.scope("leader-changes").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(scope.client(), &scope.namespace);
    let map = json!({ "metadata": { "name": "written" } });
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    let configs = USERS.map(|user| plane.user(user, MASTERS).unwrap());
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.manager.register(&mut registry);
    metrics.election.register(&mut registry);
    let start = |number: usize| {
        let user = number % 2;
        Replica::start(&configs[user], USERS[user], &scope.namespace, &metrics)
    };
    let series = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        // A controller has a series for each state that it has had.
        let is_counted = |line: &&str| !line.starts_with('#') && !line.contains(",state=");
        let series = text.lines().filter(is_counted);
        let named = series.filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name);
        named.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let oracle = LeakOracle::new().tasks("the replicas", &Handle::current()).sockets();
    let resting = oracle.baseline().await;

    let mut leader = start(0).await;
    leader.until(|status| status.leads).await;
    let mut standby = start(1).await;
    standby.until(|status| status.holder.as_deref() == Some(USERS[0])).await;
    let (baseline, before) = (oracle.baseline().await, series());
    for number in 1..=LEADER_CHANGES {
        leader.until_written().await;
        leader.end().await;
        leader = standby;
        leader.until(|status| status.leads).await;
        standby = start(number + 1).await;
        let holder = USERS[number % 2];
        standby.until(|status| status.holder.as_deref() == Some(holder)).await;
    }
    leader.until_written().await;
    oracle.assert_baseline(&baseline).await;
    assert_eq!(series(), before);
    standby.end().await;
    leader.end().await;

    oracle.assert_baseline(&resting).await;
    let leases = Api::<Lease>::namespaced(scope.client(), &scope.namespace);
    let lease = leases.get("leader-changes").await.unwrap().spec.unwrap();
    assert_eq!(lease.lease_transitions, Some(i32::try_from(LEADER_CHANGES).unwrap()));
    assert_eq!(lease.holder_identity.as_deref().unwrap_or_default(), "");
    plane.audit_settled().await.unwrap();
    let mut times = takeovers(plane, &scope.namespace);
    assert_eq!(times.len(), LEADER_CHANGES, "each replica writes only while it leads");
    times.sort();
    let median = times[LEADER_CHANGES / 2];
    println!(
        "{LEADER_CHANGES} leader changes: first write after the release in {median:?} p50, {:?} p99, {:?} max",
        times[LEADER_CHANGES * 99 / 100],
        times[LEADER_CHANGES - 1]
    );
    assert!(median <= MEDIAN, "{median:?}");
}

/// Times between the release of the lease and the first write of the next holder, one for each
/// change of the writing user, in the order in which the server received the writes.
fn takeovers(plane: &ControlPlane, namespace: &str) -> Vec<Duration> {
    let mut all = plane.audit().unwrap().all().unwrap();
    all.retain(|event| {
        let is_write = ["create", "update", "patch"].contains(&event.verb.as_str());
        let is_stored = event.code.is_some_and(|code| code < 300);
        let is_ours = event.namespace == namespace && USERS.contains(&&*event.user);
        is_write && is_stored && is_ours
    });
    all.sort_by_key(|event| event.received.0);
    let mut times = Vec::new();
    let (mut writer, mut released) = (None, None);
    for event in &all {
        if event.resource == "leases" {
            // The last write of a holder to the lease frees it.
            if writer == Some(&event.user) {
                released = Some(event.received.0);
            }
            continue;
        }
        if writer.is_some_and(|writer| writer != &event.user) {
            times.push(since(released.unwrap(), event));
        }
        writer = Some(&event.user);
    }
    times
}
