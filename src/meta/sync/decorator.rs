//! Sync of a decorated object after the response: the object first, then its attachments.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, value::RawValue};

use super::{
    ParentReconciler, SyncError,
    hook_call::{CheckedResponse, with_unusable},
};
use crate::{
    controller::Context,
    informer::{Header, Object},
    meta::{
        apply::NOTHING,
        children::{ChildContext, Parent},
        decoration::{self, Decoration, DecorationWrites, ObjectWrite, StatusWrite},
        resource::{Resource, StoredObject, is_gone},
    },
    redaction,
};

/// Name of a decorated object's status in its write limit.
const STATUS: &str = "the status";
/// Name of its labels and annotations there.
const METADATA: &str = "the metadata";

/// Outcome of the writes of a decorated object.
enum DecorationResult {
    /// The object was as desired.
    AsDesired,
    /// The object was written and has this header now, or a write was held back.
    Differed(Box<Header>),
    /// The last finalizer of an object that is being deleted was removed.
    Freed,
    /// The object was gone before, and its attachments are left to the garbage collector.
    Gone,
}

impl DecorationResult {
    /// Returns the header of the object as these writes have left it; `None` if it is gone.
    fn header(&self, object: &Object) -> Option<Header> {
        match self {
            Self::AsDesired => Some(object.header().clone()),
            Self::Differed(header) => Some((**header).clone()),
            Self::Freed | Self::Gone => None,
        }
    }
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
        response: CheckedResponse,
        context: &Context,
    ) -> Result<Option<Duration>, SyncError> {
        let parent = rules.parent;
        let CheckedResponse {
            hook,
            desired,
            unusable,
            held,
            status,
            labels,
            annotations,
            record,
            finalized,
            ..
        } = response;
        let manages = self.finalizer.manages_children(object.header());
        let is_usable = status.is_ok() && (unusable.is_empty() || !manages);
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
        let written = self.write_object(parent, object, decoration, context).await;
        match written {
            Ok(DecorationResult::Gone) => {
                self.report_flapping(parent, context);
                return Ok(None);
            }
            // No further request is sent now.
            Err(error @ (SyncError::Cancelled | SyncError::Throttled { .. })) => {
                self.report_flapping(parent, context);
                return Err(error);
            }
            // A conflict or a refusal of the object is no reason to leave its attachments as they
            // are.
            Ok(
                DecorationResult::AsDesired
                | DecorationResult::Differed(_)
                | DecorationResult::Freed,
            )
            | Err(_) => {}
        }
        // After the write of the object, which may free it.
        let has_own =
            manages && self.check_owners(parent, object, rules.groups, &desired, context)?;
        let managed = if manages {
            let observed = &rules.observed_without(&held);
            let rules = &ChildContext { observed, ..*rules };
            with_unusable(hook, unusable.text(), self.apply.execute(rules, desired, context).await)
        } else {
            Ok(NOTHING)
        };
        match managed {
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            // No further request is sent now, and the contested objects are those of an earlier
            // sync.
            Err(error @ SyncError::Throttled { .. }) => {
                self.report_flapping(parent, context);
                return Err(error);
            }
            Ok(_) | Err(_) => {}
        }
        if frees
            && !frees_first
            && managed.is_ok()
            && let Some(header) = written.as_ref().ok().and_then(|left| left.header(object))
        {
            self.remove_finalizer(parent, &header, context).await?;
        }
        let managed = with_unusable(hook, status.err(), managed);
        let recheck = is_usable.then(|| self.report_flapping(parent, context)).flatten();
        let recheck = recheck.into_iter().chain(self.report_contested(parent, context)).min();
        let as_desired = managed?.as_desired & matches!(written?, DecorationResult::AsDesired);
        // The chain of owners may change while the parent does not.
        if as_desired && !has_own && !frees {
            self.parents.writes.keep_record(&parent.key, record);
        }
        Ok(recheck)
    }

    /// Writes the object as decorated, in at most two writes.
    async fn write_object(
        &self,
        parent: &Parent,
        object: &Object,
        decoration: Decoration<'_>,
        context: &Context,
    ) -> Result<DecorationResult, SyncError> {
        let has_status = parent.served.subresources.status;
        let plan = |decoration| {
            decoration::writes(&object.json(), decoration, has_status).map_err(|error| {
                let why = redaction::decoding(error);
                SyncError::Failed(format!("the object is unreadable: {why}"))
            })
        };
        let mut writes = plan(decoration)?;
        let mut is_held_back = false;
        if let Some(status) = status_of(&writes)
            && !self.may_write_status(parent, status)
        {
            is_held_back = true;
            writes = plan(Decoration { status: None, ..decoration })?;
        }
        if let Some(ObjectWrite::Patch(metadata)) = &mut writes.object
            && decorates(metadata)
            && !self.parents.writes.may_write(&parent.key, METADATA, false)
        {
            is_held_back = true;
            metadata.retain(|field, _| field == FINALIZERS);
            if metadata.is_empty() {
                writes.object = None;
            }
        }
        if writes == DecorationWrites::default() {
            return Ok(if is_held_back {
                DecorationResult::Differed(Box::new(object.header().clone()))
            } else {
                DecorationResult::AsDesired
            });
        }
        context.release_slot();
        self.send(parent, object, &writes, decoration.finalizer.is_some(), context).await
    }

    /// Returns whether a status is to be written: the server has not changed the same one before,
    /// and the write limit admits it.
    fn may_write_status(&self, parent: &Parent, status: &StatusWrite) -> bool {
        let writes = &self.parents.writes;
        !writes.status_settled(&parent.key, status.wanted, status.seen)
            && writes.may_write(&parent.key, STATUS, false)
    }

    /// Sends the writes of an object. The second one is for the version that the first has left.
    async fn send(
        &self,
        parent: &Parent,
        object: &Object,
        writes: &DecorationWrites,
        frees: bool,
        context: &Context,
    ) -> Result<DecorationResult, SyncError> {
        let resource = Resource::new(context.requester(), &parent.served);
        let mut version = Arc::clone(&object.header().resource_version);
        if let Some(status) = &writes.status {
            match resource.update_status(&parent.key, status.body.clone()).await {
                Ok(stored) => {
                    if let Some(stored) = stored.version() {
                        version = stored.into();
                    }
                    self.wrote_status(parent, status, &stored);
                }
                Err(error) if is_gone(&error) => return missing_status(&resource, parent).await,
                Err(error) => return Err(SyncError::of_write("writing the status", &error)),
            }
        }
        let doing = "writing the object";
        let written = match &writes.object {
            None => {
                let header = Header { resource_version: version, ..object.header().clone() };
                return Ok(DecorationResult::Differed(Box::new(header)));
            }
            Some(ObjectWrite::Patch(metadata)) => {
                let patch = ObjectWrite::patch(metadata, &parent.uid, &version);
                resource.merge_patch::<Box<RawValue>>(&parent.key, None, &patch).await
            }
            Some(ObjectWrite::Replace(status)) => {
                resource.replace(&parent.key, status.body.clone()).await
            }
        };
        let text = match written {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return Ok(DecorationResult::Gone),
            Err(error) => return Err(SyncError::of_write(doing, &error)),
        };
        let unreadable = |why: String| SyncError::Failed(format!("{doing}: {why}"));
        let stored: StoredObject = serde_json::from_str(text.get())
            .map_err(|error| unreadable(redaction::decoding(error)))?;
        match &writes.object {
            Some(ObjectWrite::Replace(status)) => self.wrote_status(parent, status, &stored),
            Some(ObjectWrite::Patch(metadata)) if decorates(metadata) => {
                self.parents.writes.wrote(&parent.key, METADATA, &stored);
            }
            Some(ObjectWrite::Patch(_)) | None => {}
        }
        let stored = Object::from_json(text.get(), &parent.served)
            .map_err(|error| unreadable(error.to_string()))?;
        if frees && self.finalizer.is_on(stored.header()) {
            return Err(self.not_stored("removed"));
        }
        let is_freed = frees && parent.terminating && stored.header().finalizers.is_empty();
        Ok(match is_freed {
            true => DecorationResult::Freed,
            // An admission webhook may have added finalizers.
            false => DecorationResult::Differed(Box::new(stored.header().clone())),
        })
    }

    fn wrote_status(&self, parent: &Parent, status: &StatusWrite, stored: &StoredObject) {
        let writes = &self.parents.writes;
        writes.wrote(&parent.key, STATUS, stored);
        writes.record_stored_status(&parent.key, status.wanted, stored.status);
    }
}

