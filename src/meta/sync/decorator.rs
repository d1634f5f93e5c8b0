//! Sync of a decorated object after the response: the object first, then its attachments.

use std::time::Duration;

use super::{
    ParentReconciler, SyncError,
    decorated_object::{Decorated, DecoratedObject, DecorationResult},
    decoration::Decoration,
    hook_call::{CheckedResponse, with_unusable},
    owner_chain,
};
use crate::{
    controller::Context,
    informer::Object,
    meta::{
        apply::{ApplyResult, NOTHING},
        children::{CheckedChildren, ChildContext},
    },
};

/// Returns the results of the writes of an object and of its attachments.
///
/// # Errors
///
/// A single error names all that cannot be written.
fn completed(
    written: Result<Decorated, SyncError>,
    managed: Result<ApplyResult, SyncError>,
) -> Result<(DecorationResult, ApplyResult), SyncError> {
    if let Ok(Decorated { refused: Some(refused), .. }) = written {
        let attachments = managed.err().and_then(SyncError::refusal);
        let all: Vec<_> = [refused].into_iter().chain(attachments).collect();
        return Err(SyncError::Failed(all.join("; ")));
    }
    let managed = managed?;
    Ok((written?.result, managed))
}

impl ParentReconciler {
    /// Applies a response: status, labels and annotations of the object, then its attachments. The
    /// finalizer is removed with the labels if the object is being deleted, and after the
    /// attachments otherwise. Returns the time until the object is to be checked again. Keeps the record of
    /// the sync if all was as desired.
    pub(super) async fn decorate(
        &self,
        object: &Object,
        rules: &ChildContext<'_>,
        mut response: CheckedResponse,
        context: &Context,
    ) -> Result<Option<Duration>, SyncError> {
        let parent = rules.parent;
        let manages = self.finalizer.manages_children(object.header());
        let owners = match manages {
            true => self.check_owners(object, rules, &mut response.children, context),
            false => Ok(false),
        };
        let CheckedResponse { hook, children, status, labels, annotations, record, finalized } =
            response;
        let CheckedChildren { desired, unusable, held, .. } = children;
        let is_usable = owners.is_ok() && status.is_ok() && (unusable.is_empty() || !manages);
        let frees = finalized && self.finalizer.is_on(object.header());
        // An object that stays is freed after its attachments: its controller ignores it from then
        // on, and nothing else deletes them.
        let frees_first = frees && parent.terminating;
        let decoration = Decoration {
            labels: &labels,
            annotations: &annotations,
            status: status.as_ref().ok().and_then(Option::as_deref),
            finalizer: frees_first.then_some(&*self.finalizer.name),
        };
        let decorated = DecoratedObject { writer: self.writer(parent, context), object };
        let written = decorated.write(decoration).await;
        match written.as_ref().map(|decorated| &decorated.result) {
            Ok(DecorationResult::Gone) => {
                self.report(parent, context).flapping();
                return Ok(None);
            }
            // No further request is sent now.
            Err(SyncError::Cancelled | SyncError::Throttled { .. }) => {
                self.report(parent, context).flapping();
                return written.map(|_decorated| None);
            }
            // A conflict or a refusal of the object is no reason to leave its attachments as they are.
            Ok(
                DecorationResult::AsDesired
                | DecorationResult::Differed(_)
                | DecorationResult::Freed,
            )
            | Err(_) => {}
        }
        // After the write of the object, which may free it.
        let managed = if manages {
            let observed = &rules.observed_without(&held);
            let rules = &ChildContext { observed, ..*rules };
            with_unusable(hook, unusable.text(), self.apply.execute(rules, desired, context).await)
        } else {
            Ok(NOTHING)
        };
        let (managed, has_own) = owner_chain::with_depth(managed, owners);
        match managed {
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            // No further request is sent now, and the contested objects are those of an earlier
            // sync.
            Err(error @ SyncError::Throttled { .. }) => {
                self.report(parent, context).flapping();
                return Err(error);
            }
            Ok(_) | Err(_) => {}
        }
        if frees
            && !frees_first
            && managed.is_ok()
            && let Some(header) = written.as_ref().ok().and_then(|left| left.result.header(object))
        {
            self.writer(parent, context).remove_finalizer(&header).await?;
        }
        let managed = with_unusable(hook, status.err(), managed);
        let recheck = is_usable.then(|| self.report(parent, context).flapping()).flatten();
        let recheck = recheck.into_iter().chain(self.report(parent, context).contested()).min();
        let (decorated, managed) = completed(written, managed)?;
        let as_desired = managed.as_desired & matches!(decorated, DecorationResult::AsDesired);
        // The chain of owners may change while the parent does not.
        if as_desired && !has_own && !frees {
            parent.state.keep_record(record);
        }
        Ok(recheck)
    }
}
