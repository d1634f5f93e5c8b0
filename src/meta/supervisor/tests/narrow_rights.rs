//! Roles that were made for Metacontroller: the verb `patch` is missing.

use super::{
    decorator,
    finalize::events,
    responding_hook::{harness, pass},
    *,
};
use crate::testing::{Verb, simulated::AccessRule};

const TYPES: [&str; 4] = [
    "things.example.com",
    "widgets.example.com",
    "configmaps",
    "controllerrevisions.metacontroller.k8s.io",
];

/// Removes the right to patch parents, children and revisions.
pub(super) fn forbid_patches(server: &SimulatedServer) {
    server.set_rbac([AccessRule::deny().verbs(["patch"]).resources(TYPES), AccessRule::allow()]);
}

fn patches(harness: &Harness, resource: &str) -> usize {
    let requests = harness.server.requests();
    let is_patch =
        |info: &crate::testing::RequestInfo| info.verb == Verb::Patch && info.resource == resource;
    requests.iter().filter(|request| is_patch(&request.info)).count()
}

/// Deletes the children of a parent that is being deleted, and then frees it.
fn teardown(kind: HookKind, request: &Value) -> Value {
    let is_finalizing = kind == HookKind::Finalize;
    let has_children = !request["children"]["ConfigMap.v1"].as_object().unwrap().is_empty();
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "orphan", "namespace": "default", "labels": {"app": "x"}},
    });
    let children = if is_finalizing { vec![] } else { vec![child] };
    json!({"children": children, "finalized": is_finalizing && !has_children})
}

#[tokio::test(start_paused = true)]
async fn finalizers_and_adoptions_are_updates_where_patches_are_forbidden() {
    let (harness, _) = harness(teardown).await;
    let hook = || json!({"webhook": {"url": "http://scripted/"}});
    let mut spec = good();
    spec["generateSelector"] = json!(false);
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    spec["hooks"] = json!({"sync": hook(), "finalize": hook()});
    let orphan = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "orphan", "namespace": "default", "labels": {"app": "x"}},
        "data": {"kept": "1"},
    });
    harness.server.apply(orphan).unwrap();
    forbid_patches(&harness.server);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    for name in ["p", "q", "r"] {
        let app = if name == "p" { "x" } else { name };
        let parent = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": app}}},
        });
        harness.server.apply(parent).unwrap();
        pass().await;
    }

    let parent = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
    let finalizer = "metacontroller.io/compositecontroller-a";
    assert_eq!(parent["metadata"]["finalizers"], json!([finalizer]), "{parent:#}");
    let orphan = harness.server.get("v1", "ConfigMap", "default", "orphan").unwrap();
    assert_eq!(orphan["metadata"]["ownerReferences"][0]["name"], "p");
    assert_eq!(orphan["data"], json!({"kept": "1"}));
    assert_eq!(patches(&harness, "things"), 1, "the refusal is remembered");

    harness.server.remove("example.com/v1", "Thing", "", "p").unwrap();
    pass().await;
    assert!(harness.server.get("example.com/v1", "Thing", "", "p").is_err(), "freed");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn decoration_is_an_update_where_patches_are_forbidden() {
    let (harness, _) =
        harness(|_, _| json!({"labels": {"new": "1"}, "annotations": {"a": "b"}})).await;
    forbid_patches(&harness.server);
    let hook = json!({"webhook": {"url": "http://scripted/"}});
    let spec = json!({
        "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
        "hooks": {"sync": hook},
    });
    decorator::declare(&harness, "a", spec);
    decorator::running(&harness, "a").await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"}});
    harness.server.apply(thing).unwrap();
    pass().await;

    let found = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
    assert_eq!(found["metadata"]["labels"], json!({"new": "1"}));
    assert_eq!(found["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(events(&harness, "SyncError"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn role_without_update_and_patch_is_reported_until_one_is_granted() {
    let (harness, _) = harness(|_, _| json!({"labels": {"new": "1"}})).await;
    let refused =
        || AccessRule::deny().verbs(["patch", "update"]).resources(["things.example.com"]);
    harness.server.set_rbac([refused(), AccessRule::allow()]);
    let hook = json!({"webhook": {"url": "http://scripted/"}});
    let spec = json!({
        "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
        "hooks": {"sync": hook},
    });
    decorator::declare(&harness, "a", spec);
    decorator::running(&harness, "a").await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"}});
    harness.server.apply(thing).unwrap();
    pass().await;
    assert_eq!(events(&harness, "SyncError"), ["p"]);

    harness.server.set_rbac([
        AccessRule::deny().verbs(["update"]).resources(["things.example.com"]),
        AccessRule::allow(),
    ]);
    sleep(Duration::from_secs(60)).await;

    let found = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
    assert_eq!(found["metadata"]["labels"], json!({"new": "1"}));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn role_that_allows_patches_alone_is_used_after_a_refusal_elsewhere() {
    let (harness, _) =
        harness(|_, request| json!({"labels": {"new": request["object"]["metadata"]["name"]}}))
            .await;
    let deny = |verb| {
        let denied = AccessRule::deny().verbs([verb]).resources(["things.example.com"]);
        harness.server.set_rbac([denied, AccessRule::allow()]);
    };
    let hook = json!({"webhook": {"url": "http://scripted/"}});
    let spec = json!({
        "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
        "hooks": {"sync": hook},
    });
    decorator::declare(&harness, "a", spec);
    decorator::running(&harness, "a").await;
    for (name, denied) in [("p", "patch"), ("q", "update"), ("r", "patch")] {
        deny(denied);
        let thing =
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}});
        harness.server.apply(thing).unwrap();
        pass().await;

        let found = harness.server.get("example.com/v1", "Thing", "", name).unwrap();
        assert_eq!(found["metadata"]["labels"], json!({"new": name}));
    }
    assert_eq!(events(&harness, "SyncError"), [""; 0]);
    harness.end().await;
}
