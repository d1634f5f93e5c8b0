//! Parent of a sync, and what is kept of it between syncs.

pub(super) mod contested;
pub(super) mod failures;
pub(super) mod health;
pub(super) mod resync;
pub(super) mod sync_error;
pub(super) mod sync_record;
pub(super) mod sync_state;
pub(super) mod write_limit;

use std::sync::Arc;

use self::sync_state::SyncState;
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
