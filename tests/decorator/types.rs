//! Types of decorated objects that come and go.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use pilotlight::{
    manager::ControllerState,
    testing::{CrdBuilder, RequestInfo, Verb},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{Answer, Supervised};

/// ConfigMap of an object, named after its kind and name, with its size or its label `size`.
fn attachment(request: &Value) -> Value {
    let object = &request["object"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = format!("{}-{}", text(&object["kind"]), text(&object["metadata"]["name"]));
    let size = match object["spec"]["size"].as_number() {
        Some(size) => size.to_string(),
        None => text(&object["metadata"]["labels"]["size"]),
    };
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name.to_lowercase()}, "data": {"size": size},
    })
}

/// Specification of a decorator of these types and of the secrets of the test.
fn decorator_spec(supervised: &Supervised<'_>, crds: &[&CrdBuilder]) -> Value {
    let mut resources: Vec<_> = crds
        .iter()
        .map(|crd| {
            let resource = crd.api_resource("v1");
            json!({"apiVersion": resource.api_version, "resource": resource.plural})
        })
        .collect();
    let label = json!({"matchLabels": {"pilotlight.test/own": supervised.harness.scope.namespace}});
    resources.push(json!({"apiVersion": "v1", "resource": "secrets", "labelSelector": label}));
    json!({
        "resources": resources,
        "attachments": [{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"},
        }],
        "hooks": {"sync": {"webhook": {"url": supervised.hook.url}}},
    })
}

#[tokio::test]
async fn type_of_decorated_objects_comes_and_goes_while_others_are_decorated() {
    let supervised = Supervised::decorating("decorator-types").await;
    let harness = &supervised.harness;
    let (widgets, gadgets) = (harness.widgets(), CrdBuilder::new(&harness.scope.group, "Gadget"));
    let runnable = format!("DecoratorController-{}", supervised.name("a"));
    supervised.hook.answers(|request| Answer::Json(json!({"attachments": [attachment(request)]})));
    supervised.install(&gadgets).await;
    let spec = decorator_spec(&supervised, &[&widgets, &gadgets]);
    supervised.declare_decorator("a", spec).await;
    harness.running(&runnable, 1).await;
    let secrets = Api::<Secret>::namespaced(harness.scope.client(), &harness.scope.namespace);
    let labelled = |size: &str| {
        let own = ("pilotlight.test/own".to_owned(), harness.scope.namespace.clone());
        Some([own, ("size".to_owned(), size.to_owned())].into())
    };
    let metadata =
        ObjectMeta { name: Some("s".to_owned()), labels: labelled("0"), ..ObjectMeta::default() };
    let secret = Secret { metadata, ..Secret::default() };
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    harness.create(&gadgets, "g", 0).await;
    supervised.child("gadget-g", 0).await;
    supervised.child("secret-s", 0).await;
    harness.warm_up().await;
    let tasks = harness.alive_tasks() + 2;
    let mut absence = harness.assert_absent(&widgets, tasks).await;

    for round in 1..=2 {
        absence.end(harness).await;
        supervised.install(&widgets).await;
        let name = format!("w{round}");
        harness.create(&widgets, &name, round).await;
        supervised.child(&format!("widget-{name}"), round).await;
        supervised.resize(&gadgets, "g", 10 * round).await;
        supervised.child("gadget-g", 10 * round).await;

        let (let_go, waits) = watch::channel(false);
        supervised.hook.answers(move |request| {
            let answer = Answer::Json(json!({"attachments": [attachment(request)]}));
            match request["object"]["metadata"]["name"] == "held" {
                true => Answer::Hold(waits.clone(), Box::new(answer)),
                false => answer,
            }
        });
        let calls = supervised.hook.count("held");
        harness.create(&widgets, "held", 1).await;
        supervised.hook.called_again("held", calls).await;

        harness.remove_type(&widgets).await;
        absence = harness.assert_absent(&widgets, tasks).await;

        supervised.resize(&gadgets, "g", 10 * round + 1).await;
        supervised.child("gadget-g", 10 * round + 1).await;
        let metadata = json!({"metadata": {"labels": {"size": (10 * round + 1).to_string()}}});
        let change = Patch::Merge(metadata);
        secrets.patch("s", &PatchParams::default(), &change).await.unwrap();
        supervised.child("secret-s", 10 * round + 1).await;
        let_go.send_replace(true);
        supervised.resize(&gadgets, "g", 10 * round + 2).await;
        supervised.child("gadget-g", 10 * round + 2).await;
        let created =
            |info: &RequestInfo| info.verb == Verb::Create && info.resource == "configmaps";
        let created: Vec<_> = harness.faults.seen().into_iter().filter(created).collect();
        assert!(created.is_empty(), "attached to an object of a removed type: {created:#?}");
        let status = harness.status(&runnable);
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    }

    absence.end(harness).await;
    assert_eq!(harness.assert_orderly(&runnable), 0, "the epoch is still the first");
    supervised.end().await;
}
