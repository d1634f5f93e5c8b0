//! APIServices: local ones, which the server creates for its own groups, and those that name a
//! service.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    aggregated::Aggregated,
    cluster::SimulatedCluster,
    history::{NamespacedName, ObjectChange},
    object,
    resource::{API_SERVICES, SimulatedResource, Storage, qualified},
};
use crate::{CrdBuilder, RequestInfo};

const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

impl SimulatedCluster {
    /// Returns the aggregated API that serves a request.
    pub(super) fn aggregated_of(&self, info: &RequestInfo) -> Option<&Aggregated> {
        self.aggregated.get(&format!("{}.{}", info.version, info.group)).filter(|it| it.registered)
    }

    /// Sets the types behind an APIService.
    pub(super) fn back(&mut self, name: &str, types: &[CrdBuilder]) {
        let (version, group) = name.split_once('.').unwrap_or((name, ""));
        let service = self.aggregated.entry(name.to_owned()).or_default();
        group.clone_into(&mut service.group);
        version.clone_into(&mut service.version);
        service.backing = types
            .iter()
            .map(|it| {
                let crd = it.build();
                let names = crd.spec.names;
                let resource = SimulatedResource {
                    group: group.to_owned(),
                    version: version.to_owned(),
                    singular: names.kind.to_lowercase(),
                    list_kind: format!("{}List", names.kind),
                    kind: names.kind,
                    short_names: Vec::new(),
                    categories: Vec::new(),
                    namespaced: it.is_namespaced(),
                    status: false,
                    scale: None,
                    generation: true,
                    custom: true,
                    returns_deleted: false,
                    selectable: &[],
                    storage: qualified(group, &names.plural).into(),
                    plural: names.plural,
                };
                (resource.plural.clone(), Arc::new(resource))
            })
            .collect();
        self.update_api_service(name);
    }

    /// Sets whether the service behind an APIService is available, and breaks its watches.
    pub(super) fn set_available(&mut self, name: &str, available: bool) {
        let service = self.aggregated.entry(name.to_owned()).or_default();
        service.available = available;
        service.was_available |= available && service.registered;
        let storages: Vec<Storage> =
            service.backing.values().map(|it| Arc::clone(&it.storage)).collect();
        if !available {
            for storage in storages {
                self.watches.close(&storage);
            }
        }
        self.update_api_service(name);
    }

    pub(super) fn notice_api_service(&mut self, entry: &ObjectChange) {
        let name = &entry.key.1;
        let service = &entry.last["spec"]["service"];
        let registered = entry.after.is_some() && service.is_object();
        if registered {
            let text =
                |field: &str| entry.last["spec"][field].as_str().unwrap_or_default().to_owned();
            let (group, version) = (text("group"), text("version"));
            let known = self.aggregated.entry(name.clone()).or_default();
            (known.group, known.version, known.registered) = (group, version, true);
            known.was_available |= known.available;
        } else if let Some(known) = self.aggregated.get_mut(name) {
            (known.registered, known.was_available) = (false, false);
        }
        if entry.after.is_some() {
            self.update_api_service(name);
        }
    }

    /// Updates the APIServices that name a changed Service.
    pub(super) fn notice_service(&mut self, entry: &ObjectChange) {
        let (namespace, name) = &entry.key;
        let names_it = |service: &Value| {
            let backend = &service["spec"]["service"];
            backend["name"] == name.as_str() && backend["namespace"] == namespace.as_str()
        };
        let all = self.history.all(API_SERVICES);
        let named: Vec<_> =
            all.filter(|(_, service)| names_it(service)).map(|(key, _)| key.1.clone()).collect();
        for name in named {
            self.update_api_service(&name);
        }
    }

