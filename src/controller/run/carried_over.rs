//! Carried-over requests: those that an epoch leaves to the next one of the same name.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Weak},
};

use crate::controller::{Request, queue::Delayed, run::unconfirmed::UnconfirmedWrites};
use crate::manager::ControllerName;
use parking_lot::Mutex;

/// Requests on their way from one epoch to the next.
#[derive(Debug, Default)]
pub(in crate::controller) struct CarriedOver {
    // Left by an epoch that was superseded.
    delayed: Mutex<Vec<Delayed<Request>>>,
    /// Unconfirmed writes of all epochs.
    pub(in crate::controller) unconfirmed: Arc<UnconfirmedWrites>,
}

/// Carried-over requests by controller name.
///
/// The unconfirmed writes of a name outlive its controllers for a while, since a controller may be
/// removed and added again.
#[derive(Clone, Debug, Default)]
pub(in crate::controller) struct CarriedOverByName(Arc<Mutex<HashMap<ControllerName, Entry>>>);

#[derive(Debug)]
struct Entry {
    carried_over: Weak<CarriedOver>,
    unconfirmed: Arc<UnconfirmedWrites>,
}

impl CarriedOver {
    pub(in crate::controller) fn leave(&self, requests: Vec<Delayed<Request>>) {
        *self.delayed.lock() = requests;
    }

    pub(in crate::controller) fn take(&self) -> Vec<Delayed<Request>> {
        mem::take(&mut *self.delayed.lock())
    }
}

impl CarriedOverByName {
    /// Returns the entry that all controllers of this name share.
    pub(in crate::controller) fn of(&self, name: &ControllerName) -> Arc<CarriedOver> {
        let mut live = self.0.lock();
        live.retain(|_, entry| {
            entry.carried_over.strong_count() > 0 || entry.unconfirmed.is_needed()
        });
        let entry = live
            .entry(name.clone())
            .or_insert_with(|| Entry { carried_over: Weak::new(), unconfirmed: Arc::default() });
        if let Some(carried_over) = entry.carried_over.upgrade() {
            return carried_over;
        }
        let unconfirmed = Arc::clone(&entry.unconfirmed);
        let carried_over = Arc::new(CarriedOver { delayed: Mutex::default(), unconfirmed });
        entry.carried_over = Arc::downgrade(&carried_over);
        carried_over
    }
}
