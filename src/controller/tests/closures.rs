//! Closures as reconcilers, and their outcomes.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::PostParams,
    core::DynamicObject,
    runtime::{
        controller::Action,
        finalizer::{Event as FinalizerEvent, finalizer},
    },
};

use super::{typed::Widget, *};

fn sized(name: &str, size: Value) -> Value {
    let mut widget = widget(name, name);
    widget["spec"] = json!({ "size": size });
    widget
}

#[tokio::test(start_paused = true)]
async fn closure_takes_the_object_of_a_request() {
    let harness = Harness::new();
    harness.install("Widget");
    let log = Arc::clone(&harness.log);
    let reconcile = for_object(move |widget: Option<Arc<Widget>>, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let request = context.request().ok_or("no request")?.clone();
            let note = match widget {
                Some(widget) => format!("{request} {}", widget.spec.size),
                None => format!("{request} gone"),
            };
            log.lock().unwrap().push(note);
            Ok(Outcome::Done)
        }
    });
    let controller = builder().for_::<Widget>().build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    harness.server.apply(sized("a", json!(1)));
    assert_eq!(harness.log().await, ["ns/a 1"]);
    harness.server.apply(sized("a", json!(2)));
    assert_eq!(harness.log().await, ["ns/a 2"]);
    harness.server.apply(sized("a", json!("many")));
    assert_eq!(harness.log().await, [""; 0], "an object of another shape is not reconciled");
    sleep(Duration::from_secs(3600)).await;
    let error = harness.status().report.last_error.clone().unwrap();
    assert!(error.contains("expected u32"), "{error}");
    harness.server.delete("Widget", "a");
    assert_eq!(harness.log().await, ["ns/a gone"]);
    harness.shutdown().await;
}

/// Reconciler of objects that logs their sizes.
struct Sizes(Log);

