//! Controllers with inputs of two clusters.

use kube::{Api, api::PostParams, core::DynamicObject};

use super::{
    unknown_outcome::{make, part_resource},
    *,
};
use crate::{
    controller::ReconcileError,
    informer::{InformerKey, Object},
    manager::{Readiness, type_served},
    testing::{Action, Reply, Rule, Verb},
};

/// Reconciler of widgets that reads the part of the same name in both clusters, and creates it in
/// the other one.
struct Mirror {
    other: Cluster,
    log: Log,
}

impl Reconciler for Mirror {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let other = context.of_cluster(&self.other);
        let seen = |context: &Context| match context.store(&parts()) {
            Err(_) => "missing".to_owned(),
            Ok(store) => match store.get(&request) {
                None => "none".to_owned(),
                Some(part) => part.header().labels.get("mark").unwrap().to_owned(),
            },
        };
        let note = format!("{request} here {}, there {}", seen(&context), seen(&other));
        self.log.lock().unwrap().push(note);
        if seen(&other) == "none" {
            let parts = Api::<DynamicObject>::namespaced_with(
                other.client().clone(),
                "ns",
                &part_resource(),
            );
            let mut part = DynamicObject::new(&request.name, &part_resource());
            part.metadata.labels = Some([("mark".to_owned(), "created".to_owned())].into());
            parts.create(&PostParams::default(), &part).await?;
        }
        Ok(Outcome::Done)
    }
}

