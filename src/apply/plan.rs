//! Plan of an apply: its outcome before it is carried out.

pub(super) mod field_change;

use std::fmt;

use super::{error::Error, object_name::ObjectName, outcome::WriteResult, set_kind::SetKind};
use field_change::FieldChange;

/// Plan of an apply.
///
/// The plan takes the decisions of an apply, with dry runs in place of writes. The server may have
/// changed when the set is applied.
///
/// ```no_run
/// # use pilotlight::apply::{Applier, Error, Set};
/// # async fn example(applier: Applier, set: Set) -> Result<(), Error> {
/// let plan = applier.plan(set).await?;
/// println!("{plan}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use]
#[non_exhaustive]
pub struct Plan {
    /// Objects of the set in their order, then members that left it.
    pub objects: Vec<PlannedWrite>,
    /// Kinds of the set whose type is absent; their members are deleted when the type returns.
    pub pending: Vec<SetKind>,
    /// Errors of kinds, such as a missing right to list them.
    pub failed_kinds: Vec<Error>,
}

/// Object of a plan.
#[derive(Debug)]
#[non_exhaustive]
pub struct PlannedWrite {
    /// Name of the object.
    pub object: ObjectName,
    /// Result that an apply would have.
    pub result: WriteResult,
    /// Changes of fields, of an object that exists.
    pub changes: Vec<FieldChange>,
}

impl Plan {
    /// Returns whether an apply would change nothing.
    pub fn is_empty(&self) -> bool {
        self.objects.iter().all(|it| !it.result.is_write())
    }
}

/// Formats with a line for each object, and a line for each of its changes.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedWrite { object, result, changes } in &self.objects {
            writeln!(f, "{} {object}{}", result.verb(), result.because())?;
            for change in changes {
                writeln!(f, "  {change}")?;
            }
        }
        for kind in &self.pending {
            writeln!(f, "pending {kind}: the type is not served")?;
        }
        for error in &self.failed_kinds {
            writeln!(f, "failed: {error}")?;
        }
        Ok(())
    }
}
