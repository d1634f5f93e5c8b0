//! A hook that confirms its answers by their ETag.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::rig::{Answer, Bench, Call, Stage, config_map, status_of};

/// One ConfigMap; its tag is the parent's size.
fn by_size(request: &Value) -> Answer {
    let tag = format!("\"{}\"", request["parent"]["spec"]["size"]);
    let answer = json!({ "status": status_of(request), "children": [config_map(request)] });
    Answer::Tagged(tag, answer)
}

/// Waits until the hook was asked since then by a request that names this tag.
async fn asked(stage: &Stage<'_>, what: &str, since: Instant, tag: Option<&str>) {
    let wanted = |call: &Call| call.at > since && call.named() == tag;
    stage.hook.asked(what, wanted).await;
}

#[tokio::test]
async fn an_answer_that_its_hook_confirms_is_carried_out_again() {
    let stage = Stage::start("etag").await;
    let crd = stage.rig.widgets();
    let mut spec = stage.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["etag"] =
        json!({ "enabled": true, "cacheTimeoutSeconds": 3600, "cacheCleanupSeconds": 60 });
    stage.hook.answers(by_size);
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    stage.runs("a", 1).await;
    stage.rig.create(&crd, "gear", 1).await;
    stage.child("gear", 1).await;
    assert_eq!(stage.hook.calls()[0].named(), None, "there is nothing to confirm yet");

    // Its text is not sent again, and yet the child is made again.
    let since = Instant::now();
    stage.config_maps().delete("gear", &DeleteParams::default()).await.unwrap();
    asked(&stage, "with the tag", since, Some("\"1\"")).await;
    stage.child("gear", 1).await;
    let calls = stage.hook.calls();
    assert!(calls[1..].iter().all(|call| call.named() == Some("\"1\"")), "{calls:#?}");

    // Another answer, with the tag of the one before.
    stage.resize(&crd, "gear", 2).await;
    stage.child("gear", 2).await;

    // Another parent of the same name.
    let api = stage.rig.scope.api(&crd, "v1");
    let since = Instant::now();
    api.delete("gear", &DeleteParams::default()).await.unwrap();
    stage.rig.create(&crd, "gear", 2).await;
    asked(&stage, "about the new parent", since, None).await;
    stage.child("gear", 2).await;

    // Another epoch.
    let since = Instant::now();
    stage.edit("a", json!({ "spec": { "resyncPeriodSeconds": 3600 } })).await;
    stage.runs("a", 2).await;
    asked(&stage, "in the new epoch", since, None).await;
    stage.end().await;
}

#[tokio::test]
async fn a_confirmation_of_nothing_is_told_and_an_unusable_answer_is_never_confirmed() {
    let stage = Stage::start("unconfirmed").await;
    let crd = stage.rig.widgets();
    let mut spec = stage.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["etag"] = json!({ "enabled": true });
    stage.hook.answers(|_| Answer::Status(304, Vec::new()));
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    stage.rig.create(&crd, "gear", 1).await;
    stage.event("gear", "SyncError", "status 304 to a request without If-None-Match").await;

    // It has a tag, and would be confirmed by it for ever.
    stage.hook.answers(|_| Answer::Tagged("\"1\"".to_owned(), json!({ "children": "?" })));
    stage.event("gear", "SyncError", "children: ").await;
    stage.hook.answers(by_size);
    stage.child("gear", 1).await;

    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_of_a_parent_goes_with_it() {
    let bench = Bench::start().await;
    bench.parent("p", 1, "one");
    bench.parent("q", 1, "one");
    bench.settled(&["p", "q"], 1, "one").await;
    assert_eq!(bench.hook.kept().len(), 2);

    bench.server.remove("bench.test/v1", "Widget", "default", "p").unwrap();
    let gone = async {
        while bench.hook.kept().len() > 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), gone).await.unwrap();

    assert!(bench.hook.kept().contains("default/q"), "{:?}", bench.hook.kept());
    bench.end().await;
}
