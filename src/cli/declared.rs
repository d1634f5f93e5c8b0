//! Declared controllers, read from their objects.

use anyhow::anyhow;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use pilotlight::meta::api::CompositeController;
use serde_json::Value;

/// Lists the declared controllers by pages, which the API server answers at once even if it has
/// just started to serve the type.
pub(super) async fn list(client: Client) -> anyhow::Result<Vec<CompositeController>> {
    let api = Api::<CompositeController>::all(client);
    let mut page = ListParams::default().limit(500);
    let mut controllers = Vec::new();
    loop {
        let list = api.list(&page).await.map_err(explain)?;
        controllers.extend(list.items);
        match list.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            Some(_) | None => return Ok(controllers),
        }
    }
}

/// Returns whether the installed CRD has no place for a status, as is the case with
/// Metacontroller's; false if the CRD cannot be read.
pub(super) async fn keeps_no_status(client: Client) -> bool {
    // Not typed: the decoder of a whole CRD is large, and three of its fields are read.
    let crds = ApiResource::erase::<CustomResourceDefinition>(&());
    let api = Api::<DynamicObject>::all_with(client, &crds);
    api.get(CompositeController::crd_name()).await.is_ok_and(|crd| prunes_status(&crd.data))
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

fn explain(error: kube::Error) -> anyhow::Error {
    let kube::Error::Api(status) = error else { return error.into() };
    if status.code == 404 {
        return anyhow!(
            "the API server does not serve CompositeControllers; install Pilotlight's CRDs: \
             pilotlight crds | kubectl apply --filename -"
        );
    }
    anyhow!("{} ({})", status.message, status.code)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
