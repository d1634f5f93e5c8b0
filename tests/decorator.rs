//! Declared decorators: labels, annotations, status and attachments of existing objects.

mod attachments;
mod harness;
#[cfg(feature = "cli")]
mod requests;
#[cfg(feature = "cli")]
mod types;

use std::time::Duration;

use pilotlight::{
    meta::HookKind,
    testing::{Action, Reply, Rule, Verb},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use self::harness::{DecoratorHarness, config_map, decorating, hook, object, thing};

const DECORATOR: &str = "metacontroller.k8s.io/decorator-controller";
const FINALIZER: &str = "metacontroller.io/decoratorcontroller-a";

/// Answer with no attachments.
fn nothing(_: HookKind, _: &Value) -> Value {
    json!({})
}

/// Answer with one ConfigMap of the object's name.
fn one_attachment(_: HookKind, request: &Value) -> Value {
    let name = request["object"]["metadata"]["name"].as_str().unwrap();
    json!({"attachments": [config_map(name, "1")]})
}

/// Decorator with a finalize hook, of things with the annotation `on: yes`.
fn finalizing_selected() -> Value {
    let mut spec = decorating();
    spec["hooks"]["finalize"] = hook();
    spec["resources"][0]["annotationSelector"] = json!({"matchAnnotations": {"on": "yes"}});
    spec
}

#[tokio::test(start_paused = true)]
async fn labels_and_annotations_that_the_hook_names_are_set_and_deleted() {
    let harness = DecoratorHarness::running(decorating(), |_, _| {
        json!({
            "labels": {"new": "1", "old": null, "gone": null},
            "annotations": {"changed": "2", "old": null},
        })
    })
    .await;
    let metadata = json!({
        "labels": {"kept": "1", "old": "1"}, "annotations": {"kept": "any text", "changed": "1", "old": ""},
    });

    harness.server.apply(thing("t", metadata)).unwrap();
    harness.settle().await;

    let metadata = harness.thing("t").unwrap()["metadata"].clone();
    assert_eq!(metadata["labels"], json!({"kept": "1", "new": "1"}));
    assert_eq!(metadata["annotations"], json!({"kept": "any text", "changed": "2"}));
    assert_eq!(harness.writes(), [(Verb::Patch, "things".to_owned(), "t".to_owned())]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_left_replaced_or_emptied_as_the_hook_says() {
    let harness = DecoratorHarness::running(decorating(), nothing).await;
    let status = |answer: Value| {
        harness.answers(move |_, _| answer.clone());
        // An edit of another client, which has the server store a new version.
        let touched = thing("t", json!({"annotations": {"touched": rand_text()}}));
        harness.server.merge(&touched).unwrap();
        async {
            harness.settle().await;
            harness.thing("t").unwrap()["status"].clone()
        }
    };
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    harness.writes();

    assert_eq!(status(json!({})).await, Value::Null);
    assert_eq!(status(json!({"status": null})).await, Value::Null);
    assert_eq!(harness.writes(), [], "nothing is to be written");
    assert_eq!(status(json!({"status": {}})).await, json!({}), "it differs from no status");
    assert_eq!(
        status(json!({"status": {"a": {"b": 1}, "c": 2}})).await,
        json!({"a": {"b": 1}, "c": 2})
    );
    assert_eq!(status(json!({"status": {"a": {"d": 3}}})).await, json!({"a": {"d": 3}}));
    assert_eq!(status(json!({})).await, json!({"a": {"d": 3}}), "it is left alone");
    let written = harness.writes();
    let all_status = written
        .iter()
        .all(|(verb, resource, _)| (*verb, resource.as_str()) == (Verb::Update, "things/status"));
    assert!(all_status && written.len() == 3, "{written:?}");
    assert_eq!(status(json!({"status": {}})).await, json!({}));
    harness.end().await;
}

/// Text that no earlier call returned.
fn rand_text() -> String {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

#[tokio::test(start_paused = true)]
async fn object_is_decorated_by_at_most_two_writes() {
    let mut spec = decorating();
    let plains = json!({"apiVersion": "example.com/v1", "resource": "plains"});
    spec["resources"].as_array_mut().unwrap().push(plains);
    let harness = DecoratorHarness::running(spec, |kind, request| {
        let mut answer =
            json!({"labels": {"a": "1"}, "annotations": {"b": "2"}, "status": {"c": 3}});
        if request["object"]["kind"] == "Thing" {
            answer["attachments"] = one_attachment(kind, request)["attachments"].take();
        }
        answer
    })
    .await;

    harness.server.apply(thing("t", json!({"labels": {"kept": "1"}}))).unwrap();
    harness.settle().await;
    let written = harness.writes();
    let written: Vec<_> =
        written.iter().map(|(verb, resource, _)| (*verb, resource.as_str())).collect();
    assert_eq!(
        written,
        [(Verb::Update, "things/status"), (Verb::Patch, "things"), (Verb::Create, "configmaps"),],
        "the attachment is last"
    );
    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["labels"], json!({"a": "1", "kept": "1"}));
    assert_eq!(found["metadata"]["annotations"], json!({"b": "2"}));
    assert_eq!(found["status"], json!({"c": 3}), "without an observedGeneration");

    harness.server.apply(object("Plain", "p", json!({"labels": {"kept": "1"}}))).unwrap();
    harness.settle().await;
    let written = [(Verb::Update, "plains".to_owned(), "p".to_owned())];
    assert_eq!(harness.writes(), written, "the type has no /status");
    let found = harness.server.get("example.com/v1", "Plain", "default", "p").unwrap();
    assert_eq!(found["metadata"]["labels"], json!({"a": "1", "kept": "1"}));
    assert_eq!(found["metadata"]["annotations"], json!({"b": "2"}));
    assert_eq!(found["status"], json!({"c": 3}));
    harness.is_at_rest().await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_is_decorated_if_its_annotations_are_selected() {
    let mut spec = decorating();
    spec["resources"][0]["labelSelector"] = json!({"matchLabels": {"app": "x"}});
    spec["resources"][0]["annotationSelector"] = json!({
        "matchAnnotations": {"on": "any text"},
        "matchExpressions": [{"key": "off", "operator": "DoesNotExist"}],
    });
    let harness = DecoratorHarness::running(spec, one_attachment).await;
    let (app, on) = (json!({"app": "x"}), json!({"on": "any text"}));
    for (name, metadata) in [
        ("both", json!({"labels": app, "annotations": on})),
        ("label", json!({"labels": app})),
        ("annotation", json!({"annotations": on})),
        ("off", json!({"labels": app, "annotations": {"on": "any text", "off": ""}})),
    ] {
        harness.server.apply(thing(name, metadata)).unwrap();
    }
    harness.settle().await;
    let decorated =
        || ["both", "label", "annotation", "off"].map(|name| harness.config_map(name).is_some());
    assert_eq!(decorated(), [true, false, false, false]);

    harness.server.merge(&thing("label", json!({"annotations": on}))).unwrap();
    harness.server.merge(&thing("off", json!({"annotations": {"off": null}}))).unwrap();
    harness.settle().await;
    assert_eq!(decorated(), [true, true, false, true]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_two_rules_select_is_synced_once_in_the_version_of_the_first() {
    let mut spec = decorating();
    let selecting = |version: &str, label: &str| {
        json!({
            "apiVersion": format!("example.com/{version}"), "resource": "things",
            "labelSelector": {"matchLabels": {label: "1"}},
        })
    };
    spec["resources"] = json!([selecting("v2", "one"), selecting("v1", "other")]);
    let harness = DecoratorHarness::running(spec, nothing).await;

    for (name, labels) in [
        ("both", json!({"one": "1", "other": "1"})),
        ("one", json!({"one": "1"})),
        ("other", json!({"other": "1"})),
        ("none", json!({})),
    ] {
        harness.server.apply(thing(name, json!({ "labels": labels }))).unwrap();
    }
    harness.settle().await;

    let calls = harness.calls();
    let mut about: Vec<_> = calls.iter().map(|call| call.about().1).collect();
    about.sort_unstable();
    assert_eq!(about, ["both", "one", "other"]);
    assert!(calls.iter().all(|call| call.request["object"]["apiVersion"] == "example.com/v2"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn decorated_object_is_finalized_before_it_is_deleted() {
    let mut spec = decorating();
    spec["hooks"]["finalize"] = hook();
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Sync | HookKind::Customize => one_attachment(kind, request),
        HookKind::Finalize => {
            let left = request["attachments"]["ConfigMap.v1"].as_object().unwrap().len();
            json!({"labels": {"left": left.to_string()}, "attachments": [], "finalized": left == 0})
        }
    })
    .await;
    harness.server.apply(thing("t", json!({"finalizers": ["example.com/other"]}))).unwrap();
    harness.settle().await;
    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["finalizers"], json!(["example.com/other", FINALIZER]));
    assert!(harness.config_map("t").is_some());
    let first = &harness.calls()[0].request;
    assert_eq!(
        first["object"]["metadata"]["finalizers"], found["metadata"]["finalizers"],
        "before any call"
    );
    assert_eq!(first["finalizing"], false);
    harness.forget_calls();

    harness.server.remove("example.com/v1", "Thing", "default", "t").unwrap();
    harness.settle().await;

    assert_eq!(harness.config_map("t"), None);
    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["finalizers"], json!(["example.com/other"]));
    assert_eq!(found["metadata"]["labels"], json!({"left": "0"}), "the last answer decorates, too");
    let calls = harness.calls();
    let finalizing = calls.iter().filter(|call| call.kind == HookKind::Finalize);
    assert!(finalizing.clone().count() >= 2, "{calls:#?}");
    assert!(finalizing.clone().all(|call| call.request["finalizing"] == true));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn attachments_are_deleted_also_if_the_first_finalize_response_frees_the_object() {
    let mut spec = decorating();
    spec["hooks"]["finalize"] = hook();
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Sync | HookKind::Customize => one_attachment(kind, request),
        HookKind::Finalize => json!({"attachments": [], "finalized": true}),
    })
    .await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    assert!(harness.config_map("t").is_some());
    harness.writes();

    harness.server.remove("example.com/v1", "Thing", "default", "t").unwrap();
    harness.settle().await;

    assert_eq!(harness.thing("t"), None);
    assert_eq!(
        harness.writes(),
        [
            (Verb::Patch, "things".to_owned(), "t".to_owned()),
            (Verb::Delete, "configmaps".to_owned(), "t".to_owned()),
        ]
    );
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_no_longer_selected_is_finalized_and_stays() {
    let spec = finalizing_selected();
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Sync | HookKind::Customize => {
            let mut answer = one_attachment(kind, request);
            answer["labels"] = json!({"decorated": "yes"});
            answer
        }
        HookKind::Finalize => json!({"labels": {"decorated": null}, "finalized": true}),
    })
    .await;
    harness.server.apply(thing("t", json!({"annotations": {"on": "yes"}}))).unwrap();
    harness.settle().await;
    assert_eq!(harness.thing("t").unwrap()["metadata"]["labels"], json!({"decorated": "yes"}));

    harness.server.merge(&thing("t", json!({"annotations": {"on": "no"}}))).unwrap();
    harness.settle().await;

    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["finalizers"], Value::Null);
    assert!(found["metadata"]["labels"].get("decorated").is_none(), "{found}");
    assert_eq!(harness.config_map("t"), None, "the finalize hook wants no attachments");
    harness.forget_calls();
    harness.server.merge(&thing("t", json!({"annotations": {"on": "never"}}))).unwrap();
    harness.settle().await;
    assert!(harness.calls().is_empty(), "it is of no concern");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_no_longer_selected_keeps_its_finalizer_until_its_attachments_are_deleted() {
    let spec = finalizing_selected();
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Sync | HookKind::Customize => one_attachment(kind, request),
        HookKind::Finalize => {
            json!({"labels": {"freed": "yes"}, "status": {"freed": true}, "finalized": true})
        }
    })
    .await;
    harness.server.apply(thing("t", json!({"annotations": {"on": "yes"}}))).unwrap();
    harness.settle().await;
    let refused = Action::Reply(Reply::status(403, "Forbidden", "not now"));
    let refused = Rule::new(refused).verb(Verb::Delete).resource("", "configmaps");
    let rule = harness.faults.add(refused);

    harness.server.merge(&thing("t", json!({"annotations": {"on": "no"}}))).unwrap();
    sleep(Duration::from_secs(60)).await;

    assert!(harness.faults.hits(rule) > 1, "the deletion is retried");
    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(
        (&found["metadata"]["labels"]["freed"], &found["status"]["freed"]),
        (&json!("yes"), &json!(true))
    );
    harness.faults.remove(rule);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.config_map("t"), None);
    assert_eq!(harness.thing("t").unwrap()["metadata"]["finalizers"], Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalizer_that_admission_adds_to_the_last_write_of_a_decorated_object_is_kept() {
    let spec = finalizing_selected();
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Sync | HookKind::Customize => one_attachment(kind, request),
        HookKind::Finalize => json!({"labels": {"freed": "yes"}, "finalized": true}),
    })
    .await;
    harness.server.apply(thing("t", json!({"annotations": {"on": "yes"}}))).unwrap();
    harness.settle().await;
    let admission = Action::edit(|stored| {
        let finalizers = stored["metadata"]["finalizers"].as_array_mut();
        if let Some(finalizers) = finalizers
            && !finalizers.contains(&json!("example.com/other"))
        {
            finalizers.push(json!("example.com/other"));
        }
    });
    harness.faults.add(Rule::new(admission).verb(Verb::Patch).resource("example.com", "things"));

    harness.server.merge(&thing("t", json!({"annotations": {"on": "no"}}))).unwrap();
    sleep(Duration::from_secs(60)).await;

    let found = harness.thing("t").unwrap();
    assert_eq!(found["metadata"]["labels"]["freed"], "yes");
    assert_eq!(found["metadata"]["finalizers"], json!(["example.com/other"]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn customize_hook_of_a_decorator_relates_objects() {
    let mut spec = decorating();
    spec["hooks"]["customize"] = hook();
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Customize => {
            let name = &request["parent"]["metadata"]["name"];
            let rule = json!({"apiVersion": "v1", "resource": "secrets", "names": [name]});
            json!({"relatedResources": [rule]})
        }
        HookKind::Sync | HookKind::Finalize => {
            let secret = &request["related"]["Secret.v1"]["t"]["data"]["key"];
            json!({"annotations": {"seen": secret}})
        }
    })
    .await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    let calls = harness.calls();
    let fields: Vec<_> = calls[0].request.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        (calls[0].kind, &fields[..]),
        (HookKind::Customize, &["controller".to_owned(), "parent".to_owned()][..])
    );
    assert_eq!(calls.last().unwrap().request["related"], json!({"Secret.v1": {}}));

    let secret = |data: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "t", "namespace": "default"}, "data": {"key": data},
        })
    };
    for data in ["YQ==", "Yg=="] {
        harness.server.apply(secret(data)).unwrap();
        harness.settle().await;
        assert_eq!(harness.thing("t").unwrap()["metadata"]["annotations"]["seen"], data);
    }
    let calls = harness.calls().iter().filter(|call| call.kind == HookKind::Customize).count();
    assert!(calls <= 3, "called again only as the annotations change: {calls}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn resyncs_pass_where_changes_of_the_status_are_ignored() {
    let mut spec = decorating();
    spec["resources"][0]["ignoreStatusChanges"] = json!(true);
    spec["resyncPeriodSeconds"] = json!(600);
    let harness = DecoratorHarness::running(spec, nothing).await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    harness.forget_calls();

    let mut with_status = harness.thing("t").unwrap();
    for phase in ["one", "two", "three"] {
        with_status["status"] = json!({"phase": phase});
        harness.server.apply(with_status.clone()).unwrap();
        harness.settle().await;
    }
    assert!(harness.calls().is_empty(), "{:#?}", harness.calls());
    assert_eq!(harness.thing("t").unwrap()["status"]["phase"], "three", "the status did change");

    sleep(Duration::from_secs(1200)).await;
    assert_eq!(harness.calls().len(), 2, "one in each period");
    harness.server.merge(&thing("t", json!({"labels": {"a": "1"}}))).unwrap();
    harness.settle().await;
    assert_eq!(harness.calls().len(), 3, "a label counts");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn conflict_of_the_parents_write_skips_no_attachment() {
    for (verb, subresource) in [(Verb::Patch, ""), (Verb::Update, "status")] {
        let harness = DecoratorHarness::running(decorating(), |kind, request| {
            let mut answer = one_attachment(kind, request);
            answer["labels"] = json!({"a": "1"});
            answer["status"] = json!({"b": 2});
            answer
        })
        .await;
        let conflict = Action::Reply(Reply::status(409, "Conflict", "it was changed"));
        let rule = Rule::new(conflict).verb(verb).resource("example.com", "things");
        let id = harness.faults.add(rule.subresource(subresource));

        harness.server.apply(thing("t", json!({}))).unwrap();
        let attached = harness.server.wait_until(|_| harness.config_map("t").is_some());
        tokio::time::timeout(Duration::from_secs(1), attached)
            .await
            .expect("the same pass attaches");
        assert!(harness.faults.hits(id) >= 1);
        harness.faults.remove(id);
        harness.settle().await;

        let found = harness.thing("t").unwrap();
        assert_eq!(found["metadata"]["labels"], json!({"a": "1"}), "{verb:?}");
        assert_eq!(found["status"], json!({"b": 2}), "{verb:?}");
        let events = harness.server.list("v1", "Event").unwrap_or_default();
        let warnings = events.iter().filter(|event| event["type"] == "Warning").count();
        assert_eq!(warnings, 0, "a conflict is another client's success: {events:#?}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn decorated_object_that_is_as_desired_costs_no_request() {
    let mut spec = decorating();
    spec["hooks"]["finalize"] = hook();
    spec["hooks"]["customize"] = hook();
    spec["resyncPeriodSeconds"] = json!(60);
    let harness = DecoratorHarness::running(spec, |kind, request| match kind {
        HookKind::Customize => {
            json!({"relatedResources": [{"apiVersion": "v1", "resource": "secrets", "names": ["s"]}]})
        }
        HookKind::Sync | HookKind::Finalize => {
            let mut answer = one_attachment(kind, request);
            answer["labels"] = json!({"a": "1", "no": null});
            answer["annotations"] = json!({"b": "2"});
            answer["status"] = json!({"c": {"d": [1.0, null]}});
            answer
        }
    })
    .await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    harness.forget_calls();

    harness.is_at_rest().await;

    let resyncs = harness.calls().iter().filter(|call| call.kind == HookKind::Sync).count();
    assert!(resyncs >= 59, "the hook is called: {resyncs}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn hook_whose_labels_always_differ_is_limited_and_reported() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let harness = DecoratorHarness::running(decorating(), move |kind, request| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut answer = one_attachment(kind, request);
        answer["labels"] = json!({"number": number.to_string()});
        answer
    })
    .await;
    harness.server.apply(thing("t", json!({}))).unwrap();
    harness.settle().await;
    harness.writes();

    sleep(Duration::from_secs(1200)).await;

    let written = harness.writes().len();
    assert!(written < 1700, "{written} writes in twenty minutes");
    assert!(harness.config_map("t").is_some(), "the attachments do not depend on it");
    let events = harness.server.list("v1", "Event").unwrap();
    let flapping: Vec<_> = events.iter().filter(|event| event["reason"] == "Flapping").collect();
    assert_eq!(flapping.len(), 1, "{events:#?}");
    assert_eq!(flapping[0]["involvedObject"]["name"], "t");
    harness.end().await;
}