    /// Writes the `Available` condition of an APIService.
    fn update_api_service(&mut self, name: &str) {
        let key = (String::new(), name.to_owned());
        let Some(live) = self.history.get(API_SERVICES, &key) else { return };
        let mut service = Value::clone(live);
        let known = self.aggregated.get(name).filter(|it| it.registered);
        let (status, reason, message) = match known {
            None => ("True", "Local", "Local APIServices are always available".to_owned()),
            Some(known) if known.available => ("True", "Passed", "all checks passed".to_owned()),
            Some(known) => {
                let (reason, message) = self.unavailable_reason(&service["spec"]["service"], known);
                ("False", reason, message)
            }
        };
        let before = &service["status"]["conditions"][0];
        if before["status"] == status
            && before["reason"] == reason
            && before["message"] == message.as_str()
        {
            return;
        }
        let since = match before["status"] == status {
            true => before["lastTransitionTime"].clone(),
            false => self.timestamp().into(),
        };
        let condition = json!({
            "type": "Available",
            "status": status,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        });
        object::member(&mut service, "status").insert("conditions".to_owned(), json!([condition]));
        self.commit(&API_SERVICES.into(), service);
    }

    /// Reason and message for a service that does not answer.
    fn unavailable_reason(&self, backend: &Value, known: &Aggregated) -> (&'static str, String) {
        let text = |field: &str| backend[field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let port = backend["port"].as_u64().unwrap_or(443);
        let found = self.history.get("services", &(namespace.clone(), name.clone()));
        let Some(service) = found else {
            let message = format!("service/{name} in {namespace:?} is not present");
            return ("ServiceNotFound", message);
        };
        if service["spec"]["type"].as_str().is_none_or(|it| it == "ClusterIP") {
            let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
            if !ports.any(|it| it["port"] == port) {
                let message =
                    format!("service/{name} in {namespace:?} is not listening on port {port}");
                return ("ServicePortError", message);
            }
            let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
            return ("EndpointsNotFound", message);
        }
        let Aggregated { group, version, .. } = known;
        let url = format!("https://{name}.{namespace}.svc:{port}/apis/{group}/{version}");
        let message = format!(
            "failing or missing response from {url}: Get {url:?}: connect: connection refused"
        );
        ("FailedDiscoveryCheck", message)
    }

    pub(super) fn announce_built_in_groups(&mut self) {
        let groups: BTreeSet<(String, String)> = self
            .built_in
            .keys()
            .map(|(group, version, _)| (version.clone(), group.clone()))
            .collect();
        for (version, group) in groups {
            // The aggregator serves the group of APIServices itself.
            if group != "apiregistration.k8s.io" {
                self.announce(&version, &group, "onstart");
            }
        }
    }

    pub(super) fn announce(&mut self, version: &str, group: &str, managed: &str) {
        let name = format!("{version}.{group}");
        if self.history.get(API_SERVICES, &(String::new(), name.clone())).is_some() {
            return;
        }
        let (group_priority, version_priority) = priorities(group);
        let service = json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {
                "name": name,
                "uid": self.new_uid(),
                "creationTimestamp": self.timestamp(),
                "labels": { AUTOMANAGED: managed },
            },
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": group_priority,
                "versionPriority": version_priority,
            },
            "status": {},
        });
        self.commit(&API_SERVICES.into(), service);
    }

    /// Creates and deletes the APIServices of the served CRD versions.
    pub(super) fn sync_api_services(&mut self) {
        let mut wanted = BTreeSet::new();
        for (_, crd) in self.history.all(super::resource::CRDS) {
            let served = super::custom::group_versions(crd).into_iter();
            wanted.extend(served.map(|(version, group)| (version.to_owned(), group.to_owned())));
        }
        let services = self.history.all(API_SERVICES);
        let stale: Vec<NamespacedName> = services
            .filter(|(_, service)| service["metadata"]["labels"][AUTOMANAGED] == "true")
            .filter(|(_, service)| {
                let text =
                    |field: &str| service["spec"][field].as_str().unwrap_or_default().to_owned();
                !wanted.contains(&(text("version"), text("group")))
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in stale {
            self.erase(&API_SERVICES.into(), &key);
        }
        for (version, group) in wanted {
            self.announce(&version, &group, "true");
        }
    }
}

/// Priorities of a group and its version, as on the real server.
fn priorities(group: &str) -> (u32, u32) {
    match group {
        "" => (18000, 1),
        "apps" => (17800, 15),
        "events.k8s.io" => (17750, 15),
        "authorization.k8s.io" => (17600, 15),
        "batch" => (17400, 15),
        "rbac.authorization.k8s.io" => (17000, 15),
        "apiextensions.k8s.io" => (16700, 15),
        "coordination.k8s.io" => (16500, 15),
        _ => (1000, 100),
    }
}
