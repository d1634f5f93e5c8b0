//! The simulated server: a manager lives on it, and it answers as the real control plane does.

mod differential;
mod sequence;
mod story;
