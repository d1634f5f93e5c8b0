//! Namespaces of an input, defaults of controllers and types, and errors of watches.

use super::{typed::Widget, *};
use crate::{
    informer::ObjectKey,
    manager::WatchState,
    testing::{Action, Reply, Rule, Verb},
};

fn namespaced(namespace: &str) -> String {
    format!("/apis/example.com/v1/namespaces/{namespace}/widgets")
}

fn sized(name: &str, size: u32) -> Value {
    let mut widget = widget(name, name);
    widget["spec"] = json!({ "size": size });
    widget
}

#[tokio::test(start_paused = true)]
async fn input_of_several_namespaces_is_read_as_one_and_watches_no_other() {
    let harness = Harness::new();
    harness.install("Widget");
    for (namespace, name) in [("ns", "a"), ("two", "b"), ("other", "c")] {
        harness.server.apply_in(namespace, sized(name, 1));
    }
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let widgets = context.lister::<Widget>()?;
            let all: Result<Vec<_>, _> = widgets.list()?.into_iter().collect();
            let names: Vec<_> = all?.iter().filter_map(|it| it.metadata.name.clone()).collect();
            let own = widgets.get(&request)?.is_some();
            let other = widgets.get(&ObjectKey::namespaced("other", "c"))?.is_some();
            log.lock().unwrap().push(format!("{request} {own} {other} {names:?}"));
            Ok(Outcome::Done)
        }
    };
    let described = builder().for_::<Widget>().namespaces(["ns", "two", "ns"]).conditional();
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    let status = harness.state(ControllerState::Running).await;

    assert_eq!(status.report.watches.len(), 2);
    let mut log = harness.log().await;
    log.sort();
    let both = r#"["a", "b"]"#;
    assert_eq!(log, [format!("ns/a true false {both}"), format!("two/b true false {both}")]);
    let watches = [WIDGETS.to_owned(), namespaced("ns"), namespaced("two"), namespaced("other")];
    assert_eq!(watches.map(|path| harness.server.watches(&path)), [0, 1, 1, 0]);
    harness.server.apply_in("two", sized("b", 2));
    assert_eq!(harness.log().await, [format!("two/b true false {both}")]);

    harness.server.uninstall("widgets");
    let status = harness.state(ControllerState::Waiting).await;
    assert_eq!(status.unmet.len(), 1, "the type is named once: {:?}", status.unmet);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn refused_or_late_namespace_is_named_and_each_namespace_is_watched_anew_with_the_type() {
    let harness = Harness::new();
    harness.install("Widget");
    for (namespace, name) in [("ns", "a"), ("two", "b")] {
        harness.server.apply_in(namespace, widget(name, name));
    }
    harness.server.forbid_in("two", "widgets.example.com");
    let described = builder().for_type(widgets()).namespaces(["ns", "two"]).conditional();
    harness.add(described.sync_timeout(Duration::from_secs(10))).await;
    sleep(Duration::from_secs(20)).await;

    let report = harness.status().report.clone();
    let [refused] = &report.forbidden[..] else { panic!("{report:?}") };
    assert!(refused.contains("on widgets.example.com in the namespace two"), "{refused}");
    let paths = ["ns", "two"].map(namespaced);
    let watched = || paths.each_ref().map(|path| harness.server.watches(path));
    assert_eq!((harness.log().await, watched()), (Vec::new(), [1, 0]));
    harness.server.forbid_in("two", "none.example.com");
    harness.state(ControllerState::Running).await;
    assert_eq!(
        (harness.sorted_log().await, watched()),
        (vec!["ns/a a".into(), "two/b b".into()], [1, 1])
    );

    for epoch in 2..=3 {
        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        assert_eq!(watched(), [0, 0]);
        assert!(harness.cluster.informers.status().is_empty());
        harness.install("Widget");
        harness.server.apply_in("two", widget("b", "b"));
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
        sleep(Duration::from_secs(1)).await;
        assert_eq!((harness.log().await, watched()), (vec!["two/b b".into()], [1, 1]));
    }

    let stall = Rule::new(Action::Hang).verb(Verb::List).resource("example.com", "widgets");
    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;
    drop(harness.log().await);
    harness.server.fault(stall.path_contains("namespaces/two"));
    harness.install("Widget");
    let late = harness.until(|status| !status.report.late.is_empty()).await;
    let late = &late.report.late;
    assert_eq!(*late, ["widgets.example.com/v1 in the namespace two is syncing"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_those_of_the_input_then_of_its_type_then_of_the_cluster() {
    let harness = Harness::new();
    harness.install("Widget");
    let of_type = |namespaces: &[&str]| {
        let namespaces = namespaces.iter().map(|&namespace| namespace.into()).collect();
        let labels = Some("mark=type".into());
        TypeDefaults { namespaces, labels, ..TypeDefaults::default() }
    };
    let all = ["own", "type-1", "type-2", "cluster"];
    let typed = of_type(&["type-1", "type-2"]);
    let cases = [
        (None, None, [0, 0, 0, 1]),
        (None, Some(of_type(&[])), [0, 0, 0, 1]),
        (None, Some(typed.clone()), [0, 1, 1, 0]),
        (Some("own"), Some(typed), [1, 0, 0, 0]),
    ];
    for (own, of_type, expected) in cases {
        let mut cluster = harness.cluster.clone();
        cluster.namespace = Some("cluster".into());
        let label = of_type.is_some();
        let defaults = of_type.into_iter().fold(ControllerDefaults::default(), |defaults, it| {
            defaults.of_type(parts(), TypeDefaults::default()).of_type(widgets(), it)
        });
        let described = builder().for_type(widgets());
        let described = match own {
            Some(own) => described.namespace(own).labels("mark=own"),
            None => described,
        };
        let reconcile = LoggingReconciler { log: Log::default() };
        let controller = described.build(&cluster.with_defaults(defaults), reconcile).unwrap();
        harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;
        run_until_idle().await;

        let watched = all.map(|namespace| harness.server.watches(&namespaced(namespace)));
        assert_eq!(watched, expected, "{own:?}");
        let query = harness.server.list_queries("widgets").pop().unwrap();
        let expected = match (own, label) {
            (Some(_), _) => "mark%3Down",
            (None, true) => "mark%3Dtype",
            (None, false) => "",
        };
        assert!(query.contains(expected) && query.contains("mark") == label, "{query}");

        harness.manager.remove(NAME).await;
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn defaults_of_the_cluster_apply_where_the_controller_sets_nothing() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply_in("two", widget("b", "b"));
    harness.server.apply(widget("a", "a"));
    let of_widgets = TypeDefaults {
        namespaces: vec!["two".into()],
        labels: Some("mark=b".into()),
        ..TypeDefaults::default()
    };
    let defaults = ControllerDefaults::default()
        .reconcile_timeout(Duration::from_secs(7))
        .of_type(widgets(), of_widgets);
    let cluster = harness.cluster.clone().with_defaults(defaults);
    let run = async |builder: Builder| {
        let log = Arc::clone(&harness.log);
        let reconcile = move |request: Request, _: Context| {
            log.lock().unwrap().push(request.to_string());
            std::future::pending()
        };
        let controller = builder.build(&cluster, reconcile).unwrap();
        harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
        let status = harness.until(|status| status.report.last_error.is_some()).await;
        let watched = harness.server.watches(&namespaced("two"));
        harness.manager.remove(NAME).await;
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        (status.report.last_error.clone().unwrap(), watched, harness.log().await[0].clone())
    };

    let (error, watched, request) = run(builder().for_type(widgets())).await;
    assert!(error.contains("timeout of 7s"), "{error}");
    assert_eq!((watched, &*request), (1, "two/b"));
    assert!(harness.server.list_queries("widgets")[0].contains("mark%3Db"));

    let own = builder().for_type(widgets()).namespace("ns").labels("mark=a");
    let (error, watched, request) = run(own.reconcile_timeout(Duration::from_secs(3))).await;
    assert!(error.contains("timeout of 3s"), "{error}");
    assert_eq!((watched, &*request), (0, "ns/a"));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn field_selector_of_a_type_is_the_default_of_its_inputs() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(widget("b", "b"));
    let named = |name: &str| TypeDefaults {
        fields: Some(format!("metadata.name={name}").into()),
        ..TypeDefaults::default()
    };
    let defaults = ControllerDefaults::default()
        .of_type(parts(), named("none"))
        .of_type(widgets(), named("b"));
    let cluster = harness.cluster.clone().with_defaults(defaults);
    let described = || builder().for_type(widgets());
    for (described, expected) in [(described(), "b"), (described().fields("metadata.name=a"), "a")]
    {
        let reconcile = LoggingReconciler { log: Arc::clone(&harness.log) };
        let controller = described.build(&cluster, reconcile).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
        harness.state(ControllerState::Running).await;

        assert_eq!(harness.log().await, [format!("ns/{expected} {expected}")]);
        let query = harness.server.list_queries("widgets").pop().unwrap();
        let selected = format!("fieldSelector=metadata.name%3D{expected}");
        assert!(query.contains(&selected), "{query}");

        harness.manager.remove(NAME).await;
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_that_of_the_controller_then_of_its_type_then_the_default() {
    let harness = Harness::new();
    harness.install("Widget");
    for name in ["a", "b", "c", "d", "e"] {
        harness.server.apply(widget(name, name));
    }
    let four = TypeDefaults { max_concurrent_reconciles: Some(4), ..TypeDefaults::default() };
    let general = ControllerDefaults::default().max_concurrent_reconciles(3);
    let cases = [
        (ControllerDefaults::default(), None, 1),
        (general.clone(), None, 3),
        (general.clone().of_type(widgets(), four.clone()), None, 4),
        (general.of_type(widgets(), four), Some(2), 2),
    ];
    for (defaults, own, expected) in cases {
        let cluster = harness.cluster.clone().with_defaults(defaults);
        let log = Arc::clone(&harness.log);
        let reconcile = move |request: Request, context: Context| {
            log.lock().unwrap().push(request.to_string());
            async move {
                context.cancelled().await;
                Ok(Outcome::Done)
            }
        };
        let builder = builder().for_type(widgets());
        let builder = match own {
            Some(own) => builder.max_concurrent_reconciles(own),
            None => builder,
        };
        let controller = builder.build(&cluster, reconcile).unwrap();
        harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;

        assert_eq!(harness.log().await.len(), expected);

        harness.manager.remove(NAME).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn defaults_of_a_type_apply_whatever_name_and_version_the_input_has() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply_in("two", widget("b", "b"));
    let kind = TypeRef::kind("example.com", "v1", "Widget");
    let names =
        [(widgets(), kind.clone()), (kind.clone(), widgets()), (kind.any_version(), widgets())];
    for (default, input) in names {
        let two = TypeDefaults { namespaces: vec!["two".into()], ..TypeDefaults::default() };
        let other = TypeDefaults { namespaces: vec!["no".into()], ..TypeDefaults::default() };
        let defaults = ControllerDefaults::default()
            .of_type(default, two)
            .of_type(TypeRef::kind("other.example.com", "v1", "Widget"), other.clone())
            .of_type(parts(), other);
        let cluster = harness.cluster.clone().with_defaults(defaults);
        let reconcile = LoggingReconciler { log: Arc::clone(&harness.log) };
        let controller = builder().for_type(input).build(&cluster, reconcile).unwrap();
        harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;
        run_until_idle().await;

        let watched = [WIDGETS.to_owned(), namespaced("two")];
        assert_eq!(watched.map(|path| harness.server.watches(&path)), [0, 1]);

        harness.manager.remove(NAME).await;
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn own_back_off_takes_precedence_over_a_default_rate_limiter() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let slow = Duration::from_secs(100);
    let limiter = Backoff { base: slow, max: slow };
    let defaults = ControllerDefaults::default().rate_limiter(limiter);
    let cluster = harness.cluster.clone().with_defaults(defaults);
    let own = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(1) };
    for (builder, expected) in [(builder(), 3), (builder().backoff(own), 251)] {
        let log = Arc::clone(&harness.log);
        let reconcile = move |request: Request, _: Context| {
            log.lock().unwrap().push(request.to_string());
            async { Err("boom".into()) }
        };
        let controller = builder.for_type(widgets()).build(&cluster, reconcile).unwrap();
        harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
        sleep(Duration::from_millis(250_500)).await;

        assert_eq!(harness.log().await.len(), expected);

        harness.manager.remove(NAME).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_watch_reach_a_function_of_the_user_whose_panic_is_reported() {
    let harness = Harness::new();
    harness.install("Widget");
    let errors = Log::default();
    let log = Arc::clone(&errors);
    let on_error = move |state: WatchState, error: &str| {
        log.lock().unwrap().push(format!("{state:?} {error}"));
        assert!(state != WatchState::Stale, "boom");
    };
    let fails = Action::Instead(Reply::status(500, "InternalError", "no quorum"));
    let rule = Rule::new(fails.clone()).verb(Verb::List).resource("example.com", "widgets");
    let rule = harness.server.fault(rule);
    harness.add(builder().for_type(widgets()).on_watch_error(on_error)).await;
    run_until_idle().await;
    let first = errors.lock().unwrap().clone();
    assert!(first[0].starts_with("Syncing") && first[0].contains("no quorum"), "{first:?}");
    harness.server.remove(rule);
    harness.state(ControllerState::Running).await;
    errors.lock().unwrap().clear();

    let rule = Rule::new(fails).verb(Verb::Watch).resource("example.com", "widgets");
    let rule = harness.server.fault(rule);
    harness.server.cut_watches("widgets");
    harness.until(|status| status.report.last_error.is_some()).await;

    assert!(errors.lock().unwrap()[0].starts_with("Stale"));
    let error = harness.status().report.last_error.clone().unwrap();
    assert!(error.contains("watch error handler panicked") && error.contains("boom"), "{error}");
    harness.server.remove(rule);
    harness.until(|status| !status.report.stale).await;
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a a"], "the controller continues");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn input_by_name_of_several_namespaces_starts_is_read_and_ends_as_one() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply_in("one", sized("a", 1));
    let two =
        TypeDefaults { namespaces: vec!["one".into(), "two".into()], ..TypeDefaults::default() };
    let defaults = ControllerDefaults::default().of_type(widgets(), two);
    let cluster = harness.cluster.clone().with_defaults(defaults);
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let found = context.store_of("late").map(|widgets| widgets.all().len());
        let found = found.map_or_else(|error| error.to_string(), |found| found.to_string());
        log.lock().unwrap().push(format!("{request} {found}"));
        async { Ok(Outcome::Done) }
    };
    let controller = builder().for_type(parts()).build(&cluster, reconcile).unwrap();
    let inputs = controller.inputs();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    let watched = |builder: Builder| builder.watches_type(widgets(), Handler::Object).optional();
    let watches = || ["one", "two", "three"].map(|it| harness.server.watches(&namespaced(it)));

    // The second namespace is late: the input is.
    let hangs = Rule::new(Action::Hang).path_is(namespaced("two")).verb(Verb::List);
    let rule = harness.server.fault(hangs);
    let added = inputs.add("late", watched).unwrap();
    run_until_idle().await;
    assert!(matches!(added.state(), InputState::Pending(_)), "{:?}", added.state());
    assert_eq!(harness.log().await, [""; 0]);
    harness.server.remove(rule);
    added.started().await.unwrap();
    assert_eq!(harness.log().await, ["one/a 1"], "no request finds the input unreadable");
    assert_eq!(watches(), [1, 1, 0]);
    harness.server.apply_in("two", sized("b", 1));
    assert_eq!(harness.log().await, ["two/b 2"]);

    let in_others = |builder| watched(builder).namespaces(["two", "three"]);
    inputs.replace("late", in_others).unwrap().started().await.unwrap();
    // The old input is read until both namespaces of the new one are listed.
    harness.log().await;
    harness.server.apply_in("two", sized("b", 2));
    assert_eq!(harness.log().await, ["two/b 1"]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(watches(), [0, 1, 1]);
    assert!(inputs.remove("late").await);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(watches(), [0, 0, 0]);
    assert_eq!(harness.status().report.watches.len(), 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn empty_namespace_means_all_namespaces() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let of_type = TypeDefaults { namespaces: vec!["one".into()], ..TypeDefaults::default() };
    let mut cluster = harness.cluster.clone();
    cluster.namespace = Some("".into());
    let cluster = cluster.with_defaults(ControllerDefaults::default().of_type(widgets(), of_type));
    let described = builder().for_type(widgets()).namespace("");
    let described = described.watches_type(parts(), Handler::Object);
    let reconcile = LoggingReconciler { log: Log::default() };
    let controller = described.build(&cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;

    assert_eq!([WIDGETS, PARTS].map(|path| harness.server.watches(path)), [1, 1]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn claimed_type_of_several_namespaces_is_refused() {
    let harness = Harness::new();
    let builder = builder().for_type(widgets()).claims_type(parts(), Handler::Object);
    let builder = builder.namespaces(["a", "b"]);

    let error = builder.build(&harness.cluster, LoggingReconciler { log: Log::default() });

    let error = error.unwrap_err().to_string();
    assert!(error.contains("claims_type watches one namespace or all"), "{error}");
    harness.shutdown().await;
}
