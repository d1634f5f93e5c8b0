//! Kinds: names of API types, and the identity of a served type.
//!
//! All rooms share these types. They hold no state and do no I/O.

use std::{fmt, sync::Arc};

use kube::core::{ApiResource, GroupVersionKind};
use serde::Serialize;

/// Kind without its version, as owner references are matched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, such as `Widget`.
    pub kind: String,
}

/// Kinds whose objects are never deleted as a consequence of another change: the loss would be too
/// large.
const NEVER_DELETED: [(&str, &str, &str); 3] = [
    ("", "Namespace", "namespaces"),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions"),
];

/// Returns whether objects of a kind are never deleted for an owner that is gone.
pub(crate) fn is_never_deleted(group: &str, kind: &str) -> bool {
    NEVER_DELETED.iter().any(|(of, name, _)| (*of, *name) == (group, kind))
}

/// Returns whether a resource is one whose objects are never deleted, under the name of another
/// kind.
pub(crate) fn is_kept_by_another_kind(group: &str, kind: &str, plural: &str) -> bool {
    let mut kept = NEVER_DELETED.iter().filter(|(of, ..)| *of == group);
    kept.any(|(_, name, resource)| (*name == kind) != (*resource == plural))
}

/// Plural resource name without its version; a CRD is named after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name, such as `widgets`.
    pub resource: String,
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.kind)
        } else {
            write!(f, "{}.{}", self.kind, self.group)
        }
    }
}

/// Scope of a type's objects: cluster or namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Scope {
    /// Objects have no namespace.
    Cluster,
    /// Objects live in a namespace.
    Namespaced,
}

/// Name of a type in a reference to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TypeName {
    /// Plural resource name, as in a URL.
    Resource(String),
    /// Kind, as in a manifest.
    Kind(String),
}

/// Reference to a type, which may or may not exist.
///
/// ```
/// use k8s_openapi::api::apps::v1::Deployment;
/// use pilotlight::kind::TypeRef;
///
/// let by_kind = TypeRef::kind("apps", "v1", "Deployment");
/// let by_plural = TypeRef::resource("apps", "v1", "deployments");
/// assert_eq!(TypeRef::of::<Deployment>(), by_plural);
/// assert_eq!(by_kind.any_version().to_string(), "Deployment.apps");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeRef {
    /// API group; empty for the core group.
    pub group: String,
    /// Version; `None` for any, the server's best one first.
    pub version: Option<String>,
    /// Resource or kind.
    pub name: TypeName,
}

impl TypeRef {
    /// References a type by plural name: `TypeRef::resource("apps", "v1", "deployments")`.
    pub fn resource(
        group: impl Into<String>,
        version: impl Into<String>,
        plural: impl Into<String>,
    ) -> Self {
        Self {
            group: group.into(),
            version: Some(version.into()),
            name: TypeName::Resource(plural.into()),
        }
    }

    /// References a type by kind: `TypeRef::kind("apps", "v1", "Deployment")`.
    pub fn kind(
        group: impl Into<String>,
        version: impl Into<String>,
        kind: impl Into<String>,
    ) -> Self {
        Self {
            group: group.into(),
            version: Some(version.into()),
            name: TypeName::Kind(kind.into()),
        }
    }

    /// References the type of a Rust struct by its plural name.
    pub fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self::resource(K::group(&()), K::version(&()), K::plural(&()))
    }

    /// Returns whether a type with these names is the one that this references.
    pub(crate) fn names(&self, group: &str, version: &str, plural: &str, kind: &str) -> bool {
        let is_named = match &self.name {
            TypeName::Resource(name) => name == plural,
            TypeName::Kind(name) => name == kind,
        };
        is_named && self.group == group && self.version.as_deref().is_none_or(|it| it == version)
    }

    /// Returns whether a Rust type is the one that this references.
    pub(crate) fn names_resource(&self, resource: &ApiResource) -> bool {
        self.names(&resource.group, &resource.version, &resource.plural, &resource.kind)
    }

    /// Returns whether both reference one type, at any version. A kind and a plural name match if
    /// the plural is the regular one of the kind.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let is_plural_of = |plural: &str, kind: &str| {
            let regular = GroupVersionKind::gvk("", "", kind);
            ApiResource::from_gvk(&regular).plural == plural
        };
        self.group == other.group
            && match (&self.name, &other.name) {
                (TypeName::Resource(one), TypeName::Resource(other))
                | (TypeName::Kind(one), TypeName::Kind(other)) => one == other,
                (TypeName::Resource(plural), TypeName::Kind(kind))
                | (TypeName::Kind(kind), TypeName::Resource(plural)) => is_plural_of(plural, kind),
            }
    }

    /// References the same type at any version that the server serves.
    #[must_use]
    pub fn any_version(mut self) -> Self {
        self.version = None;
        self
    }
}

impl From<&ServedType> for TypeRef {
    fn from(served: &ServedType) -> Self {
        let TypeIdentity { group, version, plural, .. } = &served.identity;
        Self::resource(&**group, &**version, &**plural)
    }
}

impl From<&GroupVersionKind> for TypeRef {
    fn from(gvk: &GroupVersionKind) -> Self {
        Self::kind(&gvk.group, &gvk.version, &gvk.kind)
    }
}

/// Formats as `widgets.example.com/v1` or `Pod/v1`, and as `widgets.example.com` for any version.
impl fmt::Display for TypeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (TypeName::Resource(name) | TypeName::Kind(name)) = &self.name;
        f.write_str(name)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(version) = &self.version {
            write!(f, "/{version}")?;
        }
        Ok(())
    }
}

