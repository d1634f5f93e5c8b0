//! Simulated server: a manager runs on it, and its responses equal those of the real control plane.

mod differential;
mod mask;
mod sequence;
mod side;
mod story;
