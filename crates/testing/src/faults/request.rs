//! Attributes of a request, in the terms of the API server.

use http::{Method, Uri};
use serde::{Deserialize, Serialize};

/// Kubernetes verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read of one object, or of a path without a type, such as discovery.
    Get,
    /// Read of many objects.
    List,
    /// Stream of changes.
    Watch,
    /// `POST`.
    Create,
    /// `PUT`.
    Update,
    /// `PATCH`, server-side apply included.
    Patch,
    /// Deletion of one object.
    Delete,
    /// Deletion of many objects.
    DeleteCollection,
    /// Any other HTTP method.
    Other,
}

impl Verb {
    /// Verbs that change objects.
    pub const MUTATING: [Self; 5] =
        [Self::Create, Self::Update, Self::Patch, Self::Delete, Self::DeleteCollection];
}

/// Attributes of a request, as the API server's `RequestInfo` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// Verb of the request.
    pub verb: Verb,
    /// Path of the URL.
    pub path: String,
    /// Query without its question mark; empty without a query.
    pub query: String,
    /// Group; empty for the core group.
    pub group: String,
    /// Version of the group.
    pub version: String,
    /// Plural name of the type; empty for a path without a type, such as discovery.
    pub resource: String,
    /// Namespace; empty for all of them and for cluster-scoped types.
    pub namespace: String,
    /// Name of the object; empty for many.
    pub name: String,
    /// Subresource, such as `status` or `scale`; empty for the object itself.
    pub subresource: String,
}

impl RequestInfo {
    /// Parses method and URI.
    pub fn new(method: &Method, uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        let mut info = Self {
            verb: Verb::Get,
            path: uri.path().to_owned(),
            query: query.to_owned(),
            group: String::new(),
            version: String::new(),
            resource: String::new(),
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
        };
        info.set_resource(uri.path());
        let many = !info.resource.is_empty() && info.name.is_empty();
        info.verb = match *method {
            Method::GET if !info.resource.is_empty() && has_watch_parameter(query) => Verb::Watch,
            Method::GET if many => Verb::List,
            Method::GET | Method::HEAD => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if many => Verb::DeleteCollection,
            Method::DELETE => Verb::Delete,
            _ => Verb::Other,
        };
        info
    }

    fn set_resource(&mut self, path: &str) {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        match parts.next() {
            Some("api") => {}
            Some("apis") => parts.next().unwrap_or_default().clone_into(&mut self.group),
            _ => return,
        }
        parts.next().unwrap_or_default().clone_into(&mut self.version);
        let rest: Vec<_> = parts.collect();
        let rest = match *rest.as_slice() {
            // A path below a namespace, unless the namespace itself is addressed.
            ["namespaces", namespace, resource, ..]
                if !matches!(resource, "status" | "finalize") =>
            {
                namespace.clone_into(&mut self.namespace);
                &rest[2..]
            }
            _ => &rest[..],
        };
        let fields = [&mut self.resource, &mut self.name, &mut self.subresource];
        for (field, part) in fields.into_iter().zip(rest) {
            (*part).clone_into(field);
        }
    }
}

fn has_watch_parameter(query: &str) -> bool {
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: Method, uri: &str, expected: (Verb, &str, &str, &str, &str, &str)) {
        let info = RequestInfo::new(&method, &uri.parse().unwrap());
        let RequestInfo { verb, group, resource, namespace, name, subresource, .. } = &info;
        assert_eq!((*verb, &**group, &**resource, &**namespace, &**name, &**subresource), expected);
    }

    #[test]
    fn paths_are_parsed() {
        let watch = (Verb::Watch, "x.test", "widgets", "", "", "");
        check(Method::GET, "https://h:1/apis/x.test/v1/widgets?watch=true&timeoutSeconds=9", watch);
        let list = (Verb::List, "", "pods", "a", "", "");
        check(Method::GET, "/api/v1/namespaces/a/pods?limit=500", list);
        let status = (Verb::Patch, "x.test", "widgets", "a", "w", "status");
        check(Method::PATCH, "/apis/x.test/v1/namespaces/a/widgets/w/status", status);
        let delete = (Verb::Delete, "", "namespaces", "", "a", "");
        check(Method::DELETE, "/api/v1/namespaces/a", delete);
        let finalize = (Verb::Update, "", "namespaces", "", "a", "finalize");
        check(Method::PUT, "/api/v1/namespaces/a/finalize", finalize);
        let discovery = (Verb::Get, "", "", "", "", "");
        check(Method::GET, "/apis", discovery);
        let group = (Verb::Get, "x.test", "", "", "", "");
        check(Method::GET, "/apis/x.test/v1", group);
    }
}
