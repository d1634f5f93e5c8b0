//! Tests of fills.

use std::time::Duration;

use futures::FutureExt;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    informer::{
        InformerOptions, InformerProgress, Interest, ObjectKey,
        fixture::Fixture,
        script::{Harness, change, progress, run_until_idle, widget},
    },
    kind::GroupKind,
};

fn of_name(name: &str) -> Vec<Interest> {
    vec![Interest::Named(ObjectKey::cluster(name))]
}

fn of_owners() -> Vec<Interest> {
    vec![Interest::OwnerKind(GroupKind { group: String::new(), kind: "Owner".to_owned() })]
}

/// Object of an owner, which is a metadata entry until a subscriber to such objects comes.
fn owned(version: u64) -> Value {
    Fixture::new("a").version(version).controller("u").json()
}

#[tokio::test(start_paused = true)]
async fn list_of_whole_objects_that_fails_does_not_stop_the_watch_of_others() {
    let mut harness = Harness::new();
    let mut first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned(1), widget("b", 2)]);
    let watch = harness.script.watch(10).await.open();
    assert_eq!(change(&mut first).await, ("b".into(), 0, 2));

    let mut late = harness.subscribe_to(of_owners());
    let mut watches = vec![watch];
    for (attempt, position) in [10, 11, 11].into_iter().enumerate() {
        let list = match attempt {
            0 => harness.script.stream().await,
            _ => harness.script.list().await,
        };
        list.refuse(500, "InternalError", "etcd is slow");
        let watch = harness.script.watch(position).await.open();
        if attempt == 0 {
            watch.event("MODIFIED", &widget("b", 11));
        }
        run_until_idle().await;
        watches.push(watch);
    }
    assert_eq!(change(&mut first).await, ("b".into(), 2, 11));
    assert_eq!(progress(&first), InformerProgress::Synced);
    assert!(late.next().now_or_never().is_none());

    harness.script.list().await.page(20, "", &[owned(1), widget("b", 11)]);
    assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
    late.drained().await;
}

#[tokio::test(start_paused = true)]
async fn list_of_whole_objects_is_not_repeated_before_retry_after() {
    let mut harness = Harness::new();
    let owned = owned(1);
    let _first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned.clone(), widget("b", 2)]);
    let _watch = harness.script.watch(10).await.open();
    let mut late = harness.subscribe_to(of_owners());
    drop(harness.script.stream().await.head(StatusCode::TOO_MANY_REQUESTS, Some(60)));
    let refused = Instant::now();

    // Watches that end early do not put off the list.
    for _ in 0..2 {
        let watch = harness.script.watch(10).await.open();
        sleep(Duration::from_secs(25)).await;
        watch.reset();
    }
    let _watch = harness.script.watch(10).await.open();
    let list = harness.script.next().await;

    let waited = refused.elapsed();
    assert!((60..67).contains(&waited.as_secs()), "{waited:?}");
    list.page(20, "", &[owned, widget("b", 2)]);
    assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
}

#[tokio::test(start_paused = true)]
async fn object_of_a_list_that_failed_is_not_replaced_by_an_older_one_of_its_name() {
    let mut harness = Harness::new();
    let of = |uid: &str, version: u64| Fixture::new("b").uid(uid).version(version).json();
    let owned = owned(1);
    let mut first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned, of("old", 2)]);
    let _watch = harness.script.watch(10).await.open();
    assert_eq!(change(&mut first).await, ("b".into(), 0, 2));
    let _late = harness.subscribe_to(of_owners());
    harness.script.stream().await.refuse(400, "BadRequest", "no streaming lists");
    harness.script.list().await.page(20, "next", &[of("new", 19)]);
    harness.script.list().await.refuse(500, "InternalError", "etcd is slow");
    let watch = harness.script.watch(10).await.open();

    let mut changes = Vec::new();
    for (event, object) in [
        ("MODIFIED", of("old", 11)),
        ("DELETED", of("old", 12)),
        ("ADDED", of("new", 19)),
        ("MODIFIED", of("new", 21)),
    ] {
        watch.event(event, &object);
        run_until_idle().await;
        while let Some(change) = change(&mut first).now_or_never() {
            changes.push((change.1, change.2));
        }
    }

    assert_eq!(changes, [(2, 19), (19, 21)]);
}

#[tokio::test(start_paused = true)]
async fn objects_are_made_whole_while_the_watch_fails() {
    let mut harness = Harness::new();
    let owned = owned(1);
    let _first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned.clone(), widget("b", 2)]);
    for _ in 0..10 {
        harness.script.watch(10).await.refuse(403, "Forbidden", "no");
    }
    run_until_idle().await;

    let mut late = harness.subscribe_to(of_owners());
    let joined = Instant::now();
    let list = harness.script.next().await;
    assert!(list.is_stream() && joined.elapsed() < Duration::from_secs(1));
    list.refuse(403, "Forbidden", "no");
    harness.script.watch(10).await.refuse(403, "Forbidden", "no");
    let list = harness.script.list().await;
    list.page(20, "", &[owned, widget("b", 2)]);

    assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
    late.drained().await;
    harness.script.watch(20).await.refuse(403, "Forbidden", "no");
}

