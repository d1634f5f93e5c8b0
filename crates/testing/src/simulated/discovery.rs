//! Discovery, and other paths that address no type.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use super::{
    call::{Call, Form, HttpReply},
    cluster::SimulatedCluster,
    groups::ServedGroup,
    refusal::Refusal,
    resource::{NAMESPACES, REVIEWS, SimulatedResource},
};
use crate::{KUBERNETES_VERSION, Verb};

/// Aggregated discovery: all groups in one document.
const AGGREGATED: Form =
    Form { group: "apidiscovery.k8s.io", version: "v2", kind: "APIGroupDiscoveryList" };

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Verbs of custom types, in the order of the real server.
const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

impl SimulatedCluster {
    /// Answers a request that addresses no type.
    pub(super) fn serve_path(&self, call: &Call) -> Result<HttpReply, Refusal> {
        let path = call.info.path.trim_end_matches('/');
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        // The aggregator answers for groups with every method.
        let is_group = matches!(*parts.as_slice(), ["apis"] | ["apis", _]);
        if call.info.verb != Verb::Get && !is_group {
            let is_known = matches!(*parts.as_slice(), ["version" | "api"]);
            return Err(match is_known {
                true => Refusal::method_not_allowed(),
                false => Refusal::no_such_path(),
            });
        }
        match *parts.as_slice() {
            ["healthz" | "readyz" | "livez", ..] => Ok(HttpReply::text(200, "ok")),
            ["version"] => {
                call.check_media_type()?;
                Ok(HttpReply::json(200, &version()))
            }
            [] => Ok(HttpReply::json(200, &self.paths())),
            ["api" | "apis"] => self.all_groups(call, path == "/api"),
            ["api", version] => self.group_version(call, "", version),
            ["apis", group] => self.group(call, group),
            ["apis", group, version] => self.group_version(call, group, version),
            ["openapi", "v3"] => Ok(HttpReply::json(200, &self.openapi_index())),
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
        let paths = self.groups().into_iter().flat_map(|ServedGroup { name, versions }| {
            versions.into_iter().map(move |it| match name.as_str() {
                "" => format!("api/{}", it.version),
                name => format!("apis/{name}/{}", it.version),
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

    /// Lists the root paths.
    fn paths(&self) -> Value {
        let mut paths = vec!["/api".to_owned(), "/apis".to_owned()];
        for ServedGroup { name, versions } in self.groups() {
            let root = if name.is_empty() { "/api".to_owned() } else { format!("/apis/{name}") };
            paths.extend(versions.iter().map(|it| format!("{root}/{}", it.version)));
        }
        let others = ["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"];
        paths.extend(others.map(str::to_owned));
        paths.sort();
        json!({ "paths": paths })
    }

    /// Lists the types that can be patched, with server-side validation, as kubectl checks before
    /// it applies. Schemas are absent.
    fn openapi(&self, group: &str, version: &str) -> Result<HttpReply, Refusal> {
        let found = self.groups().into_iter().find(|it| it.name == group);
        let found = found.and_then(|it| it.versions.into_iter().find(|it| it.version == version));
        let Some(found) = found.filter(|it| it.is_current) else {
            return Err(Refusal::no_such_path());
        };
        let paths: serde_json::Map<_, _> = found
            .types
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
        Ok(HttpReply::json(200, &document))
    }

    fn all_groups(&self, call: &Call, core: bool) -> Result<HttpReply, Refusal> {
        if call.accepts(AGGREGATED) {
            let groups = self.groups();
            let groups = groups.iter().filter(|it| it.name.is_empty() == core);
            let items: Vec<_> = groups.map(|it| self.aggregated_group(it)).collect();
            let list = json!({
                "kind": "APIGroupDiscoveryList",
                "apiVersion": "apidiscovery.k8s.io/v2",
                "metadata": {},
                "items": items,
            });
            let content_type =
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(tagged(call, HttpReply { content_type, ..HttpReply::json(200, &list) }));
        }
        call.form(&[])?;
        let list = if core {
            // The external address of the server is unknown.
            let address = json!({ "clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443" });
            json!({
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [address],
            })
        } else {
            let groups = self.registered_groups();
            let groups: Vec<_> =
                groups.iter().map(|(name, versions)| legacy_group(name, versions)).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        };
        Ok(HttpReply::json(200, &list))
    }

    fn aggregated_group(&self, group: &ServedGroup) -> Value {
        let versions: Vec<_> = group
            .versions
            .iter()
            .map(|it| {
                let freshness = if it.is_current { "Current" } else { "Stale" };
                let mut shown = json!({ "version": it.version, "freshness": freshness });
                if !it.types.is_empty() {
                    let types = it.types.iter().map(|it| self.aggregated_type(it));
                    shown["resources"] = types.collect();
                }
                shown
            })
            .collect();
        let mut metadata = json!({ "creationTimestamp": null });
        if !group.name.is_empty() {
            metadata["name"] = group.name.as_str().into();
        }
        json!({ "metadata": metadata, "versions": versions })
    }

    fn aggregated_type(&self, resource: &SimulatedResource) -> Value {
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

    fn verbs(&self, resource: &SimulatedResource) -> Vec<&'static str> {
        if resource.group == REVIEWS {
            return vec!["create"];
        }
        if self.list_only.contains(&resource.storage) {
            return vec!["get", "list"];
        }
        let custom = self.custom.get(&resource.storage);
        let terminating = custom.is_some_and(|it| it.terminating);
        let reads_and_deletes = |verb: &&str| !matches!(*verb, "create" | "patch" | "update");
        let is_namespace = &*resource.storage == NAMESPACES;
        let verbs = if custom.is_some() { CUSTOM_VERBS } else { VERBS };
        let verbs = verbs.into_iter().filter(|verb| !terminating || reads_and_deletes(verb));
        verbs.filter(|verb| !is_namespace || *verb != "deletecollection").collect()
    }

    fn group(&self, call: &Call, group: &str) -> Result<HttpReply, Refusal> {
        let groups = self.registered_groups();
        let found = groups.iter().find(|(name, _)| name == group);
        let (name, versions) = found.ok_or_else(Refusal::no_such_path)?;
        call.form(&[])?;
        let mut shown = legacy_group(name, versions);
        shown["kind"] = "APIGroup".into();
        shown["apiVersion"] = "v1".into();
        Ok(HttpReply::json(200, &shown))
    }

    fn group_version(&self, call: &Call, group: &str, version: &str) -> Result<HttpReply, Refusal> {
        let found = self.groups().into_iter().find(|it| it.name == group);
        let versions = found.ok_or_else(Refusal::no_such_path)?.versions;
        let found = versions.into_iter().find(|it| it.version == version);
        let found = found.ok_or_else(|| {
            let is_ours = self.is_built_in(group);
            if is_ours { Refusal::no_such_resource() } else { Refusal::no_such_path() }
        })?;
        if !found.is_current {
            return Err(Refusal::service_unavailable());
        }
        call.form(&[])?;
        let mut resources = Vec::new();
        for resource in &found.types {
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
        let mut list = json!({
            "kind": "APIResourceList",
            "groupVersion": group_version,
            "resources": resources,
        });
        if !group.is_empty() {
            list["apiVersion"] = "v1".into();
        }
        Ok(HttpReply::json(200, &list))
    }
}

fn subresources(resource: &SimulatedResource) -> impl Iterator<Item = &'static str> {
    let (status, scale) =
        (resource.status.then_some("status"), resource.scale.is_some().then_some("scale"));
    // Sorted by name, except for custom types.
    let names = if resource.custom { [status, scale] } else { [scale, status] };
    names.into_iter().flatten()
}

fn legacy_group(group: &str, versions: &[String]) -> Value {
    let versions: Vec<_> = versions
        .iter()
        .map(|version| json!({ "groupVersion": format!("{group}/{version}"), "version": version }))
        .collect();
    json!({ "name": group, "preferredVersion": versions.first(), "versions": versions })
}

/// Answers 304 if the client's etag matches.
fn tagged(call: &Call, reply: HttpReply) -> HttpReply {
    let mut hasher = DefaultHasher::new();
    reply.body.hash(&mut hasher);
    let etag = format!("\"{:016X}\"", hasher.finish());
    if call.if_none_match == etag {
        // A content type here would replace that of the cached response.
        return HttpReply { etag: Some(etag), content_type: "", ..HttpReply::text(304, "") };
    }
    HttpReply { etag: Some(etag), ..reply }
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
