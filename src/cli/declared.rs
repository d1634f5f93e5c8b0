//! Declared controllers, read from their objects.

use anyhow::anyhow;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use pilotlight::{
    discovery::TypeReport,
    meta::{
        ControllerKind,
        api::{ControllerStatus, StatusCondition},
    },
    redaction,
};
use serde_json::Value;

use super::pages::{first_page, next_page};

/// Declared controller, as its object describes it.
#[derive(Clone, Debug)]
pub(super) struct DeclaredObject {
    pub(super) kind: ControllerKind,
    pub(super) name: String,
    pub(super) generation: Option<i64>,
    /// Plural and `apiVersion` of each parent type that the object names.
    pub(super) parents: Vec<(String, String)>,
    /// True if it declares a finalize hook.
    pub(super) has_finalize_hook: bool,
    pub(super) status: ControllerStatus,
}

impl DeclaredObject {
    /// Reads an object; its specification may be invalid.
    pub(super) fn of(kind: ControllerKind, object: &DynamicObject) -> Self {
        let spec = &object.data["spec"];
        let parents = match kind {
            ControllerKind::Composite => std::slice::from_ref(&spec["parentResource"]),
            ControllerKind::Decorator => {
                spec["resources"].as_array().map(Vec::as_slice).unwrap_or_default()
            }
        };
        let parents = parents.iter().filter_map(|parent| {
            let text = |field: &str| parent[field].as_str().map(str::to_owned);
            text("resource").zip(text("apiVersion"))
        });
        let mut distinct: Vec<(String, String)> = Vec::new();
        for parent in parents {
            if !distinct.contains(&parent) {
                distinct.push(parent);
            }
        }
        let status = serde_json::from_value(object.data["status"].clone());
        Self {
            kind,
            name: object.metadata.name.clone().unwrap_or_default(),
            generation: object.metadata.generation,
            parents: distinct,
            has_finalize_hook: spec["hooks"]["finalize"]["webhook"].is_object(),
            status: status.unwrap_or_default(),
        }
    }

    /// Returns whether the controller does not free the objects of this type with its finalizer: it
    /// no longer declares the type, or it declares no finalize hook while it is not ready.
    pub(super) fn abandons(&self, report: &TypeReport) -> bool {
        self.has_dropped(report) || !(self.has_finalize_hook || self.is_ready())
    }

    fn is_ready(&self) -> bool {
        let is_ready = |it: &StatusCondition| it.type_ == "Ready" && it.status == "True";
        self.status.conditions.iter().any(is_ready)
    }

    /// Returns whether a manager runs the newest specification, and the specification does not
    /// declare this type at any version.
    fn has_dropped(&self, report: &TypeReport) -> bool {
        let is_newest = self.status.observed_generation == self.generation;
        let declares = |(resource, version): &(String, String)| {
            let group = version.rsplit_once('/').map_or("", |(group, _)| group);
            let plural = report.name.strip_suffix(&format!(".{group}")).unwrap_or(&report.name);
            (group, resource.as_str()) == (report.group.as_str(), plural)
        };
        is_newest && self.is_ready() && !self.parents.iter().any(declares)
    }
}

/// Declared controllers of all kinds, as far as they could be read.
#[derive(Debug, Default)]
pub(super) struct DeclaredList {
    pub(super) objects: Vec<DeclaredObject>,
    /// Kinds that the server does not serve, which may prove nothing.
    pub(super) not_served: Vec<ControllerKind>,
    /// Kinds that could not be read, with the reasons.
    pub(super) unread: Vec<(ControllerKind, String)>,
}

