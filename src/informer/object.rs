//! Cached object: its JSON and a small parsed header.

use std::{
    any::Any,
    borrow::Cow,
    fmt,
    sync::{Arc, OnceLock},
};

use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::{StringMap, stored_json::StoredJson};
use crate::{guard::GuardedDrop, kind::GroupKind};

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// `None` for cluster-scoped objects.
    pub namespace: Option<Arc<str>>,
    /// Name.
    pub name: Arc<str>,
}

/// Owner reference of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerReference {
    /// Group and kind, without the version.
    pub kind: Arc<GroupKind>,
    /// Name.
    pub name: Arc<str>,
    /// uid.
    pub uid: Arc<str>,
    /// True if the owner is the managing controller.
    pub controller: bool,
}

/// Parsed header of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Namespace and name.
    pub key: ObjectKey,
    /// uid; empty where an aggregated API gives none.
    pub uid: Arc<str>,
    /// resourceVersion, opaque; empty where an aggregated API gives none.
    pub resource_version: Arc<str>,
    /// metadata.generation; 0 where the type has none.
    pub generation: i64,
    /// Set while the object is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    pub labels: StringMap,
    /// Annotations, without the copies of the whole object that kubectl and Metacontroller store
    /// (`…/last-applied-configuration`); the JSON has them.
    pub annotations: StringMap,
    /// Owners, shared by the objects that have the same ones.
    pub owners: Arc<[OwnerReference]>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

/// A cached object. Cheap to clone.
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilotlight::informer::Object;
///
/// fn text(object: &Object) -> Result<Option<String>, serde_json::Error> {
///     println!("{} is of version {}", object.key(), object.header().resource_version);
///     let map: ConfigMap = object.decode()?; // Its header needs no decoding.
///     Ok(map.data.and_then(|mut data| data.remove("text")))
/// }
/// ```
#[derive(Clone)]
pub struct Object {
    inner: Arc<ObjectInner>,
}

struct ObjectInner {
    header: Header,
    // Always has apiVersion and kind, even if the list omitted them. Empty in a metadata entry.
    json: StoredJson,
    whole: bool,
    // Memory estimate; stored, because an object may have thousands of owners.
    accounted: u32,
    // Decoded by the first typed read, whose type it has; dropped with this version.
    // Boxed, since most objects have none.
    decoded: OnceLock<Box<GuardedDrop<DecodedObject>>>,
}

// Size limit: with both reference counts, one allocation of 256 bytes; the next size class is 320.
const _: () = assert!(size_of::<ObjectInner>() + 2 * size_of::<usize>() <= 256);

type DecodedObject = Arc<dyn Any + Send + Sync>;

/// Error of an object that cannot be cached. It names the field and the readable parts of the
/// object's identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct ObjectError {
    /// Path of the malformed field, such as `metadata.labels`.
    pub field: &'static str,
    /// Description of the error.
    pub reason: String,
    /// Namespace and name, if they can be read.
    pub key: Option<ObjectKey>,
    /// uid, if it can be read.
    pub uid: Option<Arc<str>>,
    /// resourceVersion, if it can be read.
    pub resource_version: Option<Arc<str>>,
}

impl Header {
    /// Returns whether only the content shows that the object has changed.
    pub(super) fn is_compared_by_content(&self) -> bool {
        self.resource_version.is_empty()
    }
}

impl ObjectKey {
    /// Key of a namespaced object.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// Key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self { namespace: None, name: name.into() }
    }
}

impl Object {
    pub(super) fn new(header: Header, json: Vec<u8>) -> Self {
        Self::of(header, json, true)
    }

    /// Returns the metadata entry of an object, without its JSON.
    pub(super) fn entry(mut header: Header) -> Self {
        header.generation = 0;
        header.annotations = StringMap::default();
        header.finalizers = Vec::new();
        Self::of(header, Vec::new(), false)
    }

    fn of(header: Header, json: Vec<u8>, whole: bool) -> Self {
        let json = StoredJson::new(json);
        let accounted = u32::try_from(accounted(&header, &json)).unwrap_or(u32::MAX);
        let decoded = OnceLock::new();
        Self { inner: Arc::new(ObjectInner { header, json, whole, accounted, decoded }) }
    }

    /// Returns whether this is all that the informer fetches of the object. A metadata entry has
    /// key, uid, resourceVersion, labels, owners and deletionTimestamp only.
    pub fn is_whole(&self) -> bool {
        self.inner.whole
    }

