//! Error of a change of the inputs by name.

use crate::{controller::BuildError, manager::ControllerName};

/// Error of a change of the inputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Remove the input of that name first, or call
    /// [`Inputs::replace`](crate::controller::Inputs::replace).
    #[error("{0} has an input named {1} already")]
    NameTaken(ControllerName, String),
    /// The closure must add exactly one input, with `owns`, `watches`, `claims_type` or `source`.
    #[error("{0}: input {1} must be one input; it is {2}")]
    NotOne(ControllerName, String, usize),
    /// Call `for_` on the builder of the controller: its primary type is the same in all epochs.
    #[error("{0}: input {1} cannot be the primary type")]
    Primary(ControllerName, String),
    /// The epoch is over. The next epoch has a context of its own.
    #[error("{0}: the epoch that input {1} was to end with is over")]
    EpochOver(ControllerName, String),
    /// The input was removed or replaced, or its epoch is over, before it started.
    #[error("the input has ended before it started")]
    Ended,
    /// Fix the description of the input.
    #[error(transparent)]
    Build(#[from] BuildError),
}
