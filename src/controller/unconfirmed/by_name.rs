//! Unconfirmed writes by controller name.
//!
//! The writes outlive the controllers of a name for a while, since a controller may be removed and
//! added again.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::UnconfirmedWrites;
use crate::manager::ControllerName;

/// Unconfirmed writes of the controllers of one cluster.
#[derive(Clone, Debug, Default)]
pub(in crate::controller) struct UnconfirmedByName(
    Arc<Mutex<HashMap<ControllerName, Arc<UnconfirmedWrites>>>>,
);

impl UnconfirmedByName {
    /// Returns the writes that all controllers of this name share.
    pub(in crate::controller) fn of(&self, name: &ControllerName) -> Arc<UnconfirmedWrites> {
        let mut known = self.0.lock();
        known.retain(|_, writes| Arc::strong_count(writes) > 1 || writes.is_needed());
        Arc::clone(known.entry(name.clone()).or_default())
    }
}
