//! Children that differ from the desired state, or are no longer desired.

use k8s_openapi::api::core::v1::Service;

use super::*;

#[tokio::test]
async fn in_place_keeps_fields_of_others_and_removes_undesired_ones() {
    let harness = Harness::start(
        "composite-inplace",
        "InPlace",
        |_| json!({"children": [child("a", "one", "old"), child("a", "two", "old")]}),
    )
    .await;
    harness.create_thing("a").await;
    let before = eventually("the child", async || harness.config_map("one").await).await;
    eventually("the other", async || harness.config_map("two").await).await;
    let foreign = Patch::Merge(json!({"data": {"foreign": "kept"}}));
    harness.config_maps().patch("one", &PatchParams::default(), &foreign).await.unwrap();

    harness.answers(|_| Ok(json!({"children": [child("a", "one", "new")]})));
    harness.touch("a").await;

    let after = eventually("the update", async || {
        harness.config_map("one").await.filter(|it| value(it) == Some("new"))
    })
    .await;
    assert_eq!(after.uid(), before.uid());
    assert_eq!(after.data.as_ref().unwrap()["foreign"], "kept");
    eventually("the deletion", async || harness.config_map("two").await.is_none().then_some(()))
        .await;
    harness.stop().await;
}

#[tokio::test]
async fn recreate_replaces_and_on_delete_waits() {
    for (method, replaced) in [("Recreate", true), ("OnDelete", false)] {
        let name = format!("composite-{}", method.to_lowercase());
        let harness =
            Harness::start(&name, method, |_| json!({"children": [child("a", "one", "old")]}))
                .await;
        harness.create_thing("a").await;
        let before = eventually("the child", async || harness.config_map("one").await).await;

        harness.answers(|_| Ok(json!({"children": [child("a", "one", "new")]})));
        harness.touch("a").await;

        if replaced {
            let after = eventually("the new child", async || {
                harness.config_map("one").await.filter(|it| value(it) == Some("new"))
            })
            .await;
            assert_ne!(after.uid(), before.uid());
        } else {
            let calls = harness.call_count();
            harness.touch("a").await;
            eventually("a sync", async || (harness.call_count() > calls).then_some(())).await;
            assert_eq!(value(&harness.config_map("one").await.unwrap()), Some("old"));
            harness.config_maps().delete("one", &DeleteParams::default()).await.unwrap();
            eventually("the new child", async || {
                harness.config_map("one").await.filter(|it| value(it) == Some("new"))
            })
            .await;
        }
        harness.stop().await;
    }
}

#[tokio::test]
async fn an_orphan_that_matches_is_adopted_and_a_child_that_does_not_is_released() {
    let harness = Harness::start("composite-claim", "OnDelete", |request| {
        // Returns all observed children as desired.
        let children = request["children"]["ConfigMap.v1"].as_object().unwrap();
        json!({"children": children.values().collect::<Vec<_>>()})
    })
    .await;
    let thing = harness.create_thing("a").await;
    eventually("a sync", async || (harness.call_count() > 0).then_some(())).await;

    let orphan: ConfigMap = serde_json::from_value(child("a", "orphan", "x")).unwrap();
    harness.config_maps().create(&PostParams::default(), &orphan).await.unwrap();

    eventually("the adoption", async || {
        let owners = harness.config_map("orphan").await?.owner_references().to_vec();
        (owners.first()?.uid == thing.uid()?).then_some(())
    })
    .await;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"thing": "other"}}}));
    harness.config_maps().patch("orphan", &PatchParams::default(), &patch).await.unwrap();
    eventually("the release", async || {
        harness.config_map("orphan").await?.owner_references().is_empty().then_some(())
    })
    .await;
    harness.stop().await;
}

