//! CRD and APIService as the server writes them: the fields that both share.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

/// An object; fields not listed here are skipped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(
    default,
    bound(deserialize = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de> + Default")
)]
pub(super) struct Raw<Spec, Status> {
    pub(super) metadata: RawMetadata,
    pub(super) spec: Spec,
    pub(super) status: Option<Status>,
}

/// Fields that are read from an object's metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawMetadata {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) resource_version: String,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    labels: Option<BTreeMap<String, String>>,
}

/// Conditions of a status. The server writes `null` until a controller has processed the object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Conditions(Option<Vec<RawCondition>>);

/// A condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
}

impl RawMetadata {
    /// Returns the value of a label.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }
}

impl Conditions {
    /// Returns the condition of a type, if it is set.
    pub(super) fn get(&self, type_: &str) -> Option<&RawCondition> {
        self.0.iter().flatten().find(|condition| condition.type_ == type_)
    }
}

impl RawCondition {
    pub(super) fn is_true(&self) -> bool {
        self.status == "True"
    }

    pub(super) fn is_false(&self) -> bool {
        self.status == "False"
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns reason and message, or the one that is set.
    pub(super) fn reason_and_why(&self) -> String {
        match (&*self.reason, &*self.message) {
            ("", _) | (_, "") => self.explanation(),
            (reason, message) => format!("{reason}: {message}"),
        }
    }

    /// Returns the message, or the reason if the message is empty.
    pub(super) fn explanation(&self) -> String {
        if self.message.is_empty() { self.reason.clone() } else { self.message.clone() }
    }
}
