//! Helpers for the objects that a reconciler writes: owner references, conditions of a status,
//! creation or change, and server-side apply.
//!
//! Each write goes through the client of [`Context`](super::Context), so that it ends with the epoch.
//!
//! ```
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//! use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
//! use pilotlight::controller::{Context, ReconcileError, write::*};
//!
//! async fn write(
//!     (mut map, owner): (ConfigMap, &Deployment),
//!     conditions: &mut Vec<Condition>,
//!     context: &Context,
//! ) -> Result<(), ReconcileError> {
//!     set_controller_reference(&mut map, owner, &())?;
//!     add_finalizer(&mut map, "example.com/map");
//!     context.apply(&map).await?;
//!     set_condition(conditions, condition("Ready", "True", "Applied", ""));
//!     Ok(())
//! }
//! ```

mod apply;
mod condition;
mod create_or_patch;
mod create_or_update;
mod finalizer;
pub(crate) mod left_behind;
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
