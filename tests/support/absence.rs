//! Leak assertions: no request, informer, task or watch of an epoch is left when it is done or
//! afterwards.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::{api::core::v1::Namespace, jiff::Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams, WatchParams},
};
use pilotlight::{
    informer::InformerStatus,
    testing::{CrdBuilder, LeakOracle, Measure},
};
use tokio::{task::JoinSet, time::timeout};

use super::{Harness, PATIENCE, Position, about, eventually, metrics};

/// Turns of the scheduler that let every ready task run before the remaining tasks are counted.
const TURNS: usize = 100;

/// Metric families that are gauges of existing things, not counters of past events.
const GAUGES: &[&str] = &[
    "workqueue_depth",
    "pilotlight_informer_watches",
    "pilotlight_informer_objects",
    "pilotlight_informer_cached_bytes",
];

/// Period during which no request for a type may be sent.
#[must_use = "call `end` to check the absence"]
pub(crate) struct Absence {
    crd: CrdBuilder,
    begin: Position,
    since: Timestamp,
}

impl Harness<'_> {
    /// Returns an oracle that counts the remains of Pilotlight: in the runtime, at the server and
    /// in its own metrics.
    pub(crate) fn leaks(&self) -> LeakOracle {
        let metrics = self.metrics.clone();
        let informers = self.cluster.informers.clone();
        let cached = move |number: fn(&InformerStatus) -> usize| {
            let informers = informers.clone();
            move || {
                let all = informers.status();
                let named = all.iter().map(|it| (format!("{:?}", it.key), number(it) as u64));
                named.collect::<BTreeMap<_, _>>()
            }
        };
        let oracle = LeakOracle::new()
            .patience(PATIENCE)
            .tasks("Pilotlight", &self.handle)
            .requests(&self.faults);
        let oracle = self.server.watched(oracle, &self.user, self.begin);
        let oracle = match self.transport.clone() {
            Some(transport) => oracle.probe("connections", move || {
                BTreeMap::from([("the transport".to_owned(), transport.connections() as u64)])
            }),
            None => oracle,
        };
        oracle
            .probe("informers", cached(|_| 1))
            .probe("cached objects", cached(|it| it.objects))
            .probe("cached bytes", cached(|it| it.bytes))
            .series(move || metrics::text(&metrics), GAUGES)
            // A series for each status code that the server has answered with.
            .expect_more("series", "rest_client_requests_total")
            // A series for each verb.
            .expect_more("series", "rest_client_request_duration_seconds")
            // A series for each kind of discovery failure.
            .expect_more("series", "pilotlight_discovery_requests_total")
            .expect_more("series", "pilotlight_discovery_watch_failures_total")
            // A series for each state that a type was seen in.
            .expect_more("series", "pilotlight_types{")
            .memory()
    }

    /// Opens the pooled connections, so that they belong to the baseline.
    ///
    /// Runs in Pilotlight's runtime, because the tasks of a connection belong to the runtime that
    /// opened it.
    pub(crate) async fn warm_up(&self) {
        let namespaces = Api::<Namespace>::all(self.cluster.unfenced_client().clone());
        let mut opening = JoinSet::new();
        let opened = async move {
            let listed = namespaces.list(&ListParams::default().limit(1)).await.unwrap();
            let version = listed.metadata.resource_version.unwrap();
            let watch = namespaces.watch(&WatchParams::default(), &version).await.unwrap().boxed();
            drop(watch);
            // Writes have series of their own; the result of this one does not matter.
            drop(namespaces.delete("there-is-none", &DeleteParams::default()).await);
        };
        opening.spawn_on(opened, &self.handle);
        opening.join_next().await.unwrap().unwrap();
    }

    /// Asserts that each task spawned since the baseline has a name: the growth of the runtime's
    /// task count equals the growth of the metrics' count.
    pub(crate) async fn every_task_has_a_name(&self, leaks: &LeakOracle, baseline: &Measure) {
        let nameless = |it: &Measure| it.total("tasks").checked_sub(it.total("named tasks"));
        eventually("every task has a name", || {
            let now = leaks.measure();
            let named = now.total("named tasks") > baseline.total("named tasks");
            match nameless(&now) == nameless(baseline) && named {
                true => Ok(()),
                false => Err(format!("{now:#?}, {baseline:#?} before")),
            }
        })
        .await;
    }

    /// Deletes a CRD, and waits until no request for its type is open and no informer is left.
    pub(crate) async fn remove_type(&self, crd: &CrdBuilder) {
        self.scope.delete_crd(crd).await.unwrap();
        timeout(PATIENCE, self.scope.wait_gone(crd)).await.unwrap().unwrap();
        let is_about = about(crd);
        let resource = crd.api_resource("v1");
        eventually("nothing of the type is under way", || {
            let mut open = self.faults.open();
            open.retain(|open| is_about(&open.info));
            let mut informers = self.cluster.informers.status();
            informers.retain(|it| {
                *it.key.identity.group == *resource.group
                    && *it.key.identity.plural == *resource.plural
            });
            match open.is_empty() && informers.is_empty() {
                true => Ok(()),
                false => Err(format!("{open:?} {informers:?}")),
            }
        })
        .await;
    }

    /// Asserts that nothing of a type is left. Call it as soon as done has fired.
    pub(crate) async fn assert_absent(&self, crd: &CrdBuilder, tasks: usize) -> Absence {
        // Checked without a wait, because done promises these at once.
        let since = self.server.clock();
        let begin = self.position();
        self.faults.forget_seen();
        let is_about = about(crd);
        let mut open = self.faults.open();
        open.retain(|open| is_about(&open.info));
        assert!(open.is_empty(), "requests are under way after done: {open:?}");
        let resource = crd.api_resource("v1");
        let mut informers = self.cluster.informers.status();
        informers.retain(|it| {
            *it.key.identity.group == *resource.group && *it.key.identity.plural == *resource.plural
        });
        assert!(informers.is_empty(), "informers outlive their type: {informers:?}");

        // In a single-threaded runtime, finished tasks are gone once every task had its turn; no
        // time passes.
        if self.server.script().is_some() {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let alive = self.alive_tasks();
            assert!(alive <= tasks, "{alive} tasks at done, {tasks} before");
        }
        // On the control plane, the runtime's other thread and the server need time to reap
        // finished tasks and closed connections.
        eventually("tasks return to the baseline", || match self.alive_tasks() {
            alive if alive <= tasks => Ok(()),
            alive => {
                Err(format!("{alive} tasks, {tasks} before; {} connections", self.connections()))
            }
        })
        .await;
        let mut open = self.open_watches(crd).await;
        for _ in 0..200 {
            if open == 0 {
                break;
            }
            open = self.open_watches(crd).await;
        }
        assert_eq!(open, 0, "the server has watches open after done");
        Absence { crd: crd.clone(), begin, since }
    }
}

impl Absence {
    /// Asserts that no request for the type was sent since the absence began.
    pub(crate) async fn end(self, harness: &Harness<'_>) {
        let sent: Vec<_> = harness.faults.seen().into_iter().filter(about(&self.crd)).collect();
        assert!(sent.is_empty(), "requests after done: {sent:#?}");
        let mut received = harness.requests(&self.crd, self.begin).await;
        received.retain(|event| event.received.0 > self.since);
        assert!(received.is_empty(), "the server got requests after done: {received:#?}");
    }
}
