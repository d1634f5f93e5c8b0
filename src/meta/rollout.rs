//! Rolling updates: the children of a parent follow a change of the parent one at a time.
//!
//! A revision is the state of a parent as far as `revisionHistory.fieldPaths` names it. While a
//! rollout is under way, several revisions are live: each lists its children, and each is sent to
//! the hook as a separate parent. A child keeps the form of its revision until the plan moves it.
//!
//! [`plan`] decides without I/O, and `crate::meta::sync` executes.

mod field_paths;
mod input;
mod pending;
mod plan;
mod revision;
mod status_checks;
mod updated_condition;

pub(crate) use self::{
    field_paths::{apply_patch, patch_of},
    input::{REVISIONS, RevisionCache, RevisionInput},
    pending::{PendingRollouts, RecordedProgress, RolloutObserver},
    plan::{
        AssignedRevision, ChildId, ChildState, ChildTypeMode, OlderRevision, Plan, RolloutProgress,
        RolloutWait, ids, plan,
    },
    revision::{
        LabelMap, OlderParent, Revision, RevisionOwner, is_named_by, is_of_type, labels_of,
        orphan_selector,
    },
    status_checks::readiness,
    updated_condition::UpdatedCondition,
};
