//! Apply strategy: the way in which the children of a declared controller are written.

use std::{str::FromStr, sync::Arc};

use serde_json::Value;

use crate::meta::api::{choice::choice, rejection::Problems};

/// Annotation of a declared controller: its apply strategy, instead of
/// [`MetaOptions::apply_strategy`](crate::meta::MetaOptions::apply_strategy).
pub const APPLY_STRATEGY: &str = "pilotlight.dev/apply-strategy";
/// Annotation of a declared controller: its field manager of server-side apply, instead of
/// [`MetaOptions::field_manager`](crate::meta::MetaOptions::field_manager).
pub const APPLY_FIELD_MANAGER: &str = "pilotlight.dev/apply-field-manager";

/// Field manager of Metacontroller, and of all writes other than server-side apply.
pub(crate) const METACONTROLLER: &str = "metacontroller";
/// Longest name of a field manager that the API server accepts, in bytes.
const LONGEST_MANAGER: usize = 128;

choice! {
    /// Way in which children are written.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ApplyStrategy {
        /// Three-way merge with the last-applied annotation, sent as an update.
        #[default]
        DynamicApply = "dynamic-apply",
        /// Apply patch, merged by the API server.
        ServerSideApply = "server-side-apply",
    }
}

/// Name of a field manager that the API server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldManager(Arc<str>);

impl FieldManager {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for FieldManager {
    fn default() -> Self {
        Self(METACONTROLLER.into())
    }
}

impl FromStr for FieldManager {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_valid = !text.is_empty()
            && text.len() <= LONGEST_MANAGER
            && text.chars().all(|one| one == ' ' || !one.is_control() && !one.is_whitespace());
        if is_valid {
            return Ok(Self(text.into()));
        }
        Err(format!("give a name of 1 to {LONGEST_MANAGER} bytes without control characters"))
    }
}

/// Apply strategy of a controller, with its field manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApplyRule {
    /// The strategy.
    pub(crate) strategy: ApplyStrategy,
    /// Field manager of server-side apply. Dynamic apply takes its fields over.
    pub(crate) manager: FieldManager,
}

/// Reads the annotations [`APPLY_STRATEGY`] and [`APPLY_FIELD_MANAGER`] of an object.
pub(in crate::meta) fn overrides(
    object: &Value,
    problems: &mut Problems,
) -> (Option<ApplyStrategy>, Option<FieldManager>) {
    (
        annotation(object, APPLY_STRATEGY, problems),
        annotation(object, APPLY_FIELD_MANAGER, problems),
    )
}

fn annotation<T: FromStr<Err = String>>(
    object: &Value,
    name: &str,
    problems: &mut Problems,
) -> Option<T> {
    let said = object.pointer("/metadata/annotations")?.get(name)?;
    let parsed = said.as_str().ok_or_else(|| "give a string".to_owned()).and_then(str::parse);
    parsed
        .map_err(|why| {
            problems.invalid(format!("metadata.annotations[{name}]"), format!("{said}: {why}"));
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_override_strategy_and_field_manager_and_a_bad_value_is_named() {
        let read = |annotations: Value| {
            let mut problems = Problems::default();
            let read = overrides(&json!({"metadata": {"annotations": annotations}}), &mut problems);
            (read, problems.rejection().map(|rejected| rejected.to_string()).unwrap_or_default())
        };

        assert_eq!(read(json!({})), ((None, None), String::new()));
        for strategy in ApplyStrategy::ALL {
            let ((read, _), problem) = read(json!({APPLY_STRATEGY: strategy.to_string()}));
            assert_eq!((read, &*problem), (Some(strategy), ""));
        }
        let ((_, manager), _) = read(json!({APPLY_FIELD_MANAGER: "team a/x"}));
        assert_eq!(manager.unwrap().as_str(), "team a/x");
        for (name, said) in [
            (APPLY_STRATEGY, json!("ssa")),
            (APPLY_STRATEGY, json!(true)),
            (APPLY_FIELD_MANAGER, json!("")),
            (APPLY_FIELD_MANAGER, json!("a\nb")),
            (APPLY_FIELD_MANAGER, json!("x".repeat(129))),
        ] {
            let (read, problem) = read(json!({name: said}));
            assert_eq!(read, (None, None), "{said}");
            assert!(problem.starts_with(&format!("metadata.annotations[{name}]: ")), "{problem}");
        }
    }
}
