//! Source of an informer that the program has subscribed to.

use super::*;
use crate::informer::{InformerKey, Transform};

#[tokio::test(start_paused = true)]
async fn informer_of_the_program_feeds_a_controller_and_lives_on_without_it_twice_round() {
    let path = WIDGETS.replace("/widgets", "/namespaces/ns/widgets");
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    run_until_idle().await;

    for round in 0..2 {
        let served = harness.cluster.types.served(&widgets()).unwrap();
        let key = InformerKey {
            namespace: Some("ns".into()),
            labels: Some("mark".into()),
            managed_fields: true,
            transform: Some(Transform::new(|_| {})),
            ..InformerKey::new(served.identity.clone())
        };
        let own = harness.cluster.informers.subscribe(&served, key);
        own.complete().await;
        harness.add(builder().watches_informer(own.key(), Handler::Object).conditional()).await;
        harness.state(ControllerState::Running).await;
        assert_eq!(harness.log().await, ["ns/a a"]);
        harness.server.apply(widget("b", "b"));
        assert_eq!(harness.log().await, ["ns/b b"]);
        assert_eq!(harness.server.watches(&path), 1, "one watch for both");

        harness.manager.remove(NAME).await;
        harness.server.apply(widget("b", "late"));
        assert!(harness.log().await.is_empty());
        assert_eq!(harness.server.watches(&path), 1, "the program's subscription lasts");
        assert_eq!(own.store().len(), 2);
        harness.server.delete("Widget", "b");

        drop(own);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.server.watches(&path), 0, "round {round}");
    }
    harness.shutdown().await;
}
