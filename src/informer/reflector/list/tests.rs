//! Tests of the reflector's list.

use http::StatusCode;
use serde_json::json;

use super::*;
use crate::informer::{
    EndReason, InformerOptions, InformerProgress, Projection, Subscription,
    fixture::Fixture,
    script::{Harness, change, names, progress, run_until_idle, stored, widget},
};

#[tokio::test(start_paused = true)]
async fn a_store_is_filled_by_pages_and_then_watched() {
    let mut harness = Harness::new();
    harness.key.labels = Some("app in (a, b)".into());
    harness.key.namespace = Some("ns".into());
    let mut subscription = harness.subscribe();

    let first = harness.script.list().await;
    assert_eq!(first.path, "/apis/example.com/v1/namespaces/ns/widgets");
    assert_eq!(first.accept, "application/json");
    assert_eq!(first.query["limit"], "500");
    assert_eq!(first.query["labelSelector"], "app%20in%20%28a%2C%20b%29");
    first.page(10, "more/1", &[widget("a", 1)]);
    // The objects of a page are delivered before the list is complete.
    assert_eq!(change(&mut subscription).await, ("a".into(), 0, 1));
    let second = harness.script.list().await;
    assert_eq!(second.query["continue"], "more%2F1");
    let mut drained = Box::pin(subscription.drained());
    assert!(futures::poll!(&mut drained).is_pending());
    second.page(10, "", &[widget("b", 2)]);
    let watch = harness.script.watch(10).await;
    assert!(futures::poll!(&mut drained).is_pending());
    assert!(subscription.next().await.unwrap().initial);
    drained.await;

    assert_eq!(watch.query["allowWatchBookmarks"], "true");
    assert_eq!(watch.query["labelSelector"], "app%20in%20%28a%2C%20b%29");
    assert!((200..=230).contains(&watch.query["timeoutSeconds"].parse().unwrap()));
    let watch = watch.open();
    watch.event("MODIFIED", &widget("a", 11));
    watch.event("DELETED", &widget("b", 12));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
    assert_eq!(progress(&subscription), InformerProgress::Synced);
    assert_eq!(stored(&subscription), names(&[("a", 11)]));
}

