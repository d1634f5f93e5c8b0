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

/// The handovers of all controller names that are in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Handovers(Arc<Mutex<HashMap<ControllerName, Weak<Handover>>>>);

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
        live.retain(|_, handover| handover.strong_count() > 0);
        if let Some(handover) = live.get(name).and_then(Weak::upgrade) {
            return handover;
        }
        let handover = Arc::default();
        live.insert(name.clone(), Arc::downgrade(&handover));
        handover
    }
}
