//! Rollout plan: decides which revision each child has, without I/O.
//!
//! At most one child moves to the latest revision in one sync. Every child that has the latest
//! revision must be observed, as desired and ready before. The next child is one of an older
//! revision, in the order of the hook's response:
//!
//! 1. the first child that is behind its own revision;
//! 2. else the first child, if it is missing or being deleted;
//! 3. else the first unavailable child, so that no second child becomes unavailable beside it;
//! 4. else the first child.
//!
//! A later child that is missing or being deleted is awaited: it returns at its own revision. A
//! child that is missing for long moves before the others, since its revision may be unable to
//! create it.
//!
//! Semantics: `syncRollingUpdate` of Metacontroller (`pkg/controller/composite/rolling_update.go`),
//! except for this order, and for a child that exists, differs and has no revision. Such a child is
//! left unchanged until it moves; Metacontroller updates all such children at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{kind::GroupKind, meta::api::RevisionChildren};

/// Child as revisions name it: without its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChildId {
    /// Type of the child.
    pub(crate) type_: GroupKind,
    /// Name; `namespace/name` if the parent is cluster-scoped and the child is not.
    pub(crate) name: String,
}

impl ChildId {
    /// Returns the child of this type and name.
    pub(crate) fn new(group: &str, kind: &str, name: &str) -> Self {
        let type_ = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
        Self { type_, name: name.to_owned() }
    }
}

impl fmt::Display for ChildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.type_.kind, self.name)
    }
}

/// Observed state of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChildState {
    /// Not observed.
    Missing,
    /// Observed, and being deleted.
    Deleting,
    /// Observed.
    Present {
        /// True if the latest revision has nothing to change; an error if that cannot be decided.
        is_latest: Result<bool, String>,
        /// True if its own revision has nothing to change.
        is_own: bool,
        /// Result of the status checks; the error follows `child <kind> <name>`.
        ready: Result<(), String>,
    },
}

/// Rolling updates of a child type: whether the declaration requests them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildTypeMode {
    /// Served, and updated by rolling.
    Rolling,
    /// Possibly an optional type that is not listed now.
    Unlisted,
    /// Any other type: its children have no revision.
    Other,
}

/// Live revision other than the latest.
#[derive(Clone, Debug)]
pub(crate) struct OlderRevision<'a> {
    /// Children of the revision, as recorded.
    pub(crate) children: &'a [RevisionChildren],
    /// Children in the response for this revision.
    pub(crate) wanted: BTreeSet<ChildId>,
}

/// Revision that a rollout assigns to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AssignedRevision {
    /// The latest revision.
    Latest,
    /// The older revision with this index.
    Older(usize),
    /// No revision: the child is left unchanged.
    Unassigned,
}

/// State of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RolloutProgress {
    /// Every child has the latest revision.
    Complete,
    /// This child moves to the latest revision, or the revisions that record it are corrected.
    Updating(ChildId),
    /// No child moves, for this reason.
    Waiting(RolloutWait),
}

/// Child that a rollout waits for, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolloutWait {
    /// The child.
    pub(crate) child: ChildId,
    reason: WaitReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WaitReason {
    Missing,
    Unchecked(String),
    /// Follows the name of the child.
    State(String),
}

impl RolloutWait {
    /// Returns the wait for a child that does not exist.
    pub(crate) fn missing(child: ChildId) -> Self {
        Self { child, reason: WaitReason::Missing }
    }

    /// Returns whether the child does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        self.reason == WaitReason::Missing
    }

    /// Returns the wait for a child that is being deleted.
    pub(crate) fn deleting(child: &ChildId) -> Self {
        Self::state(child, "is being deleted")
    }

    /// Returns the wait for a child whose desired state cannot be written.
    pub(crate) fn unusable(child: &ChildId) -> Self {
        Self::state(child, "is unusable in the hook response")
    }

    fn state(child: &ChildId, text: &str) -> Self {
        Self { child: child.clone(), reason: WaitReason::State(text.to_owned()) }
    }
}

impl fmt::Display for RolloutWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let child = &self.child;
        match &self.reason {
            WaitReason::Missing => write!(f, "missing child {child}"),
            WaitReason::Unchecked(error) => {
                write!(f, "can't check if child {child} is updated: {error}")
            }
            WaitReason::State(text) => write!(f, "child {child} {text}"),
        }
    }
}

