//! Scenarios 41 to 46: several controllers share a type.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use kube::api::ListParams;
use pilotlight::{
    controller::{Context, Controller, Outcome, ReconcileError, Reconciler, Request},
    informer::{InformerKey, InformerProgress, Linger, Projection, Subscription},
    kind::ServedType,
    manager::{
        ConditionalRunnable, ControllerState, Epoch, Readiness, RunResult, Runnable,
        RunnableStatus, always,
    },
    testing::CrdBuilder,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::Testbed;
use crate::support::{PATIENCE, RecordingReconciler, Server, type_of, until};

scenarios! {
    41 one_of_two_controllers_that_share_a_watch_stops both:
        "the other controller sees every change once: no gap, no replay, no request, and the same \
         watch";
    42 a_subscriber_joins_while_the_last_one_leaves both:
        "at any moment, the new subscriber gets a live watch: the existing objects and the next \
         change";
    43 a_late_joiner_gets_a_snapshot_and_then_events both:
        "each version of an object at most once, in order, and finally the server's state, \
         including deletions; no request";
    44 a_slow_controller_on_a_shared_type both:
        "its own queue holds each object at most once; the other controllers see each change at \
         once";
    45 different_keys_on_one_type_do_not_share both:
        "equal keys share a watch, unequal keys have separate watches, each is listed, and the \
         metrics of the type count all; joining and leaving causes no event for other \
         subscribers, and the last one to leave frees the memory and removes the series";
    46 one_controller_panics both:
        "its back-off starts at a second and doubles, and its status reports it like a failure; \
         other controllers continue in their epoch, and no other reconcile is repeated";
}

/// Waits until exactly one watch of the type is open.
async fn watched(testbed: &Testbed, crd: &CrdBuilder) {
    until("one watch is open", async || match testbed.open_watches(crd).await {
        1 => Ok(()),
        open => Err(format!("{open} are")),
    })
    .await;
}

async fn one_of_two_controllers_that_share_a_watch_stops(server: Server<'static>) {
    let testbed = Testbed::on(server, "share-stop").await;
    let crd = testbed.widgets();
    let ones = testbed.controller("one", &crd).await;
    let others = testbed.controller("other", &crd).await;
    testbed.install(&crd).await;
    testbed.running("one", 1).await;
    testbed.running("other", 1).await;
    testbed.create(&crd, "first", 1).await;
    ones.saw("first", 1).await;
    others.saw("first", 1).await;
    watched(&testbed, &crd).await;
    let position = testbed.position();

    for number in 0..10 {
        testbed.create(&crd, &format!("gapless-{number}"), 1).await;
        if number == 4 {
            testbed.manager.remove("one").await;
        }
    }
    for number in 0..10 {
        others.saw(&format!("gapless-{number}"), 1).await;
    }

    let seen: Vec<_> = others.all().into_iter().map(|seen| seen.name).collect();
    let once: BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), once.len()), (11, 11), "each once: {seen:?}");
    let requests = testbed.requests(&crd, position).await;
    assert!(requests.is_empty(), "{requests:#?}");
    assert_eq!(testbed.open_watches(&crd).await, 1);
    assert_eq!(testbed.cluster.informers.status()[0].subscribers, 1);
    testbed.uninstall(&crd).await;
    testbed.finish().await;
}

async fn a_subscriber_joins_while_the_last_one_leaves(server: Server<'static>) {
    let testbed = Testbed::on(server, "share-join").await;
    let crd = testbed.widgets();
    testbed.controller("user-0", &crd).await;
    testbed.install(&crd).await;
    testbed.create(&crd, "first", 1).await;
    testbed.running("user-0", 1).await;

    // An unused informer lingers for half a second; the delays lie before, near and after that.
    for (delay, round) in [0, 1, 100, 495, 499, 500, 501, 505, 700].into_iter().zip(1..) {
        let (old, new) = (format!("user-{}", round - 1), format!("user-{round}"));
        let recorder = match delay {
            0 => tokio::join!(testbed.manager.remove(old), testbed.controller(&new, &crd)).1,
            _ => {
                testbed.manager.remove(old).await;
                sleep(Duration::from_millis(delay)).await;
                testbed.controller(&new, &crd).await
            }
        };
        testbed.running(&new, 1).await;
        recorder.saw("first", 1).await;
        testbed.resize(&crd, "first", 1 + round).await;
        let resized = recorder.until("the next change", |seen| seen.size == Some(1 + round));
        resized.await;
        let informers = testbed.cluster.informers.status();
        assert_eq!(informers.iter().map(|it| it.subscribers).collect::<Vec<_>>(), [1]);
    }

    watched(&testbed, &crd).await;
    testbed.uninstall(&crd).await;
    testbed.finish().await;
}

