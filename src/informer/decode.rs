//! Decoding of JSON into cached objects, without building a tree.
//!
//! Members are located as spans of the text, and only those that the header needs are parsed. A
//! malformed member fails only its own object. The error names the field, and the parts of the
//! object's identity that could be read.

mod members;

use std::{borrow::Cow, collections::HashSet, fmt, hash::Hash, ops::Range, sync::Arc};

use bytes::Bytes;
use foldhash::quality::RandomState;
use k8s_openapi::jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use self::members::{MetadataMembers, ObjectMembers};
use super::{
    Header, InformerKey, Object, ObjectError, ObjectKey, OwnerReference, Projection, StringMap,
    Transform,
};
use crate::{
    kind::{GroupKind, Scope, ServedType},
    redaction,
};

/// End of the keys of annotations in which clients such as kubectl and Metacontroller store a copy
/// of the whole object.
const LAST_APPLIED: &str = "/last-applied-configuration";

/// Returns whether headers have the annotation of this key: they leave out copies of the whole
/// object.
#[cfg(feature = "meta")]
pub(crate) fn is_in_headers(annotation: &str) -> bool {
    !annotation.ends_with(LAST_APPLIED)
}

/// Returns JSON as text. Invalid UTF-8 becomes U+FFFD, as in the server's own decoder.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    // The check alone is faster than the search for what is to be replaced.
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Decoder for the objects of one type, projection and transform.
#[derive(Debug)]
pub(super) struct Decoder {
    // `"apiVersion":"apps/v1",` and `"kind":"Deployment",`, inserted where they are missing.
    api_version: String,
    kind: String,
    projection: Projection,
    managed_fields: bool,
    transform: Option<Transform>,
    // Shared by the objects of a namespace.
    namespaces: InternedValues<Arc<str>>,
    // Shared by the objects with owners of a kind.
    owner_kinds: InternedValues<Arc<GroupKind>>,
    // Shared by the objects with the same owners, such as the children of a parent.
    owners: InternedValues<Arc<[OwnerReference]>>,
}

/// Values that objects share. Unused ones are removed at `sweep_at`.
#[derive(Debug)]
struct InternedValues<T> {
    values: HashSet<T, RandomState>,
    sweep_at: usize,
}

const SWEEP_AT_LEAST: usize = 64;

impl Decoder {
    /// Returns the decoder of the cache of this key.
    pub(super) fn of(key: &InformerKey, served: &ServedType) -> Self {
        let decoder = Self::new(served, key.projection, key.managed_fields);
        Self { transform: key.transform.clone(), ..decoder }
    }

    /// Returns a decoder without a transform.
    pub(super) fn new(served: &ServedType, projection: Projection, managed_fields: bool) -> Self {
        let api_version = serde_json::Value::from(served.identity.api_version());
        let kind = serde_json::Value::from(served.kind.as_ref());
        Self {
            api_version: format!("\"apiVersion\":{api_version},"),
            kind: format!("\"kind\":{kind},"),
            projection,
            managed_fields,
            transform: None,
            namespaces: InternedValues::default(),
            owner_kinds: InternedValues::default(),
            owners: InternedValues::default(),
        }
    }

    /// Decodes an object; as a metadata entry if `keep` returns false for its header.
    pub(super) fn decode(
        &mut self,
        json: &str,
        keep: impl FnOnce(&Header) -> bool,
    ) -> Result<Object, ObjectError> {
        let json = json.trim();
        let members = members(json)?;
        let Some(metadata) = &members.metadata else {
            return Err(failure("metadata", "is missing"));
        };

        let mut header = self.header(metadata)?;
        if !keep(&header) {
            return Ok(Object::entry(header));
        }
        let cut = |text: &str| match metadata.managed_fields {
            Some(value) if !self.managed_fields => member(text, value.get(), "managedFields"),
            Some(_) | None => None,
        };
        let json = match self.projection {
            Projection::Full => self.whole(json, &members, cut(json)),
            Projection::Metadata => {
                let spans: ObjectMembers<&RawValue> =
                    serde_json::from_str(json).map_err(|error| syntax(&error))?;
                let metadata = spans.metadata.map_or("", RawValue::get);
                self.metadata(metadata, cut(metadata))
            }
            Projection::Keys => return Ok(Object::new(header, Bytes::new())),
        };
        let kept = match &self.transform {
            None => details(metadata, &mut header).map(|()| json),
            Some(transform) => transformed(transform, &json, &mut header),
        };
        match kept {
            Ok(json) => Ok(Object::new(header, json)),
            Err(error) => Err(ObjectError {
                key: Some(header.key),
                uid: Some(header.uid),
                resource_version: Some(header.resource_version),
                ..error
            }),
        }
    }

