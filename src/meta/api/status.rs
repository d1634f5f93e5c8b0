//! Status of a declared controller.

use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a declared controller, the same for all kinds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// `Ready`, `TypesReady`, `Running` and `HooksHealthy`; `RolledOut` and `Contested` where they apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<StatusCondition>,
    /// Generation of the specification that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The number of the current or last run, counted per process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// `Waiting`, `Starting`, `Running`, `Stopping`, `BackingOff`, `Stopped`, `Paused` or
    /// `Invalid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Reason in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Types that the controller watches or waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watches: Vec<WatchStatus>,
}

/// Condition of the status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Reason in one CamelCase word.
    pub reason: String,
    /// Reason in a sentence.
    #[serde(default)]
    pub message: String,
    /// Time of the last change of the status.
    #[schemars(schema_with = "date_time")]
    pub last_transition_time: Timestamp,
    /// Generation of the object that the condition describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}

/// Watched type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchStatus {
    /// Plural name.
    pub resource: String,
    /// `group/version`, or the version alone for the core group.
    pub api_version: String,
    /// `Waiting`, `Syncing`, `Synced`, `Stale`, `Forbidden` or `ConversionFailed`.
    pub state: String,
    /// Error, if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
