//! Parsed discovery responses, aggregated and legacy.

use std::sync::Arc;

use serde::Deserialize;

use crate::kind::{Scope, Subresources};

/// A discovery response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DiscoveryResponse {
    /// True if all served group versions are listed: one that is not listed is not served.
    pub(super) complete: bool,
    /// Listed group versions.
    pub(super) versions: Vec<ListedVersion>,
}

/// Discovery response for one group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedVersion {
    pub(super) group: Arc<str>,
    pub(super) version: Arc<str>,
    /// `None` if the backing server could not be reached or the response is stale.
    pub(super) resources: Option<Vec<ServedResource>>,
}

/// A resource of a group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedResource {
    pub(super) plural: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) scope: Scope,
    pub(super) reads: ReadVerbs,
    pub(super) subresources: Subresources,
}

/// Reads of a collection that a resource supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadVerbs {
    /// No list.
    None,
    /// List without watch.
    List,
    ListAndWatch,
}

impl DiscoveryResponse {
    /// Joins the responses of `/api` and `/apis`. The result is complete if both are.
    pub(super) fn join(mut self, other: Self) -> Self {
        self.complete &= other.complete;
        self.versions.extend(other.versions);
        self
    }
}

impl ReadVerbs {
    fn of(verbs: &[String]) -> Self {
        let has = |verb: &str| verbs.iter().any(|own| own == verb);
        match (has("list"), has("watch")) {
            (true, true) => Self::ListAndWatch,
            (true, false) => Self::List,
            (false, _) => Self::None,
        }
    }
}

/// Aggregated discovery, v2 and v2beta1; fields that are not needed are skipped.
#[derive(Deserialize)]
pub(super) struct GroupDiscoveryList {
    #[serde(default)]
    items: Vec<GroupDiscovery>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    #[serde(default)]
    metadata: GroupMetadata,
    #[serde(default)]
    versions: Vec<VersionDiscovery>,
}

#[derive(Default, Deserialize)]
struct GroupMetadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionDiscovery {
    version: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    #[serde(default)]
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    subresources: Vec<SubresourceDiscovery>,
}

#[derive(Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct SubresourceDiscovery {
    #[serde(default)]
    subresource: String,
}

impl From<GroupDiscoveryList> for DiscoveryResponse {
    fn from(list: GroupDiscoveryList) -> Self {
        // Every API server serves something: an empty response is a defect and proves nothing.
        let complete = !list.items.is_empty();
        let versions = list
            .items
            .into_iter()
            .flat_map(|group| {
                let name: Arc<str> = group.metadata.name.into();
                group.versions.into_iter().map(move |version| ListedVersion {
                    group: name.clone(),
                    version: version.version.into(),
                    resources: (version.freshness != "Stale")
                        .then(|| version.resources.into_iter().map(ServedResource::from).collect()),
                })
            })
            .collect();
        Self { complete, versions }
    }
}

impl From<ResourceDiscovery> for ServedResource {
    fn from(found: ResourceDiscovery) -> Self {
        let has = |name: &str| found.subresources.iter().any(|own| own.subresource == name);
        Self {
            subresources: Subresources { status: has("status"), scale: has("scale") },
            reads: ReadVerbs::of(&found.verbs),
            scope: if found.scope == "Namespaced" { Scope::Namespaced } else { Scope::Cluster },
            kind: found.response_kind.map(|kind| kind.kind).unwrap_or_default().into(),
            plural: found.resource.into(),
        }
    }
}

/// Legacy discovery of `/api`.
#[derive(Deserialize)]
pub(super) struct CoreVersions {
    #[serde(default)]
    pub(super) versions: Vec<String>,
}

/// Legacy discovery of `/apis`.
#[derive(Deserialize)]
pub(super) struct GroupList {
    #[serde(default)]
    pub(super) groups: Vec<LegacyGroup>,
}

/// A group of legacy discovery.
#[derive(Deserialize)]
pub(super) struct LegacyGroup {
    pub(super) name: String,
    #[serde(default)]
    pub(super) versions: Vec<GroupVersion>,
}

/// A version of a group of legacy discovery.
#[derive(Deserialize)]
pub(super) struct GroupVersion {
    pub(super) version: String,
}

/// Legacy discovery of a group version.
#[derive(Deserialize)]
pub(super) struct ResourceList {
    /// Required: a document without them is not from the API server, and proves nothing.
    resources: Vec<LegacyResource>,
}

#[derive(Deserialize)]
struct LegacyResource {
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

impl From<ResourceList> for Vec<ServedResource> {
    fn from(list: ResourceList) -> Self {
        let (parts, whole): (Vec<_>, Vec<_>) =
            list.resources.into_iter().partition(|resource| resource.name.contains('/'));
        whole
            .into_iter()
            .map(|resource| {
                let has = |part: &str| {
                    parts.iter().any(|own| own.name.split_once('/') == Some((&resource.name, part)))
                };
                ServedResource {
                    subresources: Subresources { status: has("status"), scale: has("scale") },
                    reads: ReadVerbs::of(&resource.verbs),
                    scope: if resource.namespaced { Scope::Namespaced } else { Scope::Cluster },
                    kind: resource.kind.into(),
                    plural: resource.name.into(),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stale_version_has_no_resources_even_if_it_lists_some() {
        let list: GroupDiscoveryList = serde_json::from_value(json!({
            "kind": "APIGroupDiscoveryList",
            "items": [{ "metadata": { "name": "metrics.k8s.io", "creationTimestamp": null },
                "versions": [
                    { "version": "v1beta1", "freshness": "Stale",
                      "resources": [{ "resource": "pods", "scope": "Namespaced", "verbs": [] }] },
                    { "version": "v1", "freshness": "Current",
                      "resources": [{ "resource": "nodes", "scope": "Cluster",
                        "responseKind": { "group": "", "version": "", "kind": "NodeMetrics" },
                        "verbs": ["get", "list", "watch"],
                        "subresources": [{ "subresource": "status", "verbs": ["get"] }] }] }
                ] }]
        }))
        .unwrap();

        let response = DiscoveryResponse::from(list);

        assert!(response.complete);
        assert_eq!(response.versions[0].resources, None);
        assert_eq!(
            response.versions[1].resources,
            Some(vec![ServedResource {
                plural: "nodes".into(),
                kind: "NodeMetrics".into(),
                scope: Scope::Cluster,
                reads: ReadVerbs::ListAndWatch,
                subresources: Subresources { status: true, scale: false },
            }])
        );
    }

    #[test]
    fn an_empty_response_is_not_complete() {
        let list: GroupDiscoveryList = serde_json::from_value(json!({ "items": [] })).unwrap();

        assert!(!DiscoveryResponse::from(list).complete);
    }

    #[test]
    fn legacy_subresources_belong_to_their_resource() {
        let list: ResourceList = serde_json::from_value(json!({ "resources": [
            { "name": "pods", "kind": "Pod", "namespaced": true, "verbs": ["list", "watch"] },
            { "name": "pods/status", "kind": "Pod", "namespaced": true, "verbs": ["get"] },
            { "name": "bindings", "kind": "Binding", "namespaced": true, "verbs": ["create"] },
            { "name": "loads", "kind": "Load", "namespaced": true, "verbs": ["get", "list"] },
        ] }))
        .unwrap();

        let resources = Vec::<ServedResource>::from(list);

        let reads: Vec<_> = resources.iter().map(|resource| resource.reads).collect();
        assert_eq!(reads, [ReadVerbs::ListAndWatch, ReadVerbs::None, ReadVerbs::List]);
        assert_eq!(resources[0].subresources, Subresources { status: true, scale: false });
    }
}
