//! `DecoratorController`: a controller that decorates existing objects, declared as an object.
//!
//! All of Metacontroller's fields are declared, so that the API server prunes none of them.
//! Enumerations are strings here and enums in the CRD's schema, as of the composite's kind.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AnnotationSelector, ControllerStatus, EndpointConfig, HookSpec, LabelSelector};

/// Specification of a DecoratorController.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "metacontroller.k8s.io",
    version = "v1alpha1",
    kind = "DecoratorController",
    plural = "decoratorcontrollers",
    shortname = "dec",
    shortname = "decorators",
    status = "ControllerStatus",
    derive = "PartialEq",
    doc = "A controller that adds labels, annotations, status and attachments to existing objects, as hooks decide.",
    annotation("api-approved.kubernetes.io", "unapproved, request not yet submitted"),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".status.state"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.reason"}"#,
    printcolumn = r#"{"name": "Hooks", "type": "string", "jsonPath": ".status.conditions[?(@.type=='HooksHealthy')].status"}"#,
    printcolumn = r#"{"name": "Resources", "type": "string", "jsonPath": ".spec.resources[*].resource"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DecoratorControllerSpec {
    /// Types of the objects that are decorated. An object is decorated if any rule of its type
    /// selects it.
    pub resources: Vec<DecoratedResource>,
    /// Types of attachments that hooks may return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Hooks that decide about attachments, labels, annotations and status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<DecoratorHooks>,
    /// TLS and credentials of hooks, by host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoint_configs: Vec<EndpointConfig>,
    /// Resync period of every decorated object, in seconds; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_period_seconds: Option<i32>,
}

/// Type of decorated objects, and the selection among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecoratedResource {
    /// `group/version`, or the version alone for the core group.
    pub api_version: String,
    /// Plural name.
    pub resource: String,
    /// Selects objects by their labels; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Selects objects by their annotations; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation_selector: Option<AnnotationSelector>,
    /// True if a change of nothing but the status of an object does not sync it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_status_changes: Option<bool>,
}

/// A type of attachments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// `group/version`, or the version alone for the core group.
    pub api_version: String,
    /// Plural name.
    pub resource: String,
    /// Update of attachments that exist and differ from the desired ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<AttachmentUpdateStrategy>,
    /// Runs the controller even while this type is not served; false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// True if a change of nothing but the status of such an object does not sync its parent; false
    /// when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_status_changes: Option<bool>,
}

/// Update of attachments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentUpdateStrategy {
    /// Method of the update; `OnDelete` when absent. `RollingRecreate` means `Recreate`, and
    /// `RollingInPlace` means `InPlace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "enum" = ["OnDelete", "Recreate", "InPlace", "RollingRecreate", "RollingInPlace"]
    ))]
    pub method: Option<String>,
}

/// The hooks of a DecoratorController.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecoratorHooks {
    /// Returns the attachments, labels, annotations and status that an object should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<HookSpec>,
    /// Called instead of sync while an object is being deleted or no longer selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finalize: Option<HookSpec>,
    /// Returns which other objects the hooks receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customize: Option<HookSpec>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_metacontroller_survives_a_round_trip() {
        let requirement = serde_json::json!([{"key": "k", "operator": "In", "values": ["v"]}]);
        let spec = serde_json::json!({
            "resources": [{
                "apiVersion": "example.com/v1", "resource": "things",
                "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": requirement},
                "annotationSelector": {
                    "matchAnnotations": {"a": "any text"}, "matchExpressions": requirement
                },
                "ignoreStatusChanges": true
            }],
            "attachments": [{
                "apiVersion": "v1", "resource": "pods",
                "updateStrategy": {"method": "RollingRecreate"}
            }],
            "hooks": {
                "sync": {"version": "v2", "webhook": {"url": "https://hook"}},
                "finalize": {"version": "v1"}, "customize": {"version": "v1"}
            },
            "endpointConfigs": [{"host": "h", "caBundle": {"inline": "pem"}}],
            "resyncPeriodSeconds": 5
        });

        let typed: DecoratorControllerSpec = serde_json::from_value(spec.clone()).unwrap();

        assert_eq!(serde_json::to_value(typed).unwrap(), spec);
    }
}