#[tokio::test]
async fn object_of_another_owner_is_reported_and_delays_no_other() {
    let harness = Harness::start(
        "composite-alien",
        "InPlace",
        |_| json!({"children": [child("a", "alien", "mine"), child("a", "other", "mine")]}),
    )
    .await;
    let alien = serde_json::from_value(json!({
        "metadata": {"name": "alien", "labels": {"thing": "other"}}
    }));
    harness.config_maps().create(&PostParams::default(), &alien.unwrap()).await.unwrap();

    harness.create_thing("a").await;

    let event = harness.event("SyncError", "creating ConfigMap").await;
    assert!(event.message.unwrap().contains("does not match the parent's selector"));
    assert_eq!(event.source.unwrap().component.as_deref(), Some("metacontroller"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    eventually("the other child", async || harness.config_map("other").await).await;
    assert_eq!(value(&harness.config_map("alien").await.unwrap()), None);
    harness.stop().await;
}

#[tokio::test]
async fn child_is_not_deleted_for_a_replacement_that_the_server_refuses() {
    let harness = Harness::start(
        "composite-dry-run",
        "Recreate",
        |_| json!({"children": [child("a", "one", "old")]}),
    )
    .await;
    harness.create_thing("a").await;
    let before = eventually("the child", async || harness.config_map("one").await).await;

    harness.answers(|_| {
        let mut wrong = child("a", "one", "new");
        wrong["data"]["no/key"] = json!("");
        Ok(json!({"children": [wrong]}))
    });
    harness.touch("a").await;
    let event = harness.event("SyncError", "the old object is kept").await;
    assert!(event.message.unwrap().contains("no/key"), "the reason is the server's");
    let kept = harness.config_map("one").await.unwrap();
    assert_eq!((kept.uid(), value(&kept)), (before.uid(), Some("old")));

    harness.answers(|_| Ok(json!({"children": [child("a", "one", "new")]})));
    harness.touch("a").await;
    let replaced = eventually("the new child", async || {
        harness.config_map("one").await.filter(|child| value(child) == Some("new"))
    });
    assert_ne!(replaced.await.uid(), before.uid());
    harness.stop().await;
}

#[tokio::test]
async fn service_is_replaced_with_its_node_port_and_kept_if_another_one_holds_the_port() {
    let scope = shared().plane.scope("composite-node-port").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");
    scope.install_crd(&crd).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let wanted = |port: u16, node_port: u16| {
        json!({"status": {}, "children": [{
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "one", "labels": {"thing": "a"}},
            "spec": {"type": "NodePort", "ports": [{"port": port, "nodePort": node_port}]}
        }]})
    };
    let (strategy, children) = (json!({"method": "Recreate"}), ("v1", "services"));
    let harness =
        Harness::start_of(scope, crd, children, strategy, move |_| wanted(80, 31080)).await;
    let services = Api::<Service>::namespaced(harness.scope.client(), &harness.scope.namespace);
    harness.create_thing("a").await;
    let before = eventually("the Service", async || services.get_opt("one").await.unwrap()).await;

    harness.answers(move |_| Ok(wanted(81, 31080)));
    harness.touch("a").await;

    let replaced = eventually("its replacement", async || {
        services.get_opt("one").await.unwrap().filter(|service| service.uid() != before.uid())
    })
    .await;
    let port = replaced.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].clone();
    assert_eq!((port.port, port.node_port), (81, Some(31080)));

    let mut theirs = wanted(80, 31081)["children"][0].clone();
    theirs["metadata"] = json!({"name": "theirs"});
    let theirs = serde_json::from_value(theirs).unwrap();
    services.create(&PostParams::default(), &theirs).await.unwrap();
    harness.answers(move |_| Ok(wanted(81, 31081)));
    harness.touch("a").await;
    let event = harness.event("SyncError", "the old object is kept").await;
    assert!(event.message.unwrap().contains("already allocated"), "the reason is the server's");
    assert_eq!(services.get("one").await.unwrap().uid(), replaced.uid());
    harness.stop().await;
}

#[tokio::test]
async fn hook_whose_response_changes_on_every_call_is_limited() {
    let random = || fastrand::u64(..).to_string();
    let harness = Harness::start("composite-flapping", "InPlace", move |_| {
        let children = [child("a", "one", &random())];
        json!({"status": {"random": random()}, "children": children})
    })
    .await;
    let position = Harness::position();

    harness.create_thing("a").await;
    harness.event("Flapping", "changes repeatedly").await;
    let conditions = eventually("the condition", async || {
        let status = harness.controllers().get(&harness.scope.namespace).await.unwrap().status?;
        let healthy = |it: &StatusCondition| it.type_ == "HooksHealthy" && it.reason == "Flapping";
        status.conditions.iter().any(healthy).then_some(status.conditions)
    });
    conditions.await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Child and status each have a burst of 400 writes, then one each second.
    let written = harness.requests_since(position, "update").await;
    assert!((400..=900).contains(&written), "{written} writes");

    harness.answers(|_| Ok(json!({"status": {}, "children": [child("a", "one", "fixed")]})));
    eventually("the last desired state", async || {
        harness.config_map("one").await.filter(|child| value(child) == Some("fixed"))
    })
    .await;
    harness.stop().await;
}

