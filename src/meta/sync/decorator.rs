//! Sync of a decorated object after the response: the object first, then its attachments.

use std::time::Duration;

use super::{
    SyncError,
    children_writes::WrittenChildren,
    decorated_object::{Decorated, DecoratedObject, DecorationResult},
    decoration::Decoration,
    hook_call::{CheckedResponse, with_unusable},
    observation::ObservedChildren,
    parent_sync::ParentSync,
};
use crate::meta::apply::ApplyResult;

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

impl ParentSync<'_> {
    /// Applies a response: status, labels and annotations of the object, then its attachments. The
    /// finalizer is removed with the labels if the object is being deleted, and after the
    /// attachments otherwise. Returns the time until the object is to be checked again. Keeps the record of
    /// the sync if all was as desired.
    pub(super) async fn decorate(
        &self,
        observed: &ObservedChildren<'_>,
        response: CheckedResponse,
    ) -> Result<Option<Duration>, SyncError> {
        let Self { parent, object, writer, reporter, .. } = *self;
        let CheckedResponse { hook, mut children, status, labels, annotations, record, finalized } =
            response;
        let frees = finalized && writer.finalizer.is_on(object.header());
        // An object that stays is freed after its attachments: its controller ignores it from then
        // on, and nothing else deletes them.
        let frees_first = frees && parent.terminating;
        let decoration = Decoration {
            labels: &labels,
            annotations: &annotations,
            status: status.as_ref().ok().and_then(Option::as_deref),
            finalizer: frees_first.then_some(&*writer.finalizer.name),
        };
        // Before any write: the cache of the chain may be gone after it.
        let child_writer = self.child_writer(observed);
        let owners = child_writer.check_owners(object, &mut children);
        let written = DecoratedObject { writer, object }.write(decoration).await;
        match written.as_ref().map(|decorated| &decorated.result) {
            Ok(DecorationResult::Gone) => {
                reporter.flapping();
                return Ok(None);
            }
            // No further request is sent now.
            Err(SyncError::Cancelled | SyncError::Throttled { .. }) => {
                reporter.flapping();
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
        let managed = child_writer.write(object, hook, children, owners, None).await?;
        let WrittenChildren { result: managed, is_usable, has_own, .. } = managed;
        if frees
            && !frees_first
            && managed.is_ok()
            && let Some(header) = written.as_ref().ok().and_then(|left| left.result.header(object))
        {
            writer.remove_finalizer(&header).await?;
        }
        let is_usable = is_usable && status.is_ok();
        let managed = with_unusable(hook, status.err(), managed);
        let recheck = is_usable.then(|| reporter.flapping()).flatten();
        let recheck = recheck.into_iter().chain(reporter.contested()).min();
        let (decorated, managed) = completed(written, managed)?;
        let as_desired = managed.as_desired & matches!(decorated, DecorationResult::AsDesired);
        // The chain of owners may change while the parent does not.
        if as_desired && !has_own && !frees {
            parent.state.record().settle(record);
        }
        Ok(recheck)
    }
}
