//! CustomResourceDefinitions of declared controllers.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use super::{CompositeController, ControllerRevision, DecoratorController};

#[cfg(test)]
mod superset;

/// Returns the definitions, in the order of their installation.
///
/// The definitions accept every object that Metacontroller's own ones accept, and add a status. As
/// there, the API server drops a field that is `null`, and fills in the same defaults: hooks
/// receive the same `controller`.
pub fn crds() -> Vec<CustomResourceDefinition> {
    // Generating schemas takes most of the time of a short test.
    static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(generate);
    CRDS.clone()
}

fn generate() -> Vec<CustomResourceDefinition> {
    let mut crds =
        vec![CompositeController::crd(), DecoratorController::crd(), ControllerRevision::crd()];
    for version in crds.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        schema.into_iter().for_each(drop_nulls);
    }
    crds
}

/// Makes the API server drop a field that is `null`, where it would keep it otherwise.
fn drop_nulls(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.properties.iter_mut().flat_map(|fields| fields.values_mut()).for_each(drop_nulls);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => drop_nulls(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(drop_nulls),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        drop_nulls(values);
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_files_in_crds_match_the_types() {
        for crd in crds() {
            let name = crd.metadata.name.clone().unwrap();
            let path =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("crds").join(format!("{name}.yaml"));
            let generated = serde_saphyr::to_string(&crd).unwrap();

            if std::env::var_os("UPDATE_CRDS").is_some() {
                std::fs::write(&path, &generated).unwrap();
            }

            let stored = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(stored, generated, "{name}: run this test with UPDATE_CRDS=1");
        }
    }
}