async fn a_late_joiner_gets_a_snapshot_and_then_events(server: Server<'static>) {
    let testbed = Testbed::on(server, "share-late").await;
    let crd = testbed.widgets();
    let first = testbed.controller("first", &crd).await;
    testbed.install(&crd).await;
    testbed.running("first", 1).await;
    for number in 0..20 {
        testbed.create(&crd, &format!("gear-{number}"), 0).await;
        first.saw(&format!("gear-{number}"), 1).await;
    }
    for number in 0..5 {
        testbed.delete(&crd, &format!("gear-{number}")).await;
    }
    watched(&testbed, &crd).await;
    let position = testbed.position();

    let served = testbed.cluster.types.served(&type_of(&crd, "v1")).unwrap();
    let key = InformerKey::new(served.identity.clone());
    let mut late = testbed.enter(|| testbed.cluster.informers.subscribe(&served, key));
    let changes = async {
        for number in 5..20 {
            testbed.resize(&crd, &format!("gear-{number}"), number).await;
            if number % 3 == 0 {
                testbed.delete(&crd, &format!("gear-{number}")).await;
            }
        }
        testbed.create(&crd, "last", 1).await;
    };
    let mut versions = BTreeMap::<String, Vec<u64>>::new();
    let mut view = BTreeMap::new();
    let look = async {
        while !view.contains_key("last") {
            let delta = late.next().await.unwrap();
            let name = delta.key.name.to_string();
            let Some(new) = delta.new else {
                assert!(view.remove(&name).is_some(), "deletion of an unknown object {name}");
                continue;
            };
            let version = new.header().resource_version.to_string();
            versions.entry(name.clone()).or_default().push(version.parse().unwrap());
            view.insert(name, version);
        }
    };
    timeout(PATIENCE, async { tokio::join!(changes, look) }).await.unwrap();

    for (name, versions) in &versions {
        assert!(versions.is_sorted_by(|one, next| one < next), "{name}: {versions:?}");
    }
    let listed = testbed.scope.api(&crd, "v1").list(&ListParams::default()).await.unwrap();
    let there = listed.items.into_iter().map(|object| object.metadata);
    let there = there.map(|it| (it.name.unwrap(), it.resource_version.unwrap()));
    assert_eq!(view, there.collect::<BTreeMap<_, _>>());
    let requests = testbed.requests(&crd, position).await;
    assert!(requests.is_empty(), "{requests:#?}");
    late.release(Linger::Default).await;
    testbed.uninstall(&crd).await;
    testbed.finish().await;
}

/// Holds each request until the test releases it.
struct Slow {
    held: watch::Receiver<bool>,
    recorder: RecordingReconciler,
}

impl Reconciler for Slow {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let mut held = self.held.clone();
        held.wait_for(|held| !held).await.map_err(|error| error.to_string())?;
        self.recorder.reconcile(request, context).await
    }
}

