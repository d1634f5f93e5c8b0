//! A cached object: its JSON bytes and a small parsed header.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;

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
    /// uid.
    pub uid: Arc<str>,
    /// resourceVersion, opaque.
    pub resource_version: Arc<str>,
    /// metadata.generation; 0 where the type has none.
    pub generation: i64,
    /// Set while it is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
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

impl Object {
    /// What is parsed of it.
    pub fn header(&self) -> &Header {
        &self.inner.header
    }

    /// Namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.inner.header.key
    }

    /// The object as JSON, with apiVersion and kind; for [`Projection::Metadata`] its metadata
    /// alone, for [`Projection::Keys`] nothing.
    ///
    /// [`Projection::Metadata`]: super::Projection::Metadata
    /// [`Projection::Keys`]: super::Projection::Keys
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
