//! Room 3: shared, stoppable caches.
//!
//! An [`InformerSet`] holds at most one watch per [`InformerKey`]. Its consumers each hold a
//! [`Subscription`]; the watch closes when the last one has been dropped for the linger time, or at
//! once when the type is gone.

mod change;
mod classify;
mod decode;
mod delta;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod index;
mod interest;
mod lookups;
mod mailbox;
mod metrics;
mod object;
mod objects;
mod options;
mod pending;
mod progress;
mod reader;
mod reflector;
mod request_delays;
mod retention;
mod selector;
mod set;
mod share;
mod shared_informer;
mod shared_set;
mod sorted_objects;
mod store;
mod stored_json;
mod string_map;
mod subscriber;
mod subscription;
mod transform;
mod wire;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod script;

pub(crate) use change::Change;
pub(crate) use decode::is_in_headers;
pub use delta::Delta;
pub use index::Index;
pub(crate) use index::IndexPanic;
#[cfg(test)]
pub(crate) use interest::COMPARED;
pub use interest::{Interest, InterestName, Interests, Selection};
pub use metrics::InformerMetrics;
pub use object::{Header, Object, ObjectError, ObjectKey, OwnerReference};
pub use options::{InformerOptions, OnMissing};
pub use progress::{EndReason, InformerProgress, Linger};
pub use selector::{Selector, SelectorError};
pub(crate) use selector::{is_label, is_value};
pub use set::{InformerSet, InformerStatus};
pub use share::CacheShare;
pub use store::{Store, StoreReadError, UnknownIndex};
pub use string_map::StringMap;
pub use subscription::{MovingInterests, Subscription};
pub use transform::{Transform, TransformError};

use std::sync::Arc;

use crate::kind::TypeIdentity;

/// Part of each object that is fetched and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    /// The whole object: its JSON and a parsed header.
    #[default]
    Full,
    /// Only metadata, as `PartialObjectMetadata`.
    Metadata,
    /// Only namespace, name, uid and resourceVersion.
    Keys,
}

/// Identity of a watch: subscriptions with equal keys share one. The client belongs to the set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InformerKey {
    /// The type, down to the uid of its CRD.
    pub identity: TypeIdentity,
    /// Namespace to watch; `None` for all.
    pub namespace: Option<Arc<str>>,
    /// Label selector applied by the server.
    pub labels: Option<Arc<str>>,
    /// Field selector applied by the server.
    pub fields: Option<Arc<str>>,
    /// Part of each object that is kept.
    pub projection: Projection,
    /// True if `managedFields` are kept; they are removed on arrival otherwise.
    pub managed_fields: bool,
    /// Change of each whole object before it is kept; no effect with [`Projection::Keys`].
    pub transform: Option<Transform>,
}

impl InformerKey {
    /// Returns the key of all objects of a type, with full content.
    pub fn new(identity: TypeIdentity) -> Self {
        Self {
            identity,
            namespace: None,
            labels: None,
            fields: None,
            projection: Projection::Full,
            managed_fields: false,
            transform: None,
        }
    }
}
