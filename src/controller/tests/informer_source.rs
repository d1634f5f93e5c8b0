//! Source of an informer that the program has subscribed to.

use super::*;
use crate::informer::InformerKey;

#[tokio::test(start_paused = true)]
async fn informer_of_the_program_feeds_a_controller_and_lives_on_without_it_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    run_until_idle().await;

    for round in 0..2 {
        let served = harness.cluster.types.served(&widgets()).unwrap();
        let key = InformerKey::new(served.identity.clone());
        let own = harness.cluster.informers.subscribe(&served, key.clone());
        own.complete().await;
        let source = InformerSource::new(&harness.cluster.types, &harness.cluster.informers, key)
            .interests(own.interests().clone());
        harness.add(builder().watches_source(source, Handler::Object).conditional()).await;
        harness.state(ControllerState::Running).await;
        assert_eq!(harness.log().await, ["ns/a a"]);
        harness.server.apply(widget("b", "b"));
        assert_eq!(harness.log().await, ["ns/b b"]);
        assert_eq!(harness.server.watches(WIDGETS), 1, "one watch for both");

        harness.manager.remove(NAME).await;
        harness.server.apply(widget("b", "late"));
        assert!(harness.log().await.is_empty());
        assert_eq!(harness.server.watches(WIDGETS), 1, "the program's subscription lasts");
        assert_eq!(own.store().len(), 2);
        harness.server.delete("Widget", "b");

        drop(own);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.server.watches(WIDGETS), 0, "round {round}");
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn informer_source_comes_and_goes_with_its_type_and_reports_the_deletions() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    run_until_idle().await;
    let identity = harness.cluster.types.served(&widgets()).unwrap().identity.clone();
    let key = InformerKey::new(identity);
    let source = InformerSource::new(&harness.cluster.types, &harness.cluster.informers, key);
    let described = builder().for_type(parts()).watches_source(source, Handler::Object).optional();
    harness.add(described).await;
    harness.state(ControllerState::Running).await;

    for mark in ["one", "two"] {
        harness.server.apply(widget("a", mark));
        assert_eq!(harness.log().await, [format!("ns/a {mark}")]);
        harness.server.uninstall("widgets");
        run_until_idle().await;
        let log = harness.log().await;
        let is_gone = |last: &String| last == "ns/a gone" || last == "ns/a missing";
        assert!(log.last().is_some_and(is_gone), "{log:?}");
        assert_eq!(harness.server.watches(WIDGETS), 0);

        // Another uid: the key of the source is that of the type that is served.
        harness.install("Widget");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(harness.log().await, [""; 0]);
    }
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}
