//! Invalid input to a declared controller is reported and has no other effect.

use std::collections::BTreeMap;

use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use pilotlight::{
    manager::ControllerState,
    meta::{MetaOptions, ResponseLimits},
    testing::{CrdBuilder, Verb},
};
use serde_json::{Value, json};

use crate::support::{
    Answer, Call, Supervised, condition, config_map, one_config_map, status_of, until,
};

/// The valid response with a changed child.
fn with(request: &Value, change: impl FnOnce(&mut Value)) -> Answer {
    let mut child = config_map(request);
    child["metadata"]["name"] = json!("bad");
    change(&mut child);
    answer(request, vec![config_map(request), child])
}

/// The valid response with a further child, whose data have this text as a value.
fn with_value(request: &Value, value: &str) -> Answer {
    let mut child = config_map(request);
    child["metadata"]["name"] = json!("bad");
    child["data"]["value"] = json!("VALUE");
    let children = vec![config_map(request), child];
    let body = json!({ "status": status_of(request), "children": children }).to_string();
    Answer::Bytes(body.replace("\"VALUE\"", value).into_bytes())
}

fn answer(request: &Value, children: Vec<Value>) -> Answer {
    Answer::Json(json!({ "status": status_of(request), "children": children }))
}

type Respond = Box<dyn Fn(&Value) -> Answer + Send + Sync>;

/// Invalid hook response, with its name and a part of the expected message.
type BadResponse = (&'static str, Respond, &'static str);

fn bad(
    name: &'static str,
    respond: impl Fn(&Value) -> Answer + Send + Sync + 'static,
    said: &'static str,
) -> BadResponse {
    (name, Box::new(respond), said)
}

fn bad_responses() -> Vec<BadResponse> {
    [bad_bodies(), bad_statuses()].into_iter().flatten().collect()
}

fn unusable_children() -> Vec<BadResponse> {
    [bad_children(), bad_values(), bad_metadata()].into_iter().flatten().collect()
}

/// Invalid bodies as a whole.
fn bad_bodies() -> Vec<BadResponse> {
    let bytes = |bytes: &'static [u8]| move |_: &Value| Answer::Bytes(bytes.to_vec());
    vec![
        bad("empty", bytes(b""), "empty body"),
        bad("blank", bytes(b" \n"), "empty body"),
        bad("byte order mark", bytes(b"\xef\xbb\xbf{\"children\":[]}"), "unusable"),
        bad("list", bytes(b"[]"), "expected an object"),
        bad("text", bytes(b"\"children\""), "expected an object"),
        bad("no json", bytes(b"<html>"), "unusable"),
        bad("half", bytes(b"{\"children\":[{\"kind\":"), "EOF"),
        bad("cut", |_| Answer::Cut(b"{\"children\":["), "hook"),
        bad("more", bytes(b"{\"children\":[]}{}"), "trailing"),
        bad("children text", bytes(b"{\"children\":\"none\"}"), "children"),
        bad("children map", bytes(b"{\"children\":{}}"), "children"),
        bad("status list", bytes(b"{\"status\":[],\"children\":[]}"), "status"),
        bad("resync", bytes(b"{\"resyncAfterSeconds\":\"soon\"}"), "resyncAfterSeconds"),
        bad(
            "deep",
            |_| Answer::Bytes(b"{\"children\":[".iter().copied().chain([b'['; 5000]).collect()),
            "unusable",
        ),
        bad(
            "huge",
            |_| Answer::Bytes(vec![b' '; ResponseLimits::default().response + 1]),
            "16777216",
        ),
        bad(
            "many",
            |request| {
                answer(
                    request,
                    (0..=MetaOptions::default().max_children)
                        .map(|_| config_map(request))
                        .collect(),
                )
            },
            "more than 10000",
        ),
    ]
}

/// Invalid children, by their type and their identity.
fn bad_children() -> Vec<BadResponse> {
    vec![
        bad(
            "null child",
            |request| answer(request, vec![config_map(request), Value::Null]),
            "children[1]",
        ),
        bad(
            "number child",
            |request| answer(request, vec![json!(7), config_map(request)]),
            "children[0]",
        ),
        bad(
            "five mebibytes",
            |request| with(request, |it| it["data"] = json!({ "a": "x".repeat(5 << 20) })),
            "children[1] (ConfigMap bad): has",
        ),
        bad("no kind", |request| with(request, |it| it["kind"] = Value::Null), "children[1].kind"),
        bad(
            "no version",
            |request| with(request, |it| it["apiVersion"] = json!(1)),
            "children[1].apiVersion",
        ),
        bad(
            "wrong kind",
            |request| with(request, |it| it["kind"] = json!("Pod")),
            "spec.childResources",
        ),
        bad(
            "wrong version",
            |request| with(request, |it| it["apiVersion"] = json!("v2")),
            "spec.childResources",
        ),
    ]
}

