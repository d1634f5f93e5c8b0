//! Carried-over requests: requests that an epoch leaves to the next epoch of the same name.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use super::{Request, queue::RemainingItem, unconfirmed::UnconfirmedWrites};
use crate::{kind::TypeRef, manager::ControllerName};

/// Requests that one epoch leaves to the next.
#[derive(Debug, Default)]
pub(in crate::controller) struct CarriedOver {
    // Left by an epoch that was superseded.
    left: Mutex<LeftRequests>,
    /// Unconfirmed writes of all epochs.
    pub(in crate::controller) unconfirmed: Arc<UnconfirmedWrites>,
}

/// Requests with the primary types that they name by position.
#[derive(Debug, Default)]
struct LeftRequests {
    primaries: Arc<[TypeRef]>,
    requests: Vec<RemainingItem<Request>>,
}

/// Carried-over requests by controller name.
///
/// The unconfirmed writes of a name outlive its controllers for a while, since a controller may be
/// removed and added again.
#[derive(Clone, Debug, Default)]
pub(in crate::controller) struct CarriedOverByName(
    Arc<Mutex<HashMap<ControllerName, CarriedOverEntry>>>,
);

#[derive(Debug)]
struct CarriedOverEntry {
    carried_over: Weak<CarriedOver>,
    unconfirmed: Arc<UnconfirmedWrites>,
}

impl CarriedOver {
    /// Leaves requests of these primary types.
    pub(in crate::controller) fn leave(
        &self,
        primaries: &Arc<[TypeRef]>,
        requests: Vec<RemainingItem<Request>>,
    ) {
        *self.left.lock() = LeftRequests { primaries: Arc::clone(primaries), requests };
    }

    /// Takes the requests; none if they were left for other primary types.
    pub(in crate::controller) fn take(&self, primaries: &[TypeRef]) -> Vec<RemainingItem<Request>> {
        let left = mem::take(&mut *self.left.lock());
        if *left.primaries == *primaries { left.requests } else { Vec::new() }
    }
}

impl CarriedOverByName {
    /// Returns the entry that all controllers of this name share.
    pub(in crate::controller) fn of(&self, name: &ControllerName) -> Arc<CarriedOver> {
        let mut live = self.0.lock();
        live.retain(|_, entry| {
            entry.carried_over.strong_count() > 0 || entry.unconfirmed.is_needed()
        });
        let entry = live.entry(name.clone()).or_insert_with(|| CarriedOverEntry {
            carried_over: Weak::new(),
            unconfirmed: Arc::default(),
        });
        if let Some(carried_over) = entry.carried_over.upgrade() {
            return carried_over;
        }
        let unconfirmed = Arc::clone(&entry.unconfirmed);
        let carried_over = Arc::new(CarriedOver { left: Mutex::default(), unconfirmed });
        entry.carried_over = Arc::downgrade(&carried_over);
        carried_over
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn requests_are_taken_over_by_a_run_of_the_same_types_alone() {
        let of = |plurals: &[&str]| -> Arc<[TypeRef]> {
            plurals.iter().map(|plural| TypeRef::resource("example.com", "v1", *plural)).collect()
        };
        let key = Request::cluster("a");
        let left = vec![RemainingItem { key, priority: 0, failures: 3, at: Instant::now() }];
        let (before, reordered) = (of(&["things", "parts"]), of(&["parts", "things"]));
        let carried_over = CarriedOver::default();

        carried_over.leave(&before, left.clone());
        assert_eq!(carried_over.take(&before), left);
        carried_over.leave(&before, left);
        assert_eq!(carried_over.take(&reordered), []);
    }
}
