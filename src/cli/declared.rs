//! Declared controllers, read from their objects.

use anyhow::anyhow;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::{Api, Client, CustomResourceExt, api::ListParams};
use pilotlight::meta::api::CompositeController;

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
    let api = Api::<CustomResourceDefinition>::all(client);
    api.get(CompositeController::crd_name()).await.is_ok_and(|crd| prunes_status(&crd))
}

fn prunes_status(crd: &CustomResourceDefinition) -> bool {
    let served = crd.spec.versions.iter().filter(|version| version.served);
    let kept = |schema: &JSONSchemaProps| {
        schema.x_kubernetes_preserve_unknown_fields == Some(true)
            || schema.properties.as_ref().is_some_and(|fields| fields.contains_key("conditions"))
    };
    served
        .filter_map(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref())
        .filter(|schema| schema.x_kubernetes_preserve_unknown_fields != Some(true))
        .any(|schema| {
            let status = schema.properties.as_ref().and_then(|fields| fields.get("status"));
            !status.is_some_and(kept)
        })
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
            prunes_status(&serde_json::from_value(crd).unwrap())
        };

        assert!(with_status(json!({"type": "object"})), "as Metacontroller's");
        assert!(!with_status(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
        ));
        assert!(!prunes_status(&CompositeController::crd()));
    }
}
