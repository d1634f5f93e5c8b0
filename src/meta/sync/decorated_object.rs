//! Writes of a decorated object: its labels, annotations and status, as `decoration` plans them.

use std::collections::VecDeque;

use serde_json::{Map, Value, value::RawValue};

use super::{
    SyncError,
    decoration::{self, Decoration, DecorationWrites, ObjectWrite, StatusWrite},
    parent_writes::ParentWriter,
};
use crate::{
    informer::{Header, Object},
    meta::{
        parent::Parent,
        protocol::StringChanges,
        resource::{Resource, StoredObject, is_gone},
    },
    redaction,
};

/// Name of a decorated object's status in its write limit.
const STATUS: &str = "the status";
/// Name of its labels and annotations there.
const METADATA: &str = "the metadata";
/// Name of the other writes in messages.
const DOING: &str = "writing the object";

/// Outcome of the writes of a decorated object.
pub(super) enum DecorationResult {
    /// The object was as desired.
    AsDesired,
    /// The object was written and has this header now, or a write was held back.
    Differed(Box<Header>),
    /// The last finalizer of an object that is being deleted was removed.
    Freed,
    /// The object was gone before, and its attachments are left to the garbage collector.
    Gone,
}

/// Writes of a decorated object. Each part of a response stands alone: one that is refused leaves
/// the others.
pub(super) struct Decorated {
    pub(super) result: DecorationResult,
    /// Parts that cannot be written.
    pub(super) refused: Option<String>,
}

impl DecorationResult {
    /// Returns the header of the object as these writes have left it; `None` if it is gone.
    pub(super) fn header(&self, object: &Object) -> Option<Header> {
        match self {
            Self::AsDesired => Some(object.header().clone()),
            Self::Differed(header) => Some((**header).clone()),
            Self::Freed | Self::Gone => None,
        }
    }
}

/// Writer of a decorated object, for one sync.
pub(super) struct DecoratedObject<'a> {
    pub(super) writer: ParentWriter<'a>,
    /// The object as cached.
    pub(super) object: &'a Object,
}