    fn header(&mut self, metadata: &MetadataMembers<'_>) -> Result<Header, ObjectError> {
        // Identity first, so that any later error can name the object.
        let name = read::<Text<'_>>("metadata.name", metadata.name)
            .and_then(|name| name.filter(|name| !name.0.is_empty()).ok_or_else(missing_name));
        let namespace = read::<Text<'_>>("metadata.namespace", metadata.namespace);
        let uid = read::<Text<'_>>("metadata.uid", metadata.uid);
        let version = read::<Text<'_>>("metadata.resourceVersion", metadata.resource_version);

        let key = match (&name, &namespace) {
            (Ok(name), Ok(namespace)) => Some(ObjectKey {
                namespace: namespace
                    .as_ref()
                    .filter(|namespace| !namespace.0.is_empty())
                    .map(|namespace| self.namespaces.get(&*namespace.0)),
                name: name.0.as_ref().into(),
            }),
            (Err(_), _) | (_, Err(_)) => None,
        };
        let seen_uid = uid.as_ref().ok().map(|uid| text_or_empty(uid.as_ref()));
        let seen_version = version.as_ref().ok().map(|version| text_or_empty(version.as_ref()));
        let identified = |mut error: ObjectError| {
            error.key.clone_from(&key);
            error.uid.clone_from(&seen_uid);
            error.resource_version.clone_from(&seen_version);
            error
        };

        name.map_err(identified)?;
        namespace.map_err(identified)?;
        uid.map_err(identified)?;
        version.map_err(identified)?;
        let key = key.clone().ok_or_else(|| identified(missing_name()))?;
        let uid = seen_uid.clone().unwrap_or_default();
        let resource_version = seen_version.clone().unwrap_or_default();
        let mut header = Header {
            key,
            uid,
            resource_version,
            generation: 0,
            deletion_timestamp: None,
            labels: StringMap::default(),
            annotations: StringMap::default(),
            owners: Arc::default(),
            finalizers: Vec::new(),
        };
        if self.projection == Projection::Keys {
            return Ok(header);
        }
        let (kinds, owners) = (&mut self.owner_kinds, &mut self.owners);
        relations(metadata, &mut header, kinds, owners).map_err(identified)?;
        Ok(header)
    }

    /// Returns the object's JSON, without the cut span, and with its type added.
    fn whole<M>(&self, json: &str, members: &ObjectMembers<M>, cut: Option<Range<usize>>) -> Bytes {
        let api_version = if members.has_api_version { "" } else { &self.api_version };
        let kind = if members.has_kind { "" } else { &self.kind };
        let cut = cut.unwrap_or(0..0);
        // An object with metadata begins with a brace, which is one byte.
        concat(&["{", api_version, kind, &json[1..cut.start.max(1)], &json[cut.end.max(1)..]])
    }

    fn metadata(&self, text: &str, cut: Option<Range<usize>>) -> Bytes {
        let cut = cut.unwrap_or(0..0);
        let (head, tail) = (&text[..cut.start], &text[cut.end..]);
        concat(&["{", &self.api_version, &self.kind, "\"metadata\":", head, tail, "}"])
    }
}

impl<T: ?Sized + Hash + Eq> InternedValues<Arc<T>> {
    fn get(&mut self, value: &T) -> Arc<T>
    where
        Arc<T>: for<'a> From<&'a T>,
    {
        self.get_or(value, || Arc::from(value))
    }

    fn get_or(&mut self, value: &T, create: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.get(value) {
            return known.clone();
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = (self.values.len() * 2).max(SWEEP_AT_LEAST);
        }
        let value = create();
        self.values.insert(value.clone());
        value
    }
}

impl<T> Default for InternedValues<T> {
    fn default() -> Self {
        Self { values: HashSet::default(), sweep_at: SWEEP_AT_LEAST }
    }
}