#[tokio::test]
async fn child_that_the_server_normalizes_is_not_reported_as_flapping() {
    let harness = Harness::start("composite-spelling", "InPlace", |_| {
        let mut spelled = child("a", "one", "same");
        // The server stores null as an empty text.
        spelled["data"]["none"] = Value::Null;
        json!({"status": {}, "children": [spelled]})
    })
    .await;
    harness.create_thing("a").await;
    let before = eventually("the child", async || harness.config_map("one").await).await;
    let position = Harness::position();

    for _ in 0..25 {
        let calls = harness.call_count();
        harness.touch("a").await;
        eventually("a sync", async || (harness.call_count() > calls).then_some(())).await;
    }
    harness.answers(|_| Ok(json!({"status": {}, "children": [child("a", "one", "new")]})));
    harness.touch("a").await;
    let changed = eventually("the change", async || {
        harness.config_map("one").await.filter(|child| value(child) == Some("new"))
    })
    .await;

    assert_ne!(changed.resource_version(), before.resource_version());
    assert!(harness.requests_since(position, "update").await > 20, "each sync tried");
    let events: Api<Event> = Api::namespaced(harness.scope.client(), &harness.scope.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    assert!(events.iter().all(|event| event.reason.as_deref() != Some("Flapping")), "{events:?}");
    harness.stop().await;
}

#[tokio::test]
async fn child_that_the_server_normalizes_is_not_recreated() {
    let scope = shared().plane.scope("composite-respelling").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");
    scope.install_crd(&crd).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let limited = |cpu: &str| {
        json!({"status": {}, "children": [{
            "apiVersion": "v1", "kind": "LimitRange",
            "metadata": {"name": "one", "labels": {"thing": "a"}},
            // The server stores "500m", and adds the default and the request.
            "spec": {"limits": [{"type": "Container", "max": {"cpu": cpu}, "default": null}]}
        }]})
    };
    let strategy = json!({"method": "Recreate"});
    let children = ("v1", "limitranges");
    let harness = Harness::start_of(scope, crd, children, strategy, move |_| limited("0.5")).await;
    let limits = Api::<LimitRange>::namespaced(harness.scope.client(), &harness.scope.namespace);
    harness.create_thing("a").await;
    let before = eventually("the child", async || limits.get_opt("one").await.unwrap()).await;
    let max = before.spec.as_ref().unwrap().limits[0].max.as_ref().unwrap();
    assert_eq!(max["cpu"].0, "500m", "the stored spelling differs");

    for _ in 0..25 {
        let calls = harness.call_count();
        harness.touch("a").await;
        eventually("a sync", async || (harness.call_count() > calls).then_some(())).await;
    }
    let kept = limits.get("one").await.unwrap();
    assert_eq!((kept.uid(), kept.resource_version()), (before.uid(), before.resource_version()));

    harness.answers(move |_| Ok(limited("0.25")));
    harness.touch("a").await;
    let replaced = eventually("another value", async || {
        limits.get_opt("one").await.unwrap().filter(|child| child.uid() != before.uid())
    })
    .await;
    assert_eq!(replaced.spec.unwrap().limits[0].max.as_ref().unwrap()["cpu"].0, "250m");
    harness.stop().await;
}

#[tokio::test]
async fn a_child_whose_fields_cannot_be_changed_is_recreated() {
    let fixed = |value: &str| {
        let mut child = child("a", "one", value);
        child["immutable"] = json!(true);
        json!({"status": {}, "children": [child]})
    };
    let harness = Harness::start("composite-immutable", "Recreate", move |_| fixed("old")).await;
    harness.create_thing("a").await;
    let before = eventually("the child", async || harness.config_map("one").await).await;

    harness.answers(move |_| Ok(fixed("new")));
    harness.touch("a").await;

    let after = eventually("the new child", async || {
        harness.config_map("one").await.filter(|child| value(child) == Some("new"))
    });
    assert_ne!(after.await.uid(), before.uid());
    harness.stop().await;
}
