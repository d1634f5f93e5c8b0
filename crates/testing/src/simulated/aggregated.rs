//! Types behind an APIService that names a service.

use std::{collections::BTreeMap, sync::Arc};

use super::{refusal::Refusal, resource::SimulatedResource};

/// Group and version served by an aggregated API server.
#[derive(Debug, Default)]
pub(super) struct Aggregated {
    pub(super) group: String,
    pub(super) version: String,
    /// True while its APIService exists.
    pub(super) registered: bool,
    pub(super) available: bool,
    /// True once it has been available since its registration.
    pub(super) was_available: bool,
    pub(super) backing: BTreeMap<String, Arc<SimulatedResource>>,
}

impl Aggregated {
    pub(super) fn check_available(&self) -> Result<(), Refusal> {
        if self.available { Ok(()) } else { Err(Refusal::service_unavailable()) }
    }

    pub(super) fn resource(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<Arc<SimulatedResource>> {
        let fits = self.registered && self.group == group && self.version == version;
        self.backing.get(plural).filter(|_| fits).cloned()
    }

    /// Served types while the service is available.
    pub(super) fn resources(&self) -> Vec<Arc<SimulatedResource>> {
        self.backing.values().filter(|_| self.registered).cloned().collect()
    }

    /// Types known to the aggregator. They include those of a service that is unavailable now.
    pub(super) fn known(&self) -> Vec<Arc<SimulatedResource>> {
        if self.was_available { self.resources() } else { Vec::new() }
    }

    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }
}
