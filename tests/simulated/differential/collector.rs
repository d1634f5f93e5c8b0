//! Garbage collection of objects whose owners are deleted or absent.

use serde_json::{Value, json};

use super::{MAPS, agree};
use crate::simulated::sequence::{MERGE, Step, Wanted, delete, get, patch, post};

const ABSENT_UID: &str = "11111111-1111-1111-1111-111111111111";

fn map(name: &str, owners: &[(&str, &str, &str)], finalizers: Value) -> Step {
    let references = owners.iter().map(|(kind, name, uid)| {
        let api_version = if *kind == "Nothing" { "nowhere.test/v1" } else { "v1" };
        json!({
            "apiVersion": api_version, "kind": kind, "name": name, "uid": uid,
            "blockOwnerDeletion": true })
    });
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name, "labels": { "of": "the-test" }, "finalizers": finalizers,
            "ownerReferences": references.collect::<Vec<_>>(),
        },
    });
    post(MAPS, object)
}

fn remove(name: &str, policy: &str) -> Step {
    delete(&format!("{MAPS}/{name}"), json!({ "propagationPolicy": policy }))
}

/// Lists once the predicate holds.
fn then(wanted: Wanted) -> Step {
    let metadata: fn(Value, &str) -> Value = |list, _| {
        let items = list["items"].as_array().into_iter().flatten();
        items.map(|item| item["metadata"].clone()).collect()
    };
    get(&format!("{MAPS}?labelSelector=of%3Dthe-test")).settled(wanted).only(metadata)
}

fn item<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list["items"].as_array()?.iter().find(|item| item["metadata"]["name"] == name)
}

fn is_gone(list: &Value, name: &str) -> bool {
    list["items"].is_array() && item(list, name).is_none()
}

fn is_ending(list: &Value, name: &str) -> bool {
    item(list, name).is_some_and(|it| it["metadata"]["deletionTimestamp"].is_string())
}

fn owners(list: &Value, name: &str) -> usize {
    item(list, name).and_then(|it| it["metadata"]["ownerReferences"].as_array()).map_or(0, Vec::len)
}

#[tokio::test]
async fn dependents_are_deleted_or_kept_with_their_owners() {
    let free = |name: &str| {
        let path = format!("{MAPS}/{name}");
        patch(MERGE, &path, json!({ "metadata": { "finalizers": null } }))
    };
    let steps = vec![
        // After its owner, unless a finalizer keeps it.
        map("owner", &[], json!([])).keep("owner"),
        map("child", &[("ConfigMap", "owner", "$uid.owner")], json!([])),
        map("kept", &[("ConfigMap", "owner", "$uid.owner")], json!(["x.test/hold"])),
        remove("owner", "Background"),
        then(|list, _| is_gone(list, "child") && is_ending(list, "kept")),
        free("kept"),
        // Before its owner.
        map("slow", &[], json!([])).keep("slow"),
        map("first", &[("ConfigMap", "slow", "$uid.slow")], json!(["x.test/hold"])),
        remove("slow", "Foreground"),
        then(|list, _| is_ending(list, "first")),
        free("first"),
        then(|list, _| is_gone(list, "slow")),
        // Without its owner (orphaned).
        map("lost", &[], json!([])).keep("lost"),
        map("orphan", &[("ConfigMap", "lost", "$uid.lost")], json!([])),
        remove("lost", "Orphan"),
        then(|list, _| is_gone(list, "lost") && owners(list, "orphan") == 0),
        // With one of two owners deleted.
        map("one", &[], json!([])).keep("one"),
        map("two", &[], json!([])).keep("two"),
        map(
            "both",
            &[("ConfigMap", "one", "$uid.one"), ("ConfigMap", "two", "$uid.two")],
            json!([]),
        ),
        remove("one", "Background"),
        then(|list, _| owners(list, "both") == 1),
        remove("two", "Background"),
        then(|list, _| is_gone(list, "both")),
    ];
    agree("differential-owners", steps).await;
}

#[tokio::test]
async fn an_owner_matches_every_field_of_its_reference() {
    let steps = vec![
        map("owner", &[], json!([])).keep("owner"),
        map("right", &[("ConfigMap", "owner", "$uid.owner")], json!([])),
        // The state of owners of an unserved type is unknown.
        map("unknown", &[("Nothing", "owner", ABSENT_UID)], json!([])),
        map("other-uid", &[("ConfigMap", "owner", ABSENT_UID)], json!([])),
        map("other-name", &[("ConfigMap", "another", "$uid.owner")], json!([])),
        map("other-kind", &[("Secret", "owner", "$uid.owner")], json!([])),
        then(|list, _| {
            ["other-uid", "other-name", "other-kind"].iter().all(|it| is_gone(list, it))
        }),
    ];
    agree("differential-references", steps).await;
}
