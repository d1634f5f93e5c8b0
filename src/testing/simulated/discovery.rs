//! What the server says it serves, and the paths that are no types.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    call::{Call, Reply},
    cluster::Cluster,
    custom::Custom,
    refusal::Refusal,
    resource::Resource,
};
use crate::testing::{KUBERNETES_VERSION, Verb};

/// The versions of a group, best first, each with its types; `None` for a service that is down.
type Group = Vec<(String, Option<Vec<Arc<Resource>>>)>;

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// In the order in which the real server names those of custom types.
const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

impl Cluster {
    /// Answers what is no request for a type.
    pub(super) fn answer_path(&self, call: &Call) -> Result<Reply, Refusal> {
        let path = call.info.path.trim_end_matches('/');
        if call.info.verb != Verb::Get {
            return Err(Refusal::no_such_path());
        }
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        match *parts.as_slice() {
            ["healthz" | "readyz" | "livez", ..] => Ok(Reply::text(200, "ok")),
            ["version"] => Ok(Reply::json(200, &version())),
            ["api" | "apis"] => self.all_groups(call, path == "/api"),
            ["api", version] => self.group_version("", version),
            ["apis", group] => self.group(group),
            ["apis", group, version] => self.group_version(group, version),
            ["openapi", "v3"] => Ok(Reply::json(200, &self.openapi_index())),
            ["openapi", "v3", "api", version] => self.openapi("", version),
            ["openapi", "v3", "apis", group, version] => self.openapi(group, version),
            ["openapi", ..] => Err(Refusal::no_such_path()),
            ["metrics" | "logs" | "debug", ..] => {
                Err(Refusal::not_simulated(format!("the path {path}")))
            }
            _ => Err(Refusal::no_such_path()),
        }
    }

    fn openapi_index(&self) -> Value {
        let paths = self.groups().into_iter().flat_map(|(group, versions)| {
            versions.into_iter().map(move |(version, _)| match group.as_str() {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            })
        });
        let paths: serde_json::Map<_, _> = paths
            .map(|path| {
                let url = json!({ "serverRelativeURL": format!("/openapi/v3/{path}") });
                (path, url)
            })
            .collect();
        json!({ "paths": paths })
    }

    /// Which types can be patched, and that the server validates: what kubectl asks before it
    /// applies. Schemas are absent.
    fn openapi(&self, group: &str, version: &str) -> Result<Reply, Refusal> {
        let groups = self.groups();
        let found = groups.get(group).and_then(|it| it.iter().find(|it| it.0 == version));
        let Some((_, Some(types))) = found else { return Err(Refusal::no_such_path()) };
        let paths: serde_json::Map<_, _> = types
            .iter()
            .map(|it| {
                let root = if group.is_empty() { "/api".into() } else { format!("/apis/{group}") };
                let place = if it.namespaced { "/namespaces/{namespace}" } else { "" };
                let path = format!("{root}/{version}{place}/{}/{{name}}", it.plural);
                let kind = json!({ "group": group, "version": version, "kind": it.kind });
                let parameter = json!({
                    "name": "fieldValidation",
                    "in": "query",
                    "schema": { "type": "string", "uniqueItems": true },
                });
                let patch = json!({
                    "parameters": [parameter],
                    "responses": {},
                    "x-kubernetes-action": "patch",
                    "x-kubernetes-group-version-kind": kind,
                });
                (path, json!({ "patch": patch }))
            })
            .collect();
        let document = json!({
            "openapi": "3.0.0",
            "info": { "title": "Kubernetes", "version": "simulated" },
            "paths": paths,
            "components": { "schemas": {} },
        });
        Ok(Reply::json(200, &document))
    }

