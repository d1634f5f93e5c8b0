//! Fuzz targets: properties that must hold for any bytes from outside, one function per kind of
//! input.
//!
//! `fuzz/` runs them with generated inputs, and the tests run them with the committed ones. They
//! are not part of the library's stable interface.

pub use crate::{
    discovery::fuzzing::crd,
    informer::fuzzing::watch_lines,
    meta::fuzzing::{hook_response, merge, selectors},
};

#[cfg(test)]
mod tests;
