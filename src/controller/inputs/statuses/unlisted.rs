//! Unlisted requests: those whose reconcile found no cache of the primary type.
//!
//! Their back-offs grow for as long as the type is not served. They are added again once it has
//! synced, since no event follows for an object that is gone by then.

use std::{collections::HashSet, mem};

use parking_lot::Mutex;

use crate::controller::Request;

/// Requests of one epoch that wait for the cache of the primary type.
#[derive(Debug, Default)]
pub(in crate::controller) struct UnlistedRequests(Mutex<HashSet<Request>>);

impl UnlistedRequests {
    /// Records a request. The caller reads the cache once more after that, since the type may have
    /// synced in between.
    pub(in crate::controller) fn insert(&self, request: Request) {
        self.0.lock().insert(request);
    }

    /// Forgets a request whose reconcile could read the cache.
    pub(in crate::controller) fn remove(&self, request: &Request) {
        self.0.lock().remove(request);
    }

    /// Forgets all requests, and returns them.
    pub(in crate::controller) fn take(&self) -> HashSet<Request> {
        mem::take(&mut *self.0.lock())
    }
}
