//! Sets of objects with proven membership, which need a kube `Client` alone.
//!
//! A [`Set`] has a name, an owner, and objects of any kinds. An [`Applier`] creates and updates the
//! objects, and deletes members that left the set. Membership is proven for each object, so that a
//! copy of its labels and annotations is never deleted
//! (`docs/decisions/0107-proven-membership.md`).
//!
//! ```no_run
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//! use pilotlight::apply::{Applier, Error, Set};
//!
//! # async fn example(client: kube::Client, owner: Deployment, map: ConfigMap) -> Result<(), Error> {
//! let applier = Applier::new(client, "my-controller");
//! let outcome = applier.apply(Set::of(&owner, "settings").object(map)).await?;
//! if !outcome.is_complete() {
//!     outcome.objects.iter().for_each(|written| println!("{written}"));
//! }
//! # Ok(())
//! # }
//! ```

mod adopt;
mod applier;
mod checked_set;
mod decision;
mod digest;
mod error;
pub(crate) mod intent;
mod kinds_record;
mod live_object;
pub(crate) mod managed_fields;
mod membership;
mod object_name;
mod object_write;
mod outcome;
mod plan;
mod purge;
pub(crate) mod refusal;
mod requests;
mod set;
mod set_kind;
mod set_owner;
mod set_run;
#[cfg(test)]
mod tests;
mod writer;
mod written_versions;

pub use self::{
    adopt::Adopt,
    applier::Applier,
    error::Error,
    membership::{MEMBER_ANNOTATION, SET_LABEL},
    object_name::ObjectName,
    outcome::{
        ContestedFields, DeleteReason, Outcome, PendingReason, ReplaceReason, WriteResult, Written,
    },
    plan::{Plan, PlannedWrite, field_change::FieldChange},
    set::Set,
    set_kind::SetKind,
};
