//! Sync of a composite's parent after the response: children first, then the status.

use std::time::Duration;

use super::{
    SyncError,
    children_writes::WrittenChildren,
    hook_call::{CheckedResponse, with_unusable},
    observation::ObservedChildren,
    parent_sync::ParentSync,
    rollout::PlannedRollout,
};
use crate::meta::apply::ApplyResult;

impl ParentSync<'_> {
    /// Applies a response: children, then the status. Returns the time until the parent is to be
    /// checked again. Keeps the record of the sync if all was as desired.
    pub(super) async fn compose(
        &self,
        observed: &ObservedChildren<'_>,
        response: CheckedResponse,
        rollout: Option<PlannedRollout<'_>>,
    ) -> Result<Option<Duration>, SyncError> {
        let Self { parent, writer, reporter, .. } = self;
        let mut object = self.object.clone();
        let CheckedResponse { hook, mut children, status, record, finalized, .. } = response;
        // The children of a parent that is finalized are left to the garbage collector.
        if finalized && parent.terminating && writer.finalizer.is_on(object.header()) {
            match writer.remove_finalizer(object.header()).await? {
                Some(freed) if !freed.header().finalizers.is_empty() => object = freed,
                _ => {
                    reporter.flapping();
                    return Ok(None);
                }
            }
        }
        let child_writer = self.child_writer(observed);
        let owners = child_writer.check_owners(&object, &mut children);
        let written = child_writer.write(&object, hook, children, owners, rollout.as_ref());
        let WrittenChildren { result: managed, is_usable, has_own, recheck: rechecked } =
            written.await?;
        let is_freed = finalized && managed.is_ok() && writer.finalizer.is_on(object.header());
        if is_freed && let Some(freed) = writer.remove_finalizer(object.header()).await? {
            object = freed;
        }
        let is_usable = is_usable && status.is_ok();
        // Written even if children failed, since the status reports that.
        let (written, managed) = match status {
            Ok(status) => (writer.write_status(&object, status).await, managed),
            Err(unusable) => (Ok(false), with_unusable(hook, Some(unusable), managed)),
        };
        let flapping = is_usable.then(|| reporter.flapping()).flatten();
        let contested = reporter.contested();
        let has_moved = rollout.as_ref().is_some_and(PlannedRollout::has_moved);
        let managed = match (managed, &written) {
            (Err(SyncError::Failed(children)), Err(SyncError::Failed(status))) => {
                return Err(SyncError::Failed(format!("{children}; {status}")));
            }
            (managed, _) => managed?,
        };
        let ApplyResult { as_desired: children_are_desired, confirmed } = managed;
        let as_desired = children_are_desired & written?;
        let is_rolled_out = rollout.as_ref().is_none_or(PlannedRollout::is_complete);
        // Requeued at once: no watch event follows a move that needs no write, or a write that
        // changes nothing.
        let is_next = (has_moved && children_are_desired) || (!is_rolled_out && confirmed);
        let next = is_next.then_some(Duration::ZERO);
        // The chain of owners may change while the parent does not, and the report of contested
        // objects with the next sync.
        let is_settled = as_desired && !has_own && !is_freed && is_rolled_out;
        if is_settled && contested.is_none() {
            parent.state.record().settle(record);
        }
        Ok([flapping, contested, rechecked, next].into_iter().flatten().min())
    }
}
