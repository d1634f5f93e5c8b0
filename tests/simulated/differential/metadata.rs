//! Validation of names, labels, annotations, finalizers and owner references.

use serde_json::{Value, json};

use super::{MAPS, WIDGETS, agree, widget, with_widgets};
use crate::simulated::sequence::{APPLY, MERGE, Step, delete, events, get, patch, post};

const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

fn bare(name: &str, _: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } })
}

/// Removes duplicate causes: the real server reports a fault of an update several times.
fn once(mut answer: Value, _: &str) -> Value {
    if let Some(causes) = answer["details"]["causes"].as_array_mut() {
        let mut seen = Vec::new();
        causes.retain(|cause| {
            !seen.contains(cause) && {
                seen.push(cause.clone());
                true
            }
        });
    }
    answer
}

/// Valid and invalid metadata at this path.
fn of(path: &str, object: fn(&str, Value) -> Value) -> Vec<Step> {
    let with = |name: &str, field: &str, value: Value| {
        let mut object = object(name, json!({}));
        object["metadata"][field] = value;
        object
    };
    let (long, long_domain) = ("x".repeat(64), format!("{}/x", "x".repeat(254)));
    let keys = [
        "a/b/c",
        "A B",
        "",
        "/",
        "/x",
        "x/",
        "A/x",
        "a..b/x",
        "-a",
        "a_.B",
        "x.test/A",
        "ü",
        "x.y",
        "orphan",
        "foregroundDeletion",
        "kubernetes",
        "k8s.io/a b",
        &long,
        &long_domain,
    ];
    let mut steps = Vec::new();
    for (number, key) in keys.into_iter().enumerate() {
        steps.extend([
            post(path, with(&format!("label-{number}"), "labels", json!({ key: "b" }))),
            post(path, with(&format!("note-{number}"), "annotations", json!({ key: "b c" }))),
            post(path, with(&format!("held-{number}"), "finalizers", json!([key]))),
        ]);
    }
    for (number, owner) in [
        json!({}),
        json!({ "apiVersion": "", "kind": "", "name": "", "uid": "" }),
        json!({ "apiVersion": "x.test/", "kind": "A", "name": "a", "uid": "u" }),
        json!({ "apiVersion": "v1", "kind": "Event", "name": "x", "uid": "u" }),
    ]
    .into_iter()
    .enumerate()
    {
        steps.push(post(path, with(&format!("owned-{number}"), "ownerReferences", json!([owner]))));
    }
    let note = |bytes| json!({ "a": "x".repeat(bytes) });
    let one = format!("{path}/held");
    let change = |metadata: Value| patch(MERGE, &one, json!({ "metadata": metadata })).only(once);
    let applied = with("held", "finalizers", json!(["other"]));
    steps.extend([
        post(path, with("too-much", "annotations", note(256 * 1024))),
        post(path, with("as-much", "annotations", note(256 * 1024 - 1))).brief(),
        post(path, with("held", "finalizers", json!(["x.test/a"]))).keep("held"),
        change(json!({ "finalizers": ["x.test/a", "short"] })),
        change(json!({ "labels": { "x": "y" } })),
        // Separately, since the real server checks them in no fixed order.
        change(json!({ "labels": { "x y": "y" } })),
        change(json!({ "labels": { "z": "-" } })),
        change(json!({ "deletionTimestamp": "2001-01-01T00:00:00Z" })),
        patch(APPLY, &format!("{one}?fieldManager=x"), applied).only(once),
        delete(&one, Value::Null),
        change(json!({ "finalizers": ["x.test/a", "x.test/b"] })),
        // Metadata only.
        get(&one).accept(METADATA),
        get(&format!("{path}?fieldSelector=metadata.name%3Dheld")).accept(METADATA_LIST),
        events(&format!("{path}?resourceVersion=$version.held&fieldSelector=metadata.name%3Dheld"))
            .accept(METADATA),
        patch(MERGE, &one, json!({ "metadata": { "finalizers": null } })).accept(METADATA),
    ]);
    steps
}

#[tokio::test]
async fn metadata_of_custom_types_is_refused_with_the_same_messages() {
    agree("differential-metadata", with_widgets(of(WIDGETS, widget))).await;
}

#[tokio::test]
async fn metadata_of_built_in_types_is_refused_with_the_same_messages() {
    agree("differential-map-metadata", of(MAPS, bare)).await;
}
