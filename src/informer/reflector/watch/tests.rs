//! Tests of the reflector's watch.

use http::StatusCode;
use serde_json::{Value, json};

use super::*;
use crate::informer::{
    InformerOptions,
    fixture::Fixture,
    script::{Harness, OpenBody, change, names, run_until_idle, stored, widget},
};

#[tokio::test(start_paused = true)]
async fn a_lost_connection_resumes_without_a_list() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    watch.event("MODIFIED", &widget("a", 11));
    watch.bookmark(20);
    watch.reset();
    let watch = harness.script.watch(20).await.open();
    watch.event("MODIFIED", &widget("a", 21));

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
    assert_eq!(change(&mut subscription).await, ("a".into(), 11, 21));
}

#[tokio::test(start_paused = true)]
async fn version_of_a_store_follows_events_and_bookmarks() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
    let store = subscription.store();
    assert_eq!(store.version(), 10);

    watch.event("MODIFIED", &widget("a", 11));
    run_until_idle().await;
    assert_eq!(store.version(), 11);
    watch.bookmark(20);
    run_until_idle().await;
    assert_eq!(store.version(), 20);
    watch.event("MODIFIED", &widget("a", 15));
    run_until_idle().await;
    assert_eq!(store.version(), 20, "old event");
}

#[tokio::test(start_paused = true)]
async fn a_watch_cut_at_any_byte_loses_nothing() {
    let event = json!({"type": "MODIFIED", "object": widget("a", 11)}).to_string() + "\n";
    for end in 0..event.len() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        watch.text(&event[..end]);
        run_until_idle().await;
        drop(watch);
        let watch = harness.script.watch(10).await.open();
        watch.text(&event);

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11), "cut after {end}");
        assert_eq!(stored(&subscription), names(&[("a", 11)]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_arrives_byte_by_byte_loses_nothing() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    let event = json!({"type": "MODIFIED", "object": widget("a", 11)}).to_string() + "\n";
    for byte in event.as_bytes() {
        watch.chunk(&[*byte]);
        run_until_idle().await;
    }

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
}

#[tokio::test(start_paused = true)]
async fn a_clean_end_is_followed_by_a_watch_at_once_but_not_in_a_loop() {
    let mut harness = Harness::new();
    let (_subscription, watch) = harness.synced(&[]).await;
    watch.bookmark(10);
    tokio::time::sleep(Duration::from_secs(200)).await;

    let ended = Instant::now();
    drop(watch);
    let mut watches = 0;
    while ended.elapsed() < Duration::from_secs(60) {
        harness.script.watch(10).await.text(StatusCode::OK, "");
        watches += 1;
        if watches == 1 {
            assert!(ended.elapsed() < Duration::from_millis(10));
        }
    }

    assert!((5..14).contains(&watches), "{watches}");
}

#[tokio::test(start_paused = true)]
async fn a_line_over_budget_is_cut_and_then_got_past_by_a_list() {
    let options = InformerOptions { max_line_bytes: 1000, ..InformerOptions::default() };
    let mut harness = Harness::with(options);
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    let long = async |watch: OpenBody| {
        for _ in 0..20 {
            watch.chunk(&[b'x'; 100]);
        }
        watch.dropped().await;
    };
    long(watch).await;
    long(harness.script.watch(10).await.open()).await;
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 15));
    stream.end_of_list(20);

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 15));
}

