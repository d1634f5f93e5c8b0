//! Reports about declared controllers: Events of a removal, and types that are served elsewhere.

use super::{finalize::events, responding_hook::pass, *};

#[tokio::test(start_paused = true)]
async fn removed_controller_has_the_events_stopping_and_stopped() {
    let harness = Harness::start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    pass().await;

    let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
    harness.server.remove(kind.0, kind.1, "", "a").unwrap();
    pass().await;

    assert_eq!(events(&harness, "Stopping"), ["a"]);
    assert_eq!(events(&harness, "Stopped"), ["a"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn absent_types_are_named_with_the_groups_that_serve_them() {
    let harness = Harness::start().await;
    harness
        .server
        .install(&CrdBuilder::new("net.example.com", "Ingress").plural("ingresses").build())
        .unwrap();
    let mut spec = good();
    spec["childResources"] = json!([
        {"apiVersion": "v1", "resource": "configmaps"},
        {"apiVersion": "extensions.example.com/v1beta1", "resource": "ingresses"},
        {"apiVersion": "extensions.example.com/v1beta1", "resource": "nothings"},
        {"apiVersion": "example.com/v1beta1", "resource": "things"},
    ]);

    harness.declare("a", spec);
    pass().await;

    let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
    let object = harness.server.get(kind.0, kind.1, "", "a").unwrap();
    let conditions = object["status"]["conditions"].as_array().unwrap();
    for type_ in ["Ready", "TypesReady"] {
        let condition = conditions.iter().find(|it| it["type"] == type_).unwrap();
        let message = condition["message"].as_str().unwrap();
        for part in [
            "ingresses.extensions.example.com/v1beta1 is not installed; it is served as \
             net.example.com/v1",
            "things.example.com/v1beta1 cannot be used yet: this version is not served; served \
             are v1",
            "nothings.extensions.example.com/v1beta1 is not installed",
        ] {
            assert!(message.contains(part), "{type_}: {part}: {message}");
        }
    }
    let waiting = harness.server.list("v1", "Event").unwrap();
    let text = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
    assert!(waiting.iter().map(text).any(|it| it.contains("net.example.com/v1")), "{waiting:#?}");
    harness.end().await;
}
