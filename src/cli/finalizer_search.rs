//! Parents that have the finalizer of a declared controller, found by their metadata.

use std::{collections::BTreeSet, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::PartialObjectMeta,
};
use parking_lot::Mutex;
use pilotlight::{
    discovery::{Origin, TypePhase, TypeReport},
    meta::ControllerKind,
    redaction,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::{
    pages::{first_page, next_page},
    served_types,
};

/// Maximum number of custom types that a quick search reads, with one request each.
const QUICK_TYPES: usize = 50;
/// Built-in types that a quick search reads: decorators commonly select them.
const QUICK_BUILT_IN: [&str; 14] = [
    "configmaps",
    "cronjobs.batch",
    "daemonsets.apps",
    "deployments.apps",
    "ingresses.networking.k8s.io",
    "jobs.batch",
    "namespaces",
    "nodes",
    "persistentvolumeclaims",
    "pods",
    "secrets",
    "serviceaccounts",
    "services",
    "statefulsets.apps",
];
/// Maximum time of a quick search: the command prints more than its result.
const QUICK_TIME: Duration = Duration::from_secs(3);

/// Parent with the finalizer of a controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParentWithFinalizer {
    /// Kind of the controller.
    pub(super) controller_kind: String,
    /// Name of the controller, from the name of the finalizer.
    pub(super) controller: String,
    /// Type of the object, such as `things.example.com`.
    pub(super) r#type: String,
    /// Namespace; `None` if the object is cluster-scoped.
    pub(super) namespace: Option<String>,
    /// Name of the object.
    pub(super) name: String,
    /// True if the object is being deleted.
    pub(super) terminating: bool,
}

/// Result of a search over all types.
#[derive(Debug, Default)]
pub(super) struct FinalizerSearch {
    /// Found parents, sorted.
    pub(super) parents: Vec<ParentWithFinalizer>,
    /// Types that could not be listed, or objects that could not be written, with the reasons.
    pub(super) errors: Vec<String>,
}

/// Searches all types for parents of the controllers that `wanted` selects by kind and name, and by
/// the type of the parent. With `free`, the finalizer is removed from each.
pub(super) async fn search(
    client: &Client,
    wanted: impl Fn(ControllerKind, &str, &TypeReport) -> bool,
    free: bool,
) -> anyhow::Result<FinalizerSearch> {
    let mut search = FinalizerSearch::default();
    for report in served_types::list(client.clone()).await? {
        let Some(resource) = resource(&report) else { continue };
        let wanted = |kind, name: &str| wanted(kind, name, &report);
        if let Err(error) = search.read(client, &report, &resource, &wanted, free).await {
            search.errors.push(format!("{}: {}", report.name, redaction::request_error(&error)));
        }
    }
    search.parents.sort();
    Ok(search)
}

/// Searches the first objects of custom types, and of some built-in ones, for parents that are
/// being deleted and have a finalizer that `wanted` selects. Bounded in requests, objects and time;
/// types that cannot be read are left out.
pub(super) async fn quick_search(
    client: &Client,
    wanted: impl Fn(ControllerKind, &str, &TypeReport) -> bool,
) -> Vec<ParentWithFinalizer> {
    let found = Mutex::new(FinalizerSearch::default());
    let read = async {
        let Ok(types) = served_types::list(client.clone()).await else { return };
        let custom = types.iter().filter(|report| report.origin == Origin::Crd);
        let built_in = types.iter().filter(|report| {
            report.origin != Origin::Crd && QUICK_BUILT_IN.contains(&&*report.name)
        });
        for report in custom.take(QUICK_TYPES).chain(built_in) {
            let Some(resource) = resource(report) else { continue };
            let all = Api::<DynamicObject>::all_with(client.clone(), &resource);
            let Ok(list) = all.list_metadata(&first_page()).await else { continue };
            let going = list.items.iter().filter(|it| it.metadata.deletion_timestamp.is_some());
            let parents = going.flat_map(|object| {
                let held = controllers(object).into_iter();
                let held = held.filter(|(kind, name)| wanted(*kind, name, report));
                held.map(|(kind, name)| parent(kind, &name, report, object)).collect::<Vec<_>>()
            });
            found.lock().parents.extend(parents);
        }
    };
    // The parents that were found until then are reported.
    timeout(QUICK_TIME, read).await.ok();
    let mut parents = found.into_inner().parents;
    parents.sort();
    parents
}

