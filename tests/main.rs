//! Behaviour seen from outside, on a real control plane: one module per promise.

mod control_plane;
