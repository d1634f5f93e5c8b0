//! `ControllerRevision`: a revision of a parent during a rolling update.
//!
//! The kind is distinct from that of the same name in the group `apps`. Its fields stand at the top
//! level, not in `spec`, so that its CRD is composed here.

use std::borrow::Cow;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Resource,
    core::{NamespaceResourceScope, TypeMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

const GROUP: &str = "metacontroller.k8s.io";
const VERSION: &str = "v1alpha1";
const KIND: &str = "ControllerRevision";
const PLURAL: &str = "controllerrevisions";

/// Revision of a parent, and the children that have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerRevision {
    /// Type of the object.
    #[serde(flatten)]
    pub types: TypeMeta,
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// Values of the parent's fields that make the revision.
    pub parent_patch: Map<String, Value>,
    /// Children that have the revision, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<RevisionChildren>,
}

/// Children of one type that have a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionChildren {
    /// Group of the type; empty for the core group.
    pub api_group: String,
    /// Kind of the type.
    pub kind: String,
    /// Names of the children.
    pub names: Vec<String>,
}

impl Resource for ControllerRevision {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ControllerRevision {
    /// Returns a revision with this metadata.
    pub fn new(metadata: ObjectMeta, parent_patch: Map<String, Value>) -> Self {
        let types = TypeMeta::resource::<Self>();
        Self { types, metadata, parent_patch, children: Vec::new() }
    }

    /// Returns the CustomResourceDefinition of the kind.
    ///
    /// # Panics
    ///
    /// Never: the definition is constant.
    pub fn crd() -> CustomResourceDefinition {
        let text = |description: &str| json!({"type": "string", "description": description});
        let children = json!({
            "type": "object",
            "description": "Children of one type that have the revision.",
            "required": ["apiGroup", "kind", "names"],
            "properties": {
                "apiGroup": text("Group of the type; empty for the core group."),
                "kind": text("Kind of the type."),
                "names": {
                    "type": "array",
                    "description": "Names of the children.",
                    "items": {"type": "string"},
                },
            },
        });
        let schema = json!({
            "type": "object",
            "description": "Revision of a parent, and the children that have it.",
            "required": ["parentPatch"],
            "properties": {
                "parentPatch": {
                    "type": "object",
                    "description": "Values of the parent's fields that make the revision.",
                    "x-kubernetes-preserve-unknown-fields": true,
                },
                "children": {
                    "type": "array",
                    "description": "Children that have the revision, by type.",
                    "items": children,
                },
            },
        });
        let crd = json!({
            "metadata": {
                "name": format!("{PLURAL}.{GROUP}"),
                "annotations": {
                    "api-approved.kubernetes.io": "unapproved, request not yet submitted",
                },
            },
            "spec": {
                "group": GROUP,
                "names": {"kind": KIND, "plural": PLURAL, "singular": KIND.to_lowercase()},
                "scope": "Namespaced",
                "versions": [{
                    "name": VERSION,
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }],
            },
        });
        serde_json::from_value(crd).expect("the definition has the fields of its kind")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_metacontroller_survives_a_round_trip() {
        let object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "ControllerRevision",
            "metadata": {"name": "things.example.com-0a", "namespace": "ns"},
            "parentPatch": {"spec": {"template": {"a": null, "n": 9_007_199_254_740_993_i64}}},
            "children": [{"apiGroup": "", "kind": "Pod", "names": ["a", "b"]}],
        });

        let typed: ControllerRevision = serde_json::from_value(object.clone()).unwrap();

        assert_eq!(serde_json::to_value(&typed).unwrap(), object);
        let again = ControllerRevision::new(typed.metadata.clone(), typed.parent_patch.clone());
        assert_eq!(again.types, typed.types);
    }
}
