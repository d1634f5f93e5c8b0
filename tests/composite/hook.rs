//! Calls of a hook, and slow hooks.

use super::*;

#[tokio::test]
async fn a_hook_request_is_that_of_metacontroller() {
    let supervised = Supervised::start("requests").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("one", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    let first = supervised.hook.called("at first", |call| call.parent() == "gear").await;
    let has_child = |call: &Call| call.body["children"]["ConfigMap.v1"] != json!({});
    let second = supervised.hook.called("with its child", has_child).await;

    assert_eq!(first.headers["content-type"], "application/json");
    let body = &first.body;
    let mut fields: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["children", "controller", "finalizing", "parent", "related"]);
    assert_eq!(body["children"], json!({ "ConfigMap.v1": {} }));
    assert_eq!((&body["related"], &body["finalizing"]), (&json!({}), &json!(false)));
    assert_eq!(body["controller"]["apiVersion"], "metacontroller.k8s.io/v1alpha1");
    assert_eq!(body["controller"]["kind"], "CompositeController");
    assert_eq!(body["controller"]["metadata"]["name"], supervised.name("one"));
    assert_eq!(
        body["controller"]["spec"]["hooks"]["sync"]["version"], "v1",
        "with the server's defaults"
    );
    assert_eq!(body["parent"]["apiVersion"], json!(format!("{}/v1", harness.scope.group)));
    assert_eq!(body["parent"]["kind"], "Widget");
    let child = &second.body["children"]["ConfigMap.v1"]["gear"];
    assert_eq!((&child["kind"], &child["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let last = child["metadata"]["annotations"]["metacontroller.k8s.io/last-applied-configuration"]
        .as_str()
        .unwrap();
    assert!(last.contains(r#""data":{"size":"1"}"#), "{last}");

    let change = json!({ "spec": { "hooks": { "sync": { "version": "v2" } } } });
    supervised.edit("one", change).await;
    let key = format!("{}/gear", harness.scope.namespace);
    let uniform = |call: &Call| call.body["children"]["ConfigMap.v1"][&key].is_object();
    supervised.hook.called("with the keys of version 2", uniform).await;
    supervised.end().await;
}

#[tokio::test]
async fn parents_are_synced_again_after_a_change_or_the_requested_time() {
    let supervised = Supervised::start("resync").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let again = match request["parent"]["metadata"]["name"].as_str() {
            Some("soon") => 0.05,
            _ => 0.0,
        };
        Answer::Json(json!({ "status": {}, "children": [], "resyncAfterSeconds": again }))
    });
    supervised.declare("timed", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "soon", 1).await;
    harness.create(&crd, "never", 1).await;
    supervised.hook.called("never", |call| call.parent() == "never").await;
    let before = supervised.hook.count("soon");
    for more in 0..10 {
        supervised.hook.called_again("soon", before + more).await;
    }
    // The write of its status may cause one more call.
    assert!(supervised.hook.count("never") <= 2, "{}", supervised.hook.count("never"));

    supervised.edit("timed", json!({ "spec": { "resyncPeriodSeconds": 1 } })).await;
    let before = supervised.hook.count("never");
    for more in 0..4 {
        supervised.hook.called_again("never", before + more).await;
    }
    supervised.end().await;
}

#[tokio::test]
async fn busy_hook_is_not_called_before_its_retry_after() {
    let supervised = Supervised::start("busy").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|_| Answer::Status(429, vec![("Retry-After", "1".to_owned())]));
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;
    supervised.hook.called_again("gear", 0).await;
    supervised.hook.called_again("gear", 1).await;
    supervised.hook.answers(one_config_map);
    supervised.child("gear", 1).await;

    let calls = supervised.hook.calls();
    let apart = calls[1].at - calls[0].at;
    assert!(apart >= Duration::from_secs(1), "{apart:?}");
    let about = supervised.harness.scope.client();
    let events =
        Api::<k8s_openapi::api::core::v1::Event>::namespaced(about, &harness.scope.namespace);
    let events = events.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(events.items.is_empty(), "{:#?}", events.items);
    supervised.end().await;
}

#[tokio::test]
async fn hanging_hook_delays_only_its_own_parents() {
    let supervised = Supervised::start("hanging").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let (_hold, held) = watch::channel(false);
    let stuck = supervised.name("stuck");
    supervised.hook.answers(move |request| {
        if request["controller"]["metadata"]["name"] == *stuck {
            Answer::Hold(held.clone(), Box::new(one_config_map(request)))
        } else {
            one_config_map(request)
        }
    });
    let gadgets = CrdBuilder::new(&harness.scope.group, "Gadget");
    let mut spec = supervised.spec(&gadgets);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("300ms");
    supervised.declare("stuck", spec).await;
    for one in 0..5 {
        let mut spec = supervised.spec(&crd);
        let label = json!({ "matchLabels": { "run-by": one.to_string() } });
        spec["parentResource"]["labelSelector"] = label;
        supervised.declare(&format!("fine-{one}"), spec).await;
    }
    supervised.install(&gadgets).await;
    supervised.install(&crd).await;
    for one in 0..10 {
        harness.create(&gadgets, &format!("stuck-{one}"), 1).await;
    }
    supervised
        .hook
        .called("a parent whose hook is stuck", |call| call.parent().starts_with("stuck"))
        .await;

    let parents = harness.scope.api(&crd, "v1");
    for one in 0..20 {
        let mut parent = crd.object(&format!("fine-{one}"), json!({ "size": one }));
        let label = [("run-by".to_owned(), (one % 5).to_string())];
        parent.metadata.labels = Some(label.into());
        parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    for one in 0..20 {
        supervised.child(&format!("fine-{one}"), one).await;
        assert_eq!(supervised.hook.count(&format!("fine-{one}")).min(1), 1);
    }
    let unhealthy = supervised.status("stuck", "its hook is unhealthy", |status| {
        condition(status, "HooksHealthy").reason == "HookTimeout"
    });
    let unhealthy = condition(&unhealthy.await, "HooksHealthy");
    assert_eq!(unhealthy.status, "False");
    assert!(unhealthy.message.contains("stuck-"), "{}", unhealthy.message);
    supervised
        .status("fine-0", "its hook is healthy", |status| {
            condition(status, "HooksHealthy").status == "True"
        })
        .await;
    supervised.event("stuck-0", "SyncError", "300").await;
    supervised.end().await;
}

#[tokio::test]
async fn a_hook_sees_at_once_that_its_call_is_cancelled() {
    let supervised = Supervised::start("given-up").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let (free, held) = watch::channel(false);
    supervised
        .hook
        .answers(move |request| Answer::Hold(held.clone(), Box::new(one_config_map(request))));
    let mut spec = supervised.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("30s");
    supervised.declare("slow", spec).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;
    supervised.hook.called_again("gear", 0).await;
    let mut cancelled = supervised.hook.cancelled();
    assert_eq!(*cancelled.borrow(), 0);

    harness.scope.delete_crd(&crd).await.unwrap();

    assert_eq!(harness.done(&supervised.runnable("slow"), 1).await, DoneReason::TypeGone);
    let done = Instant::now();
    // Unused connections are closed before done. The server notices that with some delay; a call
    // that outlived done would end only after its timeout of thirty seconds.
    let seen = timeout(Duration::from_secs(10), cancelled.wait_for(|count| *count == 1)).await;
    assert!(seen.is_ok(), "the hook still answers a call of {:?} ago", done.elapsed());
    // The epoch is done, so the late response is ignored.
    free.send_replace(true);
    harness.until(&supervised.runnable("slow"), "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(supervised.hook.count("gear"), 1);
    let is_child =
        |it: &RequestInfo| it.resource == "configmaps" && Verb::MUTATING.contains(&it.verb);
    assert!(!harness.faults.seen().iter().any(is_child), "a child is written");
    supervised.end().await;
}
