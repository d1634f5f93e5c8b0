//! Requests of a change: handlers and predicates.

use super::*;

#[tokio::test(start_paused = true)]
async fn changes_of_owned_objects_concern_their_owner() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(part("one", "a"));
    harness.server.apply(object("Part", "stray", "stray"));
    harness.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);

    harness.server.apply(part("one", "b"));
    assert_eq!(harness.log().await, ["ns/a a", "ns/b gone"], "the old owner and the new one");
    harness.server.delete("Part", "one");
    assert_eq!(harness.log().await, ["ns/b gone"]);
    harness.server.apply(object("Part", "stray", "again"));
    assert!(harness.log().await.is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn owned_object_that_is_created_and_deleted_at_once_concerns_its_owner() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);

    harness.server.apply(part("one", "a"));
    harness.server.delete("Part", "one");

    assert_eq!(
        harness.log().await,
        ["ns/a a"],
        "its owner may have made it, and know nothing of this"
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_owner_is_found_without_a_namespace() {
    let harness = Harness::new();
    harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    harness.install("Part");
    harness.server.apply(part("one", "a"));
    harness.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, ["a gone"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handler_that_panics_loses_one_change_and_says_so() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("bad", "bad"));
    harness.server.apply(widget("good", "good"));
    let handler = Handler::map(|object| {
        assert!(&*object.key().name != "bad", "no map for you");
        vec![object.key().clone().into()]
    });
    harness.add(builder().watches_type(widgets(), handler).conditional()).await;

    let status = harness.until(|status| status.report.last_error.is_some()).await;

    let error = status.report.last_error.as_deref().unwrap();
    assert_eq!(error, "event handler panicked at ns/bad: no map for you");
    assert_eq!(harness.log().await, ["ns/good good"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn predicates_drop_changes_that_none_of_them_accepts() {
    let harness = Harness::new();
    harness.install("Widget");
    // The server raises the generation when the size changes.
    let sized = |size: i64, mark: &str| {
        let mut widget = widget("a", mark);
        widget["spec"] = json!({"size": size});
        widget
    };
    harness.server.apply(sized(1, "x"));
    harness
        .add(builder().for_type(widgets()).conditional().predicate(Predicate::generation()))
        .await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await.len(), 1);

    harness.server.apply(sized(1, "y"));
    assert_eq!(harness.log().await.len(), 0);
    harness.server.apply(sized(2, "y"));
    assert_eq!(harness.log().await.len(), 1);
    harness.server.delete("Widget", "a");
    assert_eq!(harness.log().await, ["ns/a gone"]);
    harness.shutdown().await;
}
