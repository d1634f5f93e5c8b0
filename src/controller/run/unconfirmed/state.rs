//! State of a written object on the server, and its comparison with a cache.

use std::{fmt, sync::Arc};

use http::Method;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};

use crate::{
    controller::run::input_status::Attached,
    informer::{LiveObject, Object, ObjectKey},
    kind::{VersionOrder, is_included},
};

/// State of an object on the server.
#[derive(Clone, Debug)]
pub(super) enum ObjectState {
    /// The object exists at a version. A read of it has its content, as a cache keeps it, which is
    /// compared if there is no version.
    Stored { uid: Arc<str>, version: Arc<str>, content: Option<Object> },
    /// The object has been deleted, so that it is gone or terminating.
    Deleted { uid: Arc<str> },
    /// A read at this version did not find the object.
    Absent { version: Arc<str> },
    /// The object exists, but cannot be decoded, so that no cache has its current state.
    Unreadable,
}

/// Result of a comparison of a state with a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The cache has this state or a newer one.
    Held,
    /// The cache has an older state.
    Behind,
    /// The cache has another state, and the versions cannot be compared.
    Undecided,
}

/// Content of the response to a write.
#[derive(Debug, Default)]
pub(super) struct WriteReply {
    /// Name of the object, which the server may have generated.
    pub(super) name: Option<String>,
    /// State of the object; `None` if the response does not report it.
    pub(super) state: Option<ObjectState>,
}

/// Fields of a response that identify the object.
#[derive(Default)]
struct ResponseFields {
    kind: Option<String>,
    metadata: ObjectIdentity,
    // Identity in the `Status` that answers a deletion.
    details: ObjectIdentity,
}

#[derive(Default)]
struct ObjectIdentity {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum ResponseField {
    Kind,
    Metadata,
    Details,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum IdentityField {
    Name,
    Uid,
    ResourceVersion,
    #[serde(other)]
    Other,
}

/// Reader of the fields of a response. It ends early, with an error, once the identity of an object
/// is complete: the content that follows is most of the text.
struct ResponseReader<'r>(&'r mut ResponseFields);

struct IdentityReader<'r> {
    identity: &'r mut ObjectIdentity,
    ends_early: bool,
}

impl ResponseFields {
    fn decode(body: &[u8]) -> Self {
        let mut fields = Self::default();
        let mut decoder = serde_json::Deserializer::from_slice(body);
        let end = decoder.deserialize_map(ResponseReader(&mut fields));
        if end.is_ok() || fields.metadata.is_complete() { fields } else { Self::default() }
    }

    fn is_status(&self) -> bool {
        self.kind.as_deref() == Some("Status")
    }
}

impl ObjectIdentity {
    fn is_complete(&self) -> bool {
        self.name.is_some() && self.uid.is_some() && self.resource_version.is_some()
    }
}

impl<'de> Visitor<'de> for ResponseReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let found = self.0;
        while let Some(field) = fields.next_key()? {
            match field {
                ResponseField::Kind => found.kind = fields.next_value()?,
                ResponseField::Metadata => {
                    let ends_early = found.kind.is_some() && !found.is_status();
                    let identity = &mut found.metadata;
                    fields.next_value_seed(IdentityReader { identity, ends_early })?;
                }
                ResponseField::Details => {
                    let identity = &mut found.details;
                    fields.next_value_seed(IdentityReader { identity, ends_early: false })?;
                }
                ResponseField::Other => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for IdentityReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for IdentityReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let found = self.identity;
        while let Some(field) = fields.next_key()? {
            match field {
                IdentityField::Name => found.name = fields.next_value()?,
                IdentityField::Uid => found.uid = fields.next_value()?,
                IdentityField::ResourceVersion => found.resource_version = fields.next_value()?,
                IdentityField::Other => drop(fields.next_value::<IgnoredAny>()?),
            }
            if self.ends_early && found.is_complete() {
                return Err(A::Error::custom("the rest is not read"));
            }
        }
        Ok(())
    }
}

impl WriteReply {
    /// Decodes the body of a success.
    pub(super) fn decode(method: &Method, body: &[u8]) -> Self {
        let body = ResponseFields::decode(body);
        let is_status = body.is_status();
        let identity = if is_status { body.details } else { body.metadata };
        let ObjectIdentity { name, uid, resource_version } = identity;
        let known = |text: Option<String>| text.filter(|it| !it.is_empty()).map(Arc::from);
        let (uid, version) = (known(uid), known(resource_version));
        let state = match (uid, version) {
            (Some(uid), _) if *method == Method::DELETE => Some(ObjectState::Deleted { uid }),
            (Some(uid), Some(version)) if !is_status => {
                Some(ObjectState::Stored { uid, version, content: None })
            }
            _ => None,
        };
        Self { name, state }
    }
}

