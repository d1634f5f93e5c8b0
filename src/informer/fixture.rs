//! Object fixtures for the tests of this module and of those that depend on it.

use serde_json::{Value, json};

use super::Object;
use crate::kind::{Scope, ServedType, Subresources, TypeIdentity, VersionOrder};

/// Builder of a `Widget`.
pub(crate) struct Fixture {
    metadata: Value,
}

pub(crate) fn widgets() -> ServedType {
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
        version_order: VersionOrder::Comparable,
        polled: false,
    }
}

/// Returns an object of this JSON, which is not decoded: its header is that of an object `a`.
pub(crate) fn undecoded(json: String) -> Object {
    Object::new(Fixture::new("a").object().header().clone(), json.into_bytes())
}

impl Fixture {
    pub(crate) fn new(name: &str) -> Self {
        let uid = format!("uid-{name}");
        Self { metadata: json!({"name": name, "uid": uid, "resourceVersion": "1"}) }
    }

    pub(crate) fn namespace(self, namespace: &str) -> Self {
        self.set("namespace", json!(namespace))
    }

    pub(crate) fn uid(self, uid: &str) -> Self {
        self.set("uid", json!(uid))
    }

    pub(crate) fn version(self, version: u64) -> Self {
        self.set("resourceVersion", json!(version.to_string()))
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata["labels"][key] = json!(value);
        self
    }

    pub(crate) fn controller(self, uid: &str) -> Self {
        self.owned(uid, true)
    }

    pub(crate) fn owner(self, uid: &str) -> Self {
        self.owned(uid, false)
    }

    pub(crate) fn set(mut self, field: &str, value: Value) -> Self {
        self.metadata[field] = value;
        self
    }

    pub(crate) fn json(&self) -> Value {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": self.metadata})
    }

    pub(crate) fn object(&self) -> Object {
        Object::from_json(self.json().to_string(), &widgets()).unwrap()
    }

    fn owned(self, uid: &str, controller: bool) -> Self {
        let owner = json!({
            "apiVersion": "v1", "kind": "Owner", "name": uid, "uid": uid, "controller": controller,
        });
        self.set("ownerReferences", json!([owner]))
    }
}
