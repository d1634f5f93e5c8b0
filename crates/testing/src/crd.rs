//! Small CustomResourceDefinitions for tests.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion, CustomResourceSubresourceStatus, CustomResourceSubresources,
    CustomResourceValidation, JSONSchemaProps,
};
use kube::{
    api::{ApiResource, DynamicObject, ObjectMeta, TypeMeta},
    core::GroupVersionKind,
};
use serde_json::Value;

/// Builder of a CRD whose objects may have any fields.
///
/// By default the type is namespaced, its plural is the kind in lower case with an `s`, and its one
/// version is `v1`, with a status subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrdBuilder {
    group: String,
    kind: String,
    plural: String,
    namespaced: bool,
    status: bool,
    /// Name and whether it is served; the first one is the storage version.
    versions: Vec<(String, bool)>,
}

impl CrdBuilder {
    /// Creates a builder for a group and kind.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        let kind = kind.into();
        let plural = format!("{}s", kind.to_lowercase());
        let group = group.into();
        Self { group, kind, plural, namespaced: true, status: true, versions: Vec::new() }
    }

    /// Sets the plural, which is the last part of the path.
    #[must_use]
    pub fn plural(mut self, plural: impl Into<String>) -> Self {
        self.plural = plural.into();
        self
    }

    /// Makes the type cluster-scoped.
    #[must_use]
    pub fn cluster_scoped(mut self) -> Self {
        self.namespaced = false;
        self
    }

    /// Omits the status subresource.
    #[must_use]
    pub fn without_status(mut self) -> Self {
        self.status = false;
        self
    }

    /// Adds a version; the first one is the storage version.
    #[must_use]
    pub fn version(mut self, name: impl Into<String>) -> Self {
        self.versions.push((name.into(), true));
        self
    }

    /// Adds a version that is not served.
    #[must_use]
    pub fn unserved_version(mut self, name: impl Into<String>) -> Self {
        self.versions.push((name.into(), false));
        self
    }

    /// Returns the name of the CRD: plural and group.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Returns the kind at `version`.
    pub fn gvk(&self, version: &str) -> GroupVersionKind {
        GroupVersionKind::gvk(&self.group, version, &self.kind)
    }

    /// Returns the type at `version`, for a dynamic `Api`.
    pub fn api_resource(&self, version: &str) -> ApiResource {
        ApiResource::from_gvk_with_plural(&self.gvk(version), &self.plural)
    }

    /// Returns true for a namespaced type.
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// Returns an object of the storage version with this `spec`, in the namespace of the `Api`
    /// that creates it.
    pub fn object(&self, name: &str, spec: Value) -> DynamicObject {
        let resource = self.api_resource(&self.stored().0);
        let types = TypeMeta { api_version: resource.api_version, kind: resource.kind };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        DynamicObject { types: Some(types), metadata, data: serde_json::json!({ "spec": spec }) }
    }

    /// Returns the CRD.
    pub fn build(&self) -> CustomResourceDefinition {
        let stored = self.stored();
        let mut versions = self.versions.clone();
        if versions.is_empty() {
            versions.push(stored.clone());
        }
        CustomResourceDefinition {
            metadata: ObjectMeta { name: Some(self.name()), ..ObjectMeta::default() },
            spec: CustomResourceDefinitionSpec {
                group: self.group.clone(),
                names: CustomResourceDefinitionNames {
                    kind: self.kind.clone(),
                    plural: self.plural.clone(),
                    ..CustomResourceDefinitionNames::default()
                },
                scope: if self.namespaced { "Namespaced" } else { "Cluster" }.to_owned(),
                versions: versions
                    .into_iter()
                    .map(|(name, served)| self.build_version(name == stored.0, name, served))
                    .collect(),
                ..CustomResourceDefinitionSpec::default()
            },
            status: None,
        }
    }

    fn build_version(
        &self,
        storage: bool,
        name: String,
        served: bool,
    ) -> CustomResourceDefinitionVersion {
        let schema = JSONSchemaProps {
            type_: Some("object".to_owned()),
            x_kubernetes_preserve_unknown_fields: Some(true),
            ..JSONSchemaProps::default()
        };
        let subresources = self.status.then(|| CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(Value::Object(serde_json::Map::new()))),
            scale: None,
        });
        CustomResourceDefinitionVersion {
            name,
            served,
            storage,
            schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema) }),
            subresources,
            ..CustomResourceDefinitionVersion::default()
        }
    }

    fn stored(&self) -> (String, bool) {
        self.versions.first().cloned().unwrap_or_else(|| ("v1".to_owned(), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_is_stored() {
        let crd = CrdBuilder::new("x.test", "Widget").version("v2").unserved_version("v1").build();

        let versions: Vec<_> =
            crd.spec.versions.iter().map(|v| (v.name.as_str(), v.served, v.storage)).collect();
        assert_eq!(versions, [("v2", true, true), ("v1", false, false)]);
        assert_eq!(crd.metadata.name.as_deref(), Some("widgets.x.test"));
    }

    #[test]
    fn v1_is_the_version_unless_others_are_named() {
        let widgets = CrdBuilder::new("x.test", "Widget").cluster_scoped();

        assert_eq!(widgets.build().spec.versions[0].name, "v1");
        assert_eq!(widgets.build().spec.scope, "Cluster");
        assert_eq!(widgets.object("a", Value::Null).types.unwrap().api_version, "x.test/v1");
    }
}
