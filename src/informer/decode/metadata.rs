//! Metadata of an object: the fields of a header, and the span that is cut.
//!
//! Valid metadata are decoded at once. Otherwise each field is located and decoded by itself, so
//! that the error names the field, and the parts of the identity that could be read.

use std::{borrow::Cow, collections::HashMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

use super::{failure, missing_name, text_or_empty};
use crate::informer::{ObjectError, ObjectKey, OwnerReference};

/// Metadata with the errors of the fields that could not be decoded. They matter only to a header
/// that has these fields.
#[derive(Default)]
pub(super) struct Metadata<'a> {
    pub(super) fields: MetadataFields<'a>,
    errors: Option<Box<FieldErrors>>,
}

/// First errors of the fields that a metadata entry has too, and of those of whole objects alone.
struct FieldErrors {
    relations: Option<ObjectError>,
    details: Option<ObjectError>,
}

/// Decoded fields. Absent and null are the same, as for the server.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MetadataFields<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) uid: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) resource_version: Option<Text<'a>>,
    pub(super) generation: Option<i64>,
    #[serde(borrow)]
    pub(super) deletion_timestamp: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) labels: Option<Entries<'a, Option<Text<'a>>>>,
    // Spans: a metadata entry has none of them, and they may be long.
    #[serde(borrow)]
    pub(super) annotations: Option<Entries<'a, &'a RawValue>>,
    #[serde(borrow)]
    pub(super) owner_references: Option<Vec<OwnerFields<'a>>>,
    #[serde(borrow)]
    pub(super) finalizers: Option<Vec<Text<'a>>>,
    // Span of any value.
    #[serde(borrow, deserialize_with = "span")]
    pub(super) managed_fields: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Metadata<'de> {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        // A list would be taken for the values of the fields in their order.
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = MetadataFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                MetadataFields::deserialize(MapAccessDeserializer::new(map))
            }
        }

        let fields = decoder.deserialize_map(FieldsVisitor)?;
        Ok(Self { fields, errors: None })
    }
}

impl<'a> Metadata<'a> {
    /// Decodes metadata, field by field if one is malformed or repeated. The last of repeated ones
    /// counts, as for the server.
    ///
    /// # Errors
    ///
    /// If the identity of the object cannot be read. Errors of other fields are kept.
    pub(super) fn decode(json: &'a str) -> Result<Self, ObjectError> {
        if let Ok(metadata) = serde_json::from_str(json) {
            return Ok(metadata);
        }
        let spans: HashMap<String, &RawValue> =
            serde_json::from_str(json).map_err(|error| failure("metadata", error))?;
        let mut metadata = Self::default();
        let fields = &mut metadata.fields;
        fields.managed_fields = spans.get("managedFields").copied();
        // All parts of the identity, so that any error can name the object.
        let name = read(&spans, "metadata.name", &mut fields.name);
        let name = name.and_then(|()| fields.name().map(drop).ok_or_else(missing_name));
        let namespace = read(&spans, "metadata.namespace", &mut fields.namespace);
        let uid = read(&spans, "metadata.uid", &mut fields.uid);
        let version = read(&spans, "metadata.resourceVersion", &mut fields.resource_version);
        let has_key = name.is_ok() && namespace.is_ok();
        let (has_uid, has_version) = (uid.is_ok(), version.is_ok());
        if let Err(error) = name.and(namespace).and(uid).and(version) {
            let mut error = metadata.identified(error);
            error.key = error.key.filter(|_| has_key);
            error.uid = error.uid.filter(|_| has_uid);
            error.resource_version = error.resource_version.filter(|_| has_version);
            return Err(error);
        }
        let relations = read(&spans, "metadata.deletionTimestamp", &mut fields.deletion_timestamp)
            .and_then(|()| read(&spans, "metadata.labels", &mut fields.labels))
            .and_then(|()| read(&spans, "metadata.ownerReferences", &mut fields.owner_references));
        let details = read(&spans, "metadata.generation", &mut fields.generation)
            .and_then(|()| read(&spans, "metadata.annotations", &mut fields.annotations))
            .and_then(|()| read(&spans, "metadata.finalizers", &mut fields.finalizers));
        let (relations, details) = (relations.err(), details.err());
        metadata.errors = Some(Box::new(FieldErrors { relations, details }));
        Ok(metadata)
    }

    /// Returns the error of the fields that a metadata entry has too, if any.
    pub(super) fn relations(&self) -> Result<(), ObjectError> {
        let error = self.errors.as_ref().and_then(|errors| errors.relations.clone());
        error.map_or(Ok(()), Err)
    }

    /// Returns the error of the fields that whole objects alone have, if any.
    pub(super) fn details(&self) -> Result<(), ObjectError> {
        let error = self.errors.as_ref().and_then(|errors| errors.details.clone());
        error.map_or(Ok(()), Err)
    }

    /// Adds the identity of the object to an error; empty texts where it has none.
    pub(super) fn identified(&self, error: ObjectError) -> ObjectError {
        let fields = &self.fields;
        let key = fields.name().map(|name| ObjectKey {
            namespace: fields.namespace().map(Into::into),
            name: name.into(),
        });
        ObjectError {
            key,
            uid: Some(text_or_empty(fields.uid.as_ref())),
            resource_version: Some(text_or_empty(fields.resource_version.as_ref())),
            ..error
        }
    }
}

impl MetadataFields<'_> {
    /// Returns the name, unless it is empty.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &*name.0).filter(|name| !name.is_empty())
    }

    /// Returns the size of labels, owners and finalizers in a header.
    pub(super) fn header_bytes<'o>(
        &self,
        owners: impl IntoIterator<Item = &'o OwnerFields<'o>>,
    ) -> usize {
        let len = |text: Option<&Text<'_>>| text.map_or(0, |text| text.0.len());
        let labels = self.labels.iter().flat_map(|labels| &labels.0);
        let labels = labels.map(|(key, value)| key.0.len() + len(value.as_ref()));
        let owners = owners.into_iter().map(|owner| {
            let OwnerFields { api_version, kind, name, uid, controller: _ } = owner;
            let texts: usize =
                [api_version, kind, name, uid].map(|it| len(it.as_ref())).iter().sum();
            size_of::<OwnerReference>() + texts
        });
        let finalizers = self.finalizers.iter().flatten();
        let finalizers = finalizers.map(|finalizer| size_of::<String>() + finalizer.0.len());
        labels.chain(owners).chain(finalizers).sum()
    }

    /// Returns the namespace, unless it is empty.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_ref().map(|namespace| &*namespace.0).filter(|name| !name.is_empty())
    }
}

/// Decodes one field.
fn read<'a, T: Deserialize<'a>>(
    spans: &HashMap<String, &'a RawValue>,
    field: &'static str,
    into: &mut Option<T>,
) -> Result<(), ObjectError> {
    let name = field.strip_prefix("metadata.").unwrap_or(field);
    if let Some(span) = spans.get(name) {
        *into = serde_json::from_str(span.get()).map_err(|error| failure(field, error))?;
    }
    Ok(())
}

fn span<'de, D: Deserializer<'de>>(decoder: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(decoder).map(Some)
}

#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Members of an object in their order, so that they are neither sorted nor hashed.
pub(super) struct Entries<'a, V>(pub(super) Vec<(Text<'a>, V)>);

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Entries<'a, V> {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Entries<'de, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        decoder.deserialize_map(EntriesVisitor(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OwnerFields<'a> {
    #[serde(borrow)]
    pub(super) api_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) uid: Option<Text<'a>>,
    pub(super) controller: Option<bool>,
}
