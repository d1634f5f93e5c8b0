//! Claims: decides which objects are a parent's children, without I/O.

use serde::Deserialize;

use super::ownership::{DECORATED_BY, UID_LABEL};
use crate::{
    informer::{Header, Selector},
    meta::{api::LabelSelector, definition::selection},
    redaction,
};

/// Decision about an object of a child type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The object is a child.
    Owned,
    /// Orphan that matches: becomes a child, if the parent is not being deleted.
    Adopt,
    /// Child that no longer matches.
    Release,
    /// Child of another owner, attachment of a decorator, or orphan that does not match.
    Ignore,
}

/// Decides about one object. An attachment of a decorator is never a child, whatever its owner: the
/// two controllers would release and create it in turns.
pub(crate) fn claim(
    object: &Header,
    parent_uid: &str,
    parent_terminating: bool,
    selector: &Selector,
) -> Claim {
    if object.annotations.contains_key(DECORATED_BY) {
        return Claim::Ignore;
    }
    let matches = selector.matches(&object.labels);
    match object.owners.iter().find(|owner| owner.controller) {
        Some(owner) if *owner.uid == *parent_uid => match (matches, parent_terminating) {
            (true, _) => Claim::Owned,
            (false, false) => Claim::Release,
            // The garbage collector deletes the child with its owner.
            (false, true) => Claim::Ignore,
        },
        Some(_) => Claim::Ignore,
        None if matches && !parent_terminating && object.deletion_timestamp.is_none() => {
            Claim::Adopt
        }
        None => Claim::Ignore,
    }
}

/// Returns the selector of a parent's children.
///
/// # Errors
///
/// Names the field of the parent that is missing or invalid.
pub(crate) fn selector_of(
    parent_json: &[u8],
    parent_uid: &str,
    generate: bool,
) -> Result<Selector, String> {
    #[derive(Deserialize)]
    struct ParentWithSelector {
        spec: Option<SpecWithSelector>,
    }
    #[derive(Deserialize)]
    struct SpecWithSelector {
        selector: Option<LabelSelector>,
    }
    if generate {
        return Ok(Selector::label(UID_LABEL, parent_uid));
    }
    let parent: ParentWithSelector = serde_json::from_slice(parent_json).map_err(|error| {
        format!("spec.selector: is not a label selector: {}", redaction::decoding(error))
    })?;
    let selector = parent.spec.and_then(|spec| spec.selector).unwrap_or_default();
    if selector == LabelSelector::default() {
        return Err("spec.selector: must not be empty, or set generateSelector in the controller"
            .to_owned());
    }
    selection::parse(&selector)
        .map_err(|(field, message)| format!("spec.selector.{field}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::{
        informer::{ObjectKey, OwnerReference, StringMap},
        kind::GroupKind,
    };

    fn object(owner: Option<&str>, labelled: bool, terminating: bool) -> Header {
        Header {
            key: ObjectKey { namespace: Some("ns".into()), name: "a".into() },
            uid: "u".into(),
            resource_version: "1".into(),
            generation: 0,
            deletion_timestamp: terminating.then(k8s_openapi::jiff::Timestamp::now),
            labels: labelled.then_some(("a", "b")).into_iter().collect(),
            annotations: StringMap::default(),
            owners: owner
                .map(|uid| OwnerReference {
                    kind: Arc::new(GroupKind { group: "example.com".into(), kind: "Thing".into() }),
                    name: "p".into(),
                    uid: uid.into(),
                    controller: true,
                })
                .into_iter()
                .collect(),
            finalizers: Vec::new(),
        }
    }

    #[test]
    fn every_case_is_decided() {
        let selector = Selector::label("a", "b");
        for (owner, labelled, terminating, parent_terminating, expected) in [
            (Some("p"), true, false, false, Claim::Owned),
            (Some("p"), true, true, false, Claim::Owned),
            (Some("p"), true, false, true, Claim::Owned),
            (Some("p"), false, false, false, Claim::Release),
            (Some("p"), false, false, true, Claim::Ignore),
            (Some("other"), true, false, false, Claim::Ignore),
            (None, true, false, false, Claim::Adopt),
            (None, true, true, false, Claim::Ignore),
            (None, true, false, true, Claim::Ignore),
            (None, false, false, false, Claim::Ignore),
        ] {
            let object = object(owner, labelled, terminating);

            assert_eq!(
                claim(&object, "p", parent_terminating, &selector),
                expected,
                "{owner:?} {labelled} {terminating} {parent_terminating}"
            );
        }
    }

    #[test]
    fn attachment_of_a_decorator_is_neither_claimed_nor_released() {
        let selector = Selector::label("a", "b");
        for owner in [Some("p"), Some("other"), None] {
            for labelled in [true, false] {
                let mut attachment = object(owner, labelled, false);
                attachment.annotations = [(DECORATED_BY, "things")].into_iter().collect();

                let claim = claim(&attachment, "p", false, &selector);

                assert_eq!(claim, Claim::Ignore, "{owner:?} {labelled}");
            }
        }
    }

    #[test]
    fn owner_that_is_not_the_controller_does_not_prevent_adoption() {
        let mut object = object(Some("other"), true, false);
        Arc::make_mut(&mut object.owners)[0].controller = false;

        let selector = Selector::label("a", "b");
        assert_eq!(claim(&object, "p", false, &selector), Claim::Adopt);
    }

    #[test]
    fn a_selector_that_is_missing_empty_or_wrong_is_an_error() {
        for (parent, field) in [
            (r#"{}"#, "spec.selector:"),
            (r#"{"spec":null}"#, "spec.selector:"),
            (r#"{"spec":{"selector":{}}}"#, "spec.selector:"),
            (r#"{"spec":{"selector":{"app":"x"}}}"#, "spec.selector:"),
            (r#"{"spec":{"selector":"x"}}"#, "spec.selector:"),
            (
                r#"{"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"x"}]}}}"#,
                "spec.selector.matchExpressions[0].operator:",
            ),
        ] {
            let error = selector_of(parent.as_bytes(), "u", false).unwrap_err();

            assert!(error.starts_with(field), "{error}");
        }
    }

    #[test]
    fn null_in_a_selector_is_an_empty_list_or_map() {
        for (selector, expected) in [
            (r#"{"matchLabels":{"a":"b"},"matchExpressions":null}"#, "a=b"),
            (
                r#"{"matchLabels":null,"matchExpressions":[{"key":"a","operator":"Exists","values":null}]}"#,
                "a",
            ),
        ] {
            let parent = format!(r#"{{"spec":{{"selector":{selector}}}}}"#);

            let selector = selector_of(parent.as_bytes(), "u", false);

            assert_eq!(selector.map(|selector| selector.to_string()).as_deref(), Ok(expected));
        }
        let none = br#"{"spec":{"selector":{"matchLabels":null,"matchExpressions":null}}}"#;
        let error = selector_of(none, "u", false).unwrap_err();
        assert!(error.starts_with("spec.selector: must not be empty"), "{error}");
    }

    #[test]
    fn a_generated_selector_is_the_uid() {
        for parent in ["{}", r#"{"spec":{"selector":{"matchLabels":{"app":"x"}}}}"#] {
            let selector = selector_of(parent.as_bytes(), "u1", true).unwrap();

            assert_eq!(selector.to_string(), "controller-uid=u1");
        }
    }
}
