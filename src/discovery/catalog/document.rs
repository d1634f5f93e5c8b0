//! Discovery document: resources of one group version, as discovery answered last.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::super::response::ServedResource;

/// Consecutive complete responses that prove a group version gone where no APIService does. An API
/// server that is starting omits groups for a second or two; the first few responses are requested
/// within about six seconds.
pub(super) const CONFIRMATIONS: u8 = 7;

/// Time of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::discovery) struct PollTime {
    /// Arrival of the response.
    pub(in crate::discovery) now: Instant,
    /// Minimum time between two responses that together prove an absence.
    pub(in crate::discovery) period: Duration,
}

impl PollTime {
    /// Returns whether a period has passed.
    pub(super) fn agrees(&self, since: Instant) -> bool {
        self.now.saturating_duration_since(since) >= self.period
    }
}

/// Discovery document of a group version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    /// Resources of the last current response; `None` before the first one.
    pub(super) resources: Option<Vec<ServedResource>>,
    /// Resources that `resources` lacks and that are not proven gone.
    pub(super) missing: Vec<Missing>,
    /// uid of the APIService that names the backing service.
    pub(super) uid: Option<Arc<str>>,
    /// True if a later event may have changed the resources.
    pub(super) stale: bool,
    /// Consecutive complete responses without this group version.
    pub(super) missed: u8,
    /// Arrival of the first complete response without a resource of a group version of which none
    /// is known; in static mode also of the first one without the group version.
    pub(super) missed_since: Option<Instant>,
}

/// Resource that an earlier response or a CRD named, and that is not proven gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) resource: ServedResource,
    /// Arrival of the first complete response without it.
    pub(super) since: Option<Instant>,
}

impl Document {
    /// Returns the document after a current response. A server that is starting lists none of its
    /// resources, or some: a resource is gone when two complete responses, at least one period
    /// apart, omit it, and no response between them lists it. `complete` is the arrival of a
    /// response that is complete.
    pub(super) fn answered(
        self,
        resources: Vec<ServedResource>,
        uid: Option<Arc<str>>,
        complete: Option<PollTime>,
    ) -> Self {
        let is_gone = |since: Option<Instant>| {
            let (Some(complete), Some(since)) = (complete, since) else { return false };
            complete.agrees(since)
        };
        let begin = |since: Option<Instant>| since.or(complete.map(|complete| complete.now));
        let is_unknown = self.resources.is_none();
        let listed = self.resources.into_iter().flatten();
        let mut missing: Vec<Missing> =
            listed.map(|resource| Missing { resource, since: None }).chain(self.missing).collect();
        missing.retain(|it| resources.iter().all(|other| other.plural != it.resource.plural));
        for it in &mut missing {
            it.since = begin(it.since);
        }
        missing.retain(|it| !is_gone(it.since));
        let missed_since = begin(self.missed_since);
        if is_unknown && resources.is_empty() && !is_gone(missed_since) {
            return Self { missing, uid, stale: true, missed_since, ..Self::default() };
        }
        Self { resources: Some(resources), missing, uid, ..Self::default() }
    }

    /// Returns the document after a response that says nothing about its resources: the server may
    /// have restarted, so that two later responses have to omit a resource.
    pub(super) fn unconfirmed(mut self) -> Self {
        for it in &mut self.missing {
            it.since = None;
        }
        Self { stale: true, missed_since: None, ..self }
    }

    /// Returns whether a later response has to confirm that resources are gone.
    pub(super) fn awaits_confirmation(&self) -> bool {
        !self.missing.is_empty() || self.resources.is_none() && self.missed_since.is_some()
    }

    /// Returns the resources that are not proven gone.
    pub(super) fn known(&self) -> impl Iterator<Item = &ServedResource> {
        let missing = self.missing.iter().map(|missing| &missing.resource);
        self.resources.iter().flatten().chain(missing)
    }
}
