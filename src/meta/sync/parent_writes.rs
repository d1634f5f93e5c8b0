//! Writes of a parent: its finalizer, and its status as in the hook response.
//!
//! The status stays text: it is compared by its digest, and the body of a write is composed of
//! texts.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::time::sleep;

use super::SyncError;
use crate::{
    controller::Context,
    duration::{LONGEST, doubled},
    informer::{Header, Object, ObjectKey},
    kind::ServedType,
    meta::{
        apply::Apply,
        definition::finalizer::Finalizer,
        json::{digest::JsonDigest, rewrite},
        parent::Parent,
        resource::{Resource, is_conflict, is_gone, patches::Patches},
    },
    redaction,
};

/// Name of a parent's status in its write limit.
const STATUS: &str = "the status";
/// Number of attempts to write a status before a conflict is retried by the work queue.
const STATUS_ATTEMPTS: u32 = 4;
/// Delay of the second attempt; doubled for each further one.
const STATUS_RETRY: Duration = Duration::from_millis(20);

/// Writer of one parent, for one sync.
#[derive(Clone, Copy)]
pub(super) struct ParentWriter<'a> {
    pub(super) finalizer: &'a Finalizer,
    /// Write limit, and patches.
    pub(super) apply: &'a Apply,
    pub(super) parent: &'a Parent,
    pub(super) context: &'a Context,
}

impl ParentWriter<'_> {
    /// Adds the finalizer to exactly this version of the parent.
    pub(super) async fn add_finalizer(&self, header: &Header) -> Result<(), SyncError> {
        let stored = self.patch(&self.finalizer.added(header), "adding the finalizer").await?;
        // Without this check, the parent would be written in a loop.
        if stored.is_some_and(|stored| !self.finalizer.is_on(stored.header())) {
            return Err(self.not_stored("added"));
        }
        Ok(())
    }

    /// Removes the finalizer from exactly this version of the parent. Returns the parent as stored;
    /// `None` if it is gone.
    pub(super) async fn remove_finalizer(
        &self,
        header: &Header,
    ) -> Result<Option<Object>, SyncError> {
        let stored = self.patch(&self.finalizer.removed(header), "removing the finalizer").await?;
        if stored.as_ref().is_some_and(|stored| self.finalizer.is_on(stored.header())) {
            return Err(self.not_stored("removed"));
        }
        Ok(stored)
    }

    pub(super) fn not_stored(&self, verb: &str) -> SyncError {
        let name = &self.finalizer.name;
        SyncError::Failed(format!(
            "the API server accepted a write that {verb} {name}, and dropped it"
        ))
    }

    /// Writes a parent, without a worker slot: no hook is called afterwards. Returns the parent as
    /// stored; `None` if it is gone.
    async fn patch(&self, patch: &Value, doing: &str) -> Result<Option<Object>, SyncError> {
        let Self { apply, parent, context, .. } = self;
        context.release_slot();
        let resource = Resource::new(context.requester(), &parent.served);
        let patches = &apply.parents.patches;
        patch_object(patches, &resource, &parent.served, &parent.key, patch, doing).await
    }

    /// Replaces the parent's status by the hook's, if they differ and the type has one. A response
    /// without a status leaves that of a type without a CRD. Returns whether the parent has the
    /// hook's status already.
    pub(super) async fn write_status(
        &self,
        object: &Object,
        status: Option<Bytes>,
    ) -> Result<bool, SyncError> {
        let Self { apply, parent, context, .. } = self;
        if !parent.served.subresources.status {
            return Ok(true);
        }
        // The status of another type is that of its own controller.
        if status.is_none() && !parent.served.is_of_crd() {
            return Ok(true);
        }
        let wanted = WantedStatus::new(status, object.header().generation)?;
        let known = status_of(&object.json())?;
        if known == Some(wanted.digest) {
            return Ok(true);
        }
        // The schema may have pruned the status.
        if parent.state.status_settled(wanted.digest, known) {
            return Ok(false);
        }
        // If each response has another status, each write of it triggers the next sync. The limit
        // ends that loop.
        if !apply.may_write(parent, STATUS) {
            return Ok(false);
        }
        context.release_slot();
        let resource = Resource::new(context.requester(), &parent.served);
        let mut body = wanted.within(&object.json())?;
        let mut other = None;
        for attempt in 0..STATUS_ATTEMPTS {
            if attempt > 0 {
                sleep(doubled(STATUS_RETRY, attempt - 1, LONGEST)).await;
                let live = match resource.get(&parent.key).await {
                    Ok(live) if live.is(&parent.uid) => live,
                    Ok(_) => return Ok(false),
                    Err(error) if is_gone(&error) => return Ok(false),
                    Err(error) => return Err(SyncError::of_write("reading the parent", &error)),
                };
                other = live.other_writer();
                if status_of(live.json())? == Some(wanted.digest) {
                    return Ok(false);
                }
                body = wanted.within(live.json())?;
            }
            match resource.update_status(&parent.key, body.clone()).await {
                Ok(stored) => {
                    parent.state.wrote(STATUS);
                    parent.state.record_stored_status(wanted.digest, stored.status);
                    return Ok(false);
                }
                Err(error) if is_gone(&error) => return Ok(false),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(SyncError::of_write("writing the status", &error)),
            }
        }
        let writer = other.as_deref().unwrap_or("another client");
        Err(SyncError::Conflict(format!("writing the status: {writer} keeps writing the parent")))
    }
}

