//! Progress events of builds and process starts.

use std::{
    fmt::{self, Debug, Display, Formatter},
    io::{self, Write},
    time::Duration,
};

use super::Binary;

/// Receiver of the progress of a control plane's build and start.
///
/// Called from a thread of the control plane; it must not block for long.
pub trait Progress: Debug + Send + Sync {
    /// Reports one event.
    fn report(&self, event: &ProgressEvent);
}

/// Event on the way to a control plane. Its `Display` is a line of text for users.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressEvent {
    /// Build of missing binaries that will begin.
    BuildPlanned {
        /// Binaries that will be built, in this order.
        parts: Vec<Binary>,
    },
    /// Wait for another process that builds the same binaries; reported at the begin of the wait
    /// and every 10 s.
    WaitingForOtherBuild {
        /// Time since the begin of the wait.
        elapsed: Duration,
    },
    /// Build of a binary; reported at its begin and every 10 s.
    Building {
        /// Binary that is built.
        part: Binary,
        /// Number of the binary, from 1.
        step: usize,
        /// Number of binaries to build.
        of: usize,
        /// Number of Go packages compiled so far.
        packages: usize,
        /// Time since the begin of the build.
        elapsed: Duration,
    },
    /// Binary that was built and put into the cache.
    Built {
        /// Binary.
        part: Binary,
        /// Number of the binary, from 1.
        step: usize,
        /// Number of binaries to build.
        of: usize,
        /// Duration of the build.
        took: Duration,
    },
    /// End of the whole build.
    BuildFinished {
        /// Duration of the whole build.
        took: Duration,
    },
    /// Process that is ready.
    Ready {
        /// Binary.
        part: Binary,
        /// Time since its start.
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
        // A closed standard error is not a reason to stop the build.
        writeln!(io::stderr(), "control plane: {event}").ok();
    }
}

/// Ignores all events.
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
