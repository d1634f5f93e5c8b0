//! A cached object: its JSON bytes and a small parsed header.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::{Projection, StringMap, decode::Decoder};
use crate::kind::ServedType;

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// `None` for cluster-scoped objects.
    pub namespace: Option<Arc<str>>,
    /// Name.
    pub name: Arc<str>,
}

/// An owner, as an object names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerReference {
    /// API group, without the version.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: Arc<str>,
    /// uid.
    pub uid: Arc<str>,
    /// Whether it is the managing controller.
    pub controller: bool,
}

/// What is parsed of every object.
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
    /// Set while it is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    pub labels: StringMap,
    /// Annotations. The one in which `kubectl apply` repeats the whole object is left out when it
    /// is longer than 1 KiB; the JSON still has it.
    pub annotations: StringMap,
    /// Owners.
    pub owners: Vec<OwnerReference>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

/// A cached object. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    inner: Arc<Inner>,
}

struct Inner {
    header: Header,
    // Always has apiVersion and kind, also when it came from a list that leaves them out.
    json: Bytes,
}

/// Why an object cannot be cached; names the field, and as much of the object as can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct ObjectError {
    /// Path of the field that is wrong, such as `metadata.labels`.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
    /// Which object, if its namespace and name can be read.
    pub key: Option<ObjectKey>,
    /// Its uid, if that can be read.
    pub uid: Option<Arc<str>>,
    /// Its resourceVersion, if that can be read.
    pub resource_version: Option<Arc<str>>,
}

impl ObjectKey {
    /// A namespaced object's name.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// A cluster-scoped object's name.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self { namespace: None, name: name.into() }
    }
}

impl Object {
    /// An object from the JSON of a response, whole but for its `managedFields`.
    ///
    /// The bytes are copied; apiVersion and kind are filled in where they are missing.
    ///
    /// # Errors
    ///
    /// When a part that the header needs is missing or has the wrong type.
    pub fn from_json(json: impl AsRef<[u8]>, served: &ServedType) -> Result<Self, ObjectError> {
        let text = super::decode::text(json.as_ref());
        Decoder::new(served, Projection::Full, false).decode(&text)
    }

    pub(super) fn new(header: Header, json: Bytes) -> Self {
        Self { inner: Arc::new(Inner { header, json }) }
    }

    /// Whether this is the other one unchanged: same uid, same resourceVersion.
    pub fn is_same_version(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.inner, &other.inner) {
            return true;
        }
        let (mine, theirs) = (self.header(), other.header());
        mine.uid == theirs.uid
            && mine.resource_version == theirs.resource_version
            // Without a resourceVersion only the content can tell.
            && (!mine.resource_version.is_empty() || self.json() == other.json())
    }

    /// What is parsed of it.
    pub fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.inner.header.key
    }

    /// The object as JSON, with apiVersion and kind; for [`Projection::Metadata`] these two and
    /// the metadata, for [`Projection::Keys`] nothing.
    pub fn json(&self) -> &Bytes {
        &self.inner.json
    }

    /// Decodes the whole object.
    ///
    /// # Errors
    ///
    /// When it does not have the shape of `K`; the error names the field.
    pub fn decode<K: DeserializeOwned>(&self) -> Result<K, serde_json::Error> {
        serde_json::from_slice(&self.inner.json)
    }

    /// The controller among its owners.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.inner.header.owners.iter().find(|owner| owner.controller)
    }
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
