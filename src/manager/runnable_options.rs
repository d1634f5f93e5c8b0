//! Supervision of one runnable: restarts, failures and grace.

use std::time::Duration;

use super::RestartPolicy;

/// Supervision of one runnable.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::manager::RunnableOptions;
///
/// let drains = RunnableOptions { grace: Duration::from_secs(30), ..RunnableOptions::default() };
/// let essential = RunnableOptions::fail_fast(); // Its error ends the manager.
/// # drop((drains, essential));
/// ```
#[derive(Clone, Debug)]
pub struct RunnableOptions {
    /// Reaction to a run that ends while its condition holds.
    pub restart: RestartPolicy,
    /// Consequence of a failed run for the manager, as soon as the run has returned.
    pub on_failure: FailurePolicy,
    /// Time for a run and its tasks to drain, and to write, after the stop is requested or the run
    /// has returned; 5 s.
    pub grace: Duration,
}

/// Consequence of a failed run for the manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// No consequence for the manager; the restart policy decides about the next run.
    #[default]
    Isolate,
    /// The manager stops and returns the error, as controller-runtime does.
    FailManager,
}

impl Default for RunnableOptions {
    fn default() -> Self {
        Self {
            restart: RestartPolicy::Always,
            on_failure: FailurePolicy::Isolate,
            grace: Duration::from_secs(5),
        }
    }
}

impl RunnableOptions {
    /// Options for a plain runnable as in controller-runtime: started once, and its error ends the
    /// manager.
    pub fn fail_fast() -> Self {
        Self {
            restart: RestartPolicy::Never,
            on_failure: FailurePolicy::FailManager,
            ..Self::default()
        }
    }
}
