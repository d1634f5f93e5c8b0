//! Check and its result.

use std::{borrow::Cow, fmt};

/// Check with its result; displayed as a line of `/readyz?verbose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Result of the check.
    pub result: CheckResult,
}

/// Result of a check, with a detail that may be empty. Anyone who reaches the server can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// The check passed.
    Passed(Cow<'static, str>),
    /// The check has failed, but the process stays ready: one controller must not make all others
    /// unready.
    Degraded(Cow<'static, str>),
    /// The process is not ready, or not alive.
    Failed(Cow<'static, str>),
}

impl CheckResult {
    /// Returns whether the check has failed.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn detail(&self) -> &str {
        match self {
            Self::Passed(detail) | Self::Degraded(detail) | Self::Failed(detail) => detail,
        }
    }
}

impl<E: fmt::Display> From<Result<(), E>> for CheckResult {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Passed("".into()),
            Err(error) => Self::Failed(error.to_string().into()),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.result {
            CheckResult::Passed(_) => '+',
            CheckResult::Degraded(_) => '!',
            CheckResult::Failed(_) => '-',
        };
        let detail = match self.result.detail() {
            "" => "ok",
            detail => detail,
        };
        write!(f, "[{mark}]{} {detail}", self.name)
    }
}
