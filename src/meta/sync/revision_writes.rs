//! Writes of the revisions of one parent, before any of its children is written.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::{
    SyncError,
    report::SyncReporter,
    revisions::{Revisions, RolloutSync, count},
};
use crate::{
    informer::{Object, ObjectKey},
    meta::{
        api::RevisionChildren,
        children::owner_reference,
        json::go_json,
        parent::Parent,
        resource::{
            Resource, ServerObject, is_already_there, is_gone, is_in_ending_namespace,
            is_other_object,
        },
        rollout::{LabelMap, Plan, Revision, RevisionOwner, labels_of},
    },
    redaction,
};

/// Write of one revision.
#[derive(Debug)]
enum RevisionWrite<'a> {
    Create(&'a Revision, Vec<RevisionChildren>),
    SetChildren(&'a Revision, Vec<RevisionChildren>),
    /// Restores the patch of a revision.
    Restore(&'a Revision, Vec<RevisionChildren>),
    Delete(&'a Revision),
}

impl Revisions<'_> {
    /// Writes the planned children of the revisions, the latest first. After a crash between two
    /// writes a child may be in two revisions, of which the latest counts. A child in no revision
    /// would not be updated.
    pub(super) async fn write(&self, plan: &Plan) -> Result<(), SyncError> {
        let writes = self.writes(plan);
        if writes.is_empty() {
            return Ok(());
        }
        let RolloutSync { apply, reporter: SyncReporter { context, .. }, .. } = self.sync;
        context.release_slot();
        let resource = Resource::new(context.requester(), &self.served);
        for write in writes {
            match write {
                RevisionWrite::Create(revision, children) => {
                    self.create(revision, children, &resource).await?;
                }
                RevisionWrite::SetChildren(revision, children) => {
                    let patch = children_patch(revision, children);
                    let doing = format!("updating ControllerRevision {}", revision.key);
                    let written = apply.parents.patches.merge(&resource, &revision.key, &patch);
                    let IgnoredAny = written.await.map_err(|error| of_write(&doing, &error))?;
                }
                RevisionWrite::Restore(revision, children) => {
                    let doing = format!("restoring the edited ControllerRevision {}", revision.key);
                    let live = resource.get(&revision.key).await;
                    let live = live.map_err(|error| of_write(&doing, &error))?;
                    let is_observed = |(uid, version): &(Arc<str>, Arc<str>)| {
                        live.is(uid) && live.version() == Some(version)
                    };
                    if !revision.observed.as_ref().is_some_and(is_observed) {
                        return Err(SyncError::Outdated(format!("{doing}: the cache is behind")));
                    }
                    let fields = restored_fields(revision, &children);
                    replace_revision(&revision.key, &live, fields, &resource, &doing).await?;
                }
                RevisionWrite::Delete(revision) => {
                    let Some((uid, _)) = &revision.observed else { continue };
                    match resource.delete(&revision.key, uid).await {
                        Err(error) if !is_gone(&error) && !is_other_object(&error) => {
                            let doing = format!("deleting ControllerRevision {}", revision.key);
                            return Err(SyncError::of_write(&doing, &error));
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates a revision. An existing object of its name is made the parent's, whatever its owner
    /// and content: the name has a digest of the parent's uid, so that no other parent needs it.
    async fn create(
        &self,
        revision: &Revision,
        children: Vec<RevisionChildren>,
        resource: &Resource<'_>,
    ) -> Result<(), SyncError> {
        let RolloutSync { definition, reporter: SyncReporter { parent, .. }, .. } = self.sync;
        let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
        let generates = definition.generate_selector;
        let labels = labels_of(&self.parent, owner, generates).map_err(SyncError::Failed)?;
        let object = revision.object(labels.clone(), owner_reference(parent), children.clone());
        let doing = format!("creating ControllerRevision {}", revision.key);
        match resource.create(&revision.key, object).await {
            Ok(_stored) => return Ok(()),
            // Rollouts have ended for this parent: its children are finalized without a record.
            Err(error) if parent.terminating && is_in_ending_namespace(&error) => return Ok(()),
            Err(error) if is_already_there(&error) => {}
            Err(error) => return Err(SyncError::of_write(&doing, &error)),
        }
        let live = resource.get(&revision.key).await;
        let live = live.map_err(|error| of_write(&doing, &error))?;
        let object = Object::from_json(live.json(), &self.served)
            .map_err(|error| SyncError::Failed(format!("{doing}: {error}")))?;
        if count(parent, revision, &object).is_ok() {
            return Err(SyncError::Outdated(doing));
        }
        let mut fields = restored_fields(revision, &children);
        fields.insert("metadata".to_owned(), taken_metadata(&live, labels, parent));
        replace_revision(&revision.key, &live, fields, resource, &doing).await
    }

    /// Returns the writes that the plan needs, in their order.
    fn writes(&self, plan: &Plan) -> Vec<RevisionWrite<'_>> {
        let mut writes = Vec::new();
        // A namespace that is being deleted admits no new object, and nothing is rolled any more.
        let is_ending = self.parent.pointer("/metadata/deletionTimestamp").is_some();
        if self.latest.observed.is_none() && is_ending && self.older.is_empty() {
            return writes;
        }
        if self.latest.observed.is_none() {
            writes.push(RevisionWrite::Create(&self.latest, plan.latest.clone()));
        } else if self.is_altered {
            writes.push(RevisionWrite::Restore(&self.latest, plan.latest.clone()));
        } else if self.latest.children != plan.latest {
            writes.push(RevisionWrite::SetChildren(&self.latest, plan.latest.clone()));
        }
        let older = || self.older.iter().map(|older| &older.revision).zip(&plan.older);
        let changed = older()
            .filter(|(revision, children)| !children.is_empty() && revision.children != **children);
        writes
            .extend(changed.map(|(revision, children)| {
                RevisionWrite::SetChildren(revision, children.clone())
            }));
        let unused = older().filter(|(_, children)| children.is_empty());
        writes.extend(unused.map(|(revision, _)| RevisionWrite::Delete(revision)));
        writes
    }

    /// Returns whether the plan needs a write.
    pub(super) fn needs_write(&self, plan: &Plan) -> bool {
        !self.writes(plan).is_empty()
    }
}

/// Returns the error of a request for a revision that exists in the cache.
fn of_write(doing: &str, error: &kube::Error) -> SyncError {
    if is_gone(error) {
        SyncError::Outdated(format!("{doing}: it no longer exists"))
    } else {
        SyncError::of_write(doing, error)
    }
}

/// Returns the fields of a revision's object that a client may have edited.
fn restored_fields(revision: &Revision, children: &[RevisionChildren]) -> Map<String, Value> {
    let fields =
        [("parentPatch", revision.patch.clone()), ("children", json!(children))].into_iter();
    fields.map(|(field, value)| (field.to_owned(), value)).collect()
}

/// Returns the metadata of a live object with these labels, and with the parent as its controller.
fn taken_metadata(live: &ServerObject, labels: LabelMap, parent: &Parent) -> Value {
    let object = serde_json::from_slice::<Value>(live.json()).unwrap_or_default();
    let mut metadata = object.get("metadata").cloned().unwrap_or_default();
    let owners = metadata.get("ownerReferences").and_then(Value::as_array).cloned();
    let mut owners = owners.unwrap_or_default();
    owners.retain(|owner| owner["controller"] != true && owner["uid"] != *parent.uid);
    owners.push(owner_reference(parent));
    metadata["ownerReferences"] = owners.into();
    metadata["labels"] = json!(labels);
    metadata
}

/// Replaces fields of a live revision. A merge patch could not remove what was added to its patch.
async fn replace_revision(
    key: &ObjectKey,
    live: &ServerObject,
    fields: Map<String, Value>,
    resource: &Resource<'_>,
    doing: &str,
) -> Result<(), SyncError> {
    let object = serde_json::from_slice::<Map<String, Value>>(live.json());
    let mut object = object
        .map_err(|error| SyncError::Failed(format!("{doing}: {}", redaction::decoding(error))))?;
    object.extend(fields);
    let body = go_json::encode(&Value::Object(object));
    resource.replace(key, body.into()).await.map(drop).map_err(|error| of_write(doing, &error))
}

/// Patch of the children alone, for exactly this version of a revision.
fn children_patch(revision: &Revision, children: Vec<RevisionChildren>) -> Value {
    let (uid, version) = revision.observed.clone().unwrap_or_default();
    let children = if children.is_empty() { Value::Null } else { json!(children) };
    json!({"metadata": {"uid": uid, "resourceVersion": version}, "children": children})
}
