//! Hooks as users of Metacontroller have published them: the shapes of their responses, on the real
//! server.

use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{Answer, Supervised, config_map, status_of, until};

/// Waits until a parent is gone.
async fn gone(supervised: &Supervised<'_>, crd: &pilotlight::testing::CrdBuilder, name: &str) {
    let parents = supervised.harness.scope.api(crd, "v1");
    until("the parent is gone", async || match parents.get_opt(name).await.unwrap() {
        None => Ok(()),
        Some(parent) => Err(format!("{:?}", parent.metadata.finalizers)),
    })
    .await;
}

/// An archiving service answers a finalization with the children of its template, then with those
/// that it has observed and marks, and ends when it observes the mark.
#[tokio::test]
async fn finalize_hook_that_lists_its_child_as_template_and_as_observed_ends() {
    let supervised = Supervised::start("twice").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let observed = request["children"]["ConfigMap.v1"].as_object().unwrap().values();
        let observed: Vec<_> = observed.cloned().collect();
        let is_finalizing = request["finalizing"] == true;
        let mut children = vec![config_map(request)];
        if is_finalizing {
            children.extend(observed.iter().cloned().map(|mut child| {
                child["data"]["archived"] = json!("yes");
                child
            }));
            if observed.iter().all(|child| child["data"]["archived"] == "yes") {
                children.clear();
            }
        }
        let finalized = is_finalizing && children.is_empty() && observed.is_empty();
        Answer::Json(json!({
            "children": children, "finalized": finalized, "resyncAfterSeconds": 0.2,
        }))
    });
    let mut spec = supervised.spec(&crd);
    spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;
    supervised.child("gear", 1).await;

    let parents = harness.scope.api(&crd, "v1");
    parents.delete("gear", &DeleteParams::default()).await.unwrap();

    gone(&supervised, &crd, "gear").await;
    supervised.config_map("gear", "is gone", |child| child.is_none()).await;
    supervised.end().await;
}

/// Hooks in JavaScript and Java send floats, nulls and fields that Metacontroller does not know.
#[tokio::test]
async fn response_with_floats_nulls_and_unknown_fields_is_executed() {
    let supervised = Supervised::start("floats").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let (name, size) = (&request["parent"]["metadata"]["name"], &request["parent"]["spec"]["size"]);
        let text = format!(
            r#"{{
                "Status": {{"size": 7}}, "Children": [], "kind": "CompositeHookResponse",
                "status": {{"size": {size}.0, "note": null}},
                "children": [{{
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {{
                        "name": {name}, "namespace": null, "labels": null, "creationTimestamp": null,
                        "annotations": {{"a": null, "b": "x"}}, "ownerReferences": null
                    }},
                    "data": {{"size": "{size}"}}, "binaryData": null, "immutable": null
                }}],
                "resyncAfterSeconds": 3.0E+2, "finalized": null
            }}"#
        );
        Answer::Bytes(text.into_bytes())
    });
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    let child = supervised.child("gear", 1).await;
    let annotations = child.metadata.annotations.unwrap();
    assert_eq!((&*annotations["a"], &*annotations["b"]), ("", "x"));
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    let parents = harness.scope.api(&crd, "v1");
    until("the status is written", async || {
        let size = parents.get("gear").await.unwrap().data["status"]["size"].clone();
        if size == 2 { Ok(()) } else { Err(size.to_string()) }
    })
    .await;
    supervised.end().await;
}

/// A hook sends the bytes of another encoding.
#[tokio::test]
async fn response_in_latin_1_is_executed() {
    let supervised = Supervised::start("latin").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let mut child = config_map(request);
        child["data"]["drink"] = json!("caf_");
        let body = json!({ "children": [child], "status": status_of(request) }).to_string();
        let bytes = body.bytes().map(|byte| if byte == b'_' { 0xe9 } else { byte });
        Answer::Bytes(bytes.collect())
    });
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    let child = supervised.child("gear", 1).await;

    assert_eq!(child.data.unwrap()["drink"], "caf\u{fffd}");
    supervised.end().await;
}

