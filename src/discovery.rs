//! Room 1: discovery of the types that the cluster serves.
//!
//! [`TypeRegistry`] holds the state of each type; [`Discovery`] is the task that keeps it current.
//! CRDs and APIServices are watched, so that a change of a CRD costs no discovery request.
//! Discovery is requested for built-in and aggregated types. Absence needs proof: after a missing,
//! partial or stale response the last state is kept, and reported as unknown.

mod api_service;
mod catalog;
mod crd;
mod discovery_request;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod metrics;
mod options;
mod raw;
mod registry;
mod registry_id;
mod report;
mod request;
mod response;
mod schedule;
#[cfg(test)]
mod script;
mod shared_registry;
mod state;
mod subscriptions;
mod task;
mod type_change;
mod type_statuses;
mod watch;

pub use options::{DiscoveryMode, DiscoveryOptions};
pub use registry::TypeRegistry;
pub(crate) use registry_id::RegistryId;
pub use report::{DiscoveryHealth, Origin, SourceHealth, TypeReport};
pub use state::{InstallingReason, TypePhase, TypeState, TypeStatus};
pub use task::Discovery;
pub(crate) use type_change::TypeChange;
#[cfg(test)]
pub(crate) use type_change::tests as type_changes;
