//! Options of the builder and defaults of the cluster, each by its effect.

use super::*;
use crate::{
    informer::{Delta, Interest, ObjectKey},
    manager::RunnableGroup,
};

/// Reconciler that logs its requests, and fails.
fn failing(log: &Log) -> impl Reconciler {
    let log = Arc::clone(log);
    move |request: Request, _: Context| {
        log.lock().unwrap().push(request.to_string());
        async { Err("boom".into()) }
    }
}

#[tokio::test(start_paused = true)]
async fn every_owner_of_an_object_is_enqueued_on_request() {
    for (every, expected) in [(false, vec![]), (true, vec!["ns/a gone", "ns/b gone"])] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.install("Part");
        let owned = builder().for_type(widgets()).owns_type(parts());
        harness.add(if every { owned.every_owner() } else { owned }).await;
        harness.state(ControllerState::Running).await;
        let mut part = part("one", "a");
        let owners = &mut part["metadata"]["ownerReferences"];
        owners[0]["controller"] = json!(false);
        let (first, mut second) = (owners[0].clone(), owners[0].clone());
        second["name"] = "b".into();
        *owners = json!([first, second, first]);

        harness.server.apply(part);

        assert_eq!(harness.log().await, expected);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn field_selector_is_applied_by_the_server() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(widget("b", "b"));
    harness.add(builder().for_type(widgets()).fields("metadata.name=b")).await;
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, ["ns/b b"]);
    let query = harness.server.list_queries("widgets").pop().unwrap();
    assert!(query.contains("fieldSelector=metadata.name%3Db"), "{query}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn event_filter_applies_to_all_types() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let unmarked = Predicate::new(|delta| {
        let object = delta.new.as_ref().or(delta.old.as_ref());
        object.is_some_and(|it| it.header().labels.get("mark") != Some("dropped"))
    });
    let described = builder().for_type(widgets()).watches_type(parts(), Handler::Object);
    harness.add(described.event_filter(unmarked)).await;
    harness.state(ControllerState::Running).await;

    harness.server.apply(widget("a", "dropped"));
    harness.server.apply(object("Part", "b", "dropped"));
    assert_eq!(harness.log().await, [""; 0]);
    harness.server.apply(widget("a", "a"));
    harness.server.apply(object("Part", "b", "b"));
    let mut log = harness.log().await;
    log.sort();
    assert_eq!(log, ["ns/a a", "ns/b gone"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retry_limit_bounds_the_retries_of_all_requests() {
    let harness = Harness::new();
    harness.install("Widget");
    for name in ["a", "b", "c", "d"] {
        harness.server.apply(widget(name, name));
    }
    let (fast, log) = (Duration::from_millis(1), Arc::clone(&harness.log));
    let described = builder()
        .for_type(widgets())
        .backoff(Backoff { base: fast, max: fast })
        .retry_limit(Limit { per_second: 0.1, burst: 1 });
    let controller = described.build(&harness.cluster, failing(&log)).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    sleep(Duration::from_secs(101)).await;

    // Four first attempts, one retry at once, and one every ten seconds.
    let attempts = harness.log().await.len();
    assert!((14..=16).contains(&attempts), "{attempts}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_is_of_the_group_of_its_builder() {
    let harness = Harness::new();
    let group = |builder: Builder| harness.build(builder.for_type(widgets())).group();

    assert_eq!(group(builder()), RunnableGroup::LeaderElection);
    assert_eq!(group(builder().group(RunnableGroup::Others)), RunnableGroup::Others);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn group_warm_up_and_recovery_are_those_of_the_controller_or_the_default() {
    let mut harness = Harness::new();
    let defaults = ControllerDefaults::default();
    let defaults = defaults.group(RunnableGroup::Others).warm_up(false).recover_panic(false);
    harness.cluster = harness.cluster.clone().with_defaults(defaults);
    let chosen = |builder: Builder| {
        let controller = harness.build(builder.for_type(widgets()));
        (controller.group(), controller.warms_up())
    };
    assert_eq!(chosen(builder()), (RunnableGroup::Others, false));
    let own = builder().group(RunnableGroup::LeaderElection).warm_up(true);
    assert_eq!(chosen(own), (RunnableGroup::LeaderElection, true));

    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let run = async |builder: Builder| {
        let panics = |_: Request, _: Context| async { panic!("boom") };
        let controller = builder.for_type(widgets()).build(&harness.cluster, panics).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
        let failed = |status: &RunnableStatus| {
            status.last_done.is_some() || status.report.last_error.is_some()
        };
        let state = harness.until(failed).await.state;
        harness.manager.remove(NAME).await;
        state
    };
    assert_eq!(run(builder().recover_panic(true)).await, ControllerState::Running);
    assert_eq!(run(builder()).await, ControllerState::BackingOff, "the run has ended");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn sync_timeout_and_back_off_are_those_of_the_controller_or_the_default() {
    let harness = Harness::new();
    let (own, default) = (Duration::from_secs(7), Duration::from_secs(70));
    let backoff = |delay: Duration| Backoff { base: delay, max: delay };
    let defaults = ControllerDefaults::default().sync_timeout(default).backoff(backoff(default));
    let cluster = harness.cluster.clone().with_defaults(defaults);
    for (described, expected) in
        [(builder(), "70 s"), (builder().sync_timeout(own).backoff(backoff(own)), "7 s")]
    {
        let described = described.for_type(widgets());
        let controller = described.build(&cluster, failing(&harness.log)).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
        let late = harness.state(ControllerState::BackingOff).await;
        assert!(late.message.contains(&format!("timeout after {expected}")), "{}", late.message);

        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        harness.state(ControllerState::Running).await;
        sleep(Duration::from_secs(71)).await;
        let attempts = harness.log().await.len();
        assert_eq!(attempts, if expected == "7 s" { 11 } else { 2 }, "{expected}");

        harness.manager.remove(NAME).await;
        harness.server.uninstall("widgets");
        run_until_idle().await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retry_limit_is_that_of_the_controller_or_the_default() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let every = |seconds: f64| Limit { per_second: 1.0 / seconds, burst: 1 };
    let second = Duration::from_secs(1);
    let backoff = Backoff { base: second, max: second };
    let defaults = ControllerDefaults::default().backoff(backoff).retry_limit(every(10.0));
    let cluster = harness.cluster.clone().with_defaults(defaults);
    // The first reconcile, and the retries of a minute.
    for (described, expected) in [(builder(), 5..=8), (builder().retry_limit(every(2.0)), 28..=33)]
    {
        let described = described.for_type(widgets());
        let controller = described.build(&cluster, failing(&harness.log)).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
        harness.state(ControllerState::Running).await;
        sleep(Duration::from_secs(60)).await;

        let attempts = harness.log().await.len();
        assert!(expected.contains(&attempts), "{attempts}, {expected:?}");
        harness.manager.remove(NAME).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_is_added_under_its_own_name_with_options() {
    for is_running in [false, true] {
        let server = Server::new();
        server.install(crd("Widget"), &["v1"]);
        server.apply(widget("a", "a"));
        let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        let panics = |_: Request, _: Context| async { panic!("boom") };
        let described = builder().for_type(widgets()).recover_panic(false);
        let controller = described.build(&cluster, panics).unwrap();
        let (mut manager, stop) =
            (Manager::new(ManagerOptions::default()), CancellationToken::new());
        let (handle, options) = (manager.handle(), RunnableOptions::fail_fast());
        let mut checks = Vec::new();

        let ended = if is_running {
            let mut tasks = JoinSet::new();
            tasks.spawn(manager.run(stop));
            runnable.add_to_running(&handle, "cluster").await.unwrap();
            checks.extend(handle.readiness().results().iter().map(ToString::to_string));
            controller.add_running_with(&handle, options).await.unwrap();
            tasks.join_next().await.unwrap().unwrap()
        } else {
            runnable.add_to(&mut manager, "cluster").unwrap();
            controller.add_with(&mut manager, options).unwrap();
            manager.run(stop).await
        };

        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("widgets failed") && error.contains("boom"), "{error}");
        let has_check = checks.iter().any(|check| check.contains("discovery/cluster"));
        assert_eq!(has_check, is_running);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_added_each_time_that_an_optional_input_has_synced() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.take_time_to_list("parts");
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let listed = context.store(&parts()).map(|store| store.all().len());
        log.lock().unwrap().push(format!("{request} {listed:?}"));
        async { Ok(Outcome::Done) }
    };
    let described = builder()
        .for_type(widgets())
        .conditional()
        .watches_type(parts(), Handler::delta(|_, _| {}))
        .optional()
        .on_synced(|queue| queue.add(Request::namespaced("ns", "synced")));
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, [""; 0], "no part is listed");

    for _ in 0..2 {
        harness.install("Part");
        harness.server.apply(part("one", "a"));
        harness.server.apply(part("two", "a"));
        assert_eq!(harness.log().await, [""; 0], "the list takes a second");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(harness.log().await, ["ns/synced Ok(2)"]);

        harness.server.apply(part("one", "b"));
        harness.server.cut_watches("parts");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.log().await, [""; 0], "changes and another watch are no sync");
        harness.server.uninstall("parts");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.log().await, [""; 0]);
    }
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

/// Reconciler that names one part for each widget, by the label of the widget.
struct NamesParts(Log);

impl Reconciler for NamesParts {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        if request.key.namespace.as_deref() == Some("delivered") {
            self.0.lock().unwrap().push(request.to_string());
            return Ok(Outcome::Done);
        }
        let moving = context.moving_interests(&parts());
        let moving = moving.or_else(|| context.moving_interests(&parts().any_version()));
        let moving = moving.ok_or("parts have no interests")?;
        if context.moving_interests(&widgets()).is_some() {
            return Err("widgets are not claimed".into());
        }
        let widget = context.store(&widgets())?.get(&request);
        let named = |mark: &str| Interest::Named(ObjectKey::namespaced("ns", mark));
        match widget.as_ref().and_then(|widget| widget.header().labels.get("mark")) {
            Some(mark) => moving.set(&request, vec![named(mark)]),
            None => moving.remove(&request),
        }
        let parts = context.store(&parts())?.all();
        let mut whole: Vec<_> = parts.iter().filter(|part| part.is_whole()).collect();
        whole.sort_by_key(|part| part.key().to_string());
        let whole: Vec<_> = whole.iter().map(|part| &*part.key().name).collect();
        self.0.lock().unwrap().push(format!("{request} {whole:?} of {}", parts.len()));
        Ok(Outcome::Done)
    }
}

/// Request with the object of a change and the names of the interests that it concerns.
fn delivered(delta: &Delta) -> Request {
    let names: Vec<_> = delta.interests.iter().map(|name| name.key.to_string()).collect();
    Request::namespaced("delivered", format!("{} for {}", delta.key.name, names.join(" ")))
}

#[tokio::test(start_paused = true)]
async fn objects_that_the_reconciler_names_are_delivered_after_the_kind_of_an_owner_has_become_known()
 {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(object("Part", "foreign", "x"));
    harness.server.apply(widget("a", "foreign"));
    let delivered = Handler::delta(|delta, queue| {
        if !delta.initial {
            queue.add(delivered(delta));
        }
    });
    let things = TypeRef::resource("example.com", "v1", "things");
    let described = builder().for_type(widgets()).conditional().for_type(things).optional();
    let described = described.claims_type(parts(), delivered).conditional();
    let reconciler = NamesParts(Arc::clone(&harness.log));
    let controller = described.build(&harness.cluster, reconciler).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    harness.log().await;

    harness.install("Thing");
    harness.until(|status| status.reason == "Running").await;
    harness.log().await;
    harness.server.apply(object("Part", "foreign", "y"));

    assert_eq!(harness.log().await, ["delivered/foreign for ns/a"], "without another reconcile");
    harness.server.apply(object("Part", "other", "y"));
    assert_eq!(harness.log().await, [""; 0]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_the_reconciler_names_are_delivered_and_others_are_not() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let change = |name: &str| {
        harness.server.apply(match name {
            "owned" => part("owned", "a"),
            other => object("Part", other, "x"),
        });
    };
    let change_all = || ["owned", "foreign", "other"].into_iter().for_each(change);
    change_all();
    harness.server.apply(widget("a", "foreign"));
    let delivered = Handler::delta(|delta, queue| queue.add(delivered(delta)));
    let described = builder().for_type(widgets()).conditional();
    let described = described.claims_type(parts(), delivered).conditional();
    let reconciler = NamesParts(Arc::clone(&harness.log));
    let controller = described.build(&harness.cluster, reconciler).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    let kept = r#"ns/a ["owned"] of 3"#;
    assert_eq!(harness.log().await, [kept], "objects that exist are read, and not delivered");

    change("owned");
    change("other");
    assert_eq!(harness.log().await, [""; 0]);
    change("foreign");
    assert_eq!(harness.log().await, ["delivered/foreign for ns/a"]);

    harness.server.apply(widget("a", "owned"));
    assert_eq!(harness.log().await, [kept]);
    change("foreign");
    change("other");
    assert_eq!(harness.log().await, [""; 0], "the interests are replaced");
    change("owned");
    assert_eq!(harness.log().await, ["delivered/owned for ns/a"]);
    harness.server.delete("Part", "owned");
    assert_eq!(harness.log().await, ["delivered/owned for ns/a"]);

    harness.server.delete("Widget", "a");
    assert_eq!(harness.log().await, ["ns/a [] of 2"]);
    change_all();
    assert_eq!(harness.log().await, [""; 0]);
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn named_object_that_is_created_while_its_version_changes_is_delivered() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "later"));
    harness.server.apply(widget("b", "kept"));
    harness.server.apply(object("Part", "kept", "x"));
    let delivered = Handler::delta(|delta, queue| queue.add(delivered(delta)));
    let described = builder().for_type(widgets()).conditional();
    let described = described.claims_type(parts().any_version(), delivered);
    let reconciler = NamesParts(Arc::clone(&harness.log));
    let controller = described.build(&harness.cluster, reconciler).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    harness.log().await;

    // Only the list of the other version shows the changes.
    harness.server.withhold("parts");
    harness.server.apply(object("Part", "later", "x"));
    harness.server.apply(object("Part", "foreign", "x"));
    harness.server.install(crd("Part"), &["v2"]);

    assert_eq!(harness.log().await, ["delivered/later for ns/a"]);
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_named_while_its_version_changes_is_delivered() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(object("Part", "one", "x"));
    harness.server.apply(widget("a", "a"));
    let (named, log) = (Arc::new(tokio::sync::Notify::new()), Arc::clone(&harness.log));
    let waits = Arc::clone(&named);
    let reconcile = move |request: Request, context: Context| {
        let (waits, log) = (Arc::clone(&waits), Arc::clone(&log));
        async move {
            log.lock().unwrap().push(request.to_string());
            if request.key.namespace.as_deref() == Some("delivered") {
                return Ok(Outcome::Done);
            }
            let type_ref = parts().any_version();
            let moving = context.moving_interests(&type_ref).ok_or("parts have no interests")?;
            waits.notified().await;
            let one = ObjectKey::namespaced("ns", "one");
            moving.set(&request, vec![Interest::Named(one)]);
            Ok(Outcome::Done)
        }
    };
    let delivered = Handler::delta(|delta, queue| queue.add(delivered(delta)));
    let described = builder().for_type(widgets()).conditional().max_concurrent_reconciles(2);
    let described = described.claims_type(parts().any_version(), delivered);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a"]);

    harness.server.install(crd("Part"), &["v2"]);
    assert_eq!(harness.log().await, [""; 0]);
    named.notify_one();
    run_until_idle().await;
    let mut changed = object("Part", "one", "y");
    changed["apiVersion"] = "example.com/v2".into();
    harness.server.apply(changed);

    assert_eq!(harness.log().await, ["delivered/one for ns/a"], "by the handle of before");
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}
