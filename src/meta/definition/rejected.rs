//! Why an object is not executed, field by field.

use std::fmt;

/// Why an object cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It does not have the shape of its kind; correct the field that is named.
    #[error("{field}: {message}")]
    Undecodable {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// Its specification is invalid; correct every field that is named.
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
    /// It asks for what this version does not do; remove the fields that are named.
    #[error("{}", list(.0))]
    Unsupported(Vec<Problem>),
    /// No controller can be built of it; a defect of ours.
    #[error("{0}")]
    Unbuildable(String),
}

impl Rejected {
    /// CamelCase, for a condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Undecodable { .. } | Self::Invalid(_) => "SpecInvalid",
            Self::Unsupported(_) => "SpecUnsupported",
            Self::Unbuildable(_) => "NotBuildable",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field.
    pub field: String,
    /// What is wrong, and what to do.
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

/// Collects what is wrong.
#[derive(Default)]
pub(in crate::meta) struct Problems(Vec<Problem>);

impl Problems {
    /// What follows from all of it; `None` when nothing is wrong.
    pub(in crate::meta) fn rejection(self) -> Option<Rejected> {
        let Self(mut problems) = self;
        if problems.is_empty() {
            return None;
        }
        if problems.iter().all(|problem| problem.unsupported) {
            return Some(Rejected::Unsupported(problems));
        }
        // What is invalid first: it is what its author can correct.
        problems.sort_by_key(|problem| problem.unsupported);
        Some(Rejected::Invalid(problems))
    }

    /// The field is wrong.
    pub(in crate::meta) fn invalid(
        &mut self,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.0.push(Problem { field: field.into(), message: message.into(), unsupported: false });
    }

    /// The field asks for what is not executed.
    pub(in crate::meta) fn unsupported(&mut self, field: impl Into<String>) {
        self.0.push(Problem {
            field: field.into(),
            message: "is not supported by this version; remove it".to_owned(),
            unsupported: true,
        });
    }
}
