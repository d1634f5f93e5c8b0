//! Children of a declared controller.

use super::*;

/// Child of another kind than ConfigMap, with one field.
fn child(kind: &str, request: &Value, field: &str, value: Value) -> Value {
    let mut child = config_map(request);
    child["kind"] = json!(kind);
    child.as_object_mut().unwrap().remove("data");
    child[field] = value;
    child
}

/// Response with a Secret, a ServiceAccount and, below size 3, a ConfigMap.
fn three_children(request: &Value) -> Answer {
    let size = request["parent"]["spec"]["size"].as_i64().unwrap();
    // "MQ==" is "1".
    let secret = if size == 1 { "MQ==" } else { "Mg==" };
    let mut account =
        child("ServiceAccount", request, "automountServiceAccountToken", json!(false));
    account["metadata"]["annotations"] = json!({ "size": size.to_string() });
    let mut children = vec![child("Secret", request, "data", json!({ "size": secret })), account];
    if size < 3 {
        children.push(config_map(request));
    }
    Answer::Json(json!({ "status": status_of(request), "children": children }))
}

#[tokio::test]
async fn children_follow_their_parent_and_are_deleted_with_it() {
    let supervised = Supervised::start("children").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(three_children);
    let mut spec = supervised.spec(&crd);
    let more = [
        json!({ "apiVersion": "v1", "resource": "secrets", "updateStrategy": { "method": "Recreate" } }),
        json!({ "apiVersion": "v1", "resource": "serviceaccounts" }),
    ];
    spec["childResources"].as_array_mut().unwrap().extend(more);
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    let uid = harness.create(&crd, "gear", 1).await;
    let client = || harness.scope.client();
    let namespace = &harness.scope.namespace;
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client(), namespace);
    let accounts =
        Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client(), namespace);

    let created = supervised.child("gear", 1).await;
    let owner = &created.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Widget", uid.as_str()));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    let secret = until("the secret", async || secrets.get("gear").await.map_err(|e| e.to_string()));
    let secret = secret.await;
    let account =
        until("the account", async || accounts.get("gear").await.map_err(|e| e.to_string())).await;
    let by_hand = json!({ "data": { "by": "hand" } });
    let maps = supervised.config_maps();
    maps.patch("gear", &PatchParams::default(), &Patch::Merge(by_hand)).await.unwrap();

    supervised.resize(&crd, "gear", 2).await;
    let updated = supervised.child("gear", 2).await;
    assert_eq!(updated.uid(), created.uid(), "in place");
    assert_eq!(updated.data.unwrap()["by"], "hand", "fields of others stay");
    until("the secret was recreated", async || {
        let found = secrets.get("gear").await.map_err(|error| error.to_string())?;
        if found.uid() == secret.uid() { Err("the same".to_owned()) } else { Ok(()) }
    })
    .await;
    let parents = harness.scope.api(&crd, "v1");
    until("the status follows", async || {
        let status = parents.get("gear").await.unwrap().data["status"].clone();
        let wanted = json!({ "size": 2, "observedGeneration": 2 });
        if status == wanted { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    assert_eq!(accounts.get("gear").await.unwrap().uid(), account.uid());
    assert_eq!(
        accounts.get("gear").await.unwrap().annotations()["size"],
        "1",
        "not changed before its deletion"
    );

    accounts.delete("gear", &DeleteParams::default()).await.unwrap();
    until("the account is recreated", async || match accounts.get("gear").await {
        Ok(account) if account.annotations()["size"] == "2" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    supervised.resize(&crd, "gear", 3).await;
    supervised.config_map("gear", "is not desired any more", |child| child.is_none()).await;
    assert!(secrets.get_opt("gear").await.unwrap().is_some());

    parents.delete("gear", &DeleteParams::default()).await.unwrap();
    // The garbage collector discovers new types every 30 s, and starts over when a type of another
    // test is removed meanwhile.
    until_within(Duration::from_secs(300), "its children are deleted with it", async || {
        match (secrets.get_opt("gear").await, accounts.get_opt("gear").await) {
            (Ok(None), Ok(None)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    supervised.end().await;
}

#[tokio::test]
async fn a_child_in_a_namespace_that_is_not_watched_is_refused() {
    let supervised = Supervised::restricted("restricted").await;
    let harness = &supervised.harness;
    let crd = harness.widgets().cluster_scoped();
    let own = harness.scope.namespace.clone();
    supervised.hook.answers(move |request| {
        let mut child = config_map(request);
        let far = request["parent"]["spec"]["size"] == 1;
        child["metadata"]["namespace"] = json!(if far { "default" } else { &own });
        Answer::Json(json!({ "status": {}, "children": [child] }))
    });
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    // The name is unique in the shared namespace `default`.
    let gear = supervised.name("gear");
    harness.create(&crd, &gear, 1).await;

    supervised.event(&gear, "SyncError", "children[0].metadata.namespace").await;
    let elsewhere = Api::<ConfigMap>::namespaced(harness.scope.client(), "default");
    assert!(elsewhere.get_opt(&gear).await.unwrap().is_none(), "it is not created even once");

    supervised.resize(&crd, &gear, 2).await;
    supervised.child(&gear, 2).await;
    supervised.end().await;
}

#[tokio::test]
async fn a_child_that_is_recreated_keeps_the_port_that_it_holds() {
    let supervised = Supervised::start("recreate").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let size = &request["parent"]["spec"]["size"];
        // From the part of the range that the server does not assign automatically.
        let port = json!({ "port": 80, "nodePort": 30017 });
        let spec = json!({
            "type": "NodePort", "selector": { "size": size.to_string() }, "ports": [port],
        });
        let mut service = config_map(request);
        service["kind"] = json!("Service");
        service.as_object_mut().unwrap().remove("data");
        service["spec"] = spec;
        Answer::Json(json!({ "status": {}, "children": [service] }))
    });
    let mut spec = supervised.spec(&crd);
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "services", "updateStrategy": { "method": "Recreate" },
    }]);
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;
    let services = Api::<Service>::namespaced(harness.scope.client(), &harness.scope.namespace);
    let of_size = async |size: &str| {
        until("the service", async || {
            let service = services.get("gear").await.map_err(|error| error.to_string())?;
            let spec = service.spec.clone().unwrap();
            match spec.selector.unwrap()["size"] == size {
                true => Ok(service.uid()),
                false => Err(format!("{service:?}")),
            }
        })
        .await
    };
    let first = of_size("1").await;

    supervised.resize(&crd, "gear", 2).await;

    // The dry run of the new child fails, because the old child still holds the port.
    assert_ne!(of_size("2").await, first);
    supervised.end().await;
}

#[tokio::test]
async fn orphans_that_match_are_adopted_and_children_that_do_not_are_released() {
    let supervised = Supervised::start("claims").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let mut child = config_map(request);
        child["metadata"]["labels"] = json!({ "app": "gear" });
        Answer::Json(json!({ "status": status_of(request), "children": [child] }))
    });
    let orphan: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": "gear", "labels": { "app": "gear" } },
        "data": { "by": "hand" },
    }))
    .unwrap();
    let maps = supervised.config_maps();
    let orphan = maps.create(&PostParams::default(), &orphan).await.unwrap();
    let mut spec = supervised.spec(&crd);
    spec["generateSelector"] = json!(false);
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    let parents = harness.scope.api(&crd, "v1");
    let spec = json!({ "size": 4, "selector": { "matchLabels": { "app": "gear" } } });
    parents.create(&PostParams::default(), &crd.object("gear", spec)).await.unwrap();

    let adopted = supervised.child("gear", 4).await;
    assert_eq!(adopted.uid(), orphan.uid());
    assert_eq!(adopted.owner_references()[0].name, "gear");
    assert_eq!(adopted.data.unwrap()["by"], "hand");

    let change = json!({ "metadata": { "labels": { "app": "other" } } });
    maps.patch("gear", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let free = |child: Option<&ConfigMap>| child.is_some_and(|it| it.owner_references().is_empty());
    let released = supervised.config_map("gear", "is released", free).await.unwrap();
    assert_eq!(released.uid(), orphan.uid());
    let event = supervised.event("gear", "SyncError", "has no owner").await;
    assert_eq!(event.source.unwrap().component.as_deref(), Some("metacontroller"));
    assert_eq!(maps.get("gear").await.unwrap().uid(), orphan.uid(), "the orphan is left alone");
    supervised.end().await;
}
