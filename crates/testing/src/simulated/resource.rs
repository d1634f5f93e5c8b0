//! Served types, and the table of the built-in ones.

use std::sync::Arc;

// Storages of types that the server itself reads.
pub(super) const CRDS: &str = "customresourcedefinitions.apiextensions.k8s.io";
pub(super) const API_SERVICES: &str = "apiservices.apiregistration.k8s.io";
pub(super) const NAMESPACES: &str = "namespaces";

/// Type at one served version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SimulatedResource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) list_kind: String,
    pub(super) short_names: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) namespaced: bool,
    pub(super) status: bool,
    pub(super) scale: Option<Scale>,
    /// True if a change of the specification increments `metadata.generation`.
    pub(super) generation: bool,
    /// True for types from a CRD or an aggregated API.
    pub(super) custom: bool,
    /// True if a delete returns the object rather than a status.
    pub(super) returns_deleted: bool,
    /// Supported field selectors besides name and namespace.
    pub(super) selectable: &'static [&'static str],
    /// Collection of its objects, which the versions of a type share.
    pub(super) storage: Storage,
}

/// Name of a collection in the store: `plural.group`.
pub(super) type Storage = Arc<str>;

/// Paths of the scale subresource, as JSON pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) spec: String,
    pub(super) status: String,
    /// Path of a label selector, as an object or as text.
    pub(super) selector: Option<String>,
}

impl SimulatedResource {
    /// Returns `plural.group`, as messages name a type.
    pub(super) fn qualified(&self) -> String {
        qualified(&self.group, &self.plural)
    }

    /// Returns `group/version`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

pub(super) fn qualified(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// Group of access reviews, which can be created and are not stored.
pub(super) const REVIEWS: &str = "authorization.k8s.io";

struct Row {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    short: &'static str,
    flags: &'static str,
    selectable: &'static [&'static str],
}

/// Builds a row. Flags: `n`amespaced, `s`tatus, s`c`ale, `g`eneration, `r`eturns the deleted
/// object, in `a`ll, api-`e`xtensions.
const fn row(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    short: &'static str,
    flags: &'static str,
) -> Row {
    Row { group, version, plural, kind, short, flags, selectable: &[] }
}

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.apiVersion",
    "involvedObject.fieldPath",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.resourceVersion",
    "involvedObject.uid",
    "reason",
    "reportingComponent",
    "type",
];
const RBAC: &str = "rbac.authorization.k8s.io";

const TABLE: &[Row] = &[
    row("", "v1", "namespaces", "Namespace", "ns", "s"),
    row("", "v1", "configmaps", "ConfigMap", "cm", "n"),
    Row { selectable: &["type"], ..row("", "v1", "secrets", "Secret", "", "n") },
    row("", "v1", "services", "Service", "svc", "nsra"),
    Row {
        selectable: &["spec.nodeName", "status.phase"],
        ..row("", "v1", "pods", "Pod", "po", "nsgra")
    },
    Row { selectable: EVENT_FIELDS, ..row("", "v1", "events", "Event", "ev", "n") },
    row("", "v1", "serviceaccounts", "ServiceAccount", "sa", "nr"),
    row("apps", "v1", "deployments", "Deployment", "deploy", "nscga"),
    row("apps", "v1", "statefulsets", "StatefulSet", "sts", "nscga"),
    row("apps", "v1", "replicasets", "ReplicaSet", "rs", "nscga"),
    row("apps", "v1", "daemonsets", "DaemonSet", "ds", "nsga"),
    row("apps", "v1", "controllerrevisions", "ControllerRevision", "", "n"),
    row(REVIEWS, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", "", "n"),
    row(REVIEWS, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", "", ""),
    row(REVIEWS, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", "", ""),
    row(REVIEWS, "v1", "subjectaccessreviews", "SubjectAccessReview", "", ""),
    row("batch", "v1", "jobs", "Job", "", "nsga"),
    row("coordination.k8s.io", "v1", "leases", "Lease", "", "n"),
    row("events.k8s.io", "v1", "events", "Event", "ev", "n"),
    row(RBAC, "v1", "clusterroles", "ClusterRole", "", ""),
    row(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", "", ""),
    row(RBAC, "v1", "roles", "Role", "", "n"),
    row(RBAC, "v1", "rolebindings", "RoleBinding", "", "n"),
    row(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd,crds",
        "sge",
    ),
    row("apiregistration.k8s.io", "v1", "apiservices", "APIService", "", "se"),
];

/// Returns all built-in types in the order of discovery.
pub(super) fn built_in() -> Vec<Arc<SimulatedResource>> {
    TABLE.iter().map(|row| Arc::new(row.resource())).collect()
}

impl Row {
    fn resource(&self) -> SimulatedResource {
        let has = |flag| self.flags.contains(flag);
        let scale = has('c').then(|| Scale {
            spec: "/spec/replicas".to_owned(),
            status: "/status/replicas".to_owned(),
            selector: Some("/spec/selector".to_owned()),
        });
        let mut categories = Vec::new();
        if has('a') {
            categories.push("all".to_owned());
        }
        if has('e') {
            categories.push("api-extensions".to_owned());
        }
        // Events of both groups are the same objects.
        let storage_group = if self.plural == "events" { "" } else { self.group };
        SimulatedResource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            short_names: self
                .short
                .split(',')
                .filter(|it| !it.is_empty())
                .map(str::to_owned)
                .collect(),
            categories,
            namespaced: has('n'),
            status: has('s'),
            scale,
            generation: has('g'),
            custom: false,
            returns_deleted: has('r'),
            selectable: self.selectable,
            storage: qualified(storage_group, self.plural).into(),
        }
    }
}
