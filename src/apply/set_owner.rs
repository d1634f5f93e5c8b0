//! Owner of a set, by which the set is identified.

use std::fmt;

use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::digest::FieldDigest;

/// Owner of a set: an object, or the ConfigMap of a named set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct SetOwner {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) group: String,
    pub(super) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Uid of the object; `None` for a named set, whose ConfigMap may be created again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<String>,
}

impl SetOwner {
    /// Returns whether both have the same group, kind, namespace and name.
    pub(super) fn is_namesake(&self, other: &Self) -> bool {
        let names =
            |it: &Self| (it.group.clone(), it.kind.clone(), it.namespace.clone(), it.name.clone());
        names(self) == names(other)
    }

    /// Returns whether objects of a namespace, or cluster-scoped ones, can have an owner reference
    /// to this owner: the garbage collector looks for it in their namespace.
    pub(super) fn is_in_reach(&self, namespace: Option<&str>) -> bool {
        let is_near = self.namespace.is_none() || self.namespace.as_deref() == namespace;
        self.uid.is_some() && is_near
    }

    /// Returns whether an object has an owner reference to this owner, and to no other.
    pub(super) fn is_only_owner(&self, metadata: &ObjectMeta) -> bool {
        match metadata.owner_references.as_deref() {
            Some([one]) => Some(&one.uid) == self.uid.as_ref(),
            Some(_) | None => false,
        }
    }
}

/// Formats as `Deployment.apps shop/web`.
impl fmt::Display for SetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        f.write_str(" ")?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// Identity of a set: its name among the sets of its owner, and the owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SetId {
    pub(super) name: String,
    pub(super) owner: SetOwner,
}

impl SetId {
    /// Returns the value of the index label. It has no uid, so that one list also finds the objects
    /// of an earlier owner of the same name; the digest of the annotation separates them.
    pub(super) fn label(&self) -> String {
        let SetOwner { group, kind, namespace, name, uid: _ } = &self.owner;
        let namespace = namespace.as_deref().unwrap_or_default();
        FieldDigest::of(&[&self.name, group, kind, namespace, name]).to_string()
    }

    /// Returns the annotation of the owner that keeps the kinds of the set.
    pub(super) fn kinds_annotation(&self) -> String {
        format!("kinds.pilotlight.dev/{}", self.name)
    }
}