/// Identity of a served type.
///
/// A CRD that was deleted and created again has another `uid`, so that no object cached under the
/// old identity is ever seen under the new one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeIdentity {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// Served version.
    pub version: Arc<str>,
    /// Plural name, as in the URL.
    pub plural: Arc<str>,
    /// Scope of the objects.
    pub scope: Scope,
    /// uid of the CRD, or of the APIService that names a service; `None` for built-in types.
    pub uid: Option<Arc<str>>,
}

impl TypeIdentity {
    /// Returns the URL path of the collection, of one namespace or of all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis/" };
        let (middle, namespace) = match namespace {
            Some(namespace) => ("/namespaces/", namespace),
            None => ("", ""),
        };
        [root, &self.group, "/", &self.version, middle, namespace, "/", &self.plural].concat()
    }

    /// Returns `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            [&*self.group, "/", &*self.version].concat()
        }
    }

    /// Returns the resource without its version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.to_string(), resource: self.plural.to_string() }
    }
}

/// Formats as `widgets.example.com/v1`.
impl fmt::Display for TypeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        write!(f, "/{}", self.version)
    }
}

/// Subresources that change how a type is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subresources {
    /// True if `/status` exists, so that a status written with the object is ignored.
    pub status: bool,
    /// True if `/scale` exists.
    pub scale: bool,
}

/// Order of the resourceVersions of a type's objects.
///
/// The API only promises that a watch can resume from a version, and that equal versions are the
/// same state. The versions of kube-apiserver's own types are growing numbers, so that the later of
/// two is known. Another server may use any text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VersionOrder {
    /// Growing numbers: built-in types and types of CRDs.
    Comparable,
    /// Equal or different only: types behind an APIService that names a service, and types whose
    /// server is not known.
    #[default]
    Opaque,
}

impl VersionOrder {
    /// Returns whether one resourceVersion is older than another; false if they cannot be compared.
    pub(crate) fn is_older(self, version: &str, than: &str) -> bool {
        match (self, version.parse::<u64>(), than.parse::<u64>()) {
            (Self::Comparable, Ok(version), Ok(than)) => version < than,
            (Self::Opaque, _, _) | (_, Err(_), _) | (_, _, Err(_)) => false,
        }
    }

    /// Returns a resourceVersion as a number; 0 if versions cannot be compared.
    pub(crate) fn number(self, version: &str) -> u64 {
        match self {
            Self::Comparable => version.parse().unwrap_or_default(),
            Self::Opaque => 0,
        }
    }
}

/// Returns whether a store that includes all changes up to a [`VersionOrder::number`] includes those
/// up to a resourceVersion.
pub(crate) fn is_included(version: &str, reached: u64) -> bool {
    version.parse().is_ok_and(|version| (1..=reached).contains(&version))
}

/// Type that the server serves now, at one version: its identity, names and subresources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedType {
    /// Identity of the type.
    pub identity: TypeIdentity,
    /// Kind, such as `Widget`.
    pub kind: Arc<str>,
    /// Kind of lists, such as `WidgetList`.
    pub list_kind: Arc<str>,
    /// Subresources of this version.
    pub subresources: Subresources,
    /// Comparability of the resourceVersions of its objects.
    pub version_order: VersionOrder,
    /// True if the server offers no watch for the type, so that it is listed in an interval.
    pub polled: bool,
}

impl ServedType {
    /// Returns whether a CRD is known to define the type.
    pub(crate) fn is_of_crd(&self) -> bool {
        self.identity.uid.is_some() && self.version_order == VersionOrder::Comparable
    }

    /// Returns the type of a Rust struct, as a server of it would serve it: for a context made by
    /// hand in a test. It has no subresources.
    pub fn of<K: kube::Resource<DynamicType = ()>>(scope: Scope) -> Self {
        let kind = K::kind(&());
        Self {
            identity: TypeIdentity {
                group: K::group(&()).into(),
                version: K::version(&()).into(),
                plural: K::plural(&()).into(),
                scope,
                uid: None,
            },
            list_kind: format!("{kind}List").into(),
            kind: kind.into(),
            subresources: Subresources::default(),
            version_order: VersionOrder::Comparable,
            polled: false,
        }
    }

    /// Returns the type as kube's `ApiResource`, for `Api::dynamic` and `DynamicObject`.
    pub fn api_resource(&self) -> ApiResource {
        ApiResource {
            group: self.identity.group.to_string(),
            version: self.identity.version.to_string(),
            api_version: self.identity.api_version(),
            kind: self.kind.to_string(),
            plural: self.identity.plural.to_string(),
        }
    }

    /// Returns the kind without its version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.identity.group.to_string(), kind: self.kind.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_regular_plural_reference_one_type_at_any_version() {
        let policies = TypeRef::resource("example.com", "v1", "policies");
        let policy = TypeRef::kind("example.com", "v2", "Policy");

        assert!(policies.is_alike(&policy) && policy.is_alike(&policies));
        assert!(policy.is_alike(&policy.clone().any_version()));
        assert!(!policies.is_alike(&TypeRef::resource("other.com", "v1", "policies")));
        assert!(!policy.is_alike(&TypeRef::kind("example.com", "v2", "Police")));
        assert!(!policies.is_alike(&TypeRef::kind("example.com", "v1", "Police")));
    }
}
