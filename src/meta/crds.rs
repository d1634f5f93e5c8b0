//! CustomResourceDefinitions of declared controllers.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::CompositeController;

/// Returns the definitions, in the order of their installation.
///
/// The definitions accept every object that Metacontroller's own ones accept, and add a status.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![CompositeController::crd()]
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

    #[test]
    fn the_version_of_a_hook_defaults_to_v1_in_the_schema() {
        let crd = serde_json::to_value(CompositeController::crd()).unwrap();
        let hook = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/hooks\
                    /properties/sync/properties/version/default";

        assert_eq!(crd.pointer(hook), Some(&serde_json::json!("v1")));
    }

    #[test]
    fn only_the_parent_is_required_of_a_specification() {
        let crd = serde_json::to_value(CompositeController::crd()).unwrap();
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/required";

        assert_eq!(crd.pointer(spec), Some(&serde_json::json!(["parentResource"])));
    }
}
