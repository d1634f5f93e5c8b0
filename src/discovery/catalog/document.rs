//! Discovery document: resources of one group version, as discovery answered last.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::response::ServedResource;

/// Consecutive complete responses that prove a group version gone where no APIService does. An API
/// server that is starting omits groups for a second or two; the first few responses are requested
/// within about six seconds.
pub(super) const CONFIRMATIONS: u8 = 7;

/// Discovery document of a group version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    /// Resources of the last current response; `None` before the first one.
    pub(super) resources: Option<Vec<ServedResource>>,
    /// Resources of static mode that `resources` lacks and that are not proven gone.
    pub(super) missing: Vec<Missing>,
    /// uid of the APIService that names the backing service.
    pub(super) uid: Option<Arc<str>>,
    /// True if a later event may have changed the resources.
    pub(super) stale: bool,
    /// Consecutive complete responses without this group version.
    pub(super) missed: u8,
    /// Arrival, in static mode, of the first complete response without this group version.
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
    /// Returns the resources that are not proven gone.
    pub(super) fn known(&self) -> impl Iterator<Item = &ServedResource> {
        let missing = self.missing.iter().map(|missing| &missing.resource);
        self.resources.iter().flatten().chain(missing)
    }
}
