//! Rejections: why an object is not executed, field by field.

use std::fmt;

/// Reason why an object cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejection {
    /// The object does not have the shape of its kind; correct the named field.
    #[error("{field}: {message}")]
    Undecodable {
        /// Path of the field.
        field: String,
        /// Problem of the field.
        message: String,
    },
    /// The specification is invalid; correct every named field.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
    /// No controller can be built from the object; a defect of Pilotlight.
    #[error("{0}")]
    Unbuildable(String),
}

impl Rejection {
    /// Returns the reason for a condition, in CamelCase.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Undecodable { .. } | Self::Invalid(_) => "SpecInvalid",
            Self::Unbuildable(_) => "NotBuildable",
        }
    }
}

/// Problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Path of the field.
    pub(crate) field: String,
    /// Problem, and its correction.
    pub(crate) message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

/// Collects the problems of an object.
#[derive(Default)]
pub(in crate::meta) struct Problems(Vec<Problem>);

impl Problems {
    /// Returns the rejection that the problems make; `None` without problems.
    pub(in crate::meta) fn rejection(self) -> Option<Rejection> {
        let Self(problems) = self;
        (!problems.is_empty()).then_some(Rejection::Invalid(problems))
    }

    /// Returns the number of problems.
    pub(in crate::meta) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an invalid field.
    pub(in crate::meta) fn invalid(
        &mut self,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.0.push(Problem { field: field.into(), message: message.into() });
    }
}