/// Patches an object. Returns it as stored; `None` if it is gone.
pub(super) async fn patch_object(
    patches: &Patches,
    resource: &Resource<'_>,
    served: &ServedType,
    key: &ObjectKey,
    patch: &Value,
    doing: &str,
) -> Result<Option<Object>, SyncError> {
    match patches.merge::<Box<RawValue>>(resource, key, patch).await {
        Ok(stored) => Object::from_json(stored.get(), served)
            .map(Some)
            .map_err(|error| SyncError::Failed(format!("{doing}: {error}"))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(SyncError::of_write(doing, &error)),
    }
}

/// Status to write.
struct WantedStatus {
    json: Vec<u8>,
    digest: JsonDigest,
}

impl WantedStatus {
    fn new(status: Option<Bytes>, generation: i64) -> Result<Self, SyncError> {
        let status = status.as_deref().unwrap_or(b"{}");
        let unreadable = |error| unreadable("status", error);
        let mut json = Vec::with_capacity(status.len());
        let generation = generation.to_string();
        rewrite::with_field(status, "observedGeneration", generation.as_bytes(), &mut json)
            .map_err(unreadable)?;
        let digest = JsonDigest::of(&json).map_err(unreadable)?;
        Ok(Self { json, digest })
    }

    /// The parent with this status, encoded.
    fn within(&self, parent: &[u8]) -> Result<Bytes, SyncError> {
        let mut body = Vec::with_capacity(parent.len() + self.json.len());
        rewrite::with_field(parent, "status", &self.json, &mut body)
            .map_err(|error| unreadable("parent", error))?;
        Ok(body.into())
    }
}

/// Digest of the parent's status, if it has one.
fn status_of(parent: &[u8]) -> Result<Option<JsonDigest>, SyncError> {
    #[derive(Deserialize)]
    struct StatusObject {
        #[serde(default)]
        status: Option<JsonDigest>,
    }
    let parent: StatusObject =
        serde_json::from_slice(parent).map_err(|error| unreadable("parent", error))?;
    Ok(parent.status)
}

fn unreadable(what: &str, error: serde_json::Error) -> SyncError {
    SyncError::Failed(format!("{what} is unreadable: {}", redaction::decoding(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_written_with_its_observed_generation() {
        let parent = br#"{"kind":"Thing","metadata":{"generation":7},"status":{"old":1}}"#;
        for (status, expected) in [
            (None, r#"{"observedGeneration":7}"#),
            (Some(r#"{ "a" : 2.0 }"#), r#"{"a":2,"observedGeneration":7}"#),
            (
                Some(r#"{"observedGeneration":1,"a":"<"}"#),
                r#"{"a":"\u003c","observedGeneration":7}"#,
            ),
        ] {
            let wanted = WantedStatus::new(status.map(Bytes::from), 7).unwrap();

            let body = wanted.within(parent).unwrap();

            let head = r#"{"kind":"Thing","metadata":{"generation":7},"status":"#;
            assert_eq!(String::from_utf8(body.to_vec()).unwrap(), format!("{head}{expected}}}"));
            assert_eq!(status_of(&body).unwrap(), Some(wanted.digest));
            assert_ne!(status_of(parent).unwrap(), Some(wanted.digest));
        }
        assert_eq!(status_of(b"{}").unwrap(), None);
    }
}
