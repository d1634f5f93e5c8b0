//! Outcome of an apply, object by object.

use std::fmt;

use super::{error::Error, object_name::ObjectName, set_kind::SetKind};

/// Outcome of an apply, or of a clear.
#[derive(Debug, Default)]
#[must_use]
#[non_exhaustive]
pub struct Outcome {
    /// Objects of the set in their order, then members that left it.
    pub objects: Vec<Written>,
    /// Kinds of the set whose type is absent; their members are deleted when the type returns.
    pub pending: Vec<SetKind>,
    /// Errors of kinds, such as a missing right to list them.
    pub failed_kinds: Vec<Error>,
}

impl Outcome {
    /// Returns whether the cluster has the set as it is declared: no object or kind is pending,
    /// contested, foreign or failed. Kept objects count as done.
    pub fn is_complete(&self) -> bool {
        let is_done = |it: &Written| !it.result.is_open();
        self.pending.is_empty() && self.failed_kinds.is_empty() && self.objects.iter().all(is_done)
    }

    /// Returns the result for an object.
    pub fn of(&self, object: &ObjectName) -> Option<&WriteResult> {
        self.objects.iter().find(|it| it.object == *object).map(|it| &it.result)
    }
}

/// Object of an outcome, with its result.
#[derive(Debug)]
#[non_exhaustive]
pub struct Written {
    /// Name of the object.
    pub object: ObjectName,
    /// Result for the object.
    pub result: WriteResult,
}

/// Formats as `created ConfigMap ns/a`.
impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, result } = self;
        write!(f, "{} {object}{}", result.verb(), result.because())
    }
}

/// Result for one object.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteResult {
    /// The object did not exist.
    Created,
    /// The object existed and is a member now, as [`Adopt`](super::Adopt) allows.
    Adopted,
    /// The object was different.
    Updated,
    /// The object was as desired.
    Unchanged,
    /// The object was deleted and created again.
    Replaced(ReplaceReason),
    /// The object was deleted; it may still wait for its finalizers.
    Deleted(DeleteReason),
    /// The object cannot be written yet. Apply again later.
    Pending(PendingReason),
    /// The object is to be deleted, and is of a kind that is never deleted unless
    /// [`Set::deletes`](super::Set::deletes) names it.
    Kept(DeleteReason),
    /// Other field managers own fields with other values. Nothing was written: leave the fields out
    /// of the set, or have the other manager release them.
    Contested(Vec<ContestedFields>),
    /// An object of that name exists, and is neither a member nor adopted: its holder. Choose
    /// another name, or say with [`Set::adopt`](super::Set::adopt) that it is to be adopted.
    Foreign(String),
    /// The request failed.
    Failed(Error),
}

/// Fields that one other field manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContestedFields {
    /// Name of the manager; empty if the server does not say it.
    pub manager: String,
    /// Paths of the fields, such as `.spec.replicas`.
    pub fields: Vec<String>,
}

/// Reason for which an object is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplaceReason {
    /// A field is immutable.
    ImmutableField,
    /// The object belonged to an earlier owner of the same kind and name.
    EarlierOwner,
}

/// Reason for which an object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeleteReason {
    /// The object left the set, or the set was cleared.
    LeftSet,
    /// The object belonged to an earlier owner of the same kind and name.
    EarlierOwner,
    /// The owner of its set is gone.
    OwnerGone,
}

/// Reason for which an object is not written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PendingReason {
    /// The server does not serve the type.
    TypeAbsent,
    /// The object is being deleted, and waits for its finalizers.
    Terminating,
    /// The object that it replaces was deleted, and waits for its finalizers.
    OldObject,
    /// The objects of its kind cannot be listed; see [`Outcome::failed_kinds`].
    NotListed,
}

impl WriteResult {
    /// Returns whether the object is not yet as declared.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Created
            | Self::Adopted
            | Self::Updated
            | Self::Unchanged
            | Self::Replaced(_)
            | Self::Deleted(_)
            | Self::Kept(_) => false,
            Self::Pending(_) | Self::Contested(_) | Self::Foreign(_) | Self::Failed(_) => true,
        }
    }

    /// Returns whether an apply with this result writes something.
    pub(super) fn is_write(&self) -> bool {
        match self {
            Self::Created
            | Self::Adopted
            | Self::Updated
            | Self::Replaced(_)
            | Self::Deleted(_)
            | Self::Pending(PendingReason::OldObject) => true,
            Self::Unchanged
            | Self::Kept(_)
            | Self::Pending(_)
            | Self::Contested(_)
            | Self::Foreign(_)
            | Self::Failed(_) => false,
        }
    }

    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Adopted => "adopted",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Replaced(_) => "replaced",
            Self::Deleted(_) => "deleted",
            Self::Pending(_) => "pending",
            Self::Kept(_) => "kept",
            Self::Contested(_) => "contested",
            Self::Foreign(_) => "foreign",
            Self::Failed(_) => "failed",
        }
    }

    /// Returns the reason for a line that has the verb and the object; empty if it needs none.
    pub(super) fn because(&self) -> String {
        self.reason().map(|reason| format!(": {reason}")).unwrap_or_default()
    }

    fn reason(&self) -> Option<String> {
        let earlier = "it belonged to an earlier owner of the same kind and name";
        match self {
            Self::Created | Self::Adopted | Self::Updated | Self::Unchanged => None,
            Self::Replaced(ReplaceReason::ImmutableField) => Some("a field is immutable".into()),
            Self::Replaced(ReplaceReason::EarlierOwner)
            | Self::Deleted(DeleteReason::EarlierOwner) => Some(earlier.into()),
            Self::Deleted(DeleteReason::LeftSet) => Some("it left the set".into()),
            Self::Deleted(DeleteReason::OwnerGone) => Some("the owner of its set is gone".into()),
            Self::Kept(_) => Some("its kind is never deleted unless it is named".into()),
            Self::Pending(PendingReason::TypeAbsent) => Some("its type is not served".into()),
            Self::Pending(PendingReason::Terminating) => Some("it is being deleted".into()),
            Self::Pending(PendingReason::OldObject) => {
                Some("the object that it replaces is being deleted".into())
            }
            Self::Pending(PendingReason::NotListed) => {
                Some("the objects of its kind cannot be listed".into())
            }
            Self::Contested(contested) => {
                let parts = contested.iter().map(|it| match it.manager.as_str() {
                    "" => it.fields.join(", "),
                    manager => format!("{} of {manager}", it.fields.join(", ")),
                });
                Some(parts.collect::<Vec<_>>().join("; "))
            }
            Self::Foreign(holder) => Some(holder.clone()),
            Self::Failed(error) => Some(error.to_string()),
        }
    }
}
