//! Apply: executes the plan for the children of one parent.
//!
//! This module does not decide on ownership: the rules of a sync complete each child and its owners.

mod dry_run_create;
mod dry_run_update;
mod failures;
mod refusal;

use std::sync::Arc;

use self::{
    dry_run_create::dry_run_create,
    dry_run_update::differs,
    failures::Failures,
    refusal::{explain_existing, with_other_writer},
};
use super::{
    ControllerBudget, Parents,
    children::{Desired, Planned, Rules, Step, Write},
    resource::{Resource, Stored, is_already_there, is_conflict, is_gone},
    sync_error::SyncError,
};
use crate::controller::Context;

/// Executor of the plans of one controller.
pub(crate) struct Apply {
    /// Budget of decoded children.
    pub(crate) budget: ControllerBudget,
    /// Parents with the limits of their writes.
    pub(crate) parents: Arc<Parents>,
}

impl Apply {
    /// Applies the desired children. A failure of one child does not stop the others. Returns
    /// whether all children are as desired, without a write or a dry run, and without one that the
    /// limit holds back.
    pub(crate) async fn execute(
        &self,
        rules: &Rules<'_>,
        desired: Vec<Desired>,
        context: &Context,
    ) -> Result<bool, SyncError> {
        let mut failed = Failures::default();
        let mut behind = None;
        let mut as_desired = true;
        for planned in rules.plan(desired) {
            if context.is_cancelled() {
                return Err(SyncError::Cancelled);
            }
            match self.write_child(rules, planned, context).await {
                Ok(is_as_desired) => as_desired &= is_as_desired,
                Err(SyncError::Behind(message)) => behind = Some(message),
                Err(SyncError::Failed(message)) => failed.push(message),
                // The other requests would be refused as well, and add to the load.
                Err(
                    other @ (SyncError::Throttled { .. }
                    | SyncError::Cancelled
                    | SyncError::Busy(_)
                    | SyncError::HookDown(_)
                    | SyncError::TooDeep(_)
                    | SyncError::Hook(_)),
                ) => return Err(other),
            }
        }
        match (failed.text(), behind) {
            (Some(text), _) => Err(SyncError::Failed(text)),
            (None, Some(message)) => Err(SyncError::Behind(message)),
            (None, None) => Ok(as_desired),
        }
    }

    /// Writes one child, unless it is in its desired state or its writes are limited. Returns whether
    /// it was in its desired state.
    async fn write_child(
        &self,
        rules: &Rules<'_>,
        planned: Planned<'_>,
        context: &Context,
    ) -> Result<bool, SyncError> {
        let parent = rules.parent;
        let (group, key) = planned.target();
        let (served, key) = (&rules.groups[group].served, &key.clone());
        let step = {
            let _permit = self.budget.decode_permit(planned.size()).await;
            rules.step(planned).map_err(SyncError::Failed)?
        };
        let Some(step) = step else { return Ok(true) };
        let what = format!("{} {key}", served.kind);
        // Deletions are not limited.
        let is_limited = !matches!(step, Step::Delete { .. });
        if is_limited && !self.parents.writes.may_write(&parent.key, &what) {
            return Ok(false);
        }
        let resource = Resource::new(context.client(), served);
        let (verb, result) = match &step {
            Step::Delete { uid, .. } => {
                ("deleting", resource.delete(key, uid).await.map(|()| false))
            }
            Step::Recreate { uid, created, observed, merged } => {
                let answer = resource.dry_run_update(key, merged.clone()).await;
                if !differs(observed, &answer, &what, context.attempt())? {
                    return Ok(false);
                }
                dry_run_create(&resource, served, created).await?;
                ("replacing", resource.delete(key, uid).await.map(|()| false))
            }
            Step::Create(Write { body, .. }) => {
                ("creating", resource.create(key, body.clone()).await.map(|_| true))
            }
            Step::Update(Write { body, replaces, .. }) => {
                // The server may store an equal value: `0.5` and `500m` are one quantity.
                let changed = |stored: Stored| stored.version() != replaces.as_deref();
                ("updating", resource.update(key, body.clone()).await.map(changed))
            }
        };
        let error = match result {
            Ok(changed) => {
                tracing::debug!(kind = %served.kind, name = %key, verb, "child written");
                if changed {
                    self.parents.writes.wrote(&parent.key, what);
                }
                return Ok(false);
            }
            Err(error) => error,
        };
        let doing = format!("{verb} {what}");
        let (gone, conflict) = (is_gone(&error), is_conflict(&error));
        Err(match step {
            // Deleted already, or replaced by another object of that name.
            Step::Delete { .. } | Step::Recreate { .. } if gone || conflict => {
                return Ok(false);
            }
            _ if is_already_there(&error) => {
                explain_existing(parent, rules.selector, &resource, key, &doing).await
            }
            Step::Update(_) if gone => {
                SyncError::Behind(format!("{doing}: the object no longer exists"))
            }
            Step::Update(_) if conflict => {
                self.parents.writes.conflicted(&parent.key, &what);
                let error = SyncError::of_write(&doing, &error);
                with_other_writer(error, &resource, key, context.attempt()).await
            }
            Step::Delete { .. } | Step::Recreate { .. } | Step::Create(_) | Step::Update(_) => {
                SyncError::of_write(&doing, &error)
            }
        })
    }
}
