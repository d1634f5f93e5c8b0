//! A CRD or an APIService as the server writes it: what both have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

/// An object, of which only what is named is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(
    default,
    bound(deserialize = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de> + Default")
)]
pub(super) struct Raw<Spec, Status> {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    pub(super) status: Option<Status>,
}

/// What is read of an object's metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    labels: Option<BTreeMap<String, String>>,
}

/// The conditions of a status. Before its controllers have seen an object, the server writes
/// `null`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Conditions(Option<Vec<Condition>>);

/// One condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
}

impl Metadata {
    /// The value of a label.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }
}

impl Conditions {
    /// The condition of a type, once there is one.
    pub(super) fn get(&self, type_: &str) -> Option<&Condition> {
        self.0.iter().flatten().find(|condition| condition.type_ == type_)
    }
}

impl Condition {
    pub(super) fn is_true(&self) -> bool {
        self.status == "True"
    }

    pub(super) fn is_false(&self) -> bool {
        self.status == "False"
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// Reason and message, as far as there are any.
    pub(super) fn reason_and_why(&self) -> String {
        match (&*self.reason, &*self.message) {
            ("", _) | (_, "") => self.why(),
            (reason, message) => format!("{reason}: {message}"),
        }
    }

    /// The message, or the reason where there is none.
    pub(super) fn why(&self) -> String {
        if self.message.is_empty() { self.reason.clone() } else { self.message.clone() }
    }
}
