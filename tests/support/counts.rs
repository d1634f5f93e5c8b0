//! Reports of how many cases a test tried.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// Prints a count, although the test harness captures the output of passing tests. `.ci/run` lists
/// these lines.
pub(crate) fn counted(what: impl Display) {
    // A single write, so that the lines of two tests do not mix. A closed stderr is ignored.
    drop(io::stderr().write_all(format!("\ncount: {what}\n").as_bytes()));
}
