//! Adoption: which orphans become children of a composite's parent. Decisions without I/O.
//!
//! The author of a parent chooses its selector, and the hook need not know the objects that it
//! matches: an adopted object that the hook does not want is deleted.

use super::last_applied::LAST_APPLIED;
use crate::meta::{
    api::choice::choice, definition::apply_strategy::FieldManager, resource::ServerObject,
};

/// Annotation of an object: with the value `"true"`, a parent whose selector matches the object may
/// adopt it.
pub const ADOPT: &str = "pilotlight.dev/adopt";

choice! {
    /// Orphans that a parent adopts, among those that its selector matches. A selector that requires no
    /// label matches for no adoption.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Adoption {
        /// Every matching orphan, as in Metacontroller.
        #[default]
        Selected = "selected",
        /// Matching orphans that a declared controller has written as children, by their last-applied
        /// annotation or their managed fields, and matching ones with the annotation [`ADOPT`].
        Proven = "proven",
    }
}

/// Adoption rule of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdoptionRule {
    pub(crate) adoption: Adoption,
    /// Field manager of server-side apply.
    pub(crate) manager: FieldManager,
}

impl AdoptionRule {
    /// Returns whether an orphan that the selector matches is adopted.
    pub(crate) fn admits(&self, live: &ServerObject) -> bool {
        match self.adoption {
            Adoption::Selected => true,
            Adoption::Proven => {
                let annotations = live.metadata.annotations.as_ref();
                annotations.is_some_and(|it| it.contains_key(LAST_APPLIED))
                    || annotations.and_then(|it| it.get(ADOPT)).is_some_and(|it| it == "true")
                    || live.is_written_by(FieldManager::default().as_str())
                    || live.is_written_by(self.manager.as_str())
            }
        }
    }
}

/// Returns the report about an orphan that the rule does not admit.
pub(crate) fn unproven(what: &str) -> String {
    format!(
        "{what} matches the selector and has no owner, and is not adopted, since nothing shows that \
         a controller has written it as a child; annotate it with {ADOPT}=true to have it adopted"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn is_admitted(adoption: Adoption, metadata: Value) -> bool {
        let live = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let manager = "ours".parse().unwrap();
        AdoptionRule { adoption, manager }.admits(&live)
    }

    #[test]
    fn orphan_is_adopted_with_evidence_that_a_controller_wrote_it() {
        let entry = |manager: &str, operation: &str, fields: Value| {
            json!({"managedFields": [
                {"manager": manager, "operation": operation, "fieldsV1": fields},
            ]})
        };
        let data = || json!({"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {}}});
        let metadata = || json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:status": {}});
        let mut status = entry("metacontroller", "Update", data());
        status["managedFields"][0]["subresource"] = json!("status");
        for (proven, live) in [
            (false, json!({})),
            (false, json!({"annotations": {"a": "b"}})),
            (true, json!({"annotations": {LAST_APPLIED: "{}"}})),
            (true, json!({"annotations": {ADOPT: "true"}})),
            (false, json!({"annotations": {ADOPT: "false"}})),
            (true, entry("metacontroller", "Update", data())),
            (true, entry("ours", "Apply", metadata())),
            (false, entry("kubectl", "Update", data())),
            // Decorated, or a parent with a finalizer or a status: not written as a child.
            (false, entry("metacontroller", "Update", metadata())),
            (false, status),
            (false, entry("metacontroller", "Update", json!("unreadable"))),
        ] {
            assert_eq!(is_admitted(Adoption::Proven, live.clone()), proven, "{live}");
            assert!(is_admitted(Adoption::Selected, live.clone()), "{live}");
        }
    }

    #[test]
    fn adoption_is_read_by_its_name() {
        for adoption in Adoption::ALL {
            assert_eq!(adoption.to_string().parse(), Ok(adoption));
        }
        assert!("any".parse::<Adoption>().is_err());
    }
}
