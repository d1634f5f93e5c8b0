//! Request: the object, or the custom key, to reconcile.

mod key;

use std::{fmt, ops::Deref, sync::Arc};

pub use self::key::{KeyError, KeyReconciler, for_key, for_keys_of};
use crate::informer::{InterestName, ObjectKey};

/// Request to reconcile an object: its type, namespace and name, never the event. The object may be
/// deleted by now.
///
/// Requests are equal if their types and keys are. A request that is made of a key alone is for the
/// first primary type. A controller without a primary type may have requests for keys of its own
/// type: [`Request::of_key`].
///
/// ```
/// use pilotlight::{controller::Request, informer::ObjectKey};
///
/// let request = Request::namespaced("prod", "web");
/// assert_eq!(request, ObjectKey::namespaced("prod", "web").into());
/// assert_eq!(&*request.name, "web"); // A request derefs to its key.
/// assert_ne!(request, Request::new(1, request.key.clone())); // Of the second primary type.
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// Position of the object's type among the primary types, in the order in which the builder
    /// received them; 0 for a controller with one primary type or none.
    pub primary: usize,
    /// Namespace and name of the object.
    pub key: ObjectKey,
}

impl Request {
    /// Request for an object of the primary type at this position.
    pub fn new(primary: usize, key: ObjectKey) -> Self {
        Self { primary, key }
    }

    /// Request for a namespaced object of the first primary type.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        ObjectKey::namespaced(namespace, name).into()
    }

    /// Request for a cluster-scoped object of the first primary type.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        ObjectKey::cluster(name).into()
    }
}

impl From<ObjectKey> for Request {
    fn from(key: ObjectKey) -> Self {
        Self { primary: 0, key }
    }
}

/// Request for the object that has declared interests.
impl From<&InterestName> for Request {
    fn from(name: &InterestName) -> Self {
        Self { primary: name.position, key: name.key.clone() }
    }
}

/// Name of the interests that a reconcile declares for its object.
impl From<&Request> for InterestName {
    fn from(request: &Request) -> Self {
        Self { position: request.primary, key: request.key.clone() }
    }
}

/// The key, so that a request can be used to read a store.
impl Deref for Request {
    type Target = ObjectKey;

    fn deref(&self) -> &ObjectKey {
        &self.key
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}
