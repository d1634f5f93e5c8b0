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
    assert_eq!(harness.log().await, ["ns/a a"], "the controller goes on");
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
