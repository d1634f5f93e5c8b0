//! Cluster of parts that the caller runs.

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::{sync::watch, time::timeout};

use super::*;
use crate::{
    discovery::{DiscoveryOptions, TypeRegistry},
    informer::{EndReason, InformerKey, InformerOptions, InformerSet},
    manager::{
        AddError, Always, ConditionalRunnable, Readiness, RunnableWithCondition, metrics_text,
    },
    testing::{Action, Rule},
};

#[tokio::test(start_paused = true)]
async fn informers_of_a_cluster_of_parts_end_with_their_types() {
    let server = Server::new();
    let (types, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let informers = InformerSet::new(server.client(), InformerOptions::default());
    let (cluster, runnable) = Cluster::of(server.client(), types, informers, None);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { discovery.run(stopped).await });

    // The runnable does not stop the parts, so that it can be started again.
    for number in [1, 2] {
        let epoch = Epoch::new("cluster", number, Duration::ZERO);
        let run = tasks.spawn(runnable.start(epoch.clone()).map(|end| end.unwrap()));
        server.install(crd("Widget"), &["v1"]);
        run_until_idle().await;
        let served = cluster.types.served(&widgets()).unwrap();
        // A subscription outside of any controller's epoch.
        let key = InformerKey::new(served.identity.clone());
        let subscription = cluster.informers.subscribe(&served, key);
        subscription.drained().await;
        assert_eq!(server.watches(WIDGETS), 1);

        server.uninstall("widgets");
        let ended = timeout(Duration::from_secs(3600), subscription.ended()).await;

        assert_eq!(ended, Ok(EndReason::TypeGone));
        assert_eq!(server.watches(WIDGETS), 0);
        epoch.stop(StopReason::Cancelled);
        run_until_idle().await;
        assert!(run.is_finished());
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn cluster_is_running_once_discovery_has_answered() {
    let harness = Harness::new();

    let mut watch = harness.manager.watch();
    let runs = |snapshot: &Arc<Snapshot>| {
        snapshot.get(&"cluster".into()).is_some_and(|it| it.state == ControllerState::Running)
    };
    drop(watch.wait_for(runs).await.unwrap());

    let health = harness.cluster.types.health();
    assert!(health.is_current(), "{health:?}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn runnables_start_once_the_first_discovery_of_their_cluster_has_succeeded() {
    let harness = Harness::new();
    let slow = Rule::new(Action::Delay(Duration::from_secs(2))).path_contains("/apis");
    harness.server.fault(slow);
    let began = Instant::now();

    harness.add(Controller::builder(NAME).source(ChannelSource::new(1).1)).await;
    assert_eq!(harness.status().reason, "NotStarted");
    harness.state(ControllerState::Running).await;

    assert!((2..5).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(harness.cluster.types.health().is_current());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_with_partial_discovery_delays_other_runnables_by_five_seconds() {
    let harness = Harness::new();
    harness.server.forbid("/apis");
    harness.install("Widget");
    let began = Instant::now();

    harness.add(builder().for_type(widgets()).conditional()).await;
    let before = harness.status();
    assert_eq!((before.state, before.reason.as_str()), (ControllerState::Waiting, "NotStarted"));
    harness.state(ControllerState::Running).await;

    assert!((5..6).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(harness.cluster.types.health().discovery.error.is_some());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn start_that_does_not_finish_says_why_once_the_sync_timeout_is_over() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.forbid("widgets.example.com");
    harness.add(builder().for_type(widgets()).conditional()).await;
    let soon = harness.until(|status| status.reason == "Forbidden").await;
    assert!(soon.report.late.is_empty());

    let late = harness.until(|status| status.reason == "SyncTimeout").await;
    assert_eq!((late.state, late.epoch), (ControllerState::Starting, 1));
    assert!(late.message.contains("cannot list resource"), "{}", late.message);
    assert_eq!(late.report.late.len(), 1);

    harness.server.allow("widgets.example.com");
    let running = harness.state(ControllerState::Running).await;
    assert_eq!((running.epoch, running.report.late.len()), (1, 0));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_of_a_cluster_without_a_run_says_what_to_do() {
    let server = Server::new();
    let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let mut manager = Manager::new(ManagerOptions::default());
    let described = || builder().for_type(widgets()).conditional();
    let reconcile = |_: Request, _: Context| async { Ok(Outcome::Done) };
    described().build(&cluster, reconcile).unwrap().add_to(&mut manager).unwrap();
    let again = described().build(&cluster, reconcile).unwrap().add_to(&mut manager);
    assert!(again.unwrap_err().to_string().contains(NAME), "a name is taken once");
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { manager.run(stopped).await.unwrap() });
    run_until_idle().await;

    let status = handle.status_of(NAME).unwrap();
    assert_eq!(status.state, ControllerState::Waiting);
    assert_eq!(status.reason, "DiscoveryNotStarted");
    let message = &status.message;
    assert!(message.contains("add the runnable of its cluster to a manager"), "{message}");
    let shown = || handle.readiness().results().last().unwrap().to_string();
    assert_eq!(shown(), format!("[!]controller/{NAME} Waiting DiscoveryNotStarted"));

    let cluster = Arc::new(runnable);
    handle.add_runnable("cluster", cluster, RunnableOptions::fail_fast()).await.unwrap();
    run_until_idle().await;
    let status = handle.status_of(NAME).unwrap();
    assert_eq!(status.reason, "TypeAbsent", "{}", status.message);
    assert!(!status.message.contains("add the runnable"), "{}", status.message);
    assert_eq!(shown(), format!("[+]controller/{NAME} Waiting TypeAbsent"));
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}

/// The controllers waited for a type as if their cluster were watched, or failed again and again.
#[tokio::test(start_paused = true)]
async fn controllers_of_a_removed_cluster_wait_and_say_what_to_do() {
    let server = Server::new();
    server.install(crd("Widget"), &["v1"]);
    let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let manager = Manager::new(ManagerOptions::default());
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { manager.run(stopped).await.unwrap() });
    runnable.add_to_running(&handle, "cluster").await.unwrap();
    for (name, type_ref) in [("runs", widgets()), ("waits", parts())] {
        let reconcile = |_: Request, _: Context| async { Ok(Outcome::Done) };
        let described = Controller::builder(name).for_type(type_ref).conditional();
        let controller = described.build(&cluster, reconcile).unwrap();
        controller.add_to_running(&handle).await.unwrap();
    }
    run_until_idle().await;
    let reason = |name: &str| handle.status_of(name).unwrap().reason.to_string();
    assert_eq!((reason("runs").as_str(), reason("waits").as_str()), ("Running", "TypeAbsent"));

    handle.remove("cluster").await;
    sleep(Duration::from_secs(3600)).await;

    for name in ["runs", "waits"] {
        let status = handle.status_of(name).unwrap();
        assert_eq!(status.state, ControllerState::Waiting, "{name}: {}", status.message);
        assert_eq!(status.reason, "DiscoveryEnded", "{name}");
        assert!(status.message.contains("its cluster was removed"), "{}", status.message);
    }
    let checks = handle.readiness().results();
    let degraded = checks.iter().filter(|check| check.to_string().starts_with("[!]")).count();
    assert_eq!(degraded, 2, "{checks:?}");
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn manager_runs_controllers_of_two_clusters_and_registers_all_metrics_by_one_call() {
    let (mut manager, log) = (Manager::new(ManagerOptions::default()), Log::default());
    let servers = ["east", "west"].map(|name| {
        let server = Server::new();
        server.install(crd("Widget"), &["v1"]);
        server.apply(widget(name, name));
        let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        let requests = Counter::<u64>::default();
        runnable
            .with_metrics(move |all| all.register("requests", "Requests", requests.clone()))
            .add_to(&mut manager, name)
            .unwrap();
        let controller = Controller::builder(format!("widgets-{name}"));
        let reconciler = LoggingReconciler { log: Arc::clone(&log) };
        let controller = controller.for_type(widgets()).conditional().build(&cluster, reconciler);
        controller.unwrap().add_to(&mut manager).unwrap();
        server
    });
    let (_, again) = Cluster::new(servers[0].client(), ClusterOptions::default());
    let again = again.add_to(&mut manager, "east").unwrap_err();
    assert_eq!(again, AddError::AlreadyThere("east".into()));
    let mut metrics = Registry::default();
    manager.register_metrics(&mut metrics);
    let (handle, stop) = (manager.handle(), CancellationToken::new());
    let checks = || handle.readiness().results();
    assert!(checks()[..2].iter().all(|check| check.result.is_failed()), "{:?}", checks());
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { manager.run(stopped).await.unwrap() });
    run_until_idle().await;

    let mut reconciled = std::mem::take(&mut *log.lock().unwrap());
    reconciled.sort();
    assert_eq!(reconciled, ["ns/east east", "ns/west west"]);
    let lines: Vec<_> = checks().iter().map(ToString::to_string).collect();
    assert_eq!(lines[..2], ["[+]discovery/east ok", "[+]discovery/west ok"]);
    let text = metrics_text(&metrics).unwrap();
    for name in ["east", "west"] {
        for series in [
            format!("pilotlight_types{{cluster=\"{name}\",state=\"Served\"}}"),
            format!("requests_total{{cluster=\"{name}\"}} 0"),
            format!("pilotlight_informer_watches{{cluster=\"{name}\"}} 1"),
            format!("controller=\"widgets-{name}\",result=\"success\"}} 1"),
            format!("pilotlight_controller_epoch{{controller=\"widgets-{name}\"}} 1"),
        ] {
            assert!(text.contains(&series), "{series} in {text}");
        }
    }
    assert_eq!(text.matches("# TYPE pilotlight_types gauge").count(), 1, "{text}");

    // The types of one cluster are not those of the other.
    servers[0].uninstall("widgets");
    run_until_idle().await;
    let mut later = Registry::default();
    handle.add_metrics("west", |_| {});
    handle.register_metrics(&mut later);
    let later = metrics_text(&later).unwrap();
    assert!(later.contains("pilotlight_informer_watches{cluster=\"west\"} 1"), "{later}");
    let state = |name: &str| handle.status_of(name).unwrap().state;
    assert_eq!(state("widgets-east"), ControllerState::Waiting);
    assert_eq!(state("widgets-west"), ControllerState::Running);

    handle.remove("east").await;
    let mut alone = Registry::default();
    handle.register_metrics(&mut alone);
    let alone = metrics_text(&alone).unwrap();
    assert!(!alone.contains("cluster=\"east\""), "{alone}");
    assert!(alone.contains("pilotlight_informer_watches{cluster=\"west\"} 1"), "{alone}");
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn restart_of_a_cluster_is_refused_and_its_controllers_continue() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.add(builder().for_type(widgets()).conditional()).await;
    harness.state(ControllerState::Running).await;

    let refused = harness.manager.restart("cluster").await;

    assert_eq!(refused, Err(AddError::RunsOnce("cluster".into())));
    let closure = Arc::new(|_: Epoch| async { Ok(()) });
    let replaced = harness.manager.replace("cluster", closure, RunnableOptions::default()).await;
    assert_eq!(replaced.map(drop), Err(AddError::RunsOnce("cluster".into())));
    harness.server.apply(widget("a", "later"));
    assert_eq!(harness.log().await, ["ns/a later"]);
    assert_eq!(harness.manager.status_of("cluster").unwrap().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_with_a_condition_is_refused() {
    let harness = Harness::new();
    let (_cluster, runnable) = Cluster::new(Server::new().client(), ClusterOptions::default());
    let day = watch::Sender::new(true);
    let condition = move || Readiness::flag(day.subscribe(), "Night", "by day only");
    let conditional = Arc::new(RunnableWithCondition::of_runnable(Arc::new(runnable), condition));
    let error = Err(AddError::ConditionOfRunsOnce("east".into()));
    let mut manager = Manager::new(ManagerOptions::default());

    let early = manager.add("east", conditional.clone(), RunnableOptions::default());
    let late = harness.manager.add("east", conditional, RunnableOptions::default()).await;

    assert_eq!((early, late), (error.clone(), error));
    assert_eq!(harness.manager.status_of("east"), None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_is_refused_under_another_name_than_its_own() {
    let harness = Harness::new();
    let reconcile = |_: Request, _: Context| async { Ok(Outcome::Done) };
    let controller = builder().for_type(widgets()).build(&harness.cluster, reconcile).unwrap();
    let controller: Arc<dyn ConditionalRunnable> = Arc::new(controller);
    let conditional = || Arc::new(RunnableWithCondition::new(Arc::clone(&controller), Always));
    let options = RunnableOptions::default;
    let other = AddError::OtherName { given: "other".into(), own: NAME.into() };

    let mut manager = Manager::new(ManagerOptions::default());
    assert_eq!(manager.add("other", conditional(), options()), Err(other.clone()));
    let running = &harness.manager;
    assert_eq!(running.add("other", Arc::clone(&controller), options()).await, Err(other.clone()));
    let closure = |epoch: Epoch| async move {
        epoch.stopping().await;
        Ok(())
    };
    running.add("other", Arc::new(closure), options()).await.unwrap();
    let replaced = running.replace("other", Arc::clone(&controller), options()).await;
    assert_eq!(replaced.map(drop), Err(other));

    running.add(NAME, conditional(), options()).await.unwrap();
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_is_wrapped_and_replaced_under_its_own_name() {
    let harness = Harness::new();
    harness.install("Widget");
    let built = || harness.build(builder().for_type(widgets()));
    let wrapped = || RunnableWithCondition::new(Arc::new(built()), Always);
    let in_epoch = async |epoch: u64| {
        let is_next = |status: &RunnableStatus| {
            status.epoch == epoch && status.state == ControllerState::Running
        };
        drop(harness.until(is_next).await);
    };
    let mut manager = Manager::new(ManagerOptions::default());
    wrapped().add_to(&mut manager).unwrap();
    let taken = AddError::AlreadyThere(NAME.into());
    assert_eq!(built().add_to(&mut manager), Err(taken.clone()));
    let absent = Err(AddError::NotThere(NAME.into()));
    assert_eq!(built().replace_in(&harness.manager).await.map(drop), absent);
    assert_eq!(wrapped().replace_in(&harness.manager).await.map(drop), absent);

    wrapped().add_to_running(&harness.manager).await.unwrap();
    in_epoch(1).await;
    assert_eq!(wrapped().add_to_running(&harness.manager).await, Err(taken));
    built().replace_in(&harness.manager).await.unwrap().installed().await.unwrap();
    in_epoch(2).await;
    let options = RunnableOptions { grace: Duration::from_secs(1), ..RunnableOptions::default() };
    built().replace_with(&harness.manager, options).await.unwrap().installed().await.unwrap();
    in_epoch(3).await;
    wrapped().replace_in(&harness.manager).await.unwrap().installed().await.unwrap();
    in_epoch(4).await;

    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn wrapped_runnable_without_a_name_is_added_under_a_given_one_only() {
    let harness = Harness::new();
    let closure = |epoch: Epoch| async move {
        epoch.stopping().await;
        Ok(())
    };
    let wrapped = || RunnableWithCondition::new(Arc::new(closure), Always);
    let nameless = Err(AddError::NameMissing);

    assert_eq!(wrapped().add_to(&mut Manager::new(ManagerOptions::default())), nameless);
    assert_eq!(wrapped().add_to_running(&harness.manager).await, nameless);
    assert_eq!(wrapped().replace_in(&harness.manager).await.map(drop), nameless);
    let options = RunnableOptions::default();
    harness.manager.add("given", Arc::new(wrapped()), options).await.unwrap();
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_passes_and_says_why_while_a_controller_waits_for_its_type() {
    let harness = Harness::new();
    harness.add(builder().for_type(widgets()).conditional()).await;
    let shown = || {
        let checks = harness.manager.readiness().results();
        assert!(!checks.iter().any(|it| it.result.is_failed()), "{checks:?}");
        let name = format!("controller/{NAME}");
        checks.into_iter().find(|it| it.name == name).unwrap().to_string()
    };

    for _ in 0..2 {
        harness.until(|status| status.reason == "TypeAbsent").await;
        assert_eq!(shown(), format!("[+]controller/{NAME} Waiting TypeAbsent"));
        sleep(Duration::from_secs(24 * 3600)).await;
        assert_eq!(shown(), format!("[+]controller/{NAME} Waiting TypeAbsent"));

        harness.install("Widget");
        harness.state(ControllerState::Running).await;
        assert!(shown().starts_with(&format!("[+]controller/{NAME} Running")), "{}", shown());
        harness.server.uninstall("widgets");
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_of_a_cluster_and_of_a_part_come_and_go_with_it() {
    let mut harness = Harness::new();
    harness.install("Widget");
    let scrape = || {
        let mut registry = Registry::default();
        harness.manager.register_metrics(&mut registry);
        metrics_text(&registry).unwrap()
    };
    let of_late = |text: &str| text.contains("pilotlight_types{cluster=\"late\",state=\"Served\"}");
    assert!(!of_late(&scrape()));
    for _ in 0..2 {
        let server = Server::new();
        server.install(crd("Widget"), &["v1"]);
        let (_, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        let requests = Counter::<u64>::default();
        let runnable = runnable
            .with_metrics(move |all| all.register("requests", "Requests", requests.clone()));
        runnable.add_to_running(&harness.manager, "late").await.unwrap();
        run_until_idle().await;

        let text = scrape();
        assert!(of_late(&text), "{text}");
        assert!(text.contains("requests_total{cluster=\"late\"} 0"), "{text}");
        assert!(text.contains("pilotlight_controller_tasks"), "{text}");

        harness.manager.remove("late").await;
        run_until_idle().await;
        assert!(!scrape().contains("cluster=\"late\""));
    }

    // A runnable that its manager refuses takes nothing from that of its name.
    let (late, runnable) = Cluster::new(Server::new().client(), ClusterOptions::default());
    runnable.add_to_running(&harness.manager, "late").await.unwrap();
    let (_, again) = Cluster::new(Server::new().client(), ClusterOptions::default());
    let again = again.add_to_running(&harness.manager, "late").await;
    assert_eq!(again, Err(AddError::AlreadyThere("late".into())));
    let checks = harness.manager.readiness().results();
    assert_eq!(checks.iter().filter(|check| check.name == "discovery/late").count(), 1);
    assert_eq!(scrape().matches("pilotlight_types{cluster=\"late\",state=\"Served\"}").count(), 1);
    drop(late);
    harness.manager.add_metrics("panics", |_| panic!("boom"));
    assert!(scrape().contains("pilotlight_controller_tasks"), "a part costs no other");
    let orders = Counter::<u64>::default();
    let register = move |all: &mut Registry| all.register("orders", "Orders", orders.clone());
    harness.manager.add_metrics("orders", register);
    assert!(scrape().contains("orders_total 0"));
    harness.manager.remove_metrics("orders");
    assert!(!scrape().contains("orders_total"));
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn plain_input_of_a_missing_type_is_shown_after_its_third_sync_timeout() {
    let harness = Harness::new();
    harness.add(builder().for_type(widgets())).await;
    let shown = async |failures: u32| {
        let backs_off = |status: &RunnableStatus| {
            status.state == ControllerState::BackingOff && status.failures == failures
        };
        harness.until(backs_off).await;
        let checks = harness.manager.readiness().results();
        assert!(!checks.iter().any(|it| it.result.is_failed()), "{checks:?}");
        let name = format!("controller/{NAME}");
        checks.into_iter().find(|it| it.name == name).unwrap().to_string()
    };

    for failures in [1, 2] {
        assert_eq!(shown(failures).await, "[+]controller/widgets BackingOff RunFailed");
    }
    assert_eq!(shown(3).await, "[!]controller/widgets BackingOff RunFailed");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_that_has_run_says_that_another_one_must_be_built() {
    let server = Server::new();
    let (_cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let first = Epoch::new("cluster", 1, Duration::ZERO);
    let mut runs = JoinSet::new();
    runs.spawn(runnable.start(first.clone()));
    run_until_idle().await;

    let second = runnable.start(Epoch::new("cluster", 2, Duration::ZERO)).await;

    let error = second.unwrap_err().to_string();
    assert_eq!(error, "the cluster has run before; build a new one");
    assert!(runs.try_join_next().is_none(), "the first run continues");
    first.stop(StopReason::Cancelled);
    runs.join_next().await.unwrap().unwrap().unwrap();
}
