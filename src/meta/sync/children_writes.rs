//! Writes of the children of one parent: the last step of their sync, after observation and check.

use std::time::Duration;

use super::{
    SyncError, hook_call::with_unusable, observation::ObservedChildren, owner_chain,
    report::SyncReporter, rollout::PlannedRollout,
};
use crate::{
    informer::Object,
    meta::{
        apply::{Apply, ApplyResult, NOTHING},
        children::{CheckedChildren, ChildContext},
        definition::{Definition, finalizer::Finalizer},
        hooks::rule::HookKind,
    },
};

/// Writer of the children of one parent, for one sync.
pub(super) struct ChildWriter<'a> {
    pub(super) definition: &'a Definition,
    pub(super) finalizer: &'a Finalizer,
    pub(super) apply: &'a Apply,
    pub(super) observed: &'a ObservedChildren<'a>,
    pub(super) reporter: SyncReporter<'a>,
}

/// Children after their writes.
pub(super) struct WrittenChildren {
    /// Result of the writes. The status of a composite's parent is written after each of its errors.
    pub(super) result: Result<ApplyResult, SyncError>,
    /// True if each child of the response could be written.
    pub(super) is_usable: bool,
    /// True if there are children of the parent's own type.
    pub(super) has_own: bool,
    /// Time until the next check of the rollout.
    pub(super) recheck: Option<Duration>,
}

impl ChildWriter<'_> {
    /// Writes the revisions of a rollout, then the children that [`ChildWriter::check_owners`] has left.
    /// Does nothing if the children of the object are not managed.
    ///
    /// # Errors
    ///
    /// The sync ends: no further request may be sent now, or a revision has changed meanwhile.
    pub(super) async fn write(
        self,
        object: &Object,
        hook: HookKind,
        children: CheckedChildren,
        owners: Result<bool, SyncError>,
        rollout: Option<&PlannedRollout<'_>>,
    ) -> Result<WrittenChildren, SyncError> {
        if !self.finalizer.manages_children(object.header()) {
            let result = Ok(NOTHING);
            return Ok(WrittenChildren { result, is_usable: true, has_own: false, recheck: None });
        }
        let CheckedChildren { desired, unusable, held, .. } = children;
        let is_usable = owners.is_ok() && unusable.is_empty();
        let rechecked = match rollout {
            Some(rollout) => rollout.write().await,
            None => Ok(None),
        };
        let (recheck, managed) = match rechecked {
            Ok(recheck) => {
                let rules = self.observed.rules();
                let observed = &rules.observed_without(&held);
                let rules = &ChildContext { observed, ..rules };
                (recheck, self.apply.execute(rules, desired, self.reporter.context).await)
            }
            // No child is written without a record.
            Err(SyncError::Failed(message)) => (None, Err(SyncError::Failed(message))),
            Err(error) => return Err(error),
        };
        let managed = with_unusable(hook, unusable.text(), managed);
        let has_own = owners.as_ref().map_or(true, |has_own| *has_own);
        match managed.and_then(|managed| owners.map(|_has_own| managed)) {
            Err(SyncError::Cancelled) => Err(SyncError::Cancelled),
            // The hook is healthy, and the contested objects are those of an earlier sync.
            Err(error @ SyncError::Throttled { .. }) => {
                self.reporter.flapping();
                Err(error)
            }
            result => Ok(WrittenChildren { result, is_usable, has_own, recheck }),
        }
    }

    /// Leaves out children of the parent's own type if the chain of owners is too long: each may be a
    /// parent with children of its own. Observed ones stay as they are. Returns whether there are
    /// any.
    ///
    /// # Errors
    ///
    /// [`SyncError::TooDeep`], after they are left out.
    pub(super) fn check_owners(
        &self,
        object: &Object,
        children: &mut CheckedChildren,
    ) -> Result<bool, SyncError> {
        let ObservedChildren { parent, groups, .. } = self.observed;
        let is_own = |group: usize| owner_chain::is_same_type(&groups[group], parent);
        let Some(own) = self.definition.parents.get(parent.key.primary) else { return Ok(true) };
        let Ok(store) = self.reporter.context.store(&own.type_ref) else { return Ok(true) };
        let CheckedChildren { desired, held, .. } = children;
        if !desired.iter().any(|child| is_own(child.group)) {
            return Ok(false);
        }
        let limit = self.definition.max_owner_depth;
        if owner_chain::depth(parent, object, limit, |key| store.get(key)) < limit {
            return Ok(true);
        }
        desired.retain(|child| !is_own(child.group));
        let observed = self.observed.children.iter().filter(|child| is_own(child.group));
        held.extend(observed.map(|child| (child.group, child.key.clone())));
        Err(SyncError::TooDeep(owner_chain::explain(parent, self.definition.kind, limit)))
    }
}