async fn a_slow_controller_on_a_shared_type(server: Server<'static>) {
    let testbed = Testbed::on(server, "share-slow").await;
    let crd = testbed.widgets();
    let (held, holding) = watch::channel(true);
    let slow = RecordingReconciler::new(type_of(&crd, "v1"));
    let controller = Controller::builder("slow")
        .for_type(type_of(&crd, "v1"))
        .conditional()
        .build(&testbed.cluster, Slow { held: holding, recorder: slow.clone() })
        .unwrap();
    testbed.add("slow", Arc::new(controller)).await;
    let quick = testbed.controller("quick", &crd).await;
    testbed.install(&crd).await;
    for name in ["a", "b", "c"] {
        testbed.create(&crd, name, 0).await;
    }
    testbed.running("slow", 1).await;

    for size in 1..=60 {
        for name in ["a", "b", "c"] {
            testbed.resize(&crd, name, size).await;
            let change = quick.until("each change", |it| it.name == name && it.size == Some(size));
            testbed.at_once(change).await;
        }
    }

    assert!(slow.all().is_empty());
    let metrics = crate::support::metrics_text(&testbed.metrics);
    let depth = metrics
        .lines()
        .filter(|line| line.starts_with("workqueue_depth{") && line.contains("name=\"slow\""));
    let depth: Vec<u64> =
        depth.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!depth.is_empty(), "no depth of the queue in the metrics: {metrics}");
    let depth: u64 = depth.into_iter().sum();
    assert!(depth <= 3, "an object is in its queue once: {depth}");
    held.send_replace(false);
    for name in ["a", "b", "c"] {
        slow.until("the last state", |it| it.name == name && it.size == Some(60)).await;
    }
    assert!(
        slow.all().len() <= 4,
        "one reconcile in progress, and one for each object: {:?}",
        slow.all()
    );
    testbed.uninstall(&crd).await;
    testbed.finish().await;
}

/// Waits until the subscription is synced, and returns the number of its changes.
async fn synced(subscription: &mut Subscription) -> usize {
    let mut progress = subscription.progress();
    timeout(PATIENCE, progress.wait_for(|it| *it == InformerProgress::Synced))
        .await
        .unwrap()
        .unwrap();
    let mut seen = 0;
    while let Ok(delta) = timeout(Duration::from_millis(200), subscription.next()).await {
        delta.unwrap();
        seen += 1;
    }
    seen
}

/// Keys of informers of one type, of which no two are equal.
fn different_keys(served: &ServedType, namespace: &str) -> [InformerKey; 5] {
    let whole = InformerKey::new(served.identity.clone());
    [
        whole.clone(),
        InformerKey { namespace: Some(namespace.into()), ..whole.clone() },
        InformerKey { labels: Some("chosen=yes".into()), ..whole.clone() },
        InformerKey { projection: Projection::Metadata, ..whole.clone() },
        InformerKey { managed_fields: true, ..whole.clone() },
    ]
}