/// Decodes the part of a header that a metadata entry has too.
fn relations(
    metadata: &MetadataMembers<'_>,
    header: &mut Header,
    kinds: &mut InternedValues<Arc<GroupKind>>,
    shared: &mut InternedValues<Arc<[OwnerReference]>>,
) -> Result<(), ObjectError> {
    let deleted = read::<Text<'_>>("metadata.deletionTimestamp", metadata.deletion_timestamp)?;
    header.deletion_timestamp = deleted
        .map(|time| time.0.parse::<Timestamp>())
        .transpose()
        .map_err(|error| failure("metadata.deletionTimestamp", error))?;
    header.labels = strings("metadata.labels", metadata.labels)?;
    let owners: Option<Vec<OwnerMembers<'_>>> =
        read("metadata.ownerReferences", metadata.owner_references)?;
    let reference = |owner| owner_reference(owner, kinds);
    let owners: Vec<_> = owners.unwrap_or_default().into_iter().map(reference).collect();
    if !owners.is_empty() {
        header.owners = shared.get_or(&owners, || owners.as_slice().into());
    }
    Ok(())
}

/// Decodes the rest of the header of a whole object.
fn details(metadata: &MetadataMembers<'_>, header: &mut Header) -> Result<(), ObjectError> {
    header.generation = read("metadata.generation", metadata.generation)?.unwrap_or(0);
    header.annotations = strings("metadata.annotations", metadata.annotations)?;
    header.finalizers = read("metadata.finalizers", metadata.finalizers)?.unwrap_or_default();
    header.finalizers.shrink_to_fit();
    Ok(())
}

/// Applies a transform to the JSON of an object, and decodes the details of its header from the
/// result. Relations in the header stay the server's, since interests select the object by them.
fn transformed(
    transform: &Transform,
    json: &[u8],
    header: &mut Header,
) -> Result<Bytes, ObjectError> {
    let object = serde_json::from_slice(json).map_err(|error| syntax(&error))?;
    let object = transform.apply(object).map_err(|error| failure("object", error))?;
    let metadata = object["metadata"].to_string();
    let metadata: MetadataMembers<'_> =
        serde_json::from_str(&metadata).map_err(|error| failure("metadata", error))?;
    details(&metadata, header)?;
    // Copied, since the text may have spare capacity.
    Ok(concat(&[&object.to_string()]))
}

fn strings(field: &'static str, raw: Option<&RawValue>) -> Result<StringMap, ObjectError> {
    let entries: Option<HeaderStrings<'_>> = read(field, raw)?;
    Ok(entries.map(|entries| entries.0.into_iter().collect()).unwrap_or_default())
}

/// Parses a field. Absent and null are the same, as for the server.
fn read<'a, T: Deserialize<'a>>(
    field: &'static str,
    raw: Option<&'a RawValue>,
) -> Result<Option<T>, ObjectError> {
    match raw {
        Some(raw) => serde_json::from_str(raw.get()).map_err(|error| failure(field, error)),
        None => Ok(None),
    }
}

fn text_or_empty(text: Option<&Text<'_>>) -> Arc<str> {
    text.map(|text| text.0.as_ref()).unwrap_or_default().into()
}

fn missing_name() -> ObjectError {
    failure("metadata.name", "is missing")
}

fn syntax(error: &serde_json::Error) -> ObjectError {
    failure("object", error)
}

fn failure(field: &'static str, reason: impl fmt::Display) -> ObjectError {
    let reason = redaction::decoding(reason);
    ObjectError { field, reason, key: None, uid: None, resource_version: None }
}

