//! Decision about one object of a set, without I/O.

use kube::api::ObjectMeta;

use super::{
    adopt::Adopt,
    checked_set::CheckedSet,
    membership::Membership,
    object_name::ObjectName,
    outcome::{DeleteReason, PendingReason},
};

/// Step that an object of a set needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Create the object.
    Create,
    /// Apply the object, which is a member already.
    Update,
    /// Apply the object, which becomes a member.
    Adopt,
    /// Delete the object of an earlier owner, and create it.
    ReplaceEarlier,
    /// Wait.
    Wait(PendingReason),
    /// Leave the object to its holder.
    Leave(String),
}

/// Step that a candidate outside of the set needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Delete the object.
    Delete(DeleteReason),
    /// Keep the object, since its kind is never deleted.
    Keep(DeleteReason),
    /// Wait until the object, which is being deleted, is gone.
    Wait,
    /// Leave the object, which may be a member, and report it.
    Unattributed,
    /// Leave the object: it is no member.
    Leave,
}

impl Decision {
    /// Decides about an object of the set.
    pub(super) fn of(
        set: &CheckedSet,
        object: &ObjectName,
        live: Option<&ObjectMeta>,
        manager: &str,
    ) -> Self {
        let Some(live) = live else { return Self::Create };
        if live.deletion_timestamp.is_some() {
            return Self::Wait(PendingReason::Terminating);
        }
        if live.uid.is_none() || live.resource_version.is_none() {
            return Self::Leave("its server names no uid and no resourceVersion".to_owned());
        }
        let is_listed = match &set.adopt {
            Adopt::Listed(listed) => listed.contains(object),
            Adopt::Never | Adopt::Unowned => false,
        };
        match Membership::of(&set.id, object, live, manager) {
            // The apply makes it a member again.
            Membership::Member | Membership::Unattributed => Self::Update,
            Membership::OfEarlierOwner | Membership::OfOtherSet(_) | Membership::Unproven
                if is_listed =>
            {
                Self::Adopt
            }
            Membership::OfEarlierOwner if set.keeps(&object.kind) => Self::Leave(format!(
                "it belonged to an earlier {}, and its kind is never deleted",
                set.id.owner
            )),
            Membership::OfEarlierOwner => Self::ReplaceEarlier,
            Membership::OfOtherSet(other) => Self::Leave(format!("it is a member of {other}")),
            Membership::Unproven => {
                let owners = live.owner_references.iter().flatten();
                let owners: Vec<_> = owners.map(|it| format!("{} {}", it.kind, it.name)).collect();
                if !owners.is_empty() {
                    return Self::Leave(format!("it belongs to {}", owners.join(", ")));
                }
                match &set.adopt {
                    Adopt::Unowned => Self::Adopt,
                    Adopt::Never | Adopt::Listed(_) => {
                        Self::Leave("it exists, has no owner and is not adopted".to_owned())
                    }
                }
            }
        }
    }
}

impl Departure {
    /// Decides about a candidate that is not in the set.
    pub(super) fn of(
        set: &CheckedSet,
        object: &ObjectName,
        live: &ObjectMeta,
        manager: &str,
    ) -> Self {
        let reason = match Membership::of(&set.id, object, live, manager) {
            Membership::Member => DeleteReason::LeftSet,
            Membership::OfEarlierOwner => DeleteReason::EarlierOwner,
            Membership::Unattributed => return Self::Unattributed,
            Membership::OfOtherSet(_) | Membership::Unproven => return Self::Leave,
        };
        if live.deletion_timestamp.is_some() {
            Self::Wait
        } else if set.keeps(&object.kind) {
            Self::Keep(reason)
        } else {
            Self::Delete(reason)
        }
    }
}
