//! Target of a write: an object, or a collection.

use std::sync::Arc;

use http::Method;
use serde::Deserialize;

use crate::{
    controller::inputs::{attached::Attached, statuses::InputStatuses},
    discovery::RegistryId,
    informer::ObjectKey,
    kind::Scope,
    manager::WriteRequest,
};

/// Object or collection that a write addressed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// `None` for the cluster of the controller.
    pub(super) cluster: Option<RegistryId>,
    pub(super) group: Arc<str>,
    pub(super) plural: Arc<str>,
    /// `None` for cluster-scoped objects, and for a collection of all namespaces.
    pub(super) namespace: Option<Arc<str>>,
    /// `None` for a collection: the server generated the name, or the write addressed several
    /// objects.
    pub(super) name: Option<Arc<str>>,
}

/// Body of a create request, decoded as far as its name.
#[derive(Default, Deserialize)]
struct NamedBody {
    #[serde(default)]
    metadata: Name,
}

#[derive(Default, Deserialize)]
struct Name {
    name: Option<String>,
}

impl Target {
    /// Returns the target of a write; `None` if its path names no object and no collection. A
    /// created object has the name in the response or, without a response, in the request.
    pub(super) fn of(
        write: &WriteRequest,
        cluster: Option<RegistryId>,
        answered: Option<String>,
    ) -> Option<Self> {
        let mut target = Self { cluster, ..Self::at(write.path())? };
        if target.name.is_none() && *write.method() == Method::POST {
            let sent = || {
                let named = serde_json::from_slice::<NamedBody>(&write.body()?).ok()?;
                named.metadata.name
            };
            let name = answered.or_else(sent).filter(|name| !name.is_empty());
            target.name = name.map(Arc::from);
        }
        Some(target)
    }

    /// Returns a single object of a collection.
    pub(super) fn object(&self, key: ObjectKey) -> Self {
        Self { namespace: key.namespace, name: Some(key.name), ..self.clone() }
    }

    /// Returns the key of a single object; `None` for a collection.
    pub(super) fn key(&self) -> Option<ObjectKey> {
        let name = Arc::clone(self.name.as_ref()?);
        Some(ObjectKey { namespace: self.namespace.clone(), name })
    }

    /// Returns the caches of the type, at any version, that can hold the target.
    pub(super) fn caches(&self, statuses: &InputStatuses) -> Vec<Attached> {
        let mut caches = statuses.caches(self.cluster.as_ref(), &self.group, &self.plural);
        caches.retain(|cache| self.may_be_in(cache));
        caches
    }

    /// Returns whether a cache can hold the target. It may be of another namespace, and a type may
    /// have returned with another scope since the write.
    fn may_be_in(&self, cache: &Attached) -> bool {
        let only = cache.key.namespace.as_ref();
        match (cache.served.identity.scope, &self.namespace) {
            (Scope::Cluster, namespace) => namespace.is_none(),
            (Scope::Namespaced, None) => self.name.is_none(),
            (Scope::Namespaced, Some(namespace)) => only.is_none_or(|only| only == namespace),
        }
    }

    /// Returns the target of an API path of the controller's cluster; the path of a subresource
    /// addresses its object.
    fn at(path: &str) -> Option<Self> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let group = match segments.next()? {
            "api" => "",
            "apis" => segments.next()?,
            _ => return None,
        };
        let _version = segments.next()?;
        let rest: Vec<&str> = segments.collect();
        let (namespace, plural, name) = match *rest.as_slice() {
            // A namespace itself, and its subresources.
            ["namespaces", name] | ["namespaces", name, "status" | "finalize"] => {
                (None, "namespaces", Some(name))
            }
            ["namespaces", namespace, plural] => (Some(namespace), plural, None),
            ["namespaces", namespace, plural, name, ..] => (Some(namespace), plural, Some(name)),
            [plural] => (None, plural, None),
            [plural, name, ..] => (None, plural, Some(name)),
            [] => return None,
        };
        Some(Self {
            cluster: None,
            group: group.into(),
            plural: plural.into(),
            namespace: namespace.map(Arc::from),
            name: name.map(Arc::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<(&str, &str, Option<&str>, Option<&str>)>) {
        let target = Target::at(path);

        let target = target
            .as_ref()
            .map(|it| (&*it.group, &*it.plural, it.namespace.as_deref(), it.name.as_deref()));
        assert_eq!(target, expected, "{path}");
    }

    #[test]
    fn path_names_an_object_or_a_collection() {
        let config_map = Some(("", "configmaps", Some("ns"), Some("a")));
        check("/api/v1/namespaces/ns/configmaps/a", config_map);
        check("/api/v1/namespaces/ns/configmaps", Some(("", "configmaps", Some("ns"), None)));
        let widget = Some(("example.com", "widgets", Some("ns"), Some("a")));
        check("/apis/example.com/v1/namespaces/ns/widgets/a/status", widget);
        let node = Some(("", "nodes", None, Some("a")));
        check("/api/v1/nodes/a", node);
        check("/api/v1/nodes/a/status", node);
        check("/api/v1/nodes", Some(("", "nodes", None, None)));
    }

    #[test]
    fn namespace_is_an_object_too() {
        check("/api/v1/namespaces", Some(("", "namespaces", None, None)));
        check("/api/v1/namespaces/ns", Some(("", "namespaces", None, Some("ns"))));
        check("/api/v1/namespaces/ns/finalize", Some(("", "namespaces", None, Some("ns"))));
    }

    #[test]
    fn path_without_an_object_has_no_target() {
        for path in ["/", "/healthz", "/api", "/apis/example.com", "/apis/example.com/v1"] {
            check(path, None);
        }
    }
}