    fn groups(&self) -> BTreeMap<String, Group> {
        let mut types: BTreeMap<(String, String), Option<Vec<Arc<Resource>>>> = BTreeMap::new();
        let local = self.built_in.values().cloned();
        let custom = self.custom.values().flat_map(Custom::discovered);
        for resource in local.chain(custom) {
            let key = (resource.group.clone(), resource.version.clone());
            types
                .entry(key)
                .or_insert_with(|| Some(Vec::new()))
                .get_or_insert_default()
                .push(resource);
        }
        for service in self.aggregated.values().filter(|it| it.is_registered()) {
            let key = (service.group.clone(), service.version.clone());
            types.insert(key, service.available.then(|| service.resources()));
        }
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        for ((group, version), types) in types {
            groups.entry(group).or_default().push((version, types));
        }
        for versions in groups.values_mut() {
            versions.sort_by_key(|(version, _)| std::cmp::Reverse(priority(version)));
        }
        groups
    }

    fn all_groups(&self, call: &Call, core: bool) -> Result<Reply, Refusal> {
        let groups = self.groups();
        let groups: Vec<_> = groups.iter().filter(|(group, _)| group.is_empty() == core).collect();
        for (version, content_type) in [
            ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            (
                "v2beta1",
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            ),
        ] {
            if accepts_aggregated(&call.accept, version) {
                let items: Vec<_> =
                    groups.iter().map(|it| self.aggregated_group(it.0, it.1)).collect();
                let list = json!({
                    "kind": "APIGroupDiscoveryList",
                    "apiVersion": format!("apidiscovery.k8s.io/{version}"),
                    "metadata": {},
                    "items": items,
                });
                return Ok(tagged(call, Reply { content_type, ..Reply::json(200, &list) }));
            }
        }
        let list = if core {
            let versions: Vec<_> =
                groups.iter().flat_map(|it| it.1.iter().map(|it| it.0.clone())).collect();
            json!({ "kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": [] })
        } else {
            let groups: Vec<_> = groups.iter().map(|it| legacy_group(it.0, it.1)).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        };
        Ok(Reply::json(200, &list))
    }

    fn aggregated_group(&self, group: &str, versions: &Group) -> Value {
        let versions: Vec<_> = versions
            .iter()
            .map(|(version, types)| {
                let freshness = if types.is_some() { "Current" } else { "Stale" };
                let types = types.iter().flatten();
                let resources: Vec<_> = types.map(|it| self.aggregated_type(it)).collect();
                json!({ "version": version, "resources": resources, "freshness": freshness })
            })
            .collect();
        let mut metadata = json!({ "creationTimestamp": null });
        if !group.is_empty() {
            metadata["name"] = group.into();
        }
        json!({ "metadata": metadata, "versions": versions })
    }

    fn aggregated_type(&self, resource: &Resource) -> Value {
        let kind = json!({
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        });
        let mut shown = json!({
            "resource": resource.plural,
            "responseKind": kind,
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": self.verbs(resource),
        });
        if !resource.short_names.is_empty() {
            shown["shortNames"] = resource.short_names.clone().into();
        }
        if !resource.categories.is_empty() {
            shown["categories"] = resource.categories.clone().into();
        }
        let scale = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
        let subresources: Vec<_> = subresources(resource)
            .map(|name| {
                json!({
                    "subresource": name,
                    "responseKind": if name == "scale" { &scale } else { &kind },
                    "verbs": ["get", "patch", "update"],
                })
            })
            .collect();
        if !subresources.is_empty() {
            shown["subresources"] = subresources.into();
        }
        shown
    }