/// Children that cannot be decoded, in a body that is JSON.
fn bad_values() -> Vec<BadResponse> {
    let value = |value: String| move |request: &Value| with_value(request, &value);
    vec![
        bad("number", value("1e999".to_owned()), "children[1]"),
        bad("deep value", value("[".repeat(200) + &"]".repeat(200)), "children[1]"),
    ]
}

/// Children with invalid metadata.
fn bad_metadata() -> Vec<BadResponse> {
    vec![
        bad(
            "no metadata",
            |request| with(request, |it| it["metadata"] = Value::Null),
            "children[1].metadata",
        ),
        bad(
            "no name",
            |request| with(request, |it| it["metadata"] = json!({})),
            "children[1].metadata.name",
        ),
        bad(
            "empty name",
            |request| with(request, |it| it["metadata"]["name"] = json!("")),
            "children[1].metadata.name",
        ),
        bad(
            "path name",
            |request| with(request, |it| it["metadata"]["name"] = json!("../secrets/a")),
            "children[1].metadata.name",
        ),
        bad(
            "long name",
            |request| with(request, |it| it["metadata"]["name"] = json!("a".repeat(300))),
            "children[1].metadata.name",
        ),
        bad(
            "generated name",
            |request| with(request, |it| it["metadata"] = json!({ "generateName": "a/" })),
            "children[1].metadata.generateName",
        ),
        bad(
            "foreign namespace",
            |request| with(request, |it| it["metadata"]["namespace"] = json!("default")),
            "children[1].metadata.namespace",
        ),
        bad(
            "owners",
            |request| {
                with(request, |it| {
                    it["metadata"]["ownerReferences"] = json!(["a"]);
                })
            },
            "children[1].metadata.ownerReferences[0]",
        ),
        bad(
            "labels",
            |request| with(request, |it| it["metadata"]["labels"] = json!(["a"])),
            "children[1].metadata.labels",
        ),
        bad(
            "label",
            |request| with(request, |it| it["metadata"]["labels"] = json!({ "a": 1 })),
            "children[1].metadata.labels",
        ),
        bad(
            "annotations",
            |request| with(request, |it| it["metadata"]["annotations"] = json!({ "a": {} })),
            "children[1].metadata.annotations",
        ),
    ]
}

/// Responses whose status or header is refused.
fn bad_statuses() -> Vec<BadResponse> {
    let status = |status: u16| move |_: &Value| Answer::Status(status, Vec::new());
    vec![
        bad("status 201", status(201), "201"),
        bad("status 204", status(204), "204"),
        bad("status 404", status(404), "404"),
        bad("status 500", status(500), "500"),
        bad(
            "elsewhere",
            |_| Answer::Status(302, vec![("Location", "http://169.254.169.254/".to_owned())]),
            "302",
        ),
        bad(
            "packed",
            |_| Answer::Status(200, vec![("Content-Encoding", "gzip".to_owned())]),
            "gzip",
        ),
    ]
}

