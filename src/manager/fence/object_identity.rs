//! Identity of an object, from the body of a response.
//!
//! The text is read as far as needed: the content that follows the identity is most of it.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Identity of an object.
#[derive(Debug, Default)]
pub(crate) struct ObjectIdentity {
    pub(crate) name: Option<String>,
    pub(crate) uid: Option<String>,
    /// resourceVersion.
    pub(crate) version: Option<String>,
}

/// Fields of a response that identify the object.
#[derive(Default)]
struct ResponseFields<'de> {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: ObjectIdentity,
    // Identity in the `Status` that answers a deletion. Any object may have a field of this name.
    details: Option<&'de RawValue>,
    // True if the rest of the text was not read.
    is_partial: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum ResponseField {
    ApiVersion,
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

impl ObjectIdentity {
    /// Returns the identity of the object in a response, and whether the response is a `Status` about
    /// it.
    ///
    /// # Errors
    ///
    /// If the text is not a JSON object that can be decoded, as far as the end of the identity.
    pub(crate) fn of_response(body: &[u8]) -> Result<(Self, bool), serde_json::Error> {
        let mut fields = ResponseFields::default();
        let mut decoder = serde_json::Deserializer::from_slice(body);
        let end = decoder.deserialize_map(ResponseReader(&mut fields)).and_then(|()| decoder.end());
        if !fields.is_partial {
            end?;
        }
        Ok(fields.identity())
    }

    fn is_complete(&self) -> bool {
        self.name.is_some() && self.uid.is_some() && self.version.is_some()
    }
}

impl ResponseFields<'_> {
    /// Returns whether the response is a `Status` of the API. A CRD may have a kind of this name.
    fn is_status(&self) -> bool {
        self.kind.as_deref() == Some("Status")
            && self.api_version.as_deref().unwrap_or("v1") == "v1"
    }

    /// Returns whether the response is known to be no `Status`.
    fn is_object(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind != "Status")
            || self.api_version.as_deref().is_some_and(|version| version != "v1")
    }

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

impl<'de> Visitor<'de> for ResponseReader<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let found = self.0;
        while let Some(field) = fields.next_key()? {
            match field {
                ResponseField::ApiVersion => found.api_version = fields.next_value()?,
                ResponseField::Kind => found.kind = fields.next_value()?,
                ResponseField::Metadata => {
                    let ends_early = found.is_object();
                    let identity = &mut found.metadata;
                    let read = fields.next_value_seed(IdentityReader { identity, ends_early });
                    found.is_partial = ends_early && found.metadata.is_complete();
                    read?;
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
                IdentityField::ResourceVersion => found.version = fields.next_value()?,
                IdentityField::Other => drop(fields.next_value::<IgnoredAny>()?),
            }
            if self.ends_early && found.is_complete() {
                return Err(A::Error::custom("the rest is not read"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns name, version, and whether the response is a status.
    fn of(body: &str) -> Option<(Option<String>, Option<String>, bool)> {
        let (identity, is_status) = ObjectIdentity::of_response(body.as_bytes()).ok()?;
        Some((identity.name, identity.version, is_status))
    }

    fn known(is_status: bool) -> Option<(Option<String>, Option<String>, bool)> {
        Some((Some("a".to_owned()), Some("7".to_owned()), is_status))
    }

    const IDENTITY: &str = r#"{"name":"a","uid":"u","resourceVersion":"7""#;

    #[test]
    fn response_is_read_as_far_as_the_identity_of_its_object() {
        for head in [r#""kind":"Widget""#, r#""apiVersion":"example.com/v1""#] {
            let body = format!(r#"{{{head},"metadata":{IDENTITY},"labels":1e"#);
            assert_eq!(of(&body), known(false), "{head}");
        }
        for broken in [r#"{"kind":"Widget","metadata":{"name":"a","uid":"u""#, "[]", "", "{} {}"] {
            assert_eq!(of(broken), None, "{broken}");
        }
        let broken = format!(r#"{{"metadata":{IDENTITY}}},"ki"#);
        assert_eq!(of(&broken), None, "the kind is not known");
    }

    #[test]
    fn status_and_object_are_distinguished_in_any_order_of_the_fields() {
        assert_eq!(of(&format!(r#"{{"metadata":{IDENTITY}}},"kind":"Widget"}}"#)), known(false));
        let status = format!(r#"{{"metadata":{IDENTITY}}},"kind":"Status","apiVersion":"v1"}}"#);
        assert_eq!(of(&status), Some((None, None, true)));
        let details = r#"{"kind":"Status","details":{"name":"a","uid":"u"}}"#;
        assert_eq!(of(details), Some((Some("a".to_owned()), None, true)));
        let version = r#""apiVersion":"example.com/v1""#;
        for object in [
            format!(r#"{{"kind":"Status",{version},"metadata":{IDENTITY}}}}}"#),
            format!(r#"{{"metadata":{IDENTITY}}},"kind":"Status",{version}}}"#),
        ] {
            assert_eq!(of(&object), known(false), "a CRD of this kind: {object}");
        }
    }
}
