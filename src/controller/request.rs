//! Request: the key of an object to reconcile.

use crate::informer::ObjectKey;

/// Request to reconcile an object: its namespace and name, never the event. The object may be
/// deleted by now.
pub type Request = ObjectKey;
