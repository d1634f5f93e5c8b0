//! Tests of polls.

use std::time::Duration;

use futures::FutureExt;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::informer::{
    Delta, InformerOptions, InformerProgress, Interest, Object, ObjectKey, Subscription,
    script::{Harness, ReceivedRequest, change, progress, run_until_idle, widget},
};

/// Object without uid and resourceVersion.
fn usage(name: &str, cpu: u64) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "cpu": cpu})
}

fn answer(request: ReceivedRequest, items: &[Value]) {
    let list = json!({"kind": "WidgetList", "metadata": {}, "items": items});
    request.text(StatusCode::OK, &list.to_string());
}

/// Returns the changes that were delivered, each with the old and the new value.
async fn changes(subscription: &mut Subscription) -> Vec<(String, Option<u64>, Option<u64>)> {
    run_until_idle().await;
    let mut changes = Vec::new();
    while let Some(delta) = subscription.next().now_or_never() {
        let Delta { key, old, new, .. } = delta.unwrap();
        let cpu = |object: Object| {
            object.decode::<Value>().ok().and_then(|object| object["cpu"].as_u64())
        };
        changes.push((key.to_string(), old.and_then(cpu), new.and_then(cpu)));
    }
    changes
}

fn polled() -> Harness {
    Harness::polled(InformerOptions::default())
}

#[tokio::test(start_paused = true)]
async fn list_that_finds_no_change_delivers_none_and_others_do() {
    let mut harness = polled();
    let mut subscription = harness.subscribe();
    answer(harness.script.list().await, &[usage("a", 1), usage("b", 1)]);
    let initial = changes(&mut subscription).await;
    assert_eq!(initial, [("a".into(), None, Some(1)), ("b".into(), None, Some(1))]);
    subscription.drained().await;
    assert_eq!(progress(&subscription), InformerProgress::Polled);
    harness.script.assert_quiet();

    let before = Instant::now();
    for round in 0..3 {
        answer(harness.script.list().await, &[usage("b", 1), usage("a", 1)]);
        assert_eq!(changes(&mut subscription).await, [], "in round {round}");
    }
    let waited = before.elapsed();
    assert!((36..=45).contains(&waited.as_secs()), "{waited:?}");

    answer(harness.script.list().await, &[usage("a", 2), usage("c", 1)]);
    let expected =
        [("a".into(), Some(1), Some(2)), ("b".into(), Some(1), None), ("c".into(), None, Some(1))];
    let mut found = changes(&mut subscription).await;
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(progress(&subscription), InformerProgress::Polled);
}

#[tokio::test(start_paused = true)]
async fn changed_content_is_delivered_to_a_subscriber_that_keeps_no_object_whole() {
    let mut harness = polled();
    let named = harness.subscribe_to(vec![Interest::Named(ObjectKey::cluster("other"))]);
    let mut subscription = harness.subscribe_to(Vec::new());
    let moving = subscription.moving_interests();
    moving.set(ObjectKey::cluster("p"), vec![Interest::Named(ObjectKey::cluster("a"))]);
    answer(harness.script.list().await, &[usage("a", 1)]);
    assert_eq!(changes(&mut subscription).await.len(), 1);

    answer(harness.script.list().await, &[usage("a", 1)]);
    assert_eq!(changes(&mut subscription).await.len(), 0);
    // Longer than the objects of a subscriber that has left stay whole.
    drop(named);
    for _ in 0..3 {
        answer(harness.script.list().await, &[usage("a", 1)]);
    }
    answer(harness.script.list().await, &[usage("a", 2)]);

    assert_eq!(changes(&mut subscription).await, [("a".into(), None, None)], "without content");
}

#[tokio::test(start_paused = true)]
async fn failed_list_is_reported_and_keeps_the_objects_until_one_succeeds() {
    let mut harness = polled();
    let mut subscription = harness.subscribe();
    answer(harness.script.list().await, &[usage("a", 1)]);
    changes(&mut subscription).await;

    harness.script.list().await.refuse(503, "ServiceUnavailable", "no metrics");
    run_until_idle().await;
    let stale = progress(&subscription);
    assert!(matches!(&stale, InformerProgress::Stale(why) if why.contains("no metrics")));
    assert_eq!(changes(&mut subscription).await, []);
    assert_eq!(subscription.store().len(), 1);

    answer(harness.script.list().await, &[usage("a", 1)]);
    assert_eq!(changes(&mut subscription).await, []);
    assert_eq!(progress(&subscription), InformerProgress::Polled);
    harness.script.list().await.refuse(403, "Forbidden", "no");
    run_until_idle().await;
    let forbidden = progress(&subscription);
    let rule = "(grant list on widgets.example.com)";
    assert!(matches!(&forbidden, InformerProgress::Forbidden(why) if why.ends_with(rule)));
}

#[tokio::test(start_paused = true)]
async fn refused_watch_is_requested_again_after_the_next_list() {
    let mut harness = Harness::new();
    let mut subscription = harness.subscribe();
    harness.script.list().await.page(10, "", &[widget("a", 1)]);
    harness.script.watch(10).await.refuse(405, "MethodNotAllowed", "watch is not supported");
    assert_eq!(change(&mut subscription).await, ("a".into(), 0, 1));
    run_until_idle().await;
    assert_eq!(progress(&subscription), InformerProgress::Polled);

    let before = Instant::now();
    harness.script.stream().await.refuse(405, "MethodNotAllowed", "watch is not supported");
    harness.script.list().await.page(20, "", &[widget("a", 15)]);
    assert!((12..=15).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    harness.script.watch(20).await.refuse(405, "MethodNotAllowed", "watch is not supported");
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 15));

    harness.script.list().await.page(30, "", &[widget("a", 15)]);
    let watch = harness.script.watch(30).await.open();
    watch.event("MODIFIED", &widget("a", 31));
    assert_eq!(change(&mut subscription).await, ("a".into(), 15, 31));
    run_until_idle().await;
    assert_eq!(progress(&subscription), InformerProgress::Synced);
    sleep(Duration::from_secs(60)).await;
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn type_that_can_be_watched_since_is_watched_after_the_next_list() {
    let mut harness = polled();
    let _subscription = harness.subscribe();
    harness.script.list().await.page(10, "", &[widget("a", 1)]);
    run_until_idle().await;

    harness.set.set_polled(&harness.key.identity.clone(), false);
    harness.script.stream().await.refuse(400, "BadRequest", "no streaming lists");
    harness.script.list().await.page(20, "", &[widget("a", 1)]);
    let watch = harness.script.watch(20).await.open();

    harness.set.set_polled(&harness.key.identity.clone(), true);
    watch.reset();
    harness.script.list().await.page(30, "", &[widget("a", 1)]);
    run_until_idle().await;
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn informers_of_one_type_spread_their_lists_and_end_with_their_subscribers() {
    let interval = Duration::from_secs(100);
    let mut harness =
        Harness::polled(InformerOptions { poll_interval: interval, ..InformerOptions::default() });
    let subscription = harness.subscribe();
    let mut waits = Vec::new();
    answer(harness.script.list().await, &[]);
    for _ in 0..20 {
        let before = Instant::now();
        answer(harness.script.list().await, &[]);
        waits.push(before.elapsed().as_secs());
    }
    assert!(waits.iter().all(|wait| (80..=100).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| wait != &waits[0]), "{waits:?}");

    drop(subscription);
    sleep(interval * 3).await;

    harness.script.assert_quiet();
    assert!(harness.set.status().is_empty());
}
