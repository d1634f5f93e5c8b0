//! What is shown to people while binaries are built and processes started.

use std::{
    fmt::{self, Debug, Display, Formatter},
    io::{self, Write},
    time::Duration,
};

use super::Binary;

/// Receives what happens while a control plane is built and started.
///
/// Called from a thread of the control plane's own; it must not block for long.
pub trait Progress: Debug + Send + Sync {
    /// Takes note of one event.
    fn report(&self, event: &ProgressEvent);
}

/// One thing that happened on the way to a control plane. Its `Display` is a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressEvent {
    /// Binaries are missing and will be built.
    BuildPlanned {
        /// What will be built, in this order.
        parts: Vec<Binary>,
    },
    /// Another process builds the same binaries; reported when the wait begins and every 10 s.
    WaitingForOtherBuild {
        /// Since the wait began.
        elapsed: Duration,
    },
    /// A binary is being built; reported when its build begins and every 10 s.
    Building {
        /// What is being built.
        part: Binary,
        /// Its number, from 1.
        step: usize,
        /// How many are built.
        of: usize,
        /// How many Go packages were compiled for it so far.
        packages: usize,
        /// Since its build began.
        elapsed: Duration,
    },
    /// A binary is built and in its place.
    Built {
        /// What was built.
        part: Binary,
        /// Its number, from 1.
        step: usize,
        /// How many are built.
        of: usize,
        /// How long it took.
        took: Duration,
    },
    /// All that was missing is built.
    BuildFinished {
        /// How long all of it took.
        took: Duration,
    },
    /// A process is ready.
    Ready {
        /// Which.
        part: Binary,
        /// How long it took from its start.
        took: Duration,
    },
}

impl Display for ProgressEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuildPlanned { parts } => {
                let names: Vec<_> = parts.iter().map(|part| part.file_name()).collect();
                write!(
                    f,
                    "building {} with the Go toolchain: once, up to 6 minutes on 2 cores",
                    names.join(", ")
                )
            }
            Self::WaitingForOtherBuild { elapsed } => {
                write!(f, "waiting for the build of another process ({} s)", elapsed.as_secs())
            }
            Self::Building { part, step, of, packages, elapsed } => write!(
                f,
                "[{step}/{of}] building {}: {} s, {packages} packages compiled",
                part.file_name(),
                elapsed.as_secs()
            ),
            Self::Built { part, step, of, took } => {
                write!(f, "[{step}/{of}] built {} in {} s", part.file_name(), took.as_secs())
            }
            Self::BuildFinished { took } => write!(f, "all built in {} s", took.as_secs()),
            Self::Ready { part, took } => {
                write!(f, "{} is ready after {:.1} s", part.file_name(), took.as_secs_f64())
            }
        }
    }
}

/// Prints each event as a line on standard error.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrintProgress;

impl Progress for PrintProgress {
    fn report(&self, event: &ProgressEvent) {
        // A closed standard error is no reason to stop building.
        writeln!(io::stderr(), "control plane: {event}").ok();
    }
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _: &ProgressEvent) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_part_the_step_and_the_time() {
        let event = ProgressEvent::Building {
            part: Binary::KubeApiserver,
            step: 2,
            of: 3,
            packages: 731,
            elapsed: Duration::from_millis(40_900),
        };

        assert_eq!(event.to_string(), "[2/3] building kube-apiserver: 40 s, 731 packages compiled");
    }
}
