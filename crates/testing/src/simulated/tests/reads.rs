//! Lists and watches.

use super::*;

#[tokio::test(start_paused = true)]
async fn pages_of_a_list_have_one_version() {
    let harness = Harness::with_widgets();
    for name in ["a", "b", "c", "d", "e"] {
        harness.created(widget(name, json!({}))).await;
    }

    let (_, first) = harness.get(&format!("{ALL_WIDGETS}?limit=2")).await;
    harness.delete(&format!("{WIDGETS}/c"), Value::Null).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = harness.get(&format!("{ALL_WIDGETS}?limit=2&continue={token}")).await;

    assert_eq!((names(&first), names(&second)), (vec!["a", "b"], vec!["c", "d"]));
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    harness.server.compact();
    let (code, expired) = harness.get(&format!("{ALL_WIDGETS}?limit=2&continue={token}")).await;
    assert_eq!((code, &expired["reason"]), (410, &json!("Expired")));
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = harness.get(&format!("{ALL_WIDGETS}?continue={token}")).await;
    assert_eq!((code, names(&rest)), (200, vec!["d", "e"]));
}

#[tokio::test(start_paused = true)]
async fn a_list_has_the_requested_version() {
    let harness = Harness::with_widgets();
    harness.created(widget("a", json!({}))).await;
    let then = harness.server.resource_version();
    harness.created(widget("b", json!({}))).await;
    let list = async |query: String| {
        let (code, list) = harness.get(&format!("{ALL_WIDGETS}?{query}")).await;
        (code, list["items"].as_array().map_or(0, Vec::len))
    };

    assert_eq!(list(format!("resourceVersion={then}&resourceVersionMatch=Exact")).await, (200, 1));
    assert_eq!(
        list(format!("resourceVersion={then}&resourceVersionMatch=NotOlderThan")).await,
        (200, 2)
    );
    assert_eq!(list("resourceVersion=0&limit=1".into()).await, (200, 2), "caches return no pages");
    assert_eq!(list("resourceVersionMatch=Exact".into()).await, (422, 0));
    assert_eq!(list("resourceVersion=x".into()).await, (400, 0));
    let begin = Instant::now();
    assert_eq!(list("resourceVersion=99999".into()).await, (504, 0));
    assert_eq!(begin.elapsed().as_secs(), 3);
    harness.server.compact();
    assert_eq!(list(format!("resourceVersion={then}&resourceVersionMatch=Exact")).await, (410, 0));
}

#[tokio::test(start_paused = true)]
async fn a_watch_delivers_the_changes_after_a_version() {
    let harness = Harness::with_widgets();
    harness.created(widget("a", json!({}))).await;
    let then = harness.server.resource_version();
    harness.created(widget("b", json!({}))).await;
    let mut watch = harness.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;

    harness.patch(&format!("{WIDGETS}/a"), MERGE, json!({ "spec": { "size": 1 } })).await;
    harness.delete(&format!("{WIDGETS}/b"), Value::Null).await;

    assert_eq!(type_and_name(&watch.next().await.unwrap()), ("ADDED", "b"));
    assert_eq!(type_and_name(&watch.next().await.unwrap()), ("MODIFIED", "a"));
    let deleted = watch.next().await.unwrap();
    assert_eq!(type_and_name(&deleted), ("DELETED", "b"));
    let version = harness.server.resource_version().to_string();
    assert_eq!(object::text(&deleted["object"], "resourceVersion"), version);
    assert_eq!(harness.server.open_watches()["widgets.x.test"], 1);
    drop(watch);
    assert!(harness.server.open_watches().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_stops_matching_a_selector_is_deleted_for_the_watch() {
    let harness = Harness::with_widgets();
    let mut watch = harness.watch(&format!("{ALL_WIDGETS}?watch=1&labelSelector=app%3Dx")).await;
    let mut object = widget("a", json!({}));
    object["metadata"]["labels"] = json!({ "app": "x" });
    harness.created(object).await;
    let path = format!("{WIDGETS}/a");

    harness.patch(&path, MERGE, json!({ "metadata": { "labels": { "app": "y" } } })).await;
    harness.patch(&path, MERGE, json!({ "metadata": { "labels": { "app": "x" } } })).await;

    assert_eq!(type_and_name(&watch.next().await.unwrap()), ("ADDED", "a"));
    let left = watch.next().await.unwrap();
    assert_eq!(type_and_name(&left), ("DELETED", "a"));
    assert_eq!(left["object"]["metadata"]["labels"]["app"], "x");
    assert_eq!(type_and_name(&watch.next().await.unwrap()), ("ADDED", "a"));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_ends_with_the_annotated_bookmark() {
    let harness = Harness::with_widgets();
    harness.created(widget("a", json!({}))).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut watch = harness.watch(&format!("{ALL_WIDGETS}?{query}&allowWatchBookmarks=true")).await;

    assert_eq!(type_and_name(&watch.next().await.unwrap()), ("ADDED", "a"));
    let end = watch.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    let annotations = &end["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    let (code, _) = harness.get(&format!("{ALL_WIDGETS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!(code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_watch_gets_bookmarks_and_ends_at_its_timeout() {
    let harness = Harness::with_widgets();
    let query = "watch=1&allowWatchBookmarks=true&timeoutSeconds=100";
    let watch = harness.watch(&format!("{ALL_WIDGETS}?{query}")).await;
    let begin = Instant::now();

    let events: Vec<_> =
        watch.map(|event| (event["type"].clone(), begin.elapsed().as_secs())).collect().await;

    assert_eq!(events, [(json!("BOOKMARK"), 60), (json!("BOOKMARK"), 98)]);
    assert_eq!(begin.elapsed().as_secs(), 100);
}

#[tokio::test(start_paused = true)]
async fn watch_from_a_compacted_version_fails_inside_the_stream() {
    let harness = Harness::with_widgets();
    harness.created(widget("a", json!({}))).await;
    let then = harness.server.resource_version();
    harness.created(widget("b", json!({}))).await;
    harness.server.compact();

    let watch = harness.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;

    let events: Vec<_> = watch.collect().await;
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["type"], &events[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
}
