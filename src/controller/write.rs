//! Helpers for the objects that a reconciler writes: owner references, conditions of a status,
//! creation or change, and server-side apply.
//!
//! Each write goes through the client of [`Context`](super::Context), so that it ends with the epoch.

mod apply;
mod condition;
mod create_or_patch;
mod create_or_update;
mod finalizer;
mod owner_reference;

pub use apply::ApplyError;
pub use condition::{
    condition, find_condition, is_condition_true, remove_condition, set_condition,
};
pub use create_or_patch::{CreateOrPatchError, OperationResult, create_or_patch};
pub use create_or_update::create_or_update;
pub use finalizer::{add_finalizer, has_finalizer, remove_finalizer};
pub use owner_reference::{
    OwnerReferenceError, remove_owner_reference, set_controller_reference, set_owner_reference,
};
