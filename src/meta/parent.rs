//! Parent of a sync, and what is kept of it between syncs.

use std::sync::Arc;

use crate::meta::SyncState;
use crate::{controller::Request, kind::ServedType};

/// Parent, as far as its children need it.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    /// Served type of the parent.
    pub(crate) served: Arc<ServedType>,
    /// Position of the type among those of parents, namespace and name.
    pub(crate) key: Request,
    /// uid.
    pub(crate) uid: Arc<str>,
    /// True if the object is being deleted.
    pub(crate) terminating: bool,
    /// State that its last sync has left.
    pub(crate) state: Arc<SyncState>,
}
