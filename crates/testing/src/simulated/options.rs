//! Options of a simulated server.

use std::time::Duration;

/// Durations of the control plane's background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Delay before each response.
    pub latency: Duration,
    /// Delay from the creation of a CRD until its names are accepted. From then on it is served.
    pub names_accepted: Duration,
    /// Delay from accepted names until `Established`; 5 s for a real control plane with several API
    /// servers.
    pub established: Duration,
    /// Delay from the first request for a new type until watches of it are accepted. Until then the
    /// server answers 429.
    pub storage_ready: Duration,
    /// Age of a CRD, in whole seconds, until which a create of an instance waits.
    pub create_hold: Duration,
    /// Delay from the deletion of a CRD until its instances are deleted.
    pub instance_deletion: Duration,
    /// Interval between checks for instances of a terminating CRD.
    pub instance_check: Duration,
    /// Delay from a change of a CRD's spec, or its deletion, until its open watches end. They
    /// deliver events until then.
    pub watch_teardown: Duration,
    /// Delay from the loss of an owner until a dependent is deleted.
    pub garbage_collection: Duration,
    /// Delay from the deletion of a namespace until its contents are deleted, and between two
    /// checks.
    pub namespace_drain: Duration,
}

impl Default for Delays {
    /// Durations of the real control plane on one idle machine.
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            names_accepted: Duration::from_millis(2),
            established: Duration::from_millis(2),
            storage_ready: Duration::from_millis(10),
            create_hold: Duration::from_secs(2),
            instance_deletion: Duration::from_millis(5),
            instance_check: Duration::from_secs(5),
            watch_teardown: Duration::from_secs(1),
            garbage_collection: Duration::from_millis(5),
            namespace_drain: Duration::from_secs(5),
        }
    }
}

impl Delays {
    /// No delays: all consequences follow in the request that causes them.
    #[must_use]
    pub fn none() -> Self {
        Self {
            names_accepted: Duration::ZERO,
            established: Duration::ZERO,
            storage_ready: Duration::ZERO,
            create_hold: Duration::ZERO,
            instance_deletion: Duration::ZERO,
            watch_teardown: Duration::ZERO,
            garbage_collection: Duration::ZERO,
            namespace_drain: Duration::from_millis(100),
            ..Self::default()
        }
    }
}
