//! Types of decorated objects and of attachments that come and go.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use pilotlight::{
    manager::{ControllerState, DoneReason},
    meta::{
        SUPERVISOR,
        api::{ControllerStatus, DecoratorController},
    },
    testing::{CrdBuilder, RequestInfo, Verb},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use crate::support::{Answer, PATIENCE, Supervised, about, condition, until};

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

/// Type of the decorator whose CRD comes and goes.
#[derive(Clone, Copy)]
enum Removed {
    Decorated,
    Attached,
}

/// Answer with one Gadget of the object's name and size.
fn one_gadget(request: &Value, gadgets: &CrdBuilder) -> Answer {
    let object = &request["object"];
    let gadget = json!({
        "apiVersion": gadgets.api_resource("v1").api_version, "kind": "Gadget",
        "metadata": {"name": object["metadata"]["name"]}, "spec": {"size": object["spec"]["size"]},
    });
    Answer::Json(json!({"attachments": [gadget]}))
}

/// Waits until the attachment of that name has that size.
async fn attached(supervised: &Supervised<'_>, gadgets: &CrdBuilder, name: &str, size: i64) {
    let api = supervised.harness.scope.api(gadgets, "v1");
    until(&format!("attachment {name} of size {size}"), async || {
        let found = api.get(name).await.map_err(|error| error.to_string())?;
        match found.data["spec"]["size"] == size {
            true => Ok(()),
            false => Err(format!("{found:#?}")),
        }
    })
    .await;
}

/// Waits until the status of the decorator `a` names the missing type after this many epochs.
async fn waits_for(supervised: &Supervised<'_>, crd: &CrdBuilder, epochs: i64) {
    let resource = ApiResource::erase::<DecoratorController>(&());
    let api = Api::<DynamicObject>::all_with(supervised.harness.scope.client(), &resource);
    let (name, plural) = (supervised.name("a"), crd.api_resource("v1").plural);
    until(&format!("{name} waits for {plural}"), async || {
        let object = api.get(&name).await.map_err(|error| error.to_string())?;
        let status = serde_json::from_value(object.data["status"].clone());
        let status: ControllerStatus = status.unwrap_or_default();
        let message = condition(&status, "Ready").message;
        let waits = status.state.as_deref() == Some("Waiting")
            && status.reason.as_deref() == Some("TypeAbsent")
            && status.epoch.unwrap_or_default() == epochs;
        match waits && message.contains(&plural) && message.contains("is not installed") {
            true => Ok(()),
            false => Err(format!("{status:#?}")),
        }
    })
    .await;
}

/// Installs and removes one of the two types of a decorator twice. Each removal ends the epoch, and
/// nothing about the type is left or sent until it returns.
async fn lives_and_dies_with(test: &str, removed: Removed) {
    let supervised = Supervised::decorating(test).await;
    let harness = &supervised.harness;
    let (widgets, gadgets) = (harness.widgets(), CrdBuilder::new(&harness.scope.group, "Gadget"));
    let (lost, kept) = match removed {
        Removed::Decorated => (&widgets, &gadgets),
        Removed::Attached => (&gadgets, &widgets),
    };
    let runnable = format!("DecoratorController-{}", supervised.name("a"));
    supervised.install(kept).await;
    let (decorated, attachments) = (widgets.api_resource("v1"), gadgets.api_resource("v1"));
    let spec = json!({
        "resources": [{"apiVersion": decorated.api_version, "resource": decorated.plural}],
        "attachments": [{
            "apiVersion": attachments.api_version, "resource": attachments.plural,
            "updateStrategy": {"method": "InPlace"},
        }],
        "hooks": {"sync": {"webhook": {"url": supervised.hook.url}}},
    });
    supervised.declare_decorator("a", spec).await;
    waits_for(&supervised, lost, 0).await;
    harness.running(SUPERVISOR, 1).await;
    harness.warm_up().await;
    // An Event opens the connection for writes, whose tasks must not count against the first stop.
    let tasks = harness.alive_tasks() + 2;
    let mut absence = harness.assert_absent(lost, tasks).await;

    for (epoch, round) in [(1, 1), (2, 2)] {
        absence.end(harness).await;
        // Objects of a removed type and their attachments may be left for the garbage collector, so
        // each round uses other names.
        let (name, held) = (format!("w{round}"), format!("held-{round}"));
        let (let_go, waits) = watch::channel(false);
        let (own, made) = (held.clone(), gadgets.clone());
        supervised.hook.answers(move |request| {
            let answer = one_gadget(request, &made);
            match request["object"]["metadata"]["name"] == own {
                true => Answer::Hold(waits.clone(), Box::new(answer)),
                false => answer,
            }
        });
        supervised.install(lost).await;
        harness.running(&runnable, epoch).await;
        harness.create(&widgets, &name, round).await;
        attached(&supervised, &gadgets, &name, round).await;
        supervised.resize(&widgets, &name, 10 * round).await;
        attached(&supervised, &gadgets, &name, 10 * round).await;
        harness.create(&widgets, &held, round).await;
        supervised.hook.called_again(&held, 0).await;

        harness.scope.delete_crd(lost).await.unwrap();

        assert_eq!(harness.done(&runnable, epoch).await, DoneReason::TypeGone);
        let calls = supervised.hook.calls().len();
        absence = harness.assert_absent(lost, tasks).await;
        let_go.send_replace(true);
        waits_for(&supervised, lost, round).await;
        let status = harness.status(&runnable);
        assert_eq!((status.state, status.epoch), (ControllerState::Waiting, epoch));
        timeout(PATIENCE, harness.scope.wait_gone(lost)).await.unwrap().unwrap();
        assert_eq!(supervised.hook.calls().len(), calls, "no hook is called after done");
        let is_attachment = about(&gadgets);
        let mut written = harness.faults.seen();
        written.retain(|info| is_attachment(info) && Verb::MUTATING.contains(&info.verb));
        assert!(written.is_empty(), "written after done: {written:#?}");
    }
    absence.end(harness).await;
    assert_eq!(harness.assert_orderly(&runnable), 2);
    supervised.end().await;
}

#[tokio::test]
async fn decorator_lives_and_dies_with_its_only_decorated_type() {
    lives_and_dies_with("decorator-parent", Removed::Decorated).await;
}

#[tokio::test]
async fn decorator_lives_and_dies_with_the_type_of_its_attachments() {
    lives_and_dies_with("decorator-attached", Removed::Attached).await;
}