#[tokio::test(start_paused = true)]
async fn objects_are_made_whole_at_once_by_a_server_without_streaming_lists() {
    let mut harness = Harness::new();
    let owned = owned(1);
    let _first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned.clone(), widget("b", 2)]);
    let _watch = harness.script.watch(10).await.open();
    run_until_idle().await;

    let mut late = harness.subscribe_to(of_owners());
    let joined = Instant::now();
    harness.script.stream().await.refuse(400, "BadRequest", "sendInitialEvents is forbidden");
    harness.script.list().await.page(20, "", &[owned, widget("b", 2)]);

    assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
    assert!(joined.elapsed() < Duration::from_secs(1), "{:?}", joined.elapsed());
    harness.script.watch(20).await.open();
}

#[tokio::test(start_paused = true)]
async fn watch_continues_while_a_list_of_whole_objects_waits_for_its_slot() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let owned = owned(1);
    let mut first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned, widget("b", 2)]);
    let watch = harness.script.watch(10).await.open();
    assert_eq!(change(&mut first).await, ("b".into(), 0, 2));
    let slot = harness.set.shared.lists.acquire().await.unwrap();

    let _late = harness.subscribe_to(of_owners());
    sleep(Duration::from_secs(10)).await;
    watch.event("MODIFIED", &widget("b", 11));

    assert_eq!(change(&mut first).await, ("b".into(), 2, 11));
    drop(slot);
    assert!(harness.script.next().await.is_stream());
}

#[tokio::test(start_paused = true)]
async fn failed_list_of_whole_objects_is_repeated_before_a_watch_without_a_position() {
    let mut harness = Harness::new();
    let mut first = harness.subscribe_to(of_name("b"));
    let owned = owned(1);
    harness.script.list().await.text(
        StatusCode::OK,
        &json!({"metadata": {}, "items": [owned, widget("b", 2)]}).to_string(),
    );
    let _watch = harness.script.next().await.open();
    assert_eq!(change(&mut first).await, ("b".into(), 0, 2));
    let _late = harness.subscribe_to(of_owners());
    harness.script.list().await.refuse(500, "InternalError", "etcd is slow");

    // The object `b` may be deleted meanwhile.
    harness
        .script
        .list()
        .await
        .text(StatusCode::OK, &json!({"metadata": {}, "items": [owned]}).to_string());
    assert!(harness.script.next().await.is_watch());
    assert_eq!(change(&mut first).await, ("b".into(), 2, 0));
}

#[tokio::test(start_paused = true)]
async fn list_of_whole_objects_keeps_its_place_in_the_queue_when_the_watch_ends() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let _first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned(1), widget("b", 2)]);
    let watch = harness.script.watch(10).await.open();
    run_until_idle().await;
    let lists = harness.set.shared.lists.clone();
    let slot = lists.acquire().await.unwrap();
    let mut late = harness.subscribe_to(of_owners());
    sleep(Duration::from_secs(1)).await;
    let mut behind = std::pin::pin!(lists.acquire());
    assert!(futures::poll!(&mut behind).is_pending());

    watch.reset();
    let _watch = harness.script.watch(10).await.open();
    run_until_idle().await;
    drop(slot);
    run_until_idle().await;

    assert!(futures::poll!(&mut behind).is_pending());
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &owned(1));
    stream.event("ADDED", &widget("b", 2));
    stream.end_of_list(20);
    assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
    assert!(futures::poll!(&mut behind).is_ready());
}

#[tokio::test(start_paused = true)]
async fn list_that_waits_for_its_slot_holds_none_while_another_list_is_needed() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let mut first = harness.subscribe_to(of_name("b"));
    harness.script.list().await.page(10, "", &[owned(1), widget("b", 2)]);
    let watch = harness.script.watch(10).await.open();
    assert_eq!(change(&mut first).await, ("b".into(), 0, 2));
    let lists = harness.set.shared.lists.clone();
    let slot = lists.acquire().await.unwrap();
    let mut late = harness.subscribe_to(of_owners());
    sleep(Duration::from_secs(1)).await;

    watch.error(410, "Expired", "old");
    run_until_idle().await;
    drop(slot);
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &owned(1));
    stream.event("ADDED", &widget("b", 12));
    stream.end_of_list(20);

    assert_eq!(change(&mut first).await, ("b".into(), 2, 12));
    assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
}
