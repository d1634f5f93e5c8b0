//! Rejections: why an object is not executed, field by field.

use std::fmt;

/// Reason why an object cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
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
    /// The specification asks for features that this version does not support; remove the named
    /// fields.
    #[error("{}", list(.0))]
    Unsupported(Vec<Problem>),
    /// No controller can be built from the object; a defect of Pilotlight.
    #[error("{0}")]
    Unbuildable(String),
}

impl Rejected {
    /// Returns the reason for a condition, in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Undecodable { .. } | Self::Invalid(_) => "SpecInvalid",
            Self::Unsupported(_) => "SpecUnsupported",
            Self::Unbuildable(_) => "NotBuildable",
        }
    }
}

/// Problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field.
    pub field: String,
    /// Problem, and what to do about it.
    pub message: String,
    unsupported: bool,
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
    pub(in crate::meta) fn rejection(self) -> Option<Rejected> {
        let Self(mut problems) = self;
        if problems.is_empty() {
            return None;
        }
        if problems.iter().all(|problem| problem.unsupported) {
            return Some(Rejected::Unsupported(problems));
        }
        // Invalid fields come first: their author can correct them.
        problems.sort_by_key(|problem| problem.unsupported);
        Some(Rejected::Invalid(problems))
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
        self.0.push(Problem { field: field.into(), message: message.into(), unsupported: false });
    }

    /// Adds a field that asks for an unsupported feature.
    pub(in crate::meta) fn unsupported(&mut self, field: impl Into<String>) {
        self.0.push(Problem {
            field: field.into(),
            message: "is not supported by this version; remove it".to_owned(),
            unsupported: true,
        });
    }
}
