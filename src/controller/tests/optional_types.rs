//! Optional types, against a simulated API server.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    types::{assert_absent, tasks},
    *,
};
use crate::informer::Object;

fn parts_and_perhaps_widgets() -> Builder {
    builder()
        .watches_type(parts(), Handler::Object)
        .conditional()
        .watches_type(widgets(), Handler::Object)
        .optional()
}

#[tokio::test(start_paused = true)]
async fn optional_type_appears_and_disappears_within_one_epoch() {
    let harness = Harness::new();
    harness.install("Part");
    harness.add(parts_and_perhaps_widgets()).await;
    let degraded = harness.until(|status| status.reason == "Degraded").await;
    assert_eq!(degraded.report.missing, [widgets()]);
    harness.server.apply(object("Part", "x", "x"));
    assert_eq!(harness.log().await, ["ns/x missing"]);
    let before = tasks().await;

    for mark in ["first", "second"] {
        harness.install("Widget");
        harness.server.apply(widget("a", mark));
        harness.until(|status| status.reason == "Running").await;
        assert_eq!(harness.log().await, [format!("ns/a {mark}")]);
        harness.server.install(crd("Widget"), &["v2"]);
        harness.until(|status| status.reason == "Degraded").await;
        assert_eq!(harness.log().await, ["ns/a missing"], "its objects are out of sight");
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        assert_absent(&harness, WIDGETS, before).await;
        harness.install("Widget");
        harness.until(|status| status.reason == "Running").await;
        harness.server.uninstall("widgets");
        harness.until(|status| status.reason == "Degraded").await;
        assert_absent(&harness, WIDGETS, before).await;
        assert_eq!(harness.server.watches(PARTS), 1, "the required type is watched on");
    }

    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_optional_type_that_may_not_be_listed_does_not_look_empty() {
    let harness = Harness::new();
    harness.install("Part");
    harness.install("Widget");
    harness.server.apply(object("Part", "a", "a"));
    harness.server.apply(widget("a", "a"));
    harness.server.forbid("widgets.example.com");

    harness.add(parts_and_perhaps_widgets()).await;
    harness.state(ControllerState::Running).await;

    // `missing` means that there is no cache of widgets; `gone` would mean that no widget exists.
    assert_eq!(harness.log().await, ["ns/a missing"]);
    harness.server.allow("widgets.example.com");
    harness.until(|status| status.report.forbidden.is_empty()).await;
    assert_eq!(harness.log().await, ["ns/a a"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_optional_type_that_is_served_is_waited_for_at_the_start() {
    let harness = Harness::new();
    harness.install("Part");
    harness.install("Widget");
    harness.server.apply(object("Part", "a", "a"));
    harness.server.apply(widget("a", "a"));
    harness.server.take_time_to_list("widgets");

    harness.add(parts_and_perhaps_widgets()).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_an_optional_type_that_appears_are_reconciled_after_its_whole_list() {
    let harness = Harness::new();
    harness.install("Part");
    harness.add(parts_and_perhaps_widgets()).await;
    harness.state(ControllerState::Running).await;
    harness.install("Widget");
    // More objects than are delivered in one poll.
    for number in 0..1000 {
        harness.server.apply(widget(&format!("{number}"), "a"));
    }

    let log = harness.log().await;

    assert_eq!(log.len(), 1000);
    assert_eq!(log.iter().find(|note| note.ends_with("missing")), None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn changes_that_are_pending_when_an_optional_type_goes_are_delivered_once() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    for (name, owner) in [("first", "one"), ("deleted", "two"), ("moved", "three")] {
        harness.server.apply(part(name, owner));
    }
    run_until_idle().await;
    let identity = harness.cluster.types.served(&parts()).unwrap().identity.clone();
    let informers = harness.cluster.informers.clone();
    let (seen, ends) = (Log::default(), Arc::new(AtomicBool::new(false)));
    let (noted, ending) = (Arc::clone(&seen), Arc::clone(&ends));
    let handler = Handler::delta(move |delta, _| {
        let owner = |object: Option<&Object>| {
            object.and_then(Object::controller).map(|owner| owner.name.to_string())
        };
        let (old, new) = (owner(delta.old.as_ref()), owner(delta.new.as_ref()));
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        noted.lock().unwrap().push(format!("{} {old}>{new}", delta.key.name));
        if ending.swap(false, Ordering::SeqCst) {
            // The informer has received the later changes, and the source has not.
            informers.type_gone(&identity);
        }
    });
    let described = builder().for_type(widgets()).conditional();
    harness.add(described.watches_type(parts(), handler).optional()).await;
    harness.state(ControllerState::Running).await;
    run_until_idle().await;
    seen.lock().unwrap().clear();

    ends.store(true, Ordering::SeqCst);
    harness.server.apply(part("first", "one"));
    harness.server.delete("Part", "deleted");
    harness.server.apply(part("moved", "four"));
    run_until_idle().await;

    let pending = ["first one>one", "deleted two>", "moved three>four"];
    let deletions = ["first one>", "moved four>"];
    assert_eq!(*seen.lock().unwrap(), [&pending[..], &deletions[..]].concat());
    harness.shutdown().await;
}