#[tokio::test(start_paused = true)]
async fn old_and_repeated_events_change_nothing() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.event("MODIFIED", &widget("a", 12));
    watch.event("MODIFIED", &widget("a", 12));
    watch.event("MODIFIED", &widget("a", 11));
    watch.event("DELETED", &widget("b", 13));
    watch.event("ADDED", &widget("b", 2));
    watch.event("DELETED", &widget("a", 11));
    watch.event("WHATEVER", &widget("a", 20));
    watch.bookmark(5);
    watch.event("MODIFIED", &widget("a", 14));

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 14));
    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
    assert_eq!(stored(&subscription), names(&[("a", 14)]));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_comes_before_its_creation_counts_once() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[]).await;

    watch.event("MODIFIED", &widget("a", 12));
    assert_eq!(change(&mut subscription).await, ("a".into(), 0, 12));
    watch.event("ADDED", &widget("a", 11));
    watch.event("MODIFIED", &widget("a", 12));
    watch.event("ADDED", &widget("b", 13));

    assert_eq!(change(&mut subscription).await, ("b".into(), 0, 13));
    assert_eq!(stored(&subscription), names(&[("a", 12), ("b", 13)]));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_with_the_version_of_the_last_change_counts() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.event("MODIFIED", &widget("b", 12));
    watch.event("DELETED", &widget("a", 1));

    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_old_deletion_takes_nothing_away() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;
    watch.event("MODIFIED", &widget("a", 12));
    watch.event("DELETED", &widget("b", 13));
    watch.event("ADDED", &Fixture::new("b").uid("second").version(14).json());
    watch.bookmark(20);
    let known = names(&[("a", 12), ("b", 14)]);
    run_until_idle().await;
    assert_eq!(stored(&subscription), known);

    // Older than its last change; older than its re-creation, by version or by uid.
    for old in [widget("a", 11), widget("b", 13), widget("b", 15)] {
        watch.event("DELETED", &old);
        run_until_idle().await;

        assert_eq!(stored(&subscription), known, "{old}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_created_again_is_seen_with_both_its_uids() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    watch.event("DELETED", &widget("a", 11));
    watch.event("ADDED", &Fixture::new("a").uid("second").version(12).json());
    run_until_idle().await;
    let delta = subscription.next().await.unwrap();

    assert_eq!(&*delta.old.unwrap().header().uid, "uid-a");
    assert_eq!(&*delta.new.unwrap().header().uid, "second");
}

#[tokio::test(start_paused = true)]
async fn bookmark_with_an_older_version_is_ignored_and_verified() {
    let mut harness = Harness::new();
    let (_subscription, watch) = harness.synced(&[]).await;

    watch.bookmark(50);
    watch.bookmark(40);
    run_until_idle().await;
    drop(watch);

    // The server's position is ahead of ours.
    let probe = harness.script.list().await;
    assert_eq!(probe.query["limit"], "1");
    probe.page(60, "", &[]);
    harness.script.watch(50).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_is_listed_again() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;
    watch.event("ADDED", &widget("b", 1000));
    assert_eq!(change(&mut subscription).await, ("b".into(), 0, 1000));
    drop(watch);

    // A watch from a position that the server has not reached is silent.
    let silent = harness.script.watch(1000).await.open();
    silent.dropped().await;
    drop(silent);
    harness.script.list().await.page(500, "more", &[widget("a", 1)]);
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 1));
    stream.end_of_list(501);
    stream.event("MODIFIED", &widget("a", 502));

    assert_eq!(change(&mut subscription).await, ("b".into(), 1000, 0));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 502));
}