/// A parent in a namespace wants one cluster-scoped object among others.
#[tokio::test]
async fn cluster_scoped_child_of_a_namespaced_parent_delays_no_other() {
    let supervised = Supervised::start("scopes").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let name = format!("{}-wanted", harness.scope.namespace);
    let wanted = name.clone();
    supervised.hook.answers(move |request| {
        let namespace: Value =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wanted}});
        Answer::Json(json!({
            "children": [namespace, config_map(request)], "status": status_of(request),
        }))
    });
    let mut spec = supervised.spec(&crd);
    let types = spec["childResources"].as_array_mut().unwrap();
    types.push(json!({"apiVersion": "v1", "resource": "namespaces"}));
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    supervised.child("gear", 1).await;
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    let said = "Namespace is cluster-scoped; a namespaced parent has children only in its own";
    let event = supervised.event("gear", "SyncError", said).await;
    let message = event.message.unwrap();
    assert!(message.contains(&format!("children[0] (Namespace {name})")), "{message}");
    assert!(message.contains("use a cluster-scoped parent"), "{message}");
    let parents = harness.scope.api(&crd, "v1");
    until("the status is written", async || {
        let size = parents.get("gear").await.unwrap().data["status"]["size"].clone();
        if size == 2 { Ok(()) } else { Err(size.to_string()) }
    })
    .await;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(harness.scope.client());
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    assert!(namespaces.list(&named).await.unwrap().items.is_empty(), "nothing would delete it");
    supervised.end().await;
}

/// A revision controller wants one child without a name, and only while there is none.
#[tokio::test]
async fn child_by_generate_name_is_created_once_and_stays() {
    let supervised = Supervised::start("generated").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let observed = request["children"]["ConfigMap.v1"].as_object().unwrap();
        let mut child = config_map(request);
        child["metadata"] = json!({ "generateName": "revision-" });
        let kept: Vec<_> = observed.values().cloned().collect();
        let children = if kept.is_empty() { vec![child] } else { kept };
        Answer::Json(json!({ "children": children, "status": status_of(request) }))
    });
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    let seen = supervised.hook.called("with the child", |call| {
        call.body["children"]["ConfigMap.v1"].as_object().is_some_and(|all| all.len() == 1)
    });
    seen.await;
    supervised.resize(&crd, "gear", 2).await;
    let is_resized = |call: &crate::support::Call| call.body["parent"]["spec"]["size"] == 2;
    supervised.hook.called("about the new size", is_resized).await;

    let maps = supervised.config_maps().list(&ListParams::default()).await.unwrap().items;
    let names = maps.into_iter().filter_map(|map| map.metadata.name);
    let names: Vec<_> = names.filter(|name| name != "kube-root-ca.crt").collect();
    assert!(matches!(&names[..], [one] if one.starts_with("revision-")), "{names:?}");
    supervised.end().await;
}

/// A pipelines project decorates namespaces and sets a status. That of a namespace that is being
/// deleted needs its phase.
#[tokio::test]
async fn namespace_whose_status_is_refused_gets_its_labels() {
    let supervised = Supervised::decorating("pipelines").await;
    let harness = &supervised.harness;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(harness.scope.client());
    let name = format!("{}-team", harness.scope.namespace);
    let team = json!({
        "metadata": { "name": name, "labels": { "scope": harness.scope.namespace } },
    });
    let team = serde_json::from_value(team).unwrap();
    namespaces.create(&PostParams::default(), &team).await.unwrap();
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.com/held"] } });
    let maps =
        Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(harness.scope.client(), &name);
    maps.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
    supervised.hook.answers(|_| {
        let status = json!({ "phase": "Unheard", "pipelines": 3 });
        Answer::Json(json!({ "labels": { "pipelines": "yes" }, "status": status }))
    });
    let selector = json!({ "matchLabels": { "scope": harness.scope.namespace } });
    let spec = json!({
        "resources": [
            { "apiVersion": "v1", "resource": "namespaces", "labelSelector": selector },
        ],
        "hooks": { "sync": { "webhook": { "url": supervised.hook.url } } },
    });
    supervised.declare_decorator("a", spec).await;

    until("the namespace has its label", async || {
        let labels = namespaces.get(&name).await.unwrap().metadata.labels.unwrap();
        if labels.contains_key("pipelines") { Ok(()) } else { Err(format!("{labels:?}")) }
    })
    .await;
    supervised.event(&name, "SyncError", "writing the status").await;

    let freed = kube::api::Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    maps.patch("held", &Default::default(), &freed).await.unwrap();
    supervised.end().await;
}
