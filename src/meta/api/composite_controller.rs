//! `CompositeController`: a controller of parents and their children, declared as an object.
//!
//! All of Metacontroller's fields are declared, so that the API server prunes none of them.
//! Invalid values are rejected by `src/meta/definition.rs` and not here.
//! Enumerations are strings here and enums in the CRD's schema: an object stored under a more
//! liberal schema can then still be decoded, and its invalid field named.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ControllerStatus, EndpointConfig, HookSpec, LabelSelector};

/// Specification of a CompositeController.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "metacontroller.k8s.io",
    version = "v1alpha1",
    kind = "CompositeController",
    plural = "compositecontrollers",
    shortname = "cc",
    shortname = "cctl",
    status = "ControllerStatus",
    derive = "PartialEq",
    doc = "A controller of parents and their children, whose decisions are made by hooks.",
    annotation("api-approved.kubernetes.io", "unapproved, request not yet submitted"),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".status.state"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.reason"}"#,
    printcolumn = r#"{"name": "Hooks", "type": "string", "jsonPath": ".status.conditions[?(@.type=='HooksHealthy')].status"}"#,
    printcolumn = r#"{"name": "Parent", "type": "string", "jsonPath": ".spec.parentResource.resource"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct CompositeControllerSpec {
    /// The type whose objects are reconciled.
    pub parent_resource: ParentResource,
    /// Types of children that hooks may return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_resources: Vec<ChildResource>,
    /// Hooks that decide about children and status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<CompositeHooks>,
    /// TLS and credentials of hooks, by host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoint_configs: Vec<EndpointConfig>,
    /// Resync period of every parent, in seconds; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_period_seconds: Option<i32>,
    /// Children are selected by a label with the parent's uid, and `spec.selector` is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate_selector: Option<bool>,
}

/// Parent type, and the selection of its objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentResource {
    /// `group/version`, or the version alone for the core group.
    pub api_version: String,
    /// Plural name.
    pub resource: String,
    /// Fields whose change makes a new revision of a parent in a rolling update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history: Option<RevisionHistory>,
    /// Selects the parents that are synced; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// True if a change of nothing but a parent's status does not sync it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_status_changes: Option<bool>,
}

/// Fields whose change makes a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionHistory {
    /// Paths of the fields; `spec` when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub field_paths: Vec<String>,
}

/// A type of children.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChildResource {
    /// `group/version`, or the version alone for the core group.
    pub api_version: String,
    /// Plural name.
    pub resource: String,
    /// Update of children that exist and differ from the desired ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Runs the controller even while this type is not served; false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// True if a change of nothing but the status of such an object does not sync its parent; false
    /// when absent. Has no effect on types with a rolling update, which waits for the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_status_changes: Option<bool>,
}

/// Update of children.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// Method of the update; `OnDelete` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "enum" = ["OnDelete", "Recreate", "InPlace", "RollingRecreate", "RollingInPlace"]
    ))]
    pub method: Option<String>,
    /// Conditions that a child must have before a rolling update continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_checks: Option<StatusChecks>,
}

/// Conditions that a child must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusChecks {
    /// Conditions that must be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusConditionCheck>,
}

/// A condition that must be found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusConditionCheck {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Reason of the condition; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The hooks of a CompositeController.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompositeHooks {
    /// Returns the children and the status that a parent should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<HookSpec>,
    /// Called instead of sync while a parent is being deleted or no longer selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finalize: Option<HookSpec>,
    /// Returns which other objects the hooks receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customize: Option<HookSpec>,
    /// Accepted and never called, as in Metacontroller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_update_child: Option<HookSpec>,
    /// Accepted and never called, as in Metacontroller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_update_child: Option<HookSpec>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_metacontroller_survives_a_round_trip() {
        let spec = serde_json::json!({
            "parentResource": {
                "apiVersion": "example.com/v1", "resource": "things",
                "revisionHistory": {"fieldPaths": ["spec.template"]},
                "labelSelector": {
                    "matchLabels": {"a": "b"},
                    "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]
                },
                "ignoreStatusChanges": true
            },
            "childResources": [{
                "apiVersion": "v1", "resource": "pods",
                "updateStrategy": {
                    "method": "RollingRecreate",
                    "statusChecks": {"conditions": [
                        {"type": "Ready", "status": "True", "reason": "Fine"}
                    ]}
                }
            }],
            "hooks": {
                "sync": {"version": "v2", "webhook": {
                    "url": "https://hook", "timeout": "5s", "path": "/sync",
                    "service": {"name": "n", "namespace": "ns", "port": 1, "protocol": "https"},
                    "etag": {
                        "enabled": true, "cacheTimeoutSeconds": 1, "cacheCleanupSeconds": 2
                    },
                    "responseUnMarshallMode": "strict",
                    "caBundle": {"configMapRef": {"name": "c", "namespace": "n", "key": "k"}},
                    "clientTLS": {
                        "secretRef": {"name": "s", "namespace": "n"},
                        "certKey": "c", "privateKeyKey": "k"
                    },
                    "authorization": {
                        "type": "Token",
                        "secretRef": {"name": "s", "namespace": "n", "key": "k"}
                    },
                    "basicAuth": {
                        "secretRef": {"name": "s", "namespace": "n"},
                        "usernameKey": "u", "passwordKey": "p"
                    }
                }},
                "finalize": {"version": "v1"}, "customize": {"version": "v1"},
                "preUpdateChild": {"version": "v1"}, "postUpdateChild": {"version": "v1"}
            },
            "endpointConfigs": [{"host": "h", "caBundle": {"inline": "pem"}}],
            "resyncPeriodSeconds": 5,
            "generateSelector": true
        });

        let typed: CompositeControllerSpec = serde_json::from_value(spec.clone()).unwrap();

        assert_eq!(serde_json::to_value(typed).unwrap(), spec);
    }

    #[test]
    fn fields_of_later_versions_are_no_error() {
        let spec = serde_json::json!({
            "parentResource": {"apiVersion": "v1", "resource": "things", "later": 1},
            "later": {}
        });

        assert!(serde_json::from_value::<CompositeControllerSpec>(spec).is_ok());
    }
}