#[tokio::test]
async fn invalid_response_is_reported_and_changes_nothing() {
    let supervised = Supervised::start("bad-answers").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "fine", 1).await;
    let answers = bad_responses();
    let name = |index: usize| format!("bad-{index}");
    for index in 0..answers.len() {
        harness.create(&crd, &name(index), 1).await;
    }
    let mut uids = BTreeMap::new();
    for index in 0..answers.len() {
        let child = supervised.child(&name(index), 1).await;
        uids.insert(child.name_any(), child.uid().unwrap());
    }
    let expected: Vec<_> = answers.iter().map(|(what, _, said)| (*what, *said)).collect();
    harness.faults.forget_seen();

    supervised.hook.answers(move |request| {
        let parent = request["parent"]["metadata"]["name"].as_str().unwrap();
        match parent.strip_prefix("bad-") {
            Some(index) => answers[index.parse::<usize>().unwrap()].1(request),
            None => one_config_map(request),
        }
    });
    for index in 0..expected.len() {
        supervised.resize(&crd, &name(index), 2).await;
    }

    for (index, (what, said)) in expected.iter().enumerate() {
        let event = supervised.event(&name(index), "SyncError", said).await;
        assert_eq!(event.type_.as_deref(), Some("Warning"), "{what}");
    }
    let unhealthy = supervised.status("a", "its hook is unhealthy", |status| {
        condition(status, "HooksHealthy").status == "False"
    });
    let message = condition(&unhealthy.await, "HooksHealthy").message;
    assert!(message.contains("parents fail"), "{message}");
    // Other parents are served meanwhile.
    supervised.resize(&crd, "fine", 2).await;
    supervised.child("fine", 2).await;
    for (name, uid) in &uids {
        let child = supervised.config_maps().get(name).await.unwrap();
        assert_eq!(child.uid().as_ref(), Some(uid), "{name}");
        assert_eq!(child.data.unwrap()["size"], "1", "{name}");
    }
    let mut written = harness.faults.seen();
    written.retain(|it| {
        it.resource == "configmaps"
            && !matches!(it.verb, Verb::Get | Verb::List | Verb::Watch)
            && it.name != "fine"
    });
    assert!(written.is_empty(), "{written:#?}");

    // After the recovery of the hook, its parents sync again.
    supervised.hook.answers(one_config_map);
    for index in 0..expected.len() {
        supervised.resize(&crd, &name(index), 3).await;
    }
    for index in 0..expected.len() {
        supervised.child(&name(index), 3).await;
    }
    supervised
        .status("a", "its hook is healthy", |status| {
            condition(status, "HooksHealthy").status == "True"
        })
        .await;
    let status = harness.status(&supervised.runnable("a"));
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    supervised.end().await;
}

#[tokio::test]
async fn unusable_child_is_reported_and_delays_no_other() {
    let supervised = Supervised::start("bad-children").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    let answers = unusable_children();
    let name = |index: usize| format!("bad-{index}");
    for index in 0..answers.len() {
        harness.create(&crd, &name(index), 1).await;
    }
    for index in 0..answers.len() {
        supervised.child(&name(index), 1).await;
    }
    let expected: Vec<_> = answers.iter().map(|(what, _, said)| (*what, *said)).collect();

    supervised.hook.answers(move |request| {
        let parent = request["parent"]["metadata"]["name"].as_str().unwrap();
        let index = parent.trim_start_matches("bad-");
        answers[index.parse::<usize>().unwrap()].1(request)
    });
    for index in 0..expected.len() {
        supervised.resize(&crd, &name(index), 2).await;
    }

    let parents = harness.scope.api(&crd, "v1");
    for (index, (what, said)) in expected.iter().enumerate() {
        let event = supervised.event(&name(index), "SyncError", said).await;
        assert_eq!(event.type_.as_deref(), Some("Warning"), "{what}");
        supervised.child(&name(index), 2).await;
        until("the status is written despite the error", async || {
            let size = parents.get(&name(index)).await.unwrap().data["status"]["size"].clone();
            if size == 2 { Ok(()) } else { Err(format!("{what}: {size}")) }
        })
        .await;
    }
    assert!(supervised.config_maps().get_opt("bad").await.unwrap().is_none());
    supervised
        .status("a", "its hook is unhealthy", |status| {
            condition(status, "HooksHealthy").status == "False"
        })
        .await;

    // After the recovery of the hook, its parents sync again.
    supervised.hook.answers(one_config_map);
    for index in 0..expected.len() {
        supervised.resize(&crd, &name(index), 3).await;
    }
    for index in 0..expected.len() {
        supervised.child(&name(index), 3).await;
    }
    supervised
        .status("a", "its hook is healthy", |status| {
            condition(status, "HooksHealthy").status == "True"
        })
        .await;
    supervised.end().await;
}

#[tokio::test]
async fn refused_child_delays_no_other() {
    let supervised = Supervised::start("refused").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised
        .hook
        .answers(|request| with(request, |it| it["metadata"]["name"] = json!("No_Name")));
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    supervised.child("gear", 1).await;
    let event = supervised.event("gear", "SyncError", "No_Name").await;
    assert!(event.message.unwrap().contains("creating ConfigMap"));
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    let parents = harness.scope.api(&crd, "v1");
    until("the status is written despite the error", async || {
        let size = parents.get("gear").await.unwrap().data["status"]["size"].clone();
        if size == 2 { Ok(()) } else { Err(size.to_string()) }
    })
    .await;
    supervised.end().await;
}

