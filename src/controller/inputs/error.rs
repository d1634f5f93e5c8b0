//! Error of a change of the inputs by name.

use crate::{controller::BuildError, manager::ControllerName};

/// Error of a change of the inputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Remove the input of that name first, or call
    /// [`Inputs::replace`](crate::controller::Inputs::replace).
    #[error("{0} already has an input named {1}; remove it first, or replace it")]
    NameTaken(ControllerName, String),
    /// The closure must add exactly one input, with `owns`, `watches`, `claims_type` or `source`.
    #[error("{0}: the description of input {1} adds {2} inputs; it must add exactly one")]
    NotOne(ControllerName, String, usize),
    /// Call `for_` on the builder of the controller: its primary type is the same in all epochs.
    #[error("{0}: input {1} cannot be the primary type; call `for_` on the builder")]
    Primary(ControllerName, String),
    /// The epoch is over. The next epoch has a context of its own.
    #[error("{0}: the epoch of input {1} has ended; add it in the next epoch")]
    EpochOver(ControllerName, String),
    /// The input was removed or replaced, or its epoch is over, before it started.
    #[error("the input ended before it started: it was removed or replaced, or its epoch ended")]
    Ended,
    /// Fix the description of the input.
    #[error(transparent)]
    Build(#[from] BuildError),
}