impl FinalizerSearch {
    async fn read(
        &mut self,
        client: &Client,
        report: &TypeReport,
        resource: &ApiResource,
        wanted: impl Fn(ControllerKind, &str) -> bool,
        free: bool,
    ) -> Result<(), kube::Error> {
        let all = Api::<DynamicObject>::all_with(client.clone(), resource);
        let mut next = Some(first_page());
        while let Some(page) = next {
            let list = all.list_metadata(&page).await?;
            for object in &list.items {
                let all = controllers(object).into_iter();
                for (kind, controller) in all.filter(|(kind, name)| wanted(*kind, name)) {
                    let parent = parent(kind, &controller, report, object);
                    let finalizer = format!("{}{controller}", kind.finalizer_prefix());
                    let released = match free {
                        true => release(client, resource, object, &parent, &finalizer).await,
                        false => Ok(()),
                    };
                    if let Err(error) = released {
                        let named = parent.namespace.iter().chain([&parent.name]);
                        let named: Vec<_> = named.map(String::as_str).collect();
                        let why = redaction::request_error(&error);
                        self.errors.push(format!("{} {}: {why}", report.name, named.join("/")));
                        continue;
                    }
                    self.parents.push(parent);
                }
            }
            next = next_page(&list.metadata);
        }
        Ok(())
    }
}

/// Removes the finalizer from exactly this version of an object. A deleted object is no error.
async fn release(
    client: &Client,
    resource: &ApiResource,
    object: &PartialObjectMeta<DynamicObject>,
    parent: &ParentWithFinalizer,
    finalizer: &str,
) -> Result<(), kube::Error> {
    let api = match &parent.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::<DynamicObject>::all_with(client.clone(), resource),
    };
    let finalizers = object.metadata.finalizers.iter().flatten();
    let patch = json!({"metadata": {
        "uid": object.metadata.uid,
        "resourceVersion": object.metadata.resource_version,
        "finalizers": finalizers.filter(|it| **it != finalizer).collect::<Vec<_>>(),
    }});
    match api.patch_metadata(&parent.name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Kinds and names of the controllers whose finalizers an object has.
fn controllers(object: &PartialObjectMeta<DynamicObject>) -> BTreeSet<(ControllerKind, String)> {
    let finalizers = object.metadata.finalizers.iter().flatten();
    let of = |finalizer: &String| {
        ControllerKind::ALL.into_iter().find_map(|kind| {
            let name = finalizer.strip_prefix(kind.finalizer_prefix())?;
            Some((kind, name.to_owned()))
        })
    };
    finalizers.filter_map(of).collect()
}

fn parent(
    kind: ControllerKind,
    controller: &str,
    report: &TypeReport,
    object: &PartialObjectMeta<DynamicObject>,
) -> ParentWithFinalizer {
    ParentWithFinalizer {
        controller_kind: kind.to_string(),
        controller: controller.to_owned(),
        r#type: report.name.clone(),
        namespace: object.metadata.namespace.clone(),
        name: object.metadata.name.clone().unwrap_or_default(),
        terminating: object.metadata.deletion_timestamp.is_some(),
    }
}

/// Returns the best version of a type that can be listed.
fn resource(report: &TypeReport) -> Option<ApiResource> {
    if !matches!(report.state, TypePhase::Served | TypePhase::Polled | TypePhase::Terminating) {
        return None;
    }
    let (version, kind) = (report.served_versions.first()?, report.kind.as_ref()?);
    let plural = match report.group.as_str() {
        "" => report.name.as_str(),
        group => report.name.strip_suffix(group)?.strip_suffix('.')?,
    };
    let api_version = match report.group.as_str() {
        "" => version.clone(),
        group => format!("{group}/{version}"),
    };
    Some(ApiResource {
        group: report.group.clone(),
        version: version.clone(),
        api_version,
        kind: kind.clone(),
        plural: plural.to_owned(),
    })
}