#[tokio::test]
async fn unreachable_hook_is_named() {
    let supervised = Supervised::start("deaf").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    for (last, url) in
        [("refuses", "http://127.0.0.1:1/sync"), ("nowhere", "http://hook.invalid/sync")]
    {
        let mut spec = supervised.spec(&crd);
        spec["hooks"]["sync"]["webhook"]["url"] = json!(url);
        supervised.declare(last, spec).await;
    }
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;

    for last in ["refuses", "nowhere"] {
        let status = supervised.status(last, "reports the error", |status| {
            condition(status, "HooksHealthy").reason == "HookUnreachable"
        });
        let status = status.await;
        assert_eq!(condition(&status, "HooksHealthy").status, "False");
        assert!(condition(&status, "HooksHealthy").message.contains("gear"), "{status:#?}");
        assert_eq!(condition(&status, "Running").status, "True");
    }
    assert!(supervised.hook.calls().is_empty());
    supervised.end().await;
}

#[tokio::test]
async fn unusual_parents_are_synced_like_any_other() {
    let supervised = Supervised::start("bad-parents").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let mut child = config_map(request);
        let uid = request["parent"]["metadata"]["uid"].as_str().unwrap();
        child["metadata"]["name"] = json!(format!("of-{uid}"));
        answer(request, vec![child])
    });
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    let owner = |index: usize| {
        json!({
            "apiVersion": "v1", "kind": "Nothing", "name": format!("n{index}"),
            "uid": format!("00000000-0000-0000-0000-{index:012}"),
        })
    };
    let long = vec!["a".repeat(60); 4].join(".");
    let unusual = [
        json!({ "name": "a" }),
        json!({ "name": long }),
        json!({ "name": "0.1-2" }),
        json!({ "generateName": "generated-" }),
        json!({ "name": "big", "annotations": { "big": "\u{1F525}\"\\</script>\n".repeat(12_000) } }),
        json!({ "name": "owned", "ownerReferences": (0..400).map(owner).collect::<Vec<_>>() }),
        json!({ "name": "held", "finalizers": ["example.com/held"] }),
        json!({ "name": "labels", "labels": { "a.b/c": "", "x": "X.y_z-1" } }),
        json!({ "name": "many", "labels": (0..500).map(|it| (format!("l{it}"), json!("v"))).collect::<serde_json::Map<_, _>>() }),
    ];
    let parents = harness.scope.api(&crd, "v1");
    let mut uids = Vec::new();
    for metadata in unusual {
        let mut object = crd.object("x", json!({ "size": 1, "\u{0}odd": [null, 1e300, {}] }));
        object.metadata = serde_json::from_value(metadata).unwrap();
        let created = parents.create(&PostParams::default(), &object).await.unwrap();
        uids.push(created.uid().unwrap());
    }

    for uid in &uids {
        // The garbage collector deletes the parent whose owners do not exist, so only its sync is
        // checked.
        let child = format!("of-{uid}");
        supervised
            .hook
            .called(&child, |call| call.body["parent"]["metadata"]["uid"] == **uid)
            .await;
    }
    for name in ["a", &long, "0.1-2", "big", "held", "labels", "many"] {
        let uid = parents.get(name).await.unwrap().uid().unwrap();
        supervised.config_map(&format!("of-{uid}"), "is there", |child| child.is_some()).await;
        until("the status is written", async || {
            let parent = parents.get(name).await.unwrap();
            let size = parent.data["status"]["size"].clone();
            if size == 1 { Ok(()) } else { Err(format!("{name}: {size}")) }
        })
        .await;
    }
    // A parent that is being deleted is still synced and gets its status.
    parents.delete("held", &DeleteParams::default()).await.unwrap();
    let dying = |call: &Call| {
        call.parent() == "held" && call.body["parent"]["metadata"]["deletionTimestamp"].is_string()
    };
    supervised.hook.called("about the parent in deletion", dying).await;
    let status = harness.status(&supervised.runnable("a"));
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    supervised.end().await;
}

