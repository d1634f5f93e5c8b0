//! How a simulated server is set up.

use std::time::Duration;

/// How long the control plane takes for what it does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Before any answer.
    pub latency: Duration,
    /// From the creation of a CRD until its names are judged. From then on it is served.
    pub names_accepted: Duration,
    /// From accepted names until `Established`; the real server takes 5 s if there are several.
    pub established: Duration,
    /// For how long a type that has just begun to be served answers 429 to watches, counted from
    /// the first request.
    pub storage_ready: Duration,
    /// For how long a create waits while its CRD is younger than that, in whole seconds.
    pub create_hold: Duration,
    /// From the deletion of a CRD until its instances are deleted.
    pub instance_deletion: Duration,
    /// How often it is looked whether the instances of a terminating CRD are gone.
    pub instance_check: Duration,
    /// From a change of a CRD's spec, or its end, until the watches that were open then are ended.
    /// They tell what happens until then.
    pub watch_teardown: Duration,
    /// From the loss of an owner until a dependent is deleted.
    pub garbage_collection: Duration,
    /// From the deletion of a namespace until its contents are deleted, and between two looks.
    pub namespace_drain: Duration,
}

impl Default for Delays {
    /// As the real control plane does on one quiet machine.
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
    /// Everything follows at once, in the request that causes it.
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