impl ObjectReconciler<Widget> for Sizes {
    async fn reconcile(
        &self,
        widget: Option<Arc<Widget>>,
        _: Context,
    ) -> Result<Outcome, ReconcileError> {
        self.0.lock().unwrap().push(format!("{:?}", widget.map(|widget| widget.spec.size)));
        Ok(Outcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_reconciled_by_a_type_of_the_program() {
    let harness = Harness::new();
    harness.install("Widget");
    let reconciler = for_objects_of(Sizes(Arc::clone(&harness.log)));
    let controller = builder().for_::<Widget>().build(&harness.cluster, reconciler).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();

    harness.server.apply(sized("a", json!(1)));
    assert_eq!(harness.log().await, ["Some(1)"]);
    harness.server.delete("Widget", "a");
    assert_eq!(harness.log().await, ["None"]);
    harness.shutdown().await;
}

/// A namespaced object without a namespace was sent to the path of a cluster-scoped one.
#[tokio::test(start_paused = true)]
async fn apply_of_a_namespaced_object_without_a_namespace_says_what_to_set() {
    let harness = Harness::new();
    harness.install("Widget");
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let resource = context.served(&widgets())?.api_resource();
            let mut widget = DynamicObject::new(&format!("{}-copy", request.name), &resource);
            let refused = context.apply_with(&widget, &resource).await.unwrap_err();
            widget.metadata.namespace = request.namespace.as_deref().map(str::to_owned);
            let applied = context.apply_with(&widget, &resource).await.is_ok();
            log.lock().unwrap().push(format!("{refused}; {applied}"));
            Ok(Outcome::Done)
        }
    };
    let is_original = Predicate::new(|change| change.key.name.len() == 1);
    let described = builder().for_type(widgets()).predicate(is_original);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();

    harness.server.apply(widget("a", "a"));

    let expected = "metadata.namespace must be set: widgets.example.com/v1 is namespaced; true";
    assert_eq!(harness.log().await, [expected]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_whose_type_is_gone_counts_as_deleted_once_its_type_is_listed_again() {
    let harness = Harness::new();
    harness.install("Widget");
    let log = Arc::clone(&harness.log);
    let reconcile = for_object(move |widget: Option<Arc<Widget>>, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let request = context.request().ok_or("no request")?;
            let size = widget.map(|widget| widget.spec.size);
            log.lock().unwrap().push(format!("{request} {size:?}"));
            Ok(Outcome::Done)
        }
    });
    let described = builder().for_::<Widget>().optional();
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    harness.server.apply(sized("a", json!(1)));
    harness.server.apply(sized("b", json!(1)));
    assert_eq!(harness.log().await, ["ns/a Some(1)", "ns/b Some(1)"]);

    harness.server.uninstall("widgets");
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(harness.log().await, [""; 0], "nothing can be read");
    let status = harness.status();
    assert_eq!((status.epoch, status.report.last_error.as_deref()), (1, None));

    harness.install("Widget");
    harness.server.apply(sized("a", json!(2)));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(harness.log().await, ["ns/a Some(2)", "ns/b None"], "without the back-off");
    sleep(Duration::from_secs(2000)).await;
    assert_eq!(harness.log().await, [""; 0], "once");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn panic_without_recovery_ends_the_run_and_with_fail_fast_the_manager() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let reconcile = |_: Request, context: Context| async move {
        assert!(context.epoch().number() > 1, "boom");
        Ok(Outcome::Done)
    };
    let described = || builder().for_type(widgets()).recover_panic(false);
    let controller = described().build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    let status = harness.until(|status| status.last_done.is_some()).await;
    let done = format!("{:?}", status.last_done);
    assert!(done.contains("the reconcile of ns/a panicked") && done.contains("boom"), "{done}");
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    harness.shutdown().await;

    let server = Server::new();
    server.install(crd("Widget"), &["v1"]);
    server.apply(widget("a", "a"));
    let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let defaults = ControllerDefaults::default().recover_panic(false);
    let cluster = cluster.with_defaults(defaults);
    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster").unwrap();
    let panics = |_: Request, _: Context| async { panic!("boom") };
    let controller = builder().for_type(widgets()).build(&cluster, panics).unwrap();
    manager.add(NAME, Arc::new(controller), RunnableOptions::fail_fast()).unwrap();
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("boom"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn requeue_is_retried_after_a_growing_back_off_without_an_error() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let (log, start) = (Arc::clone(&harness.log), Instant::now());
    let reconcile = move |_: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let after = start.elapsed().as_secs();
            log.lock().unwrap().push(format!("{} after {after} s", context.attempt()));
            Ok(if context.attempt() < 4 { Outcome::Requeue } else { Outcome::Done })
        }
    };
    let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(100) };
    let described = builder().for_type(widgets()).backoff(backoff);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    sleep(Duration::from_secs(3600)).await;

    assert_eq!(
        harness.log().await,
        ["0 after 0 s", "1 after 1 s", "2 after 3 s", "3 after 7 s", "4 after 15 s"]
    );
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn requeue_ends_a_streak_of_failures() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let reconcile = |_: Request, context: Context| async move {
        match context.attempt() {
            0 => Err("the first one".into()),
            _ => Ok(Outcome::Requeue),
        }
    };
    let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(10) };
    let described = builder().for_type(widgets()).backoff(backoff);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    sleep(Duration::from_secs(600)).await;

    let report = &harness.status().report;
    assert!(!report.failing && report.last_error.is_none(), "{report:?}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn limiter_of_the_user_decides_when_a_request_is_retried() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let (log, start) = (Arc::clone(&harness.log), Instant::now());
    let reconcile = move |_: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let second = start.elapsed().as_secs();
            log.lock().unwrap().push(format!("{} after {second} s", context.attempt()));
            if context.attempt() < 3 { Err("not yet".into()) } else { Ok(Outcome::Done) }
        }
    };
    let (fast, slow) = (Duration::from_secs(10), Duration::from_secs(100));
    let bucket = TokenBucketLimiter::new(Limit { per_second: 0.025, burst: 1 });
    let limiter = MaxOf(FastSlow { fast, slow, fast_retries: 2 }, bucket);
    let described = builder().for_type(widgets()).rate_limiter(limiter);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    sleep(Duration::from_secs(3600)).await;

    let expected = ["0 after 0 s", "1 after 10 s", "2 after 40 s", "3 after 140 s"];
    assert_eq!(harness.log().await, expected);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retry_that_is_chosen_inside_a_finalizer_of_kube_is_kept() {
    let harness = Harness::new();
    let log = Arc::clone(&harness.log);
    let apply = move |map: &ConfigMap| -> Result<(), ReconcileError> {
        let name = map.name_any();
        log.lock().unwrap().push(name.clone());
        match name.as_str() {
            "hopeless" => Err("no number").terminal(),
            _ => Err("not yet").retry_after(Duration::from_secs(600)),
        }
    };
    let apply = Arc::new(apply);
    let reconcile = for_object(move |map: Option<Arc<ConfigMap>>, context: Context| {
        let apply = Arc::clone(&apply);
        async move {
            let Some(map) = map else { return Ok(Outcome::Done) };
            let maps = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");
            finalizer(&maps, "example.com/test", map, |event| async {
                match event {
                    FinalizerEvent::Apply(map) => apply(&map)?,
                    FinalizerEvent::Cleanup(_) => {}
                }
                Ok::<_, StdReconcileError>(Action::await_change())
            })
            .await?;
            Ok(Outcome::Done)
        }
    });
    let controller = builder().for_::<ConfigMap>().build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(harness.server.client(), "ns");
    for name in ["hopeless", "later"] {
        let map = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    }

    sleep(Duration::from_secs(3 * 600 + 10)).await;

    assert_eq!(harness.sorted_log().await, ["hopeless", "later", "later", "later", "later"]);
    harness.shutdown().await;
}

#[test]
fn error_is_made_terminal_or_retried_after_a_time() {
    let bad = || "many".parse::<u32>();

    let terminal = bad().terminal();
    assert!(matches!(terminal, Err(ReconcileError::Terminal(_))), "{terminal:?}");
    let later = bad().retry_after(Duration::from_secs(7));
    let Err(ReconcileError::RetryAfter(_, after)) = later else { panic!("{later:?}") };
    assert_eq!(after, Duration::from_secs(7));
    assert_eq!("7".parse::<u32>().terminal().unwrap(), 7);
}
