//! What must hold of any bytes from outside: one function for each kind of input.
//!
//! `fuzz/` feeds them with what a fuzzer makes up, the tests with what it found before. They are
//! no part of the library's interface.

pub use crate::{
    discovery::fuzzing::crd,
    informer::fuzzing::watch_lines,
    meta::fuzzing::{hook_response, merge, selectors},
};

#[cfg(test)]
mod tests;