#[tokio::test(start_paused = true)]
async fn event_counts_in_any_form_of_its_line() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;
    let mut seen = 1;
    let forms: [&dyn Fn(&Value) -> String; 8] = [
        &|object| format!(r#"{{"type":"MODIFIED","object":{object}}}"#),
        &|object| format!(r#"{{"type":"ADDED","object":{object}}}"#),
        &|object| format!(r#"{{"object":{object},"type":"MODIFIED"}}"#),
        &|object| format!(r#" {{"type":"MODIFIED", "object" : {object} }} "#),
        &|object| format!(r#"{{"type":"MODIFIED","object":{object}}}"#) + "\r",
        &|object| format!(r#"{{"type":"MODIFIED","object":{object},"other":{{}}}}"#),
        &|object| format!(r#"{{"type":"MODIFIED","object": {object}}}"#),
        &|object| format!(r#"{{"type":"M\u004fDIFIED","object":{object}}}"#),
    ];
    for (version, form) in (11..).zip(forms) {
        watch.text(&format!("{}\n", form(&widget("a", version))));

        assert_eq!(change(&mut subscription).await, ("a".into(), seen, version));
        seen = version;
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_event_is_replaced_by_a_list_at_once() {
    let object = widget("b", 12);
    for line in [
        &b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\n"[..],
        b"\xff\xfe\n",
        format!("{{\"type\":\"ADDED\",\"object\":{object}}}}}\n").as_bytes(),
        format!("{{\"type\":\"ADDED\",\"object\":{object},\"object\":{object}}}\n").as_bytes(),
    ] {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        let begin = Instant::now();

        // Replaces the only event about `b`.
        watch.chunk(line);

        watch.dropped().await;
        let stream = harness.script.stream().await.open();
        stream.event("ADDED", &widget("a", 1));
        stream.event("ADDED", &widget("b", 12));
        stream.end_of_list(12);
        assert_eq!(change(&mut subscription).await, ("b".into(), 0, 12));
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_object_affects_itself_alone_until_it_is_valid_again() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    let bad = Fixture::new("a").version(11).set("labels", json!(["x"])).json();
    watch.event("MODIFIED", &bad);
    watch.event("MODIFIED", &widget("b", 12));
    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
    assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));
    let status = &harness.set.status()[0];
    assert_eq!(status.quarantined[0].field, "metadata.labels");
    assert_eq!(status.quarantined[0].key.as_ref().unwrap().to_string(), "a");

    // The event counts as seen: the watch resumes after it, and a list finds the object
    // present.
    drop(watch);
    harness.script.watch(12).await.refuse(410, "Expired", "old");
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &bad);
    stream.event("ADDED", &widget("b", 12));
    stream.end_of_list(20);
    run_until_idle().await;
    assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));

    stream.event("MODIFIED", &widget("a", 21));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 21));
    assert!(harness.set.status()[0].quarantined.is_empty());

    stream.event("DELETED", &Fixture::new("a").version(22).set("labels", json!(1)).json());
    assert_eq!(change(&mut subscription).await, ("a".into(), 21, 0));
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_closed_before_a_load_balancer_would() {
    let mut harness = Harness::new();
    let _subscription = harness.subscribe();
    harness.script.list().await.page(10, "", &[]);
    let watch = harness.script.watch(10).await;
    let requested = Duration::from_secs(watch.query["timeoutSeconds"].parse().unwrap());
    let watch = watch.open();
    let opened = Instant::now();

    watch.dropped().await;

    let lasted = opened.elapsed();
    assert!(lasted > requested && lasted <= requested + Duration::from_secs(5), "{lasted:?}");
    let probe = harness.script.list().await;
    probe.page(10, "", &[]);
    harness.script.watch(10).await;
}

#[tokio::test(start_paused = true)]
async fn lists_without_a_version_are_made_again_on_each_reconnect() {
    let mut harness = Harness::opaque();
    let list = |names: &[&str]| {
        let items: Vec<_> = names.iter().map(|name| widget(name, 1)).collect();
        json!({"kind": "WidgetList", "metadata": {}, "items": items}).to_string()
    };
    let mut subscription = harness.subscribe();
    harness.script.list().await.text(StatusCode::OK, &list(&["a", "b"]));
    for _ in 0..2 {
        subscription.next().await.unwrap();
    }
    let watch = harness.script.next().await;
    assert!(watch.is_watch());
    let watch = watch.open();
    // The version of an object is not a position of the list.
    watch.event("MODIFIED", &widget("a", 7));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 7));
    watch.event("MODIFIED", &widget("b", 3));
    assert_eq!(change(&mut subscription).await, ("b".into(), 1, 3));

    watch.reset();
    harness.script.list().await.text(StatusCode::OK, &list(&["a"]));
    assert_eq!(change(&mut subscription).await, ("a".into(), 7, 1));
    assert_eq!(change(&mut subscription).await, ("b".into(), 3, 0));
    let watch = harness.script.next().await;
    assert!(watch.is_watch());
    drop(watch.open());
    harness.script.list().await.text(StatusCode::OK, &list(&[]));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
}

#[tokio::test(start_paused = true)]
async fn where_versions_are_opaque_only_equal_ones_are_dropped() {
    let mut harness = Harness::opaque();
    let (mut subscription, watch) = harness.synced(&[widget("a", 9), widget("b", 2)]).await;

    watch.event("MODIFIED", &widget("a", 3));
    assert_eq!(change(&mut subscription).await, ("a".into(), 9, 3));
    watch.event("MODIFIED", &widget("a", 3));
    watch.event("DELETED", &widget("b", 1));
    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
    watch.event("ADDED", &widget("c", 1));
    assert_eq!(change(&mut subscription).await, ("c".into(), 0, 1));
    watch.bookmark(4);
    run_until_idle().await;
    watch.reset();

    // The position is the last one that arrived.
    harness.script.watch(4).await;
}

#[tokio::test(start_paused = true)]
async fn where_versions_are_opaque_a_silent_watch_is_followed_by_a_list_unless_nothing_moved() {
    let mut harness = Harness::opaque();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    watch.dropped().await;
    harness.script.list().await.page(10, "", &[]);
    let watch = harness.script.watch(10).await.open();
    watch.dropped().await;
    harness.script.list().await.page(12, "", &[]);
    let stream = harness.script.stream().await.open();
    stream.end_of_list(12);

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
}
