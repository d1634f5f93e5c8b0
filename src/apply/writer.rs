//! Writer of a set: sends writes, or records what they would do.
//!
//! A recording writer sends dry runs in place of creates and applies, and nothing in place of
//! deletions. The decisions before each write are the same for both.

use kube::api::Preconditions;
use serde_json::Value;

use super::{
    checked_set::DesiredObject, intent::body, live_object::LiveObject, object_name::ObjectName,
    plan::field_change::FieldChange, requests::Requests, set_kind::SetKind,
};
use crate::redaction;

/// Treatment of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// Writes are sent.
    Live,
    /// Writes are dry runs.
    Recording,
}

/// Writer of the objects of a set.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) requests: Requests<'a>,
    pub(super) mode: WriteMode,
}

/// Object as an apply has left it, or would leave it.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) is_changed: bool,
    /// Changes of fields; recorded only by a recording writer.
    pub(super) changes: Vec<FieldChange>,
    /// The object as it is stored; `None` if it was not stored.
    pub(super) stored: Option<LiveObject>,
}

impl Writer<'_> {
    pub(super) fn is_live(&self) -> bool {
        self.mode == WriteMode::Live
    }

    /// Creates an object, and applies it, so that its fields are those of server-side apply. Returns
    /// it as it is stored; `None` if it was not stored, or not applied.
    pub(super) async fn create(
        &self,
        desired: &DesiredObject,
    ) -> Result<Option<LiveObject>, kube::Error> {
        let DesiredObject { kind, name, intent, .. } = desired;
        let namespace = name.namespace.as_deref();
        let created = self.requests.create(kind, namespace, intent, !self.is_live()).await?;
        if !self.is_live() {
            return Ok(None);
        }
        tracing::debug!(object = %name, "object of a set created");
        match self.apply(desired, &created, false).await {
            Ok(applied) => Ok(applied.stored),
            // The next apply does it.
            Err(error) => {
                let error = redaction::request_error(&error);
                tracing::debug!(object = %name, error, "created object not applied");
                Ok(None)
            }
        }
    }

    /// Dry run of a create.
    pub(super) async fn dry_run_create(&self, desired: &DesiredObject) -> Result<(), kube::Error> {
        let namespace = desired.name.namespace.as_deref();
        self.requests.create(&desired.kind, namespace, &desired.intent, true).await.map(drop)
    }

    /// Applies an object to exactly its live version. With `force`, fields of other managers are
    /// taken over.
    pub(super) async fn apply(
        &self,
        desired: &DesiredObject,
        live: &LiveObject,
        force: bool,
    ) -> Result<Applied, kube::Error> {
        let DesiredObject { kind, name, .. } = desired;
        match self.mode {
            WriteMode::Live => {
                let live = self.hand_over(kind, name, live).await?;
                let intent = guarded(&desired.intent, live.preconditions());
                let intent = body(&intent).map_err(kube::Error::SerdeError)?;
                let stored: LiveObject =
                    self.requests.apply(kind, name, &intent, force, false).await?;
                let is_changed = stored.metadata.resource_version != live.metadata.resource_version;
                tracing::debug!(object = %name, is_changed, "object of a set applied");
                Ok(Applied { is_changed, changes: Vec::new(), stored: Some(stored) })
            }
            WriteMode::Recording => {
                let before = self.requests.object(kind, name).await?;
                let intent = guarded(&desired.intent, live.preconditions());
                let intent = body(&intent).map_err(kube::Error::SerdeError)?;
                let after: Value = self.requests.apply(kind, name, &intent, force, true).await?;
                let is_secret = redaction::is_secret(&kind.group, &kind.plural);
                let changes = FieldChange::between(&before, &after, is_secret);
                let is_changed = !changes.is_empty() || owners(&before) != owners(&after);
                Ok(Applied { is_changed, changes, stored: None })
            }
        }
    }

    /// Deletes exactly one version of an object.
    pub(super) async fn delete(
        &self,
        kind: &SetKind,
        name: &ObjectName,
        preconditions: Preconditions,
    ) -> Result<(), kube::Error> {
        if !self.is_live() {
            return Ok(());
        }
        let namespace = name.namespace.as_deref();
        self.requests.delete(kind, namespace, &name.name, preconditions).await?;
        tracing::debug!(object = %name, "object of a set deleted");
        Ok(())
    }

    /// Makes what the manager created the fields of its server-side apply. Returns the object after
    /// that.
    async fn hand_over(
        &self,
        kind: &SetKind,
        name: &ObjectName,
        live: &LiveObject,
    ) -> Result<LiveObject, kube::Error> {
        match live.handed_over(self.requests.manager) {
            Some(patch) => {
                let namespace = name.namespace.as_deref();
                self.requests.merge(kind, namespace, &name.name, &patch).await
            }
            None => Ok(live.clone()),
        }
    }
}

/// Returns an intent for exactly one version of an object.
fn guarded(intent: &Value, preconditions: Option<Preconditions>) -> Value {
    let mut intent = intent.clone();
    if let Some(Preconditions { uid, resource_version }) = preconditions {
        intent["metadata"]["uid"] = uid.into();
        intent["metadata"]["resourceVersion"] = resource_version.into();
    }
    intent
}

/// Returns the managed fields of an object, without their times.
fn owners(object: &Value) -> Vec<Value> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let mut entries = entries.cloned().unwrap_or_default();
    for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
        entry.remove("time");
    }
    entries.sort_by_key(ToString::to_string);
    entries
}
