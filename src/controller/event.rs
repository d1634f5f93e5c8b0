//! Events: the changes of an object by verb, as handlers and predicates of a user receive them.

use serde::de::DeserializeOwned;

use crate::informer::{Delta, Object};

/// Event of an object: cached ([`Object`]) or decoded to its Rust type.
///
/// Semantics: `event.TypedCreateEvent` and its kin of controller-runtime (`pkg/event`). An object
/// that was deleted and created again between two events has another uid, and is a delete and a
/// create. An input that is narrowed by [`Builder::matching`] sees an object that begins to match as
/// created, and one that ceases to match as deleted.
///
/// A generic event has no verb: its object has not changed ([`Handler::generic`]).
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilotlight::controller::{Event, Predicate};
///
/// // Passes changes of the data, and every create and delete.
/// let data = Predicate::typed(|event: Event<ConfigMap>| match event {
///     Event::Update { old, new } => old.data != new.data,
///     _ => true,
/// });
/// # drop(data);
/// ```
///
/// [`Builder::matching`]: super::Builder::matching
/// [`Handler::generic`]: super::Handler::generic
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<O> {
    /// The object is new to the input.
    Create {
        /// Object as it is now.
        new: O,
        /// True if the object existed when the input was started.
        initial: bool,
    },
    /// The object has changed, or is delivered again by a resync. Changes that the input has not
    /// delivered yet are one.
    Update {
        /// Object as it was delivered last.
        old: O,
        /// Object as it is now.
        new: O,
    },
    /// The object is deleted, or is out of sight: it has ceased to match, its type is gone, or the
    /// condition of its optional input is lost. Read the object from the server before anything is
    /// removed for good.
    Delete {
        /// Last known state of the object.
        old: O,
    },
}

impl<O> Event<O> {
    /// Returns the object: the new one, or the last state of a deleted one.
    pub fn object(&self) -> &O {
        match self {
            Self::Create { new: object, .. }
            | Self::Update { new: object, .. }
            | Self::Delete { old: object } => object,
        }
    }
}

impl<'a> Event<&'a Object> {
    /// Returns the event of a change of one object; `None` if neither state of it is whole.
    pub(super) fn of(delta: &'a Delta) -> Option<Self> {
        let whole = |object: &'a Option<Object>| object.as_ref().filter(|it| it.is_whole());
        let initial = delta.initial;
        match (whole(&delta.old), whole(&delta.new)) {
            (None, None) => None,
            (None, Some(new)) => Some(Self::Create { new, initial }),
            (Some(old), None) => Some(Self::Delete { old }),
            (Some(old), Some(new)) => Some(Self::Update { old, new }),
        }
    }

    /// Decodes the objects. An update of an object that could not be decoded before is a create.
    ///
    /// # Errors
    ///
    /// If the object as it is now, or the last state of a deleted one, cannot be decoded.
    pub(super) fn decode<K: DeserializeOwned>(self) -> Result<Event<K>, serde_json::Error> {
        Ok(match self {
            Self::Create { new, initial } => Event::Create { new: new.decode()?, initial },
            Self::Update { old, new } => {
                let new = new.decode()?;
                match old.decode() {
                    Ok(old) => Event::Update { old, new },
                    Err(_) => Event::Create { new, initial: false },
                }
            }
            Self::Delete { old } => Event::Delete { old: old.decode()? },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixture::{delta, widget};

    fn events(old: Option<Value>, new: Option<Value>) -> Vec<String> {
        let delta = delta(old.map(widget), new.map(widget));
        let version = |object: &Object| object.header().resource_version.to_string();
        let of = |part: Cow<'_, Delta>| match Event::of(&part)? {
            Event::Create { new, initial } => Some(format!("create {} {initial}", version(new))),
            Event::Update { old, new } => Some(format!("update {} {}", version(old), version(new))),
            Event::Delete { old } => Some(format!("delete {}", version(old))),
        };
        delta.parts().filter_map(of).collect()
    }

    #[test]
    fn change_is_one_event_by_its_verb() {
        let version = |version: &str| Some(json!({"resourceVersion": version}));

        assert_eq!(events(None, version("1")), ["create 1 false"]);
        assert_eq!(events(version("1"), version("2")), ["update 1 2"]);
        assert_eq!(events(version("2"), None), ["delete 2"]);
    }

    #[test]
    fn changed_uid_is_a_delete_and_a_create() {
        let one = Some(json!({"uid": "one", "resourceVersion": "1"}));
        let other = Some(json!({"uid": "other", "resourceVersion": "2"}));

        assert_eq!(events(one, other), ["delete 1", "create 2 false"]);
    }

    #[test]
    fn object_that_begins_or_ceases_to_concern_the_input_is_created_or_deleted() {
        let (whole, entry) = (widget(json!({})), widget(json!({})).reduced());
        let verbs = |old: &Object, new: &Object| {
            let delta = delta(Some(old.clone()), Some(new.clone()));
            Event::of(&delta).map(|event| matches!(event, Event::Create { .. }))
        };

        assert_eq!(verbs(&entry, &whole), Some(true));
        assert_eq!(verbs(&whole, &entry), Some(false));
        assert_eq!(verbs(&entry, &entry), None);
    }
}