impl Harness {
    /// Adds another cluster, named `other`, to the manager.
    async fn other_cluster(&self) -> (Server, Cluster) {
        let server = Server::new();
        let (other, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        runnable.add_to_running(&self.manager, "other").await.unwrap();
        (server, other)
    }

    /// Runs a controller of widgets with the parts of another cluster as an input.
    async fn run_with_parts_of(&self, other: &Cluster, reconciler: impl Reconciler) {
        let builder = builder().for_type(widgets());
        let builder = builder.watches_type(parts(), Handler::map(|_| Vec::new()));
        let controller = builder.in_cluster(other).build(&self.cluster, reconciler);
        controller.unwrap().add_to_running(&self.manager).await.unwrap();
        self.state(ControllerState::Running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn input_of_another_cluster_has_a_cache_and_a_life_of_its_own() {
    let mut harness = Harness::new();
    let (server, other) = harness.other_cluster().await;
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(object("Part", "a", "own"));
    let controller = builder()
        .for_type(widgets())
        .conditional()
        .watches_type(parts(), Handler::Object)
        .watches_type(parts(), Handler::Object)
        .in_cluster(&other)
        .optional()
        .build(&harness.cluster, Mirror { other: other.clone(), log: Arc::clone(&harness.log) });
    controller.unwrap().add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a here own, there missing"]);

    // The type appears in the other cluster, and the object is created there alone.
    server.install(crd("Part"), &["v1"]);
    run_until_idle().await;
    server.apply(object("Part", "b", "other"));
    let seen = harness.log().await;
    assert_eq!(seen, ["ns/b here none, there other"]);
    harness.server.apply(widget("a", "again"));
    let seen = harness.log().await;
    assert_eq!(seen, ["ns/a here own, there none", "ns/a here own, there created"]);
    assert_eq!((server.watches(PARTS), harness.server.watches(PARTS)), (1, 1));

    // The type is gone there: the controller continues with its own.
    server.uninstall("parts");
    assert!(harness.log().await.iter().all(|it| it.ends_with("there missing")));
    harness.server.apply(widget("a", "last"));
    assert_eq!(harness.log().await, ["ns/a here own, there missing"]);
    assert_eq!(harness.status().epoch, 1);
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconcile_waits_until_the_cache_of_another_cluster_holds_what_it_wrote() {
    for lost in [false, true] {
        let mut harness = Harness::new();
        let (server, other) = harness.other_cluster().await;
        harness.install("Widget");
        harness.install("Part");
        server.install(crd("Part"), &["v1"]);
        let (log, there) = (Arc::clone(&harness.log), other.clone());
        let reconcile = move |request: Request, context: Context| {
            let there = context.of_cluster(&there);
            let count = |context: &Context| context.store(&parts()).unwrap().all().len();
            let (of_own, of_other) = (count(&context), count(&there));
            log.lock().unwrap().push(format!("{request} here {of_own}, there {of_other}"));
            async move {
                if of_other == 0 {
                    make(there.client().clone(), request.name.to_string()).await?;
                }
                Ok(Outcome::Done)
            }
        };
        let controller = builder()
            .for_type(widgets())
            .owns_type(parts())
            .watches_type(parts(), Handler::map(|_| Vec::new()))
            .in_cluster(&other)
            .build(&harness.cluster, reconcile);
        controller.unwrap().add_to_running(&harness.manager).await.unwrap();
        harness.state(ControllerState::Running).await;
        // The caches of both clusters have the same key, and neither receives events.
        harness.server.withhold("parts");
        let silence = server.withhold("parts");
        let lists = harness.server.lists("parts");
        if lost {
            server.mishap(Action::Lose);
        }
        harness.server.apply(widget("a", "a"));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(harness.log().await, ["ns/a here 0, there 0"]);

        harness.server.apply(widget("a", "b"));
        sleep(Duration::from_secs(60)).await;

        assert_eq!(harness.log().await, [""; 0], "{lost}");
        assert_eq!((server.creations(), server.count("Part")), (1, 1), "{lost}");
        assert_eq!(harness.server.lists("parts"), lists, "the own cluster is not read: {lost}");
        server.release("parts", silence);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.log().await, ["ns/a here 0, there 1"], "{lost}");
        harness.server.apply(widget("a", "c"));
        assert_eq!(harness.log().await, ["ns/a here 0, there 1"], "{lost}");
        harness.stop.cancel();
        harness.tasks.join_next().await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn other_cluster_that_cannot_be_read_after_a_write_blocks_no_reconcile() {
    let mut harness = Harness::new();
    let (server, other) = harness.other_cluster().await;
    harness.install("Widget");
    server.install(crd("Part"), &["v1"]);
    let (log, there) = (Arc::clone(&harness.log), other.clone());
    let reconcile = move |request: Request, context: Context| {
        let there = context.of_cluster(&there);
        let (seen, unknown) = (there.store(&parts()).unwrap().all().len(), there.after_unknown());
        log.lock().unwrap().push(format!("{request} {seen} {unknown}"));
        async move {
            if seen == 0 && !unknown {
                make(there.client().clone(), request.name.to_string()).await?;
            }
            Ok(Outcome::Done)
        }
    };
    harness.run_with_parts_of(&other, reconcile).await;
    let silence = server.withhold("parts");
    let down = Reply::status(503, "ServiceUnavailable", "it is down");
    let down = Rule::new(Action::Instead(down)).verb(Verb::List).resource("example.com", "parts");
    let down = server.fault(down);
    server.mishap(Action::Lose);

    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, ["ns/a 0 false", "ns/a 0 true"]);
    harness.server.apply(widget("a", "b"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, ["ns/a 0 true"], "the outcome is still unknown");

    server.remove(down);
    harness.server.apply(widget("a", "c"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, [""; 0], "the outcome is known, and the cache is behind");
    server.release("parts", silence);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, ["ns/a 1 true"]);
    harness.server.apply(widget("a", "d"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, ["ns/a 1 false"]);
    assert_eq!(server.creations(), 1);
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn other_cluster_that_hangs_is_read_once_before_a_reconcile() {
    let mut harness = Harness::new();
    let (server, other) = harness.other_cluster().await;
    harness.install("Widget");
    server.install(crd("Part"), &["v1"]);
    let (log, there) = (Arc::clone(&harness.log), other.clone());
    let reconcile = move |request: Request, context: Context| {
        let there = context.of_cluster(&there);
        log.lock().unwrap().push(format!("{request} {}", there.after_unknown()));
        async move {
            let (client, resource) = (there.client().clone(), part_resource());
            let parts = Api::<DynamicObject>::namespaced_with(client, "ns", &resource);
            for number in 0..if there.after_unknown() { 0 } else { 4 } {
                let part = DynamicObject::new(&format!("{}-{number}", request.name), &resource);
                drop(parts.create(&PostParams::default(), &part).await);
            }
            Ok(Outcome::Done)
        }
    };
    harness.run_with_parts_of(&other, reconcile).await;
    server.withhold("parts");
    server.fault(Rule::new(Action::Hang).verb(Verb::List).resource("example.com", "parts"));
    for _ in 0..4 {
        server.mishap(Action::Lose);
    }

    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, ["ns/a false"]);
    harness.server.apply(widget("a", "b"));
    sleep(Duration::from_secs(40)).await;

    assert_eq!(harness.log().await, ["ns/a true"], "one read takes 30 s");
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn other_cluster_that_answers_slowly_is_read_for_every_request() {
    let mut harness = Harness::new();
    let (server, other) = harness.other_cluster().await;
    harness.install("Widget");
    server.install(crd("Part"), &["v1"]);
    let (log, there) = (Arc::clone(&harness.log), other.clone());
    let reconcile = move |request: Request, context: Context| {
        let there = context.of_cluster(&there);
        let cached = there.store(&parts()).unwrap().all();
        let is_own = |part: &&Object| part.key().name.starts_with(&*request.name);
        let have = cached.iter().filter(is_own).count();
        log.lock().unwrap().push(format!("{request} {have}"));
        async move {
            if have == 0 {
                make(there.client().clone(), request.name.to_string()).await?;
            }
            Ok(Outcome::Done)
        }
    };
    harness.run_with_parts_of(&other, reconcile).await;
    let silence = server.withhold("parts");
    let slow = Action::Delay(Duration::from_secs(3));
    server.fault(Rule::new(slow).verb(Verb::List).resource("example.com", "parts"));
    for number in 0..15 {
        server.mishap(Action::Lose);
        let name = format!("w{number:02}");
        harness.server.apply(widget(&name, &name));
    }

    sleep(Duration::from_secs(20)).await;
    assert_eq!((harness.log().await.len(), server.creations()), (15, 15));
    server.release("parts", silence);
    sleep(Duration::from_secs(60)).await;

    let log = harness.log().await;
    assert!(log.len() >= 15 && log.iter().all(|note| note.ends_with(" 1")), "{log:?}");
    assert_eq!(server.creations(), 15);
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn handler_reads_the_caches_of_another_cluster() {
    let mut harness = Harness::new();
    let (server, other) = harness.other_cluster().await;
    harness.install("Widget");
    server.install(crd("Widget"), &["v1"]);
    server.apply(widget("a", "there"));
    let (log, own, there) = (Arc::clone(&harness.log), harness.cluster.clone(), other.clone());
    let handler = Handler::delta(move |change, queue| {
        let seen = |queue: &Enqueue<'_>| match queue.store(&widgets()) {
            Err(_) => "missing".to_owned(),
            Ok(store) => store
                .get(&change.key)
                .map_or("none".to_owned(), |it| it.header().labels.get("mark").unwrap().to_owned()),
        };
        let notes = [seen(queue), seen(&queue.of_cluster(&own)), seen(&queue.of_cluster(&there))];
        queue.of_cluster(&there).add(change.key.clone());
        log.lock().unwrap().push(notes.join(" "));
    });
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, _: Context| {
        log.lock().unwrap().push(request.to_string());
        async { Ok(Outcome::Done) }
    };
    let described = builder()
        .watches_type(widgets(), handler)
        .watches_type(widgets(), Handler::map(|_| Vec::new()))
        .in_cluster(&other);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;

    harness.server.apply(widget("a", "here"));

    assert_eq!(harness.log().await, ["here here there", "ns/a"]);
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_watched_types_can_be_of_another_cluster() {
    let harness = Harness::new();
    let (other, _runnable) = Cluster::new(Server::new().client(), ClusterOptions::default());
    let build = |builder: Builder| {
        let reconciler = LoggingReconciler { log: Log::default() };
        builder.build(&harness.cluster, reconciler).map(drop).map_err(|error| error.to_string())
    };

    let error = build(builder().for_type(widgets()).in_cluster(&other)).unwrap_err();
    assert!(error.contains("in_cluster"), "{error}");
    let error = build(builder().for_type(widgets()).owns_type(parts()).in_cluster(&other));
    assert!(error.unwrap_err().contains("in_cluster"));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn input_of_a_cluster_that_is_not_run_says_what_to_do() {
    for mode in ["conditional", "optional", "plain"] {
        let harness = Harness::new();
        harness.install("Widget");
        let (other, _not_added) = Cluster::new(Server::new().client(), ClusterOptions::default());
        let input = builder().for_type(widgets()).watches_type(parts(), Handler::Object);
        let input = input.in_cluster(&other);
        let input = match mode {
            "conditional" => input.conditional(),
            "optional" => input.optional(),
            _ => input,
        };
        let reconcile = |_: Request, _: Context| async { Ok(Outcome::Done) };
        let controller = input.build(&harness.cluster, reconcile).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();

        let reason = match mode {
            "conditional" => "DiscoveryNotStarted",
            "optional" => "Degraded",
            _ => "SourcesSyncing",
        };
        let status = harness.until(|status| status.reason == reason).await;

        let of_watch = status.report.watches.iter().find_map(|watch| watch.error.as_ref());
        let message = of_watch.unwrap_or(&status.message);
        assert!(message.contains("add the runnable of its cluster to a manager"), "{message}");
        assert!(message.contains("parts"), "{message}");
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn check_of_a_removed_cluster_is_removed() {
    let mut harness = Harness::new();
    let server = Server::new();
    let (_, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let manager = harness.manager.clone();
    let is_checked = || {
        let checks = manager.readiness().results();
        checks.iter().any(|check| check.to_string().contains("discovery/other"))
    };

    runnable.add_to_running(&harness.manager, "other").await.unwrap();
    run_until_idle().await;
    assert!(is_checked());
    harness.manager.remove("other").await;
    run_until_idle().await;

    assert!(!is_checked());
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

/// Source of all objects of a type of a cluster.
struct AllThere(Cluster, TypeRef);

impl ConditionalSource for AllThere {
    fn ready(&self) -> Readiness {
        type_served(&self.0.types, &self.1)
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let served = self.0.types.served(&self.1).unwrap();
        let key = InformerKey::new(served.identity.clone());
        let mut changes = self.0.informers.subscribe(&served, key);
        let (drained, there) = (changes.drained(), self.0.clone());
        let done = async move {
            let run = async {
                context.offer_of(&there, &served, &changes).await;
                while let Ok(change) = changes.next().await {
                    context.deliver(&change);
                }
            };
            tokio::select! {
                () = context.released() => {}
                () = run => {}
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: drained.map(Ok).boxed(), done: done.boxed() }
    }
}

#[tokio::test(start_paused = true)]
async fn cache_that_a_custom_source_offers_is_that_of_its_cluster() {
    let mut harness = Harness::new();
    let (server, other) = harness.other_cluster().await;
    harness.install("Widget");
    harness.install("Part");
    server.install(crd("Part"), &["v1"]);
    server.apply(object("Part", "b", "other"));
    let mirror = Mirror { other: other.clone(), log: Arc::clone(&harness.log) };
    let described = builder()
        .for_type(widgets())
        .source(AllThere(other, parts()))
        .conditional()
        .source(AllThere(harness.cluster.clone(), widgets()))
        .conditional();
    let controller = described.build(&harness.cluster, mirror).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/b here missing, there other"]);

    // The reconcile that follows a write waits for the cache of its cluster.
    let silence = server.withhold("parts");
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a here missing, there none"]);
    harness.server.apply(widget("a", "again"));
    assert_eq!(harness.log().await, [""; 0]);
    server.release("parts", silence);
    sleep(Duration::from_secs(5)).await;
    let log = harness.log().await;
    assert!(!log.is_empty(), "the cache holds the part");
    assert!(log.iter().all(|it| it == "ns/a here missing, there created"), "{log:?}");
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}
