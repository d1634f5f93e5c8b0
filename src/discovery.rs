//! Room 1: what does the cluster serve now?
//!
//! [`TypeRegistry`] is the answer, kept current by [`Discovery`].

mod registry;
mod state;

pub use registry::{Discovery, DiscoveryOptions, Mode, TypeRegistry, TypeReport};
pub use state::{InstallingReason, TypeState, TypeStatus};
