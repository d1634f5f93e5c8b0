//! Order of the writes for one parent: decisions without I/O.
//!
//! Deletions come first, then the other writes, each by child type. The writes of a type begin when
//! those of the previous type have ended. Within a type, writes begin in the order of the plan and
//! overlap.
//!
//! Semantics: `pkg/controller/common/manage_children.go` of Metacontroller, where no writes
//! overlap.

use crate::meta::{
    children::{PlannedChild, ServedChildType},
    definition::UpdateMethod,
    hooks::budget::UNRESERVED_BYTES,
};

/// Maximum number of writes under way for one parent. Together with [`UNRESERVED_BYTES`] it bounds
/// the bodies that one sync holds.
const MOST_AT_ONCE: usize = 8;

/// Returns the number of writes of a sync that begin at once, after this many failures of its
/// request. After a failure, one write at a time is under way until one succeeds, so that a
/// throttling server gets one request.
pub(crate) fn most_at_once(failures: u32) -> usize {
    if failures == 0 { MOST_AT_ONCE } else { 1 }
}

/// Part of a plan whose writes may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    /// True for deletions, also those of children that are recreated.
    deletes: bool,
    /// Index of the group.
    group: usize,
}

impl Stage {
    /// Returns the stage of a child.
    pub(super) fn of(planned: &PlannedChild<'_>, groups: &[ServedChildType]) -> Self {
        let (group, _) = planned.target();
        let deletes = match planned {
            PlannedChild::Delete(_) => true,
            PlannedChild::Create(_) => false,
            PlannedChild::Compare(..) => match groups[group].strategy {
                UpdateMethod::Recreate | UpdateMethod::RollingRecreate => true,
                UpdateMethod::OnDelete | UpdateMethod::InPlace | UpdateMethod::RollingInPlace => {
                    false
                }
            },
        };
        Self { deletes, group }
    }
}

/// Writes under way for one parent.
#[derive(Debug)]
pub(super) struct WriteOrder {
    most: usize,
    // Stage of the writes under way.
    stage: Option<Stage>,
    count: usize,
    // True if the write under way is too large for others beside it.
    alone: bool,
}

impl WriteOrder {
    /// Returns the order of a sync after this many failures of its request.
    pub(super) fn after(failures: u32) -> Self {
        Self { most: most_at_once(failures), stage: None, count: 0, alone: false }
    }

    /// Returns whether a write may begin while the others are under way.
    pub(super) fn admits(&self, stage: Stage, bytes: usize) -> bool {
        let beside = self.stage == Some(stage)
            && self.count < self.most
            && !self.alone
            && bytes <= UNRESERVED_BYTES;
        self.count == 0 || beside
    }

    /// Records that a write has begun.
    pub(super) fn begun(&mut self, stage: Stage, bytes: usize) {
        self.stage = Some(stage);
        self.count += 1;
        self.alone = bytes > UNRESERVED_BYTES;
    }

    /// Records that a write has ended.
    pub(super) fn ended(&mut self, succeeded: bool) {
        self.count -= 1;
        if succeeded {
            self.most = MOST_AT_ONCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: usize = UNRESERVED_BYTES;
    const LARGE: usize = UNRESERVED_BYTES + 1;

    fn stage(deletes: bool, group: usize) -> Stage {
        Stage { deletes, group }
    }

    #[track_caller]
    fn check(under_way: &[(Stage, usize)], next: (Stage, usize), expected: bool) {
        let mut order = WriteOrder::after(0);
        for (stage, bytes) in under_way {
            order.begun(*stage, *bytes);
        }

        assert_eq!(order.admits(next.0, next.1), expected, "{under_way:?} {next:?}");
    }

    #[test]
    fn writes_of_one_stage_overlap_up_to_eight() {
        let first = stage(true, 0);

        check(&[], (first, LARGE), true);
        check(&[(first, SMALL); 7], (first, SMALL), true);
        check(&[(first, SMALL); 8], (first, SMALL), false);
        check(&[(first, SMALL)], (first, LARGE), false);
        check(&[(first, LARGE)], (first, 0), false);
        check(&[(first, 0)], (stage(true, 1), 0), false);
        check(&[(first, 0)], (stage(false, 0), 0), false);
    }

    #[test]
    fn stage_begins_when_the_one_before_it_has_ended() {
        let (mut order, first, second) = (WriteOrder::after(0), stage(true, 0), stage(false, 0));
        order.begun(first, LARGE);
        assert!(!order.admits(second, SMALL));

        order.ended(false);
        assert!(order.admits(second, SMALL));
        order.begun(second, SMALL);
        assert!(order.admits(second, SMALL) && !order.admits(first, SMALL));
    }

    #[test]
    fn retried_sync_writes_one_child_at_a_time_until_a_write_succeeds() {
        let (mut order, only) = (WriteOrder::after(1), stage(false, 0));
        for succeeds in [false, true] {
            order.begun(only, SMALL);
            assert!(!order.admits(only, SMALL));
            order.ended(succeeds);
        }

        order.begun(only, SMALL);
        assert!(order.admits(only, SMALL));
    }
}
