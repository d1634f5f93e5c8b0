//! Annotation with the types of related objects that may be missing.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    kind::{TypeName, TypeRef},
    meta::api::rejection::Problems,
};

/// Annotation of a declared controller: types that its customize hook may name while the API server
/// does not serve them, as `group/resource` with commas between; `resource` alone in the core group.
/// Without it, a sync fails while a related type is not served.
pub const OPTIONAL_RELATED: &str = "pilotlight.dev/optional-related";

/// Related types that may be missing, at any version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionalRelated(BTreeSet<OptionalType>);

/// Group and plural name of a type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OptionalType {
    group: String,
    resource: String,
}

impl OptionalRelated {
    /// Reads the annotation [`OPTIONAL_RELATED`] of an object; empty without it.
    pub(in crate::meta) fn of(object: &Value, problems: &mut Problems) -> Self {
        let annotations = object.pointer("/metadata/annotations");
        let Some(said) = annotations.and_then(|it| it.get(OPTIONAL_RELATED)) else {
            return Self::default();
        };
        let types = said.as_str().and_then(|text| text.split(',').map(optional_type).collect());
        types.map(Self).unwrap_or_else(|| {
            problems.invalid(
                format!("metadata.annotations[{OPTIONAL_RELATED}]"),
                format!(
                    "the value {said} is not a list such as \"apps/deployments,configmaps\", each \
                     a group, a slash and the plural name of a resource, without a version"
                ),
            );
            Self::default()
        })
    }

    /// Returns whether the type may be missing.
    pub(crate) fn contains(&self, type_ref: &TypeRef) -> bool {
        let TypeName::Resource(resource) = &type_ref.name else { return false };
        let is_type = |it: &OptionalType| it.group == type_ref.group && it.resource == *resource;
        self.0.iter().any(is_type)
    }
}

/// Returns the entry of the annotation that makes a type optional.
pub(crate) fn entry_of(type_ref: &TypeRef) -> String {
    let (TypeName::Resource(name) | TypeName::Kind(name)) = &type_ref.name;
    if type_ref.group.is_empty() { name.clone() } else { format!("{}/{name}", type_ref.group) }
}

/// Reads one entry; `None` if it is malformed.
fn optional_type(text: &str) -> Option<OptionalType> {
    let (group, resource) = text.trim().rsplit_once('/').unwrap_or(("", text.trim()));
    let is_name = |name: &str| {
        let is_part = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
        name.chars().all(|it| is_part(it) || it == '.')
    };
    let is_valid = !resource.is_empty() && !resource.contains('.');
    let (group, resource) = (group.to_owned(), resource.to_owned());
    (is_valid && is_name(&group) && is_name(&resource)).then_some(OptionalType { group, resource })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotation_lists_groups_and_resources() {
        let gadgets = TypeRef::resource("example.com", "v1", "gadgets");
        let config_maps = TypeRef::resource("", "v1", "configmaps");
        for (said, expected) in [
            (json!("example.com/gadgets"), Some([true, false])),
            (json!("example.com/gadgets, configmaps"), Some([true, true])),
            (json!("/configmaps"), Some([false, true])),
            (json!("other.com/gadgets"), Some([false, false])),
            (json!("example.com/v1/gadgets"), None),
            (json!("gadgets.example.com"), None),
            (json!("example.com/Gadget"), None),
            (json!("example.com/gadgets,"), None),
            (json!(""), None),
            (json!(5), None),
        ] {
            let object = json!({"metadata": {"annotations": {OPTIONAL_RELATED: said}}});
            let mut problems = Problems::default();

            let optional = OptionalRelated::of(&object, &mut problems);

            let found = [&gadgets, &config_maps].map(|type_ref| optional.contains(type_ref));
            assert_eq!(found, expected.unwrap_or_default(), "{object}");
            let message = problems.rejection().map(|rejected| rejected.to_string());
            assert_eq!(message.is_some(), expected.is_none(), "{object}");
            let names = |message: String| {
                message.starts_with("metadata.annotations[pilotlight.dev/optional-related]: ")
            };
            assert!(message.is_none_or(names), "{object}");
        }
        for type_ref in [&gadgets, &config_maps] {
            let object =
                json!({"metadata": {"annotations": {OPTIONAL_RELATED: entry_of(type_ref)}}});
            let optional = OptionalRelated::of(&object, &mut Problems::default());
            assert!(optional.contains(type_ref), "an error names the entry: {object}");
        }
    }
}
