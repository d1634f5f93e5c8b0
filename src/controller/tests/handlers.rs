//! Which requests a change leads to.

use super::*;

#[tokio::test(start_paused = true)]
async fn changes_of_owned_objects_concern_their_owner() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.install("Part");
    rig.server.apply(widget("a", "a"));
    rig.server.apply(part("one", "a"));
    rig.server.apply(object("Part", "stray", "stray"));
    rig.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a a"]);

    rig.server.apply(part("one", "b"));
    assert_eq!(rig.log().await, ["ns/a a", "ns/b gone"], "the old owner and the new one");
    rig.server.delete("Part", "one");
    assert_eq!(rig.log().await, ["ns/b gone"]);
    rig.server.apply(object("Part", "stray", "again"));
    assert!(rig.log().await.is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_owned_object_that_goes_as_soon_as_it_comes_concerns_its_owner() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.install("Part");
    rig.server.apply(widget("a", "a"));
    rig.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a a"]);

    rig.server.apply(part("one", "a"));
    rig.server.delete("Part", "one");

    assert_eq!(rig.log().await, ["ns/a a"], "its owner may have made it, and know nothing of this");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_owner_is_found_without_a_namespace() {
    let rig = Rig::new();
    rig.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    rig.install("Part");
    rig.server.apply(part("one", "a"));
    rig.add(builder().for_type(widgets()).conditional().owns_type(parts()).conditional()).await;
    rig.state(ControllerState::Running).await;

    assert_eq!(rig.log().await, ["a gone"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handler_that_panics_loses_one_change_and_says_so() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.apply(widget("bad", "bad"));
    rig.server.apply(widget("good", "good"));
    let handler = Handler::map(|object| {
        assert!(&*object.key().name != "bad", "no map for you");
        vec![object.key().clone()]
    });
    rig.add(builder().watches_type(widgets(), handler).conditional()).await;

    let status = rig.until(|status| status.report.last_error.is_some()).await;

    let error = status.report.last_error.as_deref().unwrap();
    assert_eq!(error, "event handler panicked at ns/bad: no map for you");
    assert_eq!(rig.log().await, ["ns/good good"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn predicates_drop_what_none_of_them_wants() {
    let rig = Rig::new();
    rig.install("Widget");
    // Its generation is the server's to count: it grows with the size.
    let sized = |size: i64, mark: &str| {
        let mut widget = widget("a", mark);
        widget["spec"] = json!({"size": size});
        widget
    };
    rig.server.apply(sized(1, "x"));
    rig.add(builder().for_type(widgets()).conditional().predicate(Predicate::generation())).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await.len(), 1);

    rig.server.apply(sized(1, "y"));
    assert_eq!(rig.log().await.len(), 0);
    rig.server.apply(sized(2, "y"));
    assert_eq!(rig.log().await.len(), 1);
    rig.server.delete("Widget", "a");
    assert_eq!(rig.log().await, ["ns/a gone"]);
    rig.shutdown().await;
}
