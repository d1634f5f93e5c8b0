//! Conditions of the library: permissions, states of objects, and conditions of inputs.

use tokio::sync::watch;

use super::*;
use crate::{
    manager::{
        Condition, Conditional, ConditionalRunnable, Readiness, Unmet, Verdict, all_of, always, not,
    },
    testing::{Action, Reply, Rule},
};

async fn add_condition(harness: &Harness, condition: impl ConditionalRunnable) {
    let options = RunnableOptions::default();
    harness.manager.add("condition", Arc::new(condition), options).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_its_permission_and_another_one_lives_on() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let permission = Permission::new(&harness.cluster, "create", "example.com", "parts");
    add_condition(&harness, permission.clone()).await;
    harness.add(builder().for_type(widgets()).when(permission)).await;
    let plain = Controller::builder("plain").for_type(widgets());
    let plain = Arc::new(harness.build(plain));
    harness.manager.add("plain", plain, RunnableOptions::default()).await.unwrap();

    for round in 1..=2 {
        assert_eq!(harness.state(ControllerState::Running).await.epoch, round);
        harness.server.forbid("parts.example.com");
        let waiting = harness.until(|status| status.reason == "Forbidden").await;
        assert_eq!(waiting.state, ControllerState::Waiting);
        assert!(waiting.message.contains("not allowed to create parts"), "{}", waiting.message);
        harness.server.allow("parts.example.com");
    }

    harness.state(ControllerState::Running).await;
    let plain = harness.manager.status_of("plain").unwrap();
    assert_eq!((plain.state, plain.epoch), (ControllerState::Running, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn permission_is_asked_for_again_after_a_refused_write() {
    for place in ["the builder", "a combination", "the outside", "two layers outside"] {
        let harness = Harness::new();
        harness.install("Widget");
        let day = Duration::from_secs(24 * 3600);
        let permission = Permission::new(&harness.cluster, "create", "", "configmaps");
        let permission = permission.interval(day);
        add_condition(&harness, permission.clone()).await;
        let refuse = |_: Request, _: Context| async {
            let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
            Err(kube::Error::Api(status.boxed()).into())
        };
        let described = builder().for_type(widgets());
        let (added, combined) = (permission.clone(), permission.clone());
        let described = match place {
            "the builder" => described.when(permission),
            "a combination" => {
                described.when(move || all_of([always(), not(not(combined.watch()))]))
            }
            _ => described,
        };
        let controller = Arc::new(described.build(&harness.cluster, refuse).unwrap());
        let controller: Arc<dyn ConditionalRunnable> = match place {
            "the outside" => Arc::new(Conditional::also(controller, added)),
            "two layers outside" => {
                let inner = Arc::new(Conditional::also(controller, added));
                Arc::new(Conditional::also(inner, always))
            }
            _ => controller,
        };
        harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;
        let begin = Instant::now();

        harness.server.forbid("configmaps");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(harness.status().state, ControllerState::Running, "nothing was refused yet");
        harness.server.apply(widget("a", "a"));
        harness.state(ControllerState::Waiting).await;

        assert!(begin.elapsed() < Duration::from_secs(3700), "{place}: {:?}", begin.elapsed());
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_review_is_repeated_every_five_seconds_whatever_the_interval() {
    let harness = Harness::new();
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let broken = Reply::status(500, "InternalError", "broken");
    harness.server.fault(Rule::new(Action::Reply(broken)).path_contains(path));
    let permission = Permission::new(&harness.cluster, "create", "", "configmaps");
    let first = harness.server.creations();

    add_condition(&harness, permission.interval(Duration::ZERO)).await;
    sleep(Duration::from_secs(58)).await;

    assert_eq!(harness.server.creations() - first, 12);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_the_state_of_an_object_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    let on = |part: &crate::informer::Object| part.header().labels.get("mark") == Some("on");
    let key = crate::informer::ObjectKey::namespaced("ns", "switch");
    let switch = ObjectCondition::new(&harness.cluster, parts(), key, on);
    add_condition(&harness, switch.clone()).await;
    harness.add(builder().for_type(widgets()).when(switch)).await;
    harness.until(|status| status.reason == "TypeAbsent").await;

    for round in 1..=2 {
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
    }

    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn state_of_an_object_is_known_again_after_a_refusal_that_has_passed() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(object("Part", "switch", "on"));
    let key = crate::informer::ObjectKey::namespaced("ns", "switch");
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
async fn controller_lives_with_a_label_of_the_crd() {
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
    let label = |value: &str| json!({"metadata": {"labels": {"tier": value}}});
    let patch = |value: &str| kube::api::Patch::Merge(label(value));
    let options = kube::api::PatchParams::default();
    api.patch(name, &options, &patch("gold")).await.unwrap();
    harness.state(ControllerState::Running).await;
    api.patch(name, &options, &patch("tin")).await.unwrap();
    harness.until(|status| status.reason == "ObjectStateUnmet").await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn conditions_of_inputs_hold_the_controller_or_one_optional_input() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(part("one", "a"));
    let off = || {
        let message = "switched off".to_owned();
        Verdict::Unmet(vec![Unmet { reason: "Off".into(), message, type_ref: None }])
    };
    let (required, optional) = (watch::Sender::new(off()), watch::Sender::new(off()));
    let (one, other) = (required.subscribe(), optional.subscribe());
    harness
        .add(
            builder()
                .for_type(widgets())
                .conditional()
                .input_when(move || Readiness::published(one.clone()))
                .owns_type(parts())
                .optional()
                .input_when(move || Readiness::published(other.clone())),
        )
        .await;
    harness.until(|status| status.reason == "Off").await;
    assert_eq!(harness.server.asked(WIDGETS), 0);

    required.send_replace(Verdict::Met(Vec::new()));
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);
    assert_eq!(harness.server.asked(PARTS), 0, "its own condition is not met");
    optional.send_replace(Verdict::Met(Vec::new()));
    assert_eq!(harness.log().await, ["ns/a a"], "the owner of the part");
    assert!(harness.server.asked(PARTS) > 0);
    optional.send_replace(off());
    run_until_idle().await;
    harness.server.apply(part("two", "a"));
    assert_eq!(harness.status().epoch, 1, "the controller runs on");

    required.send_replace(off());
    harness.until(|status| status.reason == "Off").await;
    harness.shutdown().await;
}