async fn different_keys_on_one_type_do_not_share(server: Server<'static>) {
    let testbed = Testbed::on(server, "share-keys").await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    testbed.create(&crd, "plain", 1).await;
    let types = &testbed.cluster.types;
    testbed.type_state(&type_of(&crd, "v1"), "is served", |state| state.word() == "Served").await;
    let served = types.served(&type_of(&crd, "v1")).unwrap();
    let keys = different_keys(&served, &testbed.scope.namespace);
    let subscribe = |key: &InformerKey| {
        testbed.enter(|| testbed.cluster.informers.subscribe(&served, key.clone()))
    };

    let mut firsts = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let mut first = subscribe(key);
        let expected = usize::from(key.labels.is_none());
        assert_eq!(synced(&mut first).await, expected, "{key:?}");
        firsts.push(first);
        until("each has a watch of its own", async || match testbed.open_watches(&crd).await {
            open if open == number + 1 => Ok(()),
            open => Err(format!("{open} are open, not {}", number + 1)),
        })
        .await;
    }
    let group = testbed.scope.group.clone();
    let metric = |name: &str| {
        let name = format!("pilotlight_informer_{name}");
        crate::support::metric_of_type(&testbed.metrics, &name, &group, "widgets")
    };
    let metrics = async |informers: i64, objects: i64| {
        let wanted = (Some(informers), Some(objects));
        until(&format!("the metrics say {wanted:?}"), async || {
            match (metric("tasks"), metric("objects")) {
                found if found == wanted => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await;
        let bytes = testbed.cluster.informers.status().iter().map(|it| it.bytes).sum::<usize>();
        assert_eq!(metric("cached_bytes"), i64::try_from(bytes).ok());
    };
    // The label selector of one key matches no object.
    metrics(5, 4).await;
    let position = testbed.position();
    let mut seconds: Vec<_> = keys.iter().map(&subscribe).collect();
    for (key, second) in keys.iter().zip(&mut seconds) {
        assert_eq!(synced(second).await, usize::from(key.labels.is_none()), "{key:?}");
    }
    let requests = testbed.requests(&crd, position).await;
    assert!(requests.is_empty(), "equal keys share: {requests:#?}");
    let status = testbed.cluster.informers.status();
    let subscribers: BTreeMap<_, _> =
        status.iter().map(|it| (format!("{:?}", it.key), it.subscribers)).collect();
    assert_eq!(subscribers, keys.iter().map(|key| (format!("{key:?}"), 2)).collect());
    metrics(5, 4).await;

    let (kept, leaving) = (firsts.remove(0), firsts);
    for subscription in leaving.into_iter().chain(seconds) {
        subscription.release(Linger::None).await;
    }
    let mut kept = kept;
    assert_eq!(synced(&mut kept).await, 0, "the end of other subscriptions is no event");
    let status = testbed.cluster.informers.status();
    assert_eq!(status.iter().map(|it| it.subscribers).collect::<Vec<_>>(), [1], "{status:#?}");
    metrics(1, 1).await;
    kept.release(Linger::None).await;
    assert!(testbed.cluster.informers.status().is_empty());
    let left = ["tasks", "objects", "cached_bytes", "events_total"].map(metric);
    assert_eq!(left, [None; 4], "the last subscriber removes the series");
    testbed.uninstall(&crd).await;
    testbed.finish().await;
}

/// Fails as soon as it starts.
enum Failing {
    Panicking,
    Returning,
}

impl Runnable for Failing {
    fn start(&self, _epoch: Epoch) -> BoxFuture<'static, RunResult> {
        match self {
            Self::Panicking => Box::pin(async { panic!("injected panic at the start") }),
            Self::Returning => Box::pin(async { Err("injected failure at the start".into()) }),
        }
    }
}

impl ConditionalRunnable for Failing {
    fn ready(&self) -> Readiness {
        always()
    }
}

/// Asserts that the restarts follow their failures after one second, then two, then four.
fn assert_backed_off(testbed: &Testbed, name: &str) {
    let failed = testbed.entered(name, ControllerState::BackingOff);
    let tried = testbed.entered(name, ControllerState::Starting);
    assert!(failed.len() >= 3 && tried.len() >= 3, "{failed:?} {tried:?}");
    if !testbed.server.is_simulated() {
        // In real time, a busy machine may notice each failure late.
        return;
    }
    for (number, (failed, tried)) in (0..).zip(failed.iter().zip(&tried[1..])) {
        let waited = tried.duration_since(*failed);
        let full = Duration::from_secs(1 << number);
        // Jitter spreads simultaneous failures by a fifth.
        let in_time = full.mul_f64(0.8)..=full + Duration::from_millis(10);
        assert!(in_time.contains(&waited), "{name} was tried again after {waited:?}, not {full:?}");
    }
}

async fn one_controller_panics(server: Server<'static>) {
    let testbed = Testbed::on(server, "share-panic").await;
    let crd = testbed.widgets();
    let others = testbed.controller("other", &crd).await;
    testbed.install(&crd).await;
    testbed.create(&crd, "first", 1).await;
    others.saw("first", 1).await;
    watched(&testbed, &crd).await;
    let position = testbed.position();

    let failures =
        [("broken", Failing::Panicking, "panic"), ("failed", Failing::Returning, "failure")];
    let mut broken = Vec::new();
    for (name, failure, failure_name) in failures {
        testbed.add(name, Arc::new(failure)).await;
        broken.push((name, format!("injected {failure_name} at the start")));
    }
    for (name, _) in &broken {
        let fails =
            |it: &RunnableStatus| it.failures >= 3 && it.state == ControllerState::BackingOff;
        testbed.until(name, "fails again", fails).await;
    }
    for size in 2..10 {
        testbed.resize(&crd, "first", size).await;
        others.until("each change", |seen| seen.size == Some(size)).await;
    }

    for (name, error) in &broken {
        let status = testbed.status(name);
        assert!(status.epoch >= 3, "each try is an epoch: {status:#?}");
        assert!(status.last_error().unwrap().contains(error), "{status:#?}");
        assert_eq!(testbed.assert_orderly(name), status.epoch);
        assert_backed_off(&testbed, name);
    }
    let other = testbed.status("other");
    assert_eq!((other.state, other.epoch, other.failures), (ControllerState::Running, 1, 0));
    let requests = testbed.requests(&crd, position).await;
    assert!(requests.is_empty(), "{requests:#?}");
    testbed.uninstall(&crd).await;
    testbed.finish().await;
}