    /// Returns an estimate of the memory that the object takes, in bytes: its allocations, and its
    /// places in the store.
    pub(super) fn accounted(&self) -> usize {
        self.inner.accounted as usize
    }

    /// Returns the metadata entry of this object.
    pub(crate) fn reduced(&self) -> Self {
        if self.is_whole() { Self::entry(self.header().clone()) } else { self.clone() }
    }

    /// Returns whether both share their memory, as the objects of a resync do.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns whether both are the same version of the same object: same uid and resourceVersion.
    pub fn is_same_version(&self, other: &Self) -> bool {
        if self.is(other) {
            return true;
        }
        let (mine, theirs) = (self.header(), other.header());
        mine.uid == theirs.uid
            && mine.resource_version == theirs.resource_version
            && (!mine.is_compared_by_content() || mine == theirs && self.has_json_of(other))
    }

    /// Returns the parsed header.
    pub fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Returns namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.inner.header.key
    }

    /// Returns the object as JSON, with apiVersion and kind.
    /// [`Projection::Metadata`](super::Projection::Metadata) keeps only these two and the metadata.
    /// [`Projection::Keys`](super::Projection::Keys) and a metadata entry keep nothing.
    ///
    /// Borrowed if it is shorter than 2 KiB, or compresses badly. Other JSON is stored compressed,
    /// and each call restores it.
    pub fn json(&self) -> Cow<'_, [u8]> {
        self.inner.json.text()
    }

    /// Returns the length of [`Object::json`], in bytes.
    pub(crate) fn json_len(&self) -> usize {
        self.inner.json.len()
    }

    /// Appends [`Object::json`] to `to`.
    pub(crate) fn append_json(&self, to: &mut Vec<u8>) {
        self.inner.json.append_to(to);
    }

    /// Returns whether both have the same JSON, without restoring it.
    fn has_json_of(&self, other: &Self) -> bool {
        self.inner.json == other.inner.json
    }

    /// Returns the JSON as it is stored, perhaps compressed. Equal JSON is stored as equal bytes, and
    /// other JSON as others.
    pub(crate) fn stored_json(&self) -> &[u8] {
        self.inner.json.stored()
    }

    /// Decodes the whole object.
    ///
    /// # Errors
    ///
    /// If it does not have the shape of `K`; the error names the field.
    pub fn decode<K: DeserializeOwned>(&self) -> Result<K, serde_json::Error> {
        serde_json::from_slice(&self.json())
    }

    /// Decodes the whole object once: all typed reads of this version share the result. Reads of a
    /// second Rust type decode each time.
    pub(crate) fn decode_shared<K: DeserializeOwned + Send + Sync + 'static>(
        &self,
    ) -> Result<Arc<K>, serde_json::Error> {
        let shared = || Arc::clone(self.inner.decoded.get()?).downcast::<K>().ok();
        if let Some(decoded) = shared() {
            return Ok(decoded);
        }
        let decoded = Arc::new(self.decode::<K>()?);
        let kept = Arc::clone(&decoded);
        // Refused if another read was faster, or of another type.
        let _refused = self.inner.decoded.set(Box::new(GuardedDrop::new(kept)));
        Ok(shared().unwrap_or(decoded))
    }

    /// Returns the owner that is the managing controller.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.inner.header.owners.iter().find(|owner| owner.controller)
    }

    /// Returns whether the controller of the object has this uid.
    pub(crate) fn is_controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| *owner.uid == *uid)
    }
}

/// Returns an estimate of the memory that an object takes.
fn accounted(header: &Header, json: &StoredJson) -> usize {
    // Header of an allocation, rounding and reference counts.
    const ALLOCATION: usize = 24;
    // Pointer, list number and spare room of the store's map.
    const PLACE: usize = 24;
    let text = |text: &str| if text.is_empty() { 0 } else { text.len() + ALLOCATION };
    let owner =
        |owner: &OwnerReference| size_of::<OwnerReference>() + text(&owner.name) + text(&owner.uid);
    let strings = text(&header.key.name) + text(&header.uid) + text(&header.resource_version);
    let maps = header.labels.memory() + header.annotations.memory();
    let owners = header.owners.iter().map(owner).sum::<usize>();
    let finalizers = header.finalizers.iter().map(|it| size_of::<String>() + text(it));
    let fixed = size_of::<ObjectInner>() + ALLOCATION + PLACE;
    fixed + strings + maps + owners + finalizers.sum::<usize>() + json.stored().len()
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("header", &self.inner.header).finish_non_exhaustive()
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
