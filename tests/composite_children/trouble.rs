//! Invalid hook responses and invalid parents, and their reports.

use super::*;

#[tokio::test]
async fn unusable_response_deletes_nothing_and_is_reported() {
    let harness = Harness::start(
        "composite-bad",
        "InPlace",
        |_| json!({"children": [child("a", "kept", "x")]}),
    )
    .await;
    let before = {
        harness.create_thing("a").await;
        eventually("the child", async || harness.config_map("kept").await).await
    };
    for (answer, part) in [
        (json!(""), "empty body"),
        (json!("[]"), "hook response is unusable"),
        (json!("{\"children\":["), "EOF"),
        (json!({"children": "x"}), "children: "),
    ] {
        harness.answers(move |_| Ok(answer.clone()));
        harness.touch("a").await;

        harness.event("SyncError", part).await;
    }
    assert_eq!(harness.config_map("kept").await.unwrap().uid(), before.uid());
    harness.answers(|_| {
        Ok(json!({"children": [child("a", "kept", "x"), child("a", "another", "x")]}))
    });
    harness.touch("a").await;
    eventually("recovery", async || harness.config_map("another").await).await;
    harness.stop().await;
}

#[tokio::test]
async fn a_repeated_failure_is_one_event_with_a_count() {
    let harness = Harness::start("composite-repeat", "InPlace", |_| json!("")).await;

    harness.create_thing("a").await;

    let event = eventually("a count", async || {
        let event = harness.event("SyncError", "empty body").await;
        event.count.filter(|count| *count >= 3).map(|_| event)
    })
    .await;
    let events = Api::<Event>::namespaced(harness.scope.client(), &harness.scope.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].name_any(), event.name_any());
    harness.stop().await;
}

#[tokio::test]
async fn busy_hook_is_called_again_without_an_event() {
    let harness = Harness::start("composite-busy", "InPlace", |_| json!({})).await;
    let calls = Mutex::new(0);
    harness.answers(move |_| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        if *calls < 4 {
            return Err(HookError::Busy(Duration::from_millis(50)));
        }
        Ok(json!({"status": {"done": true}}))
    });

    harness.create_thing("a").await;

    eventually("the answer", async || {
        harness.things().get("a").await.unwrap().data["status"]["done"].as_bool()
    })
    .await;
    let events = Api::<Event>::namespaced(harness.scope.client(), &harness.scope.namespace);
    assert!(events.list(&ListParams::default()).await.unwrap().items.is_empty());
    harness.stop().await;
}

#[tokio::test]
async fn a_parent_that_is_being_deleted_keeps_its_children_and_gets_its_status() {
    let harness = Harness::start("composite-going", "InPlace", |request| {
        let going = request["parent"]["metadata"]["deletionTimestamp"].is_string();
        let children = if going { json!([]) } else { json!([child("a", "kept", "x")]) };
        json!({"status": {"going": going}, "children": children})
    })
    .await;
    harness.create_thing("a").await;
    eventually("the child", async || harness.config_map("kept").await).await;
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["test.example.com/hold"]}}));
    harness.things().patch("a", &PatchParams::default(), &hold).await.unwrap();

    harness.things().delete("a", &DeleteParams::background()).await.unwrap();

    eventually("the status", async || {
        harness.things().get("a").await.unwrap().data["status"]["going"]
            .as_bool()
            .filter(|going| *going)
    })
    .await;
    assert!(harness.config_map("kept").await.unwrap().metadata.deletion_timestamp.is_none());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    harness.things().patch("a", &PatchParams::default(), &release).await.unwrap();
    harness.stop().await;
}

#[tokio::test]
async fn a_parent_without_a_status_subresource_is_waited_for() {
    let scope = shared().plane.scope("composite-nostatus").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1").without_status();
    scope.install_crd(&crd).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let harness = Harness::start_with(scope, crd, json!({}), |_| json!({"status": {"n": 1}})).await;
    harness.create_thing("a").await;
    eventually("the reason", async || {
        let status = harness.controllers().get(&harness.scope.namespace).await.unwrap().status?;
        (status.reason.as_deref() == Some("SubresourceMissing")).then_some(())
    })
    .await;
    assert_eq!(harness.call_count(), 0);
    let message = harness.event_of_controller("SyncError").await;
    assert!(message.contains("does not have subresource 'Status' enabled"), "{message}");

    let crds = Api::<CustomResourceDefinition>::all(harness.scope.client());
    let patch =
        json!([{"op": "add", "path": "/spec/versions/0/subresources", "value": {"status": {}}}]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
    crds.patch(&harness.crd.name(), &PatchParams::default(), &patch).await.unwrap();

    eventually("the status", async || {
        harness.things().get("a").await.unwrap().data["status"]["n"].as_i64()
    })
    .await;
    harness.stop().await;
}

#[tokio::test]
async fn status_that_the_schema_prunes_is_not_written_endlessly() {
    let scope = shared().plane.scope("composite-pruned").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");
    let mut pruning = crd.build();
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "status": {"type": "object", "properties": {"kept": {"type": "integer"}}}
    }}});
    pruning.spec.versions[0].schema = serde_json::from_value(schema).unwrap();
    let crds = Api::all(scope.client());
    crds.create(&PostParams::default(), &pruning).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let answer = |_: &Value| json!({"status": {"kept": 1, "pruned": 2}});
    let harness = Harness::start_with(scope, crd, json!({}), answer).await;
    harness.create_thing("a").await;
    eventually("the status", async || {
        harness.things().get("a").await.unwrap().data["status"]["kept"].as_i64()
    })
    .await;

    let position = Harness::position();
    for _ in 0..3 {
        let calls = harness.call_count();
        harness.touch("a").await;
        eventually("a sync", async || (harness.call_count() > calls).then_some(())).await;
    }

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(harness.requests_since(position, "update").await, 0);
    harness.stop().await;
}

#[tokio::test]
async fn waiting_controller_is_reported_in_an_event() {
    let scope = shared().plane.scope("composite-waiting").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");

    let harness = Harness::start_with(scope, crd, json!({}), |_| json!({})).await;

    let message = harness.event_of_controller("Waiting").await;
    assert!(
        message.contains(&harness.crd.name()) && message.contains("is not installed"),
        "{message}"
    );
    harness.stop().await;
}