impl ObjectState {
    /// Returns the version; empty if there is none.
    pub(super) fn version(&self) -> &str {
        match self {
            Self::Stored { version, .. } | Self::Absent { version } => version,
            Self::Deleted { .. } | Self::Unreadable => "",
        }
    }

    /// Returns the state as a read found it, in place of the object that a cache had before it.
    pub(super) fn live(&self, cached: Option<Object>, order: VersionOrder) -> LiveObject {
        let (object, version) = match self {
            Self::Stored { version, content, .. } => (content.clone(), version),
            Self::Absent { version } => (None, version),
            Self::Deleted { .. } | Self::Unreadable => (None, &Arc::default()),
        };
        LiveObject { object, version: Arc::clone(version), cached, order }
    }

    /// Compares the state with a cache.
    pub(super) fn compare(&self, key: &ObjectKey, cache: &Attached) -> Comparison {
        let reached = cache.store.version();
        if is_included(self.version(), reached) {
            return Comparison::Held;
        }
        self.compare_object(cache.store.get(key).as_ref(), cache.served.version_order)
    }

    fn compare_object(&self, cached: Option<&Object>, order: VersionOrder) -> Comparison {
        match (self, cached) {
            (Self::Unreadable, _) | (Self::Deleted { .. } | Self::Absent { .. }, None) => {
                Comparison::Held
            }
            (Self::Stored { .. }, None) => Comparison::Behind,
            (Self::Deleted { uid }, Some(cached)) => {
                let cached = cached.header();
                match cached.uid != *uid || cached.deletion_timestamp.is_some() {
                    true => Comparison::Held,
                    false => Comparison::Behind,
                }
            }
            (Self::Stored { .. } | Self::Absent { .. }, Some(cached)) => {
                let cached_version = &cached.header().resource_version;
                if self.is_state_of(cached) || order.is_older(self.version(), cached_version) {
                    Comparison::Held
                } else if order.is_older(cached_version, self.version()) {
                    Comparison::Behind
                } else {
                    Comparison::Undecided
                }
            }
        }
    }

