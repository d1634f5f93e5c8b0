//! Objects and changes for the tests of this room.

use serde_json::{Value, json};

use crate::{
    informer::{Delta, Object},
    kind::{Scope, ServedType, Subresources, TypeIdentity},
};

pub(super) fn served() -> ServedType {
    ServedType {
        identity: TypeIdentity {
            group: "example.com".into(),
            version: "v1".into(),
            plural: "widgets".into(),
            scope: Scope::Namespaced,
            uid: Some("crd".into()),
        },
        kind: "Widget".into(),
        list_kind: "WidgetList".into(),
        subresources: Subresources::default(),
    }
}

/// The widget `ns/w`, with this metadata on top.
pub(super) fn widget(metadata: Value) -> Object {
    let mut all = json!({"namespace": "ns", "name": "w", "uid": "w", "resourceVersion": "1"});
    for (field, value) in metadata.as_object().unwrap() {
        all[field] = value.clone();
    }
    Object::from_json(json!({"metadata": all}).to_string(), &served()).unwrap()
}

pub(super) fn delta(old: Option<Object>, new: Option<Object>) -> Delta {
    let key = old.iter().chain(&new).next().unwrap().key().clone();
    Delta { key, old, new, initial: false }
}
