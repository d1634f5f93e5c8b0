//! A hook that confirms its responses by their ETag.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Answer, Call, SimulatedHarness, Supervised, config_map, status_of};

/// Answer with one ConfigMap, whose ETag is the parent's size.
fn by_size(request: &Value) -> Answer {
    let tag = format!("\"{}\"", request["parent"]["spec"]["size"]);
    let answer = json!({ "status": status_of(request), "children": [config_map(request)] });
    Answer::Tagged(tag, answer)
}

/// Waits for a hook call after `since` whose `If-None-Match` is `tag`.
async fn called(supervised: &Supervised<'_>, what: &str, since: Instant, tag: Option<&str>) {
    let wanted = |call: &Call| call.at > since && call.named() == tag;
    supervised.hook.called(what, wanted).await;
}

#[tokio::test]
async fn a_response_that_its_hook_confirms_is_executed_again() {
    let supervised = Supervised::start("etag").await;
    let crd = supervised.harness.widgets();
    let mut spec = supervised.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["etag"] =
        json!({ "enabled": true, "cacheTimeoutSeconds": 3600, "cacheCleanupSeconds": 60 });
    supervised.hook.answers(by_size);
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    supervised.runs("a", 1).await;
    supervised.harness.create(&crd, "gear", 1).await;
    supervised.child("gear", 1).await;
    assert_eq!(supervised.hook.calls()[0].named(), None, "there is nothing to confirm yet");

    // The hook sends no body again, yet the child is created again.
    let since = Instant::now();
    supervised.config_maps().delete("gear", &DeleteParams::default()).await.unwrap();
    called(&supervised, "with the tag", since, Some("\"1\"")).await;
    supervised.child("gear", 1).await;
    let calls = supervised.hook.calls();
    assert!(calls[1..].iter().all(|call| call.named() == Some("\"1\"")), "{calls:#?}");

    // Another response, requested with the tag of the previous one.
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;

    // Another parent of the same name.
    let api = supervised.harness.scope.api(&crd, "v1");
    let since = Instant::now();
    api.delete("gear", &DeleteParams::default()).await.unwrap();
    supervised.harness.create(&crd, "gear", 2).await;
    called(&supervised, "about the new parent", since, None).await;
    supervised.child("gear", 2).await;

    // Another definition in the same epoch.
    let since = Instant::now();
    let strict = json!({ "webhook": { "responseUnMarshallMode": "strict" } });
    supervised.edit("a", json!({ "spec": { "hooks": { "sync": strict } } })).await;
    called(&supervised, "after the swap", since, None).await;
    supervised.runs("a", 1).await;

    // Another epoch.
    let since = Instant::now();
    let mut children = supervised.spec(&crd)["childResources"].clone();
    children[0]["optional"] = json!(true);
    supervised.edit("a", json!({ "spec": { "childResources": children } })).await;
    supervised.runs("a", 2).await;
    called(&supervised, "in the new epoch", since, None).await;
    supervised.end().await;
}

#[tokio::test]
async fn confirmation_without_a_cached_answer_is_reported_and_an_unusable_response_is_never_confirmed()
 {
    let supervised = Supervised::start("unconfirmed").await;
    let crd = supervised.harness.widgets();
    let mut spec = supervised.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["etag"] = json!({ "enabled": true });
    supervised.hook.answers(|_| Answer::Status(304, Vec::new()));
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    supervised.harness.create(&crd, "gear", 1).await;
    supervised.event("gear", "SyncError", "status 304 to a request without If-None-Match").await;

    // The tag of an invalid response must not be kept: the hook would confirm that answer for ever.
    supervised.hook.answers(|_| Answer::Tagged("\"1\"".to_owned(), json!({ "children": "?" })));
    supervised.event("gear", "SyncError", "children: ").await;
    supervised.hook.answers(by_size);
    supervised.child("gear", 1).await;

    supervised.end().await;
}

#[tokio::test(start_paused = true)]
async fn cached_response_of_a_parent_is_removed_with_it() {
    let simulated = SimulatedHarness::start().await;
    simulated.parent("p", 1, "one");
    simulated.parent("q", 1, "one");
    simulated.settled(&["p", "q"], 1, "one").await;
    assert_eq!(simulated.hook.kept().len(), 2);

    simulated.server.remove("harness.test/v1", "Widget", "default", "p").unwrap();
    let gone = async {
        while simulated.hook.kept().len() > 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), gone).await.unwrap();

    assert!(simulated.hook.kept().contains("default/q"), "{:?}", simulated.hook.kept());
    simulated.end().await;
}