/// Decision about the children of one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Children of the latest revision.
    pub(crate) latest: Vec<RevisionChildren>,
    /// Children of each older revision; one without any is no longer used.
    pub(crate) older: Vec<Vec<RevisionChildren>>,
    /// Rolling children that do not have the latest revision.
    pub(crate) not_latest: BTreeMap<ChildId, AssignedRevision>,
    /// State of the rollout.
    pub(crate) progress: RolloutProgress,
}

/// Plans one step of a rollout.
///
/// `wanted` are the rolling children in the response for the latest revision, in its order.
/// `overdue` is a missing child of an older revision that was awaited for long: its revision may be
/// unable to create it, so that it moves to the latest one.
pub(crate) fn plan(
    latest: &[RevisionChildren],
    older: &[OlderRevision<'_>],
    wanted: &[ChildId],
    overdue: Option<&ChildId>,
    mode_of: impl Fn(&GroupKind) -> ChildTypeMode,
    mut observe: impl FnMut(&ChildId, AssignedRevision) -> ChildState,
) -> Plan {
    let (recorded, misrecorded) = recorded(latest, older, wanted, &mode_of);
    let mut rollout =
        UnfinishedChildren { not_latest: BTreeMap::new(), states: BTreeMap::new(), misrecorded };
    for child in wanted {
        let assigned = recorded.get(child).copied();
        if assigned == Some(AssignedRevision::Latest) {
            continue;
        }
        let state = observe(child, assigned.unwrap_or(AssignedRevision::Unassigned));
        let assigned = match (&state, assigned) {
            (ChildState::Present { is_latest: Ok(true), .. }, assigned) => {
                // An older revision records it still.
                rollout.misrecorded.extend(assigned.map(|_| child.clone()));
                AssignedRevision::Latest
            }
            (ChildState::Missing | ChildState::Deleting, None) => AssignedRevision::Latest,
            (_, assigned) => assigned.unwrap_or(AssignedRevision::Unassigned),
        };
        if assigned != AssignedRevision::Latest {
            rollout.not_latest.insert(child.clone(), assigned);
            rollout.states.insert(child.clone(), state);
        }
    }
    let progress = rollout.proceed(wanted, overdue, &mut observe);
    let assigned_to = |child: &ChildId| {
        rollout.not_latest.get(child).copied().unwrap_or(AssignedRevision::Latest)
    };
    let lists = |assigned: AssignedRevision, known: &[RevisionChildren]| {
        let kept = |child: &ChildId| match mode_of(&child.type_) {
            ChildTypeMode::Rolling => {
                recorded.contains_key(child) && assigned_to(child) == assigned
            }
            ChildTypeMode::Unlisted => true,
            ChildTypeMode::Other => false,
        };
        let joined = wanted.iter().filter(|child| assigned_to(child) == assigned);
        lists(ids(known).filter(kept).chain(joined.cloned()))
    };
    let all_older = older.iter().enumerate();
    Plan {
        latest: lists(AssignedRevision::Latest, latest),
        older: all_older
            .map(|(at, known)| lists(AssignedRevision::Older(at), known.children))
            .collect(),
        not_latest: rollout.not_latest,
        progress,
    }
}

/// Returns the recorded revision of each wanted child, and the children that a revision records in
/// vain: no response has them, or another revision records them too. The process may have ended in
/// the middle of their move. The latest revision wins over others.
fn recorded(
    latest: &[RevisionChildren],
    older: &[OlderRevision<'_>],
    wanted: &[ChildId],
    mode_of: &impl Fn(&GroupKind) -> ChildTypeMode,
) -> (BTreeMap<ChildId, AssignedRevision>, BTreeSet<ChildId>) {
    let wanted: BTreeSet<_> = wanted.iter().collect();
    let of_latest = ids(latest).map(|child| (child, AssignedRevision::Latest));
    let of_older = older.iter().enumerate().flat_map(|(at, revision)| {
        ids(revision.children).map(move |child| (child, AssignedRevision::Older(at)))
    });
    let (mut recorded, mut misrecorded) = (BTreeMap::new(), BTreeSet::new());
    for (child, assigned) in of_latest.chain(of_older) {
        if mode_of(&child.type_) != ChildTypeMode::Rolling {
            continue;
        }
        let is_described = match assigned {
            AssignedRevision::Older(at) => older[at].wanted.contains(&child),
            AssignedRevision::Latest | AssignedRevision::Unassigned => true,
        };
        if !wanted.contains(&child)
            || !is_described
            || *recorded.entry(child.clone()).or_insert(assigned) != assigned
        {
            misrecorded.insert(child);
        }
    }
    (recorded, misrecorded)
}

/// Children that do not have the latest revision, and their states.
struct UnfinishedChildren {
    not_latest: BTreeMap<ChildId, AssignedRevision>,
    states: BTreeMap<ChildId, ChildState>,
    /// Children that a revision records although no response has them, another revision records
    /// them too, or they are as the latest one desires them.
    misrecorded: BTreeSet<ChildId>,
}

impl UnfinishedChildren {
    /// Moves the next child if all conditions are met.
    fn proceed(
        &mut self,
        wanted: &[ChildId],
        overdue: Option<&ChildId>,
        observe: &mut impl FnMut(&ChildId, AssignedRevision) -> ChildState,
    ) -> RolloutProgress {
        let old: Vec<_> =
            wanted.iter().filter(|child| self.not_latest.contains_key(child)).collect();
        let Some(first) = old.first() else { return RolloutProgress::Complete };
        let updated = wanted.iter().filter(|child| !self.not_latest.contains_key(child));
        for child in updated {
            if let Some(wait) = wait_for(child, observe(child, AssignedRevision::Latest)) {
                return RolloutProgress::Waiting(wait);
            }
        }
        let is_overdue = |child: &&&ChildId| {
            Some(**child) == overdue && self.states[**child] == ChildState::Missing
        };
        let is_gone = |child: &&&ChildId| {
            matches!(self.states[**child], ChildState::Missing | ChildState::Deleting)
                && !is_overdue(child)
        };
        let gone = old.iter().skip(1).find(is_gone).filter(|_| !is_gone(&first));
        let gone = gone.filter(|_| !old.iter().any(|child| is_overdue(&child)));
        if let Some(wait) = gone.and_then(|child| wait_for(child, self.states[*child].clone())) {
            // The child returns at its own revision, in this sync if it is missing.
            return RolloutProgress::Waiting(wait);
        }
        // A child that is behind its own revision is written in this sync anyway.
        let is_behind = |child: &&&ChildId| {
            matches!(self.states[**child], ChildState::Present { is_own: false, .. })
        };
        let is_unavailable = |child: &&&ChildId| match &self.states[**child] {
            ChildState::Missing | ChildState::Deleting => is_overdue(child),
            ChildState::Present { ready, .. } => ready.is_err(),
        };
        // A missing child is created in this sync. Moving another child beside it could make two
        // children unavailable.
        let behind = old.iter().find(is_behind).or_else(|| old.first().filter(is_gone));
        let next = behind.or_else(|| old.iter().find(is_unavailable));
        let next: ChildId = (*next.unwrap_or(first)).clone();
        // This sync corrects the revisions first, so that one child at most is ever on its way.
        if let Some(other) = self.misrecorded.iter().find(|child| **child != next) {
            return RolloutProgress::Updating(other.clone());
        }
        self.not_latest.remove(&next);
        RolloutProgress::Updating(next)
    }
}

/// Returns the reason why a rollout waits for an updated child, if it does.
fn wait_for(child: &ChildId, state: ChildState) -> Option<RolloutWait> {
    match state {
        ChildState::Missing => Some(RolloutWait::missing(child.clone())),
        ChildState::Deleting => Some(RolloutWait::deleting(child)),
        ChildState::Present { is_latest: Err(error), .. } => {
            Some(RolloutWait { child: child.clone(), reason: WaitReason::Unchecked(error) })
        }
        ChildState::Present { is_latest: Ok(false), .. } => {
            Some(RolloutWait::state(child, "is not updated yet"))
        }
        ChildState::Present { ready, .. } => {
            ready.err().map(|text| RolloutWait::state(child, &text))
        }
    }
}

/// Returns the children that a revision lists.
pub(crate) fn ids(children: &[RevisionChildren]) -> impl Iterator<Item = ChildId> + '_ {
    children.iter().flat_map(|children| {
        let of = |name: &String| ChildId::new(&children.api_group, &children.kind, name);
        children.names.iter().map(of)
    })
}

/// Returns children as a revision lists them: by type, each name once, in this order.
fn lists(children: impl Iterator<Item = ChildId>) -> Vec<RevisionChildren> {
    let (mut lists, mut listed) = (Vec::<RevisionChildren>::new(), BTreeSet::new());
    let mut by_type = BTreeMap::new();
    for child in children {
        if !listed.insert(child.clone()) {
            continue;
        }
        let at = *by_type.entry(child.type_.clone()).or_insert(lists.len());
        if at == lists.len() {
            let GroupKind { group, kind } = child.type_;
            lists.push(RevisionChildren { api_group: group, kind, names: Vec::new() });
        }
        lists[at].names.push(child.name);
    }
    lists
}

#[cfg(test)]
mod tests;
