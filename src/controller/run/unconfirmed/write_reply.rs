//! Reply to a write: the identity of the written object, from the body of the response.

use std::{fmt, sync::Arc};

use http::Method;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::state::ObjectState;

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
struct ResponseFields<'de> {
    kind: Option<String>,
    metadata: ObjectIdentity,
    // Identity in the `Status` that answers a deletion. Any object may have a field of this name.
    details: Option<&'de RawValue>,
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
struct ResponseReader<'r, 'de>(&'r mut ResponseFields<'de>);

struct IdentityReader<'r> {
    identity: &'r mut ObjectIdentity,
    ends_early: bool,
}

impl<'de> ResponseFields<'de> {
    fn decode(body: &'de [u8]) -> Self {
        let mut fields = Self::default();
        let mut decoder = serde_json::Deserializer::from_slice(body);
        let end = decoder.deserialize_map(ResponseReader(&mut fields));
        if end.is_ok() || fields.metadata.is_complete() { fields } else { Self::default() }
    }

    fn is_status(&self) -> bool {
        self.kind.as_deref() == Some("Status")
    }

    /// Returns the identity of the object, and whether the response is a `Status` about it.
    fn identity(self) -> (ObjectIdentity, bool) {
        if !self.is_status() {
            return (self.metadata, false);
        }
        let mut identity = ObjectIdentity::default();
        let reader = IdentityReader { identity: &mut identity, ends_early: false };
        match self.details.map(|details| reader.deserialize(details)) {
            Some(Ok(())) => (identity, true),
            Some(Err(_)) | None => (ObjectIdentity::default(), true),
        }
    }
}

impl ObjectIdentity {
    fn is_complete(&self) -> bool {
        self.name.is_some() && self.uid.is_some() && self.resource_version.is_some()
    }
}

impl<'de> Visitor<'de> for ResponseReader<'_, 'de> {
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
                ResponseField::Details => found.details = Some(fields.next_value()?),
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
        let (identity, is_status) = ResponseFields::decode(body).identity();
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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
        let bare = json!({"kind": "Widget", "metadata": {"name": "a", "uid": "u"}});
        check_response(Method::PUT, bare, Some("a"), "read");
        for details in [json!("text"), json!({"name": 5, "uid": {}}), json!([1]), json!(null)] {
            let mut with_details = json!({"details": details});
            with_details.as_object_mut().unwrap().extend(object.as_object().unwrap().clone());
            check_response(Method::PUT, with_details, Some("a"), "u at 7");
        }
        check_response(Method::DELETE, object, Some("a"), "u deleted");
        for body in [json!({}), json!([]), json!({"metadata": null}), json!({"kind": "Status"})] {
            check_response(Method::DELETE, body.clone(), None, "read");
            check_response(Method::POST, body, None, "read");
        }
    }
}
