//! Parents of a built-in type, which has no status.

use super::{
    answering::{harness, pass},
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
