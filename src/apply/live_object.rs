//! Object as the server has it, of which only the metadata is read.

use kube::api::{ObjectMeta, Preconditions};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    managed_fields::{applied_paths, handed_over},
    object_name::ObjectName,
    set_kind::SetKind,
};

/// Metadata of a live object.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LiveObject {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
}

impl LiveObject {
    /// Returns the name of an object of a list.
    pub(super) fn name(&self, kind: &SetKind) -> ObjectName {
        ObjectName {
            kind: kind.group_kind(),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Returns the preconditions of a write to exactly this version; `None` if the server does not
    /// name uid and resourceVersion, so that a change since the read would be unnoticed.
    pub(super) fn preconditions(&self) -> Option<Preconditions> {
        let ObjectMeta { uid, resource_version, .. } = self.metadata.clone();
        Some(Preconditions { uid: Some(uid?), resource_version: Some(resource_version?) })
    }

    /// Returns the patch that makes what a manager created the fields of its server-side apply, for
    /// exactly this version.
    pub(super) fn handed_over(&self, manager: &str) -> Option<Value> {
        handed_over(&self.json(), manager)
    }

    /// Returns whether a manager has applied a field, and still owns it.
    pub(super) fn has_applied(&self, manager: &str, field: &str) -> bool {
        applied_paths(&self.json(), manager).contains(field)
    }

    /// Returns whether all fields are of one manager.
    pub(super) fn is_managed_by(&self, manager: &str) -> bool {
        let entries = self.metadata.managed_fields.as_deref().unwrap_or_default();
        !entries.is_empty() && entries.iter().all(|it| it.manager.as_deref() == Some(manager))
    }

    fn json(&self) -> Value {
        let metadata = serde_json::to_value(&self.metadata).unwrap_or_default();
        json!({ "metadata": metadata })
    }
}
