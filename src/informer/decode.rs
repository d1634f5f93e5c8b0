//! Decoding of JSON into cached objects, without building a tree.
//!
//! Valid metadata are decoded in one pass over the text, which skips the rest. Malformed metadata are
//! decoded field by field (`metadata.rs`), and fail only their own object. The error names the field,
//! and the parts of the object's identity that could be read.

mod members;
mod metadata;

use std::{borrow::Cow, collections::HashSet, fmt, hash::Hash, ops::Range, sync::Arc};

use foldhash::quality::RandomState;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use self::{
    members::ObjectMembers,
    metadata::{Entries, Metadata, OwnerFields, Text},
};
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

/// Maximum size of the labels, owners and finalizers of an object. An entry of an object that
/// concerns no subscriber keeps labels and owners, and the API server limits only the sum of the
/// annotations: without a limit, every user of a watched type could fill the memory. Where owners
/// exceed it, the controller among them is kept.
const HEADER_MAX_BYTES: usize = 64 * 1024;

/// Returns whether headers have the annotation of this key: they leave out copies of the whole
/// object.
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

        let mut header = self.header(metadata).map_err(|error| metadata.identified(error))?;
        if !keep(&header) {
            return Ok(Object::entry(header));
        }
        let cut = |text: &str| match metadata.fields.managed_fields {
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
            Projection::Keys => return Ok(Object::new(header, Vec::new())),
        };
        let kept = match &self.transform {
            None => details(metadata, &mut header).map(|()| json),
            Some(transform) => transformed(transform, &json, &mut header),
        };
        match kept {
            Ok(json) => Ok(Object::new(header, json)),
            Err(error) => Err(metadata.identified(error)),
        }
    }

    fn header(&mut self, metadata: &Metadata<'_>) -> Result<Header, ObjectError> {
        let fields = &metadata.fields;
        let name = fields.name().ok_or_else(missing_name)?;
        let namespace = fields.namespace().map(|namespace| self.namespaces.get(namespace));
        let mut header = Header {
            key: ObjectKey { namespace, name: name.into() },
            uid: text_or_empty(fields.uid.as_ref()),
            resource_version: text_or_empty(fields.resource_version.as_ref()),
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
        metadata.relations()?;
        let owners = fields.owner_references.as_deref().unwrap_or_default();
        let owners: Vec<_> = match fields.header_bytes(owners) {
            ..=HEADER_MAX_BYTES => owners.iter().collect(),
            _ => owners.iter().filter(|owner| owner.controller == Some(true)).collect(),
        };
        let bytes = fields.header_bytes(owners.iter().copied());
        if bytes > HEADER_MAX_BYTES {
            let reason = format!(
                "labels, owner references and finalizers have {bytes} bytes, of at most \
                 {HEADER_MAX_BYTES}"
            );
            return Err(failure("metadata", reason));
        }
        let deleted = fields.deletion_timestamp.as_ref().map(|time| time.0.parse::<Timestamp>());
        header.deletion_timestamp =
            deleted.transpose().map_err(|error| failure("metadata.deletionTimestamp", error))?;
        let labels = fields.labels.iter().flat_map(|labels| &labels.0);
        // Go decodes a null value as an empty string.
        header.labels = labels.map(|(key, value)| (&*key.0, text_of(value.as_ref()))).collect();
        if !owners.is_empty() {
            let kinds = &mut self.owner_kinds;
            let owners: Vec<_> = owners.iter().map(|it| owner_reference(it, kinds)).collect();
            header.owners = self.owners.get_or(&owners, || owners.as_slice().into());
        }
        Ok(header)
    }

    /// Returns the object's JSON, without the cut span, and with its type added.
    fn whole<M>(
        &self,
        json: &str,
        members: &ObjectMembers<M>,
        cut: Option<Range<usize>>,
    ) -> Vec<u8> {
        let api_version = if members.has_api_version { "" } else { &self.api_version };
        let kind = if members.has_kind { "" } else { &self.kind };
        let cut = cut.unwrap_or(0..0);
        // An object with metadata begins with a brace, which is one byte.
        concat(&["{", api_version, kind, &json[1..cut.start.max(1)], &json[cut.end.max(1)..]])
    }

    fn metadata(&self, text: &str, cut: Option<Range<usize>>) -> Vec<u8> {
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

/// Adds generation, annotations and finalizers, which only the header of a whole object has.
fn details(metadata: &Metadata<'_>, header: &mut Header) -> Result<(), ObjectError> {
    metadata.details()?;
    let fields = &metadata.fields;
    header.generation = fields.generation.unwrap_or(0);
    header.annotations =
        fields.annotations.as_ref().map_or(Ok(StringMap::default()), annotations)?;
    let finalizers = fields.finalizers.iter().flatten();
    header.finalizers = finalizers.map(|finalizer| finalizer.0.to_string()).collect();
    Ok(())
}

/// Applies a transform to the JSON of an object, and decodes the details of its header from the
/// result. Relations in the header stay the server's, since interests select the object by them.
fn transformed(
    transform: &Transform,
    json: &[u8],
    header: &mut Header,
) -> Result<Vec<u8>, ObjectError> {
    let object = serde_json::from_slice(json).map_err(|error| syntax(&error))?;
    let object = transform.apply(object).map_err(|error| failure("object", error))?;
    let metadata = object["metadata"].to_string();
    details(&Metadata::decode(&metadata)?, header)?;
    // Copied, since the text may have spare capacity.
    Ok(concat(&[&object.to_string()]))
}

fn annotations(spans: &Entries<'_, &RawValue>) -> Result<StringMap, ObjectError> {
    let mut entries = Vec::with_capacity(spans.0.len());
    for (key, value) in &spans.0 {
        // A copy of an object is long, and mostly escapes.
        let is_copy = key.0.ends_with(LAST_APPLIED);
        if is_copy && value.get().starts_with('"') {
            continue;
        }
        // Go decodes a null value as an empty string.
        let value: Option<Text<'_>> = serde_json::from_str(value.get())
            .map_err(|error| failure("metadata.annotations", error))?;
        if !is_copy {
            entries.push((&*key.0, value));
        }
    }
    Ok(entries.iter().map(|(key, value)| (*key, text_of(value.as_ref()))).collect())
}

fn text_of<'a>(text: Option<&'a Text<'_>>) -> &'a str {
    text.map_or("", |text| &text.0)
}

fn text_or_empty(text: Option<&Text<'_>>) -> Arc<str> {
    text_of(text).into()
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

fn concat(parts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for part in parts {
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
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

fn owner_reference(
    owner: &OwnerFields<'_>,
    kinds: &mut InternedValues<Arc<GroupKind>>,
) -> OwnerReference {
    let group = text_of(owner.api_version.as_ref()).rsplit_once('/').map_or("", |(group, _)| group);
    let kind = text_of(owner.kind.as_ref()).to_owned();
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

/// Decodes an object and its metadata at once; one after the other if that fails, so that the error
/// names the part.
fn members(json: &str) -> Result<ObjectMembers<Metadata<'_>>, ObjectError> {
    if let Ok(members) = serde_json::from_str(json) {
        return Ok(members);
    }
    let spans: ObjectMembers<&RawValue> =
        serde_json::from_str(json).map_err(|error| syntax(&error))?;
    let metadata = spans.metadata.map(|raw| Metadata::decode(raw.get())).transpose()?;
    let ObjectMembers { has_api_version, has_kind, .. } = spans;
    Ok(ObjectMembers { has_api_version, has_kind, metadata })
}

#[cfg(test)]
mod tests;