impl DecoratedObject<'_> {
    /// Writes the object as decorated, in at most two writes unless one is refused.
    pub(super) async fn write(&self, decoration: Decoration<'_>) -> Result<Decorated, SyncError> {
        let ParentWriter { apply, parent, context, .. } = self.writer;
        let mut writes = self.planned(decoration)?;
        let mut is_held_back = false;
        let mut admitted = decoration;
        if let Some(status) = status_of(&writes)
            && (parent.state.status_settled(status.wanted, status.seen)
                || !apply.may_write(parent, STATUS))
        {
            is_held_back = true;
            admitted = Decoration { status: None, ..decoration };
            writes = self.planned(admitted)?;
        }
        if let Some(ObjectWrite::Patch(metadata)) = &mut writes.object
            && decorates(metadata)
            && !apply.may_write(parent, METADATA)
        {
            is_held_back = true;
            metadata.retain(|field, _| field == FINALIZERS);
            if metadata.is_empty() {
                writes.object = None;
            }
        }
        if writes == DecorationWrites::default() {
            let result = if is_held_back {
                DecorationResult::Differed(Box::new(self.object.header().clone()))
            } else {
                DecorationResult::AsDesired
            };
            return Ok(Decorated { result, refused: None });
        }
        context.release_slot();
        self.send(writes, admitted).await
    }

    /// Sends the writes of an object, each for the version that the last one has left. A write of
    /// several parts that is refused is sent again part by part.
    async fn send(
        &self,
        writes: DecorationWrites,
        decoration: Decoration<'_>,
    ) -> Result<Decorated, SyncError> {
        let ParentWriter { finalizer, parent, context, .. } = self.writer;
        let resource = Resource::new(context.requester(), &parent.served);
        let mut header = self.object.header().clone();
        let mut refused = Vec::new();
        if let Some(status) = &writes.status {
            match resource.update_status(&parent.key, status.body.clone()).await {
                Ok(stored) => {
                    if let Some(stored) = stored.version() {
                        header.resource_version = stored.into();
                    }
                    self.wrote_status(status, &stored);
                }
                Err(error) if is_gone(&error) => {
                    let result = missing_status(&resource, parent).await?;
                    return Ok(Decorated { result, refused: None });
                }
                Err(error) => {
                    refused.push(SyncError::of_write("writing the status", &error).failure()?);
                }
            }
        }
        let frees = decoration.finalizer.is_some();
        let mut pending: VecDeque<_> = writes.object.into_iter().collect();
        // True if the pending writes are parts of a write that was refused.
        let mut is_part = false;
        while let Some(write) = pending.pop_front() {
            let text = match self.send_part(&resource, &write, &header).await {
                Ok(text) => text,
                Err(error) if is_gone(&error) => {
                    return Ok(Decorated { result: DecorationResult::Gone, refused: None });
                }
                Err(error) => {
                    let refusal = SyncError::of_write(DOING, &error).failure()?;
                    let parts =
                        if is_part { Vec::new() } else { self.parts_of(write, decoration)? };
                    if parts.is_empty() {
                        refused.push(refusal);
                    }
                    is_part = true;
                    pending.extend(parts);
                    continue;
                }
            };
            header = self.wrote_part(&write, &text)?;
            if frees && parent.terminating && header.finalizers.is_empty() {
                return Ok(Decorated { result: DecorationResult::Freed, refused: None });
            }
        }
        // An admission webhook may have added finalizers.
        if frees && refused.is_empty() && finalizer.is_on(&header) {
            return Err(self.writer.not_stored("removed"));
        }
        let refused = (!refused.is_empty()).then(|| refused.join("; "));
        Ok(Decorated { result: DecorationResult::Differed(Box::new(header)), refused })
    }

    /// Sends one write of an object. Returns the object as stored.
    async fn send_part(
        &self,
        resource: &Resource<'_>,
        write: &ObjectWrite,
        header: &Header,
    ) -> Result<Box<RawValue>, kube::Error> {
        let ParentWriter { apply, parent, .. } = self.writer;
        match write {
            ObjectWrite::Patch(metadata) => {
                let patch = ObjectWrite::patch(metadata, &parent.uid, &header.resource_version);
                apply.parents.patches.merge(resource, &parent.key, &patch).await
            }
            ObjectWrite::Replace(status) => {
                resource.replace(&parent.key, status.body.clone()).await
            }
        }
    }

    /// Records a write of an object. Returns the header as stored.
    fn wrote_part(&self, write: &ObjectWrite, text: &RawValue) -> Result<Header, SyncError> {
        let parent = self.writer.parent;
        let unreadable = |why: String| SyncError::Failed(format!("{DOING}: {why}"));
        let stored: StoredObject = serde_json::from_str(text.get())
            .map_err(|error| unreadable(redaction::decoding(error)))?;
        match write {
            ObjectWrite::Replace(status) => self.wrote_status(status, &stored),
            ObjectWrite::Patch(metadata) if decorates(metadata) => {
                parent.state.wrote(METADATA);
            }
            ObjectWrite::Patch(_) => {}
        }
        let stored = Object::from_json(text.get(), &parent.served)
            .map_err(|error| unreadable(error.to_string()))?;
        Ok(stored.header().clone())
    }

    fn wrote_status(&self, status: &StatusWrite, stored: &StoredObject) {
        let state = &self.writer.parent.state;
        state.wrote(STATUS);
        state.record_stored_status(status.wanted, stored.status);
    }

    /// Returns the writes that decorate the object.
    fn planned(&self, decoration: Decoration<'_>) -> Result<DecorationWrites, SyncError> {
        let has_status = self.writer.parent.served.subresources.status;
        decoration::writes(&self.object.json(), decoration, has_status).map_err(|error| {
            SyncError::Failed(format!("the object is unreadable: {}", redaction::decoding(error)))
        })
    }

    /// Returns the parts of a write that was refused; empty if it has one part alone.
    fn parts_of(
        &self,
        write: ObjectWrite,
        decoration: Decoration<'_>,
    ) -> Result<Vec<ObjectWrite>, SyncError> {
        match write {
            ObjectWrite::Patch(metadata) if metadata.len() > 1 => Ok(fields_alone(metadata)),
            ObjectWrite::Patch(_) => Ok(Vec::new()),
            ObjectWrite::Replace(_) => {
                let metadata = self.planned(Decoration { status: None, ..decoration })?;
                let Some(ObjectWrite::Patch(metadata)) = metadata.object else {
                    return Ok(Vec::new());
                };
                let none = &StringChanges::default();
                let status =
                    Decoration { labels: none, annotations: none, finalizer: None, ..decoration };
                let status = self.planned(status)?.object;
                Ok(status.into_iter().chain(fields_alone(metadata)).collect())
            }
        }
    }
}

/// Returns a patch for each field of the metadata. The finalizer is removed last, since the object
/// may be gone afterwards.
fn fields_alone(metadata: Map<String, Value>) -> Vec<ObjectWrite> {
    let (finalizers, texts): (Vec<_>, Vec<_>) =
        metadata.into_iter().partition(|(field, _)| field == FINALIZERS);
    let fields = texts.into_iter().chain(finalizers);
    fields.map(|field| ObjectWrite::Patch(Map::from_iter([field]))).collect()
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