fn concat(parts: &[&str]) -> Bytes {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for part in parts {
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes.into()
}

/// Returns the offset of `inner`, a slice of `outer`, in `outer`.
fn offset(outer: &str, inner: &str) -> usize {
    inner.as_ptr() as usize - outer.as_ptr() as usize
}

/// Returns the span of a whole member, with its name and one comma, from the span of its value.
///
/// `None` if the name is written with escapes; the member is kept then.
fn member(outer: &str, value: &str, name: &str) -> Option<Range<usize>> {
    let value_start = offset(outer, value);
    let value_end = value_start + value.len();
    let before = outer[..value_start].trim_end().strip_suffix(':')?.trim_end();
    let before = before.strip_suffix('"')?.strip_suffix(name)?.strip_suffix('"')?;
    let start = before.len();
    let after = outer[value_end..].trim_start();
    if let Some(rest) = after.strip_prefix(',') {
        return Some(start..outer.len() - rest.len());
    }
    // The last member: remove the comma before it, if any.
    let start = before.trim_end().strip_suffix(',').map_or(start, str::len);
    Some(start..value_end)
}

#[derive(Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Labels or annotations that a header has.
struct HeaderStrings<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'de> Deserialize<'de> for HeaderStrings<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringsVisitor;

        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = HeaderStrings<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if key.0.ends_with(LAST_APPLIED) {
                        // A copy of an object is long, and mostly escapes.
                        let copy: &RawValue = map.next_value()?;
                        if !copy.get().starts_with('"') {
                            Option::<Text<'_>>::deserialize(copy).map_err(A::Error::custom)?;
                        }
                        continue;
                    }
                    // Go decodes a null value as an empty string.
                    let value: Option<Text<'de>> = map.next_value()?;
                    entries.push((key, value.unwrap_or_default()));
                }
                Ok(HeaderStrings(entries))
            }
        }

        deserializer.deserialize_map(StringsVisitor)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerMembers<'a> {
    #[serde(borrow)]
    api_version: Option<Text<'a>>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    controller: Option<bool>,
}

fn owner_reference(
    owner: OwnerMembers<'_>,
    kinds: &mut InternedValues<Arc<GroupKind>>,
) -> OwnerReference {
    let api_version = owner.api_version.unwrap_or_default();
    let group = api_version.0.rsplit_once('/').map_or("", |(group, _)| group);
    let kind = owner.kind.unwrap_or_default().0.into_owned();
    let kind = GroupKind { group: group.to_owned(), kind };
    OwnerReference {
        kind: kinds.get_or(&kind, || Arc::new(kind.clone())),
        name: text_or_empty(owner.name.as_ref()),
        uid: text_or_empty(owner.uid.as_ref()),
        controller: owner.controller.unwrap_or(false),
    }
}

impl Object {
    /// Decodes the JSON of a response. Everything but `managedFields` is kept.
    ///
    /// The bytes are copied; a missing apiVersion or kind is added.
    ///
    /// # Errors
    ///
    /// If a part that the header needs is missing or has the wrong type.
    pub fn from_json(json: impl AsRef<[u8]>, served: &ServedType) -> Result<Self, ObjectError> {
        let text = text(json.as_ref());
        Decoder::new(served, Projection::Full, false).decode(&text, |_| true)
    }

    /// Returns an object of a Rust type, such as for a generic event or for a
    /// [`Store`](super::Store) in a test. `scope` is that of its type.
    ///
    /// # Errors
    ///
    /// If it cannot be serialized, or has no name.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilotlight::{informer::Object, kind::Scope};
    ///
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("settings".into());
    /// map.metadata.namespace = Some("prod".into());
    /// let object = Object::from_typed(&map, Scope::Namespaced).unwrap();
    /// assert_eq!(object.key().to_string(), "prod/settings");
    /// ```
    pub fn from_typed<K>(object: &K, scope: Scope) -> Result<Self, ObjectError>
    where
        K: kube::Resource<DynamicType = ()> + Serialize,
    {
        let json = serde_json::to_vec(object).map_err(|error| ObjectError {
            field: "object",
            reason: redaction::message(&error),
            key: None,
            uid: None,
            resource_version: None,
        })?;
        Self::from_json(json, &ServedType::of::<K>(scope))
    }

    /// Decodes the JSON of a response as the cache of this key keeps it.
    pub(crate) fn cached_by(
        key: &InformerKey,
        json: impl AsRef<[u8]>,
        served: &ServedType,
    ) -> Result<Self, ObjectError> {
        let text = text(json.as_ref());
        Decoder::of(key, served).decode(&text, |_| true)
    }
}

/// Reads an object and its metadata at once; one after the other if that fails, so that the error
/// names the part.
fn members(json: &str) -> Result<ObjectMembers<MetadataMembers<'_>>, ObjectError> {
    if let Ok(members) = serde_json::from_str(json) {
        return Ok(members);
    }
    let spans: ObjectMembers<&RawValue> =
        serde_json::from_str(json).map_err(|error| syntax(&error))?;
    let metadata = spans.metadata.map(|raw| serde_json::from_str(raw.get())).transpose();
    let metadata = metadata.map_err(|error| failure("metadata", error))?;
    let ObjectMembers { has_api_version, has_kind, .. } = spans;
    Ok(ObjectMembers { has_api_version, has_kind, metadata })
}

#[cfg(test)]
mod tests;
