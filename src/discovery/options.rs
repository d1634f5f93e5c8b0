//! Settings and mode of discovery.

use std::time::Duration;

/// Intervals and deadline of discovery.
#[derive(Clone, Debug)]
pub struct DiscoveryOptions {
    /// Longest interval between discovery requests, plus or minus a tenth, in case an event was
    /// missed. Clamped to 100 ms to one year. Default: 10 minutes.
    pub backstop: Duration,
    /// Longest interval while CRDs may not be watched. A type is absent then when two complete
    /// responses, at least this interval (less a tenth) and 5 s apart, omit it. Clamped to 100 ms
    /// to one year. Default: 30 seconds.
    ///
    /// `Duration::MAX` in effect turns polling off: discovery is read after changes of APIServices
    /// and for types that a request did not find. These responses show new types; the absence of a
    /// type takes two responses almost a year apart.
    pub static_interval: Duration,
    /// Deadline of a discovery request. Default: 10 seconds.
    pub request_deadline: Duration,
}

impl Default for DiscoveryOptions {
    fn default() -> Self {
        Self {
            backstop: Duration::from_secs(600),
            static_interval: Duration::from_secs(30),
            request_deadline: Duration::from_secs(10),
        }
    }
}

/// Way in which changes reach the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryMode {
    /// Discovery does not run: the runnable of its cluster was not added to a manager, or has not
    /// been started yet.
    NotStarted,
    /// CRDs and APIServices are watched.
    Watching,
    /// CRDs may not be watched, so discovery is polled. Holds the reason.
    Static(String),
    /// Discovery has ended with the runnable of its cluster. What it has found is out of date, and a new
    /// cluster is needed.
    Ended,
}