#[tokio::test(start_paused = true)]
async fn an_empty_type_is_in_sync_at_once() {
    let mut harness = Harness::new();
    let subscription = harness.subscribe();

    harness.script.list().await.text(
        StatusCode::OK,
        r#"{"kind":"WidgetList","metadata":{"resourceVersion":"10"},"items":null}"#,
    );

    subscription.drained().await;
    harness.script.watch(10).await;
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_is_requested() {
    let mut harness = Harness::new();
    harness.key.projection = Projection::Keys;
    let mut subscription = harness.subscribe();

    let list = harness.script.list().await;
    let partial =
        |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1,application/json");
    assert_eq!(list.accept, partial("PartialObjectMetadataList"));
    list.page(10, "", &[Fixture::new("a").label("x", "y").json()]);

    let delta = subscription.next().await.unwrap();
    assert!(delta.new.unwrap().json().is_empty());
    assert_eq!(harness.script.watch(10).await.accept, partial("PartialObjectMetadata"));
    assert_eq!(subscription.store().bytes(), 0);
}

/// Checks that a streaming list updates the store after an expired position.
async fn check_relist(harness: &mut Harness, subscription: &mut Subscription) {
    let stream = harness.script.stream().await;
    assert_eq!(stream.query["resourceVersionMatch"], "NotOlderThan");
    assert_eq!(stream.query["allowWatchBookmarks"], "true");
    assert!(!stream.query.contains_key("resourceVersion"));
    let stream = stream.open();
    stream.event("ADDED", &widget("a", 1));
    stream.event("ADDED", &widget("c", 3));
    run_until_idle().await;
    assert_eq!(stored(subscription), names(&[("a", 1), ("b", 2), ("c", 3)]));
    stream.end_of_list(30);

    assert_eq!(change(subscription).await, ("c".into(), 0, 3));
    assert_eq!(change(subscription).await, ("b".into(), 2, 0));
    stream.event("MODIFIED", &widget("a", 31));
    assert_eq!(change(subscription).await, ("a".into(), 1, 31));
    assert_eq!(progress(subscription), InformerProgress::Synced);
    drop(stream);
    harness.script.watch(31).await;
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_in_its_stream_lists_once_and_deletes_what_is_gone() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.error(410, "Expired", "too old resource version");

    check_relist(&mut harness, &mut subscription).await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_by_its_status_lists_once_and_deletes_what_is_gone() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    drop(watch);
    harness.script.watch(10).await.refuse(410, "Gone", "too old resource version");

    check_relist(&mut harness, &mut subscription).await;
}

#[tokio::test(start_paused = true)]
async fn streaming_list_is_requested_once_from_a_server_without_it() {
    for (code, reason) in [(400, "BadRequest"), (422, "Invalid")] {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        watch.error(410, "Expired", "old");
        harness.script.stream().await.refuse(code, reason, "sendInitialEvents is forbidden");
        harness.script.list().await.page(20, "", &[]);
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
        let watch = harness.script.watch(20).await.open();
        tokio::time::sleep(Duration::from_secs(2)).await;
        watch.error(410, "Expired", "old");

        harness.script.list().await.page(30, "", &[]);
        harness.script.watch(30).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_without_an_end_is_cancelled() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.error(410, "Expired", "old");
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 1));
    stream.bookmark(20);
    let started = Instant::now();
    let list = harness.script.list().await;

    assert!(started.elapsed() < Duration::from_secs(15));
    assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 2)]));
    list.page(30, "", &[widget("a", 1)]);
    harness.script.watch(30).await;
    assert_eq!(stored(&subscription), names(&[("a", 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_that_is_cut_deletes_nothing() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.error(410, "Expired", "old");
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 15));
    run_until_idle().await;
    stream.reset();
    let list = harness.script.list().await;

    assert_eq!(stored(&subscription), names(&[("a", 15), ("b", 2)]));
    list.page(30, "", &[widget("a", 15), widget("b", 2)]);
    harness.script.watch(30).await;
    assert_eq!(stored(&subscription), names(&[("a", 15), ("b", 2)]));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_on_its_third_page_of_seven_continues_there_and_deletes_nothing() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;
    watch.error(410, "Expired", "old");
    harness.script.stream().await.refuse(400, "BadRequest", "unknown parameter");

    harness.script.list().await.page(20, "1", &[widget("c", 3)]);
    harness.script.list().await.page(20, "2", &[widget("d", 4)]);
    harness.script.list().await.refuse(500, "InternalError", "etcd is away");
    let again = harness.script.list().await;
    assert_eq!(again.query["continue"], "2");
    let all = names(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    assert_eq!(stored(&subscription), all);
    assert!(
        matches!(progress(&subscription), InformerProgress::Stale(error) if error.contains("etcd is away"))
    );
    again.page(20, "3", &[widget("a", 1)]);
    for page in 4..7_u32 {
        let list = harness.script.list().await;
        assert_eq!(list.query["continue"], (page - 1).to_string());
        assert_eq!(stored(&subscription), all, "nothing goes before the last page");
        list.page(20, &page.to_string(), &[]);
    }
    harness.script.list().await.page(20, "", &[]);
    harness.script.watch(20).await;

    assert_eq!(stored(&subscription), names(&[("a", 1), ("c", 3), ("d", 4)]));
    assert_eq!(change(&mut subscription).await, ("c".into(), 0, 3));
    assert_eq!(change(&mut subscription).await, ("d".into(), 0, 4));
    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_fails_five_times_begins_its_list_anew() {
    let mut harness = Harness::new();
    let subscription = harness.subscribe();

    harness.script.list().await.page(10, "1", &[widget("a", 1)]);
    for _ in 0..5 {
        let page = harness.script.list().await;
        assert_eq!(page.query["continue"], "1");
        page.refuse(500, "InternalError", "required revision is a future revision");
    }
    let anew = harness.script.list().await;

    assert_eq!(anew.query.get("continue"), None);
    anew.page(9, "", &[widget("b", 2)]);
    harness.script.watch(9).await;
    assert_eq!(stored(&subscription), names(&[("b", 2)]));
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_token_is_refused_begins_anew() {
    for (code, reason) in [(400, "BadRequest"), (404, "NotFound")] {
        let mut harness = Harness::new();
        let _subscription = harness.subscribe();

        harness.script.list().await.page(10, "1", &[widget("a", 1)]);
        harness.script.list().await.refuse(code, reason, "continue key is not valid");

        assert_eq!(harness.script.list().await.query.get("continue"), None, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_repeats_its_continue_token_is_reported_and_requested_with_pauses() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let subscription = harness.subscribe();
    let started = Instant::now();

    let mut lists = 0;
    while started.elapsed() < Duration::from_secs(60) {
        let token = format!("t{}", lists % 2);
        harness.script.list().await.page(10, &token, &[widget("a", 1)]);
        lists += 1;
    }

    assert!(lists < 60, "{lists} requests in a minute");
    let progress = progress(&subscription);
    assert!(
        matches!(&progress, InformerProgress::Syncing(Some(error)) if error.contains("same continue token")),
        "{progress:?}"
    );
    // Another list has the slot meanwhile.
    harness.key.namespace = Some("ns".into());
    let other = harness.subscribe();
    loop {
        let request = harness.script.next().await;
        match request.path.contains("namespaces") && !request.is_watch() {
            true => break request.page(10, "", &[]),
            false => request.page(10, "t0", &[]),
        }
    }
    other.drained().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_without_items_deletes_nothing() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
    watch.error(410, "Expired", "old");
    harness.script.stream().await.refuse(400, "BadRequest", "unknown parameter");

    harness.script.list().await.refuse(200, "", "a proxy answers for the server");
    let again = harness.script.list().await;

    assert_eq!(stored(&subscription), names(&[("a", 1)]));
    assert!(matches!(progress(&subscription), InformerProgress::Stale(_)));
    again.page(20, "", &[widget("a", 1)]);
    harness.script.watch(20).await;
}

#[tokio::test(start_paused = true)]
async fn a_relist_whose_token_expires_deletes_nothing_before_it_is_complete() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;
    watch.error(410, "Expired", "old");
    harness.script.stream().await.refuse(400, "BadRequest", "unknown parameter");

    harness.script.list().await.page(20, "1", &[widget("a", 1)]);
    harness.script.list().await.refuse(410, "Expired", "the token has expired");
    let whole = harness.script.list().await;
    assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 2)]));
    whole.page(21, "", &[widget("b", 2)]);

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
    harness.script.watch(21).await;
    assert_eq!(stored(&subscription), names(&[("b", 2)]));
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_token_expires_is_made_in_one_piece() {
    let mut harness = Harness::new();
    let mut subscription = harness.subscribe();

    harness.script.list().await.page(10, "1", &[widget("a", 1), widget("b", 2)]);
    harness.script.list().await.refuse(410, "Expired", "the token has expired");
    let whole = harness.script.list().await;
    assert_eq!(whole.query.get("limit"), None);
    whole.page(20, "", &[widget("b", 2)]);
    harness.script.watch(20).await;

    assert_eq!(stored(&subscription), names(&[("b", 2)]));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
    assert_eq!(change(&mut subscription).await, ("b".into(), 0, 2));
    subscription.drained().await;
}

#[tokio::test(start_paused = true)]
async fn page_over_budget_is_requested_in_smaller_pages() {
    let options = InformerOptions { max_page_bytes: 1000, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let _subscription = harness.subscribe();
    let items: Vec<_> = (0..50).map(|index| widget(&index.to_string(), 1)).collect();

    harness.script.list().await.page(10, "", &items);

    assert_eq!(harness.script.list().await.query["limit"], "125");
}

#[tokio::test(start_paused = true)]
async fn page_larger_than_the_shared_budget_is_requested_in_smaller_pages() {
    let options = InformerOptions { max_list_bytes: 1000, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let _subscription = harness.subscribe();
    let items: Vec<_> = (0..50).map(|index| widget(&index.to_string(), 1)).collect();

    harness.script.list().await.page(10, "", &items);

    let smaller = harness.script.list().await;
    assert_eq!(smaller.query["limit"], "125");
    smaller.page(10, "", &[widget("a", 1)]);
    harness.script.watch(10).await;
}

/// Objects of about 130 bytes each.
fn many(count: u64) -> Vec<serde_json::Value> {
    (0..count).map(|index| widget(&format!("w{index}"), 1 + index)).collect()
}

#[tokio::test(start_paused = true)]
async fn page_without_room_waits_and_is_requested_again_at_its_token() {
    let options = InformerOptions { max_list_bytes: 8000, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let subscription = harness.subscribe();
    harness.script.list().await.page(10, "1", &[widget("a", 1)]);
    let second_page = harness.script.list().await;
    harness.key.namespace = Some("ns".into());
    let _other = harness.subscribe();
    let slow = harness.script.list().await.open();
    slow.text(&format!(r#"{{"metadata":{{"resourceVersion":"10"}},"items":[{}"#, " ".repeat(6000)));
    run_until_idle().await;

    second_page.page(10, "2", &many(30));
    tokio::time::sleep(Duration::from_secs(20)).await;
    harness.script.assert_quiet();
    slow.reset();

    let again = harness.script.list().await;
    assert_eq!((&*again.query["limit"], &*again.query["continue"]), ("500", "1"));
    again.page(10, "", &many(30));
    harness.script.watch(10).await;
    assert_eq!(subscription.store().len(), 31);
    assert_eq!(progress(&subscription), InformerProgress::Syncing(None));
}

#[tokio::test(start_paused = true)]
async fn page_that_waits_for_room_ends_with_its_subscribers_and_delays_no_other() {
    let options = InformerOptions {
        max_list_bytes: 8000,
        max_concurrent_lists: 2,
        ..InformerOptions::default()
    };
    let mut harness = Harness::with(options);
    let waits = harness.subscribe();
    let page = harness.script.list().await;
    harness.key.namespace = Some("slow".into());
    let _slow = harness.subscribe();
    let slow = harness.script.list().await.open();
    slow.text(&" ".repeat(6000));
    run_until_idle().await;
    page.page(10, "", &many(30));
    tokio::time::sleep(Duration::from_secs(2)).await;

    harness.key.namespace = Some("other".into());
    let _other = harness.subscribe();
    // The page that waits has released its slot.
    let list = harness.script.list().await;
    assert!(list.path.contains("other"), "{}", list.path);
    let ended = harness.set.ended(&waits.key().clone());
    drop(waits);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        slow.text(" ");
    }

    assert_eq!(ended.await, EndReason::Released);
}

#[tokio::test(start_paused = true)]
async fn page_limit_grows_again_behind_large_objects_and_with_the_next_list() {
    let options = InformerOptions { max_page_bytes: 8000, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let subscription = harness.subscribe();
    let mut limits = Vec::new();
    // Objects of each page; pages of more than about sixty are too long.
    for (token, objects) in [("1", 1), ("1", 100), ("1", 100), ("2", 60), ("3", 1), ("4", 1)] {
        let page = harness.script.list().await;
        limits.push(page.query["limit"].clone());
        page.page(10, token, &many(objects));
    }
    let started = Instant::now();
    let last = harness.script.list().await;
    limits.push(last.query["limit"].clone());
    assert_eq!(last.query["continue"], "4");
    last.page(10, "", &[]);

    assert_eq!(limits, ["500", "500", "125", "31", "31", "62", "124"]);
    assert!(started.elapsed() < Duration::from_millis(1));
    let watch = harness.script.watch(10).await.open();
    watch.error(410, "Expired", "old");
    harness.script.stream().await.refuse(400, "BadRequest", "unknown parameter");
    let next = harness.script.list().await;
    assert_eq!(next.query["limit"], "500");
    next.page(20, "", &[]);
    harness.script.watch(20).await;
    assert!(subscription.store().is_empty());
}

#[tokio::test(start_paused = true)]
async fn whole_list_over_budget_is_followed_by_pages_of_full_size() {
    let options = InformerOptions { max_page_bytes: 8000, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let _subscription = harness.subscribe();

    for _ in 0..4 {
        let first = harness.script.list().await;
        assert_eq!(first.query["limit"], "500");
        first.page(10, "1", &[widget("a", 1)]);
        harness.script.list().await.refuse(410, "Expired", "the token has expired");
        let whole = harness.script.list().await;
        assert_eq!(whole.query.get("limit"), None);
        whole.page(10, "", &many(100));
    }

    assert_eq!(harness.script.list().await.query["limit"], "500");
}

#[tokio::test(start_paused = true)]
async fn objects_of_every_wrong_kind_do_not_stop_a_list() {
    let mut harness = Harness::new();
    let mut subscription = harness.subscribe();

    let wrong = [json!(null), json!(7), json!({}), json!({"metadata": {"name": 7}})];
    harness.script.list().await.page(10, "", &[&wrong[..], &[widget("a", 1)]].concat());

    assert_eq!(change(&mut subscription).await, ("a".into(), 0, 1));
    subscription.drained().await;
    harness.script.watch(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_with_an_object_that_has_no_name_deletes_nothing() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.error(410, "Expired", "old");
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 15));
    stream.event("ADDED", &json!({"metadata": {"name": ["b"]}}));
    stream.end_of_list(20);
    run_until_idle().await;

    assert_eq!(stored(&subscription), names(&[("a", 15), ("b", 2)]));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_no_list_is_repeated() {
    let mut harness = Harness::new();
    let subscription = harness.subscribe();

    harness.script.list().await.text(StatusCode::OK, "<html>");
    run_until_idle().await;
    assert!(matches!(progress(&subscription), InformerProgress::Syncing(Some(_))));

    harness.script.list().await.page(10, "", &[]);
    subscription.drained().await;
}

#[tokio::test(start_paused = true)]
async fn list_that_is_never_answered_is_cancelled_and_delays_no_other() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let _first = harness.subscribe();
    let black_hole = harness.script.list().await;
    let started = Instant::now();

    harness.key.namespace = Some("ns".into());
    let second = harness.subscribe();
    harness.script.list().await.page(10, "", &[]);
    second.drained().await;
    assert!(started.elapsed() <= Duration::from_secs(1));
    let _watch = harness.script.watch(10).await;

    black_hole.abandoned().await;
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(31));
    let smaller = harness.script.list().await;
    assert_eq!(smaller.query["limit"], "125");
    smaller.page(10, "more", &[]);
    assert_eq!(harness.script.list().await.query["limit"], "250");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_stops_in_the_middle_is_cancelled() {
    let mut harness = Harness::new();
    let _subscription = harness.subscribe();

    let half = harness.script.list().await.open();
    half.text(r#"{"items":[{"#);
    let started = Instant::now();
    half.dropped().await;

    assert!(started.elapsed() < Duration::from_secs(31));
    harness.script.list().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_silent_waits_for_a_place_again() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let first = harness.subscribe();
    let slow = harness.script.list().await;
    harness.key.namespace = Some("ns".into());
    let second = harness.subscribe();
    let half = harness.script.list().await.open();
    half.text(r#"{"metadata":{"resourceVersion":"10"},"#);

    // The first list proceeds while the second one holds the only slot.
    slow.page(10, "more", &[widget("a", 1)]);
    run_until_idle().await;
    assert_eq!(stored(&first), names(&[]));
    harness.script.assert_quiet();

    half.text(r#""items":[]}"#);
    drop(half);
    second.drained().await;
    let mut requests = [harness.script.next().await, harness.script.next().await];
    requests.sort_by_key(|it| it.is_watch());
    assert_eq!(requests[0].query.get("continue").map(String::as_str), Some("more"));
    assert_eq!(stored(&first), names(&[("a", 1)]));
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_for_a_place_does_not_count_against_a_page() {
    let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let queued = harness.subscribe();
    let slow = harness.script.list().await;
    let started = Instant::now();
    let mut others = Vec::new();
    for namespace in ["a", "b"] {
        harness.key.namespace = Some(namespace.into());
        others.push(harness.subscribe());
    }

    // The first other list gets the place; the second one waits before the slow list.
    let mut open = harness.script.list().await.open();
    let rest = slow.open();
    rest.text(r#"{"metadata":{"resourceVersion":"10"},"#);
    for other in &others {
        // A byte in each second keeps the slot.
        for _ in 0..200 {
            open.text(" ");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        open.text(r#"{"metadata":{"resourceVersion":"10"},"items":[]}"#);
        drop(open);
        other.drained().await;
        run_until_idle().await;
        let mut requests: Vec<_> = std::iter::from_fn(|| harness.script.try_next()).collect();
        requests.retain(|it| !it.is_watch());
        match requests.pop() {
            Some(list) => open = list.open(),
            None => break,
        }
    }
    assert!(started.elapsed() > Duration::from_secs(400));
    tokio::time::sleep(Duration::from_millis(100)).await;

    assert!(!rest.is_dropped(), "the list is cut off after its time in the queue");
    rest.text(r#""items":[]}"#);
    drop(rest);
    queued.drained().await;
}
