//! Parents of a type that has no CRD.

use super::{
    responding_hook::{harness, pass},
    *,
};

#[tokio::test(start_paused = true)]
async fn parent_of_a_built_in_type_without_a_status_gets_children_and_no_status() {
    let (harness, calls) = harness(|_, request| {
        let name = request["parent"]["metadata"]["name"].as_str().unwrap();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-copy")},
        });
        json!({"status": {"seen": true}, "children": [secret]})
    })
    .await;
    let mut spec = good();
    spec["parentResource"] = json!({"apiVersion": "v1", "resource": "configmaps"});
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "secrets"}]);
    harness.declare("copies", spec);
    harness.running("copies", 1).await;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"},
    });
    harness.server.apply(namespace).unwrap();
    let parent = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p", "namespace": "ns"},
    });
    harness.server.apply(parent).unwrap();
    pass().await;

    let children = harness.server.list("v1", "Secret").unwrap();
    assert_eq!(children.len(), 1, "{children:?}");
    assert_eq!(children[0]["metadata"]["name"], "p-copy");
    let of_parents = || {
        let requests = harness.server.requests().into_iter();
        requests.filter(|request| request.info.path.contains("/configmaps/")).count()
    };
    let (requests, called) = (of_parents(), calls.lock().unwrap().len());
    assert_eq!(requests, 0, "no status and no finalizer is written");
    sleep(Duration::from_secs(600)).await;
    assert_eq!((of_parents(), calls.lock().unwrap().len()), (requests, called), "it is settled");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_of_an_aggregated_type_without_a_status_gets_children_and_no_status() {
    let (harness, calls) = harness(|_, _| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "copy"},
        });
        json!({"status": {"seen": true}, "children": [secret]})
    })
    .await;
    let (name, gears) = ("v1.y.test", CrdBuilder::new("y.test", "Gear").without_status());
    harness.server.back_api_service(name, &[gears]);
    harness.server.set_available(name, true);
    let api_service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": name},
        "spec": {
            "group": "y.test", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
            "service": {"name": "s", "namespace": "default"},
        },
    });
    harness.server.apply(api_service).unwrap();
    let mut spec = good();
    spec["parentResource"] = json!({"apiVersion": "y.test/v1", "resource": "gears"});
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "secrets"}]);

    harness.declare("copies", spec);
    harness.running("copies", 1).await;
    let parent = json!({
        "apiVersion": "y.test/v1", "kind": "Gear",
        "metadata": {"name": "p", "namespace": "default"},
    });
    harness.server.apply(parent).unwrap();
    pass().await;

    assert_eq!(harness.server.list("v1", "Secret").unwrap().len(), 1);
    let parent = harness.server.get("y.test/v1", "Gear", "default", "p").unwrap();
    assert_eq!(parent.get("status"), None);
    let called = calls.lock().unwrap().len();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(calls.lock().unwrap().len(), called, "it is settled");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn response_without_a_status_leaves_that_of_a_built_in_parent() {
    let (harness, calls) = harness(|_, request| {
        let wants = request["parent"]["metadata"]["labels"]["status"] == "x";
        if wants { json!({"status": {"phase": "x"}}) } else { json!({"children": []}) }
    })
    .await;
    let mut spec = good();
    spec["parentResource"] = json!({"apiVersion": "v1", "resource": "pods"});
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "secrets"}]);
    harness.declare("pods", spec);
    harness.running("pods", 1).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "status": {"phase": "Running"},
    });
    harness.server.apply(pod.clone()).unwrap();
    // A create has no status.
    harness.server.merge(&pod).unwrap();
    pass().await;

    let status = || harness.server.get("v1", "Pod", "default", "p").unwrap()["status"].clone();
    let writes = || {
        let requests = harness.server.requests().into_iter();
        requests.filter(|request| request.info.path.ends_with("/pods/p/status")).count()
    };
    assert!(!calls.lock().unwrap().is_empty());
    assert_eq!((status(), writes()), (json!({"phase": "Running"}), 0));

    let labelled = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": {"status": "x"}},
    });
    harness.server.merge(&labelled).unwrap();
    pass().await;
    assert_eq!(status()["phase"], "x", "a status that the response has is written");
    assert_eq!(writes(), 1);
    harness.end().await;
}
