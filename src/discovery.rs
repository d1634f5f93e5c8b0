//! Room 1: what does the cluster serve now?
//!
//! [`TypeRegistry`] is the answer, kept current by [`Discovery`]. CRDs and APIServices are
//! watched, so that a CRD costs no request to discovery; discovery itself is asked for what is
//! built in or aggregated. Absence needs proof: an answer that is missing, partial or old leaves
//! what was known, marked as unknown.

mod answer;
mod api_service;
mod ask;
mod catalog;
mod crd;
#[cfg(all(feature = "meta", any(test, feature = "fuzzing")))]
pub(crate) mod fuzzing;
mod ledger;
mod metrics;
mod raw;
mod registry;
mod report;
mod request;
mod schedule;
#[cfg(test)]
mod script;
mod state;
mod subscriptions;
mod task;
mod watch;

pub use registry::{DiscoveryMode, DiscoveryOptions, TypeRegistry};
pub use report::{DiscoveryHealth, Origin, SourceHealth, TypeReport};
pub use state::{InstallingReason, TypePhase, TypeState, TypeStatus};
pub use task::Discovery;
