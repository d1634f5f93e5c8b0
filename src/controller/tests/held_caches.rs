//! Objects of a cache that is held until its replacement is listed.

use super::*;
use crate::controller::Event;

/// Returns a harness whose controller owns a part of the widget `a` by this plain input.
async fn with_owned_part(type_ref: TypeRef) -> Harness {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(part("one", "a"));
    harness.add(builder().for_type(widgets()).conditional().owns_type(type_ref)).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a gone"]);
    harness
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_type_that_is_deleted_before_its_new_version_is_listed_are_gone() {
    let harness = with_owned_part(parts().any_version()).await;
    let lists = harness.server.lists("parts");
    harness.server.take_time_to_list("parts");
    harness.server.install(crd("Part"), &["v2"]);
    assert_eq!(harness.log().await, [""; 0]);
    assert!(harness.server.lists("parts") > lists, "the new version is being listed");

    harness.server.uninstall("parts");

    assert_eq!(harness.log().await, ["ns/a gone"]);
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_type_that_is_lost_before_its_input_is_started_again_are_gone() {
    for replaced in [false, true] {
        let harness = with_owned_part(parts()).await;
        let identity = harness.cluster.types.served(&parts()).unwrap().identity.clone();
        harness.server.take_time_to_list("parts");
        // The type is served on, so that the cache is held until the input is started again.
        harness.cluster.informers.type_gone(&identity);
        assert_eq!(harness.log().await, [""; 0]);

        harness.server.uninstall("parts");
        if replaced {
            harness.install("Part");
        }
        // The pause before the start, which is over before the list.
        sleep(Duration::from_secs(1)).await;

        assert_eq!(harness.log().await, ["ns/a gone"], "replaced: {replaced}");
        assert_eq!(harness.status().epoch, 1);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_is_created_again_while_its_version_changes_is_deleted_first() {
    let harness = Harness::new();
    harness.install("Part");
    harness.server.apply(object("Part", "x", "old"));
    let seen = Log::default();
    let noted = Arc::clone(&seen);
    let handler = Handler::events(move |event, _| {
        let mark = event.object().header().labels.get("mark").unwrap().to_owned();
        let verb = match event {
            Event::Create { .. } => "create",
            Event::Update { .. } => "update",
            Event::Delete { .. } => "delete",
        };
        noted.lock().unwrap().push(format!("{verb} {mark}"));
    });
    harness.add(builder().watches_type(parts().any_version(), handler)).await;
    harness.state(ControllerState::Running).await;
    run_until_idle().await;
    assert_eq!(*seen.lock().unwrap(), ["create old"]);

    // Only the list of the other version shows the change.
    harness.server.withhold("parts");
    harness.server.delete("Part", "x");
    harness.server.apply(object("Part", "x", "new"));
    harness.server.install(crd("Part"), &["v2"]);
    run_until_idle().await;

    let expected = ["create old", "delete old", "create new", "create new"];
    assert_eq!(*seen.lock().unwrap(), expected, "the last one is an initial change");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_moves_to_another_owner_while_its_version_changes_concerns_both() {
    let harness = with_owned_part(parts().any_version()).await;
    // Only the list of the other version shows the change.
    harness.server.withhold("parts");
    harness.server.apply(part("one", "b"));
    assert_eq!(harness.log().await, [""; 0]);

    harness.server.install(crd("Part"), &["v2"]);

    let mut log = harness.log().await;
    log.sort();
    log.dedup();
    assert_eq!(log, ["ns/a gone", "ns/b gone"]);
    harness.shutdown().await;
}
