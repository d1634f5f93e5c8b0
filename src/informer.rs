//! Room 3: shared, stoppable caches.
//!
//! An [`InformerSet`] holds at most one watch for each [`InformerKey`]; whoever needs its objects
//! holds a [`Subscription`]. The last one to leave closes the watch.

mod backoff;
mod classify;
mod decode;
#[cfg(all(feature = "meta", any(test, feature = "fuzzing")))]
pub(crate) mod fuzzing;
mod metrics;
mod object;
mod options;
mod pending;
mod reader;
mod reflector;
mod resume_version;
mod set;
mod shared_informer;
mod store;
mod string_map;
mod subscription;
mod wire;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod script;

pub use metrics::InformerMetrics;
pub use object::{Header, Object, ObjectError, ObjectKey, OwnerReference};
pub use options::{InformerOptions, OnMissing};
pub use set::{InformerSet, InformerStatus};
pub(crate) use store::IndexPanic;
pub use store::{Index, Store};
pub use string_map::StringMap;
pub use subscription::{Delta, Ended, Linger, Progress, Subscription};

use std::sync::Arc;

use crate::kind::TypeIdentity;

/// What of each object is fetched and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    /// The whole object: its JSON bytes and a parsed header.
    #[default]
    Full,
    /// Metadata alone, as `PartialObjectMetadata`.
    Metadata,
    /// Namespace, name, uid and resourceVersion alone.
    Keys,
}

/// What makes two watches the same one. The client is the set's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InformerKey {
    /// The type, down to the uid of its CRD.
    pub identity: TypeIdentity,
    /// The one namespace watched; `None` is all.
    pub namespace: Option<Arc<str>>,
    /// Label selector applied by the server.
    pub labels: Option<Arc<str>>,
    /// Field selector applied by the server.
    pub fields: Option<Arc<str>>,
    /// What is kept.
    pub projection: Projection,
    /// Keep `managedFields`; they are cut on the way in otherwise.
    pub managed_fields: bool,
}

impl InformerKey {
    /// All objects of a type, whole.
    pub fn new(identity: TypeIdentity) -> Self {
        Self {
            identity,
            namespace: None,
            labels: None,
            fields: None,
            projection: Projection::Full,
            managed_fields: false,
        }
    }
}