    fn verbs(&self, resource: &Resource) -> Vec<&'static str> {
        let custom = self.custom.get(&resource.storage);
        let terminating = custom.is_some_and(|it| it.terminating);
        let reads_and_deletes = |verb: &&str| !matches!(*verb, "create" | "patch" | "update");
        let verbs = if custom.is_some() { CUSTOM_VERBS } else { VERBS };
        verbs.into_iter().filter(|verb| !terminating || reads_and_deletes(verb)).collect()
    }

    fn group(&self, group: &str) -> Result<Reply, Refusal> {
        let groups = self.groups();
        let versions = groups.get(group).ok_or_else(Refusal::no_such_path)?;
        let mut shown = legacy_group(group, versions);
        shown["kind"] = "APIGroup".into();
        shown["apiVersion"] = "v1".into();
        Ok(Reply::json(200, &shown))
    }

    fn group_version(&self, group: &str, version: &str) -> Result<Reply, Refusal> {
        let groups = self.groups();
        let versions = groups.get(group).ok_or_else(Refusal::no_such_path)?;
        let found = versions.iter().find(|it| it.0 == version);
        let (_, types) = found.ok_or_else(|| {
            let is_ours = self.is_built_in(group);
            if is_ours { Refusal::no_such_resource() } else { Refusal::no_such_path() }
        })?;
        let types = types.as_ref().ok_or_else(Refusal::service_unavailable)?;
        let mut resources = Vec::new();
        for resource in types {
            let mut shown = json!({
                "name": resource.plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": self.verbs(resource),
            });
            if !resource.short_names.is_empty() {
                shown["shortNames"] = resource.short_names.clone().into();
            }
            if !resource.categories.is_empty() {
                shown["categories"] = resource.categories.clone().into();
            }
            resources.push(shown);
            for subresource in subresources(resource) {
                let mut shown = json!({
                    "name": format!("{}/{subresource}", resource.plural),
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": resource.kind,
                    "verbs": ["get", "patch", "update"],
                });
                if subresource == "scale" {
                    shown["kind"] = "Scale".into();
                    shown["group"] = "autoscaling".into();
                    shown["version"] = "v1".into();
                }
                resources.push(shown);
            }
        }
        let group_version =
            if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let list = json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": resources,
        });
        Ok(Reply::json(200, &list))
    }
}

fn subresources(resource: &Resource) -> impl Iterator<Item = &'static str> {
    let status = resource.status.then_some("status");
    status.into_iter().chain(resource.scale.is_some().then_some("scale"))
}

fn legacy_group(group: &str, versions: &Group) -> Value {
    let versions: Vec<_> = versions
        .iter()
        .map(|(version, _)| {
            json!({ "groupVersion": format!("{group}/{version}"), "version": version })
        })
        .collect();
    json!({ "name": group, "preferredVersion": versions.first(), "versions": versions })
}

fn accepts_aggregated(accept: &str, version: &str) -> bool {
    accept.split(',').any(|wanted| {
        let parts: Vec<_> = wanted.split(';').map(str::trim).collect();
        let has = |part: &str| parts.contains(&part);
        has("application/json") && has("as=APIGroupDiscoveryList") && has(&format!("v={version}"))
    })
}

/// Answers 304 to who knows it already.
fn tagged(call: &Call, reply: Reply) -> Reply {
    let mut hasher = DefaultHasher::new();
    reply.body.hash(&mut hasher);
    let etag = format!("\"{:016X}\"", hasher.finish());
    if call.if_none_match == etag {
        return Reply { etag: Some(etag), ..Reply::text(304, "") };
    }
    Reply { etag: Some(etag), ..reply }
}

fn version() -> Value {
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next().unwrap_or_default(),
        "minor": numbers.next().unwrap_or_default(),
        "gitVersion": format!("v{}+simulated", KUBERNETES_VERSION.trim_start_matches('v')),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    })
}

/// How versions are ordered: `v2`, `v1`, `v1beta2`, `v1alpha1`, then all others by name.
fn priority(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let name = std::cmp::Reverse(version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0, name) };
    for (stage, word) in [(2, "beta"), (1, "alpha")] {
        if let Some((major, minor)) = rest.split_once(word)
            && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
        {
            return (stage, major, minor, name);
        }
    }
    match rest.parse() {
        Ok(major) => (3, major, 0, name),
        Err(_) => (0, 0, 0, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_first() {
        let mut versions = ["v1alpha1", "foo", "v1", "v2beta1", "v10", "v2", "v2beta2"];
        versions.sort_by_key(|it| std::cmp::Reverse(priority(it)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta2", "v2beta1", "v1alpha1", "foo"]);
    }
}