/// Returns why `/status` of an object was not found: the object is gone, or its type has lost the
/// subresource.
async fn missing_status(
    resource: &Resource<'_>,
    parent: &Parent,
) -> Result<DecorationResult, SyncError> {
    match resource.get(&parent.key).await {
        Ok(live) if live.is(&parent.uid) => {
            let why = "the object exists, and its status was not found";
            Err(SyncError::Outdated(format!("writing the status: {why}")))
        }
        Ok(_) => Ok(DecorationResult::Gone),
        Err(error) if is_gone(&error) => Ok(DecorationResult::Gone),
        Err(error) => Err(SyncError::of_write("reading the object", &error)),
    }
}

/// Field of the metadata that the limit of writes does not count.
const FINALIZERS: &str = "finalizers";

/// Returns whether a patch changes labels or annotations.
fn decorates(metadata: &Map<String, Value>) -> bool {
    metadata.keys().any(|field| field != FINALIZERS)
}

/// Returns the status that one of the writes has.
fn status_of(writes: &DecorationWrites) -> Option<&StatusWrite> {
    match (&writes.status, &writes.object) {
        (Some(status), _) | (None, Some(ObjectWrite::Replace(status))) => Some(status),
        (None, Some(ObjectWrite::Patch(_)) | None) => None,
    }
}