    /// Returns whether a cached object has this state.
    fn is_state_of(&self, cached: &Object) -> bool {
        let Self::Stored { uid, version, content } = self else { return false };
        let header = cached.header();
        let content = content.as_ref().filter(|_| version.is_empty());
        (uid, version) == (&header.uid, &header.resource_version)
            && content.is_none_or(|content| match cached.is_whole() {
                true => content.json() == cached.json(),
                false => content.reduced().header() == header,
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixture::widget;

    fn object(uid: &str, version: &str) -> Object {
        widget(json!({"name": "a", "uid": uid, "resourceVersion": version}))
    }

    fn stored(uid: &str, version: &str) -> ObjectState {
        ObjectState::Stored { uid: uid.into(), version: version.into(), content: None }
    }

    fn absent(version: &str) -> ObjectState {
        ObjectState::Absent { version: version.into() }
    }

    #[track_caller]
    fn check(state: ObjectState, cached: Option<Object>, expected: Comparison) {
        check_by(VersionOrder::Comparable, state, cached, expected);
    }

    #[track_caller]
    fn check_by(
        order: VersionOrder,
        state: ObjectState,
        cached: Option<Object>,
        expected: Comparison,
    ) {
        assert_eq!(state.compare_object(cached.as_ref(), order), expected, "{state:?}");
    }

    #[test]
    fn cache_holds_what_it_has_at_the_same_or_a_newer_version() {
        check(stored("a", "7"), Some(object("a", "7")), Comparison::Held);
        check(stored("a", "7"), Some(object("a", "12")), Comparison::Held);
        check(stored("a", "7"), Some(object("b", "12")), Comparison::Held);
        check(stored("a", "x"), Some(object("a", "x")), Comparison::Held);
        check(absent("10"), None, Comparison::Held);
        // Created after the read.
        check(absent("10"), Some(object("a", "11")), Comparison::Held);
        check(ObjectState::Unreadable, Some(object("a", "6")), Comparison::Held);
    }

    #[test]
    fn cache_is_behind_what_it_does_not_have() {
        check(stored("a", "7"), None, Comparison::Behind);
        check(stored("a", "7"), Some(object("a", "6")), Comparison::Behind);
        check(stored("b", "7"), Some(object("a", "6")), Comparison::Behind);
        check(absent("10"), Some(object("a", "6")), Comparison::Behind);
    }

    #[test]
    fn deleted_object_is_gone_or_terminating() {
        let deleted = || ObjectState::Deleted { uid: "a".into() };
        let terminating = json!({
            "name": "a", "uid": "a", "resourceVersion": "9",
            "deletionTimestamp": "2020-01-01T00:00:00Z",
        });
        check(deleted(), Some(object("a", "7")), Comparison::Behind);
        check(deleted(), Some(widget(terminating)), Comparison::Held);
        check(deleted(), Some(object("b", "8")), Comparison::Held);
        check(deleted(), None, Comparison::Held);
    }

    #[test]
    fn opaque_versions_are_not_compared() {
        let check = |state, cached, expected| {
            check_by(VersionOrder::Opaque, state, cached, expected);
        };
        check(stored("a", "7"), Some(object("a", "7")), Comparison::Held);
        check(stored("a", "7"), Some(object("a", "12")), Comparison::Undecided);
        check(stored("a", "7"), None, Comparison::Behind);
        check(absent("10"), Some(object("a", "11")), Comparison::Undecided);
        let bare = |labels: Value| {
            widget(json!({"name": "a", "uid": "a", "resourceVersion": "", "labels": labels}))
        };
        let (plain, labelled) = (bare(json!({})), bare(json!({"x": "y"})));
        let state = |content: &Object| ObjectState::Stored {
            uid: "a".into(),
            version: "".into(),
            content: Some(content.clone()),
        };
        check(state(&labelled), Some(plain), Comparison::Undecided);
        check(state(&labelled), Some(labelled.clone()), Comparison::Held);
    }

    #[test]
    fn response_is_read_as_far_as_the_identity_of_its_object() {
        let of = |body: &str| {
            let reply = WriteReply::decode(&Method::PUT, body.as_bytes());
            (reply.name, reply.state.map(|state| state.version().to_owned()))
        };
        let known = (Some("a".to_owned()), Some("7".to_owned()));
        let identity = r#"{"name":"a","uid":"u","resourceVersion":"7""#;

        assert_eq!(of(&format!(r#"{{"kind":"Widget","metadata":{identity},"labels":1e"#)), known);
        // The kind, which tells whether it is a status, comes last.
        assert_eq!(of(&format!(r#"{{"metadata":{identity}}},"kind":"Widget"}}"#)), known);
        assert_eq!(of(&format!(r#"{{"metadata":{identity}}},"kind":"Status"}}"#)), (None, None));
        assert_eq!(of(r#"{"kind":"Widget","metadata":{"name":"a","uid":"u""#), (None, None));
    }

    #[track_caller]
    fn check_response(method: Method, body: Value, name: Option<&str>, expected: &str) {
        let response = WriteReply::decode(&method, body.to_string().as_bytes());

        let state = match response.state {
            Some(ObjectState::Stored { uid, version, .. }) => format!("{uid} at {version}"),
            Some(ObjectState::Deleted { uid }) => format!("{uid} deleted"),
            Some(other) => panic!("{other:?}"),
            None => "read".to_owned(),
        };
        assert_eq!((response.name.as_deref(), &*state), (name, expected), "{method} {body}");
    }

    #[test]
    fn response_reports_the_state_or_has_to_be_read() {
        let object = json!({
            "kind": "Widget", "metadata": {"name": "a", "uid": "u", "resourceVersion": "7"},
        });
        let status = json!({"kind": "Status", "details": {"name": "a", "uid": "u"}});
        for method in [Method::POST, Method::PUT, Method::PATCH] {
            check_response(method.clone(), object.clone(), Some("a"), "u at 7");
            check_response(method, status.clone(), Some("a"), "read");
        }
        check_response(Method::DELETE, status, Some("a"), "u deleted");
        check_response(Method::DELETE, object, Some("a"), "u deleted");
        let bare = json!({"kind": "Widget", "metadata": {"name": "a", "uid": "u"}});
        check_response(Method::PUT, bare, Some("a"), "read");
        for body in [json!({}), json!([]), json!({"metadata": null}), json!({"kind": "Status"})] {
            check_response(Method::DELETE, body.clone(), None, "read");
            check_response(Method::POST, body, None, "read");
        }
    }
}
