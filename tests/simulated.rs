//! The simulated server: a manager lives on it, and it answers as the real control plane does.

mod differential;
mod mask;
mod sequence;
mod side;
mod story;
