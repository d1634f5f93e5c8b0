//! Conditions on objects: the state of an object, an APIService, and a label of a CRD.

use super::{
    conditions::add_condition,
    types::{assert_absent, tasks},
    *,
};
use crate::{
    informer::{Object, ObjectKey},
    manager::Verdict,
    testing::{Action, Reply, Rule, Verb},
};

#[tokio::test(start_paused = true)]
async fn controller_lives_with_an_available_api_service_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    let name = "v1beta1.metrics.example.com";
    let metrics = ObjectCondition::api_service(&harness.cluster, name);
    add_condition(&harness, metrics.clone()).await;
    harness.add(builder().for_type(widgets()).when(metrics)).await;
    harness.until(|status| status.message.contains("does not exist")).await;

    harness.server.add_api_service(name);
    let waits = async || {
        let waiting = harness.until(|status| status.message.contains("required state")).await;
        assert!(waiting.message.contains(name), "{}", waiting.message);
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
    };
    waits().await;
    let before = tasks().await;
    assert_absent(&harness, WIDGETS, before).await;
    assert_eq!(harness.server.requests_of(WIDGETS), 0);
    for (epoch, mark) in [(1, "first"), (2, "second")] {
        harness.server.set_available(name, true);
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
        // The widget of the first round.
        drop(harness.log().await);
        harness.server.apply(widget("a", mark));
        assert_eq!(harness.log().await, [format!("ns/a {mark}")]);
        assert_eq!(harness.server.watches(WIDGETS), 1);
        harness.server.set_available(name, false);
        waits().await;
        assert_absent(&harness, WIDGETS, before).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_the_state_of_an_object_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    let on = |part: &Object| part.header().labels.get("mark") == Some("on");
    let key = ObjectKey::namespaced("ns", "switch");
    let switch = ObjectCondition::new(&harness.cluster, parts(), key, on);
    add_condition(&harness, switch.clone()).await;
    harness.add(builder().for_type(widgets()).when(switch)).await;
    harness.until(|status| status.reason == "TypeAbsent").await;
    let before = tasks().await;

    for round in 1..=2 {
        let condition = harness.manager.status_of("condition").unwrap();
        assert_eq!((condition.failures, condition.state), (0, ControllerState::Waiting));
        harness.install("Part");
        let missing = harness.until(|status| status.reason == "ObjectStateUnmet").await;
        assert!(missing.message.contains("ns/switch"), "{}", missing.message);
        harness.server.apply(object("Part", "other", "on"));
        harness.server.apply(object("Part", "switch", "off"));
        run_until_idle().await;
        assert_eq!(harness.status().state, ControllerState::Waiting);
        harness.server.apply(object("Part", "switch", "on"));
        assert_eq!(harness.state(ControllerState::Running).await.epoch, 2 * round - 1);
        harness.server.delete("Part", "switch");
        harness.until(|status| status.reason == "ObjectStateUnmet").await;
        harness.server.apply(object("Part", "switch", "on"));
        assert_eq!(harness.state(ControllerState::Running).await.epoch, 2 * round);
        harness.server.uninstall("parts");
        harness.until(|status| status.reason == "TypeAbsent").await;
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        assert_absent(&harness, PARTS, before).await;
        assert_absent(&harness, WIDGETS, before).await;
    }

    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn state_of_an_object_is_known_again_after_a_refusal_that_has_passed() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(object("Part", "switch", "on"));
    let key = ObjectKey::namespaced("ns", "switch");
    let switch = ObjectCondition::new(&harness.cluster, parts(), key, |_| true);
    add_condition(&harness, switch.clone()).await;
    harness.add(builder().for_type(widgets()).when(switch.clone())).await;
    harness.state(ControllerState::Running).await;

    harness.server.forbid("parts.example.com");
    harness.server.cut_watches("parts");
    run_until_idle().await;
    let unknown = |verdict: &Verdict| matches!(verdict, Verdict::Unknown(_));
    assert!(unknown(&switch.verdict()), "{:?}", switch.verdict());
    assert_eq!(harness.status().state, ControllerState::Running, "no proof that it has changed");
    harness.server.allow("parts.example.com");
    sleep(Duration::from_secs(300)).await;

    assert_eq!(switch.verdict(), Verdict::Met(Vec::new()), "no change of the object is needed");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_a_label_of_the_crd_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let name = "parts.example.com";
    let labelled = ObjectCondition::crd_label(&harness.cluster, name, "tier", "gold");
    add_condition(&harness, labelled.clone()).await;
    harness.add(builder().for_type(widgets()).when(labelled)).await;
    harness.until(|status| status.reason == "ObjectStateUnmet").await;

    let api = kube::Api::<kube::core::DynamicObject>::all_with(
        harness.server.client(),
        &kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    let before = tasks().await;
    let label = |value: &str| json!({"metadata": {"labels": {"tier": value}}});
    let patch = |value: &str| kube::api::Patch::Merge(label(value));
    let options = kube::api::PatchParams::default();
    for epoch in 1..=2 {
        api.patch(name, &options, &patch("gold")).await.unwrap();
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
        // The widget of the first round.
        drop(harness.log().await);
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a a"]);
        api.patch(name, &options, &patch("tin")).await.unwrap();
        harness.until(|status| status.reason == "ObjectStateUnmet").await;
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        assert_absent(&harness, WIDGETS, before).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_listed_is_named_with_the_error() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let key = ObjectKey::namespaced("ns", "switch");
    let switch = ObjectCondition::new(&harness.cluster, parts(), key, |_| true);
    harness.add(builder().for_type(widgets()).when(switch.clone())).await;
    let waiting = harness.until(|status| status.message.contains("was not read yet")).await;
    assert!(waiting.message.contains("call ObjectCondition::add_to"), "{}", waiting.message);
    let fails = Action::Instead(Reply::status(500, "InternalError", "no quorum"));
    let fails = Rule::new(fails).resource("example.com", "parts").verb(Verb::List);
    let fails = harness.server.fault(fails);

    add_condition(&harness, switch.clone()).await;
    let waiting = harness.until(|status| status.message.contains("no quorum")).await;
    assert!(waiting.message.contains("ns/switch of parts"), "{}", waiting.message);
    assert!(waiting.message.contains("cannot be read: "), "{}", waiting.message);

    harness.server.remove(fails);
    harness.until(|status| status.reason == "ObjectStateUnmet").await;
    harness.server.apply(object("Part", "switch", "on"));
    harness.state(ControllerState::Running).await;
    // A verdict of this run holds while the watch is down.
    let fails = Action::Instead(Reply::status(500, "InternalError", "no quorum"));
    harness.server.fault(Rule::new(fails).resource("example.com", "parts"));
    harness.server.cut_watches("parts");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(switch.verdict(), Verdict::Met(Vec::new()));
    harness.shutdown().await;
}
