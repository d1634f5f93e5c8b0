//! Name of an object within the cluster.

use std::fmt;

use kube::{Resource, ResourceExt};

use crate::kind::GroupKind;

/// Name of an object: group, kind, namespace and name. The version does not belong to it.
///
/// ```
/// use pilotlight::{apply::ObjectName, kind::GroupKind};
///
/// let kind = GroupKind { group: "apps".to_owned(), kind: "Deployment".to_owned() };
/// let name = ObjectName { kind, namespace: Some("shop".to_owned()), name: "web".to_owned() };
/// assert_eq!(name.to_string(), "Deployment.apps shop/web");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Group and kind.
    pub kind: GroupKind,
    /// Namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Name within the namespace.
    pub name: String,
}

impl ObjectName {
    /// Returns the name of an object of a Rust type.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let (group, kind) = (K::group(&()).into_owned(), K::kind(&()).into_owned());
        Self {
            kind: GroupKind { group, kind },
            namespace: object.namespace(),
            name: object.name_any(),
        }
    }
}

/// Formats as `Deployment.apps shop/web`.
impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}
