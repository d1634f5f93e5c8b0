//! Field selectors.

use serde_json::Value;

use super::{object, refusal::Refusal, resource::SimulatedResource};

/// Required fields of an object: name, namespace, and a few others of built-in types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields(Vec<(String, bool, String)>);

impl Fields {
    pub(super) fn parse(text: &str, resource: &SimulatedResource) -> Result<Self, Refusal> {
        let mut requirements = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) = part.split_once('=') {
                (field, true, value.trim_start_matches('='))
            } else {
                return Err(Refusal::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            let known = matches!(field, "metadata.name" | "metadata.namespace")
                || resource.selectable.contains(&field);
            if !known {
                let message = if resource.custom || !resource.selectable.is_empty() {
                    format!("field label not supported: {field}")
                } else {
                    format!(
                        "{field:?} is not a known field selector: only \"metadata.name\", \
                         \"metadata.namespace\""
                    )
                };
                return Err(Refusal::bad_request(message));
            }
            requirements.push((field.to_owned(), equal, value.to_owned()));
        }
        Ok(Self(requirements))
    }

    pub(super) fn of_name(name: &str) -> Self {
        Self(vec![("metadata.name".to_owned(), true, name.to_owned())])
    }

    /// Returns true if at most one object of a namespace can match.
    pub(super) fn is_one(&self) -> bool {
        self.0.iter().any(|(field, equal, _)| field == "metadata.name" && *equal)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn match_object(&self, object: &Value) -> bool {
        self.0.iter().all(|(field, equal, value)| {
            let found = match field.as_str() {
                "metadata.name" => object::name(object),
                "metadata.namespace" => object::namespace(object),
                path => {
                    let pointer = format!("/{}", path.replace('.', "/"));
                    object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default()
                }
            };
            (found == value) == *equal
        })
    }
}
