//! Ownership: which objects are the children of a parent, and how they are marked.
//!
//! Children of either kind have the parent as their controller. A CompositeController claims by a
//! selector beside that, a DecoratorController by an annotation.

use serde_json::{Map, Value};

use super::adoption::AdoptionRule;
use crate::{
    informer::{Selector, StringMap},
    meta::resource::ServerObject,
};

/// Label of generated selectors.
pub(crate) const UID_LABEL: &str = "controller-uid";

/// Annotation of attachments: the name of their DecoratorController. Several of them may attach
/// objects to one parent.
pub(crate) const DECORATED_BY: &str = "metacontroller.k8s.io/decorator-controller";

/// Ownership of the children of one parent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ownership {
    /// Children match this selector. Matching orphans are adopted by the rule, and others released.
    Selected {
        /// The selector.
        selector: Selector,
        /// True if children get the label with the parent's uid, which the selector requires.
        generated: bool,
        /// Rule of adoptions.
        rule: AdoptionRule,
    },
    /// Children have the annotation [`DECORATED_BY`] with the name of the controller. None are
    /// adopted or released.
    Annotated {
        /// Name of the controller.
        controller: String,
    },
}

impl Ownership {
    /// Returns the selector that children match.
    pub(crate) fn selector(&self) -> Option<&Selector> {
        match self {
            Self::Selected { selector, .. } => Some(selector),
            Self::Annotated { .. } => None,
        }
    }

    /// Returns the selector of the orphans that may be adopted; `None` if none are. A selector that
    /// requires no label matches objects of anyone, which would be deleted as unwanted children.
    pub(crate) fn adopts(&self) -> Option<&Selector> {
        self.selector().filter(|selector| selector.requires_label())
    }

    /// Returns whether an orphan that the selector matches is adopted.
    pub(crate) fn admits(&self, live: &ServerObject) -> bool {
        match self {
            Self::Selected { rule, .. } => rule.admits(live),
            Self::Annotated { .. } => false,
        }
    }

    /// Returns whether children get the label with the parent's uid.
    pub(crate) fn labels_children(&self) -> bool {
        match self {
            Self::Selected { generated, .. } => *generated,
            Self::Annotated { .. } => false,
        }
    }

    /// Returns the name of the list of children in a response.
    pub(crate) fn list(&self) -> &'static str {
        match self {
            Self::Selected { .. } => "children",
            Self::Annotated { .. } => "attachments",
        }
    }

    /// Returns the field that declares the types of children.
    pub(crate) fn declared(&self) -> &'static str {
        match self {
            Self::Selected { .. } => "spec.childResources",
            Self::Annotated { .. } => "spec.attachments",
        }
    }

    /// Completes the metadata of a desired child: the label or the annotation that claims it.
    pub(crate) fn mark(&self, metadata: &mut Map<String, Value>, parent_uid: &str) {
        match self {
            Self::Selected { generated: false, .. } => {}
            Self::Selected { generated: true, .. } => {
                if let Some(labels) = entries(metadata, "labels") {
                    labels.entry(UID_LABEL).or_insert_with(|| parent_uid.into());
                }
            }
            Self::Annotated { controller } => {
                if let Some(annotations) = entries(metadata, "annotations") {
                    annotations.insert(DECORATED_BY.to_owned(), controller.as_str().into());
                }
            }
        }
    }

    /// Checks the labels of a desired child.
    ///
    /// # Errors
    ///
    /// Explains why the child would not be claimed.
    pub(crate) fn check_labels(&self, labels: &StringMap) -> Result<(), String> {
        match self {
            Self::Selected { selector, .. } if !selector.matches(labels) => {
                Err(format!("do not match the parent's selector {selector}"))
            }
            Self::Selected { .. } | Self::Annotated { .. } => Ok(()),
        }
    }

    /// Returns whether the annotations of a child of the parent claim it. An attachment of a
    /// decorator is never claimed by a selector.
    pub(crate) fn is_marked(&self, annotations: &StringMap) -> bool {
        match self {
            Self::Selected { .. } => !annotations.contains_key(DECORATED_BY),
            Self::Annotated { controller } => {
                annotations.get(DECORATED_BY).is_some_and(|name| *name == *controller)
            }
        }
    }
}

/// Returns a map of metadata, added if it is missing; `None` if it has another shape.
fn entries<'a>(
    metadata: &'a mut Map<String, Value>,
    field: &str,
) -> Option<&'a mut Map<String, Value>> {
    let entries = metadata.entry(field).or_insert(Value::Null);
    if entries.is_null() {
        *entries = Value::Object(Map::new());
    }
    entries.as_object_mut()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn attachment_gets_the_annotation_of_its_controller_in_place_of_any_other() {
        let ownership = Ownership::Annotated { controller: "ours".to_owned() };
        for metadata in [
            json!({}),
            json!({"annotations": null}),
            json!({"annotations": {DECORATED_BY: "theirs"}}),
        ] {
            let mut metadata = metadata.as_object().unwrap().clone();

            ownership.mark(&mut metadata, "u");

            assert_eq!(Value::Object(metadata), json!({"annotations": {DECORATED_BY: "ours"}}));
        }
    }

    #[test]
    fn attachment_is_claimed_by_the_annotation_with_the_name_of_its_controller() {
        let ownership = Ownership::Annotated { controller: "ours".to_owned() };
        let of = |entries: &[(&str, &str)]| ownership.is_marked(&entries.iter().copied().collect());

        assert!(of(&[(DECORATED_BY, "ours")]));
        assert!(!of(&[(DECORATED_BY, "ours-too")]));
        assert!(!of(&[]));
    }

    #[test]
    fn selector_that_requires_no_label_adopts_nothing() {
        for (selector, adopts) in [
            ("a=b", true),
            ("a in (b,c)", true),
            ("a", true),
            ("a>1", true),
            ("a,!b", true),
            ("!a", false),
            ("a!=b", false),
            ("a notin (b,c)", false),
            ("!a,b notin (c)", false),
        ] {
            let rule = AdoptionRule::default();
            let selector = selector.parse().unwrap();
            let ownership = Ownership::Selected { selector, generated: false, rule };

            assert_eq!(ownership.adopts().is_some(), adopts, "{ownership:?}");
            assert!(ownership.selector().is_some(), "its own children still match");
        }
    }

    #[test]
    fn attachment_of_a_decorator_is_not_claimed_by_a_selector() {
        let selector = Selector::default();
        let rule = AdoptionRule::default();
        let ownership = Ownership::Selected { selector, generated: true, rule };
        let of = |entries: &[(&str, &str)]| ownership.is_marked(&entries.iter().copied().collect());

        assert!(of(&[]));
        assert!(!of(&[(DECORATED_BY, "things")]));
    }
}
