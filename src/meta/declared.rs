//! Who has been started for which object, across the supervisor's own epochs.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use tokio::time::Instant;

use super::{CompositeControllerStatus, status::Told};

/// What is remembered of one declared controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// uid and spec of the object that runs, if one does.
    pub(crate) running: Option<(String, Value)>,
    /// The supervisor's epoch that saw the object last.
    pub(crate) seen_in: u64,
    /// Since when its object is missed although its type is served.
    pub(crate) missed_since: Option<Instant>,
    /// The status that was last written, and for which uid: a CRD that prunes it is not written
    /// to for ever.
    pub(crate) written: Option<(String, CompositeControllerStatus)>,
    /// The rejection that was last told in an Event.
    pub(crate) rejection: Option<String>,
    /// What Events have told of its life.
    pub(crate) told: Told,
}

/// Every declared controller by the name of its object.
///
/// It outlives the supervisor's epochs, since the controllers do: they keep the last good
/// specification while their own CRD is away.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    known: Mutex<HashMap<String, Known>>,
}

impl Declared {
    /// What is remembered of a name; nothing yet for a new one.
    pub(crate) fn get(&self, name: &str) -> Option<Known> {
        self.lock().get(name).cloned()
    }

    /// Changes what is remembered.
    pub(crate) fn change<T>(&self, name: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.lock().entry(name.to_owned()).or_default())
    }

    /// Forgets a name.
    pub(crate) fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Every name.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        // Each change is one assignment: nothing is left half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