/// Child or parent type in a specification.
fn rule(version: &str, resource: &str) -> Value {
    json!({ "apiVersion": version, "resource": resource })
}

/// Pointers to fields of a specification, each with an invalid value and the name in the refusal.
fn invalid_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("/parentResource/apiVersion", json!("a/b/c"), "spec.parentResource.apiVersion"),
        ("/parentResource/resource", json!("../x"), "spec.parentResource.resource"),
        ("/parentResource/resource", json!(""), "spec.parentResource.resource"),
        (
            "/parentResource/labelSelector",
            json!({ "matchExpressions": [{ "key": "a", "operator": "In" }] }),
            "spec.parentResource.labelSelector.matchExpressions[0].values",
        ),
        (
            "/childResources",
            json!([
                rule("v1", "configmaps"),
                {"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"}},
            ]),
            "spec.childResources[1]",
        ),
        ("/childResources", json!([rule("v1", "Config Maps")]), "spec.childResources[0].resource"),
        ("/hooks", json!({}), "spec.hooks.sync"),
        ("/hooks/sync", json!({}), "spec.hooks.sync.webhook"),
        ("/hooks/sync/webhook/url", json!("not a url"), "spec.hooks.sync.webhook.url"),
        ("/hooks/sync/webhook/url", json!("file:///etc/passwd"), "spec.hooks.sync.webhook.url"),
        (
            "/hooks/sync/webhook",
            json!({ "service": { "name": "a", "namespace": "b" } }),
            "spec.hooks.sync.webhook.path",
        ),
        (
            "/hooks/sync/webhook",
            json!({ "service": { "name": "a", "namespace": "b", "port": 70000 }, "path": "/" }),
            "spec.hooks.sync.webhook.service.port",
        ),
        ("/hooks/sync/webhook/clientTLS", json!({}), "spec.hooks.sync.webhook.clientTLS.secretRef"),
    ]
}

#[tokio::test]
async fn invalid_controller_names_its_field_and_affects_no_other() {
    let supervised = Supervised::start("bad-specs").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    let good = supervised.spec(&crd);
    supervised.declare("good", good.clone()).await;
    supervised.install(&crd).await;
    harness.create(&crd, "gear", 1).await;
    supervised.child("gear", 1).await;
    let cases = invalid_fields();
    for (index, (pointer, value, _)) in cases.iter().enumerate() {
        let mut spec = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[key] = value.clone();
        supervised.declare(&index.to_string(), spec).await;
    }
    let mut unknown = good.clone();
    unknown["parentResource"]["apiVersion"] = json!("nowhere.example.com/v7");
    supervised.declare("unknown", unknown).await;
    let mut built_in = good.clone();
    built_in["childResources"] = json!([rule("v1", "unheardofs")]);
    supervised.declare("unheard", built_in).await;
    let plain = CrdBuilder::new(&harness.scope.group, "Plain").without_status();
    supervised.install(&plain).await;
    let mut without_status = good.clone();
    without_status["parentResource"]["resource"] = json!("plains");
    supervised.declare("plain", without_status).await;

    for (index, (_, value, field)) in cases.iter().enumerate() {
        let last = index.to_string();
        let what = format!("{field} is {value}");
        let status = supervised
            .status(&last, &what, |status| condition(status, "Ready").message.contains(field));
        let status = status.await;
        assert_eq!(condition(&status, "Ready").status, "False");
        assert_eq!(status.state.as_deref(), Some("Invalid"), "{field}: {value}");
        let event = supervised.event(&supervised.name(&last), "CreateError", field).await;
        assert_eq!(event.source.unwrap().component.as_deref(), Some("metacontroller"));
        assert!(harness.manager.status_of(supervised.runnable(&last).as_str()).is_none());
    }
    for (last, named) in
        [("unknown", "nowhere.example.com"), ("unheard", "unheardofs"), ("plain", "plains")]
    {
        let status = supervised.status(last, "waits", |status| {
            status.state.as_deref() == Some("Waiting")
                && condition(status, "TypesReady").message.contains(named)
        });
        assert_eq!(condition(&status.await, "TypesReady").status, "False");
    }
    supervised.resize(&crd, "gear", 2).await;
    supervised.child("gear", 2).await;
    assert_eq!(harness.status(&supervised.runnable("good")).epoch, 1);
    supervised.end().await;
}
