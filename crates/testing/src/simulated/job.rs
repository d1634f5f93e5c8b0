//! Jobs: background work of the control plane that is due at a time.

use super::{history::NamespacedName, resource::Storage, watches::WatchId};

/// Background work of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// Decides which names a CRD gets.
    AcceptNames(String),
    Establish(String),
    /// Begins to delete the instances of a CRD.
    DeleteInstances(String),
    /// Removes a CRD without instances, or checks again later.
    AwaitInstances(String),
    /// Ends the watches of a type that were open when its CRD changed: all up to this one.
    EndWatches(Storage, WatchId),
    /// Empties a namespace.
    Drain(String),
    /// Checks an object whose owners or dependents may be deleted.
    Collect(Storage, NamespacedName),
}
