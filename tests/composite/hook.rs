//! How the hook is asked, and what happens when it is slow.

use super::*;

#[tokio::test]
async fn a_hook_is_asked_as_metacontroller_asks() {
    let stage = Stage::start("requests").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.declare("one", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;

    let first = stage.hook.asked("at first", |call| call.parent() == "gear").await;
    let has_child = |call: &Call| call.body["children"]["ConfigMap.v1"] != json!({});
    let second = stage.hook.asked("with its child", has_child).await;

    assert_eq!(first.headers["content-type"], "application/json");
    let body = &first.body;
    let mut fields: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["children", "controller", "finalizing", "parent", "related"]);
    assert_eq!(body["children"], json!({ "ConfigMap.v1": {} }));
    assert_eq!((&body["related"], &body["finalizing"]), (&json!({}), &json!(false)));
    assert_eq!(body["controller"]["apiVersion"], "metacontroller.k8s.io/v1alpha1");
    assert_eq!(body["controller"]["kind"], "CompositeController");
    assert_eq!(body["controller"]["metadata"]["name"], stage.name("one"));
    assert_eq!(
        body["controller"]["spec"]["hooks"]["sync"]["version"], "v1",
        "as the server has it"
    );
    assert_eq!(body["parent"]["apiVersion"], json!(format!("{}/v1", rig.scope.group)));
    assert_eq!(body["parent"]["kind"], "Widget");
    let child = &second.body["children"]["ConfigMap.v1"]["gear"];
    assert_eq!((&child["kind"], &child["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let last = child["metadata"]["annotations"]["metacontroller.k8s.io/last-applied-configuration"]
        .as_str()
        .unwrap();
    assert!(last.contains(r#""data":{"size":"1"}"#), "{last}");

    let change = json!({ "spec": { "hooks": { "sync": { "version": "v2" } } } });
    stage.edit("one", change).await;
    let key = format!("{}/gear", rig.scope.namespace);
    let uniform = |call: &Call| call.body["children"]["ConfigMap.v1"][&key].is_object();
    stage.hook.asked("with the keys of version 2", uniform).await;
    stage.end().await;
}

#[tokio::test]
async fn parents_are_synced_again_when_they_or_their_hook_want_it() {
    let stage = Stage::start("resync").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|request| {
        let again = match request["parent"]["metadata"]["name"].as_str() {
            Some("soon") => 0.05,
            _ => 0.0,
        };
        Answer::Json(json!({ "status": {}, "children": [], "resyncAfterSeconds": again }))
    });
    stage.declare("asked", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.create(&crd, "soon", 1).await;
    rig.create(&crd, "never", 1).await;
    stage.hook.asked("never", |call| call.parent() == "never").await;
    let before = stage.hook.count("soon");
    for more in 0..10 {
        stage.hook.asked_again("soon", before + more).await;
    }
    // Its own status may bring it back once.
    assert!(stage.hook.count("never") <= 2, "{}", stage.hook.count("never"));

    stage.edit("asked", json!({ "spec": { "resyncPeriodSeconds": 1 } })).await;
    let before = stage.hook.count("never");
    for more in 0..4 {
        stage.hook.asked_again("never", before + more).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn a_busy_hook_is_left_alone_for_as_long_as_it_asks() {
    let stage = Stage::start("busy").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|_| Answer::Status(429, vec![("Retry-After", "1".to_owned())]));
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;
    stage.hook.asked_again("gear", 0).await;
    stage.hook.asked_again("gear", 1).await;
    stage.hook.answers(one_config_map);
    stage.child("gear", 1).await;

    let calls = stage.hook.calls();
    let apart = calls[1].at - calls[0].at;
    assert!(apart >= Duration::from_secs(1), "{apart:?}");
    let about = stage.rig.scope.client();
    let events = Api::<k8s_openapi::api::core::v1::Event>::namespaced(about, &rig.scope.namespace);
    let events = events.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(events.items.is_empty(), "{:#?}", events.items);
    stage.end().await;
}

#[tokio::test]
async fn a_hook_that_hangs_holds_up_its_own_parents_alone() {
    let stage = Stage::start("hanging").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let (_hold, held) = watch::channel(false);
    let stuck = stage.name("stuck");
    stage.hook.answers(move |request| {
        if request["controller"]["metadata"]["name"] == *stuck {
            Answer::Hold(held.clone(), Box::new(one_config_map(request)))
        } else {
            one_config_map(request)
        }
    });
    let gadgets = CrdBuilder::new(&rig.scope.group, "Gadget");
    let mut spec = stage.spec(&gadgets);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("300ms");
    stage.declare("stuck", spec).await;
    for one in 0..5 {
        let mut spec = stage.spec(&crd);
        let label = json!({ "matchLabels": { "run-by": one.to_string() } });
        spec["parentResource"]["labelSelector"] = label;
        stage.declare(&format!("fine-{one}"), spec).await;
    }
    stage.install(&gadgets).await;
    stage.install(&crd).await;
    for one in 0..10 {
        rig.create(&gadgets, &format!("stuck-{one}"), 1).await;
    }
    stage.hook.asked("a stuck one", |call| call.parent().starts_with("stuck")).await;

    let parents = rig.scope.api(&crd, "v1");
    for one in 0..20 {
        let mut parent = crd.object(&format!("fine-{one}"), json!({ "size": one }));
        let label = [("run-by".to_owned(), (one % 5).to_string())];
        parent.metadata.labels = Some(label.into());
        parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    for one in 0..20 {
        stage.child(&format!("fine-{one}"), one).await;
        assert_eq!(stage.hook.count(&format!("fine-{one}")).min(1), 1);
    }
    let unhealthy = stage.status("stuck", "its hook is unhealthy", |status| {
        condition(status, "HooksHealthy").reason == "HookTimeout"
    });
    let unhealthy = condition(&unhealthy.await, "HooksHealthy");
    assert_eq!(unhealthy.status, "False");
    assert!(unhealthy.message.contains("stuck-"), "{}", unhealthy.message);
    stage
        .status("fine-0", "its hook is healthy", |status| {
            condition(status, "HooksHealthy").status == "True"
        })
        .await;
    stage.event("stuck-0", "SyncError", "300").await;
    stage.end().await;
}

#[tokio::test]
async fn a_hook_sees_at_once_that_its_call_is_given_up() {
    let stage = Stage::start("given-up").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    let (free, held) = watch::channel(false);
    stage
        .hook
        .answers(move |request| Answer::Hold(held.clone(), Box::new(one_config_map(request))));
    let mut spec = stage.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("30s");
    stage.declare("slow", spec).await;
    stage.install(&crd).await;
    rig.create(&crd, "gear", 1).await;
    stage.hook.asked_again("gear", 0).await;
    let mut given_up = stage.hook.given_up();
    assert_eq!(*given_up.borrow(), 0);

    rig.scope.delete_crd(&crd).await.unwrap();

    assert_eq!(rig.done(&stage.runnable("slow"), 1).await, DoneReason::TypeGone);
    let done = Instant::now();
    // A connection that nobody uses any more is closed before done. The server hears of that when
    // it is its turn, and of a call that lives on when that is over: after its thirty seconds.
    let seen = timeout(Duration::from_secs(10), given_up.wait_for(|count| *count == 1)).await;
    assert!(seen.is_ok(), "the hook still answers a call of {:?} ago", done.elapsed());
    // A late answer finds nobody.
    free.send_replace(true);
    rig.until(&stage.runnable("slow"), "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(stage.hook.count("gear"), 1);
    let is_child =
        |it: &RequestInfo| it.resource == "configmaps" && Verb::MUTATING.contains(&it.verb);
    assert!(!rig.faults.seen().iter().any(is_child), "a child is written");
    stage.end().await;
}
