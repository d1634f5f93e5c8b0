//! Behaviour seen from outside, on a real control plane: one module per promise.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod control_plane;
mod faults;
