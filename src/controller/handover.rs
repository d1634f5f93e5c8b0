//! What an epoch leaves to the next one of the same name.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::{Request, doubt::Doubts, queue::Delayed};
use crate::manager::ControllerName;

/// Requests on their way from one epoch to the next.
#[derive(Debug, Default)]
pub(super) struct Handover {
    // Of an epoch that was superseded.
    delayed: Mutex<Vec<Delayed<Request>>>,
    /// Of every epoch.
    pub(super) doubts: Arc<Doubts>,
}

/// The handovers of all controller names that are in use, and the doubts of those that were until
/// a while ago: a controller may be removed and added again.
#[derive(Clone, Debug, Default)]
pub(super) struct Handovers(Arc<Mutex<HashMap<ControllerName, Entry>>>);

#[derive(Debug)]
struct Entry {
    handover: Weak<Handover>,
    doubts: Arc<Doubts>,
}

impl Handover {
    pub(super) fn leave(&self, requests: Vec<Delayed<Request>>) {
        *self.delayed.lock().unwrap_or_else(PoisonError::into_inner) = requests;
    }

    pub(super) fn take(&self) -> Vec<Delayed<Request>> {
        mem::take(&mut *self.delayed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Handovers {
    /// The handover that all controllers of this name share.
    pub(super) fn of(&self, name: &ControllerName) -> Arc<Handover> {
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|_, entry| entry.handover.strong_count() > 0 || entry.doubts.matter());
        let entry = live
            .entry(name.clone())
            .or_insert_with(|| Entry { handover: Weak::new(), doubts: Arc::default() });
        if let Some(handover) = entry.handover.upgrade() {
            return handover;
        }
        let doubts = Arc::clone(&entry.doubts);
        let handover = Arc::new(Handover { delayed: Mutex::default(), doubts });
        entry.handover = Arc::downgrade(&handover);
        handover
    }
}
