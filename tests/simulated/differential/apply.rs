//! Server-side apply and managed fields.

use serde_json::{Value, json};

use super::{MAPS, WIDGETS, agree, widget, with_widgets};
use crate::simulated::sequence::{APPLY, JSON, MERGE, Step, get, patch, post, put};

/// Returns the object with its owners, without their times.
fn owned(mut object: Value, _: &str) -> Value {
    let mut owners = object["metadata"]["managedFields"].take();
    for owner in owners.as_array_mut().into_iter().flatten() {
        owner["time"] = Value::Null;
        without_dots(&mut owner["fieldsV1"]);
    }
    if let Some(owners) = owners.as_array_mut() {
        owners
            .sort_by_key(|it| ["manager", "operation", "subresource"].map(|by| it[by].to_string()));
    }
    json!({ "object": object, "owners": owners })
}

/// Removes the entries of maps, which follow from a schema that is not read.
fn without_dots(fields: &mut Value) {
    if let Some(fields) = fields.as_object_mut() {
        fields.remove(".");
        fields.values_mut().for_each(without_dots);
    }
}

struct Target {
    path: &'static str,
    object: fn(Value) -> Value,
}

impl Target {
    fn one(&self, query: &str) -> String {
        format!("{}/a?{query}", self.path)
    }

    fn created(&self, manager: &str, spec: Value) -> Step {
        let path = format!("{}?fieldManager={manager}", self.path);
        post(&path, (self.object)(spec)).only(owned)
    }

    fn applied(&self, manager: &str, spec: Value) -> Step {
        let path = self.one(&format!("fieldManager={manager}"));
        patch(APPLY, &path, (self.object)(spec)).only(owned)
    }

    fn forced(&self, manager: &str, spec: Value) -> Step {
        let path = self.one(&format!("fieldManager={manager}&force=true"));
        patch(APPLY, &path, (self.object)(spec)).only(owned)
    }

    fn merged(&self, manager: &str, change: Value) -> Step {
        patch(MERGE, &self.one(&format!("fieldManager={manager}")), change).only(owned)
    }
}

const WIDGET: Target = Target { path: WIDGETS, object: |spec| widget("a", spec) };
const MAP: Target = Target {
    path: MAPS,
    object: |data| {
        let mut map =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
        if !data.is_null() {
            map["data"] = data;
        }
        map
    },
};

#[tokio::test]
async fn fields_applied_to_custom_types_are_owned_and_removed_alike() {
    let with = |metadata: Value| {
        let mut object = widget("a", json!({}));
        object["metadata"] = metadata;
        object["metadata"]["name"] = "a".into();
        object.as_object_mut().unwrap().remove("spec");
        let path = WIDGET.one("fieldManager=bob");
        patch(APPLY, &path, object).only(owned)
    };
    let status = |size: i64| {
        let mut object = widget("a", json!({ "size": 8 }));
        object["status"] = json!({ "size": size });
        let path = format!("{WIDGETS}/a/status?fieldManager=carol");
        patch(APPLY, &path, object).only(owned)
    };
    agree(
        "differential-apply",
        with_widgets(vec![
            WIDGET.created("creator", json!({ "o": { "x": 1 }, "e": {} })),
            // Maps are added and removed with their fields.
            WIDGET.applied(
                "alice",
                json!({ "o": { "y": 1 }, "e": { "z": 1 }, "p": { "q": { "r": 1 } } }),
            ),
            WIDGET.applied("alice", json!({ "o": { "y": 1 } })),
            WIDGET.applied("alice", json!({ "p": { "q": {} } })),
            WIDGET.applied("alice", json!({})),
            WIDGET.applied("bob", json!({ "p": { "q": { "s": 1 } } })),
            WIDGET.applied("alice", json!({ "p": { "q": { "t": 1 } } })),
            WIDGET.applied("bob", json!({})),
            WIDGET.applied("alice", json!({})),
            // A value in the place of a map.
            WIDGET.applied("alice", json!({ "k": { "a": 1 } })),
            WIDGET.applied("bob", json!({ "k": 5 })),
            WIDGET.forced("bob", json!({ "k": 5 })),
            WIDGET.applied("alice", json!({ "k": { "a": 1 } })),
            WIDGET.forced("alice", json!({ "k": { "a": 1 } })),
            WIDGET.applied("alice", json!({})),
            // Lists are owned as a whole.
            WIDGET.applied("alice", json!({ "l": [1, 2, { "a": 1 }] })),
            WIDGET.applied("bob", json!({ "l": [1, 2, { "a": 1 }] })),
            WIDGET.applied("bob", json!({ "l": [1, 2] })),
            WIDGET.applied("alice", json!({})),
            WIDGET.applied("bob", json!({ "l": [] })),
            // Metadata.
            with(json!({ "labels": { "a": "1" }, "annotations": { "b": "2" } })),
            with(json!({ "finalizers": ["x.test/a", "x.test/b"] })),
            with(json!({ "finalizers": ["x.test/b"] })),
            with(json!({})),
            // The status belongs to another manager.
            status(4),
            status(5),
            WIDGET.merged("dave", json!({ "status": { "size": 6 }, "spec": { "size": 6 } })),
        ]),
    )
    .await;
}

#[tokio::test]
async fn removed_managed_fields_are_recorded_again_by_the_next_apply() {
    let forgotten = json!([{ "op": "replace", "path": "/metadata/managedFields", "value": [{}] }]);
    agree(
        "differential-forgotten",
        with_widgets(vec![
            WIDGET.created("creator", json!({ "o": { "x": 1 }, "size": 1 })),
            WIDGET.applied("alice", json!({ "o": { "y": 1 } })),
            patch(JSON, &WIDGET.one("fieldManager=x"), forgotten).only(owned),
            WIDGET.merged("erin", json!({ "spec": { "size": 7 } })),
            WIDGET.applied("alice", json!({ "size": 8 })),
            WIDGET.applied("alice", json!({ "size": 7, "color": "red" })),
            put(&WIDGET.one("fieldManager=creator"), widget("a", json!({}))).only(owned),
            get(&WIDGET.one("")).only(owned),
        ]),
    )
    .await;
}

#[tokio::test]
async fn fields_applied_to_built_in_types_are_owned_and_removed_alike() {
    agree(
        "differential-map-apply",
        vec![
            MAP.applied("alice", json!({ "a": "1", "b": "2" })),
            MAP.applied("bob", json!({ "b": "2", "c": "3" })),
            MAP.applied("bob", json!({ "b": "3" })),
            MAP.applied("alice", json!({ "a": "1" })),
            MAP.applied("bob", Value::Null),
            MAP.applied("alice", Value::Null),
            MAP.merged("carl", json!({ "data": { "x": "1" } })),
            MAP.forced("alice", json!({ "x": "3" })),
            MAP.merged("dave", json!({ "metadata": { "labels": { "l": "1" } } })),
            MAP.merged("dave", json!({ "data": null })),
        ],
    )
    .await;
}