/// Lists the declared controllers of all kinds that are served.
///
/// # Errors
///
/// If no kind could be read.
pub(super) async fn list(client: Client) -> anyhow::Result<DeclaredList> {
    let mut listed = DeclaredList::default();
    let mut not_served = None;
    let mut failed = None;
    for kind in ControllerKind::ALL {
        match list_of(kind, client.clone()).await {
            Ok(found) => listed.objects.extend(found),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                listed.not_served.push(kind);
                not_served = Some(kube::Error::Api(status));
            }
            Err(error) => {
                let error = unreadable(&error);
                listed.unread.push((kind, error.to_string()));
                failed = Some(error);
            }
        }
    }
    if listed.not_served.len() + listed.unread.len() < ControllerKind::ALL.len() {
        return Ok(listed);
    }
    match (failed, not_served) {
        (Some(error), _) => Err(error),
        (None, Some(error)) => Err(unreadable(&error)),
        (None, None) => Ok(listed),
    }
}

/// Lists the declared controllers of one kind.
async fn list_of(kind: ControllerKind, client: Client) -> Result<Vec<DeclaredObject>, kube::Error> {
    let api = Api::<DynamicObject>::all_with(client, &resource(kind));
    let (mut controllers, mut next) = (Vec::new(), Some(first_page()));
    while let Some(page) = next {
        let list = api.list(&page).await?;
        controllers.extend(list.items.iter().map(|object| DeclaredObject::of(kind, object)));
        next = next_page(&list.metadata);
    }
    Ok(controllers)
}

/// Returns the type of a kind.
pub(super) fn resource(kind: ControllerKind) -> ApiResource {
    let (group, version) = (ControllerKind::GROUP, ControllerKind::VERSION);
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_string(),
        plural: kind.plural().to_owned(),
    }
}

/// Returns whether the installed CRD of a kind has no place for a status, as is the case with
/// Metacontroller's; false if the CRD cannot be read.
pub(super) async fn keeps_no_status(kind: ControllerKind, client: Client) -> bool {
    // Not typed: the decoder of a whole CRD is large, and three of its fields are read.
    let crds = ApiResource::erase::<CustomResourceDefinition>(&());
    let api = Api::<DynamicObject>::all_with(client, &crds);
    api.get(&kind.crd_name()).await.is_ok_and(|crd| prunes_status(&crd.data))
}

fn prunes_status(crd: &Value) -> bool {
    let preserves = |schema: &Value| schema["x-kubernetes-preserve-unknown-fields"] == true;
    let keeps =
        |schema: &Value| preserves(schema) || schema["properties"].get("conditions").is_some();
    let versions = crd["spec"]["versions"].as_array();
    let served = versions.into_iter().flatten().filter(|version| version["served"] == true);
    served
        .filter_map(|version| version["schema"].get("openAPIV3Schema"))
        .any(|schema| !preserves(schema) && !keeps(&schema["properties"]["status"]))
}

fn unreadable(error: &kube::Error) -> anyhow::Error {
    if let kube::Error::Api(status) = error
        && status.code == 404
    {
        return anyhow!(
            "the API server serves no declared controllers; install Pilotlight's CRDs: \
             pilotlight crds | kubectl apply --filename -"
        );
    }
    anyhow!(redaction::request_error(error))
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use pilotlight::meta::api::CompositeController;
    use serde_json::json;

    use super::*;

    #[test]
    fn message_of_the_server_is_shown_without_credentials() {
        let message = "calling https://user:hunter2@hook.test/convert?token=x: refused";
        let status = kube::core::Status::failure(message, "InternalError").with_code(500);

        let shown = unreadable(&kube::Error::Api(status.boxed())).to_string();

        assert_eq!(shown, "calling https://hook.test/convert refused");
    }

    #[test]
    fn a_schema_that_prunes_the_status_is_recognised() {
        let own = serde_json::to_value(CompositeController::crd()).unwrap();
        let with_status = |status| {
            let mut crd = own.clone();
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] =
                status;
            prunes_status(&crd)
        };

        assert!(with_status(json!({"type": "object"})), "as Metacontroller's");
        assert!(!with_status(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
        ));
        assert!(!prunes_status(&own));
    }
}
