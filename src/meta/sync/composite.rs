//! Sync of a composite's parent after the response: children first, then the status.

use std::time::Duration;

use super::{
    ParentReconciler, SyncError,
    hook_call::{CheckedResponse, with_unusable},
    owner_chain,
    rollout::PlannedRollout,
};
use crate::{
    controller::Context,
    informer::Object,
    meta::{
        apply::{ApplyResult, NOTHING},
        children::{CheckedChildren, ChildContext},
    },
};

impl ParentReconciler {
    /// Applies a response: children, then the status. Returns the time until the parent is to be
    /// checked again. Keeps the record of the sync if all was as desired.
    pub(super) async fn compose(
        &self,
        object: &Object,
        rules: &ChildContext<'_>,
        mut response: CheckedResponse,
        rollout: Option<PlannedRollout<'_>>,
        context: &Context,
    ) -> Result<Option<Duration>, SyncError> {
        let (parent, mut object) = (rules.parent, object.clone());
        let finalized = response.finalized;
        // The children of a parent that is finalized are left to the garbage collector.
        if finalized && parent.terminating && self.finalizer.is_on(object.header()) {
            match self.writer(parent, context).remove_finalizer(object.header()).await? {
                Some(freed) if !freed.header().finalizers.is_empty() => object = freed,
                _ => {
                    self.report(parent, context).flapping();
                    return Ok(None);
                }
            }
        }
        let manages = self.finalizer.manages_children(object.header());
        let owners = match manages {
            true => self.check_owners(&object, rules, &mut response.children, context),
            false => Ok(false),
        };
        let CheckedResponse { hook, children, status, record, .. } = response;
        let CheckedChildren { desired, unusable, held, .. } = children;
        let is_usable = owners.is_ok() && status.is_ok() && (unusable.is_empty() || !manages);
        let rechecked = match &rollout {
            Some(rollout) if manages => rollout.write().await,
            Some(_) | None => Ok(None),
        };
        let managed = match &rechecked {
            _ if !manages => Ok(NOTHING),
            Ok(_) => {
                let observed = &rules.observed_without(&held);
                let rules = &ChildContext { observed, ..*rules };
                let written = self.apply.execute(rules, desired, context).await;
                with_unusable(hook, unusable.text(), written)
            }
            // No child is written without a record. The status is written all the same.
            Err(SyncError::Failed(message)) => {
                with_unusable(hook, unusable.text(), Err(SyncError::Failed(message.clone())))
            }
            Err(_) => return rechecked,
        };
        let (managed, has_own) = owner_chain::with_depth(managed, owners);
        let is_freed = finalized && managed.is_ok() && self.finalizer.is_on(object.header());
        if is_freed
            && let Some(freed) =
                self.writer(parent, context).remove_finalizer(object.header()).await?
        {
            object = freed;
        }
        match managed {
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            // No further request is sent now, but the hook is healthy.
            Err(SyncError::Throttled { message, after }) => {
                self.report(parent, context).flapping();
                return Err(SyncError::Throttled { message, after });
            }
            Ok(_) | Err(_) => {}
        }
        // Written even if children failed, since the status reports that.
        let (written, managed) = match status {
            Ok(status) => {
                (self.writer(parent, context).write_status(&object, status).await, managed)
            }
            Err(unusable) => (Ok(false), with_unusable(hook, Some(unusable), managed)),
        };
        let recheck = is_usable.then(|| self.report(parent, context).flapping()).flatten();
        let contested = self.report(parent, context).contested();
        let recheck = recheck.into_iter().chain(contested).min();
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
        let recheck = recheck.into_iter().chain(rechecked?).chain(next).min();
        // The chain of owners may change while the parent does not, and the report of contested
        // objects with the next sync.
        let is_settled = as_desired && !has_own && !is_freed && is_rolled_out;
        if is_settled && contested.is_none() {
            parent.state.keep_record(record);
        }
        Ok(recheck)
    }
}
