//! Kind of the members of a set, with what its requests need.

use std::{any::TypeId, fmt};

use kube::{
    Resource,
    core::{ApiResource, ClusterResourceScope},
};
use serde::{Deserialize, Serialize};

use crate::kind::{GroupKind, Scope, is_kept_by_another_kind};

/// Kind of the members of a set, at the version at which they were written last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SetKind {
    /// API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Version of the requests.
    pub version: String,
    /// Plural name, as in the URL.
    pub plural: String,
    /// Kind, such as `ConfigMap`.
    pub kind: String,
    /// Scope of the objects.
    #[serde(with = "scope")]
    pub scope: Scope,
}

impl SetKind {
    /// Returns the kind of a Rust type.
    pub fn of<K>() -> Self
    where
        K: Resource<DynamicType = ()>,
        K::Scope: 'static,
    {
        let is_cluster = TypeId::of::<K::Scope>() == TypeId::of::<ClusterResourceScope>();
        let scope = if is_cluster { Scope::Cluster } else { Scope::Namespaced };
        Self::of_with::<K>(&(), scope)
    }

    /// Returns the kind of a type that is known at run time only.
    pub(super) fn of_with<K: Resource>(of: &K::DynamicType, scope: Scope) -> Self {
        Self {
            group: K::group(of).into_owned(),
            version: K::version(of).into_owned(),
            plural: K::plural(of).into_owned(),
            kind: K::kind(of).into_owned(),
            scope,
        }
    }

    /// Returns the kind that a type of kube describes.
    pub fn new(resource: &ApiResource, scope: Scope) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone(),
            plural: resource.plural.clone(),
            kind: resource.kind.clone(),
            scope,
        }
    }

    /// Returns whether the names can be those of a type. Others than the program may write them to
    /// the owner, and requests are built of them.
    pub(super) fn is_plausible(&self) -> bool {
        let is_of = |text: &str, others: &str| {
            let is_usual = |it: char| it.is_ascii_alphanumeric() || others.contains(it);
            text.len() <= 253 && text.chars().all(is_usual)
        };
        let is_name = |text: &str| !text.is_empty() && is_of(text, "");
        is_of(&self.group, ".-")
            && is_name(&self.version)
            && is_name(&self.kind)
            && !self.plural.is_empty()
            && is_of(&self.plural, "-")
            && !is_kept_by_another_kind(&self.group, &self.kind, &self.plural)
    }

    /// Returns the kind without its version.
    pub(super) fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }

    /// Returns `group/version`, or the version alone for the core group.
    pub(super) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the URL path of the collection, of one namespace or of all.
    pub(super) fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        let namespace = namespace.map(|it| format!("namespaces/{it}/")).unwrap_or_default();
        format!("/{root}/{}/{namespace}{}", self.api_version(), self.plural)
    }

    /// Returns whether both are one kind, at any version.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.group, &self.kind) == (&other.group, &other.kind)
    }
}

/// Formats as `deployments.apps/v1`.
impl fmt::Display for SetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        write!(f, "/{}", self.version)
    }
}

/// Text of a scope, as CRDs write it.
mod scope {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Scope;

    pub(super) fn serialize<S: Serializer>(scope: &Scope, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match scope {
            Scope::Cluster => "Cluster",
            Scope::Namespaced => "Namespaced",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Scope, D::Error> {
        match String::deserialize(from)?.as_str() {
            "Cluster" => Ok(Scope::Cluster),
            "Namespaced" => Ok(Scope::Namespaced),
            _ => Err(D::Error::custom("the scope is neither Cluster nor Namespaced")),
        }
    }
}
